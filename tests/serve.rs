//! The `serve` command as an operator meets it: start, admin listener, logs, drain, and input it refuses.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::Response;
use harness::prompts::cold;
use harness::router::free_addresses;
use harness::script::{chunk, last_chunk, write};
use harness::{
    Answer, Client, DEADLINE, Load, Router, Setup, Signal, Step, Stub, exchange, get, post, until,
};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/chat/completions";
/// The pace of an engine that writes its head byte by byte.
const TRICKLE: Duration = Duration::from_millis(100);

async fn pair() -> (Stub, Stub, Router) {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let router = Setup::of(&[&a, &b]).start().await;
    (a, b, router)
}

// Behaviours 58 and 59
#[tokio::test]
async fn a_request_is_picked_committed_forwarded_and_explained_in_headers() {
    let (a, b, router) = pair().await;
    let first = router.chat(cold(1)).await;
    let second = router.chat(cold(1)).await;
    assert_eq!(first.header("x-prefixroute-policy"), Some("expected-ttft"));
    let took: f64 = first.header("x-prefixroute-decision-us").unwrap().parse().unwrap();
    assert!(took > 0.0, "a decision takes time");
    let (total, again) = (first.matched().1, second.matched());
    assert!(total >= 16, "4 KB are 16 blocks of 256 bytes and more: {total}");
    assert_eq!((first.matched().0, again), (0, (total, total)));
    assert_eq!(first.endpoint(), second.endpoint());
    let served = if first.endpoint() == "a" { &a } else { &b };
    assert_eq!((served.count(), a.count() + b.count()), (2, 2));
}

// Behaviour 59
#[tokio::test]
async fn a_request_without_a_prompt_matches_nothing_of_nothing() {
    let (_a, _b, router) = pair().await;
    let response = exchange(router.data, get("/v1/models")).await;
    assert_eq!(response.header("x-prefixroute-match"), Some("0/0"));
    assert!(["a", "b"].contains(&response.endpoint().as_str()));
}

// Behaviour 59
#[tokio::test]
async fn response_headers_can_be_switched_off() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml("response_headers: false").start().await;
    let response = router.chat(cold(1)).await;
    let own =
        response.head.headers.iter().filter(|(name, _)| name.to_lowercase().starts_with("x-prefixroute"));
    assert_eq!(own.count(), 0, "{response:?}");
}

// Behaviour 60, at the interval of the configuration.
#[tokio::test]
async fn metrics_are_scraped_again_and_again() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    for waiting in [3.0, 0.0, 7.0] {
        stub.load(Load { waiting, running: 2.0, kv: 0.25 });
        router.sees("a", "waiting", waiting).await;
    }
    router.sees("a", "running", 2).await;
    router.sees("a", "kv_usage", 0.25).await;
}

// Behaviour 61
#[tokio::test]
async fn a_dead_upstream_is_502() {
    let stub = Stub::start().await;
    let slow = "load:\n  scrape_interval: 60s\n  stale_after: 120s\n";
    let router = Setup::of(&[&stub]).pool(slow).start().await;
    stub.refuse().await;
    router.chat(cold(1)).await.assert_router_error(502);
    router.idle().await;
}

/// An endpoint known to be gone is not an endpoint: 503 and when to try again, or the 502 of a last try.
#[tokio::test]
async fn without_a_usable_endpoint_the_answer_is_503_with_retry_after_or_502() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    stub.refuse().await;
    router.sees("a", "usable", false).await;
    let response = router.chat(cold(1)).await;
    match response.status() {
        503 => assert!(response.header("retry-after").is_some(), "{response:?}"),
        _ => response.assert_router_error(502),
    }
}

// DESIGN 2.4: the first byte has a deadline of its own.
#[tokio::test]
async fn an_engine_that_says_nothing_is_504() {
    let stub = Stub::answering(Answer::steps([Step::Hang])).await;
    let router = Setup::of(&[&stub]).pool("timeouts:\n  first_byte: 300ms\n").start().await;
    router.chat(cold(1)).await.assert_router_error(504);
    stub.abandoned(0, Duration::from_secs(1)).await;
    router.idle().await;
}

