//! What a tenant may send: requests a second, at once, and prompts a minute; and what it is told of that.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::script::{STREAM_HEAD, chunk, last_chunk, write};
use harness::wait::pace;
use harness::{
    Answer, Client, H2Client, Response, Router, Setup, Signal, Step, Stub, exchange, post_with, prompts,
    until,
};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const ACME: &str = "x-api-key: sk-acme\r\n";
const BATCH: &str = "x-api-key: sk-batch\r\n";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

/// Two tenants, the first with these limits.
fn limited(stub: &Stub, limits: &str) -> Setup {
    let limits = format!("limits: {{{limits}}}");
    Setup::of(&[stub]).tenant("acme", &["sk-acme"], &limits).tenant("batch", &["sk-batch"], "")
}

async fn asked(router: &Router, lines: &str, body: impl AsRef<[u8]>) -> Response {
    exchange(router.data, post_with(CHAT, lines, body)).await
}

fn retry_after(response: &Response) -> Option<u64> {
    response.header("retry-after").map(|seconds| seconds.parse().unwrap())
}

/// A series of the page.
async fn figure(router: &Router, series: &str) -> f64 {
    let page = router.metrics().await;
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
}

async fn refused_by(router: &Router, limit: &str) -> f64 {
    figure(router, &format!("prefixroute_tenant_refused_total{{tenant=\"acme\",limit=\"{limit}\"}}")).await
}

#[tokio::test]
async fn more_than_the_burst_is_refused_until_there_is_more() {
    let stub = Stub::start().await;
    let router = limited(&stub, "requests_per_second: 1, burst: 3").start().await;
    let started = Instant::now();
    let mut passed = 0;
    let refusal = loop {
        let response = asked(&router, ACME, prompts::cold(1)).await;
        if response.status() != 200 {
            break response;
        }
        assert_eq!(response.header("x-ratelimit-limit-requests"), Some("3"), "{response:?}");
        passed += 1;
    };
    let more = started.elapsed().as_secs() as usize;
    assert!((3..=3 + more).contains(&passed), "{passed} passed in {more} s");
    assert_eq!(stub.count(), passed, "the refused one reached no engine");
    refusal.assert_router_error(429);
    assert_eq!(refusal.json()["error"]["type"], "rate_limit_error");
    assert_eq!(retry_after(&refusal), Some(1), "{refusal:?}");
    assert_eq!(refusal.header("x-ratelimit-remaining-requests"), Some("0"), "{refusal:?}");
    let reset = refusal.header("x-ratelimit-reset-requests").unwrap();
    assert!(reset.starts_with('2') || reset == "3s", "all three are back in less than 3 s: {reset}");
    assert_eq!(asked(&router, BATCH, prompts::cold(1)).await.status(), 200, "another tenant");
    assert_eq!(refused_by(&router, "requests_per_second").await, 1.0);
    pace(Duration::from_secs(retry_after(&refusal).unwrap())).await;
    assert_eq!(asked(&router, ACME, prompts::cold(1)).await.status(), 200, "after Retry-After");
}

/// A stream that goes on until the signal.
fn held(signal: &Signal) -> Answer {
    Answer::stream([chunk(EVENT), Step::Wait(signal.clone()), chunk("data: [DONE]\n\n"), last_chunk()])
}

async fn begun(router: &Router) -> Client {
    let mut client = Client::connect(router.data).await;
    client.send(post_with(CHAT, ACME, prompts::cold(1))).await;
    assert_eq!(client.head().await.status(), 200);
    client
}

