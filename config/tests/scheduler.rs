//! EndpointPickerConfigs: what each comes to, every kind of fault, and that the public ones pick as their formulas say.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use config::EngineKind;
use config::scheduler::{Scheduler, read};
use picker::Tuning;
use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Asked, Rules, choose_matched};
use picker::hash::{BlockHash, BlockSize, Blocks};
use picker::ledger::InFlight;
use picker::load::Load;
use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Candidate, Scorer, Weights};
use serde_json::Value;

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// A document with these lines after its head.
fn document(rest: &str) -> String {
    format!("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{rest}")
}

/// A document of one plugin with its parameters.
fn plugin(kind: &str, parameters: &str) -> String {
    document(&format!("plugins: [{{type: {kind}, parameters: {{{parameters}}}}}]\n"))
}

fn weighing(weights: &[(Scorer, f64)]) -> Scheduler {
    Scheduler { weights: Some(Weights::new(weights).unwrap()), ..Scheduler::default() }
}

fn tuned(tuning: Tuning) -> Tuning {
    Tuning { tokens_per_second: Some(15_928.0), ..tuning }
}

fn loaded(text: &str) -> Scheduler {
    read("f", text).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

#[test]
fn the_examples_are_the_two_public_presets() {
    assert_eq!(loaded(&file("deploy/examples/llm-d/default.yaml")), Scheduler::default());
    let sticky = loaded(&file("deploy/examples/llm-d/sticky-until-saturated.yaml"));
    let wanted = Scheduler { policy: Policy::Affinity, ..weighing(&[(Scorer::TokenLoad, 1.0)]) };
    assert_eq!(sticky, wanted);
    assert_eq!(sticky.tuning, tuned(Tuning::DEFAULT));
}

#[test]
fn every_version_and_json_is_read() {
    let text = file("deploy/examples/llm-d/default.yaml");
    for version in ["llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"] {
        assert_eq!(loaded(&text.replace("llm-d.ai/v1alpha1", version)), Scheduler::default(), "{version}");
    }
    let json = r#"{"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": [{"type": "queue-scorer"}]}"#;
    assert_eq!(loaded(json), weighing(&[(Scorer::Queue, 1.0)]));
}

#[test]
fn a_document_comes_to_a_decision() {
    let kv = || weighing(&[(Scorer::Kv, 1.0)]);
    let random = || Scheduler { policy: Policy::Random, weights: None, ..Scheduler::default() };
    let tune = |scorer, tuning| Scheduler { tuning: tuned(tuning), ..weighing(&[(scorer, 1.0)]) };
    let sticky =
        |tuning| Scheduler { policy: Policy::Affinity, tuning, ..weighing(&[(Scorer::TokenLoad, 1.0)]) };
    let filter = |parameters: &str| {
        document(&format!(
            "plugins: [{{type: token-load-scorer}}, {{type: prefix-cache-affinity-filter, parameters: {{{parameters}}}}}]\n"
        ))
    };
    let with_kv = |rest: &str| document(&format!("plugins: [{{type: kv-cache-utilization-scorer}}]\n{rest}"));
    for (shows, text, wanted) in [
        ("no plugin", document(""), random()),
        (
            "no profile: every plugin, each weighing 1",
            document(
                "plugins: [{type: queue-scorer}, {type: lora-affinity-scorer, name: l}, {type: decode-filter}]\n",
            ),
            weighing(&[(Scorer::Queue, 1.0), (Scorer::Lora, 1.0)]),
        ),
        (
            "a profile: only what it names, by the plugin's name",
            document(
                "plugins: [{type: queue-scorer, name: q}, {type: kv-cache-utilization-scorer}]\n\
                 schedulingProfiles: [{name: p, plugins: [{pluginRef: q, weight: 0.5}]}]\n",
            ),
            weighing(&[(Scorer::Queue, 0.5)]),
        ),
        (
            "all weights 0",
            document(
                "plugins: [{type: queue-scorer}]\n\
                 schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: 0}]}]\n",
            ),
            random(),
        ),
        (
            "a picker of chance",
            document("plugins: [{type: queue-scorer}, {type: random-picker}]\n"),
            random(),
        ),
        (
            "match length",
            plugin("prefix-cache-scorer", "matchLengthWeight: 5e-1, matchLengthScaleTokens: 4096"),
            Scheduler {
                match_length: MatchLength::new(0.5, 4_096).unwrap(),
                ..weighing(&[(Scorer::Prefix, 1.0)])
            },
        ),
        (
            "a producer by its name",
            document(
                "plugins: [{name: p, type: approx-prefix-cache-producer}, {type: prefix-cache-scorer, parameters: \
                 {prefixMatchInfoProducerName: p}}]\n",
            ),
            weighing(&[(Scorer::Prefix, 1.0)]),
        ),
        (
            "token load",
            plugin("token-load-scorer", "queueThresholdTokens: 1000"),
            tune(Scorer::TokenLoad, Tuning { full_tokens: 1_000.0, ..Tuning::DEFAULT }),
        ),
        (
            "token load of 0 is the default's",
            plugin("token-load-scorer", "queueThresholdTokens: 0"),
            weighing(&[(Scorer::TokenLoad, 1.0)]),
        ),
        (
            "idle and busy",
            plugin("active-request-scorer", "idleThreshold: 3, maxBusyScore: 0.5, requestTimeout: 2m"),
            tune(Scorer::InFlight, Tuning { idle_requests: 3, busy_score_max: 0.5, ..Tuning::DEFAULT }),
        ),
        ("no-hit-lru", plugin("no-hit-lru-scorer", "lruSize: 2048"), weighing(&[(Scorer::NoHitLru, 1.0)])),
        (
            "sessions",
            plugin(
                "session-affinity-scorer",
                "strategy: session_id, sessionIdConfig: {sources: [{header: X-Session-ID}]}",
            ),
            weighing(&[(Scorer::Session, 1.0)]),
        ),
        (
            "an affinity of one's own",
            filter(
                "affinityThreshold: 0.5, maxTTFTPenaltyMs: 250, peakPrefillThroughput: 8000, ttftSource: prefillThroughput",
            ),
            sticky(Tuning {
                holds_share: 0.5,
                penalty_seconds_max: 0.25,
                tokens_per_second: Some(8_000.0),
                ..Tuning::DEFAULT
            }),
        ),
        (
            "no penalty is too much",
            filter("maxTTFTPenaltyMs: 0, peakPrefillThroughput: 0"),
            sticky(tuned(Tuning { penalty_seconds_max: f64::INFINITY, ..Tuning::DEFAULT })),
        ),
        (
            "an index of one's own",
            plugin(
                "approx-prefix-cache-producer",
                "autoTune: false, blockSizeTokens: 128, lruCapacityPerServer: 9",
            ),
            Scheduler { block: Some(BlockSize::new(128).unwrap()), capacity_blocks: Some(9), ..random() },
        ),
        (
            "a block is 64 tokens at least",
            plugin("approx-prefix-cache-producer", "autoTune: false"),
            random(),
        ),
        (
            "and 64 where it is tuned",
            plugin(
                "approx-prefix-cache-producer",
                "blockSizeTokens: 128, blockSize: 0, maxPrefixBlocksToMatch: 256",
            ),
            random(),
        ),
        (
            "an engine",
            plugin("core-metrics-extractor", "defaultEngine: sglang"),
            Scheduler { engine: Some(EngineKind::Sglang), ..random() },
        ),
        (
            "all that the router does anyway",
            with_kv(
                "featureGates: [flowControl, flowControl=False, haPopulateNonLeaderDatastore]\n\
                 dataLayer: {injectDefaults: true}\n\
                 flowControl: {saturationDetector: {pluginRef: utilization-detector}, enableEviction: false}\n\
                 requestHandler: {parsers: [{pluginRef: openai-parser}]}\n\
                 saturationDetector: {pluginRef: utilization-detector}\nparser: {pluginRef: passthrough-parser}\n",
            ),
            kv(),
        ),
        (
            "sources by name",
            document(
                "plugins: [{type: kv-cache-utilization-scorer}, {type: metrics-data-source, name: m}, \
                 {type: core-metrics-extractor}, {type: token-producer, parameters: {estimate: {}}}]\n\
                 dataLayer: {injectDefaults: false, sources: [{pluginRef: m, extractors: [{pluginRef: core-metrics-extractor}]}]}\n",
            ),
            kv(),
        ),
    ] {
        assert_eq!(loaded(&text), wanted, "{shows}");
    }
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