/// The deadline is for the whole head: half of it does not stop the clock, and a byte now and then does not renew it.
#[tokio::test]
async fn an_engine_that_stops_or_trickles_in_its_head_is_504() {
    let half = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-le";
    let trickle = half.as_bytes().chunks(1).flat_map(|byte| [write(byte), Step::Pause(TRICKLE)]);
    for steps in [vec![write(half), Step::Hang], trickle.collect()] {
        let stub = Stub::answering(Answer::steps(steps)).await;
        let router = Setup::of(&[&stub]).pool("timeouts:\n  first_byte: 500ms\n").start().await;
        let started = Instant::now();
        router.chat(cold(1)).await.assert_router_error(504);
        let taken = started.elapsed();
        assert!((450..2000).contains(&taken.as_millis()), "ended after {taken:?}, wanted 500 ms");
        stub.abandoned(0, Duration::from_secs(1)).await;
        router.idle().await;
    }
}

#[tokio::test]
async fn a_stream_that_falls_silent_ends_visibly_broken() {
    let stub = Stub::answering(Answer::stream([chunk("data: 1\n\n"), Step::Hang])).await;
    let router = Setup::of(&[&stub]).pool("timeouts:\n  idle: 300ms\n").start().await;
    let response = router.chat(cold(1)).await;
    assert_eq!(response.text(), "data: 1\n\n");
    assert!(response.broken.is_some(), "{response:?}");
    stub.abandoned(0, Duration::from_secs(1)).await;
}

