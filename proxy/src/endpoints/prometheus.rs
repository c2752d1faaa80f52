//! What an engine says of itself: the few figures of its `/metrics` page that routing needs.
//!
//! A vLLM page has 50 to 70 KB, nearly all of it histograms that nobody here reads, and it comes every 100 ms
//! from every endpoint. So this is no general parser: it walks the lines once, drops a line by its first
//! bytes and takes apart only the dozen whose name it knows. It never fails: what cannot be read is not
//! measured, which is not zero. Never here: sockets, clocks, the age of a figure.

use memchr::{memchr, memchr2};

/// The figures of one page. `None`: the page does not tell, which must not be taken for idle.
///
/// Several engines behind one page (data parallel) are one endpoint: see each field. Names are vLLM's, as the
/// pages in `tests/fixtures/metrics` have them.
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
    /// Tokens looked up in the prefix cache since the start, summed (`vllm:prefix_cache_queries_total`).
    pub prefix_queries: Option<f64>,
    /// Tokens found there, summed (`vllm:prefix_cache_hits_total`).
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

/// Reads a page of the Prometheus or OpenMetrics text format.
///
/// Total: a line that is not in the format is skipped, and a page without a known name (another engine's,
/// HTML, empty) is the default report. O(bytes), no allocation.
pub(crate) fn read(page: &[u8]) -> Report<'_> {
    let mut reader = Reader::default();
    let mut rest = page;
    while let Some(end) = memchr(b'\n', rest) {
        let (line, after) = rest.split_at(end);
        reader.line(line);
        rest = after.get(1..).unwrap_or_default();
    }
    reader.line(rest);
    reader.finish()
}

/// A family of series that is read.
#[derive(Clone, Copy)]
enum Family {
    Waiting,
    Running,
    KvUsage,
    OldKvUsage,
    CacheConfig,
    Queries,
    Hits,
    SleepState,
    Lora,
    ProcessStart,
}

const VLLM: &[u8] = b"vllm:";
/// What follows [`VLLM`] in a name.
const VLLM_NAMES: [(&[u8], Family); 9] = [
    (b"num_requests_waiting", Family::Waiting),
    (b"num_requests_running", Family::Running),
    (b"kv_cache_usage_perc", Family::KvUsage),
    (b"gpu_cache_usage_perc", Family::OldKvUsage),
    (b"cache_config_info", Family::CacheConfig),
    (b"prefix_cache_queries_total", Family::Queries),
    (b"prefix_cache_hits_total", Family::Hits),
    (b"engine_sleep_state", Family::SleepState),
    (b"lora_requests_info", Family::Lora),
];
/// Names without it.
const OTHER_NAMES: [(&[u8], Family); 1] = [(b"process_start_time_seconds", Family::ProcessStart)];

/// The report so far.
#[derive(Default)]
struct Reader<'a> {
    report: Report<'a>,
    /// When the adapters were as the report has them.
    lora_at: f64,
    old_kv_usage: Option<f64>,
    /// The new name was there, be its value a number or not: the old one may then be a leftover that stays at
    /// 0.
    has_kv_usage: bool,
}

/// The labels of one series that anybody asks for.
#[derive(Default)]
struct Labels<'a> {
    cache: CacheConfig,
    lora: Lora<'a>,
    is_awake_series: bool,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a [u8]) {
        if let Some((family, rest)) = family(line.trim_ascii()) {
            // A line that breaks off is no sample: nothing of it counts.
            let _ = self.sample(family, rest);
        }
    }

    /// Takes what follows the name. `None`: not in the format.
    fn sample(&mut self, family: Family, rest: &'a [u8]) -> Option<()> {
        let (labels, rest) = labels(rest)?;
        let value = value(rest)?;
        let report = &mut self.report;
        match family {
            Family::Waiting => sum(&mut report.waiting, value),
            Family::Running => sum(&mut report.running, value),
            Family::Queries => sum(&mut report.prefix_queries, value),
            Family::Hits => sum(&mut report.prefix_hits, value),
            Family::KvUsage => {
                self.has_kv_usage = true;
                highest_share(&mut report.kv_usage, value);
            }
            Family::OldKvUsage => highest_share(&mut self.old_kv_usage, value),
            Family::ProcessStart => highest(&mut report.process_start_seconds, value),
            Family::CacheConfig => join(report.cache.get_or_insert_default(), labels.cache),
            Family::SleepState => all_awake(&mut report.awake, labels.is_awake_series, value),
            Family::Lora if value >= self.lora_at => {
                (self.lora_at, report.lora) = (value, Some(labels.lora));
            }
            Family::Lora => {}
        }
        Some(())
    }

    fn finish(self) -> Report<'a> {
        let kv_usage = if self.has_kv_usage { self.report.kv_usage } else { self.old_kv_usage };
        Report { kv_usage, ..self.report }
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

