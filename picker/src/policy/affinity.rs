//! `affinity`: whoever holds most of the prompt gets it, until those are saturated; then weighted scores.
//!
//! Source: llm-d's `prefix-cache-affinity-filter` with its defaults, before the scorers of its profile. Its throughput is
//! configured; here it is the endpoint's own pace, unless it is tuned.

use super::{Ranking, Ties, sum};
use crate::score::{Candidate, View, Weights};
use crate::tuning::Tuning;

/// Beside the scorers, `holds` is 1 for those that hold the prompt while they are not saturated. It counts more than all
/// scores, so that the others only follow them.
pub(super) fn rank(view: &View<'_>, weights: &Weights) -> Ranking {
    let mut table = sum::table(view, weights, 1);
    let sticks = !is_saturated(view);
    let min = view.tuning.holds_share;
    let holds = view.shares().map(|share| f64::from(u8::from(sticks && share >= min)));
    table.fill("holds", weights.sum() + 1.0, holds);
    Ranking::of(table, Ties::Chance)
}

/// Whether the soonest of the holders would be too much later than the soonest of the others.
fn is_saturated(view: &View<'_>) -> bool {
    let soonest = |holds: bool| {
        let those = view.candidates.iter().zip(view.shares());
        let those = those.filter(move |(_, share)| (*share >= view.tuning.holds_share) == holds);
        those.map(|(to, _)| first_token(to, &view.tuning)).fold(f64::INFINITY, f64::min)
    };
    soonest(true) - soonest(false) > view.tuning.penalty_seconds_max
}

/// Seconds until the prompts in flight are computed.
fn first_token(candidate: &Candidate, tuning: &Tuning) -> f64 {
    let pace = tuning.tokens_per_second.unwrap_or(candidate.load.pace.tokens_per_second);
    candidate.load.in_flight.uncached_tokens as f64 / pace
}
