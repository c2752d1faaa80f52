//! Parameters of the plugins that the router has something for.

use picker::Tuning;
use picker::hash::BlockSize;
use picker::score::Scorer;
use picker::score::prefix::MatchLength;

use super::TOKENS_PER_SECOND;
use super::fields::{Field, Fields};
use super::plugin::{Constants, Effect, Names};
use crate::EngineKind;
use crate::defaults::{BLOCK_TOKENS_MAX, CAPACITY_BLOCKS_MAX};
use crate::faults::{Reason, one_of};

const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";
const LOAD_PRODUCER: &str = "inflight-load-producer";
/// The header that names a session, here and in llm-d.
const SESSION_HEADER: &str = "x-session-id";
/// Seconds that a session is remembered, here and in llm-d.
const SESSION_SECONDS: f64 = 300.0;
/// The label of a pod's engine, which the router does not see.
const ENGINE_LABEL: &str = "llm-d.ai/engine-type";

/// Reads the parameters of a plugin whose type the router has something for, and says what it comes to.
pub(super) fn read(fields: &mut Fields<'_, '_, '_>, kind: &str, names: &Names<'_>) -> Effect {
    let score = |scorer| Effect::Score(scorer, Constants::None);
    match kind {
        "queue-scorer" => score(Scorer::Queue),
        "kv-cache-utilization-scorer" => score(Scorer::Kv),
        "running-requests-size-scorer" => score(Scorer::Running),
        "lora-affinity-scorer" => score(Scorer::Lora),
        "prefix-cache-scorer" => prefix(fields, names),
        "no-hit-lru-scorer" => no_hit_lru(fields, names),
        "active-request-scorer" => active_request(fields, names),
        "token-load-scorer" => token_load(fields, names),
        "session-affinity-scorer" => session(fields),
        "prefix-cache-affinity-filter" => affinity(fields, names),
        "random-picker" => {
            picked(fields);
            Effect::Chance
        }
        "max-score-picker" => picked(fields),
        PREFIX_PRODUCER => index(fields),
        LOAD_PRODUCER => load(fields, names),
        "token-producer" | "tokenizer" => tokens(fields),
        "metrics-data-source" => source(fields, "/metrics"),
        "models-data-source" => source(fields, "/v1/models"),
        "core-metrics-extractor" => engine(fields),
        "utilization-detector" => detector(fields),
        _ => Effect::Nothing,
    }
}

/// A plugin that produces what another one reads: configured, or made because it is needed.
fn producer(fields: &mut Fields<'_, '_, '_>, key: &'static str, kind: &str, names: &Names<'_>) {
    let Some((name, field)) = fields.text(key) else { return };
    if name != kind && names.get(name) != Some(&kind) && !name.is_empty() {
        let wanted = format!("the name of one whose type is {kind}");
        fields.reading.fault(&field, Reason::text(name, wanted));
    }
}

fn prefix(fields: &mut Fields<'_, '_, '_>, names: &Names<'_>) -> Effect {
    producer(fields, "prefixMatchInfoProducerName", PREFIX_PRODUCER, names);
    let weight = fields.number("matchLengthWeight", 0.0..=1.0).unwrap_or(0.0);
    let scale = fields.integer("matchLengthScaleTokens", 1..=u32::MAX.into());
    let scale = scale.and_then(|scale| u32::try_from(scale).ok()).unwrap_or(MatchLength::SCALE_TOKENS);
    let match_length = MatchLength::new(weight, scale).unwrap_or_default();
    Effect::Score(Scorer::Prefix, Constants::MatchLength(match_length))
}

/// How many endpoints are remembered is no question here: all are.
fn no_hit_lru(fields: &mut Fields<'_, '_, '_>, names: &Names<'_>) -> Effect {
    producer(fields, "prefixMatchInfoProducerName", PREFIX_PRODUCER, names);
    fields.text("prefixPluginType");
    fields.text("prefixPluginName");
    fields.integer("lruSize", 1..=i64::MAX);
    Effect::Score(Scorer::NoHitLru, Constants::None)
}

fn active_request(fields: &mut Fields<'_, '_, '_>, names: &Names<'_>) -> Effect {
    producer(fields, "inFlightLoadProducerName", LOAD_PRODUCER, names);
    fields.text("requestTimeout");
    let idle = fields.integer("idleThreshold", 0..=u32::MAX.into()).and_then(|idle| u32::try_from(idle).ok());
    let busy = fields.number("maxBusyScore", 0.0..=1.0);
    let constants = Constants::InFlight {
        idle_requests: idle.unwrap_or(Tuning::DEFAULT.idle_requests),
        busy_score_max: busy.unwrap_or(Tuning::DEFAULT.busy_score_max),
    };
    Effect::Score(Scorer::InFlight, constants)
}

