//! What the policies that do not only sum decide, and that each explains its totals.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::Tuning;
use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Asked, Decision, Rules, choose};
use picker::hash::{BlockHash, Blocks};
use picker::ledger::{InFlight, Micros};
use picker::load::Load;
use picker::pace::Pace;
use picker::policy::Policy;
use picker::score::{Candidate, Scorer, Weights};
use picker::sessions::Sessions;
use proptest::prelude::*;

/// Blocks of every request here: shares are then percents.
const BLOCKS: u64 = 100;

fn blocks(prompt: u64, count: u64) -> Blocks {
    Blocks::one((0..count).map(|block| BlockHash(prompt << 32 | block)).collect())
}

fn in_flight(in_flight: InFlight) -> Load {
    Load { waiting: Some(0.0), running: Some(0.0), kv_usage: Some(0.0), in_flight, ..Load::default() }
}

fn requests(requests: u32) -> Load {
    in_flight(InFlight { requests, ..InFlight::default() })
}

fn work(recent: f64, backlog: f64) -> Load {
    in_flight(InFlight { recent, backlog, ..InFlight::default() })
}

fn tokens(uncached_tokens: u64) -> Load {
    in_flight(InFlight { uncached_tokens, ..InFlight::default() })
}

/// Endpoints 0, 1, ... with these loads, each of which holds so many blocks of prompt 1.
struct Pool {
    index: Index,
    candidates: Vec<Candidate>,
    rules: Rules,
}

impl Pool {
    fn new(policy: Policy, endpoints: &[(u64, Load)]) -> Self {
        let index = support::index(&vec![1000; endpoints.len()]);
        let candidates = (0..).zip(endpoints).map(|(id, &(held, load))| {
            index.commit(EndpointId(id), &blocks(1, held), false);
            Candidate::new(EndpointId(id), load)
        });
        let candidates = candidates.collect();
        Self { index, candidates, rules: Rules { policy, ..Rules::default() } }
    }

    fn loads(policy: Policy, loads: &[Load]) -> Self {
        Self::new(policy, &loads.iter().map(|&load| (0, load)).collect::<Vec<_>>())
    }

    fn choose(&self, asked: Asked, turn: u64) -> Decision {
        choose(asked, &self.candidates, &self.index, &self.rules, Draw { seed: 3, turn })
    }

    /// The decision on prompt 1.
    fn decide(&self) -> Decision {
        self.choose(Asked::hashed(blocks(1, BLOCKS), b""), 0)
    }

    /// Who gets prompt 1, best first; the same whatever chance says.
    fn order(&self) -> Vec<u32> {
        let orders = |turn| order(self.choose(Asked::hashed(blocks(1, BLOCKS), b""), turn));
        let first = orders(0);
        assert!((1..20).all(|turn| orders(turn) == first), "no chance in it");
        first
    }

    /// Who gets a session's request, best first.
    fn order_of_session(&self, session: u64) -> Vec<u32> {
        order(self.choose(Asked::hashed(blocks(session, 2), &session.to_le_bytes()), session))
    }
}

fn order(mut decision: Decision) -> Vec<u32> {
    let mut order = Vec::new();
    while let Some(choice) = decision.take_best() {
        order.push(choice.id.0);
    }
    order
}

/// The figure of a column at each candidate.
fn column(decision: &Decision, name: &str) -> Vec<f64> {
    let place = decision.columns().iter().position(|column| column.name == name).unwrap();
    let figure = |choice| decision.figures(choice).nth(place).unwrap().unwrap();
    decision.choices.iter().map(figure).collect()
}

/// A total is the sum of what is shown.
fn assert_explained(decision: &Decision, shows: &str) {
    for choice in &decision.choices {
        let figures = decision.columns().iter().zip(decision.figures(choice));
        let sum: f64 = figures.map(|(column, figure)| column.weight * figure.unwrap_or(0.0)).sum();
        assert!((sum - choice.total).abs() < 1e-9, "{shows}: {sum}, total {}", choice.total);
    }
}

