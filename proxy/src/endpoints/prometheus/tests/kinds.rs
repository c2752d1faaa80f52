//! Pages of every kind of engine, and series that the operator names.

use config::{Engine, EngineKind};

use super::super::names::Names;
use super::super::{CacheConfig, Report, read};
use super::LOADED;

fn names(kind: EngineKind) -> Names {
    Names::new(&Engine { kind, ..Engine::default() })
}

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../../../tests/fixtures/metrics/", $name))
    };
}

fn shape(block_size: u32, blocks: u32) -> Option<CacheConfig> {
    let tokens = Some(u64::from(block_size) * u64::from(blocks));
    Some(CacheConfig { block_size: Some(block_size), num_gpu_blocks: Some(blocks), tokens })
}

/// Of each kind but vLLM a page and what it says.
fn pages() -> [(EngineKind, &'static str, Report<'static>); 6] {
    let sglang = Report {
        waiting: Some(2_826.0),
        running: Some(162.0),
        kv_usage: Some(0.28),
        cache: shape(16, 27_647),
        counted: Some(8_128_902.0),
        ..Report::default()
    };
    let trtllm = Report {
        waiting: Some(3.0),
        running: Some(12.0),
        kv_usage: Some(0.62),
        cache: shape(32, 6_239),
        counted: Some(20_481.0),
        ..Report::default()
    };
    let tensorrt = Report {
        waiting: Some(5.0),
        running: Some(7.0),
        kv_usage: Some(0.4875),
        cache: shape(64, 6_239),
        counted: Some(78.0),
        ..Report::default()
    };
    let triton = Report { waiting: Some(4.0), counted: Some(1_904.0), ..Report::default() };
    let llama =
        Report { waiting: Some(2.0), running: Some(4.0), counted: Some(33_065.0), ..Report::default() };
    [
        (EngineKind::Sglang, page!("sglang.txt"), sglang),
        (EngineKind::Sglang, page!("sglang_0_5_10.txt"), sglang),
        (EngineKind::TrtllmServe, page!("trtllm_serve.txt"), trtllm),
        (EngineKind::TritonTensorrtLlm, page!("triton_tensorrt_llm.txt"), tensorrt),
        (EngineKind::Triton, page!("triton.txt"), triton),
        (EngineKind::LlamaCpp, page!("llama_cpp.txt"), llama),
    ]
}

#[test]
fn each_kind_reads_its_own_page_and_no_other() {
    for (kind, page, wanted) in pages() {
        assert_eq!(read(page.as_bytes(), &names(kind)), wanted, "{}", kind.name());
        for other in EngineKind::ALL {
            // A Triton with TensorRT-LLM is a Triton.
            let akin = kind == EngineKind::TritonTensorrtLlm && other == EngineKind::Triton;
            if other != kind && !akin {
                let report = read(page.as_bytes(), &names(other));
                assert!(!report.tells_load() && report.cache.is_none(), "{} {}", kind.name(), other.name());
            }
        }
    }
    let any = names(EngineKind::LlamaCpp);
    assert_eq!(read(b"process_start_time_seconds 5\n", &any).process_start_seconds, Some(5.0));
}

#[test]
fn a_page_without_figures_says_what_was_wanted() {
    let wanted = EngineKind::ALL.map(|kind| names(kind).wanted());
    assert_eq!(
        wanted,
        [
            "vllm: vllm:num_requests_waiting, vllm:num_requests_running, vllm:kv_cache_usage_perc",
            "sglang: sglang:num_queue_reqs, sglang:num_running_reqs, sglang:token_usage",
            "trtllm-serve: trtllm_num_requests_waiting, trtllm_num_requests_running, trtllm_kv_cache_utilization",
            "triton-tensorrt-llm: nv_trt_llm_request_metrics, nv_trt_llm_kv_cache_block_metrics",
            "triton: nv_inference_pending_request_count",
            "llama.cpp: llamacpp:requests_deferred, llamacpp:requests_processing",
        ]
    );
    let running = Some("slots_busy{pool=\"a\"}".to_owned());
    let custom = Engine { kind: EngineKind::LlamaCpp, running, ..Engine::default() };
    assert_eq!(Names::new(&custom).wanted(), "llama.cpp: llamacpp:requests_deferred, slots_busy");
}

