//! `kv`: the less KV cache running requests hold, the better.

use super::View;

/// `1 - usage` for measured candidates; a figure that is not finite is no measurement.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    for (score, candidate) in scores.iter_mut().zip(view.candidates) {
        *score = candidate.load.kv_usage.filter(|usage| usage.is_finite()).map(|usage| 1.0 - usage);
    }
}