#[test]
fn every_total_is_the_sum_of_what_is_shown() {
    let endpoints = [
        (90, work(3.0, 1.0)),
        (40, tokens(70_000)),
        (0, requests(9)),
        (100, Load::default()),
        (7, work(0.5, 0.0)),
    ];
    for policy in Policy::ALL {
        let decision = Pool::new(policy, &endpoints).decide();
        let is_baseline = [Policy::LeastQueue, Policy::RoundRobin, Policy::Random].contains(&policy);
        assert_eq!(decision.columns().is_empty(), is_baseline, "{}", policy.name());
        if !is_baseline {
            assert_explained(&decision, policy.name());
        }
    }
}

/// Nobody, one, and the most there can be, each with loads of every kind.
#[test]
fn fleets_of_every_size() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e300];
    let pace = |figure| Pace { overhead: figure, tokens_per_second: figure, queueing: figure };
    let load = |figure| Load { pace: pace(figure), unseen: 3, ..work(figure, figure) };
    for count in [0_u64, 1, 1_000] {
        let mut endpoints: Vec<_> =
            (0..count).map(|place| (place % 101, load(odd[place as usize % odd.len()]))).collect();
        // One that is as it should be.
        endpoints.truncate(count.saturating_sub(1) as usize);
        endpoints.extend((count > 0).then_some((50, work(1.0, 0.5))));
        for policy in Policy::ALL {
            let pool = Pool::new(policy, &endpoints);
            let decision = pool.decide();
            assert!(decision.choices.iter().all(|choice| !choice.total.is_nan()), "{}", policy.name());
            let mut order = order(decision);
            order.sort_unstable();
            assert_eq!(order, (0..count as u32).collect::<Vec<_>>(), "{} of {count}", policy.name());
            assert_eq!(pool.order_of_session(7).len(), count as usize);
        }
    }
}

#[test]
fn what_is_no_number_is_not_chosen() {
    let pace = Pace { tokens_per_second: f64::NAN, ..Pace::default() };
    let (odd, busy) = (Load { pace, ..work(0.0, 0.0) }, work(5.0, 5.0));
    for odd in [odd, work(0.0, f64::NAN)] {
        assert_eq!(Pool::loads(Policy::ExpectedTtft, &[odd, busy]).order(), [1, 0]);
    }
}

mod sticky {
    use super::*;

    fn idle(count: usize) -> Pool {
        Pool::loads(Policy::Sticky, &vec![requests(0); count])
    }

    #[test]
    fn the_session_is_the_key_else_the_beginning_of_the_prompt() {
        let pool = idle(8);
        let firsts = |asked: &Asked| -> Vec<_> {
            (0..20).map(|turn| pool.choose(asked.clone(), turn).best().unwrap().id.0).collect()
        };
        let all_on_one = |asked: Asked| firsts(&asked).windows(2).all(|pair| pair[0] == pair[1]);
        let prompt = |prompt, count| Asked::hashed(blocks(prompt, count), b"");
        let both = |a: Asked, b: Asked| firsts(&a) == firsts(&b);
        assert!(all_on_one(prompt(5, 3)) && all_on_one(Asked::hashed(Blocks::default(), b"me")));
        assert!(both(prompt(5, 4), prompt(5, 90)), "four blocks name the prompt");
        assert!((0..50).any(|other| !both(prompt(other, 4), prompt(other, 3))), "three are another key");
        let session = |other| Asked::hashed(blocks(other, 9), b"me");
        assert!((0..50).all(|other| both(session(0), session(other))), "whatever it asks");
        assert!(!all_on_one(Asked::hashed(Blocks::default(), b"")), "without either chance decides");
    }

    #[test]
    fn keys_spread_evenly() {
        let pool = idle(5);
        let mut homes = [0; 5];
        (0..5_000).for_each(|session| homes[pool.order_of_session(session)[0] as usize] += 1);
        assert!(homes.iter().all(|&count| (850..1150).contains(&count)), "{homes:?}");
    }

