//! EndpointPickerConfigs: what each comes to.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use config::scheduler::{Scheduler, read};
use config::{EngineKind, Flags, Loaded, Outside, load};
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

/// A folder with one file.
struct Folder(String);

impl Outside for Folder {
    fn variable(&self, _: &str) -> Result<String, String> {
        Err("not set".to_owned())
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        match path == Path::new("etc/epp.yaml") {
            true => Ok(self.0.clone().into_bytes()),
            false => Err("not found".to_owned()),
        }
    }
}

fn config(text: &str, flags: &Flags, document: &str) -> Result<Loaded, String> {
    load(Some(("etc/f.yaml", text)), flags, &Folder(document.to_owned())).map_err(|faults| faults.to_string())
}

/// A document that decides everything that one can.
fn whole() -> String {
    document(
        "plugins: [{type: token-load-scorer}, {type: core-metrics-extractor, parameters: {defaultEngine: triton}}, \
         {type: approx-prefix-cache-producer, parameters: {autoTune: false, blockSizeTokens: 80, lruCapacityPerServer: 9}}]\n",
    )
}

#[test]
fn a_pool_decides_as_its_document_says() {
    let flags = Flags { endpoints: vec!["a=http://10.0.0.1".to_owned()], ..Flags::default() };
    let named = "pools: [{scheduler: epp.yaml, seed: 3}]\n";
    for (shows, text, document, seed, origin) in [
        ("a pool's key", named, whole(), 3, "etc/epp.yaml"),
        ("the whole file", whole().as_str(), String::new(), 0, "etc/f.yaml"),
    ] {
        let loaded = config(text, &flags, &document).unwrap();
        let pool = &loaded.config.pools[0];
        assert_eq!(
            (pool.policy, pool.weights),
            (Policy::Prefix, weighing(&[(Scorer::TokenLoad, 1.0)]).weights)
        );
        assert_eq!(pool.tuning, tuned(Tuning::DEFAULT), "{shows}");
        assert_eq!((pool.index.block.tokens(), pool.index.capacity_blocks), (80, 9), "{shows}");
        assert_eq!(
            (pool.engine.kind, pool.seed, pool.endpoints.len()),
            (EngineKind::Triton, seed, 1),
            "{shows}"
        );
        for (key, value) in [("policy", "prefix"), ("weights.token-load", "1"), ("index.block_tokens", "80")]
        {
            let path = format!("pools[0].{key}");
            let setting = loaded.settings.iter().find(|setting| setting.path == path).unwrap();
            assert_eq!((setting.value.as_str(), setting.origin.as_str()), (value, origin), "{shows}: {key}");
        }
    }
}

#[test]
fn what_a_pool_or_a_flag_says_goes_before_its_document() {
    let policy = Flags { policy: Some("sticky".to_owned()), ..Flags::default() };
    let text = "pools: [{scheduler: epp.yaml, index: {block_tokens: 64}, engine: vllm}]\n";
    let loaded = config(text, &policy, &whole()).unwrap();
    let pool = &loaded.config.pools[0];
    assert_eq!((pool.policy, pool.weights), (Policy::Sticky, None));
    assert_eq!((pool.index.block.tokens(), pool.index.capacity_blocks), (64, 9));
    assert_eq!(pool.engine.kind, EngineKind::Vllm);
}

#[test]
fn faults_of_a_document_have_its_own_name() {
    let no_yaml = "etc/epp.yaml:1:4: found no YAML (unclosed quote), wanted YAML";
    let beside = "etc/f.yaml:1:21: pools[0].scheduler: found it beside policy, wanted one of the two";
    for (text, document, faults) in [
        ("pools: [{scheduler: epp.yaml}]\n", "a: 'x\n".to_owned(), vec![no_yaml]),
        (
            "pools: [{scheduler: epp.yaml, policy: prefix}]\n",
            document("plugins: [{type: a}, {type: b}]\n"),
            vec![
                beside,
                "etc/epp.yaml:3:18: plugins[0].type: found \"a\", wanted the type of a plugin that this router has",
                "etc/epp.yaml:3:29: plugins[1].type: found \"b\", wanted the type of a plugin that this router has",
            ],
        ),
        (
            &document("plugins: [{type: a}]\n"),
            String::new(),
            vec![
                "etc/f.yaml:3:18: plugins[0].type: found \"a\", wanted the type of a plugin that this router has",
            ],
        ),
    ] {
        let told = config(text, &Flags::default(), &document).unwrap_err();
        assert_eq!(told, faults.join("\n"), "{text}");
    }
}
