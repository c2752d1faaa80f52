//! What each kind of engine calls the figures that routing needs, and where its page of them is.
//!
//! The names of waiting, running, KV use and cache are those that llm-d reads; where an engine has changed them since,
//! both are read. Source: llm-d router 0.10 `extractor/metrics/factories.go`; for the rest each table names its own.

use config::EngineKind;

use super::text::Series;

/// A figure, or what tells a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Waiting,
    Running,
    KvUsage,
    OldKvUsage,
    /// The cache's shape, in labels.
    CacheConfig,
    /// The same, each part a figure of its own.
    BlockSize,
    Blocks,
    CacheTokens,
    Counted,
    Hits,
    SleepState,
    Lora,
    ProcessStart,
}

/// A name behind the kind's own beginning, and the label that makes a series of it the figure, if one does. Series of one
/// name stand together.
pub(super) struct Name {
    pub(super) name: &'static [u8],
    pub(super) only: Option<(&'static [u8], &'static [u8])>,
    pub(super) family: Family,
}

/// What a kind of engine calls its figures.
struct Own {
    /// What all its names begin with: most lines are dropped by it.
    beginning: &'static str,
    names: &'static [Name],
    /// Where the page may be; the likeliest first.
    paths: &'static [&'static str],
}

const METRICS: &[&str] = &["/metrics"];

const fn name(name: &'static str, family: Family) -> Name {
    Name { name: name.as_bytes(), only: None, family }
}

const fn labelled(name: &'static str, (label, value): (&'static str, &'static str), family: Family) -> Name {
    Name { name: name.as_bytes(), only: Some((label.as_bytes(), value.as_bytes())), family }
}

/// vLLM 0.32 `v1/metrics/loggers.py`; the pages in `tests/fixtures/metrics`.
const VLLM: Own = Own {
    beginning: "vllm:",
    names: &[
        name("num_requests_waiting", Family::Waiting),
        name("num_requests_running", Family::Running),
        name("kv_cache_usage_perc", Family::KvUsage),
        name("gpu_cache_usage_perc", Family::OldKvUsage),
        name("cache_config_info", Family::CacheConfig),
        name("prefix_cache_queries_total", Family::Counted),
        name("prefix_cache_hits_total", Family::Hits),
        name("engine_sleep_state", Family::SleepState),
        name("lora_requests_info", Family::Lora),
    ],
    paths: METRICS,
};

/// SGLang `srt/observability/metrics_collector.py`. Since 0.5.11 the cache's shape is two gauges in place of labels.
const SGLANG: Own = Own {
    beginning: "sglang:",
    names: &[
        name("num_queue_reqs", Family::Waiting),
        name("num_running_reqs", Family::Running),
        name("token_usage", Family::KvUsage),
        name("cache_config_info", Family::CacheConfig),
        name("page_size", Family::BlockSize),
        name("num_pages", Family::Blocks),
        name("max_total_num_tokens", Family::CacheTokens),
        name("prompt_tokens_total", Family::Counted),
    ],
    paths: METRICS,
};

/// TensorRT-LLM `tensorrt_llm/metrics/collector.py`. Its `/metrics` is JSON, of iterations; the page is mounted beside it
/// (`serve/openai_server.py`). Behind Dynamo it is at the usual place.
const TRTLLM_SERVE: Own = Own {
    beginning: "trtllm_",
    names: &[
        name("num_requests_waiting", Family::Waiting),
        name("num_requests_running", Family::Running),
        name("kv_cache_utilization", Family::KvUsage),
        name("kv_cache_tokens_per_block", Family::BlockSize),
        name("kv_cache_max_blocks", Family::Blocks),
        name("prompt_tokens_total", Family::Counted),
    ],
    paths: &["/prometheus/metrics", "/metrics"],
};

const REQUESTS: &str = "trt_llm_request_metrics";
const BLOCKS: &str = "trt_llm_kv_cache_block_metrics";

/// Triton's TensorRT-LLM backend, `docs/model_config.md` and `custom_metrics_reporter.cc`.
const TRITON_TENSORRT_LLM: Own = Own {
    beginning: "nv_",
    names: &[
        labelled(REQUESTS, ("request_type", "waiting"), Family::Waiting),
        labelled(REQUESTS, ("request_type", "scheduled"), Family::Running),
        labelled(BLOCKS, ("kv_cache_block_type", "fraction"), Family::KvUsage),
        labelled(BLOCKS, ("kv_cache_block_type", "tokens_per"), Family::BlockSize),
        labelled(BLOCKS, ("kv_cache_block_type", "max"), Family::Blocks),
        name("inference_request_success", Family::Counted),
    ],
    paths: METRICS,
};