fn join(all: &mut CacheConfig, one: CacheConfig) {
    all.block_size = [all.block_size, one.block_size].into_iter().flatten().min();
    let blocks = [all.num_gpu_blocks, one.num_gpu_blocks].into_iter().flatten();
    all.num_gpu_blocks = blocks.reduce(u32::saturating_add);
    let product = one.block_size.zip(one.num_gpu_blocks);
    let product = product.map(|(size, blocks)| u64::from(size) * u64::from(blocks));
    all.tokens = [all.tokens, product.or(one.tokens)].into_iter().flatten().reduce(u64::saturating_add);
}

fn all_awake(awake: &mut Option<bool>, is_awake_series: bool, value: f64) {
    if is_awake_series && value.is_finite() {
        *awake = Some(awake.unwrap_or(true) && value > 0.0);
    }
}

/// The family of a sample's line and what follows its name. A longer name is another family.
fn family(line: &[u8]) -> Option<(Family, &[u8])> {
    let (names, text) = line.strip_prefix(VLLM).map_or((&OTHER_NAMES[..], line), |text| (&VLLM_NAMES, text));
    names.iter().find_map(|(name, family)| {
        let rest = text.strip_prefix(*name)?;
        matches!(rest.first(), Some(b'{' | b' ' | b'\t')).then_some((*family, rest))
    })
}

/// The labels of a series, if it has any, and what follows them. `None`: not in the format.
fn labels(text: &[u8]) -> Option<(Labels<'_>, &[u8])> {
    let mut labels = Labels::default();
    let Some(mut rest) = text.trim_ascii_start().strip_prefix(b"{") else { return Some((labels, text)) };
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(b"}") {
            return Some((labels, after));
        }
        let (name, after) = rest.split_at_checked(memchr(b'=', rest)?)?;
        let (value, after) = quoted(after.get(1..)?.trim_ascii_start().strip_prefix(b"\"")?)?;
        labels.take(name.trim_ascii_end(), value);
        let after = after.trim_ascii_start();
        rest = match after.first()? {
            b',' => after.get(1..)?,
            b'}' => after,
            _ => return None,
        };
    }
}

impl<'a> Labels<'a> {
    fn take(&mut self, name: &[u8], value: &'a [u8]) {
        match name {
            b"block_size" => self.cache.block_size = positive(value),
            b"num_gpu_blocks" => self.cache.num_gpu_blocks = positive(value),
            b"kv_cache_size_tokens" => self.cache.tokens = positive(value).map(u64::from),
            b"sleep_state" => self.is_awake_series = value == b"awake",
            b"max_lora" => self.lora.max = positive(value),
            b"running_lora_adapters" => self.lora.running = value,
            b"waiting_lora_adapters" => self.lora.waiting = value,
            _ => {}
        }
    }
}

/// The text up to the closing quote, escapes left in, and what follows the quote. No value that is read has
/// escapes.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut end = 0;
    loop {
        end += memchr2(b'"', b'\\', text.get(end..)?)?;
        if text.get(end) == Some(&b'"') {
            return Some((text.get(..end)?, text.get(end + 1..)?));
        }
        end += 2;
    }
}