/// As in llm-d, 0 and less stand for the default.
fn token_load(fields: &mut Fields<'_, '_, '_>, names: &Names<'_>) -> Effect {
    producer(fields, "inFlightLoadProducerName", LOAD_PRODUCER, names);
    let tokens = fields.integer("queueThresholdTokens", i64::MIN..=i64::MAX);
    let tokens = tokens.filter(|&tokens| tokens > 0).map(|tokens| tokens as f64);
    let full = Constants::FullTokens(tokens.unwrap_or(Tuning::DEFAULT.full_tokens));
    Effect::Score(Scorer::TokenLoad, full)
}

/// Only sessions that the client names, which is not llm-d's default.
fn session(fields: &mut Fields<'_, '_, '_>) -> Effect {
    const WANTED: &str = "session_id, with which clients send x-session-id";
    match fields.text("strategy") {
        Some(("session_id", _)) => {}
        Some((_, field)) => fields.reading.unwanted(&field, WANTED),
        None => fields.lacks("strategy", WANTED),
    }
    fields.refuse("encodedEndpointHeaderConfig", "none: clients name their sessions");
    if let Some((name, field)) = fields.text("profileName")
        && !name.is_empty()
    {
        fields.reading.unwanted(&field, "none: there is one profile");
    }
    if let Some(field) = fields.get("sessionIdConfig") {
        let mut config = Fields::of(fields.reading, &field);
        let sources = config.list("sources");
        let ttl = config.number("evictionTtlSeconds", SESSION_SECONDS..=SESSION_SECONDS);
        // How often it is looked for sessions that are over changes nothing: none is taken for alive.
        let _ = (ttl, config.number("evictionSweepSeconds", 0.0..=f64::INFINITY));
        config.finish();
        for (index, source) in sources.iter().enumerate() {
            session_source(fields, source, index);
        }
    }
    Effect::Score(Scorer::Session, Constants::None)
}

fn session_source(fields: &mut Fields<'_, '_, '_>, source: &Field<'_>, index: usize) {
    let mut source_fields = Fields::of(fields.reading, source);
    let header = source_fields.text("header");
    source_fields.refuse("attribute", "a header: x-session-id");
    source_fields.refuse("producer", "a header: x-session-id");
    source_fields.finish();
    match header {
        Some((name, field)) if !name.eq_ignore_ascii_case(SESSION_HEADER) => {
            fields.reading.unwanted(&field, SESSION_HEADER);
        }
        _ if index > 0 => fields.reading.unwanted(source, "one source"),
        _ => {}
    }
}

fn affinity(fields: &mut Fields<'_, '_, '_>, names: &Names<'_>) -> Effect {
    producer(fields, "prefixMatchInfoProducerName", PREFIX_PRODUCER, names);
    producer(fields, "inFlightLoadProducerName", LOAD_PRODUCER, names);
    fields.refuse("latencyPredictionInfoProducerName", "none: prefillThroughput alone is known");
    let share = fields.number("affinityThreshold", 0.0..=1.0).unwrap_or(Tuning::DEFAULT.holds_share);
    fields.number("explorationProbability", 0.0..=0.0);
    if let Some((source, field)) = fields.text("ttftSource")
        && source != "prefillThroughput"
    {
        fields.reading.unwanted(&field, "prefillThroughput");
    }
    let default = Tuning::DEFAULT.penalty_seconds_max * 1_000.0;
    let penalty_ms = fields.number("maxTTFTPenaltyMs", 0.0..=f64::INFINITY).unwrap_or(default);
    let throughput = fields.number("peakPrefillThroughput", 0.0..=f64::INFINITY).unwrap_or(TOKENS_PER_SECOND);
    if throughput == 0.0
        && penalty_ms > 0.0
        && let Some(field) = fields.get("peakPrefillThroughput")
    {
        fields.reading.unwanted(&field, "a number above 0, or maxTTFTPenaltyMs 0");
    }
    // A penalty of 0 means that none is too large; then nobody asks for the throughput.
    let penalty_seconds_max = if penalty_ms > 0.0 { penalty_ms / 1_000.0 } else { f64::INFINITY };
    let tokens_per_second = if throughput > 0.0 { throughput } else { TOKENS_PER_SECOND };
    Effect::Stick { share, penalty_seconds_max, tokens_per_second }
}

/// Further endpoints are what a gateway would try next. The router tries them too, `retry.attempts_max` in all.
fn picked(fields: &mut Fields<'_, '_, '_>) -> Effect {
    fields.integer("maxNumOfEndpoints", 1..=i64::MAX);
    Effect::Nothing
}

