//! What a pool has learned and a change of its configuration leaves alone: belief, sessions, ratios, beginnings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use picker::belief::{EndpointId, Index, JoinError};
use picker::memo::Memo;
use picker::score::Candidate;
use picker::sessions::Sessions;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::budget::Budget;
use super::gate::Gate;
use super::{Candidates, Lacking};
use crate::clock::Clock;
use crate::learn::tokens::Ratios;
use crate::metrics::Count;

/// At most one request in this time goes to an endpoint whose figures are unknown, so that it is never left out for good.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Shared by all configurations of a pool, one after another.
#[derive(Default)]
pub(crate) struct Knowledge {
    pub(crate) index: Index,
    /// Beginnings of prompts that came before: makes decisions sooner, never other ones.
    pub(crate) memo: Memo,
    /// Prompt text to a token, by model.
    pub(crate) ratios: Ratios,
    /// Where each session was sent last.
    pub(crate) sessions: Sessions,
    /// What the engines' lists of models say.
    pub(super) lacking: ArcSwap<Lacking>,
    /// Wakes the pollers when their settings have changed.
    pub(crate) changed: Notify,
    /// What is in flight, and who waits.
    pub(crate) gate: Gate,
    /// Requests that may be sent once more.
    pub(crate) budget: Budget,
    /// Those that were not, because the budget was spent.
    pub(crate) retries_denied: Count,
    next_probe_ms: AtomicU64,
    ids: Mutex<Ids>,
}

/// Ids of endpoints that are in use. The least free one is given, so that they stay dense.
#[derive(Default)]
struct Ids {
    next: u32,
    free: BTreeSet<u32>,
}

/// An endpoint's place in the index: its id is nobody else's until this is dropped, so what a late answer teaches of an
/// endpoint that was removed cannot be taken for another's.
pub(crate) struct Seat {
    id: EndpointId,
    known: Arc<Knowledge>,
}

impl Knowledge {
    /// Nothing yet, with room for so many endpoints. Errors: no such memory.
    pub(super) fn new(endpoints: usize, capacity_blocks: usize) -> Result<Self, JoinError> {
        Ok(Self { index: Index::for_fleet(endpoints, capacity_blocks)?, ..Self::default() })
    }

    /// Whether every endpoint serves what any does, for all that is known.
    pub(crate) fn is_even(&self) -> bool {
        self.lacking.load().is_empty()
    }

    /// Waits, but not on when the settings change: a wait of the old ones may be a long one.
    pub(crate) async fn changed_within(&self, rest: Duration) {
        let _ = timeout(rest, self.changed.notified()).await;
    }

    /// An endpoint that can be reached, whose figures are all unknown while others' are known, and that has nothing in
    /// flight: about one request a second goes to such a one. Scores alone would never send it any, and stale metrics
    /// are no outage.
    pub(crate) fn due_for_probe(&self, candidates: &Candidates, clock: Clock) -> Option<EndpointId> {
        let (now, next) = (clock.millis(), self.next_probe_ms.load(Ordering::Relaxed));
        let unknown = |to: &&Candidate| to.load.waiting.or(to.load.running).or(to.load.kv_usage).is_none();
        if now < next || candidates.list.iter().all(|to| unknown(&to)) {
            return None;
        }
        let last =
            |to: &&Candidate| candidates.member(to.id).map_or(0, |member| member.endpoint.last_request_ms());
        let probe = candidates
            .list
            .iter()
            .filter(unknown)
            .filter(|to| to.load.in_flight.requests == 0)
            .min_by_key(last)?;
        let later = now + PROBE_INTERVAL.as_millis() as u64;
        let taken = self.next_probe_ms.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then_some(probe.id)
    }
}

impl Seat {
    /// A place for another endpoint. Errors: there is none, or no memory for it.
    pub(super) fn take(known: &Arc<Knowledge>, capacity_blocks: usize) -> Result<Self, JoinError> {
        let seat = Self { id: EndpointId(known.ids.lock().take()), known: known.clone() };
        known.index.join(seat.id, capacity_blocks)?;
        Ok(seat)
    }

    /// A place in knowledge of its own.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self::take(&Arc::default(), 8).expect("room for one")
    }

    /// What it is a place in.
    pub(crate) fn known(&self) -> &Arc<Knowledge> {
        &self.known
    }

    /// The endpoint in the index.
    pub(crate) fn id(&self) -> EndpointId {
        self.id
    }

    /// Forgets what the endpoint holds, for good: it is no longer of the pool.
    pub(crate) fn leave(&self) {
        self.known.index.leave(self.id);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
        self.known.ids.lock().free.insert(self.id.0);
    }
}

impl Ids {
    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_is_given_again_once_nobody_holds_it() {
        let known = Arc::new(Knowledge::default());
        let take = || Seat::take(&known, 8).unwrap();
        let (first, second) = (take(), take());
        assert_eq!((first.id(), second.id()), (EndpointId(0), EndpointId(1)));
        first.leave();
        assert_eq!(known.index.size(first.id()), None, "forgotten at once");
        assert_eq!(take().id(), EndpointId(2), "while a request may still hold the first");
        drop(first);
        assert_eq!(take().id(), EndpointId(0));
        assert!(known.index.size(second.id()).is_some());
    }
}
