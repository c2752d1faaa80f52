//! `in-flight`: the fewer requests this router has in flight there, relative to the most, the better.

use super::View;

/// `busy * (max - requests)/max`, and 1 for the idle; both constants are tuned. As published, `(max - requests)/max` and 1
/// where nothing is in flight. Always known. Source: llm-d's `active-request-scorer`.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    let (idle, busy) = (f64::from(view.tuning.idle_requests), view.tuning.busy_score_max);
    let requests = || view.candidates.iter().map(|to| f64::from(to.load.in_flight.requests));
    let most = requests().fold(1.0, f64::max);
    for (score, requests) in scores.iter_mut().zip(requests()) {
        *score = Some(if requests <= idle { 1.0 } else { busy * (most - requests) / most });
    }
}
