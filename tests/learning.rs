//! What reports, restarts and sleep teach the router about the caches behind it.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::log::Received;
use harness::router::{POLICIES, row};
use harness::script::{chunk, last_chunk};
use harness::{Answer, Load, Metrics, Router, Setup, Signal, Step, Stub, prompts};
use serde_json::Value;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// Tokens of `prompts::cold` as these engines count them: four bytes each.
const TOKENS: usize = 1_030;

/// An engine's answer, its usage included.
fn reporting(cached: usize) -> Answer {
    Answer::json(200, &format!("{{\"choices\":[],{}}}", usage(cached)))
}

fn usage(cached: usize) -> String {
    format!(
        r#""usage":{{"prompt_tokens":{TOKENS},"completion_tokens":1,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
    )
}

/// The same as the last event of a stream, cut in the middle.
fn streaming(cached: usize) -> Answer {
    streaming_cut(cached, 80)
}

fn streaming_cut(cached: usize, at: usize) -> Answer {
    let last = format!("data: {{\"choices\":[],{}}}\r\n\r\ndata: [DONE]\n\n", usage(cached));
    let (begin, end) = last.split_at(at);
    Answer::stream([chunk("data: {\"choices\":[{}]}\n\n"), chunk(begin), chunk(end), last_chunk()])
}

/// An engine that caches what it is sent, whole prompts only, and can lose all of it.
#[derive(Clone, Default)]
struct Cache(Arc<Mutex<HashSet<Vec<u8>>>>);

impl Cache {
    fn behind(stub: &Stub) -> Self {
        let cache = Self::default();
        let script = cache.clone();
        stub.script(move |request| script.answer(request));
        cache
    }

    /// The body is not read yet when the answer is chosen, so the prompt is named by a header.
    fn answer(&self, request: &Received) -> Answer {
        let name = request.head.header("x-session-id").unwrap_or_default().as_bytes().to_vec();
        let known = !self.0.lock().unwrap().insert(name);
        reporting(if known { TOKENS - 6 } else { 0 })
    }

    fn reset(&self) {
        self.0.lock().unwrap().clear();
    }
}

async fn pair(policy: &str) -> (Stub, Stub, Router) {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let router = Setup::of(&[&a, &b]).policy(policy).start().await;
    (a, b, router)
}

/// Sends prompt number `seed`, named so that a `Cache` knows it.
async fn send(router: &Router, seed: u64) -> harness::Response {
    let body = prompts::cold(seed);
    let head = harness::client::post_head(
        "/v1/chat/completions",
        &format!("x-session-id: {seed}\r\ncontent-length: {}\r\n", body.len()),
    );
    harness::exchange(router.data, [head, body.into_bytes()].concat()).await
}

async fn load(router: &Router, name: &str, stub: &Stub, waiting: f64) {
    stub.load(Load::waiting(waiting));
    router.sees(name, "waiting", waiting).await;
}

/// Warms prompts on `a`, while `b` is busy.
async fn warm(router: &Router, b: &Stub, seeds: std::ops::RangeInclusive<u64>) {
    load(router, "b", b, 50.0).await;
    for seed in seeds {
        assert_eq!(send(router, seed).await.endpoint(), "a");
    }
    load(router, "b", b, 0.0).await;
}

/// Matched and total blocks that `a` is credited with, of prompt number `seed`.
async fn credit(router: &Router, seed: u64) -> u64 {
    let explained = router.explain(&prompts::cold(seed)).await.json();
    let of_a = explained["scores"].as_array().unwrap().iter().find(|it| it["endpoint"] == "a");
    of_a.unwrap()["matched"].as_u64().unwrap()
}

async fn belief(router: &Router, what: &str, count: u64) {
    router
        .until_state(&format!("{count} {what}"), |state| {
            (row(state, "a")?["belief"][what] == count).then_some(())
        })
        .await;
}