#[test]
fn several_engines_of_any_kind_are_one() {
    let page = "sglang:num_queue_reqs{dp_rank=\"0\"} 2\nsglang:num_queue_reqs{dp_rank=\"1\"} 3\n\
                sglang:token_usage{dp_rank=\"0\"} 0.9\nsglang:token_usage{dp_rank=\"1\"} 0.2\n\
                sglang:page_size{dp_rank=\"0\"} 16\nsglang:page_size{dp_rank=\"1\"} 16\n\
                sglang:num_pages{dp_rank=\"0\"} 100\nsglang:num_pages{dp_rank=\"1\"} 60\n\
                sglang:prompt_tokens_total{dp_rank=\"0\"} 7\nsglang:prompt_tokens_total{dp_rank=\"1\"} 8\n";
    let wanted = Report {
        waiting: Some(5.0),
        kv_usage: Some(0.9),
        cache: shape(16, 160),
        counted: Some(15.0),
        ..Report::default()
    };
    assert_eq!(read(page.as_bytes(), &names(EngineKind::Sglang)), wanted);
}

#[test]
fn a_cache_is_known_as_far_as_it_is_told() {
    let cache = |block_size, num_gpu_blocks, tokens| Some(CacheConfig { block_size, num_gpu_blocks, tokens });
    for (page, wanted) in [
        ("sglang:page_size 16\n", cache(Some(16), None, None)),
        ("sglang:max_total_num_tokens 1000\n", cache(None, None, Some(1_000))),
        ("sglang:max_total_num_tokens 1000\nsglang:page_size 16\n", cache(Some(16), None, Some(1_000))),
        (
            "sglang:max_total_num_tokens 1000\nsglang:page_size 16\nsglang:num_pages 60\n",
            cache(Some(16), Some(60), Some(960)),
        ),
        ("sglang:page_size NaN\nsglang:num_pages +Inf\n", None),
        ("sglang:page_size 0\nsglang:num_pages -1\nsglang:max_total_num_tokens 1e300\n", None),
        ("sglang:cache_config_info{page_size=\"8\"} 1\nsglang:page_size 16\n", cache(Some(8), None, None)),
    ] {
        assert_eq!(read(page.as_bytes(), &names(EngineKind::Sglang)).cache, wanted, "{page}");
    }
}

fn waiting(series: &str, page: &str) -> Option<f64> {
    let engine = Engine { waiting: Some(series.to_owned()), ..Engine::default() };
    read(page.as_bytes(), &Names::new(&engine)).waiting
}

#[test]
fn a_series_that_the_operator_names_counts_where_its_labels_match() {
    const PAGE: &str = "queue{kind=\"wait\",model=\"a\"} 1\nqueue{model=\"b\",kind=\"wait\"} 2\n\
                        queue{kind=\"run\",model=\"a\"} 4\nqueue 8\nqueue_total{kind=\"wait\"} 16\n\
                        queue{kind=\"a \\\"b\\\"\",model=\"c,d}\"} 32\nvllm:num_requests_waiting 64\n";
    for (series, wanted) in [
        ("queue", Some(47.0)),
        ("queue{}", Some(47.0)),
        ("queue{kind=\"wait\"}", Some(3.0)),
        ("queue{kind=\"wait\",}", Some(3.0)),
        (" queue { kind = \"wait\" , model = \"b\" } ", Some(2.0)),
        ("queue{kind=wait,model=a}", Some(1.0)),
        ("queue{kind=\"a \\\"b\\\"\",model=\"c,d}\"}", Some(32.0)),
        ("queue{kind=\"wai\"}", None),
        ("queue{kind=\"\"}", None),
        ("queue{other=\"wait\"}", None),
        ("queu", None),
        ("vllm:num_requests_waiting", Some(64.0)),
        ("vllm:num_requests_waiting{engine=\"0\"}", None),
        // No series at all: the configuration refuses these.
        ("queue{kind=\"wait\"", None),
        ("queue{kind}", None),
        ("queue{kind=\"wait\"} 5", None),
        ("", None),
    ] {
        assert_eq!(waiting(series, PAGE), wanted, "{series}");
    }
}

