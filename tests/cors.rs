//! What browsers ask before they ask, and what they are told with an answer.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::{Answer, Client, Response, Router, Setup, Stub, exchange, post_with, prompts};

const CHAT: &str = "/v1/chat/completions";
const PAGE: &str = "https://app.example";
const CORS: &str = "cors:\n  origins: [https://app.example, \"http://localhost:3000\"]\n  headers: [Authorization, Content-Type]\n  max_age: 1h";

fn preflight(origin: &str, path: &str) -> String {
    format!(
        "OPTIONS {path} HTTP/1.1\r\nhost: router\r\norigin: {origin}\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization,content-type,x-extra\r\n\r\n"
    )
}

async fn fleet(yaml: &str) -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml(yaml).tenant("acme", &["sk-acme"], "").start().await;
    (stub, router)
}

async fn asked(router: &Router, lines: &str) -> Response {
    exchange(router.data, post_with(CHAT, lines, prompts::cold(1))).await
}

// D45
#[tokio::test]
async fn with_cors_the_router_answers_preflights_without_a_key() {
    let (stub, router) = fleet(CORS).await;
    let mut client = Client::connect(router.data).await;
    for (origin, allowed) in [
        (PAGE, Some(PAGE)),
        ("http://localhost:3000", Some("http://localhost:3000")),
        ("https://app.example.evil.example", None),
        ("http://app.example", None),
        ("null", None),
    ] {
        let response = client.exchange(preflight(origin, CHAT)).await;
        assert_eq!(response.status(), 204, "{origin}: {response:?}");
        assert!(response.body.is_empty());
        assert_eq!(response.header("access-control-allow-origin"), allowed, "{origin}");
        let headers = response.header("access-control-allow-headers").map(str::to_lowercase);
        assert_eq!(headers.as_deref(), allowed.map(|_| "authorization, content-type"), "{origin}");
        assert_eq!(response.header("access-control-max-age"), allowed.map(|_| "3600"), "{origin}");
        let methods = response.header("access-control-allow-methods");
        assert_eq!(methods.is_some_and(|methods| methods.contains("POST")), allowed.is_some(), "{origin}");
        assert!(response.header("vary").unwrap().to_lowercase().contains("origin"), "{origin}");
        assert_eq!(response.header("access-control-allow-credentials"), None);
    }
    assert_eq!(stub.count(), 0);
    // The connection goes on, and leaves nothing behind.
    let request = post_with(CHAT, "x-api-key: sk-acme\r\n", prompts::cold(1));
    assert_eq!(client.exchange(request).await.status(), 200);
    router.idle().await;
}

// D45
#[tokio::test]
async fn a_preflight_with_a_body_is_answered_and_its_body_is_no_request() {
    let (stub, router) = fleet(CORS).await;
    let mut client = Client::connect(router.data).await;
    let inner = "GET /inner HTTP/1.1\r\nhost: router\r\nx-api-key: sk-acme\r\n\r\n";
    let head = preflight(PAGE, CHAT).replacen(
        "\r\n\r\n",
        &format!("\r\ncontent-length: {}\r\n\r\n", inner.len()),
        1,
    );
    assert_eq!(client.exchange(format!("{head}{inner}")).await.status(), 204);
    let request = post_with(CHAT, "x-api-key: sk-acme\r\n", prompts::cold(1));
    assert_eq!(client.exchange(request).await.status(), 200);
    assert_eq!(stub.count(), 1);
    assert_eq!(stub.last().head.target(), CHAT);
}

// D45
#[tokio::test]
async fn without_cors_preflights_go_to_an_engine_without_a_key() {
    let (stub, router) = fleet("").await;
    stub.always(Answer::raw("HTTP/1.1 204 No Content\r\naccess-control-allow-origin: *\r\n\r\n"));
    let response = exchange(router.data, preflight(PAGE, CHAT)).await;
    assert_eq!((response.status(), response.header("access-control-allow-origin")), (204, Some("*")));
    assert_eq!(stub.count(), 1);
    // An OPTIONS that no browser would send as a question is a request like any other.
    for request in [
        format!("OPTIONS {CHAT} HTTP/1.1\r\nhost: router\r\n\r\n"),
        "HEAD /v1/models HTTP/1.1\r\nhost: router\r\n\r\n".to_owned(),
    ] {
        assert_eq!(exchange(router.data, request).await.status(), 401);
    }
    assert_eq!(stub.count(), 1);
    let keyed = "OPTIONS * HTTP/1.1\r\nhost: router\r\nx-api-key: sk-acme\r\n\r\n";
    assert_eq!(exchange(router.data, keyed).await.status(), 204);
    assert_eq!(stub.last().head.first_line, "OPTIONS * HTTP/1.1");
    router.idle().await;
    assert_eq!(router.endpoint("a").await["index_blocks"], 0);
}

