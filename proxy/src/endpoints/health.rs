//! How an endpoint has answered lately, and whether it is left out for it.
//!
//! What answers tell goes before what the engine says of itself: an API process says "healthy" and "idle" while the engine
//! behind it hangs. Failures in a row leave an endpoint out for a cooldown; then one request tries it (half-open), and
//! either brings it back or doubles the cooldown. An endpoint that asked for a pause gets one. Nothing here needs an
//! operator to clear it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Endpoint;
use crate::metrics::Count;

/// How long an endpoint that is busy, and does not say until when, gets nothing while another can take it.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that an endpoint may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(5 * 60);
/// Looks at the health path in a row that must fail.
const ILL_AFTER: u32 = 2;

/// Milliseconds of the router's clock; 0 stands for never.
type Millis = u64;

/// What went wrong with a request at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A status that says that the engine is broken: 500, 502, 504.
    Status,
    /// The connection broke before the answer was whole, or it was no HTTP.
    Broke,
    /// No first byte in time.
    Timeout,
    /// No first token for too long, though streams wait for one.
    Stall,
}

impl Failure {
    /// The values of the label `kind`, in the order of [`Failure`].
    pub(crate) const NAMES: [&'static str; 4] = ["status", "broke", "timeout", "stall"];
}

/// One endpoint's.
#[derive(Default)]
pub(crate) struct Health {
    /// Until when it asked for a pause, and until when it is taken to be busy at least.
    told_until: AtomicU64,
    busy_until: AtomicU64,
    /// Left out; from then on one request may try it.
    out: AtomicBool,
    try_from: AtomicU64,
    /// One request tries it now.
    trying: AtomicBool,
    /// Its health path has not answered 200 so often in a row.
    unwell: AtomicU32,
    /// Something is there that a whole answer clears.
    troubled: AtomicBool,
    record: Mutex<Record>,
    /// Streams without a first token, and since when there are some and none came.
    waiting: AtomicU32,
    waiting_since: AtomicU64,
    /// By [`Failure`].
    pub(crate) failures: [Count; Failure::NAMES.len()],
    /// Times that it was left out.
    pub(crate) ejections: Count,
}

/// Failures since the last answer that came whole.
#[derive(Default)]
struct Record {
    in_a_row: u32,
    /// The prompts that failed, so that one which no engine can bear counts once.
    prompts: Vec<u64>,
    /// Cooldowns in a row.
    cooldowns: u32,
}

/// One request's right to try an endpoint that is left out; given back when dropped.
pub(crate) struct Trial(Arc<Endpoint>);

impl Health {
    /// It answered that it is busy, and perhaps for how long it wants a pause.
    pub(crate) fn busy(&self, pause: Option<Duration>, now: Millis) {
        let until = |pause: Duration| now.saturating_add(millis(pause));
        if let Some(pause) = pause {
            self.told_until.fetch_max(until(pause.min(PAUSE_MAX)), Ordering::Relaxed);
        } else {
            self.busy_until.fetch_max(until(PAUSE), Ordering::Relaxed);
        }
    }

    /// Whether it is taken to be busy.
    pub(crate) fn is_busy(&self, now: Millis) -> bool {
        now < self.busy_until.load(Ordering::Relaxed) || self.pause_left(now).is_some()
    }

    /// What is left of the pause that it asked for.
    pub(crate) fn pause_left(&self, now: Millis) -> Option<Duration> {
        let left = self.told_until.load(Ordering::Relaxed).saturating_sub(now);
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// Whether it is left out, for failures or by its health path.
    pub(crate) fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed) || self.is_ill()
    }

