//! EndpointPickerConfigs: what each comes to.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use config::EngineKind;
use config::scheduler::{Scheduler, read};
use picker::Tuning;
use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Scorer, Weights};

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
