//! How many requests a pool may have in flight, and who waits beyond that: a bounded line, the highest priority first.
//!
//! A place is given back when its request ends, and then the first in line is woken; it looks again whether there is room
//! for it. Nobody who comes later overtakes an equal.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::standing::NoRoom;
use super::{Candidates, Knowledge, Pool};
use crate::bounded::Bounded;
use crate::clock::Clock;
use crate::metrics::Count;

/// Counts the requests of a pool, and keeps its line.
#[derive(Default)]
pub(crate) struct Gate {
    in_flight: Bounded,
    line: Mutex<Line>,
    length: AtomicUsize,
    /// Requests that waited, that were turned away, and that gave way to a higher priority or waited too long.
    pub(crate) waited: Count,
    pub(crate) refused: Count,
    pub(crate) expired: Count,
}

#[derive(Default)]
struct Line {
    next: u64,
    waiting: BTreeMap<Turn, Arc<Ticket>>,
}

/// A place in the line: the higher priority, then who came first.
type Turn = (Reverse<u8>, u64);

#[derive(Default)]
struct Ticket {
    woken: Notify,
    /// It gave way to a higher priority.
    lost: AtomicBool,
}

/// A request's place among those in flight, given back when dropped.
pub(crate) struct Place(Arc<Knowledge>);

/// A request in line, which it leaves when dropped.
struct Waiting {
    known: Arc<Knowledge>,
    turn: Turn,
    ticket: Arc<Ticket>,
}

/// No room, and no place in line or not in time; what is left of the endpoints' pause, if that is why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saturated(pub(crate) Option<Duration>);

impl Pool {
    /// Lets a request in: at once, or when it is its turn. Errors: the pool is saturated. Cancel by dropping: it leaves the line.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        model: Option<&str>,
        priority: u8,
        clock: Clock,
    ) -> Result<(Place, Candidates), Saturated> {
        let gate = &self.known.gate;
        let refused = |left| {
            gate.refused.add(1);
            Saturated(left)
        };
        if gate.length() == 0 {
            match self.enter(model, clock) {
                Ok(entered) => return Ok(entered),
                Err(NoRoom::Paused(left)) => return Err(refused(Some(left))),
                Err(NoRoom::Full) => {}
            }
        }
        let line = &self.config.queue;
        let waiting = Waiting::join(&self.known, priority, line.requests_max).ok_or_else(|| refused(None))?;
        gate.waited.add(1);
        self.wait(waiting, model, Instant::now() + line.timeout, clock)
            .await
            .inspect_err(|_| gate.expired.add(1))
    }

    async fn wait(
        self: &Arc<Self>,
        waiting: Waiting,
        model: Option<&str>,
        until: Instant,
        clock: Clock,
    ) -> Result<(Place, Candidates), Saturated> {
        let mut is_called = waiting.is_first();
        loop {
            if is_called {
                match self.enter(model, clock) {
                    Ok(entered) => return Ok(entered),
                    Err(NoRoom::Paused(left)) => return Err(Saturated(Some(left))),
                    // Another model may have room where this one has none.
                    Err(NoRoom::Full) if !self.known.is_even() => waiting.call_next(),
                    Err(NoRoom::Full) => {}
                }
            }
            timeout_at(until, waiting.ticket.woken.notified()).await.map_err(|_| Saturated(None))?;
            if waiting.ticket.lost.load(Ordering::Relaxed) {
                return Err(Saturated(None));
            }
            is_called = true;
        }
    }

    /// A place and who can take the request, if there is room for both.
    fn enter(self: &Arc<Self>, model: Option<&str>, clock: Clock) -> Result<(Place, Candidates), NoRoom> {
        // The place last: giving one back calls who waits, and that may be this one.
        let candidates = self.candidates(model, clock)?;
        let place = Place::take(&self.known, self.config.limits.requests_max).ok_or(NoRoom::Full)?;
        Ok((place, candidates))
    }
}

impl Gate {
    /// Requests in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// Requests that wait.
    pub(crate) fn length(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// There may be room: calls the first in line.
    pub(crate) fn call(&self) {
        // Who joins sees the room, or is seen here: each writes before it reads what the other writes.
        fence(Ordering::SeqCst);
        if self.length() > 0
            && let Some((_, first)) = self.line.lock().waiting.first_key_value()
        {
            first.woken.notify_one();
        }
    }
}

impl Place {
    /// `None` if so many are in flight.
    fn take(known: &Arc<Knowledge>, limit: Option<NonZeroU32>) -> Option<Self> {
        known.gate.in_flight.take(limit).then(|| Self(known.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.gate.in_flight.give_back();
        self.0.gate.call();
    }
}

impl Waiting {
    /// Joins the line, at most so long; in a full one the last of a lower priority gives way. `None` if there is none.
    fn join(known: &Arc<Knowledge>, priority: u8, length_max: u32) -> Option<Self> {
        let mut line = known.gate.line.lock();
        if line.waiting.len() >= length_max as usize {
            let (&(Reverse(lowest), _), _) = line.waiting.last_key_value()?;
            if lowest >= priority {
                return None;
            }
            let (_, last) = line.waiting.pop_last()?;
            last.lost.store(true, Ordering::Relaxed);
            last.woken.notify_one();
        }
        line.next += 1;
        let (turn, ticket) = ((Reverse(priority), line.next), Arc::<Ticket>::default());
        line.waiting.insert(turn, ticket.clone());
        known.gate.length.store(line.waiting.len(), Ordering::Release);
        fence(Ordering::SeqCst);
        Some(Self { known: known.clone(), turn, ticket })
    }

    fn is_first(&self) -> bool {
        self.known.gate.line.lock().waiting.first_key_value().is_some_and(|(turn, _)| *turn == self.turn)
    }

    /// Calls who comes after this one.
    fn call_next(&self) {
        let line = self.known.gate.line.lock();
        let after = (std::ops::Bound::Excluded(self.turn), std::ops::Bound::Unbounded);
        if let Some((_, next)) = line.waiting.range(after).next() {
            next.woken.notify_one();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut line = self.known.gate.line.lock();
        line.waiting.remove(&self.turn);
        self.known.gate.length.store(line.waiting.len(), Ordering::Release);
        drop(line);
        // It may have been called and leave without having taken the room.
        self.known.gate.call();
    }
}
