//! `guarded`: the longest match among the endpoints that have about as much work as the others, or less.

use super::{Ranking, Ties};
use crate::columns::Table;
use crate::score::{Candidate, View};

/// How far above the mean an endpoint's load may be.
const SLACK: f64 = 0.1;
/// What a second of load counts beside the whole prompt: a hundred of them a tenth of it.
const LOAD_WEIGHT: f64 = 1e-3;
/// More than a whole match, so that nobody beyond the guard comes before one within it.
const BEYOND_WEIGHT: f64 = 2.0;

/// `prefix` is the share of the prompt that is held, `load` seconds of work that were sent lately or are not done, `beyond`
/// is 1 above the guard. A cold request goes where the load is least.
pub(super) fn rank(view: &View<'_>) -> Ranking {
    let loads = || view.candidates.iter().map(load);
    let guard = (1.0 + SLACK) * loads().sum::<f64>() / view.candidates.len() as f64;
    let mut table = Table::new(view.candidates.len(), 3);
    table.fill("prefix", 1.0, view.shares());
    table.fill("load", -LOAD_WEIGHT, loads());
    table.fill("beyond", -BEYOND_WEIGHT, loads().map(|load| f64::from(u8::from(load > guard))));
    Ranking::of(table, Ties::Chance)
}

/// In seconds, as they weigh there.
fn load(candidate: &Candidate) -> f64 {
    candidate.weighed(candidate.load.in_flight.recent + candidate.load.in_flight.backlog)
}