// D08, case 1
#[tokio::test]
async fn an_address_where_nobody_listened_has_an_empty_cache_behind_it() {
    for policy in POLICIES {
        let (a, b, router) = pair(policy).await;
        warm(&router, &b, 1..=1).await;
        assert_eq!(credit(&router, 1).await, 17);
        a.refuse().await;
        belief(&router, "drops", 1).await;
        a.accept_again().await;
        router.sees("a", "usable", true).await;
        load(&router, "a", &a, 2.0).await;
        assert_eq!(credit(&router, 1).await, 0);
        assert_eq!(send(&router, 1).await.endpoint(), "b");
        assert_eq!(router.endpoint("a").await["belief"]["drops"], 1, "once, however long it was away");
    }
}

/// One refused connect is no restart: a backlog may run over.
#[tokio::test]
async fn an_address_that_refuses_once_keeps_its_credit() {
    for policy in POLICIES {
        let (a, b) = (Stub::start().await, Stub::start().await);
        let router = Setup::of(&[&a, &b])
            .policy(policy)
            .pool("load: {scrape_interval: 3s, stale_after: 1m}")
            .start()
            .await;
        b.refuse().await;
        assert_eq!(send(&router, 1).await.endpoint(), "a");
        a.refuse().await;
        send(&router, 2).await.assert_router_error(502);
        a.accept_again().await;
        assert_eq!(send(&router, 1).await.matched(), (17, 17));
    }
}

fn page(started: u32, queries: u32, more: &str) -> Metrics {
    let load = Load::IDLE.page();
    Metrics::Page(format!(
        "{load}process_start_time_seconds {started}\nvllm:prefix_cache_queries_total {queries}\n{more}"
    ))
}

// D08, case 2
#[tokio::test]
async fn a_restart_that_only_the_page_tells_of_empties_the_cache() {
    for policy in POLICIES {
        for (shows, after) in [("a later start", page(200, 90_000, "")), ("counters at 0", page(100, 0, ""))]
        {
            let (a, b, router) = pair(policy).await;
            a.metrics(page(100, 90_000, ""));
            a.scrapes(2).await;
            warm(&router, &b, 1..=1).await;
            assert_eq!(credit(&router, 1).await, 17, "{shows}");
            a.metrics(after);
            belief(&router, "drops", 1).await;
            assert_eq!(credit(&router, 1).await, 0, "{shows}");
        }
    }
}

fn sleep_state(awake: u8) -> Metrics {
    let series = |state: &str, value: u8| {
        format!("vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"{state}\"}} {value}\n")
    };
    page(
        100,
        0,
        &(series("awake", awake) + &series("weights_offloaded", 1 - awake) + &series("discard_all", 0)),
    )
}

// D09, case 1
#[tokio::test]
async fn an_engine_that_sleeps_gets_nothing_and_has_nothing_when_it_wakes() {
    for policy in POLICIES {
        let (a, b, router) = pair(policy).await;
        a.metrics(sleep_state(1));
        router.sees("a", "asleep", false).await;
        warm(&router, &b, 1..=10).await;
        a.always(Answer::steps([Step::Hang]));
        a.metrics(sleep_state(0));
        router.sees("a", "asleep", true).await;
        assert_eq!(router.endpoint("a").await["usable"], false);
        for seed in 1..=10 {
            assert_eq!(send(&router, seed).await.endpoint(), "b", "while it sleeps");
        }
        a.metrics(sleep_state(1));
        a.always(reporting(0));
        router.sees("a", "usable", true).await;
        for seed in 1..=10 {
            assert_eq!(credit(&router, seed).await, 0, "prompt {seed} after it woke");
        }
    }
}

/// Better a queue than an error.
#[tokio::test]
async fn when_all_sleep_one_is_tried() {
    for policy in POLICIES {
        let (a, b, router) = pair(policy).await;
        for (name, stub) in [("a", &a), ("b", &b)] {
            stub.metrics(sleep_state(0));
            router.sees(name, "asleep", true).await;
        }
        assert_eq!(send(&router, 1).await.status(), 200);
        let ready = harness::exchange(router.admin, harness::get("/readyz")).await;
        assert_eq!(ready.status(), 503, "but the fleet is not ready");
    }
}

