//! What clients see when engines fail, and how often an engine is asked: errors pass untouched, nothing is generated twice.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::post_with;
use harness::fixtures;
use harness::router::{POLICIES, row};
use harness::script::{chunk, last_chunk, write};
use harness::{
    Answer, Client, DEADLINE, H2Client, Router, Setup, Step, Stub, exchange, get, post, prompts, until,
    within,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATH: &str = "/v1/chat/completions";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

fn streamed(seed: u64) -> String {
    prompts::with(&prompts::cold(seed), r#","stream":true"#)
}

fn busy(status: u16, retry_after: &str) -> Answer {
    Answer::raw(format!(
        "HTTP/1.1 {status} Busy\r\nretry-after: {retry_after}\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{{\"error\":\"busy\"}}"
    ))
}

/// Requests at all stubs together.
fn attempts(stubs: &[&Stub]) -> usize {
    stubs.iter().map(|stub| stub.count()).sum()
}

async fn pair(pool: &str) -> (Stub, Stub, Router) {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let router = Setup::of(&[&a, &b]).pool(pool).start().await;
    (a, b, router)
}

/// An endpoint's standing in the state page.
async fn standing(router: &Router, name: &str) -> String {
    router.endpoint(name).await["standing"].as_str().unwrap().to_owned()
}

/// Nothing comes back from a host that is gone: the next best serves once `timeouts.connect` is over, and the endpoint is down.
#[tokio::test]
async fn a_connect_into_a_black_hole_is_served_by_the_next_best() {
    let (a, b) = (Stub::with_backlog(1).await, Stub::start().await);
    let router = Setup::of(&[&a, &b])
        .pool("policy: prefix-only\nload: {scrape_interval: 1h, stale_after: 3h}\ntimeouts: {connect: 500ms, first_byte: 1h}")
        .start()
        .await;
    let kept = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    a.always(Answer::steps([write(kept), Step::Close]));
    let mut seed = 0;
    while router.chat(prompts::cold(seed)).await.endpoint() != "a" {
        seed += 1;
    }
    let (prompt, before) = (prompts::cold(seed), b.count());
    a.rest(true);
    let mut waiting = Vec::new();
    // Linux drops further SYNs once the backlog is full.
    while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(a.address())).await {
        waiting.push(stream.unwrap());
    }
    let response = within("an answer", Duration::from_secs(5), router.chat(prompt.clone())).await;
    assert_eq!((response.status(), response.endpoint().as_str()), (200, "b"), "{response:?}");
    assert_eq!(standing(&router, "a").await, "down");
    assert_eq!(router.chat(prompt).await.endpoint(), "b", "and keeps its prompt");
    assert_eq!((a.count(), b.count()), (1, before + 2));
}

// D25
#[tokio::test]
async fn an_engines_errors_pass_untouched() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let body = r#"{"object":"error","message":"This model's maximum context length is 2048","code":400}"#;
    let json = [400, 401, 404, 413, 422, 500].map(|status| (status, "application/json", body, ""));
    let others = [
        (429, "application/json", body, "retry-after: 7\r\n"),
        (503, "text/html", "<html>busy</html>", ""),
        (502, "text/plain", "bad", ""),
        (504, "text/plain", "late", ""),
        (500, "application/json", r#"{"error":{"message":"not after shutdown"}}"#, ""),
    ];
    for (status, kind, body, line) in json.into_iter().chain(others) {
        for (seed, request) in [streamed(1), prompts::cold(2)].into_iter().enumerate() {
            stub.always(Answer::raw(format!(
                "HTTP/1.1 {status} Told\r\ncontent-type: {kind}\r\nx-request-id: r-{seed}\r\n{line}content-length: {}\r\n\r\n{body}",
                body.len()
            )));
            let before = stub.count();
            let response = router.chat(request).await;
            assert_eq!((response.status(), response.text().as_str()), (status, body), "{response:?}");
            assert_eq!(response.header("content-type"), Some(kind));
            assert_eq!(response.header("x-request-id"), Some(format!("r-{seed}").as_str()));
            assert_eq!(response.header("retry-after"), if line.is_empty() { None } else { Some("7") });
            assert_eq!(stub.count() - before, 1, "{status} is asked for once");
        }
    }
}

// D26
#[tokio::test]
async fn what_clients_do_wrong_takes_no_replica_out() {
    for policy in POLICIES {
        let stubs = [Stub::start().await, Stub::start().await, Stub::start().await];
        let router = Setup::of(&stubs.each_ref()).policy(policy).start().await;
        for (seed, status) in (0..200).zip([400, 400, 401, 400, 404, 400, 413, 400, 422].into_iter().cycle())
        {
            stubs.iter().for_each(|stub| stub.always(Answer::json(status, "{}")));
            assert_eq!(router.chat(prompts::cold(seed)).await.status(), status);
        }
        stubs.iter().for_each(|stub| stub.always(Answer::json(200, "{}")));
        let mut served = BTreeMap::<String, usize>::new();
        for seed in 1_000..1_100 {
            let response = router.chat(prompts::cold(seed)).await;
            assert_eq!(response.status(), 200, "{response:?}");
            *served.entry(response.endpoint()).or_default() += 1;
        }
        assert_eq!(served.len(), 3, "{policy}: {served:?}");
        let metrics = router.metrics().await;
        let ejections =
            metrics.lines().filter(|line| line.starts_with("prefixroute_endpoint_ejections_total{"));
        assert!(ejections.clone().count() == 3 && ejections.clone().all(|line| line.ends_with(" 0")));
    }
}

// D28
#[tokio::test]
async fn a_pause_that_all_ask_for_is_kept_and_told() {
    for (status, count) in [(429, 2), (429, 3), (503, 3)] {
        let stubs = [Stub::start().await, Stub::start().await, Stub::start().await];
        let stubs: Vec<_> = stubs.iter().take(count).collect();
        let router = Setup::of(&stubs).start().await;
        stubs.iter().for_each(|stub| stub.always(busy(status, "3")));
        for seed in 0..10 {
            let before = attempts(&stubs);
            let response = router.chat(prompts::cold(seed)).await;
            assert!([status, 429].contains(&response.status()), "{response:?}");
            let seconds: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=3).contains(&seconds), "{response:?}");
            assert!(attempts(&stubs) - before <= 2);
        }
        assert!(stubs.iter().all(|stub| stub.count() == 1), "nobody is asked again within its pause");
        let last = router.chat(prompts::cold(99)).await;
        last.assert_router_error(429);
        assert_eq!(last.json()["error"]["code"], "saturated");
    }
}

