//! The command `review`: on pages of a real vLLM, on live fake servers, and on everything that can be wrong.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use bench::fake_server::{FakeServer, FakeServerOptions, RunningFakeServer};
use bench::replay::body::Edits;
use bench::replay::{self, Pace, Plan, Target, report};
use bench::review::{ReviewArgs, ReviewError, run};
use bench::trace::{TraceRequest, file};
use clap::Parser;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: ReviewArgs,
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    path.to_str().unwrap().to_owned()
}

/// A file of this test's own.
fn written(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What the command prints, and how it ends.
async fn output(words: &[&str]) -> (String, Result<(), ReviewError>) {
    let args = Command::try_parse_from([&["review"], words].concat()).unwrap().args;
    let mut out = Vec::new();
    let ended = timeout(DEADLINE, run(args, &mut out)).await.unwrap();
    (String::from_utf8(out).unwrap(), ended)
}

async fn printed(words: &[&str]) -> String {
    let (text, ended) = output(words).await;
    ended.unwrap();
    text
}

async fn json(words: &[&str]) -> Value {
    serde_json::from_str(&printed(&[words, &["--json"]].concat()).await).unwrap()
}

/// A line with runs of spaces made one.
fn squeezed(text: &str) -> String {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

fn has(text: &str, line: &str) {
    assert!(squeezed(text).contains(line), "no {line:?} in\n{text}");
}

/// A server that answers with one page after another, and with the last one for ever.
async fn scripted(pages: &[&str]) -> String {
    let pages: Arc<[String]> = pages.iter().map(|page| (*page).to_owned()).collect();
    let next = Arc::new(AtomicUsize::new(0));
    let page = |State((pages, next)): State<(Arc<[String]>, Arc<AtomicUsize>)>| async move {
        pages[next.fetch_add(1, Ordering::Relaxed).min(pages.len() - 1)].clone()
    };
    let app = Router::new().route("/metrics", get(page)).with_state((pages, next));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// An address at which nobody listens.
async fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn page(started: u32, queries: u32, hits: u32, waiting: u32) -> String {
    format!(
        "process_start_time_seconds {started}\nvllm:prefix_cache_queries_total {queries}\n\
         vllm:prefix_cache_hits_total {hits}\nvllm:num_requests_waiting {waiting}\n"
    )
}

#[tokio::test]
async fn recorded_pages_are_reviewed_by_their_own_figures() {
    let pages = ["loaded", "after_eviction", "variant_lora"].map(|name| fixture(&format!("vllm/{name}.txt")));
    let pages = pages.each_ref().map(String::as_str);
    let text = printed(&pages).await;
    has(&text, "loaded - 20,777 39.4 % - -\n");
    has(&text, "after_eviction - 12,346 8.6 % - -\n");
    has(&text, "fleet - 48,555 24.8 % - -\n");
    has(&text, "loaded 4 8 6.3 % 1 97 0.01\n");
    has(&text, "fleet: max/mean, then sums 3.00 3.00 3.00 4 246 0.02\n");
    has(&text, "loaded 1 128 32 4,096 3,838\n");
    has(&text, "loaded 101 42.5 ms <= 10.0 ms <= 40.0 ms 16 us");
    has(&text, "Cannot be decided from a saved page");
    has(
        &text,
        "Because: vllm:num_requests_waiting is 8.0 at the busiest replica and 2.7 in the mean, 3.00 times as many",
    );
    assert!(!text.contains("Missing counters") && !text.contains("Not read"), "{text}");

    let json = json(&pages).await;
    assert_eq!(json["fleet"]["hit_tokens"], 12_032.0);
    assert_eq!(json["capacity_tokens"], 3.0 * 4096.0);
    assert_eq!(json["replicas"][0]["since_start"]["ttft"]["p95_at_most_seconds"], 0.04);
    assert_eq!((&json["basis"], &json["advice"][0]["rule"]), (&"since_start".into(), &"uneven".into()));
}

#[tokio::test]
async fn an_idle_page_says_that_nothing_was_asked() {
    let text = printed(&[&fixture("vllm/idle.txt")]).await;
    has(&text, "idle - 0 - - -\n");
    has(&text, "Because: of idle no prompt token was looked up (vllm:prefix_cache_queries_total is 0)\n");
    has(&text, "vllm:request_prefill_time_seconds has counted no request: nothing can be said.");
}

#[tokio::test]
async fn an_interval_shows_what_counters_since_the_start_hide() {
    let url = scripted(&[&page(1, 1000, 900, 1), &page(1, 1400, 940, 4)]).await;
    let text = printed(&[&format!("a={url}"), "--interval", "1ms"]).await;
    has(&text, "1,400 67.1 % 400 10.0 %\n");
    has(&text, "What follows is judged over 0.0 s.\n");
    has(&text, "a - 2.5 -");
    let url = scripted(&[&page(1, 1000, 900, 0)]).await;
    let text = printed(&[&url, "--interval", "1ms"]).await;
    has(&text, "judged since the start: between the readings no prompt token was looked up.");
    let text = printed(&[&url, "--interval", "0"]).await;
    has(&text, "judged since the start: there was one reading only");
}

#[tokio::test]
async fn each_bad_source_is_one_line_and_the_rest_is_reviewed() {
    let good = scripted(&[&page(1, 1000, 500, 0), &page(1, 1100, 600, 0)]).await;
    let restarted = scripted(&[&page(1, 9000, 500, 0), &page(1, 20, 10, 0)]).await;
    let replaced = scripted(&[&page(1, 10, 5, 0), &page(2, 30, 10, 0)]).await;
    let gone = refusing().await;
    let other = scripted(&["up 1\n"]).await;
    let html = written("page.html", "<html>\n<body>no</body>\n");
    let cut = written("cut.txt", &(page(1, 400, 100, 0) + "vllm:kv_cache_usage_perc{eng"));
    let sources = [&good, &restarted, &replaced, &gone, &other, &html, &cut, &"no/such/file".to_owned()];
    let words: Vec<&str> =
        sources.iter().map(|source| source.as_str()).chain(["--interval", "1ms"]).collect();
    let text = printed(&words).await;
    for line in [
        format!(
            "{restarted}/metrics: restarted between the readings (vllm:prefix_cache_queries_total fell from 9000 to 20)"
        ),
        format!(
            "{replaced}/metrics: restarted between the readings (process_start_time_seconds went from 1 to 2)"
        ),
        format!("{gone}/metrics: "),
        format!("{other}/metrics: found 1 samples and none of vllm:*"),
        format!("{html}: found no sample of Prometheus' text, line 1: found \"<html>\""),
        format!(
            "{cut}: 1 lines are no samples, line 5: found \"vllm:kv_cache_usage_perc{{eng\"; the rest was read"
        ),
        "no/such/file: No such file or directory".to_owned(),
    ] {
        assert_eq!(
            text.lines().filter(|found| found.trim().starts_with(&line)).count(),
            1,
            "{line:?} in\n{text}"
        );
    }
    assert!(text.contains("Connection refused"), "{text}");
    // The good one alone was read twice; the restarted ones count with their second lives.
    has(&text, "fleet (4 of 8) - 1,550 46.5 % 100 100.0 %\n");
    has(&text, "vllm:cache_config_info of every replica: cannot be said: what the cache holds");
}

#[tokio::test]
async fn a_password_in_an_address_is_never_shown() {
    let with_password =
        |url: &str, password: &str| url.replace("http://", &format!("http://user:{password}@"));
    let good = scripted(&[&page(1, 1000, 2000, 0)]).await;
    let gone = refusing().await;
    let name = good.replace("http://", "");
    let sources = [
        with_password(&good, "SECRET"),
        format!("={}", with_password(&good, "SECRET")),
        with_password(&gone, "SECRET"),
        with_password(&gone, "SEC/SECRET"),
        with_password("http://[::", "SECRET"),
        with_password("HTTP://h", "SECRET").replace("HTTP://", "HTTP://user:SECRET@"),
    ];
    let words: Vec<&str> = sources.iter().map(String::as_str).chain(["--interval", "0"]).collect();
    for face in [&["--markdown"][..], &["--json"], &[]] {
        let text = printed(&[&words, face].concat()).await;
        assert!(text.contains(&name) && text.contains(&format!("{gone}/metrics: ")), "{text}");
        assert!(!text.contains("SECRET") && !text.contains("user"), "{text}");
    }
}

#[tokio::test]
async fn more_found_than_looked_up_is_said_and_left_out() {
    let wrong = written("wrong.txt", &page(1, 1000, 2000, 0));
    let right = written("right.txt", &page(1, 1000, 500, 0));
    let text = printed(&[&wrong, &right]).await;
    let figures = "vllm:prefix_cache_hits_total is 2000 and vllm:prefix_cache_queries_total 1000";
    has(
        &text,
        &format!(
            "{wrong}: {figures} since the start: they contradict each other, and its hit rate is left out\n"
        ),
    );
    has(&text, "wrong - 1,000 - - -\n");
    has(&text, "fleet - 1,000 50.0 % - -\n");
    has(&printed(&[&wrong]).await, &format!("Because: of wrong {figures}\n"));
}

#[tokio::test]
async fn with_nothing_read_the_review_says_why_and_fails() {
    let (text, ended) = output(&["no/such/file"]).await;
    assert_eq!(
        ended.unwrap_err().to_string(),
        "review: found no page that can be read among 1, wanted one at least"
    );
    has(&text, "no/such/file: No such file or directory");
    has(&text, "Because: no page could be read");
}

/// Requests of a trace sent in turn to each server, as a Service would.
async fn send_in_turn(trace: &[TraceRequest], servers: &[RunningFakeServer]) {
    for (place, server) in servers.iter().enumerate() {
        let part: Vec<_> = trace.iter().skip(place).step_by(servers.len()).cloned().collect();
        let plan = Arc::new(Plan::of_bodies(part, Edits::default()));
        let (target, pace) =
            (Arc::new(Target::of(&server.url())), Pace::Open { speed: 1.0, in_flight_max: usize::MAX });
        let records = replay::collect(&plan, &target, pace, &|_| {}).await.unwrap();
        assert_eq!(report::failures(&records), None);
    }
}

#[tokio::test]
async fn live_servers_behind_a_round_robin_are_told_to_route_by_prefix() {
    let path = fixture("seed/traces/default.jsonl");
    let trace = file::read(Path::new(&path)).unwrap();
    let at_once: Vec<_> =
        trace.iter().map(|request| TraceRequest { at: Default::default(), ..request.clone() }).collect();
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(FakeServer::start(FakeServerOptions::default()).await.unwrap());
    }
    send_in_turn(&at_once, &servers).await;
    let urls: Vec<String> = servers.iter().map(RunningFakeServer::url).collect();
    let words: Vec<&str> =
        urls.iter().map(String::as_str).chain(["--interval", "0", "--trace", &path]).collect();
    let (text, json) = (printed(&words).await, json(&words).await);

    let figures: Vec<_> = servers.iter().map(|server| server.figures().cache).collect();
    let (queries, hits) =
        figures.iter().fold((0, 0), |sum, one| (sum.0 + one.query_tokens, sum.1 + one.hit_tokens));
    assert_eq!((json["fleet"]["query_tokens"].as_f64(), queries), (Some(14_144.0), 14_144));
    assert_eq!(json["fleet"]["hit_tokens"].as_f64(), Some(hits as f64));
    assert!((json["trace"]["ceiling"].as_f64().unwrap() - 10_752.0 / 14_144.0).abs() < 1e-9);
    assert_eq!(json["advice"][0]["rule"], "routing", "{text}");
    has(&text, "Ceiling: 76.0 %: 10,752 of 14,144 prompt tokens, found by one cache without a bound.");
    has(&text, "The replicas looked up 14,144 tokens since the start, as many as the trace has");
    has(&text, "The fleet: 3,072 tokens in 3 caches.");
    let play = |name: &str| {
        json["trace"]["plays"].as_array().unwrap().iter().find(|play| play["policy"] == name).unwrap().clone()
    };
    // What tenants share is their system prompts, all of one length.
    let mut reached: HashMap<&str, HashSet<usize>> = HashMap::new();
    for (place, request) in trace.iter().enumerate() {
        reached.entry(&request.group).or_default().insert(place % 3);
    }
    let mean = reached.values().map(HashSet::len).sum::<usize>() as f64 / reached.len() as f64;
    assert_eq!(play("round-robin")["caches_per_shared_block"], mean);
    let best = play(json["trace"]["best"].as_str().unwrap());
    assert!(best["hit_rate"].as_f64() > play("round-robin")["hit_rate"].as_f64(), "{json}");
}

#[tokio::test]
async fn a_trace_in_mooncakes_form_is_played_on_the_fleets_capacity() {
    let trace = fixture("traces/taubench_airline_bs64.jsonl");
    let page = fixture("vllm/loaded.txt");
    let words = [&page, &page, "--trace", &trace].map(|word| word as &str);
    let (text, json) = (printed(&words).await, json(&words).await);
    assert_eq!(json["replicas"][1]["name"], "loaded-2");
    assert_eq!(json["trace"]["block_size"], 64);
    // 12,427 computed tokens in 3.5189 s of prefill, of both pages alike.
    assert!((json["trace"]["tokens_per_second"].as_f64().unwrap() - 12_427.0 / 3.518919823).abs() < 1e-3);
    has(&text, "Simulated on 2 caches of 4,096 tokens, the fleet's own, each at 3,531 tokens/s (as measured");
    let unlike = "the trace's prompts have 2,068 tokens in the mean and those of the replicas 213, more than a quarter apart";
    has(&text, unlike);
    assert_eq!((&json["trace"]["unlike"], &json["advice"][0]["rule"]), (&unlike.into(), &"seats".into()));
    has(&text, "are not the ");
}

/// Requests of one page: how many ended, and their seconds of prefill.
fn prefilled(ended: u32, seconds: u32) -> String {
    let times = |name: &str, sum: u32| {
        format!(
            "vllm:request_{name}_time_seconds_count {ended}\nvllm:request_{name}_time_seconds_sum {sum}\n"
        )
    };
    times("prefill", seconds) + &times("decode", 30)
}

#[tokio::test]
async fn disaggregation_is_judged_by_an_interval_of_whatever_was_counted_in_it() {
    let pages = async |first: (u32, u32), second: (u32, u32)| {
        scripted(&[&prefilled(first.0, first.1), &prefilled(second.0, second.1)]).await
    };
    let review = async |sources: &[&String], interval: &str| {
        let sources: Vec<&str> = sources.iter().map(|source| source.as_str()).collect();
        printed(&[&sources[..], &["--interval", interval]].concat()).await
    };
    let idle = pages((5, 10), (8, 10)).await;
    let busy = pages((5, 10), (8, 1_000_000)).await;
    let other = pages((5, 10), (8, 10)).await;
    let text = review(&[&idle, &other], "1ms").await;
    has(&text, "6 requests spent 0.0 s in prefill and 0.0 s in decode over 0.0 s.\n");
    has(&text, "No, at this load");
    let text = review(&[&idle, &busy], "1ms").await;
    has(&text, "more than the 2 replicas measured: some share a replica");
    has(&text, "Perhaps: prefill can be more than one replica's work, or less");
    let text = review(&[&busy, &idle], "0").await;
    has(&text, "Cannot be decided from a saved page or an average since the start");
    // Idle's counters stand still from here on: it was measured all the same.
    let cut = scripted(&[&prefilled(5, 10), "<html>\n"]).await;
    let once_more = pages((5, 10), (8, 10)).await;
    let text = review(&[&idle, &cut, &once_more], "1ms").await;
    has(&text, "0.00 of 2.\nCannot be decided: 2 of 3 replicas were measured");
}

#[tokio::test]
async fn caches_of_unlike_sizes_are_played_as_their_mean_and_it_is_said() {
    let sized = |blocks: u32| {
        let config = format!("vllm:cache_config_info{{block_size=\"64\",num_gpu_blocks=\"{blocks}\"}} 1\n");
        written(&format!("{blocks}_of_64.txt"), &(page(1, 64, 0, 0) + &config))
    };
    let line = "{\"timestamp\":0,\"input_length\":64,\"output_length\":1,\"hash_ids\":[1]}\n";
    let (large, small, trace) = (sized(64), sized(16), written("one_block.jsonl", line));
    let words = [&large, &large, &small, "--trace", &trace].map(|word| word as &str);
    has(
        &printed(&words).await,
        "Simulated on caches of 1,024 to 4,096 tokens, played as 3 of 3,072, their mean, each at 12,000",
    );
    assert_eq!(json(&words).await["trace"]["plays"][0]["of_ceiling"], Value::Null);
}

/// A cache that was emptied, and traffic of the trace's mean length.
#[tokio::test]
async fn a_hit_rate_far_below_round_robins_is_not_for_routing_to_mend() {
    let (page, trace) = (fixture("vllm/after_eviction.txt"), fixture("seed/traces/default.jsonl"));
    let words = [&page, &page, &page, "--trace", &trace].map(|word| word as &str);
    let (text, json) = (printed(&words).await, json(&words).await);
    has(
        &text,
        "Because: the hit rate is 8.6 % since the start, and even round-robin, on caches of this size, has 57.0 % of the trace",
    );
    has(&text, "of the way to 76.0 % by expected-ttft routing can give 19.0 points at most");
    let rules: Vec<_> = json["advice"].as_array().unwrap().iter().map(|advice| &advice["rule"]).collect();
    assert_eq!(rules[0], "unexplained", "{rules:?}");
    assert!(!rules.contains(&&"routing".into()), "{rules:?}");
    assert!(!text.contains("Routing comes first"), "{text}");
}

/// Four prompts of 640 tokens in turn, ten times: half of them at a time is a cache that has always just forgotten the next one.
#[tokio::test]
async fn a_trace_that_the_caches_cannot_hold_asks_for_room() {
    let line = |turn: u32| {
        let first = turn % 4 * 10;
        let ids: Vec<_> = (first..first + 10).map(|id| id.to_string()).collect();
        let ids = ids.join(",");
        format!(
            "{{\"timestamp\":{},\"input_length\":640,\"output_length\":1,\"hash_ids\":[{ids}]}}\n",
            turn * 1000
        )
    };
    let trace = written("cyclic.jsonl", &(0..40).map(line).collect::<String>());
    let advice = async |blocks: u32| {
        let config = format!("vllm:cache_config_info{{block_size=\"64\",num_gpu_blocks=\"{blocks}\"}} 1\n");
        let page = written(&format!("{blocks}_blocks.txt"), &(page(1, 25_600, 0, 0) + &config));
        json(&[&page, "--trace", &trace]).await["advice"].take()
    };
    let tight = advice(20).await;
    let because = "an endless cache has 81.0 % of the trace, one of the fleet's 1,280 tokens 0.0 %: 81.0 points are lost for want of memory, \
                   however prompts are routed; of the trace's 2,560 distinct tokens 2,560 are asked for again";
    assert_eq!((&tight[0]["rule"], &tight[0]["because"]), (&"room".into(), &because.into()), "{tight}");
    let ample = advice(60).await;
    assert!(ample.as_array().unwrap().iter().all(|advice| advice["rule"] != "room"), "{ample}");
}

#[tokio::test]
async fn what_is_wrong_in_a_trace_is_left_out_and_said() {
    let page = fixture("vllm/loaded.txt");
    let body = |at: u32, body: &str| format!("{{\"at\":{at},\"group\":\"g\",\"body\":{body}}}\n");
    let good = r#"{"prompt":"a b c"}"#;
    let lines = [
        &body(0, good),
        "{\"at\":1,\n",
        &body(1, r#"{"model":"m"}"#),
        &body(2, r#"{"prompt":""}"#),
        &body(3, good),
    ];
    let trace = written("some_bad.jsonl", &lines.concat());
    let text = printed(&[&page, "--trace", &trace]).await;
    has(&text, &format!("{trace}: 1 bad lines left out, the first: {trace}:2:8: EOF while parsing"));
    has(
        &text,
        "2 requests left out: request 2: found none of messages, prompt and input; request 3: found a prompt without text\n",
    );
    has(&text, "Trace: 2 requests in 3.0 s");

    let hashed = |ids: &str| {
        format!("{{\"timestamp\":0,\"input_length\":100,\"output_length\":1,\"hash_ids\":[{ids}]}}\n")
    };
    let trace = written("no_ids.jsonl", &(hashed("1,2") + &hashed("") + &hashed("1,3")));
    let text = printed(&[&page, "--trace", &trace]).await;
    has(&text, "1 requests left out: request 2: found 0 hash ids, wanted 2 for 100 tokens in blocks of 64\n");
    let trace = written("all_bad.jsonl", "nonsense\n");
    for path in [trace.as_str(), "no/such/trace"] {
        let text = printed(&[&page, "--trace", path]).await;
        assert!(text.contains(&format!("\n  {path}: ")) && text.contains("39.4 %"), "{text}");
        has(&text, "without a trace nobody knows what the hit rate could be");
    }
}

#[tokio::test]
async fn markdown_has_the_same_parts() {
    let page = fixture("vllm/loaded.txt");
    let (text, markdown) = (printed(&[&page]).await, printed(&[&page, "--markdown"]).await);
    assert!(markdown.starts_with("# Review of 1 replica\n\n## Change first\n\n- Because: "), "{markdown}");
    let heads = markdown.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(heads.clone().count(), 6, "{markdown}");
    for head in heads {
        assert!(text.contains(&format!("\n{head}\n")), "{head}");
    }
    assert!(markdown.contains("| loaded | 1 | 128 | 32 | 4,096 | 3,838 |\n"), "{markdown}");
}
