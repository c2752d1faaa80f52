//! An allowance that fills up again at a steady rate.
//!
//! `governor` decides (GCRA, a leaky bucket in one number). The number is ours, so that it can be read for the
//! `x-ratelimit-*` headers and given back to, and so is the clock: time is an argument.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use picker::ledger::Micros;

/// So much at once, and so much a second in the mean.
pub(crate) struct Rate {
    quota: Quota,
    limiter: RateLimiter<NotKeyed, Level, Hand, NoOpMiddleware<Nanos>>,
    level: Level,
    hand: Hand,
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// There will be enough after this time, if nobody else takes of it.
    For(Duration),
    /// The amount is more than there ever is.
    Forever,
}

/// When the allowance is full again, in nanoseconds of the router's clock; in the past when it is.
#[derive(Clone, Default)]
struct Level(Arc<AtomicU64>);

/// The latest time that anybody asked at.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Rate {
    /// A full allowance.
    pub(crate) fn new(quota: Quota) -> Self {
        let (level, hand) = (Level::default(), Hand::default());
        Self { quota, limiter: RateLimiter::new(quota, level.clone(), hand.clone()), level, hand }
    }

    /// What it is.
    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }

    /// The most that there is at once.
    pub(crate) fn size(&self) -> u32 {
        self.quota.burst_size().get()
    }

    /// Takes an amount. Errors: there is less; nothing is taken then.
    pub(crate) fn take(&self, amount: NonZeroU32, now: Micros) -> Result<(), Short> {
        let now = nanos(now);
        self.hand.0.fetch_max(now, Ordering::Relaxed);
        match self.limiter.check_n(amount) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => Err(Short::For(until.wait_time_from(Nanos::from(now)))),
            Err(_) => Err(Short::Forever),
        }
    }

    /// Gives back what was taken for nothing.
    pub(crate) fn give_back(&self, amount: NonZeroU32) {
        let sooner = self.cell().saturating_mul(u64::from(amount.get()));
        let earlier = |level: u64| Some(level.saturating_sub(sooner));
        let _ = self.level.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier);
    }

    /// What there is.
    pub(crate) fn left(&self, now: Micros) -> u32 {
        let missing = self.full_in_nanos(now).div_ceil(self.cell());
        self.size().saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX))
    }

    /// Time until it is full, if nobody takes of it.
    pub(crate) fn full_in(&self, now: Micros) -> Duration {
        Duration::from_nanos(self.full_in_nanos(now))
    }

    fn full_in_nanos(&self, now: Micros) -> u64 {
        self.level.0.load(Ordering::Acquire).saturating_sub(nanos(now))
    }

    /// Nanoseconds in which one is added.
    fn cell(&self) -> u64 {
        u64::try_from(self.quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX).max(1)
    }
}

fn nanos(now: Micros) -> u64 {
    now.0.saturating_mul(1_000)
}

impl StateStore for Level {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut before = self.0.load(Ordering::Acquire);
        loop {
            let (outcome, after) = decide((before > 0).then(|| Nanos::from(before)))?;
            match self.0.compare_exchange_weak(before, after.into(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(outcome),
                Err(changed) => before = changed,
            }
        }
    }
}

impl Clock for Hand {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn number(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).expect("not zero")
    }

    /// Ten at once, two a second.
    fn rate() -> Rate {
        Rate::new(Quota::per_second(number(2)).allow_burst(number(10)))
    }

    #[test]
    fn takes_what_there_is_and_says_how_long_for_more() {
        let rate = rate();
        let wait = |seconds| Err(Short::For(Duration::from_millis(seconds)));
        for (shows, at, amount, wanted, left, full_in_ms) in [
            ("a first", 100 * SECOND, 1, Ok(()), 9, 500),
            ("all that is left", 100 * SECOND, 9, Ok(()), 0, 5_000),
            ("one too many", 100 * SECOND, 1, wait(500), 0, 5_000),
            ("three too many", 100 * SECOND, 3, wait(1_500), 0, 5_000),
            ("more than there ever is", 100 * SECOND, 11, Err(Short::Forever), 0, 5_000),
            ("not quite yet", 100 * SECOND + 499_999, 1, Err(Short::For(Duration::from_micros(1))), 0, 4_501),
            ("in time", 100 * SECOND + 500_000, 1, Ok(()), 0, 5_000),
            ("a clock that went back", 100 * SECOND, 1, wait(1_000), 0, 5_500),
            ("a long rest fills it, not more", 900 * SECOND, 10, Ok(()), 0, 5_000),
            ("not more", 900 * SECOND, 1, wait(500), 0, 5_000),
        ] {
            assert_eq!(rate.take(number(amount), Micros(at)), wanted, "{shows}");
            assert_eq!(rate.left(Micros(at)), left, "{shows}");
            let full_in = rate.full_in(Micros(at)).as_micros().div_ceil(1_000);
            assert_eq!(full_in, full_in_ms, "{shows}");
        }
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let (rate, now) = (rate(), Micros(SECOND));
        assert_eq!(rate.take(number(10), now), Ok(()));
        rate.give_back(number(4));
        assert_eq!(rate.left(now), 4);
        assert_eq!(rate.take(number(4), now), Ok(()));
        assert!(rate.take(number(1), now).is_err(), "no more than that");
    }

    #[test]
    fn a_full_one_gets_no_fuller() {
        let (rate, now) = (rate(), Micros(SECOND));
        rate.give_back(number(5));
        assert_eq!(rate.take(number(10), now), Ok(()));
        assert!(rate.take(number(1), now).is_err());
    }
}
