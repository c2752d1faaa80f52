//! `queue`: the shorter the engine's queue, relative to the others', the better.

use super::{Candidate, View};

/// `(max - waiting) / (max - min)` over the measured candidates, 1 for all when they are equal. Unmeasured ones are
/// left out and do not stretch the range; a figure that is not finite is no measurement.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    let measured = |candidate: &Candidate| candidate.load.waiting.filter(|waiting| waiting.is_finite());
    let waiting = || view.candidates.iter().filter_map(measured);
    let most = waiting().fold(f64::NEG_INFINITY, f64::max);
    let range = most - waiting().fold(f64::INFINITY, f64::min);
    for (score, candidate) in scores.iter_mut().zip(view.candidates) {
        *score = measured(candidate).map(|waiting| if range > 0.0 { (most - waiting) / range } else { 1.0 });
    }
}
