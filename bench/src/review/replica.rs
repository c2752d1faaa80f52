//! One replica as its page shows it: what it has counted, what it holds now, and how much its cache holds.

use super::counts::Counts;
use crate::prometheus::{Page, Sample};

/// vLLM's settings of the cache, as a series of value 1 with the settings for labels.
const CACHE_CONFIG: &str = "vllm:cache_config_info";
/// One series for each reason, `capacity` and `deferred`; its help in `tests/fixtures/vllm/loaded.txt` says what they are.
const WAITING_BY_REASON: &str = "vllm:num_requests_waiting_by_reason";

/// What a page says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Engines that the page tells of: one for each rank of data parallelism, each with a cache of its own.
    pub engines: usize,
    /// When the process began, in seconds since the epoch.
    pub started_at: Option<f64>,
    /// Counted since then.
    pub counts: Counts,
    /// At the moment of the page.
    pub load: Load,
    /// Of all its engines together.
    pub capacity: Option<Capacity>,
    /// Whether vLLM says that it caches prefixes.
    pub caches_prefixes: Option<bool>,
}

/// Gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that run.
    pub running: Option<f64>,
    /// Requests that wait.
    pub waiting: Option<f64>,
    /// Of them, those that wait for a seat or for memory; `None` where the page does not tell reasons.
    pub waiting_for_capacity: Option<f64>,
    /// Of them, those that wait for something of their own: a LoRA slot, a KV transfer, a grammar.
    pub waiting_deferred: Option<f64>,
    /// Share of the KV cache's blocks that running requests hold, 0 to 1; the mean of its engines.
    pub kv_usage: Option<f64>,
    /// It sleeps: it answers nothing.
    pub asleep: bool,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Blocks, of all engines.
    pub blocks: f64,
    /// Tokens in a block.
    pub block_size: f64,
    /// Tokens: vLLM's own figure where it tells one, else blocks times their size.
    pub tokens: f64,
    /// That it is vLLM's own, and not the product.
    pub told: bool,
}

/// Why a text is no page of an engine's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Nothing in it is a sample.
    #[error("found no sample of Prometheus' text, {0}; wanted an engine's /metrics")]
    NotPrometheus(String),
    /// Samples, of something else.
    #[error("found {0} samples and none of vllm:*, wanted vLLM's /metrics; nothing can be said of this one")]
    NotVllm(usize),
}

impl Snapshot {
    /// Reads a page. Errors: it is none of vLLM's. The text says what of the page could not be read, if anything.
    pub(super) fn read(text: &str) -> Result<(Self, Option<String>), PageError> {
        let page = Page::parse(text);
        if page.samples.is_empty() {
            let found = page.first_bad.unwrap_or_else(|| "the text is empty".to_owned());
            return Err(PageError::NotPrometheus(found));
        }
        if !page.samples.iter().any(|sample| sample.name.starts_with("vllm:")) {
            return Err(PageError::NotVllm(page.samples.len()));
        }
        let configs: Vec<_> = page.of(CACHE_CONFIG).collect();
        let snapshot = Self {
            engines: engines(&page),
            started_at: page.sum("process_start_time_seconds"),
            counts: Counts::read(&page),
            load: load(&page),
            capacity: capacity(&configs),
            caches_prefixes: configs.iter().find_map(|config| caches_prefixes(config)),
        };
        let bad = page.first_bad.map(|first| format!("{} lines are no samples, {first}", page.bad_lines));
        Ok((snapshot, bad))
    }
}

/// At least one.
fn engines(page: &Page<'_>) -> usize {
    let mut engines: Vec<_> =
        page.of("vllm:num_requests_running").map(|sample| sample.label("engine")).collect();
    engines.sort_unstable();
    engines.dedup();
    engines.len().max(1)
}

fn load(page: &Page<'_>) -> Load {
    let usages = page.of("vllm:kv_cache_usage_perc").filter(|sample| sample.value.is_finite());
    let sleeps =
        |sample: &Sample<'_>| sample.label("sleep_state").as_deref() == Some("awake") && sample.value == 0.0;
    let count = usages.count() as f64;
    Load {
        running: page.sum("vllm:num_requests_running"),
        waiting: page.sum("vllm:num_requests_waiting"),
        waiting_for_capacity: waiting_for(page, "capacity"),
        waiting_deferred: waiting_for(page, "deferred"),
        kv_usage: page.sum("vllm:kv_cache_usage_perc").map(|sum| sum / count),
        asleep: page.of("vllm:engine_sleep_state").any(sleeps),
    }
}

fn waiting_for(page: &Page<'_>, reason: &str) -> Option<f64> {
    page.sum(WAITING_BY_REASON)?;
    let of_reason =
        page.of(WAITING_BY_REASON).filter(|sample| sample.label("reason").as_deref() == Some(reason));
    Some(of_reason.map(|sample| sample.value).filter(|value| value.is_finite()).sum())
}