// D28
#[tokio::test]
async fn a_busy_replica_is_spared_and_the_next_best_serves() {
    for policy in POLICIES {
        for answer in [busy(429, "30"), busy(503, "30"), Answer::json(503, r#"{"error":"engine is busy"}"#)] {
            let (a, b, router) = pair(&format!("policy: {policy}")).await;
            a.always(answer);
            for seed in 0..40 {
                let response = router.chat(streamed(seed)).await;
                assert_eq!((response.status(), response.endpoint().as_str()), (200, "b"), "{policy}");
            }
            // Without a time it is asked again after a second.
            assert!((1..=3).contains(&a.count()), "{policy}: {} at the busy one", a.count());
            assert_eq!(b.count(), 40);
            assert_eq!(router.endpoint("a").await["failures_in_a_row"], 0, "busy is no failure");
            router.idle().await;
        }
    }
}

/// The next best by the same scores, not any: the second home of a prompt is asked before a cold replica.
#[tokio::test]
async fn affinity_is_kept_on_the_way_to_the_next_best() {
    let stubs = [Stub::start().await, Stub::start().await, Stub::start().await];
    let router = Setup::of(&stubs.each_ref()).pool("policy: prefix-only").start().await;
    let first = router.chat(prompts::cold(1)).await.endpoint();
    let home = ["a", "b", "c"].iter().position(|name| *name == first).unwrap();
    stubs[home].always(Answer::json(429, "{}"));
    let second = router.chat(prompts::cold(1)).await.endpoint();
    assert_ne!(first, second);
    router.sees(&first, "standing", "free").await;
    stubs[home].always(busy(429, "30"));
    let before = stubs[home].count();
    for _ in 0..40 {
        assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), second);
    }
    assert_eq!(stubs[home].count(), before + 1);
}

#[tokio::test]
async fn a_request_that_an_engine_had_is_not_generated_twice() {
    let endings = [
        ("closed", Answer::steps([Step::Close])),
        ("reset", Answer::steps([Step::Reset])),
        ("half a head", Answer::steps([write("HTTP/1.1 200 OK\r\ncontent-"), Step::Close])),
        ("too late", Answer::steps([Step::Hang])),
    ];
    for (shows, ending) in endings {
        let (a, b, router) = pair("timeouts: {first_byte: 300ms}").await;
        [&a, &b].iter().for_each(|stub| stub.always(ending.clone()));
        let response = router.chat(streamed(1)).await;
        response.assert_router_error(if shows == "too late" { 504 } else { 502 });
        assert_eq!(attempts(&[&a, &b]), 1, "{shows}");
    }
}

