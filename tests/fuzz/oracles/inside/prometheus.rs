//! Pages of metrics: figures are finite or absent, and of lines in the format those that a plain reader finds.
//!
//! The first byte chooses the engine, `1` to `6`; `7` and `8` are vLLM with series that an operator named. The rest is the
//! page.

use std::sync::LazyLock;

use config::{Engine, EngineKind};

use crate::endpoints::prometheus::{CacheConfig, Names, Report, read};

static NAMES: LazyLock<Vec<(Engine, Names)>> = LazyLock::new(|| {
    let kinds = [
        EngineKind::Vllm,
        EngineKind::Sglang,
        EngineKind::TrtllmServe,
        EngineKind::TritonTensorrtLlm,
        EngineKind::Triton,
        EngineKind::LlamaCpp,
    ];
    let named = |waiting: &str, running: &str| Engine {
        waiting: Some(waiting.to_owned()),
        running: Some(running.to_owned()),
        kv_usage: Some("kv{a=b,c=d}".to_owned()),
        ..Engine::default()
    };
    let custom = [named("waiting", "vllm:num_requests_running"), named("w{a=\"b\"}", "w{a=\"c\"}")];
    let engines = kinds.map(|kind| Engine { kind, ..Engine::default() }).into_iter().chain(custom);
    engines.map(|engine| (engine.clone(), Names::new(&engine))).collect()
});

/// Runs the oracle. Panics where it does not hold.
pub fn run(data: &[u8]) {
    let Some((&first, page)) = data.split_first() else { return };
    let (engine, names) = &NAMES[usize::from(first.wrapping_sub(b'1')) % NAMES.len()];
    let report = read(page, names);
    sane(&report);
    if *engine == Engine::default()
        && let Some(samples) = samples(page)
    {
        assert_eq!(report, plain(&samples));
    }
}

fn sane(report: &Report<'_>) {
    let Report { waiting, running, kv_usage, cache, process_start_seconds, counted, prefix_hits, .. } =
        *report;
    for count in [waiting, running, process_start_seconds, counted, prefix_hits].into_iter().flatten() {
        assert!(count.is_finite() && count >= 0.0, "{count}");
    }
    assert!(kv_usage.is_none_or(|share| (0.0..=1.0).contains(&share)), "{kv_usage:?}");
    if let Some(CacheConfig { block_size, num_gpu_blocks, tokens }) = cache {
        assert!(block_size != Some(0) && num_gpu_blocks != Some(0) && tokens != Some(0));
    }
}

/// A line of the format.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: Option<f64>,
}

impl Sample<'_> {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| *value)
    }

    /// The label that is called either; where both are, the one that stands behind.
    fn positive(&self, names: [&str; 2]) -> Option<u32> {
        let label = self.labels.iter().rev().find(|(label, _)| names.contains(label));
        label.and_then(|(_, value)| value.parse().ok()).filter(|number: &u32| *number > 0)
    }
}

/// All samples of a page. `None`: a line of it is neither a sample nor a comment, so there is nothing to compare.
fn samples(page: &[u8]) -> Option<Vec<Sample<'_>>> {
    let text = std::str::from_utf8(page).ok()?;
    let lines = text.split('\n').map(|line| line.trim_matches([' ', '\t', '\r']));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(sample).collect()
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (name, mut rest) = line.split_at(line.find(|c| !is_name(c))?);
    let mut labels: Vec<(&str, &str)> = Vec::new();
    if let Some(mut inside) = rest.trim_start_matches([' ', '\t']).strip_prefix('{') {
        loop {
            inside = inside.trim_start_matches([' ', '\t']);
            if let Some(after) = inside.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = inside.split_once("=\"")?;
            if label.is_empty()
                || !label.chars().all(is_name)
                || labels.iter().any(|(other, _)| *other == label)
            {
                return None;
            }
            let end = end_of_value(after)?;
            labels.push((label, &after[..end]));
            inside = &after[end + 1..];
            match inside.strip_prefix(',') {
                Some(more) => inside = more,
                None if inside.starts_with('}') => {}
                None => return None,
            }
        }
    }
    if !rest.starts_with([' ', '\t']) || !rest.chars().all(|c| matches!(c, '\t' | ' '..='~')) {
        return None;
    }
    let value = rest.split_ascii_whitespace().next()?;
    Some(Sample { name, labels, value: value.parse().ok() })
}

fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return Some(at),
            _ => escaped = byte == b'\\' && !escaped,
        }
    }
    None
}

/// The report of a vLLM, figure by figure.
fn plain<'a>(samples: &'a [Sample<'a>]) -> Report<'a> {
    let of = |name: &'static str| {
        samples.iter().filter(move |sample| sample.name == name && sample.value.is_some())
    };
    let values = |name| of(name).filter_map(|sample| sample.value).filter(|value| value.is_finite());
    let counts = |name| values(name).filter(|value| *value >= 0.0);
    let sum = |name| counts(name).reduce(|one, other| (one + other).min(f64::MAX));
    let highest = |name| counts(name).reduce(f64::max);
    let share = |name| values(name).map(|value| value.clamp(0.0, 1.0)).reduce(f64::max);
    let has_new = of("vllm:kv_cache_usage_perc").next().is_some();
    let old = if has_new { "vllm:kv_cache_usage_perc" } else { "vllm:gpu_cache_usage_perc" };
    let asleep = of("vllm:engine_sleep_state").filter(|sample| sample.label("sleep_state") == Some("awake"));
    let awake = asleep.filter_map(|sample| sample.value.filter(|value| value.is_finite()));
    Report {
        waiting: sum("vllm:num_requests_waiting"),
        running: sum("vllm:num_requests_running"),
        kv_usage: share(old),
        cache: cache(&of("vllm:cache_config_info").collect::<Vec<_>>()),
        process_start_seconds: highest("process_start_time_seconds"),
        counted: sum("vllm:prefix_cache_queries_total"),
        prefix_hits: sum("vllm:prefix_cache_hits_total"),
        awake: awake.map(|value| value > 0.0).reduce(|one, other| one && other),
        lora: latest(of("vllm:lora_requests_info")),
    }
}

fn cache(samples: &[&Sample<'_>]) -> Option<CacheConfig> {
    let size = |sample: &Sample<'_>| sample.positive(["block_size", "page_size"]);
    let blocks = |sample: &Sample<'_>| sample.positive(["num_gpu_blocks", "num_pages"]);
    let told = |sample: &Sample<'_>| sample.positive(["kv_cache_size_tokens", ""]).map(u64::from);
    let tokens = |sample: &&Sample<'_>| {
        let shape = size(sample).zip(blocks(sample));
        shape.map(|(size, blocks)| u64::from(size) * u64::from(blocks)).or_else(|| told(sample))
    };
    (!samples.is_empty()).then(|| CacheConfig {
        block_size: samples.iter().filter_map(|sample| size(sample)).min(),
        num_gpu_blocks: samples.iter().filter_map(|sample| blocks(sample)).reduce(u32::saturating_add),
        tokens: samples.iter().filter_map(tokens).reduce(u64::saturating_add),
    })
}

/// The adapters of the series with the greatest time; of equal ones the last.
fn latest<'a>(
    samples: impl Iterator<Item = &'a Sample<'a>>,
) -> Option<crate::endpoints::prometheus::Lora<'a>> {
    let timed = samples.filter_map(|sample| Some((sample.value.filter(|time| *time >= 0.0)?, sample)));
    let (_, last) = timed.reduce(|one, other| if other.0 >= one.0 { other } else { one })?;
    let names = |label| last.label(label).unwrap_or_default().as_bytes();
    Some(crate::endpoints::prometheus::Lora {
        max: last.positive(["max_lora", ""]),
        running: names("running_lora_adapters"),
        waiting: names("waiting_lora_adapters"),
    })
}
