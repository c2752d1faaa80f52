//! `no-hit-lru`: a request that nobody has a prefix for goes where the last such request is longest ago.
//!
//! Each cold request founds a prefix that later requests follow, so spreading them spreads the load to come, which
//! the queues of this instant do not show.

use super::View;

/// 0.5 for all when the request founds no prefix: some candidate holds a block, or there is nothing to hold (a request
/// without a prompt must not follow the order of those with one: nothing would ever move it on). Else 1 for candidates that
/// never took such a request; the others, by age, `1 - (never + place)/n`, so the latest of three with one unused gets
/// 1/3. O(n log n).
///
/// Source: the first seed's printed 3.90; llm-d divides by `n - 1` and would give 0 there.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    if view.last_cold.is_empty() {
        scores.fill(Some(0.5));
        return;
    }
    let mut by_age = view.last_cold.to_vec();
    by_age.sort_unstable();
    let count = by_age.len() as f64;
    for (score, &last) in scores.iter_mut().zip(view.last_cold) {
        let older = by_age.partition_point(|&other| other < last);
        *score = Some(1.0 - older as f64 / count);
    }
}
