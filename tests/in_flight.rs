//! What the router has in flight: booked at the decision, given back exactly once, in every ending.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::row;
use harness::script::{chunk, last_chunk, write};
use harness::wait::pace;
use harness::{Answer, Client, Load, Metrics, Router, Setup, Signal, Step, Stub, post, prompts};
use serde_json::Value;
use std::time::Duration;

const PATH: &str = "/v1/chat/completions";
/// Tokens of `prompts::cold`: 17 blocks of 64, the last one not full.
const COLD_TOKENS: u64 = 17 * 64;
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

/// Panics unless nothing is booked at any endpoint, to the last token.
async fn assert_nothing_left(router: &Router, shows: &str) {
    router.idle().await;
    let state = router.state().await;
    for row in state["endpoints"].as_array().unwrap() {
        let left = ["in_flight", "prefilling", "uncached_tokens", "unseen"].map(|figure| row[figure].clone());
        assert_eq!(left, [0, 0, 0, 0].map(Value::from), "{shows}: {row}");
        assert_eq!(row["backlog_seconds"], 0.0, "{shows}: {row}");
    }
    let metrics = router.metrics().await;
    for figure in ["in_flight", "prefilling", "uncached_tokens", "backlog_seconds"] {
        let name = format!("prefixroute_endpoint_{figure}{{");
        let mut lines = metrics.lines().filter(|line| line.starts_with(&name)).peekable();
        assert!(lines.peek().is_some(), "{figure} in {metrics}");
        lines.for_each(|line| assert!(line.ends_with(" 0"), "{shows}: {line}"));
    }
}

fn streamed(seed: u64) -> String {
    prompts::with(&prompts::cold(seed), r#","stream":true"#)
}

/// How a request that the engine has ends, by the engine's doing.
fn endings() -> Vec<(&'static str, u16, Answer)> {
    let error = |status| Answer::json(status, r#"{"error":{"message":"no"}}"#);
    vec![
        ("a whole answer", 200, Answer::json(200, "{}")),
        ("a whole stream", 200, Answer::stream([chunk(EVENT), chunk("data: [DONE]\n\n"), last_chunk()])),
        ("a stream without an event", 200, Answer::stream([last_chunk()])),
        ("refused", 400, error(400)),
        ("busy", 429, error(429)),
        ("failed", 500, error(500)),
        ("no content", 204, Answer::raw("HTTP/1.1 204 No Content\r\n\r\n")),
        ("broken before a byte", 502, Answer::steps([Step::Close])),
        ("reset before a byte", 502, Answer::steps([Step::Reset])),
        ("no HTTP", 502, Answer::steps([write("SSH-2.0\r\n\r\n"), Step::Close])),
        ("broken midway", 200, Answer::stream([chunk(EVENT), Step::Close])),
        ("broken before the first event", 200, Answer::stream([Step::Close])),
        ("too slow", 504, Answer::steps([Step::Hang])),
    ]
}

// The fixed point: every ending leaves exactly nothing.
#[tokio::test]
async fn whatever_the_engine_does_gives_its_load_back() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).pool("timeouts: {first_byte: 300ms, idle: 300ms}").start().await;
    for (asked, body) in [("for a stream", streamed as fn(u64) -> String), ("for it whole", prompts::cold)] {
        for (seed, (shows, status, answer)) in (0..).zip(endings()) {
            stub.always(answer);
            assert_eq!(router.chat(body(seed)).await.status(), status, "{shows}, asked {asked}");
            assert_nothing_left(&router, &format!("{shows}, asked {asked}")).await;
        }
    }
    stub.always(Answer::stream([chunk(EVENT), Step::Hang]));
    assert!(router.chat(streamed(99)).await.broken.is_some(), "silent midway");
    assert_nothing_left(&router, "silent midway").await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_load_back() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    for (seed, shows, answer, bytes) in [
        (1, "before the head", Answer::steps([Step::Hang]), false),
        (2, "before the first event", Answer::stream([Step::Hang]), false),
        (3, "midstream", Answer::stream([chunk(EVENT), Step::Hang]), true),
    ] {
        stub.always(answer);
        let mut client = Client::connect(router.data).await;
        client.send(post(PATH, streamed(seed))).await;
        if bytes {
            let mut framing = client.head().await.response_framing("POST");
            client.body_until(&mut framing, b"\n\n").await;
        }
        router.sees("a", "in_flight", 1).await;
        client.reset();
        assert_nothing_left(&router, shows).await;
    }
}

