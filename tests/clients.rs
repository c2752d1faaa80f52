//! What a client may say and what it may not decide: destinations, the router's own headers, its session.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::post_head;
use harness::{Router, Setup, Stub, exchange, prompts};

const CHAT: &str = "/v1/chat/completions";

fn request(target: &str, headers: &str) -> Vec<u8> {
    let body = prompts::cold(1);
    let head = post_head(target, &format!("{headers}content-length: {}\r\n", body.len()));
    [head, body.into_bytes()].concat()
}

/// A fleet of two, one of which holds the prompt, and a listener outside of it.
async fn fleet() -> (Stub, Stub, Stub, Router) {
    let (a, b, sink) = (Stub::start().await, Stub::start().await, Stub::start().await);
    let router = Setup::of(&[&a, &b]).policy("prefix-only").start().await;
    router.chat(prompts::cold(1)).await;
    (a, b, sink, router)
}

// D40
#[tokio::test]
async fn no_header_and_no_target_chooses_the_upstream() {
    let (a, b, sink, router) = fleet().await;
    let picked = router.chat(prompts::cold(1)).await.endpoint();
    let (outside, other) = (sink.address(), if picked == "a" { b.address() } else { a.address() });
    let headers = |to: std::net::SocketAddr| {
        [
            format!("x-gateway-destination-endpoint: {to}\r\n"),
            format!("x-gateway-destination-endpoint-served: {to}\r\n"),
            format!("x-provider-endpoint: http://{to}\r\n"),
            format!("x-forwarded-host: {to}\r\nforwarded: host={to}\r\n"),
            "x-prefixroute-endpoint: b\r\nx-prefixroute-policy: random\r\nx-prefixroute-match: 9/9\r\n"
                .to_owned(),
        ]
    };
    for header in headers(outside).into_iter().chain(headers(other)) {
        let response = exchange(router.data, request(CHAT, &header)).await;
        assert_eq!((response.status(), response.endpoint()), (200, picked.clone()), "{header}");
    }
    for target in [
        format!("http://{outside}{CHAT}"),
        format!("//{outside}/v1/x"),
        format!("/v1/@{outside}"),
        format!("http://user@{outside}{CHAT}"),
    ] {
        let response = exchange(router.data, request(&target, "")).await;
        assert!([200, 400, 404].contains(&response.status()), "{target}: {response:?}");
    }
    assert_eq!(sink.seen(|seen| (seen.connections, seen.requests.len())), (0, 0));
}

// D40
#[tokio::test]
async fn copies_of_the_routers_own_headers_go_no_further() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let own = [
        "x-prefixroute-endpoint",
        "X-Prefixroute-Policy",
        "x-prefixroute-match",
        "x-prefixroute-decision-us",
    ];
    let headers: String = own.iter().map(|name| format!("{name}: forged\r\n")).collect();
    let response = exchange(router.data, request(CHAT, &headers)).await;
    for name in own {
        assert_eq!(stub.last().head.header(name), None, "{name}");
        assert_ne!(response.header(name), Some("forged"), "{name}");
    }
}

/// A session is named for the router and for the engine, and shown to nobody.
#[tokio::test]
async fn the_session_goes_on_as_it_came_and_is_not_shown() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    exchange(router.data, request(CHAT, "X-Session-ID: secret-7 ; \u{e9}\r\n")).await;
    let raw = stub.last().head_raw;
    let raw = String::from_utf8_lossy(&raw);
    assert!(raw.contains("X-Session-ID: secret-7 ; \u{e9}\r\n"), "{raw}");
    let shown = [router.state().await.to_string(), router.metrics().await, router.output()];
    assert!(shown.iter().all(|text| !text.contains("secret-7")));
}

// D13, the part that concerns prefixes: which replica has an adapter is not known yet.
#[tokio::test]
async fn a_prefix_of_the_base_model_is_none_of_an_adapter() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let of = |model: &str| prompts::cold(1).replacen("\"m\"", &format!("\"{model}\""), 1);
    router.chat(of("base")).await;
    assert_eq!(router.chat(of("org/ad:1")).await.matched().0, 0);
    assert_eq!(router.chat(of("base")).await.matched(), (17, 17));
    assert_eq!(router.chat(of("org/ad:1")).await.matched(), (17, 17));
}
