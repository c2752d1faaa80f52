//! Engines behind TLS: who is believed, what the router shows of itself, and what becomes of requests where it fails.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;

use harness::script::{chunk, last_chunk};
use harness::tls::{Authority, Front};
use harness::{Answer, Client, DEADLINE, Router, Setup, Signal, Step, Stub, post, prompts, until};

const CHAT: &str = "/v1/chat/completions";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

/// A pool of engines over TLS, by name.
fn setup(engines: &[(&str, &Front)], tls: &str, rest: &str) -> Setup {
    let addresses: Vec<_> = engines.iter().map(|(name, front)| (*name, front.address)).collect();
    setup_at(&addresses, tls, rest)
}

/// The same, whatever listens there.
fn setup_at(engines: &[(&str, SocketAddr)], tls: &str, rest: &str) -> Setup {
    let rows: String = engines
        .iter()
        .map(|(name, address)| format!("  - {{name: {name}, url: \"https://{address}\"}}\n"))
        .collect();
    let pool =
        format!("name: secure\nmodels: [m]\nmodels_interval: off\nendpoints:\n{rows}tls: {{{tls}}}\n{rest}");
    Setup::default().pool("name: none\nmodels: [none]").and_pool(&pool)
}

async fn scraped(router: &Router, names: &[&str]) {
    for name in names {
        router.sees(name, "usable", true).await;
    }
}

#[tokio::test]
async fn an_engine_that_is_believed_serves_as_in_clear_text() {
    let authority = Authority::new("one");
    let stub = Stub::start().await;
    let front = Front::of(stub.address(), &authority.sign(&["127.0.0.1"]), None).await;
    let router = setup(&[("a", &front)], "ca: ca.crt", "").beside("ca.crt", authority.pem()).start().await;
    scraped(&router, &["a"]).await;
    for size in [100, 20_000, 3_000_000] {
        let body = prompts::chat_of_size(1, size);
        assert_eq!(router.chat(&body).await.status(), 200, "{size}");
        stub.last().assert_framed_once(body.as_bytes());
    }
    let (matched, total) = router.chat(prompts::chat_of_size(1, 20_000)).await.matched();
    assert_eq!(matched, total);
    let before = stub.seen(|seen| seen.connections);
    for _ in 0..10 {
        router.chat(prompts::cold(1)).await;
    }
    assert_eq!(stub.seen(|seen| seen.connections), before, "connections are used again");
    assert_eq!(*front.failed.lock(), 0);
}

