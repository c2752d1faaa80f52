//! Another configuration for a router that runs: what did not change goes on, what is wrong changes nothing.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::row;
use harness::script::{chunk, last_chunk};
use harness::wire::Framing;
use harness::{
    Answer, Client, DEADLINE, Load, Response, Router, Setup, Signal, Step, Stub, post, prompts, until,
};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

/// An answer that streams one event, and the rest once the signal is fired.
fn held(signal: &Signal) -> Answer {
    Answer::stream([chunk(EVENT), Step::Wait(signal.clone()), chunk("data: [DONE]\n\n"), last_chunk()])
}

fn streamed(seed: u64) -> String {
    prompts::with(&prompts::cold(seed), r#","stream":true"#)
}

/// A client whose stream has begun, and how that is framed.
async fn begun(router: &Router, seed: u64) -> (Client, Framing) {
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, streamed(seed))).await;
    let head = client.head().await;
    assert_eq!(head.status(), 200);
    (client, head.response_framing("POST"))
}

/// Reads a stream that had begun to its end.
async fn ends_whole((mut client, mut framing): (Client, Framing)) {
    let body = client.body_until(&mut framing, b"[DONE]\n\n").await;
    assert!(body.ends_with(b"[DONE]\n\n"), "cut: {}", String::from_utf8_lossy(&body));
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
}

/// Sends each prompt twice; how many second sends followed the first.
async fn follow(router: &Router, seeds: std::ops::Range<u64>) -> usize {
    let mut following = 0;
    for seed in seeds {
        let first = router.chat(prompts::cold(seed)).await;
        let second = router.chat(prompts::cold(seed)).await;
        assert_eq!([first.status(), second.status()], [200, 200]);
        following += usize::from(first.endpoint() == second.endpoint() && second.matched().0 > 0);
    }
    following
}

fn outcome(response: &Response) -> Value {
    response.json()["outcome"].clone()
}

#[tokio::test]
async fn a_reload_of_the_same_changes_nothing() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let release = Signal::default();
    let router = Setup::of(&[&a, &b]).start().await;
    let warm = router.chat(prompts::cold(1)).await.endpoint();
    let waits = held(&release);
    [&a, &b].into_iter().for_each(|stub| stub.always(waits.clone()));
    let client = begun(&router, 2).await;
    let before = router.state().await;
    let response = router.reload().await;
    assert_eq!(response.json(), json!({"outcome": "unchanged", "version": 1}));
    let after = router.state().await;
    for name in ["a", "b"] {
        for figure in ["index_blocks", "in_flight"] {
            assert_eq!(
                row(&before, name).unwrap()[figure],
                row(&after, name).unwrap()[figure],
                "{name} {figure}"
            );
        }
    }
    release.fire_all();
    ends_whole(client).await;
    assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), warm);
}

// D39
#[tokio::test]
async fn replicas_that_come_later_are_full_members() {
    let [a, b, c] = [Stub::start().await, Stub::start().await, Stub::start().await];
    let router = Setup::default().start().await;
    router.chat(prompts::cold(1)).await.assert_router_error(503);
    router.becomes(&Setup::of(&[&a])).await;
    let release = Signal::default();
    a.always(held(&release));
    let mut clients = Vec::new();
    for seed in 0..10 {
        clients.push(begun(&router, 100 + seed).await);
    }
    let changes = router.becomes(&Setup::of(&[&a, &b, &c])).await;
    assert_eq!(changes["version"], 3, "{changes}");
    assert!(
        changes["changes"][0].as_str().unwrap().starts_with("pool default: endpoint b added"),
        "{changes}"
    );
    router.sees("a", "in_flight", 10).await;
    router.sees("c", "usable", true).await;
    assert_eq!(follow(&router, 0..20).await, 20);
    assert!(b.count() > 0 && c.count() > 0, "{} and {}", b.count(), c.count());
    release.fire_all();
    for client in clients {
        ends_whole(client).await;
    }
    router.idle().await;
}

#[tokio::test]
async fn an_endpoint_that_is_removed_drains() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    a.load(Load { waiting: 50.0, running: 50.0, kv: 0.9 });
    let router = Setup::of(&[&a, &b]).start().await;
    router.sees("a", "waiting", 50).await;
    let release = Signal::default();
    b.always(held(&release));
    let client = begun(&router, 1).await;
    let sent = b.count();
    assert_eq!(sent, 1, "the stream is b's");
    router.becomes(&Setup::of(&[&a])).await;
    for seed in 0..10 {
        assert_eq!(router.chat(prompts::cold(seed)).await.endpoint(), "a", "also what b holds");
    }
    assert_eq!(b.count(), sent);
    assert!(!router.metrics().await.contains("endpoint=\"b\""));
    assert!(row(&router.state().await, "b").is_none());
    release.fire_all();
    ends_whole(client).await;
}

// D08, case 3
#[tokio::test]
async fn an_endpoint_that_comes_back_is_cold() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    b.load(Load { waiting: 50.0, running: 50.0, kv: 0.9 });
    let both = Setup::of(&[&a, &b]);
    let router = both.clone().start().await;
    router.sees("b", "waiting", 50).await;
    for _ in 0..20 {
        assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), "a");
    }
    router.becomes(&Setup::default().endpoint("b", b.address())).await;
    router.becomes(&both).await;
    let explained = router.explain(&prompts::cold(1)).await.json();
    for score in explained["scores"].as_array().unwrap() {
        assert_eq!(score["matched"], 0, "{explained}");
    }
    router.sees("a", "index_blocks", 0).await;
}