// D45
#[tokio::test]
async fn head_with_a_key_has_no_body_and_leaves_the_connection_usable() {
    let (stub, router) = fleet(CORS).await;
    stub.always(Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n"));
    let mut client = Client::connect(router.data).await;
    for key in ["x-api-key: sk-acme\r\n", "", "x-api-key: sk-acme\r\n"] {
        let head = format!("HEAD /v1/models HTTP/1.1\r\nhost: router\r\n{key}\r\n");
        let response = client.exchange(head).await;
        if key.is_empty() {
            // Refused before its body would be read, so this is the last answer on the connection.
            assert_eq!((response.status(), response.body.len()), (401, 0), "{response:?}");
            client = Client::connect(router.data).await;
        } else {
            assert_eq!((response.status(), response.header("content-length")), (200, Some("500")));
        }
    }
}

#[tokio::test]
async fn answers_and_errors_tell_a_browser_what_it_may_read() {
    let (stub, router) = fleet(&format!("{CORS}\npaths: [/v1/*]\nlimits: {{body_bytes_max: 64KiB}}")).await;
    stub.always(Answer::raw(
        "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\nvary: accept\r\ncontent-length: 2\r\n\r\n{}",
    ));
    let key = "x-api-key: sk-acme\r\n";
    let origin = format!("origin: {PAGE}\r\n");
    let long = "x".repeat(100_000);
    for (shows, path, lines, body, status) in [
        ("an answer", CHAT, format!("{key}{origin}"), "{}", 200),
        ("no key", CHAT, origin.clone(), "{}", 401),
        ("another path", "/metrics", format!("{key}{origin}"), "{}", 403),
        ("too large", CHAT, format!("{key}{origin}"), long.as_str(), 413),
    ] {
        let response = exchange(router.data, post_with(path, &lines, body)).await;
        assert_eq!(response.status(), status, "{shows}: {response:?}");
        assert_eq!(response.head.all("access-control-allow-origin"), [PAGE], "{shows}");
        assert_eq!(response.header("access-control-allow-credentials"), None, "{shows}: an engine's own");
        let exposed = response.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("retry-after") && exposed.contains("x-prefixroute-endpoint"), "{exposed}");
        let vary = response.head.all("vary").join(",").to_lowercase();
        assert!(vary.contains("origin"), "{shows}: {vary}");
    }
    let response = asked(&router, &format!("{key}origin: https://evil.example\r\n")).await;
    assert_eq!(response.status(), 200, "CORS keeps nobody out");
    assert_eq!(response.header("access-control-allow-origin"), None, "but says no to a browser");
    let response = asked(&router, key).await;
    assert_eq!(response.header("access-control-allow-origin"), None, "nobody asked");
}

#[tokio::test]
async fn a_star_is_all_origins_and_their_headers() {
    let (_stub, router) = fleet("cors: {origins: [\"*\"]}").await;
    let response = exchange(router.data, preflight("https://anywhere.example", CHAT)).await;
    assert_eq!(response.header("access-control-allow-origin"), Some("*"));
    assert_eq!(response.header("access-control-allow-headers"), Some("authorization,content-type,x-extra"));
}

/// A page that is not served is none to ask about.
#[tokio::test]
async fn a_preflight_for_a_path_that_is_not_served_is_refused() {
    let (stub, router) = fleet(&format!("{CORS}\npaths: [/v1/*]")).await;
    exchange(router.data, preflight(PAGE, "/metrics")).await.assert_router_error(403);
    assert_eq!(exchange(router.data, preflight(PAGE, CHAT)).await.status(), 204);
    assert_eq!(stub.count(), 0);
}
