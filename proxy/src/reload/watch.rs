//! Looks at the files again and again.
//!
//! By looking, not by being told: a notice hangs on an inode, which an editor's rename, a ConfigMap's swap of links and a
//! deletion all leave behind. A file is read once it has been quiet for a while: half of one may be a valid configuration
//! with half of the endpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::Reloader;
use super::marks::Marks;

/// From one look to the next.
const LOOK: Duration = Duration::from_millis(250);
/// For so long nothing must have changed. With a look's delay, a change is at work within two seconds.
const QUIET: Duration = Duration::from_millis(1_250);

/// What a look makes of the files.
#[derive(Default)]
struct Watch {
    /// A change that was seen, and when for the first time.
    seen: Option<(Marks, Instant)>,
}

impl Watch {
    /// Whether a change has become quiet. `read` are the files as they were read, `now` as they are.
    fn is_due(&mut self, read: &Marks, now: Marks, at: Instant) -> bool {
        if now == *read {
            self.seen = None;
            return false;
        }
        match &self.seen {
            Some((seen, since)) if *seen == now => at.saturating_duration_since(*since) >= QUIET,
            _ => {
                self.seen = Some((now, at));
                false
            }
        }
    }
}

impl Reloader {
    /// Reloads when a file of the configuration has changed, for as long as the configuration wants that.
    pub(crate) async fn at_changes(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Watch::default();
        loop {
            looks.tick().await;
            if self.router.live().config.watch && self.has_changed(&mut watch).await {
                self.reload("the file changed").await;
            }
        }
    }

    async fn has_changed(&self, watch: &mut Watch) -> bool {
        let read = self.running.lock().await.marks.clone();
        let looked = read.clone();
        // Looking at a file system that has gone takes as long as it likes.
        let Ok(now) = spawn_blocking(move || looked.now()).await else { return false };
        watch.is_due(&read, now, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::marks::Marking;
    use super::*;

    #[test]
    fn a_change_is_due_once_it_is_quiet() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let marks = || {
            let marking = Marking::new();
            marking.mark(&file);
            marking.into_marks()
        };
        std::fs::write(&file, "one").unwrap();
        let (read, start) = (marks(), Instant::now());
        let mut watch = Watch::default();
        assert!(!watch.is_due(&read, read.now(), start), "nothing changed");
        std::fs::write(&file, "one and").unwrap();
        assert!(!watch.is_due(&read, read.now(), start), "just changed");
        std::fs::write(&file, "one and two").unwrap();
        assert!(!watch.is_due(&read, read.now(), start + QUIET), "changed on");
        assert!(!watch.is_due(&read, read.now(), start + QUIET + LOOK));
        assert!(watch.is_due(&read, read.now(), start + QUIET * 2), "quiet");
        assert!(!watch.is_due(&marks(), read.now(), start + QUIET * 2), "read");
        std::fs::remove_file(&file).unwrap();
        let gone = watch.is_due(&read, read.now(), start) || watch.is_due(&read, read.now(), start + QUIET);
        assert!(gone, "a file that is gone is a change too");
    }
}
