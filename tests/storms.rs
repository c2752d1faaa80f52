//! D31: more connections than engines take at once, and more than the router has descriptors for.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::script::{Answer, write};
use harness::wait::pace;
use harness::{
    Client, DEADLINE, H2Client, Router, Setup, Signal, Step, Stub, descriptors, get, post, prompts,
};
use harness::{exchange, h2_client, until, within};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const CHAT: &str = "/v1/chat/completions";
const SECOND: Duration = Duration::from_secs(1);

/// Asks so many times at once, each on a connection of its own; how many were answered with 200.
async fn storm(to: SocketAddr, clients: u64) -> u64 {
    let mut asking = JoinSet::new();
    for seed in 0..clients {
        asking.spawn(async move {
            let mut client = Client::try_connect(to).await.ok()?;
            client.try_send(post(CHAT, prompts::chat(&seed.to_string()))).await.ok()?;
            Some(client.response("POST").await.status())
        });
    }
    let mut served = 0;
    while let Some(status) = asking.join_next().await {
        served += u64::from(status.is_ok_and(|status| status == Some(200)));
    }
    served
}

/// A value on the page of metrics.
async fn metric(router: &Router, name: &str) -> f64 {
    let page = router.metrics().await;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// How long `/healthz` takes.
async fn liveness(router: &Router) -> Duration {
    let started = Instant::now();
    assert_eq!(exchange(router.admin, get("/healthz")).await.status(), 200);
    started.elapsed()
}

// D31 (1)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_stop_accepting_for_a_moment_lose_no_request() {
    const CLIENTS: u64 = 2_048;
    descriptors::need(8_192);
    let mut stubs = Vec::new();
    for _ in 0..8 {
        stubs.push(Stub::with_backlog(128).await);
    }
    let router = Setup::of(&stubs.iter().collect::<Vec<_>>()).start().await;
    stubs.iter().for_each(|stub| stub.rest(true));
    let asking = tokio::spawn(storm(router.data, CLIENTS));
    pace(Duration::from_millis(400)).await;
    stubs.iter().for_each(|stub| stub.rest(false));
    let served = within("all answers", Duration::from_secs(60), asking).await.unwrap();
    assert!(served * 1000 >= CLIENTS * 995, "{served} of {CLIENTS} were served");
    assert_eq!(storm(router.data, 64).await, 64, "and all after it");
}

/// A stub whose answers wait for a signal.
async fn waiting() -> (Stub, Signal) {
    let (stub, go) = (Stub::start().await, Signal::default());
    let answer = write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    stub.always(Answer::steps([Step::Wait(go.clone()), answer]));
    (stub, go)
}

// D31 (2)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_clients_than_descriptors_wait_and_liveness_does_not() {
    const CLIENTS: u64 = 1_500;
    descriptors::need(4_096);
    let (stub, go) = waiting().await;
    let router = Setup::of(&[&stub]).descriptors(1024).start().await;
    let room = metric(&router, "prefixroute_connections_max").await;
    let asking = tokio::spawn(storm(router.data, CLIENTS));
    until("a full house", DEADLINE, || async {
        (metric(&router, "prefixroute_connections").await >= room && stub.count() as f64 >= room)
            .then_some(())
    })
    .await;
    let before = router.processor_ticks();
    for _ in 0..3 {
        let took = liveness(&router).await;
        assert!(took < SECOND, "liveness took {took:?}");
        pace(SECOND).await;
    }
    let ticks = router.processor_ticks() - before;
    assert!(ticks < 150, "{ticks} ticks of 10 ms in 3 s, while everybody waits");
    assert!(stub.count() as f64 <= room + 1.0, "{} requests of {room} clients", stub.count());
    assert!(router.descriptors() < 1024);
    go.fire_all();
    let served = within("all answers", Duration::from_secs(60), asking).await.unwrap();
    // Of those that were in, a machine so busy that a client says nothing for seconds may cost some their places.
    assert!(served * 100 >= CLIENTS * 95, "{served} of {CLIENTS}: who waits is served, too");
    assert_eq!(storm(router.data, 50).await, 50, "after the load drops");
    assert_eq!(router.endpoint("a").await["usable"], true);
    let warnings = router.output().matches("full: further clients wait").count();
    assert!((1..10).contains(&warnings), "{warnings} warnings");
    assert!(!router.output().contains("accept failed"), "descriptors were left");
}

/// Connected, served once, silent.
async fn silent_clients(router: &Router, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = Client::connect(router.data).await;
        assert_eq!(client.exchange(get("/v1/x")).await.status(), 200);
        clients.push(client);
        // So that it is known who has been silent longest.
        pace(Duration::from_millis(100)).await;
    }
    clients
}

