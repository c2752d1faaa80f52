//! `sticky`: each key has an order of endpoints of its own, and goes to the first that has not too much in flight.
//!
//! Rendezvous hashing: an endpoint's place in a key's order depends on those two alone. So another replica takes about
//! `1/(n + 1)` of the keys, and no key moves between the others. The bound is that of consistent hashing with bounded
//! loads (Mirrokni, Thorup and Zadimoghaddam, 2018).

use super::{Ranking, Ties};
use crate::chance::mix;
use crate::columns::Table;
use crate::score::{Candidate, View};

/// How far above the mean an endpoint's requests in flight may be. Source: HAProxy's usual `hash-balance-factor`, 125.
const FACTOR: f64 = 1.25;

/// `order` is the place in the key's order, 0 to 1 and the highest first; `passed-over` is 1 above the bound. Without a key
/// chance orders those within the bound.
pub(super) fn rank(view: &View<'_>) -> Ranking {
    let mut table = Table::new(view.candidates.len(), 2);
    if view.key != 0 {
        let place = |to: &Candidate| place(view.key, to.id.0.into()).powf(to.weight.recip());
        table.fill("order", 1.0, view.candidates.iter().map(place));
    }
    let share = share(view);
    let is_over =
        view.candidates.iter().map(|to| f64::from(to.load.in_flight.requests) > (share * to.weight).ceil());
    table.fill("passed-over", -1.0, is_over.map(|is_over| f64::from(u8::from(is_over))));
    Ranking::of(table, Ties::Chance)
}

/// Requests that an endpoint of weight 1 may have in flight, before they are rounded up: this one counts in the mean. Somebody
/// is always within it.
fn share(view: &View<'_>) -> f64 {
    let requests: f64 = view.candidates.iter().map(|to| f64::from(to.load.in_flight.requests)).sum();
    FACTOR * (requests + 1.0) / view.candidates.iter().map(|to| to.weight).sum::<f64>()
}

/// 0 to 1, 1 excluded, so that nobody passed over comes before one who is not.
fn place(key: u64, endpoint: u64) -> f64 {
    const BITS: u32 = f64::MANTISSA_DIGITS;
    (mix(key ^ mix(endpoint)) >> (u64::BITS - BITS)) as f64 / (1u64 << BITS) as f64
}
