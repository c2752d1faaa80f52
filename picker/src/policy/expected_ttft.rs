//! `expected-ttft`: the soonest first token, with what it costs the requests behind it.

use super::{Ranking, Ties};
use crate::columns::Table;
use crate::score::View;

/// What a second of this request's own computing counts beside a second of waiting: those behind it wait for it too.
const PREFILL_WEIGHT: f64 = 3.0;

/// `wait` is the seconds until this prompt is begun, `prefill` those of computing it. Ties go where less was sent lately.
pub(super) fn rank(view: &View<'_>) -> Ranking {
    let mut table = Table::new(view.candidates.len(), 2);
    let loads = || view.candidates.iter().map(|to| &to.load);
    table.fill("wait", -1.0, loads().map(|load| load.pace.queueing * load.in_flight.backlog));
    let prefill = |(place, load): (usize, &crate::load::Load)| load.pace.work(view.uncached_tokens(place));
    table.fill("prefill", -PREFILL_WEIGHT, loads().enumerate().map(prefill));
    Ranking::of(table, Ties::Less(|to| to.load.in_flight.recent))
}