/// With `autoTune` the block is 64 tokens, as every engine's block is rounded up to that in llm-d. Prompts are matched
/// whole, so their caps change nothing up to their length.
fn index(fields: &mut Fields<'_, '_, '_>) -> Effect {
    let tuned = fields.boolean("autoTune").is_none_or(|(tuned, _)| tuned);
    let tokens = fields.integer("blockSizeTokens", 1..=BLOCK_TOKENS_MAX.into());
    fields.integer("maxPrefixTokensToMatch", 0..=i64::MAX);
    fields.integer("maxPrefixBlocksToMatch", 0..=i64::MAX);
    if let Some(field) = fields.get("blockSize")
        && field.node.text() != Some("0")
    {
        fields.reading.unwanted(&field, "blockSizeTokens, which is in tokens and not in characters");
    }
    let max = i64::try_from(CAPACITY_BLOCKS_MAX).unwrap_or(i64::MAX);
    let capacity = fields.integer("lruCapacityPerServer", 1..=max);
    let floor = i64::try_from(BlockSize::ROUTER.tokens()).unwrap_or(i64::MAX);
    let block = tokens.filter(|_| !tuned).and_then(|tokens| BlockSize::new(tokens.max(floor)).ok());
    Effect::Index { block, capacity_blocks: capacity.and_then(|blocks| usize::try_from(blocks).ok()) }
}

fn load(fields: &mut Fields<'_, '_, '_>, names: &Names<'_>) -> Effect {
    producer(fields, "prefixMatchInfoProducerName", PREFIX_PRODUCER, names);
    if let Some((true, field)) = fields.boolean("addEstimatedOutputTokens") {
        fields.reading.unwanted(&field, "false: tokens of a prompt alone are counted");
    }
    fields.number("outputRatio", 0.0..=f64::INFINITY);
    fields.integer("maxEstimatedOutputTokens", 0..=i64::MAX);
    fields.boolean("syncCrossReplicaState");
    Effect::Nothing
}

fn tokens(fields: &mut Fields<'_, '_, '_>) -> Effect {
    fields.text("modelName");
    for backend in ["vllm", "udsTokenizerConfig"] {
        fields.refuse(backend, "estimate, the only backend here");
    }
    if let Some(field) = fields.get("estimate") {
        let mut estimate = Fields::of(fields.reading, &field);
        for media in ["image", "video"] {
            estimate.refuse(media, "none: media are counted one way");
        }
        estimate.finish();
    }
    Effect::Nothing
}

/// A page of the engine: how it is reached is said elsewhere here.
fn source(fields: &mut Fields<'_, '_, '_>, path: &str) -> Effect {
    for (key, wanted) in [("scheme", "http"), ("path", path)] {
        if let Some((found, field)) = fields.text(key)
            && found != wanted
            && !found.is_empty()
        {
            fields.reading.unwanted(&field, wanted);
        }
    }
    fields.boolean("insecureSkipVerify");
    fields.refuse("port", "none: it is the endpoint's");
    fields.refuse("interval", "none: it is the pool's load.scrape_interval or models_interval");
    for key in ["caCertPath", "clientCertPath", "clientKeyPath"] {
        fields.refuse(key, "none: it is the pool's tls");
    }
    Effect::Nothing
}

fn engine(fields: &mut Fields<'_, '_, '_>) -> Effect {
    if let Some((label, field)) = fields.text("engineLabelKey")
        && label != ENGINE_LABEL
    {
        fields.reading.unwanted(&field, format_args!("{ENGINE_LABEL}: a pool has one engine"));
    }
    fields.refuse("engineConfigs", "none: other names of series are the pool's metrics");
    let Some((name, field)) = fields.text("defaultEngine") else { return Effect::Nothing };
    match EngineKind::from_name(name) {
        Some(kind) => Effect::Engine(kind),
        None => {
            fields.reading.unwanted(&field, one_of(&EngineKind::NAMES));
            Effect::Nothing
        }
    }
}

/// It only refuses requests of negative priority, and there are none here. So its values would be no more than a show.
fn detector(fields: &mut Fields<'_, '_, '_>) -> Effect {
    fields.integer("queueDepthThreshold", 5..=5);
    fields.number("kvCacheUtilThreshold", 0.8..=0.8);
    fields.number("headroom", 0.0..=0.0);
    if let Some((found, field)) = fields.text("metricsStalenessThreshold")
        && found != "200ms"
    {
        fields.reading.unwanted(&field, "200ms");
    }
    Effect::Nothing
}