#[tokio::test]
async fn who_waits_gets_the_place_of_who_was_silent_longest() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml("limits: {connections_max: 4}").start().await;
    assert_eq!(metric(&router, "prefixroute_connections_max").await, 4.0);
    let mut silent = silent_clients(&router, 3).await;
    let mut fresh = Client::connect(router.data).await;
    let mut waiting = Client::connect(router.data).await;
    let answer = waiting.exchange(get("/v1/x")).await;
    assert_eq!((answer.status(), answer.header("connection")), (200, Some("close")), "{answer:?}");
    waiting.closed(DEADLINE).await;
    silent.remove(0).closed(DEADLINE).await;
    for client in silent.iter_mut().chain([&mut fresh]) {
        assert_eq!(client.exchange(get("/v1/x")).await.status(), 200, "the younger are there");
    }
    assert_eq!(metric(&router, "prefixroute_connections_full_total").await, 1.0);
    assert_eq!(router.output().matches("full: further clients wait").count(), 1);
}

#[tokio::test]
async fn the_limit_of_connections_changes_while_they_are_open() {
    let (stub, go) = waiting().await;
    let setup = |limit: usize| Setup::of(&[&stub]).yaml(&format!("limits: {{connections_max: {limit}}}"));
    let router = setup(2).start().await;
    let asking = tokio::spawn(storm(router.data, 4));
    stub.wait("two requests", DEADLINE, |seen| (seen.requests.len() == 2).then_some(())).await;
    until("a full house", DEADLINE, || async {
        (metric(&router, "prefixroute_connections_full_total").await == 1.0).then_some(())
    })
    .await;
    assert_eq!(stub.count(), 2);
    router.becomes(&setup(8)).await;
    stub.wait("four requests", DEADLINE, |seen| (seen.requests.len() == 4).then_some(())).await;
    go.fire_all();
    assert_eq!(asking.await.unwrap(), 4);
}

#[tokio::test]
async fn a_flood_of_the_admin_listener_leaves_it_and_the_clients_alone() {
    descriptors::need(2_048);
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).descriptors(512).start().await;
    let mut flood = Vec::new();
    for _ in 0..300 {
        flood.push(Client::connect(router.admin).await);
    }
    // Behind 300 that say nothing; each may be silent for a second.
    let took = liveness(&router).await;
    assert!(took < DEADLINE, "{took:?}");
    assert_eq!(storm(router.data, 100).await, 100);
    assert!(router.descriptors() < 512);
}

/// Streams of few HTTP/2 connections need more connections to engines than there are descriptors.
#[tokio::test]
async fn an_engine_is_not_blamed_for_what_the_router_lacks() {
    const STREAMS: usize = 90;
    let (stub, go) = waiting().await;
    let router = Setup::of(&[&stub]).descriptors(200).start().await;
    let client = H2Client::connect(router.h2c).await;
    let mut streams = Vec::new();
    for seed in 0..STREAMS {
        let mut stream = client.start(h2_client::post_request(CHAT, None), false).await;
        stream.body.send_data(prompts::chat(&seed.to_string()).into(), true).unwrap();
        streams.push(stream.response);
    }
    stub.wait("as many as may be", DEADLINE, |seen| (seen.requests.len() >= 55).then_some(())).await;
    assert!(liveness(&router).await < SECOND);
    assert!(stub.count() < 61, "{} at once, wanted what is the engines' share", stub.count());
    assert_eq!(router.endpoint("a").await["usable"], true);
    assert!(router.metrics().await.contains("connect_failures_total{endpoint=\"a\",pool=\"default\"} 0\n"));
    go.fire_all();
    for response in streams {
        assert_eq!(h2_client::response(response).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_small_requests_answer_beside_64_large_prompts() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let body = prompts::chat_of_size(1, 2 << 20);
    let request = bytes::Bytes::from(post(CHAT, body));
    let mut uploads = JoinSet::new();
    for _ in 0..64 {
        let (to, request) = (router.data, request.clone());
        uploads.spawn(async move { exchange(to, request).await.status() });
    }
    let mut slowest = Duration::ZERO;
    let mut probes = 0;
    while !uploads.is_empty() {
        let started = Instant::now();
        assert_eq!(exchange(router.admin, get("/healthz")).await.status(), 200);
        assert!(router.metrics().await.contains("prefixroute_requests_total"));
        assert_eq!(router.chat(prompts::chat("hi")).await.status(), 200);
        slowest = slowest.max(started.elapsed());
        probes += 1;
        while let Some(status) = uploads.try_join_next() {
            assert_eq!(status.unwrap(), 200);
        }
    }
    assert!(probes > 1, "the uploads were over before anybody asked");
    assert!(slowest < DEADLINE / 2, "{slowest:?} for health, metrics and a small request");
}
