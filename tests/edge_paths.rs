//! The list of paths that are served, against those who try around it; and who a client is behind proxies.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::{Client, H2Client, Router, Setup, Stub, exchange, get};
use std::path::Path;

/// Targets that some server takes for a path beyond `/v1/*` and `/tokenize`.
const ATTACKS: [&str; 43] = [
    "/metrics",
    "/",
    "/v1",
    "/v2/x",
    "/V1/models",
    "/tokenize/",
    "/tokenizer",
    "/tokenize/x",
    "/v1/../metrics",
    "/v1/..",
    "/v1/.",
    "/v1/./models",
    "/v1/x/../../metrics",
    "/v1/%2e%2e/metrics",
    "/v1/%2E%2e/metrics",
    "/v1/.%2e/metrics",
    "/v1/%252e%252e/metrics",
    "/v1/..%2fmetrics",
    "/v1/..%5cmetrics",
    "/v1/..\\metrics",
    "/v1\\..\\metrics",
    "/v1/..;/metrics",
    "/v1/;/../metrics",
    "/v1;x=1/models",
    "/v1/models;x=1",
    "/v1/..%00/metrics",
    "/v1/%00",
    "/v1/%0d%0aX:%20y",
    "/v1/%2f..%2fmetrics",
    "/v1//models",
    "//v1/models",
    "///metrics",
    "/v1/..//metrics",
    "/v1/%c0%ae%c0%ae/metrics",
    "/v1/\u{ff0e}\u{ff0e}/../metrics",
    "/v1/%",
    "/v1/%2",
    "/v1/%zz",
    "/v1/%u002e",
    "/v1/x%23",
    "/v1/x%3f",
    "/%76%31/../metrics",
    "/.../v1/models",
];
/// Served, as they are.
const SERVED: [&str; 9] = [
    "/v1/models",
    "/v1/",
    "/v1/a/b/c",
    "/v1/models?path=/../metrics",
    "/v1/models?x=%2e%2e%00;\\//",
    "/%76%31/models",
    "/v1/models/org%20name",
    "/tokenize",
    "/tokenize?x=1",
];
/// Forms of targets that are no paths, and the status that they get.
const FORMS: [&str; 7] = [
    "GET http://x/metrics HTTP/1.1",
    "GET http://x/v1/../metrics HTTP/1.1",
    "GET http://x HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "GET metrics HTTP/1.1",
    "GET v1/models HTTP/1.1",
    "GET /metrics HTTP/1.0",
];

async fn fleet() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml("paths: [/v1/*, /tokenize]").start().await;
    (stub, router)
}

#[tokio::test]
async fn nothing_but_listed_paths_reaches_an_engine() {
    let (stub, router) = fleet().await;
    let attacks = ATTACKS.iter().map(|target| format!("GET {target} HTTP/1.1"));
    for line in attacks.chain(FORMS.map(str::to_owned)) {
        let mut client = Client::connect(router.data).await;
        client.send(format!("{line}\r\nhost: router\r\ncontent-length: 0\r\n\r\n")).await;
        let response = client.response("GET").await;
        assert!([400, 403].contains(&response.status()), "{line}: {response:?}");
        response.assert_router_error(response.status());
        assert_eq!(stub.count(), 0, "{line} reached an engine as {:?}", stub.last().head.first_line);
    }
    for target in SERVED {
        assert_eq!(exchange(router.data, get(target)).await.status(), 200, "{target}");
        assert_eq!(stub.last().head.target(), target, "as it came");
    }
    assert_eq!(stub.count(), SERVED.len());
    // A fragment is for nobody but the client: it is judged and forwarded without.
    assert_eq!(exchange(router.data, get("/v1/x#/../../metrics")).await.status(), 200);
    assert_eq!(stub.last().head.target(), "/v1/x");
}

