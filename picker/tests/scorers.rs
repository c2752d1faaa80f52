//! What each scorer gives: behaviours 18 to 25 and the clamp of 78, on vectors from an independent model.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use picker::Tuning;
use picker::belief::EndpointId;
use picker::ledger::InFlight;
use picker::load::Load;
use picker::score::prefix::MatchLength;
use picker::score::{Adapters, Candidate, Scorer, View, Weights, WeightsError};
use serde_json::Value;
use support::seed;

fn load(waiting: Option<f64>, kv_usage: Option<f64>) -> Load {
    Load { waiting, kv_usage, ..Load::default() }
}

/// Scores of candidates with these loads, matches and cold numbers.
fn scores(
    scorer: Scorer,
    loads: &[Load],
    matched: &[u32],
    total: u32,
    last_cold: &[u64],
) -> Vec<Option<f64>> {
    let candidates: Vec<_> =
        (0..).zip(loads).map(|(id, &load)| Candidate::new(EndpointId(id), load)).collect();
    let mut scores = vec![None; candidates.len()];
    let founds_prefix = total > 0 && matched.iter().all(|&matched| matched == 0);
    let last_cold = if founds_prefix { last_cold } else { &[] };
    let view = View { candidates: &candidates, matched, total, last_cold, ..View::default() };
    scorer.score(&view, &mut scores);
    scores
}

fn by_load(scorer: Scorer, loads: &[Load]) -> Vec<Option<f64>> {
    scores(scorer, loads, &vec![0; loads.len()], 1, &vec![0; loads.len()])
}

fn by_cold(last_cold: &[u64], matched: &[u32]) -> Vec<Option<f64>> {
    scores(Scorer::NoHitLru, &vec![Load::default(); matched.len()], matched, 14, last_cold)
}

/// Scores by name, those that were left out missing, as the vectors have them.
fn named(names: &[&str], scores: Vec<Option<f64>>) -> BTreeMap<String, f64> {
    names.iter().zip(scores).filter_map(|(name, score)| Some(((*name).to_owned(), score?))).collect()
}

