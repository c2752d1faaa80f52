//! `expected-ttft`: the soonest first token, with what it costs the requests that come after.
//!
//! The cost of an endpoint, in seconds; the least wins:
//!
//! ```text
//! wait                                what is ahead of the request there, other routers' requests among it
//! + ANSWERING * in flight             what requests that only answer delay it by
//! + work * kv                         what a KV cache delays that is nearly full, as much as one request at most
//! + prefill + (price - 1) * miss      computing what the endpoint does not hold, at its pace and at the fleet's;
//!                                     what is shared by many counts less
//! + stake * (HORIZON * novelty * busy + OVERLOAD * excess)
//! ```
//!
//! A miss costs more than its own seconds: it delays who comes behind, all who come before the queue is empty, and takes cache
//! room from what others will ask for. But a beginning that many prompts share is worth a copy on every replica, so missing it
//! is an investment and not a cost: the more often prompts part there ([`Traffic`](crate::traffic::Traffic)), the less it
//! counts. A new prompt has no home yet and goes where less was computed lately, as its later turns will go there too. An
//! endpoint that has more than its share of the work keeps only what nobody else can take for less, and what would fill
//! another's cache. These two count only as far as requests wait, or caches are full: before that, balance is worth nothing
//! and a prompt stays where it is cached. They count less where queues are long: what balance moves is computed once more, and
//! that is what the queues are made of.
//!
//! Constants: chosen on the traces and seeds that ARCHITECTURE.md names, checked on others.

use super::{Ranking, Ties};
use crate::columns::Table;
use crate::load::Load;
use crate::score::View;
use crate::traffic::Seen;

/// Seconds that a request in flight delays another by while its answer is made.
const ANSWERING: f64 = 0.000_5;
/// Seconds that a request of others is taken for at least.
const WORK_MIN: f64 = 0.005;
/// What full caches make balance worth where nobody waits.
const FORGETTING: f64 = 0.3;
/// What a second of computing counts beside a second of waiting.
const PRICE: f64 = 2.8;
/// And for the prompts at each endpoint, squared: the longer a queue, the longer it lasts and the more come meanwhile.
const QUEUED: f64 = 0.5;
/// And for each miss that follows from it.
const DISPLACED: f64 = 2.5;
/// A larger share is taken for this one.
const HELD_MAX: f64 = 0.88;
/// Forks at one place, in a replica's fair share of all, from which a shared beginning counts half.
const SHARED_BY: f64 = 1.5;
/// How sharply.
const SHARED_POWER: i32 = 4;
/// The least that a replica's fair share is taken for: a few prompts are no crowd.
const FORKS_MIN: f64 = 2.0;
/// Seconds that a new prompt may wait for its first token to find an endpoint that was idle in place of one always busy.
const HORIZON: f64 = 100.0;
/// What the overheads of requests count beside computing their prompts, where new prompts look for a home.
const OVERHEADS: f64 = 0.3;
/// How far above the mean an endpoint may be busy.
const SLACK: f64 = 0.04;
/// How many times a prompt may be computed above that, if it fills a cache alone: moved, it takes another's from what lives there.
const GRAIN: f64 = 4.0;
/// Seconds for an excess of the whole time: a hundredth above the slack outweighs most misses.
const OVERLOAD: f64 = 5_000.0;
/// What endpoints are taken to have been in use for at least, in seconds.
const LIFETIME_MIN: f64 = 30.0;
/// How fast the prompts at each endpoint take from what balance is worth.
const RUSH: f64 = 0.3;

/// Columns: `wait`, `prefill`, `miss` and `overload` in seconds, `in-flight` in requests, `kv` and `balance` as shares. Ties go
/// where less was computed lately; for a request without a prompt, which computes nothing, by chance.
pub(super) fn rank(view: &View<'_>) -> Ranking {
    let count = view.candidates.len() as f64;
    let held = view.matched.iter().copied().max().unwrap_or(0);
    let worth = worth(view.seen, count);
    let novelty = (1.0 - worth * f64::from(held) / f64::from(view.total.max(1))).powi(2);
    let others = Others::of(view);
    let loads = || view.candidates.iter().map(|to| &to.load);
    let weighed = |figure: fn(&Load, Others) -> f64| {
        view.candidates.iter().map(move |to| to.weighed(figure(&to.load, others)))
    };
    let busy = || weighed(|load, others| others.busy(load));
    let occupied = |load: &Load, others: Others| others.busy(load) + OVERHEADS * load.in_flight.overheads;
    let token = mean(loads().map(|load| load.pace.tokens_per_second.recip()));
    let limit = (1.0 + SLACK) * mean(busy()) + grain(view, token);
    let queued = queued(view);
    let stake = stake(view.seen, queued);
    let missed = |matched: u32| f64::from(view.total - held) + worth * f64::from(held - matched.min(held));
    let tokens = || view.matched.iter().map(|&matched| missed(matched) * view.block_tokens as f64);

    let mut table = Table::new(view.candidates.len(), 7);
    let wait = |load: &Load, others: Others| load.pace.queueing * load.in_flight.backlog + others.wait(load);
    table.fill("wait", -1.0, weighed(wait));
    table.fill("in-flight", -ANSWERING, weighed(|load, _| load.in_flight.requests.into()));
    table.fill("kv", -view.seen.work, loads().map(|load| others.tightness(load)));
    table.fill("prefill", -1.0, loads().zip(tokens()).map(|(load, tokens)| load.pace.work(tokens)));
    table.fill("miss", 1.0 - price(view.seen, queued), tokens().map(|tokens| tokens * token));
    table.fill("balance", -stake * HORIZON * novelty, weighed(occupied));
    table.fill("overload", -stake * OVERLOAD, busy().map(|busy| (busy - limit).max(0.0)));
    let waiting = waiting(view, &table, held);
    let ties =
        if view.total > 0 { Ties::Less(|to| to.weighed(to.load.in_flight.recent)) } else { Ties::Chance };
    Ranking { waiting, ..Ranking::of(table, ties) }
}

