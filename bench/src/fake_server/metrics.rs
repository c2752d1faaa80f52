//! The `/metrics` page, in vLLM's names, labels and spelling.
//!
//! Source: `/metrics` of vLLM 0.32, `tests/fixtures/vllm/idle.txt`; of its page, what routers read.

use std::fmt::{Display, Write};

use super::seat::Engine;

/// The content type that vLLM sends.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Ways in which vLLM counts a request as ended; here all end at their last token.
const REASONS: [&str; 5] = ["stop", "length", "abort", "error", "repetition"];

/// The page.
pub(crate) fn page(engine: &Engine) -> String {
    let figures = engine.figures();
    let counters = engine.counters();
    let model = engine.options.models.first().map(String::as_str).unwrap_or_default();
    let mut page = Page { text: String::with_capacity(4096), labels: labels(model) };
    page.process_start(engine.started_at);
    page.one(
        "num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        figures.running,
    );
    page.one("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", figures.waiting);
    let usage = "KV-cache usage. 1 means 100 percent usage.";
    page.one("kv_cache_usage_perc", "gauge", usage, figures.kv_usage);
    let queries = "Prefix cache queries, in terms of number of queried tokens.";
    page.one("prefix_cache_queries_total", "counter", queries, figures.cache.query_tokens);
    let hits = "Prefix cache hits, in terms of number of cached tokens.";
    page.one("prefix_cache_hits_total", "counter", hits, figures.cache.hit_tokens);
    let prompt = "Number of prefill tokens processed.";
    page.one("prompt_tokens_total", "counter", prompt, counters.prompt_tokens);
    let generation = "Number of generation tokens processed.";
    page.one("generation_tokens_total", "counter", generation, counters.generation_tokens);
    page.successes(model, counters.answered);
    page.cache_config(engine);
    page.text
}

fn labels(model: &str) -> String {
    format!("engine=\"0\",model_name=\"{}\"", escaped(model))
}

/// A label's value. Prometheus text format 0.0.4: backslash, quote and line feed.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A metric of one series. Values are floats, as Python writes them: `3.0`.
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        let name = format!("vllm:{name}");
        self.head(&name, kind, help);
        let value = value.to_string();
        let point = if value.contains('.') { "" } else { ".0" };
        let _ = writeln!(self.text, "{name}{{{}}} {value}{point}", self.labels);
    }

    fn process_start(&mut self, started_at: f64) {
        let name = "process_start_time_seconds";
        self.head(name, "gauge", "Start time of the process since unix epoch in seconds.");
        let _ = writeln!(self.text, "{name} {started_at:.2}");
    }

    fn successes(&mut self, model: &str, answered: u64) {
        let name = "vllm:request_success_total";
        self.head(name, "counter", "Count of successfully processed requests.");
        let model = escaped(model);
        for reason in REASONS {
            let count = if reason == "length" { answered } else { 0 };
            let labels = format!("engine=\"0\",finished_reason=\"{reason}\",model_name=\"{model}\"");
            let _ = writeln!(self.text, "{name}{{{labels}}} {count}.0");
        }
    }

    fn cache_config(&mut self, engine: &Engine) {
        let replica = engine.options.replica;
        let size = replica.block_size.tokens();
        let blocks = engine.options.told_cache_blocks.unwrap_or(replica.cache_blocks);
        let name = "vllm:cache_config_info";
        self.head(name, "gauge", "Information of the LLMEngine CacheConfig");
        let labels = format!(
            "block_size=\"{size}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",\
             kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"{blocks}\",prefix_caching_hash_algo=\"xxhash\"",
            size.saturating_mul(blocks)
        );
        let _ = writeln!(self.text, "{name}{{{labels}}} 1.0");
    }
}