#[test]
fn a_named_series_takes_the_place_of_the_kinds_own() {
    let engine = Engine {
        running: Some("busy".to_owned()),
        kv_usage: Some("used{tier=\"gpu\"}".to_owned()),
        ..Engine::default()
    };
    let names = Names::new(&engine);
    let page = LOADED.to_owned()
        + "busy 2\nbusy 3\nused{tier=\"gpu\"} 0.5\nused{tier=\"gpu\"} 0.7\nused{tier=\"cpu\"} 1\n";
    let report = read(page.as_bytes(), &names);
    assert_eq!((report.waiting, report.running, report.kv_usage), (Some(8.0), Some(5.0), Some(0.7)));
    let report = read(LOADED.as_bytes(), &names);
    assert_eq!((report.waiting, report.running, report.kv_usage), (Some(8.0), None, None));
    let old = read(b"vllm:gpu_cache_usage_perc 0.9\n", &names);
    assert_eq!(old.kv_usage, None, "nor by its older name");
}

#[test]
fn hostile_pages_cost_no_more_than_their_bytes() {
    let series = "queue{kind=\"wait\"}";
    let huge = "x".repeat(1 << 20);
    let many: String = (0..50_000).map(|number| format!("l{number}=\"v\",")).collect();
    let quotes = "\\\"".repeat(1 << 19);
    for (name, page, wanted) in [
        ("a huge value", format!("queue{{a=\"{huge}\",kind=\"wait\"}} 4\n"), Some(4.0)),
        ("a huge name", format!("queue{{{huge}=\"a\",kind=\"wait\"}} 4\n"), Some(4.0)),
        ("many labels", format!("queue{{{many}kind=\"wait\"}} 4\n"), Some(4.0)),
        ("nothing but escapes", format!("queue{{a=\"{quotes}\",kind=\"wait\"}} 4\n"), Some(4.0)),
        ("a label twice", "queue{kind=\"run\",kind=\"wait\"} 4\n".to_owned(), Some(4.0)),
        ("no closing quote", format!("queue{{kind=\"wait\",a=\"{huge}\n"), None),
        ("a quote in a value", "queue{a=\"b\"c\",kind=\"wait\"} 4\n".to_owned(), None),
        ("an escape at the end", "queue{kind=\"wait\",a=\"\\".to_owned(), None),
        ("NaN", "queue{kind=\"wait\"} NaN\n".to_owned(), None),
        ("no end", "queue{kind=\"wait\"} +Inf\nqueue{kind=\"wait\"} -Inf\n".to_owned(), None),
        ("below zero", "queue{kind=\"wait\"} -1\n".to_owned(), None),
        ("a huge number", format!("queue{{kind=\"wait\"}} {}\n", "9".repeat(1 << 16)), None),
        ("the label in a value", "queue{a=\"kind=\\\"wait\\\"\"} 4\n".to_owned(), None),
        ("one name in another", "a_queue{kind=\"wait\"} 4\n".to_owned(), None),
    ] {
        assert_eq!(waiting(series, &page), wanted, "{name}");
    }
}

#[test]
fn no_byte_in_any_place_panics_whatever_the_names() {
    for (kind, page, _) in pages() {
        let engine = Engine { kind, waiting: Some("a{b=\"c\"}".to_owned()), ..Engine::default() };
        let names = Names::new(&engine);
        let page = &page.as_bytes()[..page.len().min(600)];
        for place in 0..page.len() {
            for byte in *b"\"\\{}=\n\0\xff" {
                let mut broken = page.to_vec();
                broken[place] = byte;
                read(&broken, &names);
            }
            read(&page[..place], &names);
        }
    }
    for place in 0..20 {
        for byte in *b"\"\\{}=, a\0" {
            let mut series = *b"name{label=\"value\"} ";
            series[place] = byte;
            waiting(std::str::from_utf8(&series).unwrap_or_default(), LOADED);
        }
    }
}