/// All engines together; `None` where one does not tell. The block size is the first one's.
fn capacity(configs: &[&Sample<'_>]) -> Option<Capacity> {
    let number = |config: &Sample<'_>, label: &str| {
        config.label(label)?.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 1.0)
    };
    let mut sum: Option<Capacity> = None;
    for config in configs {
        let (blocks, block_size) = (number(config, "num_gpu_blocks")?, number(config, "block_size")?);
        let told = number(config, "kv_cache_size_tokens");
        let one = Capacity {
            blocks,
            block_size,
            tokens: told.unwrap_or(blocks * block_size),
            told: told.is_some_and(|told| told != blocks * block_size),
        };
        sum = Some(sum.map_or(one, |sum| Capacity {
            blocks: sum.blocks + one.blocks,
            tokens: sum.tokens + one.tokens,
            told: sum.told || one.told,
            ..sum
        }));
    }
    sum
}

fn caches_prefixes(config: &Sample<'_>) -> Option<bool> {
    match config.label("enable_prefix_caching")?.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::counts::{Counter, Times};
    use super::*;

    const LOADED: &str = include_str!("../../tests/fixtures/vllm/loaded.txt");

    /// The figures of the page as grep shows them.
    #[test]
    fn a_real_page_is_read_whole() {
        let (snapshot, bad) = Snapshot::read(LOADED).unwrap();
        assert_eq!(bad, None);
        assert_eq!((snapshot.engines, snapshot.started_at), (1, Some(1_795_955_016.37)));
        assert_eq!((snapshot.load.running, snapshot.load.waiting), (Some(4.0), Some(8.0)));
        let reasons = (snapshot.load.waiting_for_capacity, snapshot.load.waiting_deferred);
        assert_eq!(reasons, (Some(8.0), Some(0.0)));
        assert_eq!((snapshot.load.kv_usage, snapshot.load.asleep), (Some(0.06299212598425197), false));
        let capacity = Capacity { blocks: 128.0, block_size: 32.0, tokens: 4096.0, told: false };
        assert_eq!((snapshot.capacity, snapshot.caches_prefixes), (Some(capacity), Some(true)));
        let counts = &snapshot.counts;
        let counters = [Counter::Queries, Counter::Hits, Counter::Preemptions, Counter::Finished];
        assert_eq!(counters.map(|counter| counts.counter(counter).unwrap()), [20_777.0, 8_192.0, 1.0, 97.0]);
        assert!(counts.missing().is_empty());
        assert_eq!(counts.times(Times::FirstToken).unwrap().at_most(0.95), Some(0.04));
        assert_eq!(counts.times(Times::Prefill).unwrap().sum, 3.518919823000033);
    }

    #[test]
    fn engines_of_one_page_add_up() {
        let page = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 2\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.4\n\
                    vllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 0\n\
                    vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"10\"} 1\n\
                    vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"10\",kv_cache_size_tokens=\"150\",enable_prefix_caching=\"False\"} 1\n";
        let (snapshot, _) = Snapshot::read(page).unwrap();
        assert_eq!((snapshot.engines, snapshot.load.running), (2, Some(3.0)));
        assert_eq!((snapshot.load.waiting_for_capacity, snapshot.load.waiting_deferred), (None, None));
        assert!((snapshot.load.kv_usage.unwrap() - 0.3).abs() < 1e-9 && snapshot.load.asleep);
        let capacity = Capacity { blocks: 20.0, block_size: 16.0, tokens: 310.0, told: true };
        assert_eq!((snapshot.capacity, snapshot.caches_prefixes), (Some(capacity), Some(false)));
        let untold = page.replace("num_gpu_blocks=\"10\",k", "num_gpu_blocks=\"None\",k");
        assert_eq!(Snapshot::read(&untold).unwrap().0.capacity, None);
    }

    #[test]
    fn what_is_no_page_of_vllm_says_so() {
        for (text, want) in [
            (
                "<html>\n",
                "found no sample of Prometheus' text, line 1: found \"<html>\"; wanted an engine's /metrics",
            ),
            ("", "found no sample of Prometheus' text, the text is empty; wanted an engine's /metrics"),
            (
                "up 1\n",
                "found 1 samples and none of vllm:*, wanted vLLM's /metrics; nothing can be said of this one",
            ),
        ] {
            assert_eq!(Snapshot::read(text).unwrap_err().to_string(), want);
        }
        let (_, bad) = Snapshot::read("vllm:x 1\nvllm:y{a=\"b").unwrap();
        assert_eq!(bad.as_deref(), Some("1 lines are no samples, line 2: found \"vllm:y{a=\\\"b\""));
    }
}