/// Who would rather have it twice than not at all says so.
#[tokio::test]
async fn a_second_generation_can_be_asked_for() {
    let (a, b, router) = pair("retry: {unanswered: true}\ntimeouts: {first_byte: 300ms}").await;
    for (first_seed, ending) in [(0, Step::Close), (100, Step::Hang)] {
        a.always(Answer::steps([ending.clone()]));
        let before = a.count();
        for seed in first_seed..first_seed + 40 {
            let response = router.chat(prompts::cold(seed)).await;
            assert_eq!((response.status(), response.endpoint().as_str()), (200, "b"), "{ending:?}");
            if a.count() > before {
                break;
            }
        }
        assert!(a.count() > before, "{ending:?}");
    }
    [&a, &b].iter().for_each(|stub| stub.always(Answer::steps([Step::Close])));
    let [before_a, before_b] = [a.count(), b.count()];
    router.chat(prompts::cold(9_999)).await.assert_router_error(502);
    assert!(a.count() <= before_a + 2 && b.count() <= before_b + 2, "once more, no further");
}

/// A storm of failures cannot double the load.
#[tokio::test]
async fn retries_have_a_budget() {
    let (a, b, router) =
        pair("retry: {unanswered: true, budget_percent: 10}\nhealth: {failures: 1000}").await;
    [&a, &b].iter().for_each(|stub| stub.always(Answer::steps([Step::Close])));
    for seed in 0..300 {
        router.chat(prompts::cold(seed)).await.assert_router_error(502);
    }
    let again = attempts(&[&a, &b]) - 300;
    // A tenth of 300, ten to begin with and ten in each second that it took.
    assert!((30..250).contains(&again), "{again} of 300 were sent again");
    let metrics = router.metrics().await;
    let denied = metrics.lines().find(|line| line.starts_with("prefixroute_pool_retries_denied_total"));
    let denied: usize = denied.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(again + denied, 300, "each was sent again, or denied it");
}

/// A request that kills or upsets whatever engine gets it does not cost the others their replicas.
#[tokio::test]
async fn a_poison_request_empties_no_pool() {
    for poison in [Answer::json(500, r#"{"error":"boom"}"#), Answer::steps([Step::Reset])] {
        let stubs = [Stub::start().await, Stub::start().await, Stub::start().await];
        let router = Setup::of(&stubs.each_ref())
            .pool("policy: least-queue\nhealth: {cooldown: 200ms, cooldown_max: 400ms}")
            .start()
            .await;
        stubs.iter().for_each(|stub| stub.always(poison.clone()));
        for _ in 0..60 {
            assert!(router.chat(prompts::cold(666)).await.status() >= 500);
        }
        for name in ["a", "b", "c"] {
            assert_eq!(standing(&router, name).await, "free", "one prompt counts once");
        }
        // Each time another one: it may take them out, and then all are tried.
        for seed in 0..60 {
            assert!(router.chat(prompts::cold(700 + seed)).await.status() >= 500);
        }
        stubs.iter().for_each(|stub| stub.always(Answer::json(200, "{}")));
        for seed in 0..30 {
            assert_eq!(router.chat(prompts::cold(seed)).await.status(), 200);
        }
        let back = || async {
            router.chat(prompts::cold(1)).await;
            let state = router.state().await;
            let rows = state["endpoints"].as_array()?;
            rows.iter().all(|row| row["standing"] == "free").then_some(())
        };
        until("all to be back", DEADLINE, back).await;
    }
}

/// An engine that dies of a request takes no other with it, though the request came on a kept connection.
#[tokio::test]
async fn a_request_that_kills_its_engine_kills_no_other() {
    let stubs = [Stub::start().await, Stub::start().await, Stub::start().await, Stub::start().await];
    let router = Setup::of(&stubs.each_ref()).pool("retry: {attempts_max: 10}").start().await;
    let mut seed = 0;
    while stubs.iter().any(|stub| stub.count() == 0) {
        router.chat(prompts::cold(seed)).await;
        seed += 1;
    }
    let before = attempts(&stubs.each_ref());
    stubs.iter().for_each(|stub| stub.always(Answer::steps([Step::Die])));
    router.chat(prompts::cold(10_000)).await.assert_router_error(502);
    assert_eq!(attempts(&stubs.each_ref()), before + 1, "one engine had it");
}

/// What ends by the end of the connection looks whole unless that is a reset.
#[tokio::test]
async fn a_death_midway_is_visible_to_http10_clients() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let ask = format!("POST {PATH} HTTP/1.0\r\ncontent-length: 2\r\n\r\n{{}}");
    for (end, is_whole) in [(Step::Close, false), (Step::Reset, false), (last_chunk(), true)] {
        stub.always(Answer::stream([chunk(EVENT), end.clone()]));
        let mut client = Client::connect(router.data).await;
        client.send(&ask).await;
        assert_eq!(client.response("POST").await.broken.is_none(), is_whole, "{end:?}");
    }
}

