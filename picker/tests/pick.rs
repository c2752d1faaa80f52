//! Which endpoint wins, and in what order the others follow: behaviours 26 to 32 and 78.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::HashSet;

use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::columns::Column;
use picker::decide::{Ask, Decision, Rules, decide};
use picker::hash::{BlockHash, Blocks};
use picker::ledger::InFlight;
use picker::load::Load;
use picker::policy::Policy;
use picker::read::Api;
use picker::score::{Candidate, Scorer, Weights};
use serde_json::Value;
use support::{index, prose, quoted, seed};

/// A request of `blocks` router blocks.
fn body(blocks: usize) -> String {
    format!(r#"{{"prompt":{}}}"#, quoted(&prose(256 * blocks)))
}

/// Everything that a decision depends on.
struct Pool {
    index: Index,
    candidates: Vec<Candidate>,
    policy: Policy,
    weights: Option<Weights>,
    body: String,
}

impl Pool {
    /// Endpoints 0, 1, ... with these loads; nothing is believed of them yet.
    fn new(policy: Policy, loads: &[Load], blocks: usize) -> Self {
        let candidates: Vec<_> =
            (0..).zip(loads).map(|(id, &load)| Candidate::new(EndpointId(id), load)).collect();
        let index = index(&vec![1000; loads.len()]);
        Self { index, candidates, policy, weights: None, body: body(blocks) }
    }

    fn idle(policy: Policy, count: usize) -> Self {
        Self::new(policy, &vec![measured(0.0, 0.0); count], 14)
    }

    fn decide(&self, draw: Draw) -> Decision {
        let ask = Ask { api: Api::Completions, body: self.body.as_bytes(), tenant: b"", session: b"" };
        let rules = Rules { policy: self.policy, weights: self.weights, ..Rules::default() };
        decide(&ask, &self.candidates, &self.index, &rules, draw).unwrap()
    }

    /// Who wins the decision of that number, under seed 7.
    fn winner(&self, turn: u64) -> usize {
        self.decide(Draw { seed: 7, turn }).take_best().unwrap().candidate
    }

    /// How often each wins in `draws` decisions.
    fn wins(&self, draws: u64) -> Vec<u64> {
        let mut wins = vec![0; self.candidates.len()];
        (0..draws).for_each(|turn| wins[self.winner(turn)] += 1);
        wins
    }

    /// Endpoint `id` holds the first `blocks` blocks of the request.
    fn hold(&self, id: u32, blocks: usize) {
        let all = support::only(&self.decide(support::DRAW).blocks);
        self.index.commit(EndpointId(id), &Blocks::one(all[..blocks].to_vec()), false);
    }

    /// Endpoint `id` takes a cold request that has nothing to do with ours.
    fn cold(&self, id: u32) {
        self.index.commit(EndpointId(id), &Blocks::one(vec![BlockHash(u64::from(id))]), true);
    }
}

fn measured(waiting: f64, kv_usage: f64) -> Load {
    Load { waiting: Some(waiting), kv_usage: Some(kv_usage), ..Load::default() }
}

fn in_flight(in_flight: u32) -> Load {
    Load { in_flight: InFlight { requests: in_flight, ..InFlight::default() }, ..measured(0.0, 0.0) }
}

/// Every count is within five standard deviations of an even share.
fn assert_even(wins: &[u64], shows: &str) {
    let draws: u64 = wins.iter().sum();
    let share = draws as f64 / wins.len() as f64;
    let allowed = 5.0 * (share * (1.0 - 1.0 / wins.len() as f64)).sqrt();
    assert!(wins.iter().all(|&count| (count as f64 - share).abs() < allowed), "{shows}: {wins:?}");
}

/// Behaviours 21, 26 to 28 and 30: every total within 1e-6, and over many draws each of the best wins, none else.
#[test]
fn picks_of_the_first_seed() {
    for case in seed("router_pick.json")["cases"].as_array().unwrap() {
        let pool = pool_of(case);
        let decision = pool.decide(support::DRAW);
        assert_eq!(decision.blocks.total() as u64, case["total_blocks"].as_u64().unwrap());
        assert_eq!(decision.cold, case["cold"] == true, "{}", case["name"]);
        let names = names(case);
        for (place, name) in names.iter().enumerate() {
            let wanted = case["totals"][name].as_f64().unwrap();
            let total = total(&decision, place, &case["weights"]);
            assert!((total - wanted).abs() < 1e-6, "{}: {name} has {total}, wanted {wanted}", case["name"]);
            assert_eq!(decision.choices[place].total, total, "{}", case["name"]);
        }
        let winners: HashSet<&str> = (0..200).map(|turn| names[pool.winner(turn)]).collect();
        let wanted = case["chosen_one_of"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        assert_eq!(winners, wanted.collect(), "{}", case["name"]);
    }
}

fn names(case: &Value) -> Vec<&str> {
    case["endpoints"].as_array().unwrap().iter().map(|endpoint| endpoint["name"].as_str().unwrap()).collect()
}

fn pool_of(case: &Value) -> Pool {
    let endpoints = case["endpoints"].as_array().unwrap();
    let loads: Vec<Load> = endpoints.iter().map(load_of).collect();
    let policy = Policy::from_name(case["policy"].as_str().unwrap()).unwrap();
    let mut pool = Pool::new(policy, &loads, case["total_blocks"].as_u64().unwrap() as usize);
    pool.weights = (policy == Policy::Prefix).then(|| weights_of(case));
    let names = names(case);
    for (id, name) in (0..).zip(&names) {
        pool.hold(id, case["matched_blocks"][name].as_u64().unwrap() as usize);
    }
    for name in case["cold_order_oldest_first"].as_array().unwrap() {
        pool.cold(names.iter().position(|known| name == known).unwrap() as u32);
    }
    pool
}

fn load_of(endpoint: &Value) -> Load {
    match endpoint["has_metrics"] == true {
        true => measured(endpoint["waiting"].as_f64().unwrap(), endpoint["kv_usage"].as_f64().unwrap()),
        false => Load::default(),
    }
}

/// The weighted sum under the case's own weights.
fn total(decision: &Decision, place: usize, weights: &Value) -> f64 {
    let figures = decision.figures(&decision.choices[place]);
    let weighted = |(column, figure): (&Column, Option<f64>)| {
        figure.unwrap_or(0.0) * weights[column.name].as_f64().unwrap()
    };
    decision.columns().iter().zip(figures).map(weighted).sum()
}

fn weights_of(case: &Value) -> Weights {
    let weights = case["weights"].as_object().unwrap();
    let weights: Vec<_> = Scorer::ALL
        .into_iter()
        .filter_map(|scorer| Some((scorer, weights.get(scorer.name())?.as_f64()?)))
        .collect();
    Weights::new(&weights).unwrap()
}

/// Behaviour 26.
#[test]
fn default_weights() {
    let weights = Policy::Prefix.weights().unwrap();
    let weights: Vec<_> = weights.iter().map(|(scorer, weight)| (scorer.name(), weight)).collect();
    assert_eq!(weights, [("prefix", 3.0), ("queue", 2.0), ("kv", 2.0), ("no-hit-lru", 1.0)]);
    let printed = &seed("scorers.json")["weights_default"];
    assert!(weights.iter().all(|(name, weight)| printed[name].as_f64() == Some(*weight)));
}

/// Behaviour 27: ties fall evenly, among the tied only.
#[test]
fn ties_are_uniform() {
    assert_even(&Pool::idle(Policy::Prefix, 3).wins(3000), "all tied");
    assert_even(&Pool::idle(Policy::PrefixOnly, 8).wins(3000), "eight tied");
    let pool = Pool::new(Policy::Prefix, &[measured(0.0, 0.0), measured(0.0, 0.5), measured(0.0, 0.0)], 14);
    let wins = pool.wins(3000);
    assert_eq!(wins[1], 0);
    assert_even(&[wins[0], wins[2]], "two tied");
}

/// Behaviour 27: consecutive draws are independent of each other, and so are the seeds.
#[test]
fn ties_do_not_follow_a_pattern() {
    let pool = Pool::idle(Policy::PrefixOnly, 3);
    let mut pairs = vec![0; 9];
    (0..9000).for_each(|turn| pairs[3 * pool.winner(turn) + pool.winner(turn + 1)] += 1);
    assert_even(&pairs, "pairs of consecutive winners");
    let mut seeds = vec![0; 3];
    (0..3000).for_each(|seed| seeds[pool.decide(Draw { seed, turn: 0 }).best().unwrap().candidate] += 1);
    assert_even(&seeds, "first winners of 3000 seeds");
}

/// Behaviour 27: a decision replays.
#[test]
fn the_same_seed_gives_the_same_answer() {
    for policy in Policy::ALL {
        let pool = Pool::idle(policy, 5);
        let order = |seed, turn| {
            let mut decision = pool.decide(Draw { seed, turn });
            std::iter::from_fn(|| decision.take_best())
                .take(9)
                .map(|choice| choice.candidate)
                .collect::<Vec<_>>()
        };
        assert!((0..50).all(|turn| order(1, turn) == order(1, turn)), "{}", policy.name());
        let differs = (0..50).any(|turn| order(1, turn) != order(2, turn));
        let by_chance = ![Policy::RoundRobin, Policy::Sticky].contains(&policy);
        assert_eq!(differs, by_chance, "{}", policy.name());
    }
}

/// Behaviour 28.
#[test]
fn a_full_match_can_lose_to_an_idle_empty_replica() {
    let pool = Pool::new(Policy::Prefix, &[measured(10.0, 1.0), measured(0.0, 0.0)], 14);
    pool.hold(0, 14);
    assert_eq!(pool.wins(20), [0, 20]);
}

/// Behaviour 29.
#[test]
fn round_robin_takes_turns_exactly() {
    let pool = Pool::new(Policy::RoundRobin, &[measured(90.0, 1.0), in_flight(9), Load::default()], 14);
    pool.hold(1, 14);
    let winners: Vec<_> = (0..7).map(|turn| pool.winner(turn)).collect();
    assert_eq!(winners, [0, 1, 2, 0, 1, 2, 0]);
    let mut decision = pool.decide(Draw { seed: 0, turn: 4 });
    let order: Vec<_> =
        std::iter::from_fn(|| decision.take_best()).take(9).map(|choice| choice.candidate).collect();
    assert_eq!(order, [1, 2, 0], "a retry goes on round the ring");
    assert_eq!(pool.winner(u64::MAX), (u64::MAX % 3) as usize);
}

/// Behaviour 29.
#[test]
fn random_spreads_evenly_and_blindly() {
    let pool = Pool::new(Policy::Random, &[measured(90.0, 1.0), in_flight(9), Load::default()], 14);
    pool.hold(1, 14);
    assert_even(&pool.wins(3000), "random");
}

/// Behaviour 29: fewest in flight, whatever the belief; ties at random.
#[test]
fn least_queue_takes_the_fewest_in_flight() {
    let pool = Pool::new(Policy::LeastQueue, &[in_flight(3), in_flight(1), in_flight(2)], 14);
    pool.hold(0, 14);
    assert_eq!(pool.wins(20), [0, 20, 0]);
    let mut decision = pool.decide(support::DRAW);
    let order: Vec<_> =
        std::iter::from_fn(|| decision.take_best()).take(9).map(|choice| choice.candidate).collect();
    assert_eq!(order, [1, 2, 0]);
    let tied = Pool::new(Policy::LeastQueue, &[in_flight(1), in_flight(0), in_flight(0)], 14).wins(3000);
    assert_eq!(tied[0], 0);
    assert_even(&tied[1..], "least queue, tied");
}

/// Behaviours 29 and 30.
#[test]
fn prefix_only_is_blind_to_load() {
    let pool = Pool::new(Policy::PrefixOnly, &[measured(90.0, 1.0), measured(0.0, 0.0), Load::default()], 14);
    assert_even(&pool.wins(3000), "cold");
    pool.hold(1, 2);
    pool.hold(0, 3);
    assert_eq!(pool.wins(20), [20, 0, 0]);
}

/// Behaviour 31: only candidates are picked, and their places are those of the slice.
#[test]
fn who_is_left_out_is_not_picked() {
    let mut pool = Pool::idle(Policy::Prefix, 3);
    pool.hold(1, 14);
    pool.candidates.remove(1);
    let ids: HashSet<_> =
        (0..100).map(|turn| pool.decide(Draw { seed: 0, turn }).take_best().unwrap().id.0).collect();
    assert_eq!(ids, HashSet::from([0, 2]));
    pool.candidates.clear();
    for policy in Policy::ALL {
        pool.policy = policy;
        let mut decision = pool.decide(support::DRAW);
        assert!(decision.best().is_none() && decision.take_best().is_none(), "{}", policy.name());
    }
}

/// Behaviour 32.
#[test]
fn a_cold_commit_makes_its_endpoint_the_latest() {
    let mut pool = Pool::idle(Policy::Prefix, 3);
    let mut taken = Vec::new();
    for request in 0..6 {
        pool.body = format!(r#"{{"prompt":"{request}{}"}}"#, prose(2000));
        let mut decision = pool.decide(Draw { seed: 0, turn: request });
        let winner = decision.take_best().unwrap();
        assert!(decision.cold);
        decision.commit(&pool.index, winner.id).unwrap();
        taken.push(winner.candidate);
        let warm = pool.decide(Draw { seed: 0, turn: request });
        let order = winner_order(&pool.index);
        warm.commit(&pool.index, winner.id).unwrap();
        assert_eq!(order, winner_order(&pool.index), "a matched request leaves the order alone");
    }
    assert_eq!(taken[..3].iter().collect::<HashSet<_>>().len(), 3, "{taken:?}");
    assert_eq!(taken[..3], taken[3..], "then the longest unused first");
}

fn winner_order(index: &Index) -> [u64; 3] {
    [0, 1, 2].map(|id| index.last_cold(EndpointId(id)))
}

/// Whoever fails, the next best keeps affinity; each comes once.
#[test]
fn next_goes_down_the_ranking() {
    let pool = Pool::idle(Policy::Prefix, 4);
    [(0, 3), (1, 14), (2, 0), (3, 9)].into_iter().for_each(|(id, blocks)| pool.hold(id, blocks));
    let mut decision = pool.decide(support::DRAW);
    let order: Vec<_> = std::iter::from_fn(|| decision.take_best())
        .take(9)
        .map(|choice| (choice.id.0, choice.matched))
        .collect();
    assert_eq!(order, [(1, 14), (3, 9), (0, 3), (2, 0)]);
    assert!(decision.take_best().is_none());
    assert_eq!(decision.best().unwrap().id, EndpointId(1), "best forgets nothing");
}

/// A preferred endpoint goes first once; behind it the ranking stays.
#[test]
fn preference_goes_before_the_ranking() {
    let pool = Pool::idle(Policy::Prefix, 3);
    [(0, 3), (1, 14), (2, 9)].into_iter().for_each(|(id, blocks)| pool.hold(id, blocks));
    let mut decision = pool.decide(support::DRAW);
    decision.prefer(EndpointId(0));
    assert_eq!(decision.best().unwrap().id, EndpointId(0));
    let order: Vec<_> =
        std::iter::from_fn(|| decision.take_best()).take(9).map(|choice| choice.id.0).collect();
    assert_eq!(order, [0, 1, 2]);
}

/// Behaviour 78: the highest sum wins; figures that are no numbers never do.
#[test]
fn odd_loads_do_not_win() {
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for load in [measured(odd, odd), measured(odd, 0.0), measured(0.0, odd)] {
            let wins = Pool::new(Policy::Prefix, &[load, measured(0.0, 0.0), load], 14).wins(50);
            assert_eq!(wins, [0, 50, 0], "{load:?}");
        }
    }
    let (worst, unknown) = (measured(f64::MAX, 1.0), Load::default());
    assert_eq!(Pool::new(Policy::Prefix, &[worst, unknown, measured(0.0, 0.0)], 14).wins(50), [0, 0, 50]);
}

/// An engine that has a prompt tokenized keeps no cache of it, and an empty prompt leaves none.
#[test]
fn what_fills_no_cache_is_not_committed() {
    let pool = Pool::idle(Policy::Prefix, 1);
    let commits = |api, body: &str| {
        let ask = Ask { api, body: body.as_bytes(), tenant: b"", session: b"" };
        let decision = decide(&ask, &pool.candidates, &pool.index, &Rules::default(), support::DRAW).unwrap();
        decision.commit(&pool.index, EndpointId(0)).is_some()
    };
    assert!(!commits(Api::Tokenize, &pool.body));
    assert!(!commits(Api::Other, &pool.body));
    assert!(!commits(Api::Completions, r#"{"prompt":""}"#));
    assert!(commits(Api::Completions, &pool.body));
}

#[test]
fn policies_are_found_by_their_names() {
    for (policy, name) in Policy::ALL.into_iter().zip(Policy::NAMES) {
        assert_eq!((policy.name(), Policy::from_name(name)), (name, Some(policy)));
    }
    assert_eq!(Policy::from_name("Prefix"), None);
}
