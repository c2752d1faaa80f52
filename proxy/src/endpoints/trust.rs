//! How far the belief in one endpoint is to be trusted, as its own reports show.
//!
//! A single shortfall costs a prompt its credit. Three in a row with nothing cached say that the whole cache is gone: a
//! reset, or a sleep that nobody saw. Shortfalls again and again while the belief is full say that it is larger than the
//! cache: running requests and answers take room that no prompt shows. So it shrinks by steps, and grows back with every
//! report that bears it out.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use picker::hash::Blocks;

/// Predicted hits in a row that came back with nothing cached, after which the belief is dropped.
const MISSES_MAX: usize = 3;

/// Parts of the whole capacity.
const PARTS: u64 = 1 << 20;
/// What one shortfall takes, and one confirmation gives back: a 32nd and a 128th of what is left. So the belief comes to
/// rest where four predicted hits of five are found. Smaller would be more often right and worth less: prompts that are
/// not believed anywhere scatter, and each replica computes them again.
const LOSS: u64 = 32;
const GAIN: u64 = 128;
/// What is never taken: an eighth.
const PARTS_MIN: u64 = PARTS / 8;
/// Capacities go by sixteenths, so that the belief is not resized with every report.
const STEPS: u64 = 16;

/// What one report moves the share of predicted hits that were found by: a 16th.
const FOUND_STEP: f64 = 1.0 / 16.0;
/// How much lower that share is where prompts are better off elsewhere.
const FOUND_APART: f64 = 0.1;

/// One endpoint's record.
pub(crate) struct Trust {
    /// Share of the latest predicted hits that were found, as the bits of an `f64`.
    found: AtomicU64,
    /// Prompts of the predicted hits that missed in a row. They have been sent since, so the endpoint has them.
    misses: Mutex<Vec<Blocks>>,
    /// Parts of the capacity that are believed in.
    parts: AtomicU64,
    truncations: AtomicU64,
    drops: AtomicU64,
}

impl Default for Trust {
    fn default() -> Self {
        let (misses, truncations, drops) = Default::default();
        let (found, parts) = (AtomicU64::new(1f64.to_bits()), AtomicU64::new(PARTS));
        Self { found, misses, parts, truncations, drops }
    }
}

impl Trust {
    /// The engine had what was believed.
    pub(crate) fn confirmed(&self) {
        self.misses.lock().clear();
        self.change_parts(|parts| (parts + parts / GAIN).min(PARTS));
        self.learn_found(1.0);
    }

    /// The engine had less. `is_full`: the belief takes most of its capacity, so it may be too large.
    pub(crate) fn fell_short(&self, is_full: bool) {
        self.truncations.fetch_add(1, Ordering::Relaxed);
        self.learn_found(0.0);
        if is_full {
            self.change_parts(|parts| (parts - parts / LOSS).max(PARTS_MIN));
        }
    }

    /// The engine had nothing of a prompt that it should have had. Gives the prompts that were sent since, once there are
    /// enough of them to say that all else is gone.
    pub(crate) fn missed(&self, blocks: Blocks) -> Option<Vec<Blocks>> {
        let mut misses = self.misses.lock();
        misses.push(blocks);
        (misses.len() >= MISSES_MAX).then(|| std::mem::take(&mut *misses))
    }

    /// The engine had a part: it has not lost everything.
    pub(crate) fn has_something(&self) {
        self.misses.lock().clear();
    }

    /// The belief was dropped: reports on what was predicted from it count no more.
    pub(crate) fn dropped(&self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        self.misses.lock().clear();
    }

    /// Whether predicted hits are found less often here than with the best of others, so that a prompt which was lost has a
    /// better home there.
    pub(crate) fn is_worse_than<'a>(&self, others: impl Iterator<Item = &'a Self>) -> bool {
        let best = others.map(Self::found).fold(0.0, f64::max);
        self.found() < best - FOUND_APART
    }

    fn found(&self) -> f64 {
        f64::from_bits(self.found.load(Ordering::Relaxed))
    }

    fn learn_found(&self, found: f64) {
        let known = self.found();
        self.found.store((known + (found - known) * FOUND_STEP).to_bits(), Ordering::Relaxed);
    }

    /// How often the belief was dropped.
    pub(crate) fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }

    /// How often a prompt lost credit.
    pub(crate) fn truncations(&self) -> u64 {
        self.truncations.load(Ordering::Relaxed)
    }

    /// Of so many blocks, those that are believed in.
    pub(crate) fn of(&self, capacity: usize) -> usize {
        let steps = (self.parts.load(Ordering::Relaxed) * STEPS).div_ceil(PARTS);
        let capacity = capacity as u128 * u128::from(steps) / u128::from(STEPS);
        usize::try_from(capacity).unwrap_or(usize::MAX).max(1)
    }

    fn change_parts(&self, change: impl Fn(u64) -> u64) {
        let _ = self.parts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |parts| Some(change(parts)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use picker::hash::BlockHash;

    fn prompt(hash: u64) -> Blocks {
        Blocks::one(vec![BlockHash(hash)])
    }

    #[test]
    fn three_misses_in_a_row_give_the_prompts_sent_since() {
        let trust = Trust::default();
        for interruption in [Trust::confirmed, Trust::has_something, Trust::dropped] {
            assert_eq!(trust.missed(prompt(1)), None);
            assert_eq!(trust.missed(prompt(2)), None);
            interruption(&trust);
        }
        assert_eq!((trust.missed(prompt(1)), trust.missed(prompt(2))), (None, None));
        assert_eq!(trust.missed(prompt(3)).unwrap(), [1, 2, 3].map(prompt));
        assert_eq!(trust.missed(prompt(4)), None, "they count once");
    }

    #[test]
    fn a_prompt_is_better_off_where_predictions_come_true() {
        let (losing, keeping) = (Trust::default(), Trust::default());
        assert!(!losing.is_worse_than([&keeping].into_iter()), "nothing is known yet");
        for report in 0..40 {
            keeping.confirmed();
            if report % 5 == 0 { losing.fell_short(false) } else { losing.confirmed() }
        }
        assert!(losing.is_worse_than([&losing, &keeping].into_iter()));
        assert!(!keeping.is_worse_than([&losing, &keeping].into_iter()));
        assert!(!losing.is_worse_than([&losing].into_iter()), "all lose alike");
        (0..40).for_each(|_| losing.confirmed());
        assert!(!losing.is_worse_than([&keeping].into_iter()));
    }

    #[test]
    fn a_full_belief_that_falls_short_shrinks_by_steps_and_grows_back() {
        let trust = Trust::default();
        assert_eq!(trust.of(1_600), 1_600);
        (0..100).for_each(|_| trust.fell_short(false));
        assert_eq!((trust.of(1_600), trust.truncations()), (1_600, 100));
        (0..22).for_each(|_| trust.fell_short(true));
        assert_eq!(trust.of(1_600), 800, "half after twenty-two");
        (0..200).for_each(|_| trust.fell_short(true));
        assert_eq!((trust.of(1_600), trust.of(1), trust.of(usize::MAX)), (200, 1, usize::MAX / 8));
        (0..300).for_each(|_| trust.confirmed());
        assert_eq!(trust.of(1_600), 1_600);
    }
}