// D09, case 2
#[tokio::test]
async fn three_predicted_hits_that_find_nothing_cost_the_rest_its_credit() {
    for policy in POLICIES {
        let (a, b, router) = pair(policy).await;
        let cache = Cache::behind(&a);
        warm(&router, &b, 1..=10).await;
        assert_eq!(send(&router, 7).await.endpoint(), "a");
        cache.reset();
        for seed in 1..=3 {
            assert_eq!(send(&router, seed).await.matched(), (17, 17), "prompt {seed}");
            belief(&router, "truncations", seed).await;
        }
        belief(&router, "drops", 1).await;
        for seed in 1..=3 {
            assert_eq!(credit(&router, seed).await, 17, "prompt {seed} has been sent since");
        }
        for seed in 4..=10 {
            assert_eq!(credit(&router, seed).await, 0, "prompt {seed}");
        }
    }
}

/// Waits until so many predictions have been compared with reports.
async fn checked(router: &Router, count: u64) {
    let line = format!("prefixroute_prediction_error_ratio_count {count}\n");
    harness::until(&line, harness::DEADLINE, || async {
        router.metrics().await.contains(&line).then_some(())
    })
    .await;
}

// D22: what is recorded of a usage event is the same wherever two writes cut it.
#[tokio::test]
async fn a_usage_event_says_the_same_however_it_is_cut() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    for at in 1..130 {
        stub.always(streaming_cut(1_000, at));
        assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
    }
    checked(&router, 129).await;
    let metrics = router.metrics().await;
    for line in [
        "prefixroute_cached_tokens_total{endpoint=\"a\"} 129000\n".to_owned(),
        format!("prefixroute_prompt_tokens_total{{endpoint=\"a\"}} {}\n", 129 * TOKENS),
    ] {
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
}

/// Two misses and a hit are a cache that is too small, not one that was lost.
#[tokio::test]
async fn misses_with_a_hit_between_them_cost_the_rest_nothing() {
    for policy in POLICIES {
        let (a, b, router) = pair(policy).await;
        a.always(reporting(0));
        warm(&router, &b, 1..=10).await;
        for (number, (seed, cached)) in (1..).zip([(1, 0), (2, 0), (3, TOKENS - 6), (4, 0), (5, 0)]) {
            a.always(reporting(cached));
            assert_eq!(send(&router, seed).await.endpoint(), "a");
            checked(&router, 10 + number).await;
        }
        assert_eq!(router.endpoint("a").await["belief"], serde_json::json!({"truncations": 4, "drops": 0}));
        assert_eq!(credit(&router, 9).await, 17);
    }
}

/// A chat whose first message is shared and whose second is its own.
fn conversation(shared: u64, own: u64) -> String {
    let (system, question) = (prompts::text(shared, 4096), prompts::text(own, 4096));
    format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}]}}"#
    )
}

async fn credit_of(router: &Router, body: &str) -> (u64, u64) {
    let explained = router.explain(body).await.json();
    let (matched, total) = explained["match"].as_str().unwrap().split_once('/').unwrap();
    (matched.parse().unwrap(), total.parse().unwrap())
}

/// A shortfall costs what hung behind the lost part its credit, for whole answers and for streams; the prompt itself
/// has just been computed.
#[tokio::test]
async fn a_shortfall_truncates_what_is_believed() {
    for answer in [reporting as fn(usize) -> Answer, streaming] {
        let stub = Stub::start().await;
        let router = Setup::of(&[&stub]).start().await;
        stub.always(answer(0));
        let [first, second] = [10, 11].map(|own| conversation(1, own));
        router.chat(&first).await;
        stub.always(answer(TOKENS / 2));
        router.chat(&second).await;
        assert_eq!(router.endpoint("a").await["belief"]["truncations"], 0);
        let before = credit_of(&router, &first).await;
        assert_eq!(before.0, before.1);
        // A third finds half of the system prompt that all share.
        stub.always(answer(TOKENS / 4));
        router.chat(conversation(1, 12)).await;
        belief(&router, "truncations", 1).await;
        let after = credit_of(&router, &first).await;
        assert!(after.0 < before.0, "{after:?} after {before:?}");
        let new = credit_of(&router, &conversation(1, 12)).await;
        assert_eq!(new.0, new.1, "what was just sent");
        assert_eq!(router.endpoint("a").await["belief"]["drops"], 0);
    }
}