fn assert_near(found: &BTreeMap<String, f64>, wanted: &Value, shows: &str) {
    for (name, wanted) in wanted.as_object().unwrap() {
        let (found, wanted) = (found[name], wanted.as_f64().unwrap());
        assert!((found - wanted).abs() < 1e-4, "{shows}: {name} has {found}, wanted {wanted}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Behaviours 18 and 19.
#[test]
fn queue_and_kv_of_the_first_seed() {
    let vectors = seed("scorers.json");
    for (key, scorer) in [("queue", Scorer::Queue), ("kv", Scorer::Kv)] {
        for case in vectors[key].as_array().unwrap() {
            let endpoints = case["endpoints"].as_array().unwrap();
            let names: Vec<&str> = endpoints.iter().map(|endpoint| text(&endpoint["name"])).collect();
            let loads: Vec<Load> = endpoints.iter().map(measured).collect();
            let found = named(&names, by_load(scorer, &loads));
            assert_eq!(found.len(), case["want"].as_object().unwrap().len(), "{key} {}", case["name"]);
            assert_near(&found, &case["want"], text(&case["name"]));
        }
    }
}

fn measured(endpoint: &Value) -> Load {
    if endpoint["has_metrics"] == true {
        load(endpoint["waiting"].as_f64(), endpoint["kv_usage"].as_f64())
    } else {
        Load::default()
    }
}

/// Behaviour 20.
#[test]
fn prefix_of_the_first_seed() {
    for case in seed("scorers.json")["prefix"].as_array().unwrap() {
        let matches = case["matches"].as_object().unwrap();
        let names: Vec<&str> = matches.keys().map(String::as_str).collect();
        let matched: Vec<u32> = matches.values().map(|count| count.as_u64().unwrap() as u32).collect();
        let (loads, never) = (vec![Load::default(); names.len()], vec![0; names.len()]);
        let total = case["total"].as_u64().unwrap() as u32;
        let found = named(&names, scores(Scorer::Prefix, &loads, &matched, total, &never));
        assert_eq!(found.len(), names.len(), "every endpoint is scored");
        assert_near(&found, &case["want"], "prefix");
    }
}

/// Behaviours 22 to 24.
#[test]
fn no_hit_lru_of_the_first_seed() {
    for case in seed("scorers.json")["no_hit_lru"]["cases"].as_array().unwrap() {
        let names: Vec<&str> = case["endpoints"].as_array().unwrap().iter().map(text).collect();
        let order: Vec<&str> = case["cold_order_oldest_first"].as_array().unwrap().iter().map(text).collect();
        let place =
            |name: &&str| order.iter().position(|cold| cold == name).map_or(0, |place| place as u64 + 1);
        let last_cold: Vec<u64> = names.iter().map(place).collect();
        let matched = vec![u32::from(case["cold"] == false); names.len()];
        let found = named(&names, by_cold(&last_cold, &matched));
        assert_near(&found, &case["want_exact"], "exact");
        if let Some(fit) = case.get("formula_fit") {
            assert_near(&found, fit, "formula");
        }
        let falling: Vec<f64> =
            case["want_decreasing"].as_array().into_iter().flatten().map(|name| found[text(name)]).collect();
        assert!(falling.is_sorted_by(|earlier, later| earlier > later), "{falling:?}");
    }
}

/// Behaviour 24: the printed 3.90 is 2 + 2 x (1 - 7/32) + 1/3, so the latest of three with one unused gets a third.
#[test]
fn the_latest_cold_of_three_gets_a_third() {
    let found = by_cold(&[0, 1, 2], &[0; 3]);
    assert_eq!(found[0], Some(1.0));
    assert!((found[2].unwrap() - 1.0 / 3.0).abs() < 1e-12);
}

/// Behaviour 22: one endpoint with one block is enough.
#[test]
fn any_match_makes_the_cold_order_neutral() {
    assert_eq!(by_cold(&[3, 1, 2], &[0, 0, 1]), [Some(0.5); 3]);
}

/// Behaviour 25.
#[test]
fn match_length() {
    let exercise = &seed("scorers.json")["match_length_exercise"];
    let number = |value: &Value| value.as_f64().unwrap();
    let score = |case: &Value, weight: f64| {
        let term = MatchLength::new(weight, case["scale"].as_u64().unwrap() as u32).unwrap();
        term.score(number(&case["matched_tokens"]), number(&case["total_tokens"]))
    };
    let cases = exercise["cases"].as_array().unwrap();
    for case in cases {
        assert!((score(case, number(&case["w"])) - number(&case["want"])).abs() < 1e-9, "{case}");
        let ratio = number(&case["matched_tokens"]) / number(&case["total_tokens"]);
        assert_eq!(score(case, 0.0), ratio, "weight 0 changes nothing");
    }
    assert!(score(&cases[0], 0.5) > score(&cases[1], 0.5), "4000 of 5000 beats 400 of 500");
    for weight in
        exercise["errors"].as_array().unwrap().iter().map(|case| number(&case["w"])).chain([f64::NAN])
    {
        let error = MatchLength::new(weight, 8_192).unwrap_err();
        assert_eq!(error.to_string(), format!("match length weight must be between 0 and 1, got {weight}"));
    }
    assert_eq!(MatchLength::SCALE_TOKENS, 8_192);
    for (matched, total, scale) in [(0.0, 0.0, 8_192), (0.0, 0.0, 0), (5.0, 5.0, 0)] {
        assert!(
            (0.0..=1.0).contains(&MatchLength::new(0.5, scale).unwrap().score(matched, total)),
            "{scale}"
        );
    }
}

/// Behaviour 18: an unmeasured endpoint does not stretch the range of the others.
#[test]
fn unmeasured_endpoints_are_left_out() {
    let found = by_load(Scorer::Queue, &[load(Some(4.0), None), load(None, None), load(Some(8.0), None)]);
    assert_eq!(found, [Some(1.0), None, Some(0.0)]);
    assert_eq!(by_load(Scorer::Kv, &[load(Some(0.0), None), load(None, Some(0.25))]), [None, Some(0.75)]);
}

/// Behaviour 78: whatever an engine reports, a score is 0 to 1.
#[test]
fn scores_are_clamped() {
    for (usage, score) in [(-0.5, 1.0), (1.5, 0.0), (1e300, 0.0), (0.4, 0.6)] {
        assert_eq!(by_load(Scorer::Kv, &[load(None, Some(usage))]), [Some(score)], "{usage}");
    }
    let matched = scores(Scorer::Prefix, &[Load::default()], &[20], 10, &[0]);
    assert_eq!(matched, [Some(1.0)]);
}

/// A figure that is no number is no measurement: it neither looks idle nor spoils the others' range.
#[test]
fn no_number_is_no_measurement() {
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let queue = |waiting: &[f64]| {
            let loads: Vec<_> = waiting.iter().map(|&waiting| load(Some(waiting), None)).collect();
            by_load(Scorer::Queue, &loads)
        };
        assert_eq!(queue(&[odd, 3.0]), [None, Some(1.0)], "{odd}");
        assert_eq!(queue(&[2.0, odd, 6.0, 4.0]), [Some(1.0), None, Some(0.0), Some(0.5)], "{odd}");
        assert_eq!(queue(&[odd, odd]), [None, None], "{odd}");
        let kv = by_load(Scorer::Kv, &[load(None, Some(odd)), load(None, Some(0.5))]);
        assert_eq!(kv, [None, Some(0.5)], "{odd}");
    }
}

#[test]
fn no_candidates_are_no_trouble() {
    for scorer in Scorer::ALL {
        assert_eq!(scores(scorer, &[], &[], 0, &[]), [], "{}", scorer.name());
    }
}

/// As the queue, of the requests that the engine runs.
#[test]
fn running_is_relative() {
    let running = |counts: &[Option<f64>]| {
        let loads: Vec<_> = counts.iter().map(|&running| Load { running, ..load(Some(9.0), None) }).collect();
        by_load(Scorer::Running, &loads)
    };
    assert_eq!(running(&[Some(4.0), None, Some(8.0), Some(6.0)]), [Some(1.0), None, Some(0.0), Some(0.5)]);
    assert_eq!(running(&[Some(4.0), Some(4.0)]), [Some(1.0); 2]);
    assert_eq!(running(&[None, None]), [None, None]);
}

/// Waiting and unseen requests of each, and the scores. Of the unseen ones 16 make a whole point, at least.
#[test]
fn unseen_requests_are_load() {
    for (shows, endpoints, wanted) in [
        ("as many everywhere: the engines' word", vec![(0.0, 9), (2.0, 9), (4.0, 9)], vec![1.0, 0.5, 0.0]),
        ("one is no whole point", vec![(0.0, 1), (0.0, 0)], vec![1.0 - 1.0 / 16.0, 1.0]),
        ("nor where somebody has a queue of one", vec![(0.0, 1), (1.0, 0)], vec![1.0 - 1.0 / 16.0, 0.0]),
        ("a burst is", vec![(0.0, 16), (0.0, 0), (0.0, 8)], vec![0.0, 1.0, 0.5]),
        ("a larger one stretches the scale", vec![(0.0, 64), (0.0, 0), (0.0, 16)], vec![0.0, 1.0, 0.75]),
        ("beside a long queue it is little", vec![(0.0, 30), (100.0, 0), (0.0, 0)], vec![0.7, 0.0, 1.0]),
        ("beside a burst a queue of one is little", vec![(0.0, 30), (1.0, 0)], vec![0.0, 1.0 - 1.0 / 30.0]),
    ] {
        let loads: Vec<_> =
            endpoints.iter().map(|&(waiting, unseen)| Load { unseen, ..load(Some(waiting), None) }).collect();
        for (found, wanted) in by_load(Scorer::Queue, &loads).into_iter().zip(&wanted) {
            assert!((found.unwrap() - wanted).abs() < 1e-12, "{shows}: {found:?}, wanted {wanted}");
        }
    }
    let unmeasured = Load { unseen: 99, ..Load::default() };
    let one = Load { unseen: 1, ..load(Some(0.0), None) };
    let found = by_load(Scorer::Queue, &[unmeasured, one, load(Some(0.0), None)]);
    assert_eq!(found, [None, Some(0.9375), Some(1.0)], "who is not measured is no measure");
}

/// A burst between two readings spreads, and a single request leaves a prefix where it is.
#[test]
fn bursts_do_not_herd() {
    let mut loads = [load(Some(0.0), None); 4];
    for _ in 0..40 {
        let scores = by_load(Scorer::Queue, &loads);
        let best = (0..4).max_by(|&a, &b| scores[a].unwrap().total_cmp(&scores[b].unwrap())).unwrap();
        loads[best].unseen += 1;
    }
    assert_eq!(loads.map(|load| load.unseen), [10; 4]);
    loads = [load(Some(0.0), None); 4];
    loads[0].unseen = 1;
    let (queue, prefix) =
        (by_load(Scorer::Queue, &loads), scores(Scorer::Prefix, &loads, &[9, 0, 0, 0], 10, &[0; 4]));
    let total = |place: usize| 2.0 * queue[place].unwrap() + 3.0 * prefix[place].unwrap();
    assert!(total(0) > total(1) + 2.0);
}

/// llm-d's `active-request-scorer`: relative to the most, and always known.
#[test]
fn in_flight_is_relative_to_the_most() {
    for (requests, wanted) in [
        (vec![0, 0], vec![1.0, 1.0]),
        (vec![3, 3], vec![0.0, 0.0]),
        (vec![0, 1, 2, 4], vec![1.0, 0.75, 0.5, 0.0]),
    ] {
        let in_flight = |&requests| InFlight { requests, ..InFlight::default() };
        let loads: Vec<_> =
            requests.iter().map(|count| Load { in_flight: in_flight(count), ..Load::default() }).collect();
        assert_eq!(by_load(Scorer::InFlight, &loads), wanted.into_iter().map(Some).collect::<Vec<_>>());
    }
}

/// llm-d's `active-request-scorer` with its two parameters.
#[test]
fn in_flight_sets_the_idle_apart() {
    let in_flight = |requests| InFlight { requests, ..InFlight::default() };
    let load = |requests| Load { in_flight: in_flight(requests), ..Load::default() };
    let candidates: Vec<_> = (0..)
        .zip([2, 0, 3, 4])
        .map(|(id, requests)| Candidate::new(EndpointId(id), load(requests)))
        .collect();
    let tuning = Tuning { idle_requests: 2, busy_score_max: 0.5, ..Tuning::DEFAULT };
    let mut scores = [None; 4];
    let view = View { candidates: &candidates, matched: &[0; 4], tuning, ..View::default() };
    Scorer::InFlight.score(&view, &mut scores);
    assert_eq!(scores, [Some(1.0), Some(1.0), Some(0.125), Some(0.0)]);
}

/// llm-d's `token-load-scorer`: of 4,194,304 tokens, those in flight and those that this request would add.
#[test]
fn token_load_counts_this_request_where_it_would_go() {
    let candidates: Vec<_> = (0..)
        .zip([0, 1 << 20, 0, 1 << 23])
        .map(|(id, uncached_tokens)| {
            let in_flight = InFlight { uncached_tokens, ..InFlight::default() };
            Candidate::new(EndpointId(id), Load { in_flight, ..Load::default() })
        })
        .collect();
    let view = View { candidates: &candidates, matched: &[4, 4, 0, 4], total: 4, ..View::default() };
    let mut scores = [None; 4];
    Scorer::TokenLoad.score(&View { block_tokens: 1 << 18, ..view }, &mut scores);
    assert_eq!(scores, [Some(1.0), Some(0.75), Some(0.75), Some(0.0)]);
    let tuning = Tuning { full_tokens: f64::from(1 << 21), ..Tuning::DEFAULT };
    Scorer::TokenLoad.score(&View { block_tokens: 1 << 18, tuning, ..view }, &mut scores);
    assert_eq!(scores, [Some(1.0), Some(0.5), Some(0.5), Some(0.0)]);
}

/// llm-d's `lora-affinity-scorer`.
#[test]
fn lora_goes_by_what_is_loaded() {
    let engines = [
        Some(Adapters::new(["sql"], [], 4)),
        Some(Adapters::new(["chat"], ["code"], 4)),
        Some(Adapters::new(["chat"], ["sql"], 2)),
        Some(Adapters::new(["chat"], ["code"], 2)),
        None,
    ];
    let candidates: Vec<_> = (0..)
        .zip(engines)
        .map(|(id, adapters)| Candidate {
            adapters: adapters.map(Arc::new),
            ..Candidate::new(EndpointId(id), Load::default())
        })
        .collect();
    for (model, wanted) in [
        (Some("sql"), [Some(1.0), Some(0.8), Some(0.6), Some(0.0), None]),
        (Some("chat"), [Some(0.8), Some(1.0), Some(1.0), Some(1.0), None]),
        (Some("base"), [None; 5]),
        (Some("SQL"), [None; 5]),
        (None, [None; 5]),
    ] {
        let mut scores = [None; 5];
        let view = View { candidates: &candidates, matched: &[0; 5], model, ..View::default() };
        Scorer::Lora.score(&view, &mut scores);
        assert_eq!(scores, wanted, "{model:?}");
    }
}

#[test]
fn a_session_counts_where_it_was() {
    let candidates = [3, 5, 8].map(|id| Candidate::new(EndpointId(id), Load::default()));
    for (at, wanted) in
        [(Some(5), [Some(0.0), Some(1.0), Some(0.0)]), (Some(1), [None; 3]), (None, [None; 3])]
    {
        let mut scores = [None; 3];
        let session_at = at.map(EndpointId);
        let view = View { candidates: &candidates, matched: &[0; 3], session_at, ..View::default() };
        Scorer::Session.score(&view, &mut scores);
        assert_eq!(scores, wanted, "{at:?}");
    }
}

/// Behaviour 25, in the score: 4,096 of 8,192 tokens are half of the share and a quarter of the length.
#[test]
fn a_long_match_counts_beyond_its_share() {
    let candidates = [Candidate::new(EndpointId(0), Load::default())];
    for (weight, wanted) in [(0.0, 0.5), (1.0, 0.25), (0.5, 0.375)] {
        let match_length = MatchLength::new(weight, MatchLength::SCALE_TOKENS).unwrap();
        let view =
            View { candidates: &candidates, matched: &[64], total: 128, block_tokens: 64, ..View::default() };
        let mut scores = [None];
        Scorer::Prefix.score(&View { match_length, ..view }, &mut scores);
        assert_eq!(scores, [Some(wanted)], "{weight}");
    }
}

#[test]
fn weights_that_cannot_rank_are_refused() {
    for weight in [f64::NAN, f64::INFINITY, -0.1, 1e6 + 1.0] {
        let refused = Weights::new(&[(Scorer::Prefix, 1.0), (Scorer::Kv, weight)]).unwrap_err();
        let text = format!("weight of kv must be a number from 0 to 1000000, got {weight}");
        assert_eq!(refused.to_string(), text);
    }
    for none in [&[][..], &[(Scorer::Queue, 0.0)]] {
        assert_eq!(Weights::new(none), Err(WeightsError::AllZero));
    }
    let weights = Weights::new(&[(Scorer::Session, 1e6), (Scorer::Kv, 0.0), (Scorer::Prefix, 0.5)]).unwrap();
    assert_eq!(weights.iter().collect::<Vec<_>>(), [(Scorer::Prefix, 0.5), (Scorer::Session, 1e6)]);
    assert_eq!((weights.of(Scorer::Kv), weights.sum()), (0.0, 1e6 + 0.5));
}

/// Measured or not, and any float at all.
fn figure() -> impl proptest::strategy::Strategy<Value = Option<f64>> {
    proptest::option::of(proptest::num::f64::ANY)
}

proptest::proptest! {
    /// Behaviour 78, for any figure.
    #[test]
    fn every_score_is_0_to_1(
        loads in proptest::collection::vec((figure(), figure(), 0u32..9), 1..9),
        total in 0u32..20, seed: u64,
    ) {
        let loads: Vec<_> = loads
            .into_iter()
            .map(|(waiting, kv, unseen)| Load { running: waiting, unseen, ..load(waiting, kv) })
            .collect();
        let matched: Vec<u32> = (0..loads.len()).map(|place| (seed >> place) as u32 % 20).collect();
        let last_cold: Vec<u64> = matched.iter().map(|&matched| u64::from(matched)).collect();
        for scorer in Scorer::ALL {
            for score in scores(scorer, &loads, &matched, total, &last_cold).into_iter().flatten() {
                proptest::prop_assert!((0.0..=1.0).contains(&score), "{} gives {score}", scorer.name());
            }
        }
    }
}