async fn in_flight(router: &Router, count: f64) {
    until(&format!("{count} in flight"), harness::DEADLINE, || async {
        (figure(router, "prefixroute_tenant_in_flight{tenant=\"acme\"}").await == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requests_at_once_are_counted_until_they_end() {
    let signal = Signal::default();
    let stub = Stub::answering(held(&signal)).await;
    let router = limited(&stub, "concurrent_requests: 2").start().await;
    let (mut first, second) = (begun(&router).await, begun(&router).await);
    for _ in 0..3 {
        let refusal = asked(&router, ACME, prompts::cold(1)).await;
        refusal.assert_router_error(429);
        assert_eq!(retry_after(&refusal), Some(1), "{refusal:?}");
    }
    let batch = Client::connect(router.data).await;
    drop(batch);
    in_flight(&router, 2.0).await;
    second.close();
    in_flight(&router, 1.0).await;
    let third = begun(&router).await;
    asked(&router, ACME, prompts::cold(1)).await.assert_router_error(429);
    signal.fire_all();
    let mut framing = harness::wire::Framing::Chunked;
    first.body_until(&mut framing, b"[DONE]\n\n").await;
    drop(third);
    in_flight(&router, 0.0).await;
    assert_eq!(refused_by(&router, "concurrent_requests").await, 4.0);
    assert_eq!(asked(&router, ACME, prompts::cold(1)).await.status(), 200);
}

/// The place of a request is given back in every ending.
#[tokio::test]
async fn every_ending_gives_the_place_back() {
    let stub = Stub::start().await;
    let router = limited(&stub, "concurrent_requests: 1")
        .yaml("limits: {body_bytes_max: 64KiB}\ntimeouts: {request_body: 300ms}")
        .pool("timeouts: {first_byte: 300ms}")
        .start()
        .await;
    let plain = Answer::json(200, "{}");
    let long = "x".repeat(100_000);
    for (shows, answer, body, status) in [
        ("an answer", plain.clone(), prompts::cold(1), 200),
        ("an engine's error", Answer::json(500, "{}"), prompts::cold(1), 500),
        ("no answer", Answer::steps([Step::Close]), prompts::cold(1), 502),
        ("a reset", Answer::steps([Step::Reset]), prompts::cold(1), 502),
        ("an answer too late", Answer::steps([Step::Hang]), prompts::cold(1), 504),
        (
            "a broken stream",
            Answer::steps([write(STREAM_HEAD), chunk(EVENT), Step::Reset]),
            prompts::cold(1),
            200,
        ),
        ("a body too large", plain.clone(), long, 413),
        ("two salts", plain.clone(), r#"{"cache_salt":"a","cache_salt":"b"}"#.to_owned(), 400),
    ] {
        stub.always(answer);
        assert_eq!(asked(&router, ACME, body).await.status(), status, "{shows}");
        in_flight(&router, 0.0).await;
    }
    stub.always(Answer::steps([Step::Hang]));
    for shows in ["a client that closes", "a client that resets"] {
        let mut client = Client::connect(router.data).await;
        client.send(post_with(CHAT, ACME, prompts::cold(1))).await;
        in_flight(&router, 1.0).await;
        if shows.ends_with("closes") {
            client.close()
        } else {
            client.reset()
        }
        in_flight(&router, 0.0).await;
    }
    let mut slow = Client::connect(router.data).await;
    slow.send(harness::client::post_head(CHAT, &format!("{ACME}content-length: 9\r\n"))).await;
    in_flight(&router, 1.0).await;
    slow.response("POST").await.assert_router_error(408);
    in_flight(&router, 0.0).await;
    let many = H2Client::connect(router.h2c).await;
    let mut request = harness::h2_client::post_request(CHAT, Some(2));
    request.headers_mut().append("x-api-key", "sk-acme".parse().unwrap());
    let mut stream = many.start(request, false).await;
    in_flight(&router, 1.0).await;
    stream.body.send_reset(harness::h2_client::CANCEL);
    in_flight(&router, 0.0).await;
    stub.always(plain);
    assert_eq!(asked(&router, ACME, prompts::cold(1)).await.status(), 200);
}

/// Who asks one after the other never asks two at once, on connections of its own either.
#[tokio::test]
async fn one_after_the_other_is_one_at_once() {
    let stub = Stub::start().await;
    let router = limited(&stub, "concurrent_requests: 1").start().await;
    for number in 0..200 {
        let response = asked(&router, ACME, "{}").await;
        assert_eq!(response.status(), 200, "{number}: {response:?}");
    }
}

#[tokio::test]
async fn bytes_of_prompts_are_counted_by_the_minute() {
    let stub = Stub::start().await;
    let router =
        limited(&stub, "prompt_bytes_per_minute: 10000, prompt_tokens_per_minute: 100000").start().await;
    let body = prompts::chat_of_size(1, 4000);
    for _ in 0..2 {
        assert_eq!(asked(&router, ACME, &body).await.status(), 200);
    }
    let tokens = |response: &Response| -> u64 {
        response.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap()
    };
    let refusal = asked(&router, ACME, &body).await;
    refusal.assert_router_error(429);
    // 2,000 bytes come back in 12 s.
    assert!((1..=12).contains(&retry_after(&refusal).unwrap()), "{refusal:?}");
    let never = asked(&router, ACME, prompts::chat_of_size(1, 10_001)).await;
    never.assert_router_error(413);
    assert_eq!(retry_after(&never), None, "{never:?}");
    assert!(tokens(&never) >= tokens(&refusal), "a refusal for bytes costs no tokens");
    assert_eq!(stub.count(), 2);
    assert_eq!(refused_by(&router, "prompt_bytes_per_minute").await, 2.0);
    assert_eq!(asked(&router, BATCH, prompts::chat_of_size(1, 40_000)).await.status(), 200);
}

#[tokio::test]
async fn tokens_of_prompts_are_counted_by_the_minute() {
    let stub = Stub::start().await;
    let router = limited(&stub, "prompt_tokens_per_minute: 5000").start().await;
    let body = prompts::cold(1);
    let first = asked(&router, ACME, &body).await;
    assert_eq!(first.header("x-ratelimit-limit-tokens"), Some("5000"), "{first:?}");
    let left: u64 = first.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!((2000..4900).contains(&left), "4 KB are some tokens: {left} left");
    let mut passed = 1;
    let refusal = loop {
        let response = asked(&router, ACME, &body).await;
        if response.status() != 200 {
            break response;
        }
        passed += 1;
        assert!(passed < 50, "never refused");
    };
    refusal.assert_router_error(429);
    assert!((1..=60).contains(&retry_after(&refusal).unwrap()), "{refusal:?}");
    assert!(refusal.header("x-ratelimit-reset-tokens").is_some(), "{refusal:?}");
    let never = asked(&router, ACME, prompts::chat_of_size(2, 100_000)).await;
    never.assert_router_error(413);
    assert_eq!(retry_after(&never), None);
    assert_eq!(stub.count(), passed);
    assert_eq!(refused_by(&router, "prompt_tokens_per_minute").await, 2.0);
    // What has no prompt costs none.
    let list = format!("GET /v1/models HTTP/1.1\r\nhost: router\r\n{ACME}\r\n");
    assert_eq!(exchange(router.data, list).await.status(), 200);
}

/// An engine's own headers of that name tell of the router's key, not of the tenant's.
#[tokio::test]
async fn limits_are_told_in_place_of_an_engines() {
    let stub = Stub::answering(Answer::raw(
        "HTTP/1.1 200 OK\r\nx-ratelimit-limit-requests: 7777\r\nx-ratelimit-remaining-requests: 7776\r\ncontent-length: 2\r\n\r\n{}",
    ))
    .await;
    let router = limited(&stub, "requests_per_second: 5, burst: 9").start().await;
    let response = asked(&router, ACME, "{}").await;
    assert_eq!(response.head.all("x-ratelimit-limit-requests"), ["9"]);
    assert_eq!(response.head.all("x-ratelimit-remaining-requests"), ["8"]);
    let response = asked(&router, BATCH, "{}").await;
    assert_eq!(response.head.all("x-ratelimit-limit-requests"), ["7777"], "nothing of ours");
}

#[tokio::test]
async fn limits_change_live_and_what_is_in_flight_counts_on() {
    let signal = Signal::default();
    let stub = Stub::answering(held(&signal)).await;
    let limits = |concurrent: u32| {
        let rest = "requests_per_second: 1, burst: 100, prompt_bytes_per_minute: 100000";
        limited(&stub, &format!("concurrent_requests: {concurrent}, {rest}"))
    };
    let router = limits(2).start().await;
    let _clients = [begun(&router).await, begun(&router).await];
    router.becomes(&limits(3)).await;
    in_flight(&router, 2.0).await;
    let third = begun(&router).await;
    asked(&router, ACME, "{}").await.assert_router_error(429);
    router.becomes(&limits(1)).await;
    third.close();
    in_flight(&router, 2.0).await;
    let refusal = asked(&router, ACME, "{}").await;
    refusal.assert_router_error(429);
    let left: u32 = refusal.header("x-ratelimit-remaining-requests").unwrap().parse().unwrap();
    assert!(left <= 98, "what was used up of a limit that stays is used up: {left}");
    signal.fire_all();
    in_flight(&router, 0.0).await;
    assert_eq!(asked(&router, ACME, "{}").await.status(), 200);
}
