//! Weighted scores, summed.

use super::{Ranking, Ties};
use crate::columns::Table;
use crate::score::{View, Weights};

/// The highest sum goes first.
pub(super) fn rank(view: &View<'_>, weights: &Weights) -> Ranking {
    Ranking::of(table(view, weights, 0), Ties::Chance)
}

/// A column for each scorer that counts, with room for `more` columns.
pub(super) fn table(view: &View<'_>, weights: &Weights, more: usize) -> Table {
    let mut table = Table::new(view.candidates.len(), weights.iter().count() + more);
    for (scorer, weight) in weights.iter() {
        scorer.score(view, table.add(scorer.name(), weight));
    }
    table
}
