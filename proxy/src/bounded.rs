//! A count that a limit bounds: requests in flight of a tenant, in a pool, at an endpoint.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many there are. Who takes a place gives it back, by a guard of its own.
#[derive(Debug, Default)]
pub(crate) struct Bounded(AtomicU32);

impl Bounded {
    /// Takes a place, where fewer than `limit` are taken; without a limit always.
    pub(crate) fn take(&self, limit: Option<NonZeroU32>) -> bool {
        let limit = limit.map_or(u32::MAX, NonZeroU32::get);
        let more = |count: u32| (count < limit).then(|| count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Gives one back.
    pub(crate) fn give_back(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Places that are taken.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