/// The number after name and labels. A time stamp or an exemplar may follow it.
fn value(text: &[u8]) -> Option<f64> {
    let number = text.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// vLLM writes Python's `str` of a setting: `None`, `-1` and the like are not known.
fn positive(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    const IDLE: &str = include_str!("../../tests/fixtures/metrics/idle.txt");
    const LOADED: &str = include_str!("../../tests/fixtures/metrics/loaded.txt");

    /// What the recorded servers had in common.
    fn recorded() -> Report<'static> {
        Report {
            waiting: Some(0.0),
            running: Some(0.0),
            kv_usage: Some(0.0),
            cache: Some(CacheConfig { block_size: Some(32), num_gpu_blocks: Some(128), tokens: Some(4_096) }),
            process_start_seconds: Some(1_795_955_016.37),
            prefix_queries: Some(0.0),
            prefix_hits: Some(0.0),
            awake: Some(true),
            lora: None,
        }
    }

    fn waiting(count: f64) -> Report<'static> {
        Report { waiting: Some(count), ..Report::default() }
    }

    fn kv_usage(share: f64) -> Report<'static> {
        Report { kv_usage: Some(share), ..Report::default() }
    }

    fn cache(block_size: Option<u32>, num_gpu_blocks: Option<u32>) -> Report<'static> {
        let product = block_size.zip(num_gpu_blocks);
        let tokens = product.map(|(size, blocks)| u64::from(size) * u64::from(blocks));
        Report { cache: Some(CacheConfig { block_size, num_gpu_blocks, tokens }), ..Report::default() }
    }

    #[test]
    fn recorded_pages_read_as_they_are() {
        let slash = include_str!("../../tests/fixtures/metrics/idle_trailing_slash.txt");
        let evicted = include_str!("../../tests/fixtures/metrics/after_eviction.txt");
        let paused = include_str!("../../tests/fixtures/metrics/paused.txt");
        let lora = include_str!("../../tests/fixtures/metrics/variant_lora.txt");
        let counted =
            |queries, hits| Report { prefix_queries: Some(queries), prefix_hits: Some(hits), ..recorded() };
        for (name, page, wanted) in [
            ("idle", IDLE, recorded()),
            ("idle, other path", slash, recorded()),
            ("after eviction", evicted, counted(12_346.0, 1_056.0)),
            (
                "loaded",
                LOADED,
                Report {
                    waiting: Some(8.0),
                    running: Some(4.0),
                    kv_usage: Some(0.06299212598425197),
                    ..counted(20_777.0, 8_192.0)
                },
            ),
            (
                "paused",
                paused,
                Report {
                    running: Some(1.0),
                    kv_usage: Some(0.03149606299212604),
                    ..counted(27_022.0, 10_624.0)
                },
            ),
            (
                "with adapters",
                lora,
                Report {
                    process_start_seconds: Some(1_795_955_368.86),
                    lora: Some(Lora { max: Some(1), ..Lora::default() }),
                    ..counted(15_432.0, 2_784.0)
                },
            ),
        ] {
            assert_eq!(read(page.as_bytes()), wanted, "{name}");
        }
    }

    #[test]
    fn the_texts_of_the_seed_read_as_it_says() {
        let cases = include_str!("../../tests/fixtures/metrics/metrics_parse.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
        assert_eq!(cases.len(), 7);
        for case in cases {
            let report = read(case["text"].as_str().unwrap().as_bytes());
            let wanted = |name: &str| case["want"][name].as_f64();
            assert_eq!(report.waiting, wanted("waiting"), "{case}");
            assert_eq!(report.running, wanted("running"), "{case}");
            assert_eq!(report.kv_usage, wanted("kv_usage"), "{case}");
            assert_eq!(report.prefix_queries, wanted("queries"), "{case}");
            assert_eq!(report.prefix_hits, wanted("hits"), "{case}");
            let cache = report.cache.unwrap_or_default();
            assert_eq!(cache.block_size.map(f64::from), wanted("block_size"), "{case}");
            assert_eq!(cache.num_gpu_blocks.map(f64::from), wanted("num_gpu_blocks"), "{case}");
        }
    }

    #[test]
    fn legal_but_awkward_lines_read_right() {
        for line in [
            "vllm:num_requests_waiting 4",
            "vllm:num_requests_waiting\t4\n",
            "  vllm:num_requests_waiting   4  \n",
            "vllm:num_requests_waiting 4\r\n",
            "vllm:num_requests_waiting 4.0 1795955016370\n",
            "vllm:num_requests_waiting +0.4e+1\n",
            "vllm:num_requests_waiting{} 4\n",
            "vllm:num_requests_waiting {a=\"b\"} 4\n",
            "vllm:num_requests_waiting{a=\"b\",} 4\n",
            "vllm:num_requests_waiting{ a = \"b\" , c = \"d\" } 4\n",
            "vllm:num_requests_waiting{a=\"} 9 {,=\"} 4\n",
            "vllm:num_requests_waiting{a=\"\\\"} 9\"} 4\n",
            "vllm:num_requests_waiting{a=\"\\\\\"} 4\n",
            "vllm:num_requests_waiting{a=\"\\n\",b=\"\"} 4\n",
            "vllm:num_requests_waiting{a=\"\u{e9}\"} 4\n",
            "vllm:num_requests_waiting 4 # {trace_id=\"x\"} 9 1.5\n# EOF\n",
            "# HELP vllm:num_requests_waiting 9\n# vllm:num_requests_waiting 9\nvllm:num_requests_waiting 4\n",
            "vllm:num_requests_waiting_by_reason 9\nvllm:num_requests_waiting 4\nother:vllm:num_requests_waiting 9\n",
            "vllm:num_requests_waiting2 9\nvllm:num_requests_waiting 4\n",
            "vllm:num_requests_waiting{ } 4\n",
            "vllm:num_requests_waiting{a=\"b\", } 4\n",
            "\n\nvllm:num_requests_waiting -1\nvllm:num_requests_waiting 4\n\n",
        ] {
            assert_eq!(read(line.as_bytes()), waiting(4.0), "{line}");
        }
    }

    #[test]
    fn what_is_no_figure_is_not_measured() {
        for page in [
            "",
            "\n",
            "# EOF\n",
            "<html><body>vllm:num_requests_waiting 4</body></html>",
            "sglang:num_queue_reqs 80\n",
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting\n",
            "vllm:num_requests_waiting \n",
            "vllm:num_requests_waiting NaN\n",
            "vllm:num_requests_waiting +Inf\n",
            "vllm:num_requests_waiting -4\n",
            "vllm:num_requests_waiting four\n",
            "vllm:num_requests_waiting{a=\"b\" 4\n",
            "vllm:num_requests_waiting{a=b} 4\n",
            "vllm:num_requests_waiting{a=\"b\"c=\"d\"} 4\n",
            "vllm:num_requests_waiting{a=\"b\\\"} 4\n",
            "vllm:num_requests_waiting{a} 4\n",
            "vllm:num_requests_waiting{a=\"b",
            "vllm:num_requests_waiting{a=\"b\\",
            "vllm:kv_cache_usage_perc NaN\n",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"64\"",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"64\"}",
            "process_start_time_seconds NaN\n",
            "process_start_time_seconds_total 1\n",
            "vllm:engine_sleep_state{sleep_state=\"discard_all\"} 1\n",
        ] {
            assert_eq!(read(page.as_bytes()), Report::default(), "{page}");
        }
        assert_eq!(read(b"\xff\xfe\nvllm:num_requests_waiting \xff\n"), Report::default());
    }

    #[test]
    fn several_engines_are_one_endpoint() {
        let page = "vllm:num_requests_waiting{engine=\"0\"} 0\n\
                    vllm:num_requests_waiting{engine=\"1\"} 40\n\
                    vllm:num_requests_running{engine=\"0\"} 10\n\
                    vllm:num_requests_running{engine=\"1\"} 60\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.05\n\
                    vllm:kv_cache_usage_perc{engine=\"1\"} 0.98\n\
                    vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\n\
                    vllm:cache_config_info{engine=\"1\",block_size=\"32\",num_gpu_blocks=\"60\"} 1\n\
                    process_start_time_seconds{pid=\"1\"} 5\n\
                    process_start_time_seconds{pid=\"2\"} 7\n\
                    vllm:prefix_cache_queries_total{engine=\"0\"} 100\n\
                    vllm:prefix_cache_queries_total{engine=\"1\"} 50\n\
                    vllm:prefix_cache_hits_total{engine=\"0\"} 10\n\
                    vllm:prefix_cache_hits_total{engine=\"1\"} 5\n\
                    vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\n\
                    vllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 1.0\n";
        let wanted = Report {
            waiting: Some(40.0),
            running: Some(70.0),
            kv_usage: Some(0.98),
            cache: Some(CacheConfig { block_size: Some(16), num_gpu_blocks: Some(160), tokens: Some(3_520) }),
            process_start_seconds: Some(7.0),
            prefix_queries: Some(150.0),
            prefix_hits: Some(15.0),
            awake: Some(false),
            lora: None,
        };
        assert_eq!(read(page.as_bytes()), wanted);
        let reversed: Vec<&str> = page.lines().rev().collect();
        assert_eq!(read(reversed.join("\n").as_bytes()), wanted, "whatever their order");
    }

    #[test]
    fn the_new_name_of_kv_usage_wins() {
        for (page, wanted) in [
            ("vllm:gpu_cache_usage_perc 0.97\n", kv_usage(0.97)),
            ("vllm:gpu_cache_usage_perc 0.0\nvllm:kv_cache_usage_perc 0.90\n", kv_usage(0.9)),
            ("vllm:kv_cache_usage_perc 0.10\nvllm:gpu_cache_usage_perc 0.97\n", kv_usage(0.1)),
            ("vllm:kv_cache_usage_perc NaN\nvllm:gpu_cache_usage_perc 0.0\n", Report::default()),
            ("vllm:kv_cache_usage_perc 1.5\n", kv_usage(1.0)),
            ("vllm:kv_cache_usage_perc -0.5\n", kv_usage(0.0)),
        ] {
            assert_eq!(read(page.as_bytes()), wanted, "{page}");
        }
    }

    #[test]
    fn a_shape_that_is_not_told_is_unknown() {
        for unknown in ["None", "0", "-1", "abc", "", "16.0", "4294967296"] {
            let page = format!(
                "vllm:cache_config_info{{block_size=\"{unknown}\",num_gpu_blocks=\"{unknown}\"}} 1\n"
            );
            assert_eq!(read(page.as_bytes()), cache(None, None), "{unknown}");
        }
        for (labels, wanted) in [
            ("", cache(None, None)),
            (
                "block_size=\"4096\",num_gpu_blocks=\"500\",prefix_match_unit=\"32\"",
                cache(Some(4096), Some(500)),
            ),
            ("user_block_size=\"8\",block_size=\"16\",num_gpu_blocks_override=\"9\"", cache(Some(16), None)),
        ] {
            let page = format!("vllm:cache_config_info{{{labels}}} 1\n");
            assert_eq!(read(page.as_bytes()), wanted, "{labels}");
        }
    }

    #[test]
    fn what_an_engine_says_of_its_room_is_taken_where_its_blocks_are_unknown() {
        let tokens = |labels: &str| {
            let page = format!("vllm:cache_config_info{{{labels}}} 1\n");
            read(page.as_bytes()).cache.unwrap().tokens
        };
        for (labels, wanted) in [
            ("block_size=\"4096\",num_gpu_blocks=\"500\",prefix_match_unit=\"32\"", Some(2_048_000)),
            ("block_size=\"4294967295\",num_gpu_blocks=\"4294967295\"", Some(u64::from(u32::MAX).pow(2))),
            ("block_size=\"None\",num_gpu_blocks=\"128\",kv_cache_size_tokens=\"4096\"", Some(4_096)),
            ("block_size=\"16\",num_gpu_blocks=\"10\",kv_cache_size_tokens=\"9\"", Some(160)),
            ("block_size=\"16\",num_gpu_blocks=\"None\",kv_cache_size_tokens=\"None\"", None),
            ("block_size=\"0\",num_gpu_blocks=\"-1\",kv_cache_size_tokens=\"abc\"", None),
        ] {
            assert_eq!(tokens(labels), wanted, "{labels}");
        }
    }

    #[test]
    fn the_latest_word_on_adapters_counts() {
        let line = |running: &str, waiting: &str, at: &str| {
            format!(
                "vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {at}\n"
            )
        };
        let (old, new) = (line("a", "b,c", "1.5e9"), line("c,d", "", "1.6e9"));
        let wanted = Some(Lora { max: Some(2), running: b"c,d", waiting: b"" });
        for page in [old.clone() + &new, new.clone() + &old, new.clone() + &line("x", "", "NaN")] {
            assert_eq!(read(page.as_bytes()).lora, wanted, "{page}");
        }
        let odd = read(b"vllm:lora_requests_info 1\n");
        assert_eq!(odd.lora, Some(Lora::default()));
    }

    #[test]
    fn a_page_cut_anywhere_reads_as_its_whole_lines() {
        let is_read = |line: &&str| family(line.as_bytes()).is_some();
        let page: String = LOADED.lines().filter(is_read).flat_map(|line| [line, "\n"]).collect();
        let whole = read(page.as_bytes());
        assert_eq!(whole, read(LOADED.as_bytes()));
        for end in 0..page.len() {
            let cut = read(&page.as_bytes()[..end]);
            assert!(cut.waiting.is_none() || cut.waiting == whole.waiting, "{end}");
            assert!(cut.running.is_none() || cut.running == whole.running, "{end}");
            assert!(cut.cache.is_none() || cut.cache == whole.cache, "{end}");
            assert!(cut.awake.is_none() || cut.awake == whole.awake, "{end}");
        }
    }

    #[test]
    fn no_byte_in_any_place_panics() {
        let page =
            b"vllm:cache_config_info{block_size=\"16\",a=\"\\\"\"} 1 2\nprocess_start_time_seconds 1e9\n";
        for place in 0..page.len() {
            for byte in *b"\"\\{}=, \t\r\n#x1\0\xff" {
                let mut broken = page.to_vec();
                broken[place] = byte;
                read(&broken);
                read(&broken[place..]);
            }
        }
    }
}