// D37
#[tokio::test]
async fn a_bad_configuration_changes_nothing_and_the_good_one_mends_it() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let good = Setup::of(&[&a]).policy("prefix");
    let router = good.clone().start().await;
    let two = Setup::of(&[&a, &b]);
    let wrong = [
        ("broken syntax", "pools: [\n".to_owned()),
        ("an empty file", String::new()),
        (
            "a bad URL among good ones",
            two.clone().pool("").file().replace("name: b, url: \"http://", "name: b, url: \"htp://"),
        ),
        ("an unknown key", two.clone().yaml("frobnicate: 1").file()),
        ("a negative weight", two.clone().policy("prefix").pool("weights: {kv: -1}").file()),
        ("a weight that is no number", two.clone().policy("prefix").pool("weights: {kv: .nan}").file()),
        ("a name twice", two.clone().endpoint("a", "127.0.0.1:9".parse().unwrap()).file()),
        ("what needs a restart", good.clone().yaml("limits: {bodies_bytes_max: 512MiB}").file()),
    ];
    for (shows, text) in wrong {
        router.write(&text);
        let response = router.reload().await;
        assert_eq!(
            (response.status(), outcome(&response)),
            (422, json!("refused")),
            "{shows}: {}",
            response.text()
        );
        assert!(!response.json()["faults"].as_array().unwrap().is_empty(), "{shows}");
        let state = router.state().await;
        assert_eq!(
            (&state["config"]["version"], &state["config"]["in_sync"]),
            (&json!(1), &json!(false)),
            "{shows}"
        );
        assert_eq!(state["config"]["faults"], response.json()["faults"], "{shows}");
        assert_eq!(state["endpoints"].as_array().unwrap().len(), 1, "{shows}");
        assert!(router.metrics().await.contains("prefixroute_config_in_sync 0\n"), "{shows}");
        assert_eq!(router.chat(prompts::cold(1)).await.status(), 200, "{shows}");
        router.write(good.file());
        assert_eq!(outcome(&router.reload().await), "unchanged", "{shows}");
        assert_eq!(router.state().await["config"]["in_sync"], true, "{shows}");
    }
    assert_eq!(router.becomes(&two).await["version"], 2);
    assert!(router.output().contains("configuration refused"), "logged");
}

#[tokio::test]
async fn what_needs_a_restart_is_named() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let other = Setup::of(&[&stub]).file().replace("admin: 127.0.0.1:0", "admin: 127.0.0.1:1");
    router.write(other);
    let faults = router.reload().await.json()["faults"].clone();
    assert_eq!(faults, json!(["admin: found another value, wanted the old one until a restart"]));
}

#[tokio::test]
async fn rules_change_under_a_belief_that_stays() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let router = Setup::of(&[&a, &b]).policy("prefix").start().await;
    let home = router.chat(prompts::cold(1)).await.endpoint();
    let changed = Setup::of(&[&a, &b]).policy("prefix-only").pool("timeouts: {first_byte: 7s}");
    let words = router.becomes(&changed).await["changes"].clone();
    assert!(words.as_array().unwrap().len() >= 2, "{words}");
    let response = router.chat(prompts::cold(1)).await;
    assert_eq!(response.header("x-prefixroute-policy"), Some("prefix-only"));
    assert_eq!((response.endpoint(), response.matched()), (home, (17, 17)));
}

#[tokio::test]
async fn prompts_that_are_cut_another_way_are_cold() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    router.chat(prompts::cold(1)).await;
    router.becomes(&Setup::of(&[&stub]).pool("index: {block_tokens: 32}")).await;
    router.sees("a", "index_blocks", 0).await;
    assert_eq!(router.chat(prompts::cold(1)).await.matched().0, 0);
    assert!(router.chat(prompts::cold(1)).await.matched().0 > 17, "in smaller blocks");
}

#[tokio::test]
async fn an_interval_changes_for_pollers_that_wait() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).pool("load: {scrape_interval: 1h, stale_after: 2h}").start().await;
    router.becomes(&Setup::of(&[&stub]).pool("load: {scrape_interval: 20ms}")).await;
    stub.scrapes(5).await;
}

#[tokio::test]
async fn a_hangup_reloads() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let router = Setup::of(&[&a]).start().await;
    router.write(Setup::of(&[&a, &b]).file());
    router.signal("HUP").await;
    router.until_state("version 2", |state| (state["config"]["version"] == 2).then_some(())).await;
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_reload() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    std::fs::remove_file(&router.file).unwrap();
    let response = router.reload().await;
    assert_eq!(response.status(), 422, "{}", response.text());
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
}

// D11, case 2
#[tokio::test]
async fn endpoints_that_come_and_go_leave_nothing() {
    let [stay, go] = [Stub::start().await, Stub::start().await];
    let (one, router) = (Setup::of(&[&stay]), Setup::of(&[&stay]).start().await);
    let mut early = None;
    for cycle in 0..300 {
        router.becomes(&one.clone().endpoint(&format!("come-{cycle}"), go.address())).await;
        for seed in 0..5 {
            assert_eq!(router.chat(prompts::cold(cycle * 5 + seed)).await.status(), 200);
        }
        router.becomes(&one).await;
        if cycle == 100 {
            early = Some((router.resident_bytes(), router.descriptors()));
        }
    }
    let (bytes, descriptors) = early.unwrap();
    assert!(router.resident_bytes() < bytes + bytes / 4, "{} after {bytes}", router.resident_bytes());
    let settled = || async { (router.descriptors() <= descriptors + 8).then_some(()) };
    until("descriptors to be closed", DEADLINE, settled).await;
    assert!(!router.metrics().await.contains("come-"));
    assert_eq!(router.state().await["endpoints"].as_array().unwrap().len(), 1);
}
