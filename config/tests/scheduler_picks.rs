//! The two public EndpointPickerConfigs pick as their formulas say: llm-d's default blend and "sticky until saturated".
//!
//! The formulas stand here once more, as plain as they are documented.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use config::scheduler::{Scheduler, read};
use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Asked, Rules, choose_matched};
use picker::hash::{BlockHash, Blocks};
use picker::ledger::InFlight;
use picker::load::Load;
use picker::score::Candidate;
use serde_json::Value;

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

fn loaded(text: &str) -> Scheduler {
    read("f", text).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

/// A fleet's state as both sides see it.
struct Case {
    matched: Vec<u32>,
    total: u32,
    waiting: Vec<Option<f64>>,
    kv_usage: Vec<Option<f64>>,
    in_flight_tokens: Vec<u64>,
}

impl Case {
    /// The place that a scheduler picks.
    fn pick(&self, scheduler: &Scheduler, turn: u64) -> usize {
        let candidates: Vec<_> = (0..)
            .zip(&self.waiting)
            .map(|(place, &waiting)| {
                let in_flight =
                    InFlight { uncached_tokens: self.in_flight_tokens[place], ..InFlight::default() };
                let load = Load { waiting, kv_usage: self.kv_usage[place], in_flight, ..Load::default() };
                Candidate::new(EndpointId(u32::try_from(place).unwrap()), load)
            })
            .collect();
        let blocks = Blocks::one((1..=u64::from(self.total)).map(BlockHash).collect());
        let rules = Rules {
            policy: scheduler.policy,
            weights: scheduler.weights,
            match_length: scheduler.match_length,
            tuning: scheduler.tuning,
            ..Rules::default()
        };
        let index = Index::for_fleet(candidates.len(), 8).unwrap();
        let asked = Asked::hashed(blocks, b"");
        let decision =
            choose_matched(asked, &self.matched, &candidates, &index, &rules, Draw { seed: 1, turn });
        decision.best().unwrap().candidate
    }

    /// Queue 2, KV cache 2, prefix 3, as llm-d documents them; what was not measured counts 0.
    fn default_blend(&self) -> Vec<f64> {
        let measured = || self.waiting.iter().flatten().copied();
        let (min, max) = (measured().fold(f64::MAX, f64::min), measured().fold(f64::MIN, f64::max));
        let queue = |waiting: f64| if max > min { (max - waiting) / (max - min) } else { 1.0 };
        (0..self.matched.len())
            .map(|place| {
                2.0 * self.waiting[place].map_or(0.0, queue)
                    + 2.0 * self.kv_usage[place].map_or(0.0, |usage| 1.0 - usage)
                    + 3.0 * f64::from(self.matched[place]) / f64::from(self.total)
            })
            .collect()
    }

    /// Who holds 0.80, unless the best of them is 18 s later than the best other one at 15,928 tokens a second; then the
    /// fewest tokens of 4,194,304. Who is filtered out has less than anybody who is not.
    fn sticky_until_saturated(&self) -> Vec<f64> {
        let holds = |place: usize| f64::from(self.matched[place]) / f64::from(self.total) >= 0.80;
        let best = |held: bool| {
            let those = (0..self.matched.len()).filter(|&place| holds(place) == held);
            those.map(|place| self.in_flight_tokens[place] as f64 / 15_928.0 * 1_000.0).reduce(f64::min)
        };
        let sticks = match (best(true), best(false)) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(sticky), Some(other)) => sticky - other <= 18_000.0,
        };
        (0..self.matched.len())
            .map(|place| {
                let uncached = u64::from(self.total - self.matched[place]) * 64;
                let load = (self.in_flight_tokens[place] + uncached) as f64 / 4_194_304.0;
                let kept = !sticks || holds(place);
                if kept { 1.0 - load.min(1.0) } else { -1.0 }
            })
            .collect()
    }

    fn assert_picks(&self, scheduler: &Scheduler, totals: &[f64], shows: &str) {
        let most = totals.iter().copied().fold(f64::MIN, f64::max);
        for turn in 0..4 {
            let picked = self.pick(scheduler, turn);
            assert!(totals[picked] > most - 1e-9, "{shows}: picked {picked} of {totals:?}");
        }
    }
}