/// Prompts at each endpoint that others have to wait for. The harmonic mean of those and the next: a queue that all have is told
/// as it is, and the one of an endpoint that hangs does not keep others' prompts where they are.
fn queued(view: &View<'_>) -> f64 {
    let prompts = |load: &Load| load.pace.queueing * f64::from(load.in_flight.uncomputed);
    mean(view.candidates.iter().map(|to| (1.0 + prompts(&to.load)).recip())).recip() - 1.0
}

/// How much busier than the limit an endpoint may be that keeps this prompt, as a share of the time.
fn grain(view: &View<'_>, token: f64) -> f64 {
    // Seconds that `busy` is a share of. Endpoints that have computed nothing tell none.
    let lifetimes = view.candidates.iter().map(|to| to.load.in_flight.recent / to.load.in_flight.busy);
    let of_a_cache = f64::from(view.total) / view.seen.capacity.max(1.0);
    let whole = f64::from(view.total) * view.block_tokens as f64 * token;
    GRAIN * of_a_cache.min(1.0) * whole / mean(lifetimes).max(LIFETIME_MIN)
}

/// What a second of computing a miss counts. It delays who comes before the queue is empty. What it puts into a cache pushes
/// out as much, which would have been hit about as often as anything is, and its own miss would push out again as much:
/// `1 / (1 - held)` misses in all. The fourth power is measured: where little is held, most of what is pushed out would never
/// have been asked for.
fn price(seen: Seen, queued: f64) -> f64 {
    let held = seen.held.clamp(0.0, HELD_MAX);
    PRICE + QUEUED * queued.powi(2) + DISPLACED * held.powi(4) / (1.0 - held)
}

/// What balance is worth, 0 to 1: as far as requests wait, or as full caches forget what would be asked for again, which they
/// do least when all forget alike. Less where queues are long.
fn stake(seen: Seen, queued: f64) -> f64 {
    seen.contention.max(FORGETTING * seen.held * seen.full.powi(8)) / (1.0 + RUSH * queued)
}

/// Of what is a number.
fn mean(figures: impl Iterator<Item = f64>) -> f64 {
    let add = |(sum, count), figure| (sum + figure, count + 1.0);
    let (sum, count) = figures.filter(|figure| figure.is_finite()).fold((0.0, 0.0), add);
    sum / f64::max(count, 1.0)
}

/// What a second copy of the shared beginning costs, 0 to 1: the more prompts part where this one does, the less.
fn worth(seen: Seen, count: f64) -> f64 {
    let fair_share = FORKS_MIN + seen.forked_anywhere / count;
    1.0 / (1.0 + (seen.forked / fair_share / SHARED_BY).powi(SHARED_POWER))
}

/// What engines say of requests that are not this router's. One that says nothing while others do is taken for worse than
/// any of them: unmeasured is not idle.
#[derive(Clone, Copy)]
struct Others {
    /// Requests waiting at an unmeasured endpoint.
    foreign: f64,
    /// Share of the KV cache in use there.
    kv_usage: f64,
    /// Seconds that one takes.
    work: f64,
}

impl Others {
    fn of(view: &View<'_>) -> Self {
        let worst = |figure: fn(&Load) -> Option<f64>| {
            view.candidates.iter().filter_map(|to| figure(&to.load)).reduce(f64::max)
        };
        Self {
            foreign: worst(|load| load.foreign).map_or(0.0, |foreign| foreign + 1.0),
            kv_usage: worst(|load| load.kv_usage).unwrap_or(0.0),
            work: view.seen.work.max(WORK_MIN),
        }
    }

