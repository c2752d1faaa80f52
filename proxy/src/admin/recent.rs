//! The last decisions, with every score, for the state page.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use picker::decide::{Choice, Decision};
use picker::read::Api;

use crate::endpoints::Endpoint;
use crate::pool::Pool;

/// Decisions that are kept.
const DECISIONS_MAX: usize = 32;

/// A request that ended. Holds counts and scores, nothing of the prompt.
pub(crate) struct Entry {
    pub(crate) at_ms: u64,
    pub(crate) api: Api,
    pub(crate) status: u16,
    pub(crate) trouble: Option<&'static str>,
    pub(crate) took: Duration,
    pub(crate) pool: Arc<Pool>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) choice: Choice,
    /// Blocks of the prompt.
    pub(crate) blocks: usize,
    pub(crate) decision: Decision,
}

/// A bounded list of them.
#[derive(Default)]
pub(crate) struct Recent(Mutex<VecDeque<Entry>>);

impl Recent {
    /// Adds one and drops the oldest.
    pub(crate) fn push(&self, entry: Entry) {
        let mut entries = self.0.lock();
        let oldest = if entries.len() >= DECISIONS_MAX { entries.pop_front() } else { None };
        entries.push_back(entry);
        // Freed outside the lock.
        drop(entries);
        drop(oldest);
    }

    /// The list, newest first, each through `show`.
    pub(crate) fn map<T>(&self, show: impl Fn(&Entry) -> T) -> Vec<T> {
        self.0.lock().iter().rev().map(show).collect()
    }
}
