//! What this router has in flight at an endpoint: known at once, no scrape needed.
//!
//! A request is booked at the decision, gives its prompt back with its first token, and its place when it ends, however
//! it ends. An answer that comes whole shows no first token: its prompt is taken to be computed after twice the time that
//! the pace predicts. Words that stand alone: a reader may see one change without the other, which moves a score by one
//! request for a moment. Only who comes when a prompt is due takes a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::pace::Pace;

/// Microseconds of the caller's clock, which never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

impl Micros {
    /// The same in milliseconds.
    pub fn millis(self) -> u64 {
        self.0 / 1_000
    }
}

/// What an endpoint has in flight from this router.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InFlight {
    /// Requests that have not ended.
    pub requests: u32,
    /// Requests without a first token.
    pub prefilling: u32,
    /// Uncached prompt tokens of those.
    pub uncached_tokens: u64,
    /// Seconds of computing that are left of those, as the pace of the endpoint predicts them.
    pub backlog: f64,
    /// Seconds of computing uncached tokens that were sent lately, each counted half after [`RECENT_HALF_LIFE`].
    pub recent: f64,
    /// The share of the time that makes, since the first request at the earliest: 1 for an endpoint that always computes, more for one
    /// that was sent more than it can.
    pub busy: f64,
    /// The share of the time that the overheads of the requests sent lately make, whatever their prompts.
    pub overheads: f64,
    /// Prompts that are not computed yet. Unlike `prefilling` without those whose answers come whole and are being made.
    pub uncomputed: u32,
}

/// After how many microseconds work sent counts half.
pub const RECENT_HALF_LIFE: Micros = Micros(300_000_000);

/// Seconds that a ledger pretends to have been idle before its first booking, so that the first request is no load of 100 %.
const IDLE_BEFORE: f64 = 30.0;

/// A request to be booked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Prompt tokens that the endpoint is not believed to hold.
    pub uncached_tokens: u32,
    /// How fast the endpoint computes.
    pub pace: Pace,
    /// Its first token will be seen.
    pub is_streamed: bool,
}

/// A booked request; [`Ledger::release`] takes it back, once.
#[derive(Debug)]
#[must_use]
pub struct Booked {
    uncached_tokens: u32,
    /// In microseconds.
    work: u64,
    tokens_per_second: f64,
    /// Seconds of other prompts that were ahead.
    backlog: f64,
    /// Names a request whose first token will not be seen, among the others of its ledger.
    unseen: Option<u64>,
    has_token: bool,
}

impl Booked {
    /// Seconds of other prompts that were ahead when it was booked, as [`InFlight::backlog`] has them.
    pub fn backlog(&self) -> f64 {
        self.backlog
    }
}

/// One endpoint's.
#[derive(Debug, Default)]
pub struct Ledger {
    requests: AtomicU32,
    prefilling: AtomicU32,
    uncached_tokens: AtomicU64,
    /// Prompts that are not computed yet, and their computing in microseconds.
    prompts: AtomicU32,
    work: AtomicU64,
    /// Those of them whose first token will not be seen, and when the first one is due, in microseconds.
    unseen: Mutex<Unseen>,
    due: Due,
    /// When the endpoint last finished a prompt, or began one after idling.
    progress: AtomicU64,
    sent: AtomicU64,
    /// When the first request was booked, in microseconds; 0 for never.
    first: AtomicU64,
    recent: Decaying,
    overheads: Decaying,
}

