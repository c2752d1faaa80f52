//! Pages as engines have them, and pages that mean to be taken for such.
#![allow(clippy::unwrap_used, clippy::panic)]

use config::Engine;

use super::names::Names;
use super::*;

/// A page of vLLM's.
fn read(page: &[u8]) -> Report<'_> {
    super::read(page, &Names::new(&Engine::default()))
}

mod kinds;

const IDLE: &str = include_str!("../../../../tests/fixtures/metrics/idle.txt");
const LOADED: &str = include_str!("../../../../tests/fixtures/metrics/loaded.txt");

/// What the recorded servers had in common.
fn recorded() -> Report<'static> {
    Report {
        waiting: Some(0.0),
        running: Some(0.0),
        kv_usage: Some(0.0),
        cache: Some(CacheConfig { block_size: Some(32), num_gpu_blocks: Some(128), tokens: Some(4_096) }),
        process_start_seconds: Some(1_795_955_016.37),
        counted: Some(0.0),
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
    let slash = include_str!("../../../../tests/fixtures/metrics/idle_trailing_slash.txt");
    let evicted = include_str!("../../../../tests/fixtures/metrics/after_eviction.txt");
    let paused = include_str!("../../../../tests/fixtures/metrics/paused.txt");
    let lora = include_str!("../../../../tests/fixtures/metrics/variant_lora.txt");
    let counted = |queries, hits| Report { counted: Some(queries), prefix_hits: Some(hits), ..recorded() };
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
            Report { running: Some(1.0), kv_usage: Some(0.03149606299212604), ..counted(27_022.0, 10_624.0) },
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
    let cases = include_str!("../../../../tests/fixtures/metrics/metrics_parse.json");
    let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let report = read(case["text"].as_str().unwrap().as_bytes());
        let wanted = |name: &str| case["want"][name].as_f64();
        assert_eq!(report.waiting, wanted("waiting"), "{case}");
        assert_eq!(report.running, wanted("running"), "{case}");
        assert_eq!(report.kv_usage, wanted("kv_usage"), "{case}");
        assert_eq!(report.counted, wanted("queries"), "{case}");
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
        counted: Some(150.0),
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
        let page =
            format!("vllm:cache_config_info{{block_size=\"{unknown}\",num_gpu_blocks=\"{unknown}\"}} 1\n");
        assert_eq!(read(page.as_bytes()), cache(None, None), "{unknown}");
    }
    for (labels, wanted) in [
        ("", cache(None, None)),
        ("block_size=\"4096\",num_gpu_blocks=\"500\",prefix_match_unit=\"32\"", cache(Some(4096), Some(500))),
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
    let names = Names::new(&Engine::default());
    let is_read =
        |line: &&str| names.own(line.as_bytes()).is_some() || line.starts_with("process_start_time_seconds ");
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
    let page = b"vllm:cache_config_info{block_size=\"16\",a=\"\\\"\"} 1 2\nprocess_start_time_seconds 1e9\n";
    for place in 0..page.len() {
        for byte in *b"\"\\{}=, \t\r\n#x1\0\xff" {
            let mut broken = page.to_vec();
            broken[place] = byte;
            read(&broken);
            read(&broken[place..]);
        }
    }
}
