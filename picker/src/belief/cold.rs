//! In which order endpoints took cold requests, those whose prompt nobody held. No lock: two words.

use super::atomic::{AtomicU64, Ordering};

/// Numbers all cold requests, from 1.
#[derive(Debug)]
pub(super) struct Colds(AtomicU64);

/// Number of the last cold request that an endpoint took; 0 for never.
#[derive(Debug)]
pub(super) struct LastCold(AtomicU64);

/// A cold request's number, and the endpoint's before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    before: u64,
    now: u64,
}

impl Default for Colds {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Default for LastCold {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl LastCold {
    pub(super) fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The endpoint takes the next cold request.
    pub(super) fn take(&self, colds: &Colds) -> Taken {
        let now = colds.0.fetch_add(1, Ordering::Relaxed) + 1;
        Taken { before: self.0.swap(now, Ordering::Relaxed), now }
    }

    /// The request failed: it was never taken, unless the endpoint took another since. Of two that fail in the order in which they
    /// came, the first one's number stays.
    pub(super) fn give_back(&self, taken: Taken) {
        let _ = self.0.compare_exchange(taken.now, taken.before, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// For the model's broken twin.
    #[cfg(all(test, loom))]
    pub(super) fn overwrite(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }
}