impl Ledger {
    /// Books a request that is about to be sent.
    pub fn book(&self, request: Request, now: Micros) -> Booked {
        let backlog = self.backlog(now);
        let Request { uncached_tokens, pace, is_streamed } = request;
        let Pace { tokens_per_second, .. } = pace;
        let work = (pace.work(uncached_tokens.into()).max(0.0) * 1e6) as u64;
        self.prefilling.fetch_add(1, Ordering::Relaxed);
        if self.prompts.fetch_add(1, Ordering::Relaxed) == 0 {
            self.progress.store(now.0, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.uncached_tokens.fetch_add(uncached_tokens.into(), Ordering::Relaxed);
        self.work.fetch_add(work, Ordering::Relaxed);
        let first_token = pace.first_token(uncached_tokens.into(), backlog).max(0.0);
        let due = Micros(now.0.saturating_add((2e6 * first_token) as u64));
        let unseen = (!is_streamed).then(|| self.expect(Prompt { due, work, number: 0 }));
        let _ = self.first.compare_exchange(0, now.0.max(1), Ordering::Relaxed, Ordering::Relaxed);
        self.recent.add(f64::from(uncached_tokens) / tokens_per_second, now);
        self.overheads.add(pace.overhead, now);
        Booked { uncached_tokens, work, tokens_per_second, backlog, unseen, has_token: false }
    }

    /// The request's first token has come: its prompt is computed.
    pub fn first_token(&self, booked: &mut Booked, now: Micros) {
        if std::mem::replace(&mut booked.has_token, true) {
            return;
        }
        self.uncached_tokens.fetch_sub(booked.uncached_tokens.into(), Ordering::Relaxed);
        self.prefilling.fetch_sub(1, Ordering::Relaxed);
        match booked.unseen {
            None => self.computed(booked.work, now),
            Some(number) => self.forget(now, |prompt| prompt.number == number),
        }
    }

    /// A prompt is computed.
    fn computed(&self, work: u64, now: Micros) {
        self.work.fetch_sub(work, Ordering::Relaxed);
        self.prompts.fetch_sub(1, Ordering::Relaxed);
        self.progress.store(now.0, Ordering::Relaxed);
    }

    /// Notes a prompt whose first token will not be seen; gives its number.
    fn expect(&self, prompt: Prompt) -> u64 {
        let mut unseen = self.unseen.lock();
        unseen.last += 1;
        let number = unseen.last;
        unseen.prompts.push(Prompt { number, ..prompt });
        self.due.0.fetch_min(prompt.due.0, Ordering::Relaxed);
        number
    }

    /// Such prompts are computed.
    fn forget(&self, now: Micros, is_computed: impl Fn(&Prompt) -> bool) {
        let mut unseen = self.unseen.lock();
        unseen.prompts.retain(|prompt| {
            let computed = is_computed(prompt);
            if computed {
                self.computed(prompt.work, now);
            }
            !computed
        });
        let due = unseen.prompts.iter().map(|prompt| prompt.due.0).min();
        self.due.0.store(due.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The engine said how many tokens it computed: what was sent lately is that, and not what was predicted.
    pub fn correct(&self, booked: &Booked, uncached_tokens: u32, now: Micros) {
        let more = f64::from(uncached_tokens) - f64::from(booked.uncached_tokens);
        self.recent.add(more / booked.tokens_per_second, now);
    }

    /// The request, which was sent then, ends before its answer begins: refused, broken or left by its client. What the endpoint
    /// has not computed of it by now it never will.
    pub fn abandon(&self, booked: &Booked, since: Micros, now: Micros) {
        let planned = f64::from(booked.uncached_tokens) / booked.tokens_per_second;
        let spent = now.0.saturating_sub(since.0) as f64 / 1e6;
        self.recent.add(-(planned - spent).max(0.0), now);
    }

    /// The request has ended, with or without a first token.
    pub fn release(&self, mut booked: Booked, now: Micros) {
        self.first_token(&mut booked, now);
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests sent so far: the difference of two readings is what was sent between them.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What is in flight now.
    ///
    /// Prompts are taken to be computed one after another: since the last one was computed the endpoint has worked on the
    /// next, and on no more than that. So an endpoint that hangs with streams does not look idle.
    pub fn in_flight(&self, now: Micros) -> InFlight {
        let backlog = self.backlog(now);
        let (recent, lifetime) = (self.recent.now(now), self.lifetime(now));
        InFlight {
            requests: self.requests.load(Ordering::Relaxed),
            prefilling: self.prefilling.load(Ordering::Relaxed),
            uncached_tokens: self.uncached_tokens.load(Ordering::Relaxed),
            backlog,
            recent,
            busy: recent / lifetime,
            overheads: self.overheads.now(now) / lifetime,
            uncomputed: self.prompts.load(Ordering::Relaxed),
        }
    }

    /// In seconds; prompts that are due are computed.
    fn backlog(&self, now: Micros) -> f64 {
        if now.0 >= self.due.0.load(Ordering::Relaxed) {
            self.forget(now, |prompt| prompt.due <= now);
        }
        let work = self.work.load(Ordering::Relaxed);
        let spent = now.0.saturating_sub(self.progress.load(Ordering::Relaxed));
        let head = work / u64::from(self.prompts.load(Ordering::Relaxed).max(1));
        (work - spent.min(head)) as f64 / 1e6
    }

    /// Seconds that `recent` is a sum over, the older the less they count, as its parts do.
    fn lifetime(&self, now: Micros) -> f64 {
        let age = now.0.saturating_sub(self.first.load(Ordering::Relaxed)) as f64 / 1e6 + IDLE_BEFORE;
        let mean_life = RECENT_HALF_LIFE.0 as f64 / 1e6 / std::f64::consts::LN_2;
        mean_life * (1.0 - (-age / mean_life).exp())
    }
}

/// Prompts of answers that come whole.
#[derive(Debug, Default)]
struct Unseen {
    last: u64,
    prompts: Vec<Prompt>,
}

#[derive(Clone, Copy, Debug)]
struct Prompt {
    due: Micros,
    work: u64,
    number: u64,
}

/// A time in microseconds; never, to begin with.
#[derive(Debug)]
struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

/// A sum whose parts fade, in one word: its value as `f32` and the milliseconds at which it had that value. Two adds at
/// once may lose one.
#[derive(Debug, Default)]
struct Decaying(AtomicU64);

impl Decaying {
    fn add(&self, amount: f64, now: Micros) {
        let value = self.now(now) + if amount.is_finite() { amount } else { 0.0 };
        let value = value.max(0.0) as f32;
        self.0.store(u64::from(value.to_bits()) << 32 | millis(now), Ordering::Relaxed);
    }

    fn now(&self, now: Micros) -> f64 {
        let word = self.0.load(Ordering::Relaxed);
        let age = millis(now).saturating_sub(word & u64::from(u32::MAX)) as f64;
        f64::from(f32::from_bits((word >> 32) as u32)) * (-age * 1e3 / RECENT_HALF_LIFE.0 as f64).exp2()
    }
}

/// In 32 bits: 49 days.
fn millis(now: Micros) -> u64 {
    (now.0 / 1_000) & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Tokens that take so many seconds.
    fn request(uncached_tokens: u32, work: f64) -> Request {
        let tokens_per_second = f64::from(uncached_tokens) / work;
        let pace = Pace { overhead: 0.0, tokens_per_second, queueing: 1.0 };
        Request { uncached_tokens, pace, is_streamed: true }
    }

    #[test]
    fn a_request_is_given_back_once_in_every_ending() {
        let ledger = Ledger::default();
        let mut streamed = ledger.book(request(100, 1.0), Micros(0));
        let broken = ledger.book(request(50, 0.5), Micros(0));
        let booked = ledger.in_flight(Micros(0));
        assert_eq!((booked.requests, booked.prefilling, booked.uncached_tokens), (2, 2, 150));
        assert_eq!((booked.backlog, booked.recent), (1.5, 1.5));
        ledger.first_token(&mut streamed, Micros(SECOND));
        ledger.first_token(&mut streamed, Micros(SECOND));
        let left = ledger.in_flight(Micros(SECOND));
        assert_eq!((left.requests, left.prefilling, left.uncached_tokens, left.backlog), (2, 1, 50, 0.5));
        ledger.release(broken, Micros(SECOND));
        ledger.release(streamed, Micros(SECOND));
        let nothing = ledger.in_flight(Micros(SECOND));
        let InFlight { recent, busy, .. } = nothing;
        assert_eq!(nothing, InFlight { recent, busy, ..InFlight::default() });
        assert_eq!(ledger.sent(), 2);
    }

    /// A client that leaves huge prompts at once must not have the endpoint taken for busy.
    #[test]
    fn what_is_abandoned_counts_as_far_as_it_was_computed() {
        for (after, recent) in [(0, 0.0), (SECOND / 4, 0.25), (SECOND, 1.0), (9 * SECOND, 1.0)] {
            let ledger = Ledger::default();
            let booked = ledger.book(request(100, 1.0), Micros(0));
            ledger.abandon(&booked, Micros(0), Micros(after));
            ledger.release(booked, Micros(after));
            let found = ledger.in_flight(Micros(after)).recent;
            assert!((found - recent).abs() < 0.03, "{found} after {after}");
        }
    }

    #[test]
    fn what_was_sent_fades() {
        let ledger = Ledger::default();
        let booked = ledger.book(request(10, 2.0), Micros(0));
        ledger.release(booked, Micros(0));
        for (at, recent) in [(0, 2.0), (RECENT_HALF_LIFE.0, 1.0), (2 * RECENT_HALF_LIFE.0, 0.5)] {
            assert_eq!(ledger.in_flight(Micros(at)).recent, recent);
        }
    }

    #[test]
    fn a_prompt_whose_answer_comes_whole_is_computed_after_twice_its_time() {
        let ledger = Ledger::default();
        let whole = || Request { is_streamed: false, ..request(10, 1.0) };
        // Due after 2 s and, behind that one, 4 s.
        let held = [(); 2].map(|()| ledger.book(whole(), Micros(0)));
        for (at, backlog) in [(0, 2.0), (SECOND / 2, 1.5), (2 * SECOND, 1.0), (3 * SECOND, 0.0)] {
            assert_eq!(
                ledger.in_flight(Micros(at)).backlog,
                backlog,
                "at {at}: the answers are still being made"
            );
        }
        let made = ledger.in_flight(Micros(9 * SECOND));
        assert_eq!((made.prefilling, made.uncomputed), (2, 0));
        let late = ledger.book(whole(), Micros(9 * SECOND));
        assert_eq!(ledger.in_flight(Micros(9 * SECOND)).backlog, 1.0);
        held.into_iter().chain([late]).for_each(|booked| ledger.release(booked, Micros(9 * SECOND)));
        assert_eq!(ledger.in_flight(Micros(9 * SECOND)).backlog, 0.0, "nothing is in flight");
    }

    #[test]
    fn what_was_computed_replaces_what_was_predicted() {
        let ledger = Ledger::default();
        let booked = ledger.book(request(100, 2.0), Micros(0));
        ledger.correct(&booked, 25, Micros(0));
        assert_eq!(ledger.in_flight(Micros(0)).recent, 0.5);
        ledger.release(booked, Micros(0));
    }

    #[test]
    fn an_endpoint_that_always_computes_is_busy_all_the_time() {
        let ledger = Ledger::default();
        for second in 0..3_000 {
            let now = Micros(second * SECOND + 1);
            let booked = ledger.book(request(10, if second < 1_500 { 1.0 } else { 0.5 }), now);
            ledger.release(booked, now);
            if second == 1_499 {
                assert!((ledger.in_flight(now).busy - 1.0).abs() < 0.02, "{:?}", ledger.in_flight(now));
            }
        }
        assert!((ledger.in_flight(Micros(3_000 * SECOND)).busy - 0.5).abs() < 0.04);
        let first = Ledger::default();
        let _booked = first.book(request(10, 1.0), Micros(5));
        assert!(first.in_flight(Micros(5)).busy < 0.06, "one request is no load yet");
    }

    #[test]
    fn overheads_count_whatever_the_prompts() {
        let ledger = Ledger::default();
        for second in 0..3_000 {
            let now = Micros(second * SECOND + 1);
            let pace = Pace { overhead: 0.25, tokens_per_second: 1_000.0, queueing: 1.0 };
            let booked = ledger.book(Request { uncached_tokens: 0, pace, is_streamed: true }, now);
            assert_eq!(ledger.in_flight(now).uncomputed, 1);
            ledger.release(booked, now);
        }
        let InFlight { overheads, busy, uncomputed, .. } = ledger.in_flight(Micros(3_000 * SECOND));
        assert!((overheads - 0.25).abs() < 0.02, "{overheads}");
        assert_eq!((busy, uncomputed), (0.0, 0));
    }

    #[test]
    fn the_backlog_shrinks_with_time_but_never_below_what_waits() {
        let ledger = Ledger::default();
        let _held: Vec<_> = (0..3).map(|_| ledger.book(request(10, 1.0), Micros(0))).collect();
        for (at, backlog) in [(0, 3.0), (SECOND / 2, 2.5), (SECOND, 2.0), (9 * SECOND, 2.0)] {
            assert_eq!(ledger.in_flight(Micros(at)).backlog, backlog);
        }
    }
}
