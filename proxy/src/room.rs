//! How many connections may be open on one kind of listener: who comes beyond it waits in the listen backlog.
//!
//! The limit is asked for each time, so a reload changes it. An accept loop waits for a place before it accepts; where
//! several loops share a room, each may be one over. While it is full, silent clients are asked to leave, the one that has been
//! silent longest first, and answers tell theirs to close, so who waits gets a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// An accept loop that finds no place looks again after so long: whether somebody waits, and for the next silent client.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The connections of one kind of listener.
#[derive(Debug, Default)]
pub(crate) struct Room {
    open: AtomicUsize,
    /// A place has become free.
    freed: Notify,
    /// Silent clients that may be asked to leave, longest first: a [`Notify`] wakes its waiters in their order.
    silent: Arc<Notify>,
    /// Whether somebody had to wait and the room has not emptied a little since: down to `relaxed`.
    full: AtomicBool,
    relaxed: AtomicUsize,
    /// Times that it became full.
    times_full: AtomicU64,
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Room>);

impl Room {
    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Times that it became full so far.
    pub(crate) fn times_full(&self) -> u64 {
        self.times_full.load(Ordering::Relaxed)
    }

    /// Whether somebody waits, or did a moment ago.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// What wakes a silent client that is asked to leave.
    pub(crate) fn silent(&self) -> Arc<Notify> {
        self.silent.clone()
    }

    /// Waits until there is a place. While somebody `waits` for one, silent clients are asked to leave; `filled` is called
    /// at the beginning of each such episode.
    pub(crate) async fn has_place(
        &self,
        max: impl Fn() -> usize,
        waits: impl Fn() -> bool,
        mut filled: impl FnMut(),
    ) {
        while self.open() >= max() {
            if waits() {
                let max = max();
                self.relaxed.store((max - max.div_ceil(8)).max(1), Ordering::Relaxed);
                if !self.full.swap(true, Ordering::Relaxed) {
                    self.times_full.fetch_add(1, Ordering::Relaxed);
                    filled();
                }
                self.ask_one();
            }
            // Also without a place: the limit may have been raised, somebody may have come or fallen silent.
            let _ = timeout(LOOK_AGAIN, self.freed.notified()).await;
        }
    }

    /// Asks the client that has been silent longest to leave.
    pub(crate) fn ask_one(&self) {
        self.silent.notify_one();
    }

    /// Takes a place.
    pub(crate) fn enter(self: &Arc<Self>) -> Place {
        self.open.fetch_add(1, Ordering::Relaxed);
        Place(self.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let room = &self.0;
        let left = room.open.fetch_sub(1, Ordering::Relaxed) - 1;
        if room.is_full() && left < room.relaxed.load(Ordering::Relaxed) {
            room.full.store(false, Ordering::Relaxed);
        }
        room.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_place_waits_until_one_is_free() {
        let room = Arc::new(Room::default());
        let mut places = Vec::new();
        for _ in 0..8 {
            room.has_place(|| 8, || true, || panic!("it is not full")).await;
            places.push(room.enter());
        }
        assert!(!room.is_full());
        let waited = {
            let room = room.clone();
            tokio::spawn(async move { room.has_place(|| 8, || true, || ()).await })
        };
        timeout(Duration::from_millis(60), async { waited.await.expect("it waits") })
            .await
            .expect_err("a place");
        assert!(room.is_full());
        assert_eq!((room.open(), room.times_full()), (8, 1));
        places.pop();
        timeout(Duration::from_secs(5), room.has_place(|| 8, || true, || ())).await.expect("a place");
        assert!(room.is_full(), "still nearly");
        places.pop();
        assert!(!room.is_full(), "no longer");
    }

    #[tokio::test]
    async fn a_limit_that_is_raised_lets_in_at_once() {
        let room = Arc::new(Room::default());
        let _place = room.enter();
        let max = AtomicUsize::new(1);
        let waits = room.has_place(|| max.load(Ordering::Relaxed), || false, || ());
        let raises = async { max.store(2, Ordering::Relaxed) };
        let both = async { tokio::join!(waits, raises) };
        timeout(Duration::from_secs(5), both).await.expect("a place");
        assert_eq!((room.is_full(), room.times_full()), (false, 0), "nobody waited");
    }

    #[tokio::test]
    async fn the_longest_silent_is_asked_first() {
        let room = Arc::new(Room::default());
        let mut first = silent_client(&room);
        let mut second = silent_client(&room);
        assert!(!first.as_mut().enable() && !second.as_mut().enable(), "nobody is asked yet");
        room.ask_one();
        assert!(!second.as_mut().enable());
        assert!(first.as_mut().enable());
    }

    fn silent_client(room: &Room) -> std::pin::Pin<Box<tokio::sync::futures::OwnedNotified>> {
        Box::pin(room.silent().notified_owned())
    }
}