/// Of a seed's vectors for the scorers, each queue with each match and each KV cache of as many endpoints.
fn published() -> Vec<Case> {
    let vectors: Value = serde_json::from_str(&file("picker/tests/fixtures/seed/scorers.json")).unwrap();
    let list = |name: &str| vectors[name].as_array().unwrap().clone();
    let column = |case: &Value, name: &str| -> Vec<Option<f64>> {
        let endpoints = case["endpoints"].as_array().unwrap().iter();
        endpoints.map(|one| one[name].as_f64().filter(|_| one["has_metrics"] == true)).collect()
    };
    let mut cases = Vec::new();
    for queue in list("queue") {
        let waiting = column(&queue, "waiting");
        let count = waiting.len();
        for prefix in list("prefix").iter().filter(|prefix| prefix["total"] != 0) {
            let matches = prefix["matches"].as_object().unwrap().values();
            let held: Vec<_> =
                matches.map(|blocks| u32::try_from(blocks.as_u64().unwrap()).unwrap()).collect();
            for kv in list("kv") {
                let usage = column(&kv, "kv_usage");
                let matched: Vec<_> = held.iter().copied().cycle().take(count).collect();
                cases.push(Case {
                    in_flight_tokens: matched.iter().map(|&blocks| u64::from(blocks) * 30_000).collect(),
                    matched,
                    total: u32::try_from(prefix["total"].as_u64().unwrap()).unwrap(),
                    waiting: waiting.clone(),
                    kv_usage: usage.into_iter().cycle().take(count).collect(),
                });
            }
        }
    }
    cases
}

/// Fleets of up to eight by a fixed seed, loaded so that each rule of both presets decides some of them.
fn made() -> impl Iterator<Item = Case> {
    let draw = |case: u64, place: usize, below: u64| Draw { seed: 7, turn: case }.number(place) % below;
    (0..2_000).map(move |case| {
        let count = 2 + usize::try_from(draw(case, 0, 7)).unwrap();
        let total = 1 + u32::try_from(draw(case, 1, 40)).unwrap();
        let row = |base: usize, below: u64| -> Vec<u64> {
            (0..count).map(|place| draw(case, base + place, below)).collect()
        };
        let measured = row(400, 8);
        let known = |figures: Vec<u64>, scale: f64| -> Vec<Option<f64>> {
            let known = |(figure, known): (&u64, &u64)| (*known > 0).then_some(*figure as f64 / scale);
            figures.iter().zip(&measured).map(known).collect()
        };
        Case {
            matched: row(10, u64::from(total) + 1)
                .into_iter()
                .map(|held| u32::try_from(held).unwrap())
                .collect(),
            total,
            waiting: known(row(100, 12), 1.0),
            kv_usage: known(row(200, 101), 100.0),
            in_flight_tokens: row(300, 600_000),
        }
    })
}

#[test]
fn the_default_blend_picks_as_its_formula_says() {
    let scheduler = loaded(&file("deploy/examples/llm-d/default.yaml"));
    for case in published().into_iter().chain(made()) {
        case.assert_picks(&scheduler, &case.default_blend(), "blend");
    }
}

#[test]
fn sticky_until_saturated_picks_as_its_formula_says() {
    let scheduler = loaded(&file("deploy/examples/llm-d/sticky-until-saturated.yaml"));
    let mut by_rule = [0; 2];
    for case in published().into_iter().chain(made()) {
        let totals = case.sticky_until_saturated();
        case.assert_picks(&scheduler, &totals, "sticky");
        by_rule[usize::from(totals.iter().any(|&total| total < 0.0))] += 1;
    }
    assert!(by_rule.iter().all(|&cases| cases > 100), "both rules decide: {by_rule:?}");
}
