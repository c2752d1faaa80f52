//! `expected-ttft`: the soonest first token, with what it costs the requests that come after.
//!
//! The cost of an endpoint, in seconds; the least wins:
//!
//! ```text
//! wait                                what is ahead of the request there
//! + ANSWERING * in flight             what requests that only answer delay it by
//! + work * kv                         what a KV cache delays that is nearly full, as much as one request at most
//! + PRICE * prefill                   computing what the endpoint does not hold; what is shared by many counts less
//! + contention * (HORIZON * novelty * busy + OVERLOAD * excess)
//! ```
//!
//! A miss costs more than its own seconds: it delays who comes behind, and takes cache room from what others will ask for.
//! But a beginning that many prompts share is worth a copy on every replica, so missing it is an investment and not a cost:
//! the more often prompts part there ([`Traffic`](crate::traffic::Traffic)), the less it counts. A new prompt has no home yet
//! and goes where less was computed lately, as its later turns will go there too. An endpoint that has much more than its
//! share of the work keeps only what nobody else can take for less. These two count only as far as requests wait at all:
//! while nobody waits, balance is worth nothing and a prompt stays where it is cached.
//!
//! Constants: chosen on the traces and seeds that ARCHITECTURE.md names, checked on others.

use super::{Ranking, Ties};
use crate::columns::Table;
use crate::load::Load;
use crate::score::View;
use crate::traffic::Seen;

/// Seconds that a request in flight delays another by while its answer is made.
const ANSWERING: f64 = 0.000_5;
/// What a second of computing counts beside a second of waiting.
const PRICE: f64 = 3.5;
/// Forks at one place, in a replica's fair share of all, from which a shared beginning counts half.
const SHARED_BY: f64 = 3.0;
/// How sharply.
const SHARED_POWER: i32 = 4;
/// The least that a replica's fair share is taken for: a few prompts are no crowd.
const FORKS_MIN: f64 = 1.0;
/// Seconds that a new prompt may wait for its first token to find an endpoint that was idle in place of one always busy.
const HORIZON: f64 = 100.0;
/// How far above the mean an endpoint may be busy.
const SLACK: f64 = 0.1;
/// Below this share of the time an endpoint is never overloaded.
const BUSY_MIN: f64 = 0.2;
/// Seconds for an excess of the whole time: a hundredth above the slack outweighs most misses.
const OVERLOAD: f64 = 1_000.0;

/// Columns: `wait`, `prefill`, `balance` and `overload` in seconds, `in-flight` in requests, `kv` as a share. Ties go where less was computed lately.
pub(super) fn rank(view: &View<'_>) -> Ranking {
    let count = view.candidates.len() as f64;
    let held = view.matched.iter().copied().max().unwrap_or(0);
    let worth = worth(view.seen, count);
    let novelty = (1.0 - worth * f64::from(held) / f64::from(view.total.max(1))).powi(2);
    let contention = view.seen.contention;
    let loads = || view.candidates.iter().map(|to| &to.load);
    let busy = || loads().map(|load| load.in_flight.busy);
    let limit = (1.0 + SLACK) * (busy().sum::<f64>() / count).max(BUSY_MIN);

    let mut table = Table::new(view.candidates.len(), 6);
    let worst = Worst::of(view);
    table.fill("wait", -1.0, loads().map(|load| wait(load, worst, view.seen.work)));
    table.fill("in-flight", -ANSWERING, loads().map(|load| load.in_flight.requests.into()));
    table.fill("kv", -view.seen.work, loads().map(|load| tightness(load, worst)));
    let missed = |matched: u32| f64::from(view.total - held) + worth * f64::from(held - matched.min(held));
    let tokens = view.matched.iter().map(|&matched| missed(matched) * view.block_tokens as f64);
    table.fill("prefill", -PRICE, loads().zip(tokens).map(|(load, tokens)| load.pace.work(tokens)));
    table.fill("balance", -contention * HORIZON * novelty, busy());
    table.fill("overload", -contention * OVERLOAD, busy().map(|busy| (busy - limit).max(0.0)));
    let waiting = waiting(view, &table, held);
    Ranking { waiting, ..Ranking::of(table, Ties::Less(|to| to.load.in_flight.recent)) }
}

/// What a second copy of the shared beginning costs, 0 to 1: the more prompts part where this one does, the less.
fn worth(seen: Seen, count: f64) -> f64 {
    let fair_share = FORKS_MIN + seen.forked_anywhere / count;
    1.0 / (1.0 + (seen.forked / fair_share / SHARED_BY).powi(SHARED_POWER))
}

/// The worst that any candidate is known to be: what an unmeasured one is taken for, as it may be worse.
#[derive(Clone, Copy)]
struct Worst {
    foreign: f64,
    kv_usage: f64,
}

impl Worst {
    fn of(view: &View<'_>) -> Self {
        let most = |figure: fn(&Load) -> Option<f64>| {
            view.candidates.iter().filter_map(|to| figure(&to.load)).fold(0.0, f64::max)
        };
        Self { foreign: most(|load| load.foreign), kv_usage: most(|load| load.kv_usage) }
    }
}

/// Seconds until the prompt is begun: what this router has in flight there, and what others have waiting. `work` is what a
/// request takes.
fn wait(load: &Load, worst: Worst, work: f64) -> f64 {
    let foreign = load.foreign.unwrap_or(worst.foreign);
    load.pace.queueing * load.in_flight.backlog + foreign * work.max(load.pace.overhead)
}

/// How much running requests get in each other's way, 0 to 1: nothing while there is room in the KV cache.
fn tightness(load: &Load, worst: Worst) -> f64 {
    load.kv_usage.unwrap_or(worst.kv_usage).clamp(0.0, 1.0).powi(4)
}

/// Of the time to the first token at the best holder, the share that is waiting.
fn waiting(view: &View<'_>, table: &Table, held: u32) -> f32 {
    let holders = (0..).zip(view.matched).filter(|(_, matched)| **matched == held).map(|(place, _)| place);
    let wait = |place: usize| table.row(place).next().flatten().unwrap_or(0.0);
    let Some(best) = holders.min_by(|&a, &b| wait(a).total_cmp(&wait(b))) else { return 0.0 };
    let work = view.candidates[best].load.pace.work(view.uncached_tokens(best));
    (wait(best) / (wait(best) + work)) as f32
}