    /// A request failed there. `prompt` names its prompt, 0 for none. Gives the cooldown if it is left out from now on.
    pub(crate) fn failed(
        &self,
        failure: Failure,
        prompt: u64,
        rules: &config::Health,
        now: Millis,
    ) -> Option<Duration> {
        self.failures[failure as usize].add(1);
        let mut record = self.record.lock();
        // A time-out is the engine's, whatever it was asked.
        let is_again = failure != Failure::Timeout && prompt != 0 && record.prompts.contains(&prompt);
        if is_again && !self.trying.load(Ordering::Relaxed) {
            return None;
        }
        self.troubled.store(true, Ordering::Relaxed);
        record.in_a_row = record.in_a_row.saturating_add(1);
        if record.prompts.len() < rules.failures.get() as usize {
            record.prompts.push(prompt);
        }
        let is_enough = record.in_a_row >= rules.failures.get() || failure == Failure::Stall;
        let is_out = self.out.load(Ordering::Relaxed);
        // While it is out, requests from before go on failing: only the one that tries it says something new.
        let lengthens = is_out && self.trying.load(Ordering::Relaxed) && self.is_due(now);
        if (is_out && !lengthens) || (!is_out && !is_enough) {
            return None;
        }
        let cooldown = rules.cooldown.saturating_mul(1 << record.cooldowns.min(16)).min(rules.cooldown_max);
        record.cooldowns = record.cooldowns.saturating_add(1);
        self.try_from.store(now.saturating_add(millis(cooldown)), Ordering::Relaxed);
        if !is_out {
            self.out.store(true, Ordering::Relaxed);
            self.ejections.add(1);
        }
        Some(cooldown)
    }

    /// An answer came whole. True if the endpoint is back by it.
    pub(crate) fn answered(&self) -> bool {
        if !self.troubled.load(Ordering::Relaxed) {
            return false;
        }
        let mut record = self.record.lock();
        *record = Record::default();
        self.troubled.store(false, Ordering::Relaxed);
        self.out.swap(false, Ordering::Relaxed)
    }

    /// Another process listens there, or it does again: what was held against the last one is void.
    pub(crate) fn begin_anew(&self) {
        self.answered();
        self.told_until.store(0, Ordering::Relaxed);
        self.busy_until.store(0, Ordering::Relaxed);
    }

    /// A stream is on its way there.
    pub(super) fn begin_waiting(&self, now: Millis) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            self.waiting_since.store(now, Ordering::Relaxed);
        }
    }

    /// A stream waits no more; `token`: because its first token has come.
    pub(super) fn end_waiting(&self, token: bool, now: Millis) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if token {
            self.waiting_since.store(now, Ordering::Relaxed);
        }
    }

    /// Whether streams have waited so long without a first token for any.
    pub(crate) fn is_stalled(&self, after: Duration, now: Millis) -> bool {
        let since = self.waiting_since.load(Ordering::Relaxed);
        self.waiting.load(Ordering::Relaxed) > 0 && now.saturating_sub(since) >= millis(after)
    }

    /// What its health path said. True if that changes whether it is well.
    pub(super) fn looked(&self, is_well: bool) -> bool {
        let before = self.is_ill();
        if is_well {
            self.unwell.store(0, Ordering::Relaxed);
        } else {
            let _ = self
                .unwell
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |times| Some(times.saturating_add(1)));
        }
        self.is_ill() != before
    }

    /// Whether its health path says that it is not well.
    pub(crate) fn is_ill(&self) -> bool {
        self.unwell.load(Ordering::Relaxed) >= ILL_AFTER
    }

    /// Failures in a row.
    pub(crate) fn in_a_row(&self) -> u32 {
        if self.troubled.load(Ordering::Relaxed) { self.record.lock().in_a_row } else { 0 }
    }

    /// Whether a request may try it now.
    pub(crate) fn wants_trial(&self, now: Millis) -> bool {
        self.out.load(Ordering::Relaxed)
            && !self.is_ill()
            && self.is_due(now)
            && !self.trying.load(Ordering::Relaxed)
    }

    fn is_due(&self, now: Millis) -> bool {
        now >= self.try_from.load(Ordering::Relaxed)
    }
}

impl Trial {
    /// Takes the right to try an endpoint; `None` if another has it.
    pub(crate) fn of(endpoint: &Arc<Endpoint>) -> Option<Self> {
        let taken = endpoint.health.trying.swap(true, Ordering::Relaxed);
        (!taken).then(|| Self(endpoint.clone()))
    }

    /// Which is tried.
    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.0.health.trying.store(false, Ordering::Relaxed);
    }
}

