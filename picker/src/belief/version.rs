//! Readers without a lock: a version that is odd while a writer changes what they look at.
//!
//! A reader notes the version, looks, and looks at the version again: if it is the same and even, all it saw belongs
//! together. It writes nothing, so readers do not slow each other. Memory that is looked at must be atomics, and
//! whatever a reader finds in the middle of a change must do no harm. `belief/model.rs` proves the order of the
//! accesses under loom.

use super::atomic::{AtomicU64, Ordering, fence};

/// Counts changes; odd during one. One writer at a time, which a lock elsewhere ensures.
#[derive(Debug)]
pub(super) struct Version(AtomicU64);

impl Version {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// What `look` saw, if nobody changed anything meanwhile.
    pub(super) fn read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        let before = self.0.load(Ordering::Acquire);
        if before % 2 == 1 {
            return None;
        }
        let seen = look();
        // Everything that `look` loaded is loaded before the version is loaded again.
        fence(Ordering::Acquire);
        (self.0.load(Ordering::Relaxed) == before).then_some(seen)
    }

    /// Makes a change that readers see whole or not at all.
    pub(super) fn change(&self, make: impl FnOnce()) {
        self.begin();
        make();
        self.end();
    }

    /// A change begins: no reader that sees part of it will trust what it saw.
    fn begin(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now + 1, Ordering::Relaxed);
        // The odd version is seen by whoever sees any store that follows.
        fence(Ordering::Release);
    }

    /// The change is complete.
    fn end(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now + 1, Ordering::Release);
    }
}
