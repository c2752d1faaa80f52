//! What an engine says of itself: the few figures of its `/metrics` page that routing needs.
//!
//! A vLLM page has 50 to 70 KB, nearly all of it histograms that nobody here reads, and it comes every 100 ms
//! from every endpoint. So this is no general parser: it walks the lines once, drops a line by its first
//! bytes and takes apart only the dozen whose name it knows. It never fails: what cannot be read is not
//! measured, which is not zero. Never here: sockets, clocks, the age of a figure.

mod names;
#[cfg(test)]
mod tests;
mod text;

use memchr::memchr;

use names::Family;
pub(crate) use names::Names;
use text::Labels;

/// The figures of one page. `None`: the page does not tell, which must not be taken for idle.
///
/// Several engines behind one page (data parallel) are one endpoint: see each field. The names in brackets are vLLM's;
/// [`Names`] has those of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Report<'a> {
    /// Requests in the queue, summed over the engines (`vllm:num_requests_waiting`).
    pub waiting: Option<f64>,
    /// Requests in a batch, summed over the engines (`vllm:num_requests_running`).
    pub running: Option<f64>,
    /// Used share of the KV cache, 0 to 1 (`vllm:kv_cache_usage_perc`, before that
    /// `vllm:gpu_cache_usage_perc`).
    ///
    /// The highest of the engines: the router cannot choose among them, and a request that meets the full one
    /// is preempted; a mean would hide it.
    pub kv_usage: Option<f64>,
    /// The cache's shape, if the page tells of one at all (`vllm:cache_config_info`).
    pub cache: Option<CacheConfig>,
    /// Start of the process, seconds since 1970 (`process_start_time_seconds`): another one means an empty
    /// cache.
    pub process_start_seconds: Option<f64>,
    /// What the engine has counted since its start, summed: fewer mean another process. Tokens looked up in the prefix cache
    /// (`vllm:prefix_cache_queries_total`); of other kinds prompt tokens, or requests answered.
    pub counted: Option<f64>,
    /// Tokens found in the prefix cache, summed (`vllm:prefix_cache_hits_total`).
    pub prefix_hits: Option<f64>,
    /// Whether every engine is awake (`vllm:engine_sleep_state` of `awake`): a sleeping one has lost its
    /// cache.
    pub awake: Option<bool>,
    /// The latest word on LoRA adapters (`vllm:lora_requests_info`): a series for every state there was, each with the
    /// time of it as its value.
    pub lora: Option<Lora<'a>>,
}

/// LoRA adapters as the page has them, escapes and all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lora<'a> {
    /// Adapters that fit into a batch.
    pub max: Option<u32>,
    /// Names in a batch, commas between them.
    pub running: &'a [u8],
    /// Names in the queue, likewise.
    pub waiting: &'a [u8],
}

/// The shape of the KV cache. `None`: not told, or not a positive integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheConfig {
    /// Tokens in a block; of engines that differ, the smallest.
    pub block_size: Option<u32>,
    /// Blocks in GPU memory, summed over the engines.
    pub num_gpu_blocks: Option<u32>,
    /// Tokens that fit, summed over the engines: size times number of each, or what it says itself where it tells neither
    /// (`kv_cache_size_tokens`).
    pub tokens: Option<u64>,
}

impl Report<'_> {
    /// Whether the page says anything of load.
    pub(crate) fn tells_load(&self) -> bool {
        self.waiting.or(self.running).or(self.kv_usage).is_some()
    }
}

/// Reads a page of the Prometheus or OpenMetrics text format.
///
/// Total: a line that is not in the format is skipped, and a page without a known name (another engine's,
/// HTML, empty) is the default report. O(bytes), no allocation.
pub(crate) fn read<'a>(page: &'a [u8], names: &Names) -> Report<'a> {
    let mut reader = Reader::default();
    let mut rest = page;
    while let Some(end) = memchr(b'\n', rest) {
        let (line, after) = rest.split_at(end);
        reader.line(line, names);
        rest = after.get(1..).unwrap_or_default();
    }
    reader.line(rest, names);
    reader.finish()
}

/// The one name that engines of all kinds have, as far as their metrics are Python's.
const PROCESS_START: &[u8] = b"process_start_time_seconds";