fn millis(time: Duration) -> Millis {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::num::NonZeroU32;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rules() -> config::Health {
        config::Health {
            failures: NonZeroU32::new(3).unwrap(),
            stall: None,
            cooldown: SECOND,
            cooldown_max: 3 * SECOND,
            path: None,
            interval: SECOND,
        }
    }

    #[test]
    fn failures_in_a_row_leave_it_out_and_a_whole_answer_brings_it_back() {
        let (health, rules) = (Health::default(), rules());
        let fail = |prompt| health.failed(Failure::Status, prompt, &rules, 0);
        assert_eq!((fail(1), fail(2)), (None, None));
        assert!(!health.answered() && !health.is_out(), "the row is broken");
        assert_eq!((fail(1), fail(2), fail(3)), (None, None, Some(SECOND)));
        assert_eq!((health.is_out(), health.in_a_row(), health.ejections.read()), (true, 3, 1));
        assert_eq!(fail(4), None, "sent before: nothing new");
        assert!(health.answered() && !health.is_out());
        assert_eq!((health.in_a_row(), fail(5)), (0, None));
    }

    #[test]
    fn one_prompt_is_one_failure_but_a_time_out_is_the_engines() {
        let (health, rules) = (Health::default(), rules());
        for _ in 0..10 {
            assert_eq!(health.failed(Failure::Status, 7, &rules, 0), None);
            assert_eq!(health.failed(Failure::Broke, 8, &rules, 0), None);
        }
        assert_eq!(health.failed(Failure::Timeout, 7, &rules, 0), Some(SECOND));
        let health = Health::default();
        let out = (0..3).filter_map(|_| health.failed(Failure::Status, 0, &rules, 0)).count();
        assert_eq!(out, 1, "without a prompt there is nothing to tell apart");
    }

    #[test]
    fn one_request_tries_it_after_its_cooldown_and_each_that_fails_doubles_it() {
        let (endpoint, rules) = (Arc::new(Endpoint::for_test()), rules());
        let health = &endpoint.health;
        let fail = |prompt| health.failed(Failure::Broke, prompt, &rules, 100);
        assert_eq!([1, 2, 3].map(fail), [None, None, Some(SECOND)]);
        let mut now = 100;
        for cooldown in [1_000, 2_000, 3_000, 3_000] {
            assert!(!health.wants_trial(now + cooldown - 1) && health.wants_trial(now + cooldown));
            now += cooldown;
            let trial = Trial::of(&endpoint).unwrap();
            assert!(Trial::of(&endpoint).is_none() && !health.wants_trial(now), "one at a time");
            let next = Duration::from_millis((2 * cooldown).min(3_000));
            assert_eq!(health.failed(Failure::Status, 1, &rules, now), Some(next));
            drop(trial);
        }
        assert_eq!(health.ejections.read(), 1);
        assert!(health.answered());
        assert!(!health.wants_trial(now + 10_000));
        assert_eq!([1, 2, 3].map(fail), [None, None, Some(SECOND)], "from the beginning again");
    }

    #[test]
    fn a_pause_passes_by_itself() {
        let health = Health::default();
        assert!(!health.is_busy(0));
        health.busy(None, 1_000);
        assert!(health.is_busy(1_999) && !health.is_busy(2_000));
        health.busy(Some(3 * SECOND), 1_000);
        health.busy(Some(SECOND), 1_000);
        assert_eq!(health.pause_left(1_500), Some(Duration::from_millis(2_500)), "the longer one holds");
        assert!(health.is_busy(3_999) && !health.is_busy(4_000));
        health.busy(Some(Duration::MAX), 0);
        assert_eq!(health.pause_left(0), Some(PAUSE_MAX));
        health.begin_anew();
        assert!(!health.is_busy(0), "another process");
    }

    #[test]
    fn a_stall_is_no_first_token_while_streams_wait() {
        let health = Health::default();
        assert!(!health.is_stalled(SECOND, 100_000), "nobody waits");
        health.begin_waiting(5_000);
        health.begin_waiting(5_900);
        assert!(!health.is_stalled(SECOND, 5_999) && health.is_stalled(SECOND, 6_000));
        health.end_waiting(true, 6_500);
        assert!(!health.is_stalled(SECOND, 7_499) && health.is_stalled(SECOND, 7_500));
        health.end_waiting(false, 7_600);
        assert!(!health.is_stalled(SECOND, 100_000));
        assert_eq!(health.failed(Failure::Stall, 0, &rules(), 0), Some(SECOND), "one is enough");
    }

    #[test]
    fn two_looks_at_the_health_path_make_it_ill_and_one_makes_it_well() {
        let health = Health::default();
        assert_eq!(
            [false, false, false, true, false].map(|well| health.looked(well)),
            [false, true, false, true, false]
        );
        assert!(!health.is_out());
        health.looked(false);
        assert!(health.is_out() && !health.answered(), "answers do not outweigh it");
    }
}