    /// Seconds until they are computed.
    fn wait(self, load: &Load) -> f64 {
        load.foreign.unwrap_or(self.foreign) * self.work
    }

    /// The share of the time that an endpoint computes, with what others have waiting there.
    fn busy(self, load: &Load) -> f64 {
        load.in_flight.busy + self.wait(load).min(1.0)
    }

    /// How much running requests get in each other's way, 0 to 1: nothing while there is room in the KV cache.
    fn tightness(self, load: &Load) -> f64 {
        load.kv_usage.unwrap_or(self.kv_usage).clamp(0.0, 1.0).powi(4)
    }
}

/// Of the time to the first token at the best holder, the share that is waiting.
fn waiting(view: &View<'_>, table: &Table, held: u32) -> f32 {
    let holders = (0..).zip(view.matched).filter(|(_, matched)| **matched == held).map(|(place, _)| place);
    let wait = |place: usize| table.row(place).next().flatten().unwrap_or(0.0);
    let Some(best) = holders.min_by(|&a, &b| wait(a).total_cmp(&wait(b))) else { return 0.0 };
    let work = view.candidates[best].load.pace.work(view.uncached_tokens(best));
    (wait(best) / (wait(best) + work)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::belief::EndpointId;
    use crate::ledger::InFlight;
    use crate::pace::Pace;
    use crate::score::Candidate;

    #[test]
    fn a_miss_costs_more_the_longer_the_queues_and_the_more_is_held() {
        let held = |held| Seen { held, ..Seen::default() };
        assert_eq!(price(held(0.0), 0.0), PRICE);
        assert!(price(held(0.9), 0.0) > 2.0 * price(held(0.5), 0.0));
        assert_eq!(price(held(1.0), 0.0), price(held(HELD_MAX), 0.0), "and no more than that");
        for (queued, more) in [(0.5, 0.125), (1.0, 0.5), (4.0, 8.0)] {
            assert!((price(held(0.0), queued) - PRICE - more).abs() < 1e-9, "{queued}");
        }
    }

    #[test]
    fn balance_is_worth_less_where_queues_are_long_and_nothing_where_nobody_waits() {
        let waits = Seen { contention: 0.5, ..Seen::default() };
        assert_eq!(stake(Seen::default(), 0.0), 0.0);
        assert_eq!(stake(waits, 0.0), 0.5);
        assert!((stake(waits, 10.0) - 0.125).abs() < 1e-9);
        let full = Seen { held: 1.0, full: 1.0, ..Seen::default() };
        assert_eq!(stake(full, 0.0), FORGETTING);
    }

    #[test]
    fn a_queue_is_what_all_have_and_not_what_one_that_hangs_has() {
        let queued = |prompts: &[u32], queueing| {
            let to = |&uncomputed: &u32| {
                let in_flight = InFlight { uncomputed, ..InFlight::default() };
                let pace = Pace { queueing, ..Pace::default() };
                Candidate::new(EndpointId(0), Load { in_flight, pace, ..Load::default() })
            };
            let candidates: Vec<_> = prompts.iter().map(to).collect();
            super::queued(&View { candidates: &candidates, ..View::default() })
        };
        assert_eq!(queued(&[0, 0], 1.0), 0.0);
        assert!((queued(&[5, 5, 5], 1.0) - 5.0).abs() < 1e-9);
        assert!((queued(&[8, 8], 0.25) - 2.0).abs() < 1e-9, "four lanes");
        assert!(queued(&[1_000, 0, 0], 1.0) <= 0.5);
    }

    #[test]
    fn who_fills_a_cache_may_keep_an_endpoint_busy() {
        let computed = |recent, busy| {
            let in_flight = InFlight { recent, busy, ..InFlight::default() };
            Candidate::new(EndpointId(0), Load { in_flight, ..Load::default() })
        };
        // In use for 100 s; the other has computed nothing.
        let candidates = [computed(20.0, 0.2), computed(0.0, 0.0)];
        let grain = |total, capacity| {
            let seen = Seen { capacity, ..Seen::default() };
            let view = View { candidates: &candidates, total, block_tokens: 64, seen, ..View::default() };
            super::grain(&view, 1e-3)
        };
        // 100 blocks of 64 tokens are 6.4 s of computing.
        assert!((grain(100, 100.0) - GRAIN * 0.064).abs() < 1e-9);
        assert!((grain(100, 400.0) - GRAIN * 0.016).abs() < 1e-9, "a quarter of a cache");
        assert_eq!(grain(100, 50.0), grain(100, 100.0), "longer than a cache");
        let idle = [computed(0.0, 0.0)];
        let view = View { candidates: &idle, total: 100, block_tokens: 64, ..View::default() };
        assert!(
            (super::grain(&view, 1e-3) - GRAIN * 6.4 / LIFETIME_MIN).abs() < 1e-9,
            "before the first request"
        );
    }
}
