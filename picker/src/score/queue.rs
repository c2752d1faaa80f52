//! `queue`: the shorter the engine's queue, relative to the others', the better.

use super::View;

/// `(max - waiting) / (max - min)` over the measured candidates, 1 for all when they are equal. Unmeasured ones are
/// left out and do not stretch the range.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    let waiting = || view.candidates.iter().filter_map(|candidate| candidate.load.waiting);
    let most = waiting().fold(f64::NEG_INFINITY, f64::max);
    let range = most - waiting().fold(f64::INFINITY, f64::min);
    for (score, candidate) in scores.iter_mut().zip(view.candidates) {
        *score = candidate.load.waiting.map(|waiting| if range > 0.0 { (most - waiting) / range } else { 1.0 });
    }
}