// Behaviour 62
#[tokio::test]
async fn the_state_is_json_with_every_endpoint_and_decision() {
    let (a, _b, router) = pair().await;
    let response = router.chat(cold(1)).await;
    router.idle().await;
    let state = router.state().await;
    assert_eq!(
        (&state["pools"][0]["policy"], &state["draining"]),
        (&"expected-ttft".into(), &false.into()),
        "{state}"
    );
    assert!(state["version"].is_string() || state["version"].is_number(), "{state}");
    assert!(state["index"]["bytes"].is_number(), "{state}");
    let row = router.endpoint(&response.endpoint()).await;
    for figure in
        ["waiting", "running", "kv_usage", "age_ms", "in_flight", "index_blocks", "index_capacity_blocks"]
    {
        assert!(row[figure].is_number(), "{figure} in {row}");
    }
    assert_eq!(row["index_blocks"].as_u64(), Some(response.matched().1 as u64), "the blocks of one prompt");
    assert_eq!(router.endpoint("a").await["url"], format!("http://{}", a.address()));
    let decisions = state["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 1, "{state}");
    assert_eq!(
        decisions[0]["scores"].as_array().map(Vec::len),
        Some(2),
        "a score for each endpoint: {state}"
    );
}

// Behaviour 62
#[tokio::test]
async fn the_state_is_on_the_data_listener_too_when_that_is_on_loopback() {
    let (_a, _b, router) = pair().await;
    let response = exchange(router.data, get("/prefixroute/state")).await;
    assert_eq!(response.json()["endpoints"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn explain_decides_and_sends_nothing() {
    let (a, b, router) = pair().await;
    let served = router.chat(cold(1)).await;
    let explained = router.explain(&cold(1)).await;
    assert_eq!(explained.status(), 200, "{explained:?}");
    assert_eq!(explained.header("content-type"), Some("application/json"));
    let text = explained.json().to_string();
    assert!(text.contains(&format!("\"{}\"", served.endpoint())), "{text}");
    assert_eq!(a.count() + b.count(), 1);
    let (matched, _) = router.chat(cold(2)).await.matched();
    assert_eq!(router.explain(&cold(3)).await.status(), 200);
    assert_eq!((matched, router.chat(cold(3)).await.matched().0), (0, 0), "explaining commits nothing");
}

#[tokio::test]
async fn the_admin_listener_answers_its_paths_and_no_others() {
    let (_a, _b, router) = pair().await;
    router.chat(cold(1)).await;
    let health = exchange(router.admin, get("/healthz")).await;
    assert_eq!((health.status(), health.text().trim()), (200, "ok"));
    assert_eq!(exchange(router.admin, get("/readyz")).await.status(), 200);
    let metrics = exchange(router.admin, get("/metrics")).await;
    assert!(metrics.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{metrics:?}");
    assert!(metrics.text().lines().any(|line| line.starts_with("prefixroute_")), "{}", metrics.text());
    assert_eq!(exchange(router.admin, get("/nothing")).await.status(), 404);
    assert_eq!(exchange(router.admin, get("/prefixroute/explain")).await.status(), 405);
}

/// Every sample line of the metrics page: a name, labels, a number.
#[tokio::test]
async fn the_metrics_page_parses() {
    let (_a, _b, router) = pair().await;
    router.chat(cold(1)).await;
    exchange(router.data, post(PATH, r#"{"model":"a\"b\\c\nd","messages":[]}"#)).await;
    for line in router.metrics().await.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        assert!(value.parse::<f64>().is_ok_and(|value| !value.is_nan()), "{line:?}");
        let name = series.split('{').next().unwrap();
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{line:?}");
    }
}

#[tokio::test]
async fn the_decision_time_has_buckets_from_250_ns() {
    let (_a, _b, router) = pair().await;
    router.chat(cold(1)).await;
    let metrics = router.metrics().await;
    let bucket = |line: &&str| {
        line.contains("decision")
            && (line.contains("le=\"0.00000025\"")
                || line.contains("le=\"2.5e-7\"")
                || line.contains("le=\"250"))
    };
    assert!(metrics.lines().find(bucket).is_some(), "{metrics}");
}

// Prompts and keys are nobody's business.
#[tokio::test]
async fn prompts_and_keys_are_never_shown() {
    let (_a, _b, router) = pair().await;
    let (prompt, key) = ("zebra-marker-prompt", "zebra-marker-key");
    let body = format!(
        r#"{{"model":"m","cache_salt":"zebra-marker-salt","messages":[{{"role":"user","content":"{prompt} {}"}}]}}"#,
        cold(1).len()
    );
    for (path, body) in [(PATH, body.as_str()), ("/v1/completions", r#"{"prompt":"zebra-marker-broken"#)] {
        let head = format!(
            "POST {path}?key={key} HTTP/1.1\r\nhost: r\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        assert_eq!(exchange(router.data, format!("{head}{body}")).await.status(), 200);
    }
    router
        .chat(format!(r#"{{"cache_salt":"{prompt}","cache_salt":"{key}"}}"#))
        .await
        .assert_router_error(400);
    let explained = router.explain(&body).await.text();
    router.idle().await;
    let shown = [router.state().await.to_string(), router.metrics().await, explained, router.output()];
    for (place, text) in ["state", "metrics", "explain", "log"].iter().zip(shown) {
        assert!(!text.contains("zebra-marker"), "{place}: {text}");
    }
}

#[tokio::test]
async fn a_request_is_one_line_of_log_at_most() {
    let (_a, _b, router) = pair().await;
    let before = router.output().lines().count();
    for seed in 0..20 {
        router.chat(cold(seed)).await;
    }
    router.idle().await;
    let lines = router.output().lines().count() - before;
    assert!(lines <= 22, "{lines} lines for 20 requests:\n{}", router.output());
}

/// A stream that the test lets go on one event at a time.
async fn stream_under_way(router: &Router, stub: &Stub) -> (Client, harness::wire::Framing, Signal) {
    let next = Signal::default();
    let events = (0..3).flat_map(|_| [chunk("data: tick\n\n"), Step::Wait(next.clone())]);
    stub.always(Answer::stream(events.chain([chunk("data: [DONE]\n\n"), last_chunk()])));
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, cold(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    client.body_until(&mut framing, b"\n\n").await;
    (client, framing, next)
}

#[tokio::test]
async fn sigterm_lets_a_stream_finish_and_takes_nothing_new() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).start().await;
    let (mut client, mut framing, next) = stream_under_way(&router, &stub).await;
    router.terminate().await;
    until("new connections to be refused or closed", DEADLINE, || async {
        refused(&router, &stub).await.then_some(())
    })
    .await;
    next.fire_all();
    let rest = client.body_until(&mut framing, b"[DONE]\n\n").await;
    assert_eq!(String::from_utf8_lossy(&rest), "data: tick\n\ndata: tick\n\ndata: [DONE]\n\n");
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}

/// Whether a new connection gets nothing through to the stub.
async fn refused(router: &Router, stub: &Stub) -> bool {
    let before = stub.count();
    let Ok(mut client) = Client::try_connect(router.data).await else { return true };
    let _ = client.try_send(get("/v1/models")).await;
    let answer = client.next_bytes().await;
    stub.count() == before && (answer.is_empty() || answer.starts_with(b"HTTP/1.1 503"))
}

#[tokio::test]
async fn sigterm_of_an_idle_router_ends_it_at_once() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).start().await;
    let mut idle = Client::connect(router.data).await;
    assert_eq!(idle.exchange(get("/v1/models")).await.status(), 200);
    router.terminate().await;
    assert_eq!(router.ended(Duration::from_secs(5)).await.code(), Some(0));
    idle.closed(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_draining_router_is_alive_but_not_ready() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).start().await;
    let (_client, _framing, next) = stream_under_way(&router, &stub).await;
    router.terminate().await;
    until("the router not to be ready", DEADLINE, || async {
        (exchange(router.admin, get("/readyz")).await.status() == 503).then_some(())
    })
    .await;
    assert_eq!(exchange(router.admin, get("/healthz")).await.status(), 200);
    assert_eq!(router.state().await["draining"], true);
    next.fire_all();
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}

#[tokio::test]
async fn an_unreachable_endpoint_starts_and_is_not_ready() {
    let [nowhere] = free_addresses();
    let router = Setup::default().endpoint("a", nowhere).start().await;
    assert_eq!(exchange(router.admin, get("/healthz")).await.status(), 200);
    assert_eq!(exchange(router.admin, get("/readyz")).await.status(), 503);
    let row = router.endpoint("a").await;
    assert_eq!(row["usable"], false, "{row}");
    assert!(row["last_error"].is_string(), "{row}");
}

/// A fleet may still be empty (D39): alive, not ready, 503.
#[tokio::test]
async fn without_endpoints_the_router_starts_and_is_not_ready() {
    let router = Setup::default().start().await;
    assert_eq!(exchange(router.admin, get("/readyz")).await.status(), 503);
    let response = router.chat(cold(1)).await;
    response.assert_router_error(503);
    assert!(response.header("retry-after").is_some(), "{response:?}");
}

#[tokio::test]
async fn an_unreachable_endpoint_that_appears_makes_the_router_ready() {
    let stub = Stub::start().await;
    stub.refuse().await;
    let router = Setup::of(&[&stub]).start().await;
    assert_eq!(exchange(router.admin, get("/readyz")).await.status(), 503);
    stub.accept_again().await;
    let ready = || async { (exchange(router.admin, get("/readyz")).await.status() == 200).then_some(()) };
    until("the router to be ready", DEADLINE, ready).await;
}

// Behaviours 29 and 58: all policies route through the same proxy, and explain by what.
#[tokio::test]
async fn every_policy_serves_and_says_its_name_and_its_reasons() {
    for (policy, reasons) in [
        ("prefix", &["kv", "no-hit-lru", "prefix", "queue"][..]),
        ("prefix-only", &["prefix"]),
        ("least-queue", &[]),
        ("round-robin", &[]),
        ("random", &[]),
        ("sticky", &["order", "passed-over"]),
        ("guarded", &["beyond", "load", "prefix"]),
        ("affinity", &["holds", "token-load"]),
        ("expected-ttft", &["balance", "in-flight", "kv", "miss", "overload", "prefill", "wait"]),
    ] {
        let stubs = [Stub::start().await, Stub::start().await];
        let router = Setup::of(&[&stubs[0], &stubs[1]]).pool(&format!("policy: {policy}")).start().await;
        let responses: Vec<Response> = [router.chat(cold(1)).await, router.chat(cold(1)).await].into();
        assert!(
            responses.iter().all(|one| one.header("x-prefixroute-policy") == Some(policy)),
            "{responses:?}"
        );
        if policy == "round-robin" {
            assert_ne!(responses[0].endpoint(), responses[1].endpoint());
        }
        let explained = router.explain(&cold(1)).await.json();
        let mut named: Vec<_> = explained["scores"][0]["scores"].as_object().unwrap().keys().collect();
        named.sort_unstable();
        assert_eq!(named, reasons, "{policy}: {explained}");
    }
}