#[tokio::test]
async fn an_endpoint_that_refuses_keeps_nothing_and_the_next_one_neither() {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let router = Setup::of(&[&a, &b]).pool("load: {scrape_interval: 5s, stale_after: 1m}").start().await;
    a.refuse().await;
    for seed in 0..6 {
        assert_eq!(router.chat(streamed(seed)).await.endpoint(), "b");
        assert_nothing_left(&router, "sent to the next").await;
    }
    b.refuse().await;
    router.chat(streamed(9)).await.assert_router_error(502);
    assert_nothing_left(&router, "nobody there").await;
}

#[tokio::test]
async fn a_request_that_is_sent_again_gives_its_load_back_once() {
    for (seed, body) in (0..).zip([streamed, prompts::cold]) {
        let stub = Stub::start().await;
        let router = Setup::of(&[&stub]).start().await;
        stub.always(Answer::json(200, "{}"));
        router.chat(body(seed)).await;
        let (warm, before) = (stub.last().connection, stub.count());
        stub.script(move |request| match request.connection == warm {
            true => Answer::steps([Step::Close]),
            false => Answer::json(200, "{}"),
        });
        assert_eq!(router.chat(body(seed + 10)).await.status(), 200);
        assert_eq!(stub.count() - before, 2, "lost and repeated");
        assert_nothing_left(&router, "sent again").await;
    }
}

/// An answer that comes whole shows no first token: its prompt is no work after twice the time that it should take, and the
/// request stays in flight until it ends. Of two, because the first in a queue is never work for longer than it should be.
#[tokio::test]
async fn prompts_of_whole_answers_are_work_for_a_while_only() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let end = Signal::default();
    let whole = write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    stub.always(Answer::steps([Step::Wait(end.clone()), whole]));
    let mut clients = [Client::connect(router.data).await, Client::connect(router.data).await];
    for (seed, client) in (0..).zip(&mut clients) {
        client.send(post(PATH, prompts::cold(seed))).await;
    }
    router.sees("a", "in_flight", 2).await;
    router.sees("a", "backlog_seconds", 0).await;
    let late = router.endpoint("a").await;
    assert_eq!([&late["in_flight"], &late["prefilling"]], [2, 2], "{late}");
    assert_eq!(late["uncached_tokens"], 2 * COLD_TOKENS);
    end.fire_all();
    for client in &mut clients {
        client.head().await;
    }
    assert_nothing_left(&router, "whole answers").await;
}

/// vLLM sends the head of a stream before it has computed anything: only an event says that the prompt is done.
#[tokio::test]
async fn a_prompt_counts_until_its_first_event() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let (go, end) = (Signal::default(), Signal::default());
    stub.always(Answer::stream([
        chunk(": still there\n\n"),
        Step::Wait(go.clone()),
        chunk(EVENT),
        Step::Wait(end.clone()),
        last_chunk(),
    ]));
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, streamed(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    client.body_until(&mut framing, b"\n\n").await;
    let before = router.endpoint("a").await;
    assert_eq!([&before["in_flight"], &before["prefilling"]], [1, 1], "{before}");
    assert_eq!(before["uncached_tokens"], COLD_TOKENS);
    assert!(before["backlog_seconds"].as_f64() > Some(0.0), "{before}");
    go.fire();
    client.body_until(&mut framing, EVENT.as_bytes()).await;
    let after = router.endpoint("a").await;
    assert_eq!([&after["in_flight"], &after["prefilling"], &after["uncached_tokens"]], [1, 0, 0], "{after}");
    end.fire();
    assert_nothing_left(&router, "a stream").await;
}

/// What was believed to be cached is no work.
#[tokio::test]
async fn only_uncached_tokens_are_booked() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    router.chat(streamed(1)).await;
    router.idle().await;
    stub.always(Answer::steps([Step::Hang]));
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, streamed(1))).await;
    router.sees("a", "in_flight", 1).await;
    assert_eq!(router.endpoint("a").await["uncached_tokens"], 0);
    client.close();
    assert_nothing_left(&router, "a repeat").await;
}

/// A request counts as unseen until a page was asked for after it.
#[tokio::test]
async fn what_the_last_scrape_has_not_seen_is_counted() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).pool("load: {scrape_interval: 2s, stale_after: 1m}").start().await;
    stub.always(Answer::steps([Step::Hang]));
    let mut clients = Vec::new();
    for seed in 0..3 {
        let mut client = Client::connect(router.data).await;
        client.send(post(PATH, prompts::cold(seed))).await;
        clients.push(client);
    }
    router.sees("a", "in_flight", 3).await;
    router.sees("a", "unseen", 3).await;
    stub.scrapes(1).await;
    router.sees("a", "unseen", 0).await;
    assert_eq!(router.endpoint("a").await["in_flight"], 3);
}