#[tokio::test]
async fn streams_are_unharmed_and_who_leaves_stops_the_engine() {
    let authority = Authority::new("one");
    let signal = Signal::default();
    let events = [chunk(EVENT), Step::Wait(signal.clone()), chunk("data: [DONE]\n\n"), last_chunk()];
    let stub = Stub::answering(Answer::stream(events)).await;
    let front = Front::of(stub.address(), &authority.sign(&["127.0.0.1"]), None).await;
    let router = setup(&[("a", &front)], "ca: ca.crt", "").beside("ca.crt", authority.pem()).start().await;
    scraped(&router, &["a"]).await;
    let mut client = Client::connect(router.data).await;
    client.send(post(CHAT, prompts::with(&prompts::cold(1), r#","stream":true"#))).await;
    let mut framing = client.head().await.response_framing("POST");
    client.body_until(&mut framing, EVENT.as_bytes()).await;
    signal.fire_all();
    client.body_until(&mut framing, b"[DONE]\n\n").await;
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
    stub.always(Answer::stream([chunk(EVENT), Step::Hang]));
    let requests = stub.count();
    client.send(post(CHAT, prompts::cold(2))).await;
    assert_eq!(client.head().await.status(), 200);
    client.close();
    stub.abandoned(requests, DEADLINE).await;
    router.idle().await;
    stub.always(Answer::stream([chunk(EVENT), Step::Reset]));
    let response = router.chat(prompts::cold(3)).await;
    assert!(response.broken.is_some(), "no clean end: {response:?}");
}

/// One engine shows what nobody vouches for: the other gets its requests, and keeps them.
#[tokio::test]
async fn an_engine_that_is_not_believed_gets_nothing_and_the_next_is_tried() {
    let [ours, others] = [Authority::new("ours"), Authority::new("others")];
    let [a, b] = [Stub::start().await, Stub::start().await];
    for (shows, wrong) in [
        ("another authority", others.sign(&["127.0.0.1"])),
        ("another name", ours.sign(&["127.0.0.2"])),
        ("a host's name", ours.sign(&["localhost"])),
    ] {
        let front_a = Front::of(a.address(), &wrong, None).await;
        let front_b = Front::of(b.address(), &ours.sign(&["127.0.0.1"]), None).await;
        let engines = [("a", &front_a), ("b", &front_b)];
        let router = setup(&engines, "ca: ca.crt", "").beside("ca.crt", ours.pem()).start().await;
        router.sees("b", "usable", true).await;
        for seed in 0..10 {
            let first = router.chat(prompts::cold(seed)).await;
            let second = router.chat(prompts::cold(seed)).await;
            for response in [&first, &second] {
                assert_eq!((response.status(), response.endpoint().as_str()), (200, "b"), "{shows}");
            }
            let (matched, total) = second.matched();
            assert_eq!(matched, total, "{shows}: affinity is kept");
        }
        assert_eq!(a.seen(|seen| (seen.requests.len(), seen.scrapes)), (0, 0), "{shows}");
        assert!(*front_a.failed.lock() > 0, "{shows}: it was tried");
        let state = router.endpoint("a").await;
        assert_eq!(state["usable"], false, "{shows}: {state}");
        assert!(state.to_string().contains("tls: its certificate"), "{shows}: the state says why: {state}");
    }
}

#[tokio::test]
async fn where_no_engine_is_believed_it_is_502() {
    let [ours, others] = [Authority::new("ours"), Authority::new("others")];
    let stub = Stub::start().await;
    let front = Front::of(stub.address(), &others.sign(&["127.0.0.1"]), None).await;
    let router = setup(&[("a", &front)], "ca: ca.crt", "").beside("ca.crt", ours.pem()).start().await;
    let response = router.chat(prompts::cold(1)).await;
    assert!([502, 503].contains(&response.status()), "{response:?}");
    response.assert_router_error(response.status());
    assert_eq!(stub.count(), 0);
    // Another configuration heals it, with nothing else changed.
    let healed = setup(&[("a", &front)], "insecure: true", "");
    router.becomes(&healed).await;
    router.sees("a", "usable", true).await;
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
    assert!(router.output().contains("insecure"), "which is warned of");
}

/// What the configured authority vouches for changes with its file.
#[tokio::test]
async fn authorities_change_live() {
    let [ours, others] = [Authority::new("ours"), Authority::new("others")];
    let stub = Stub::start().await;
    let front = Front::of(stub.address(), &others.sign(&["engine.example"]), None).await;
    let tls = "ca: ca.crt, server_name: engine.example";
    let router = setup(&[("a", &front)], tls, "").beside("ca.crt", ours.pem()).start().await;
    router.chat(prompts::cold(1)).await;
    assert_eq!(stub.count(), 0);
    std::fs::write(router.beside("ca.crt"), others.pem()).unwrap();
    assert_eq!(router.reload().await.json()["outcome"], "applied");
    router.sees("a", "usable", true).await;
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
}

#[tokio::test]
async fn an_engine_that_wants_a_certificate_sees_the_routers() {
    let [ours, others] = [Authority::new("ours"), Authority::new("others")];
    let stub = Stub::start().await;
    let front = Front::of(stub.address(), &ours.sign(&["127.0.0.1"]), Some(&ours)).await;
    let (right, wrong) = (ours.sign(&["router.example"]), others.sign(&["router.example"]));
    let shown = "ca: ca.crt, cert: r.crt, key: \"file:r.key\"";
    let with = |tls: &str, pair: &harness::tls::Pair| {
        setup(&[("a", &front)], tls, "")
            .beside("ca.crt", ours.pem())
            .beside("r.crt", pair.cert.as_str())
            .beside("r.key", pair.key.as_str())
    };
    for (shows, setup) in [("none", with("ca: ca.crt", &right)), ("another's", with(shown, &wrong))] {
        let router = setup.start().await;
        let response = router.chat(prompts::cold(1)).await;
        assert!([502, 503].contains(&response.status()), "{shows}: {response:?}");
        assert_eq!(stub.count(), 0, "{shows}");
        assert!(router.endpoint("a").await.to_string().contains("tls: it refused"), "{shows}");
    }
    let router = with(shown, &right).start().await;
    scraped(&router, &["a"]).await;
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
}

/// An engine that speaks clear text behind an https URL.
#[tokio::test]
async fn an_engine_without_tls_is_not_spoken_to_in_clear() {
    let authority = Authority::new("one");
    let [clear, stub] = [Stub::start().await, Stub::start().await];
    let front = Front::of(stub.address(), &authority.sign(&["127.0.0.1"]), None).await;
    let setup = setup_at(&[("a", clear.address()), ("b", front.address)], "ca: ca.crt", "");
    let router = setup.beside("ca.crt", authority.pem()).start().await;
    router.sees("b", "usable", true).await;
    for seed in 0..5 {
        assert_eq!(router.chat(prompts::cold(seed)).await.endpoint(), "b");
    }
    assert_eq!(clear.seen(|seen| (seen.requests.len(), seen.scrapes)), (0, 0));
}

/// Prompts that begin alike and come while a connection is made must not go to one endpoint each.
#[tokio::test]
async fn a_prompt_is_believed_while_its_connection_is_made_and_not_once_that_fails() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let router = setup_at(&[("a", address)], "insecure: true", "timeouts: {connect: 60s}").start().await;
    let body = prompts::cold(1);
    let matched = async || router.explain(&body).await.json()["match"].as_str().unwrap().to_owned();
    let all = matched().await.replace("0/", "");
    let mut client = Client::connect(router.data).await;
    client.send(post(CHAT, &body)).await;
    let believed = format!("{all}/{all}");
    until("belief", DEADLINE, async || (matched().await == believed).then_some(())).await;
    drop(silent);
    assert_eq!(client.response("POST").await.status(), 502);
    assert_eq!(matched().await, format!("0/{all}"));
}