#[tokio::test]
async fn nor_over_http2() {
    let (stub, router) = fleet().await;
    let client = H2Client::connect(router.h2c).await;
    for target in ATTACKS.iter().filter(|target| target.is_ascii()) {
        let Ok(uri) = format!("http://router{target}").parse::<http::Uri>() else { continue };
        let response = client.exchange(http::Request::get(uri).body(()).unwrap(), "").await;
        assert!([400, 403].contains(&response.status()), "{target}: {response:?}");
    }
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn the_list_changes_live() {
    let (stub, router) = fleet().await;
    exchange(router.data, get("/version")).await.assert_router_error(403);
    router.becomes(&Setup::of(&[&stub]).yaml("paths: [/version]")).await;
    assert_eq!(exchange(router.data, get("/version")).await.status(), 200);
    exchange(router.data, get("/v1/models")).await.assert_router_error(403);
    router.becomes(&Setup::of(&[&stub])).await;
    assert_eq!(exchange(router.data, get("/v1/../metricses")).await.status(), 200, "without a list all pass");
}

/// A proxy on the same host would let strangers see it: with a list, or with tenants, it is for the admin listener alone.
#[tokio::test]
async fn the_state_is_no_way_around() {
    let (stub, router) = fleet().await;
    exchange(router.data, get("/prefixroute/state")).await.assert_router_error(403);
    router.becomes(&Setup::of(&[&stub]).tenant("acme", &["sk-acme"], "")).await;
    exchange(router.data, get("/prefixroute/state")).await.assert_router_error(401);
    router.becomes(&Setup::of(&[&stub])).await;
    let state = exchange(router.data, get("/prefixroute/state")).await.json();
    assert_eq!(
        state["endpoints"].as_array().map(Vec::len),
        Some(1),
        "open to everybody on loopback otherwise"
    );
}

/// The client of the last line, once there are so many.
async fn client_of(log: &Path, lines: usize) -> String {
    let text = harness::until("a line", harness::DEADLINE, || async {
        let text = std::fs::read_to_string(log).unwrap();
        (text.lines().count() >= lines && text.ends_with('\n')).then_some(text)
    })
    .await;
    let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    line["client"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_client_is_seen_through_known_proxies_alone() {
    let stub = Stub::start().await;
    let yaml = |trusted: &str| format!("access_log: access.jsonl\nforwarded_headers: true\n{trusted}");
    let rows = [
        ("", "127.0.0.1", "127.0.0.1"),
        ("x-forwarded-for: 203.0.113.9\r\n", "203.0.113.9", "203.0.113.9, 127.0.0.1"),
        ("x-forwarded-for: 6.6.6.6, 203.0.113.9\r\n", "203.0.113.9", "6.6.6.6, 203.0.113.9, 127.0.0.1"),
        (
            "x-forwarded-for: 6.6.6.6\r\nX-Forwarded-For: 203.0.113.9, 10.0.0.1\r\n",
            "203.0.113.9",
            "6.6.6.6, 203.0.113.9, 10.0.0.1, 127.0.0.1",
        ),
        ("x-forwarded-for: 203.0.113.9, junk\r\n", "127.0.0.1", "203.0.113.9, junk, 127.0.0.1"),
        ("x-forwarded-for: [2001:db8::7]:99\r\n", "2001:db8::7", "[2001:db8::7]:99, 127.0.0.1"),
    ];
    for known in [true, false] {
        let trusted = if known { "trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]" } else { "" };
        let router = Setup::of(&[&stub]).yaml(&yaml(trusted)).start().await;
        let log = router.beside("access.jsonl");
        for (count, (lines, client, chain)) in (1..).zip(rows) {
            let said = "x-forwarded-proto: https\r\nx-real-ip: 6.6.6.6\r\nforwarded: for=6.6.6.6\r\n";
            let request = format!("GET /v1/x HTTP/1.1\r\nhost: router\r\n{said}{lines}\r\n");
            assert_eq!(exchange(router.data, request).await.status(), 200);
            let (client, chain) = if known { (client, chain) } else { ("127.0.0.1", "127.0.0.1") };
            assert_eq!(client_of(&log, count).await, client, "{lines:?} known {known}");
            let head = stub.last().head;
            assert_eq!(head.all("x-forwarded-for"), [chain], "{lines:?} known {known}");
            let proto = if known { "https" } else { "http" };
            assert_eq!(head.all("x-forwarded-proto"), [proto], "{lines:?} known {known}");
            assert_eq!(
                head.header("x-real-ip").is_some(),
                known,
                "what strangers say of themselves stays here"
            );
            assert_eq!(head.header("forwarded").is_some(), known);
        }
    }
}

/// Unless told, nothing is said to engines beyond what the client said.
#[tokio::test]
async fn without_forwarded_headers_they_pass_as_they_came() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let request = "GET /v1/x HTTP/1.1\r\nhost: router\r\nx-forwarded-for: 6.6.6.6\r\n\r\n";
    exchange(router.data, request).await;
    let head = stub.last().head;
    assert_eq!(head.all("x-forwarded-for"), ["6.6.6.6"]);
    assert_eq!(head.header("x-forwarded-proto"), None);
}