/// Opens streams that stay open until the signal.
async fn open_streams(router: &Router, stub: &Stub, count: u64) -> (Vec<Client>, Signal) {
    let end = Signal::default();
    stub.always(Answer::stream([chunk(EVENT), Step::Wait(end.clone()), last_chunk()]));
    let mut clients = Vec::new();
    for seed in 0..count {
        let mut client = Client::connect(router.data).await;
        client.send(post(PATH, streamed(seed))).await;
        client.head().await;
        clients.push(client);
    }
    (clients, end)
}

/// How many of so many cold probes the stub got.
async fn probes(router: &Router, stub: &Stub, count: u64, seed: u64) -> usize {
    let before = stub.count();
    for number in 0..count {
        assert_eq!(router.chat(prompts::cold(seed + number)).await.status(), 200);
    }
    stub.count() - before
}

async fn pair_on_in_flight() -> (Stub, Stub, Router) {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let router = Setup::of(&[&a, &b]).pool("policy: least-queue").start().await;
    (a, b, router)
}

// D17 (adding and removing endpoints in a running router is not possible yet)
#[tokio::test]
async fn scrapes_and_flaps_leave_what_is_in_flight_alone() {
    let (a, b, router) = pair_on_in_flight().await;
    b.load(Load::IDLE);
    b.refuse().await;
    router.sees("b", "usable", false).await;
    let (clients, end) = open_streams(&router, &a, 10).await;
    b.accept_again().await;
    router.sees("b", "usable", true).await;
    router.sees("a", "in_flight", 10).await;
    a.scrapes(20).await;
    assert_eq!(probes(&router, &a, 10, 100).await, 0, "while it is scraped");
    a.metrics(Metrics::Close);
    a.scrapes(2).await;
    assert_eq!(router.endpoint("a").await["in_flight"], 10);
    assert_eq!(probes(&router, &a, 10, 200).await, 0, "after a failed scrape");
    a.load(Load::IDLE);
    end.fire_all();
    drop(clients);
    assert_nothing_left(&router, "after the streams").await;
    a.always(Answer::json(200, "{}"));
    let half = probes(&router, &a, 100, 300).await;
    assert!((30..=70).contains(&half), "{half} of 100");
}

// D18 (there is no age limit that could be lowered: three seconds stand for twelve minutes)
#[tokio::test]
async fn long_requests_are_in_flight_until_they_end() {
    let (a, b, router) = pair_on_in_flight().await;
    b.refuse().await;
    router.sees("b", "usable", false).await;
    let (clients, end) = open_streams(&router, &a, 64).await;
    b.accept_again().await;
    router.sees("b", "usable", true).await;
    for round in 0..6 {
        pace(Duration::from_millis(500)).await;
        assert_eq!(router.endpoint("a").await["in_flight"], 64, "round {round}");
        assert_eq!(probes(&router, &a, 5, 1_000 + round * 10).await, 0, "round {round}");
    }
    end.fire_all();
    drop(clients);
    assert_nothing_left(&router, "after the streams").await;
}

/// How fast an endpoint is shows in its state once its first tokens have told.
#[tokio::test]
async fn the_pace_is_learned_from_first_tokens() {
    let (a, b, router) = pair_on_in_flight().await;
    for stub in [&a, &b] {
        stub.always(Answer::stream([
            Step::Pause(Duration::from_millis(50)),
            chunk(EVENT),
            Step::Pause(Duration::from_millis(50)),
            last_chunk(),
        ]));
    }
    b.refuse().await;
    router.sees("b", "usable", false).await;
    let learned = |state: &Value, name| {
        let pace = &row(state, name)?["pace"];
        let seconds = pace["overhead_seconds"].as_f64()?;
        ((0.03..0.09).contains(&seconds)).then(|| pace["learned"].clone())
    };
    for seed in 0..24 {
        let short = prompts::chat(&format!("question {seed}"));
        router.chat(prompts::with(&short, r#","stream":true"#)).await;
    }
    let own = router.until_state("the pace of a", |state| learned(state, "a")).await;
    let fleets = router.until_state("the fleet's pace at b", |state| learned(state, "b")).await;
    assert_eq!((own, fleets), (true.into(), false.into()));
}