/// A report of more than was predicted, and one of what is being computed at the time, change nothing.
#[tokio::test]
async fn reports_that_say_nothing_against_the_belief_change_nothing() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    stub.always(reporting(TOKENS - 6));
    for _ in 0..3 {
        router.chat(prompts::cold(1)).await;
    }
    // Two equal prompts at once: the second is believed to be there and finds nothing, for it is only being computed.
    let go = Signal::default();
    let waiting = go.clone();
    stub.script(move |_| Answer::steps([Step::Wait(waiting.clone())].into_iter().chain(reporting(0).steps)));
    let release = async {
        router.sees("a", "in_flight", 2).await;
        go.fire_all();
    };
    let (one, other, ()) =
        tokio::join!(router.chat(prompts::cold(2)), router.chat(prompts::cold(2)), release);
    let mut matched = [one.matched().0, other.matched().0];
    matched.sort_unstable();
    assert_eq!(matched, [0, 17]);
    checked(&router, 5).await;
    assert_eq!(router.endpoint("a").await["belief"]["truncations"], 0);
}

/// Panics unless a line of a page is a comment or a sample of Prometheus' text format.
fn assert_legal(line: &str) {
    if line.is_empty() || line.starts_with("# HELP ") || line.starts_with("# TYPE ") {
        return;
    }
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(value.parse::<f64>().is_ok(), "{line}");
    let (name, labels) = series.split_once('{').map_or((series, ""), |(name, rest)| {
        (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("{line}")))
    });
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'), "{line}");
    assert!(labels.matches('"').count().is_multiple_of(2), "{line}");
}

// D41 (hundreds stand for thousands). No series has a label of a client's: there is no model, path or method in any.
#[tokio::test]
async fn made_up_names_make_no_series_and_a_bounded_list() {
    let stub = Stub::answering(reporting(0)).await;
    let router = Setup::of(&[&stub]).start().await;
    router.chat(prompts::cold(0)).await;
    let series = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
    let before = series(&router.metrics().await);
    for number in 0..300 {
        let body = prompts::cold(1).replacen("\"m\"", &format!("\"model-{number}\""), 1);
        assert_eq!(router.chat(body).await.status(), 200);
    }
    for odd in [
        r#""a\"b""#,
        r#""a\\b""#,
        r#""a\nb""#,
        r#""""#,
        "\"\u{1f600}\"",
        &format!("\"{}\"", "x".repeat(1 << 20)),
    ] {
        let body = prompts::cold(2).replacen("\"m\"", odd, 1);
        assert_eq!(router.chat(body).await.status(), 200, "{:.20}", odd);
    }
    for number in 0..300 {
        let method = ["GET", "PUT", "DELETE", "PURGE", "X-ODD"][number % 5];
        let request =
            format!("{method} /v1/made-up/{number} HTTP/1.1\r\nhost: router\r\ncontent-length: 0\r\n\r\n");
        harness::exchange(router.data, request).await;
    }
    let page = router.metrics().await;
    assert!(series(&page) <= before + 20, "{} series grew to {}", before, series(&page));
    assert!(!page.contains("model-7") && !page.contains("made-up") && !page.contains("PURGE"));
    page.lines().for_each(assert_legal);
    let state = router.state().await;
    let models = state["models"].as_array().unwrap();
    assert!((2..=65).contains(&models.len()), "{}", models.len());
    let named: Vec<&Value> = models.iter().filter(|model| model["model"] == "m").collect();
    assert!(named.len() == 1 && named[0]["answers"] == 1, "{named:?}");
}