    #[test]
    fn who_has_too_much_in_flight_is_passed_over() {
        for (shows, loads, is_passed_over) in [
            ("idle", [0, 0, 0], false),
            ("two more than the others: the bound is ceil(1.25 x 3/3)", [2, 0, 0], false),
            ("one above the bound", [3, 0, 0], true),
            ("all alike", [9, 9, 9], false),
            ("a little above the mean", [11, 9, 9], false),
            ("a quarter above it, and more", [16, 9, 9], true),
        ] {
            let idle = idle(3).order();
            let mut by_endpoint = [requests(0); 3];
            (0..3).for_each(|place| by_endpoint[idle[place] as usize] = requests(loads[place]));
            let passed = match is_passed_over {
                true => vec![idle[1], idle[2], idle[0]],
                false => idle,
            };
            let pool = Pool::loads(Policy::Sticky, &by_endpoint);
            assert_eq!(pool.order(), passed, "{shows}");
            assert_eq!(column(&pool.decide(), "passed-over").iter().sum::<f64>() > 0.0, is_passed_over);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// About 1/(n + 1) of the keys move, all of them to the new one; and the order of candidates is nothing.
        #[test]
        fn another_replica_takes_its_share_and_no_more(count in 1usize..20, first in any::<u32>()) {
            const KEYS: u64 = 600;
            let (before, mut after) = (idle(count), idle(count + 1));
            after.candidates.reverse();
            let mut moved = 0;
            for session in (0..KEYS).map(|session| u64::from(first) + session) {
                let (was, is) = (before.order_of_session(session), after.order_of_session(session));
                moved += u64::from(was[0] != is[0]);
                prop_assert!(was[0] == is[0] || is[0] == count as u32);
                let others: Vec<_> = is.into_iter().filter(|&id| id != count as u32).collect();
                prop_assert_eq!(was, others, "nothing else moves");
            }
            let share = 1.0 / (count as f64 + 1.0);
            let (wanted, deviation) = (KEYS as f64 * share, (KEYS as f64 * share * (1.0 - share)).sqrt());
            prop_assert!((moved as f64 - wanted).abs() < 6.0 * deviation, "{moved} of {wanted}");
        }

        /// Whatever is in flight, the first is within the bound.
        #[test]
        fn the_bound_holds(loads in prop::collection::vec(0u32..50, 1..12), session: u64) {
            let by_endpoint: Vec<_> = loads.iter().map(|&count| requests(count)).collect();
            let first = Pool::loads(Policy::Sticky, &by_endpoint).order_of_session(session)[0];
            let mean = f64::from(loads.iter().sum::<u32>() + 1) / loads.len() as f64;
            prop_assert!(f64::from(loads[first as usize]) <= (1.25 * mean).ceil());
        }
    }
}

#[test]
fn guarded_takes_the_longest_match_within_the_guard() {
    for (shows, endpoints, order) in [
        ("the longer match", [(90, work(1.0, 0.0)), (50, work(1.0, 0.0)), (0, work(1.0, 0.0))], [0, 1, 2]),
        (
            "a tenth above the mean",
            [(90, work(1.1, 0.0)), (50, work(0.95, 0.0)), (0, work(0.95, 0.0))],
            [0, 1, 2],
        ),
        ("more than that", [(90, work(1.2, 0.0)), (50, work(0.9, 0.0)), (0, work(0.9, 0.0))], [1, 2, 0]),
        (
            "what is not done counts too",
            [(90, work(0.5, 0.7)), (50, work(0.9, 0.0)), (0, work(0.9, 0.0))],
            [1, 2, 0],
        ),
        (
            "cold: the least loaded",
            [(0, work(0.9, 0.0)), (0, work(0.2, 0.1)), (0, work(0.5, 0.0))],
            [1, 2, 0],
        ),
        (
            "a little less held, a lot less loaded",
            [(51, work(80.0, 0.0)), (50, work(40.0, 0.0)), (0, work(180.0, 0.0))],
            [1, 0, 2],
        ),
        (
            "beyond the guard the whole prompt is no help",
            [(100, work(9.0, 0.0)), (0, work(0.0, 0.0)), (0, work(1.0, 0.0))],
            [1, 2, 0],
        ),
    ] {
        assert_eq!(Pool::new(Policy::Guarded, &endpoints).order(), order, "{shows}");
    }
}

/// 12,000 tokens a second, so 216,000 tokens are the 18 seconds that a holder may be later.
#[test]
fn affinity_holds_until_saturated() {
    for (shows, endpoints, order) in [
        (
            "a holder goes first, whatever it has to do",
            [(80, tokens(200_000)), (79, tokens(0)), (0, tokens(50))],
            [0, 1, 2],
        ),
        (
            "of two holders the less loaded",
            [(100, tokens(200_000)), (80, tokens(100)), (0, tokens(0))],
            [1, 0, 2],
        ),
        ("18 seconds are allowed", [(80, tokens(216_000)), (0, tokens(0)), (0, tokens(9))], [0, 1, 2]),
        ("more are not", [(80, tokens(217_000)), (0, tokens(0)), (0, tokens(99_999))], [1, 2, 0]),
        (
            "beside the soonest of the others",
            [(80, tokens(217_000)), (0, tokens(50_000)), (0, tokens(2_000))],
            [0, 2, 1],
        ),
        (
            "the soonest holder counts",
            [(80, tokens(217_000)), (90, tokens(9_000)), (0, tokens(0))],
            [1, 0, 2],
        ),
        ("all hold", [(80, tokens(900_000)), (90, tokens(2)), (100, tokens(90_000))], [1, 2, 0]),
        ("nobody holds", [(79, tokens(900_000)), (0, tokens(2)), (60, tokens(90_000))], [1, 2, 0]),
    ] {
        assert_eq!(Pool::new(Policy::Affinity, &endpoints).order(), order, "{shows}");
    }
}

/// Each constant alone turns the order that the defaults give.
#[test]
fn affinity_goes_by_its_constants() {
    let endpoints = [(60, tokens(90_000)), (0, tokens(0)), (0, tokens(9))];
    let order = |tuning: Tuning| {
        let mut pool = Pool::new(Policy::Affinity, &endpoints);
        pool.rules.tuning = tuning;
        pool.order()
    };
    let holds = Tuning { holds_share: 0.6, ..Tuning::DEFAULT };
    for (shows, tuning, wanted) in [
        ("six tenths are not enough", Tuning::DEFAULT, [1, 2, 0]),
        ("unless they are", holds, [0, 1, 2]),
        // 90,000 tokens are 7.5 s at 12,000 a second.
        ("7 seconds later is too late", Tuning { penalty_seconds_max: 7.0, ..holds }, [1, 2, 0]),
        ("8 are not", Tuning { penalty_seconds_max: 8.0, ..holds }, [0, 1, 2]),
        ("a pace for all", Tuning { tokens_per_second: Some(4_000.0), ..holds }, [1, 2, 0]),
        (
            "never too late",
            Tuning { tokens_per_second: Some(1.0), penalty_seconds_max: f64::INFINITY, ..holds },
            [0, 1, 2],
        ),
    ] {
        assert_eq!(order(tuning), wanted, "{shows}");
    }
}

#[test]
fn expected_ttft_goes_where_the_first_token_is_soonest() {
    let fast = Pace { tokens_per_second: 120_000.0, ..Pace::default() };
    let lanes = Pace { queueing: 0.25, ..Pace::default() };
    let queue = |backlog| in_flight(InFlight { backlog, uncomputed: 4, ..InFlight::default() });
    let four_lanes = |backlog| Load { pace: lanes, ..queue(4.0 * backlog) };
    for (shows, endpoints, order) in [
        // 100 blocks of 64 tokens are 0.53 s, counted a little less than three times.
        ("held", [(100, work(0.0, 1.3)), (0, work(0.0, 0.0)), (50, work(0.0, 0.9))], [0, 1, 2]),
        ("a longer wait", [(100, work(0.0, 1.8)), (0, work(0.0, 0.0)), (50, work(0.0, 0.7))], [2, 1, 0]),
        ("but queues are long", [(100, queue(1.8)), (0, queue(0.0)), (50, queue(0.7))], [0, 2, 1]),
        (
            "not with a lane for each",
            [(100, four_lanes(1.8)), (0, four_lanes(0.0)), (50, four_lanes(0.6))],
            [2, 1, 0],
        ),
        (
            "a faster one",
            [(100, work(0.0, 1.2)), (0, Load { pace: fast, ..work(0.0, 0.0) }), (50, work(0.0, 0.3))],
            [1, 2, 0],
        ),
        (
            "several lanes",
            [(0, Load { pace: lanes, ..work(0.0, 2.0) }), (0, work(0.0, 0.6)), (0, work(0.0, 0.4))],
            [2, 0, 1],
        ),
        (
            "equal: where less was sent lately",
            [(0, work(3.0, 0.1)), (0, work(1.0, 0.1)), (0, work(2.0, 0.1))],
            [1, 2, 0],
        ),
    ] {
        assert_eq!(Pool::new(Policy::ExpectedTtft, &endpoints).order(), order, "{shows}");
    }
    let decision = Pool::new(Policy::ExpectedTtft, &[(50, work(0.0, 1.5)), (0, work(0.0, 0.0))]).decide();
    assert_eq!(column(&decision, "wait"), [1.5, 0.0]);
    let prefill = column(&decision, "prefill");
    assert!((prefill[0] - (0.005 + 3_200.0 / 12_000.0)).abs() < 1e-9, "{prefill:?}");
}

#[test]
fn weights_replace_the_preset() {
    let endpoints = [(100, requests(5)), (0, requests(0)), (50, requests(1))];
    for (policy, weights, order) in [
        (Policy::Prefix, None, vec![0, 2, 1]),
        (Policy::Prefix, Some(Scorer::InFlight), vec![1, 2, 0]),
        (Policy::PrefixOnly, Some(Scorer::InFlight), vec![1, 2, 0]),
        (Policy::Affinity, None, vec![0, 2, 1]),
        (Policy::Affinity, Some(Scorer::InFlight), vec![0, 1, 2]),
    ] {
        let mut pool = Pool::new(policy, &endpoints);
        pool.rules.weights = weights.map(|scorer| Weights::new(&[(scorer, 1e6)]).unwrap());
        assert_eq!(pool.order(), order, "{} {weights:?}", policy.name());
    }
}

/// A session is found again where its last request was committed, for its time.
#[test]
fn a_session_goes_where_it_was() {
    let mut pool = Pool::loads(Policy::Prefix, &[requests(0); 6]);
    pool.rules.weights = Some(Weights::new(&[(Scorer::Session, 1.0)]).unwrap());
    let sessions = Sessions::default();
    let decide = |session: &[u8], turn, now| {
        let asked = Asked::hashed(blocks(turn, 3), session).with_session_at(&sessions, Micros(now));
        pool.choose(asked, turn)
    };
    let is_free =
        |session: &[u8], now| (0..50).any(|turn| decide(session, turn, now).best().unwrap().id.0 != 4);
    assert!(is_free(b"me", 0));
    decide(b"me", 0, 0).remember(&sessions, EndpointId(4), Micros(5));
    decide(b"", 0, 0).remember(&sessions, EndpointId(2), Micros(5));
    assert!(!is_free(b"me", 300_000_000) && is_free(b"me", 302_000_000), "300 s");
    assert!(is_free(b"you", 9) && is_free(b"", 9), "others have none");
}
