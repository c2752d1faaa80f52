//! `token-load`: the fewer prompt tokens the endpoint would have to compute, this request's among them, the better.

use super::View;

/// `1 - min(1, (in flight + this request's)/full)`, in tokens that are not cached there. Always known. Source: llm-d's
/// `token-load-scorer`.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    for (place, (score, candidate)) in scores.iter_mut().zip(view.candidates).enumerate() {
        let tokens = candidate.load.in_flight.uncached_tokens as f64 + view.uncached_tokens(place);
        *score = Some(1.0 - (tokens / view.tuning.full_tokens).min(1.0));
    }
}