/// The report so far.
#[derive(Default)]
struct Reader<'a> {
    report: Report<'a>,
    /// The cache's shape where it is told figure by figure.
    parts: CacheConfig,
    /// When the adapters were as the report has them.
    lora_at: f64,
    old_kv_usage: Option<f64>,
    /// The new name was there, be its value a number or not: the old one may then be a leftover that stays at
    /// 0.
    has_kv_usage: bool,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a [u8], names: &Names) {
        let line = line.trim_ascii();
        // A line that breaks off is no sample: nothing of it counts.
        if let Some((own, rest)) = names.own(line) {
            let _ = self.own(own, rest, names);
        } else if let Some(rest) = text::after_name(line, PROCESS_START) {
            let _ =
                self.sample(rest, |reader, labels, value| reader.take(Family::ProcessStart, labels, value));
        }
        for (family, series) in names.custom() {
            if let Some(rest) = text::after_name(line, series.name()) {
                let take = |reader: &mut Self, labels: &Labels<'a>, value| {
                    if series.is(labels) {
                        reader.take(*family, labels, value);
                    }
                };
                let _ = self.sample(rest, take);
            }
        }
    }

    /// Takes a sample of the kind's own: its name stands for the figures `own`, each of another series.
    fn own(&mut self, own: &'static [names::Name], rest: &'a [u8], names: &Names) -> Option<()> {
        self.sample(rest, |reader, labels, value| {
            for name in own {
                let is_meant = name.only.is_none_or(|(label, wanted)| labels.has(label, wanted));
                if is_meant && !names.is_replaced(name.family) {
                    reader.take(name.family, labels, value);
                }
            }
        })
    }

    /// Reads what follows a name. `None`: not in the format.
    fn sample(&mut self, rest: &'a [u8], take: impl FnOnce(&mut Self, &Labels<'a>, f64)) -> Option<()> {
        let (labels, rest) = text::labels(rest)?;
        take(self, &labels, text::value(rest)?);
        Some(())
    }

    fn take(&mut self, family: Family, labels: &Labels<'a>, value: f64) {
        let report = &mut self.report;
        match family {
            Family::Waiting => sum(&mut report.waiting, value),
            Family::Running => sum(&mut report.running, value),
            Family::Counted => sum(&mut report.counted, value),
            Family::Hits => sum(&mut report.prefix_hits, value),
            Family::KvUsage => {
                self.has_kv_usage = true;
                highest_share(&mut report.kv_usage, value);
            }
            Family::OldKvUsage => highest_share(&mut self.old_kv_usage, value),
            Family::ProcessStart => highest(&mut report.process_start_seconds, value),
            Family::CacheConfig => join(report.cache.get_or_insert_default(), labels),
            Family::BlockSize => {
                self.parts.block_size = [self.parts.block_size, whole(value)].into_iter().flatten().min();
            }
            Family::Blocks => self.parts.num_gpu_blocks = total(self.parts.num_gpu_blocks, whole(value)),
            Family::CacheTokens => {
                let tokens = [self.parts.tokens, whole(value).map(u64::from)].into_iter().flatten();
                self.parts.tokens = tokens.reduce(u64::saturating_add);
            }
            Family::SleepState => all_awake(&mut report.awake, labels.is_awake_series, value),
            Family::Lora if value >= self.lora_at => {
                let (running, waiting) = (labels.lora_running, labels.lora_waiting);
                (self.lora_at, report.lora) = (value, Some(Lora { max: labels.lora_max, running, waiting }));
            }
            Family::Lora => {}
        }
    }

    fn finish(self) -> Report<'a> {
        let kv_usage = if self.has_kv_usage { self.report.kv_usage } else { self.old_kv_usage };
        let CacheConfig { block_size, num_gpu_blocks, tokens } = self.parts;
        let tokens = product(block_size, num_gpu_blocks).or(tokens);
        let parts = CacheConfig { block_size, num_gpu_blocks, tokens };
        let parts = (parts != CacheConfig::default()).then_some(parts);
        Report { kv_usage, cache: self.report.cache.or(parts), ..self.report }
    }
}

/// Adds a count. One below zero or without end is not measured.
fn sum(total: &mut Option<f64>, value: f64) {
    if value.is_finite() && value >= 0.0 {
        *total = Some((total.unwrap_or(0.0) + value).min(f64::MAX));
    }
}

fn highest(highest: &mut Option<f64>, value: f64) {
    if value.is_finite() && value >= 0.0 {
        *highest = Some(highest.map_or(value, |other| other.max(value)));
    }
}

fn highest_share(share: &mut Option<f64>, value: f64) {
    if value.is_finite() {
        highest(share, value.clamp(0.0, 1.0));
    }
}

/// A count of the cache's shape. What is no positive integer is not told.
fn whole(value: f64) -> Option<u32> {
    (value >= 1.0 && value <= f64::from(u32::MAX)).then_some(value as u32)
}

fn total(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    [one, other].into_iter().flatten().reduce(u32::saturating_add)
}

fn product(size: Option<u32>, blocks: Option<u32>) -> Option<u64> {
    size.zip(blocks).map(|(size, blocks)| u64::from(size) * u64::from(blocks))
}

fn join(all: &mut CacheConfig, one: &Labels<'_>) {
    all.block_size = [all.block_size, one.block_size].into_iter().flatten().min();
    all.num_gpu_blocks = total(all.num_gpu_blocks, one.blocks);
    let tokens = product(one.block_size, one.blocks).or(one.cache_tokens.map(u64::from));
    all.tokens = [all.tokens, tokens].into_iter().flatten().reduce(u64::saturating_add);
}

fn all_awake(awake: &mut Option<bool>, is_awake_series: bool, value: f64) {
    if is_awake_series && value.is_finite() {
        *awake = Some(awake.unwrap_or(true) && value > 0.0);
    }
}