#[tokio::test]
async fn a_death_midway_is_visible() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    for (shows, end) in [("closed", Step::Close), ("reset", Step::Reset)] {
        stub.always(Answer::stream([chunk(EVENT), Step::Pause(Duration::from_millis(50)), end.clone()]));
        let response = router.chat(streamed(1)).await;
        assert_eq!((response.status(), response.text().as_str()), (200, EVENT), "{shows}");
        assert!(response.broken.is_some(), "{shows}: no last chunk, no [DONE]");
        let response = H2Client::connect(router.h2c).await.post(PATH, streamed(2), true).await;
        assert!(response.broken.is_some(), "{shows}: RST_STREAM");
    }
    stub.always(Answer::stream([chunk(EVENT), last_chunk()]));
    assert!(router.chat(streamed(3)).await.broken.is_none());
}

/// What an engine of vLLM's answers once it has begun to end (recorded): it has begun nothing, so the next one has it.
#[tokio::test]
async fn an_engine_that_shuts_down_costs_no_request() {
    let recorded = fixtures::bytes("vllm/shutdown/draining_new_chat.response.http");
    let (a, b, router) = pair("").await;
    a.always(Answer::raw(&recorded));
    for seed in 0..40 {
        let response = router.chat(streamed(seed)).await;
        assert_eq!((response.status(), response.endpoint().as_str()), (200, "b"), "{response:?}");
    }
    assert!((1..=3).contains(&a.count()), "{}", a.count());
    b.always(Answer::raw(&recorded));
    let response = router.chat(streamed(99)).await;
    assert_eq!(response.status(), 500, "when all do, it passes: {response:?}");
    assert!(response.text().contains("cannot schedule new futures after shutdown"));
}

/// A page that is not about work says nothing of the engine: the server around it answers.
#[tokio::test]
async fn pages_bring_nobody_back_and_take_nobody_out() {
    let (a, b, router) =
        pair("policy: least-queue\nhealth: {failures: 3, cooldown: 1h, cooldown_max: 1h}").await;
    [&a, &b].iter().for_each(|stub| stub.always(Answer::json(500, "{}")));
    for _ in 0..40 {
        assert_eq!(exchange(router.data, get("/v1/models")).await.status(), 500);
        assert_eq!(exchange(router.data, post("/tokenize", prompts::cold(1))).await.status(), 500);
    }
    let state = router.state().await;
    assert_eq!(
        [&row(&state, "a").unwrap()["standing"], &row(&state, "b").unwrap()["standing"]],
        ["free", "free"]
    );
    b.always(Answer::json(200, "{}"));
    for seed in 0..40 {
        router.chat(prompts::cold(seed)).await;
    }
    assert_eq!(standing(&router, "a").await, "out");
    a.script(|request| Answer::json(if request.head.target() == "/v1/models" { 200 } else { 500 }, "{}"));
    for _ in 0..20 {
        assert_eq!(exchange(router.data, get("/v1/models")).await.status(), 200);
    }
    assert_eq!(standing(&router, "a").await, "out");
}

/// Busy replicas are no reason to hold a connection open: a client with a body and a header of its own is told at once.
#[tokio::test]
async fn a_connection_lives_on_after_a_refusal() {
    let (a, b, router) = pair("").await;
    [&a, &b].iter().for_each(|stub| stub.always(busy(429, "30")));
    let mut client = Client::connect(router.data).await;
    for seed in 0..6 {
        let response = client.exchange(post_with(PATH, "x-mine: 1\r\n", prompts::cold(seed))).await;
        assert_eq!(response.status(), 429);
    }
}