/// Triton `docs/user_guide/metrics.md`. llm-d reads `nv_inference_exec_count` as the requests that run. That is a counter of
/// all executions since the start: it grows for ever and says nothing of load, so here they are unknown.
const TRITON: Own = Own {
    beginning: "nv_inference_",
    names: &[name("pending_request_count", Family::Waiting), name("request_success", Family::Counted)],
    paths: METRICS,
};

/// llama.cpp `tools/server/README.md`, `GET /metrics`. It has had no gauge of the KV cache since 2025.
const LLAMA_CPP: Own = Own {
    beginning: "llamacpp:",
    names: &[
        name("requests_deferred", Family::Waiting),
        name("requests_processing", Family::Running),
        name("prompt_tokens_total", Family::Counted),
    ],
    paths: METRICS,
};

/// What an endpoint's engine calls its figures. Made once for an endpoint.
pub(crate) struct Names {
    kind: EngineKind,
    own: Own,
    /// With which bytes the names behind their common beginning begin, a bit for each: drops most of the engine's own lines
    /// without a look at the names.
    firsts: u128,
    /// In place of the kind's own, for waiting, running and KV use.
    custom: Vec<(Family, Series)>,
}

impl Names {
    /// The names of an engine as the configuration has it.
    pub(crate) fn new(engine: &config::Engine) -> Self {
        let own = match engine.kind {
            EngineKind::Vllm => VLLM,
            EngineKind::Sglang => SGLANG,
            EngineKind::TrtllmServe => TRTLLM_SERVE,
            EngineKind::TritonTensorrtLlm => TRITON_TENSORRT_LLM,
            EngineKind::Triton => TRITON,
            EngineKind::LlamaCpp => LLAMA_CPP,
        };
        let custom = [
            (Family::Waiting, &engine.waiting),
            (Family::Running, &engine.running),
            (Family::KvUsage, &engine.kv_usage),
        ];
        let series =
            |(family, text): (Family, &Option<String>)| Some((family, Series::new(text.as_deref()?)));
        let firsts = own.names.iter().filter_map(|name| bit(name.name)).fold(0, |firsts, bit| firsts | bit);
        Self { kind: engine.kind, own, firsts, custom: custom.into_iter().filter_map(series).collect() }
    }

    /// Paths at which the page may be; never empty.
    pub(crate) fn paths(&self) -> &'static [&'static str] {
        self.own.paths
    }

    /// The engine's kind and the series that tell its load, for an error: `vllm: vllm:num_requests_waiting, ...`.
    #[cold]
    pub(crate) fn wanted(&self) -> String {
        let own = self.own.names.iter().filter(|name| is_load(name.family) && !self.is_replaced(name.family));
        let own = own.map(|name| format!("{}{}", self.own.beginning, String::from_utf8_lossy(name.name)));
        let custom =
            self.custom.iter().map(|(_, series)| String::from_utf8_lossy(series.name()).into_owned());
        let mut all: Vec<_> = own.chain(custom).collect();
        all.dedup();
        format!("{}: {}", self.kind.name(), all.join(", "))
    }

    /// The kind's own names, of which `line` begins with the first, and what follows it.
    pub(super) fn own<'a>(&self, line: &'a [u8]) -> Option<(&'static [Name], &'a [u8])> {
        let text = line.strip_prefix(self.own.beginning.as_bytes())?;
        if bit(text)? & self.firsts == 0 {
            return None;
        }
        let names = self.own.names;
        names.iter().enumerate().find_map(|(place, name)| {
            let rest = super::text::after_name(text, name.name)?;
            let more = names.get(place..)?;
            let same = more.iter().take_while(|other| other.name == name.name).count();
            Some((more.get(..same)?, rest))
        })
    }

    /// Series that the operator named.
    pub(super) fn custom(&self) -> &[(Family, Series)] {
        &self.custom
    }

    /// Whether the operator named another series for it.
    pub(super) fn is_replaced(&self, family: Family) -> bool {
        let figure = if family == Family::OldKvUsage { Family::KvUsage } else { family };
        self.custom.iter().any(|(other, _)| *other == figure)
    }
}

/// The bit of a text's first byte; names are ASCII.
fn bit(text: &[u8]) -> Option<u128> {
    1_u128.checked_shl((*text.first()?).into())
}

fn is_load(family: Family) -> bool {
    matches!(family, Family::Waiting | Family::Running | Family::KvUsage)
}
