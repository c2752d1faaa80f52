//! API keys: who is let in, what an engine sees of a key, and that nobody else sees any.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::run;
use harness::{Client, H2Client, Response, Router, Setup, Stub, exchange, post_with};

const CHAT: &str = "/v1/chat/completions";
const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
const KEYS: [&str; 2] = ["sk-acme-first-0123456789", "sk-acme-other-0123456789"];
const BATCH: &str = "sk-batch-0123456789";

fn setup(stub: &Stub) -> Setup {
    Setup::of(&[stub]).tenant("acme", &KEYS, "").tenant("batch", &[BATCH], "")
}

async fn asked(router: &Router, lines: &str) -> Response {
    exchange(router.data, post_with(CHAT, lines, BODY)).await
}

/// Header lines of those who are not let in, and the status that they get.
fn strangers() -> Vec<(&'static str, String, u16)> {
    let [first, other] = KEYS;
    vec![
        ("no key", String::new(), 401),
        ("an unknown key", "authorization: Bearer sk-unknown\r\n".to_owned(), 401),
        ("an unknown key in the other header", "x-api-key: sk-unknown\r\n".to_owned(), 401),
        ("an empty one", "authorization: Bearer \r\n".to_owned(), 401),
        ("two empty ones", "authorization: Bearer\r\nx-api-key:\r\n".to_owned(), 401),
        ("another scheme", format!("authorization: Basic {first}\r\n"), 401),
        ("no scheme", format!("authorization: {first}\r\n"), 401),
        ("the beginning of a key", format!("x-api-key: {}\r\n", &first[..10]), 401),
        ("a key and more", format!("x-api-key: {first}0\r\n"), 401),
        ("in other letters", format!("x-api-key: {}\r\n", first.to_uppercase()), 401),
        ("the hash of a key", format!("x-api-key: sha256:{}\r\n", "0".repeat(64)), 401),
        ("in a cookie", format!("cookie: key={first}\r\n"), 401),
        ("two keys that differ", format!("authorization: Bearer {first}\r\nx-api-key: {other}\r\n"), 400),
        ("of two tenants", format!("x-api-key: {first}\r\nx-api-key: {BATCH}\r\n"), 400),
        ("one that is known", format!("x-api-key: {first}\r\nauthorization: Bearer sk-unknown\r\n"), 400),
    ]
}

#[tokio::test]
async fn who_has_no_key_is_told_so_and_reaches_no_engine() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    for (shows, lines, status) in strangers() {
        let get = format!("GET /v1/models HTTP/1.1\r\nhost: router\r\n{lines}\r\n").into_bytes();
        let odd = format!("DELETE /any HTTP/1.1\r\nhost: router\r\n{lines}\r\n").into_bytes();
        for request in [post_with(CHAT, &lines, BODY), get, odd] {
            let response = exchange(router.data, request).await;
            response.assert_router_error(status);
            let challenge = (status == 401).then_some("Bearer");
            assert_eq!(response.header("www-authenticate"), challenge, "{shows}");
            assert_eq!(response.json()["error"]["type"], "invalid_request_error", "{shows}");
            assert!(!response.text().contains("sk-"), "{shows}: {}", response.text());
        }
    }
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn every_key_lets_in_by_either_header() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let [first, other] = KEYS;
    let lines = [
        format!("Authorization: Bearer {first}\r\n"),
        format!("authorization:   BEARER \t {other}  \r\n"),
        format!("X-API-Key: {first}\r\n"),
        format!("x-api-key: {BATCH}\r\nauthorization: Bearer {BATCH}\r\n"),
        format!("authorization: Basic dTpw\r\nx-api-key: {other}\r\n"),
    ];
    for (count, lines) in (1..).zip(&lines) {
        assert_eq!(asked(&router, lines).await.status(), 200, "{lines:?}");
        assert_eq!(stub.count(), count, "{lines:?}");
    }
    let page = router.metrics().await;
    for row in [r#"{tenant="acme"} 4"#, r#"{tenant="batch"} 1"#] {
        assert!(page.contains(&format!("prefixroute_tenant_requests_total{row}")), "{row} in {page}");
    }
}

#[tokio::test]
async fn keys_count_over_http2_as_well() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let client = H2Client::connect(router.h2c).await;
    for (keys, status) in [
        (&[][..], 401),
        (&[("x-api-key", "sk-unknown")], 401),
        (&[("x-api-key", KEYS[0]), ("x-api-key", BATCH)], 400),
        (&[("x-api-key", KEYS[0])], 200),
    ] {
        let mut request = harness::h2_client::post_request(CHAT, Some(BODY.len()));
        for (name, value) in keys {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        let response = client.exchange(request, BODY).await;
        assert_eq!(response.status(), status, "{keys:?} {response:?}");
        if status == 401 {
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
        }
    }
    assert_eq!(stub.count(), 1);
}

/// A refusal before the body: what the client sends on is nobody's request.
#[tokio::test]
async fn the_body_of_a_stranger_is_no_request() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let inner = format!("GET /inner HTTP/1.1\r\nhost: router\r\nx-api-key: {BATCH}\r\n\r\n");
    let mut client = Client::connect(router.data).await;
    client.send(post_with(CHAT, "", inner)).await;
    client.response("POST").await.assert_router_error(401);
    assert!(client.rest().await.is_empty());
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn engines_see_of_a_key_what_is_configured() {
    let [plain, keyed, headed] = [Stub::start().await, Stub::start().await, Stub::start().await];
    let both = format!("Authorization: Bearer {BATCH}\r\nX-Api-Key: {BATCH}\r\nX-Kept: yes\r\n");
    let client = format!("Bearer {BATCH}");
    let other = |name: &str, stub: &Stub, rest: &str| {
        format!(
            "name: {name}\nmodels: [{name}]\nmodels_interval: off\nendpoints: [{{name: {name}, url: \"http://{}\", {rest}}}]",
            stub.address()
        )
    };
    for (key, bearer, api_key) in [
        ("", None, None),
        ("client_key: drop", None, None),
        ("client_key: forward", Some(client.as_str()), Some(BATCH)),
    ] {
        let router = setup(&plain)
            .yaml(key)
            .pool("name: plain")
            .and_pool(&other("keyed", &keyed, "key: \"file:engine.key\""))
            .and_pool(&other("headed", &headed, "headers: {x-api-key: \"file:engine.key\"}"))
            .beside("engine.key", "sk-engine\n")
            .start()
            .await;
        for (model, stub, wanted) in [
            ("m", &plain, (bearer, api_key)),
            ("keyed", &keyed, (Some("Bearer sk-engine"), None)),
            ("headed", &headed, (None, Some("sk-engine"))),
        ] {
            let body = BODY.replace("\"m\"", &format!("\"{model}\""));
            let response = exchange(router.data, post_with(CHAT, &both, body)).await;
            assert_eq!(response.status(), 200, "{key} {model}");
            let head = stub.last().head;
            let found = (head.all("authorization"), head.all("x-api-key"));
            let wanted = (wanted.0.into_iter().collect(), wanted.1.into_iter().collect());
            assert_eq!(found, wanted, "{key:?} {model}");
            assert_eq!(head.header("x-kept"), Some("yes"));
        }
    }
}

/// Without tenants a key is the engine's business.
#[tokio::test]
async fn without_tenants_keys_pass() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let lines = "authorization: Bearer one\r\nx-api-key: two\r\n";
    assert_eq!(asked(&router, lines).await.status(), 200);
    let head = stub.last().head;
    assert_eq!((head.all("authorization"), head.all("x-api-key")), (vec!["Bearer one"], vec!["two"]));
}

#[tokio::test]
async fn keys_change_live() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let with = |key: &str| format!("x-api-key: {key}\r\n");
    let next = Setup::of(&[&stub]).tenant("acme", &[KEYS[1], "sk-new"], "");
    router.becomes(&next).await;
    for (key, status) in [(KEYS[0], 401), (KEYS[1], 200), ("sk-new", 200), (BATCH, 401)] {
        assert_eq!(asked(&router, &with(key)).await.status(), status, "{key}");
    }
    // A key's file alone is a change too.
    std::fs::write(router.beside("acme.1.key"), "sk-newest\n").unwrap();
    assert_eq!(router.reload().await.json()["outcome"], "applied");
    for (key, status) in [("sk-new", 401), ("sk-newest", 200)] {
        assert_eq!(asked(&router, &with(key)).await.status(), status, "{key}");
    }
}

#[tokio::test]
async fn keys_are_shown_nowhere() {
    let stub = Stub::start().await;
    let setup = setup(&stub).yaml("access_log: access.jsonl");
    let router = setup.clone().start().await;
    for lines in [
        format!("x-api-key: {}\r\n", KEYS[0]),
        format!("x-api-key: {}\r\nauthorization: Bearer {BATCH}\r\n", KEYS[0]),
        "x-api-key: sk-unknown\r\n".to_owned(),
    ] {
        let response = asked(&router, &lines).await;
        assert!(!format!("{response:?}").contains("sk-"), "{response:?}");
    }
    router.becomes(&setup.tenant("third", &["sk-third"], "")).await;
    let explained = run(&["check", "--explain", router.file.to_str().unwrap()]).await;
    assert_eq!(explained.code, 0, "{explained:?}");
    let log = std::fs::read_to_string(router.beside("access.jsonl")).unwrap();
    let state = router.state().await.to_string();
    for shown in [state, router.metrics().await, router.output(), log, explained.stdout] {
        assert!(!shown.contains("sk-"), "{shown}");
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_had_names_its_variable_and_no_secret() {
    let stub = Stub::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    let text = setup(&stub).file().replacen("\"file:acme.1.key\"", "\"${NOT_SET_HERE}\"", 1);
    std::fs::write(&path, &text).unwrap();
    setup(&stub).write_beside(folder.path());
    let line = 1 + text.lines().position(|line| line.contains("NOT_SET_HERE")).unwrap();
    let run = run(&["serve", "--config", path.to_str().unwrap()]).await;
    assert_eq!(run.code, 2, "{run:?}");
    assert_eq!(run.stderr.trim_end().lines().count(), 1, "{run:?}");
    for wanted in [format!("config.yaml:{line}:"), "tenants[0].keys[1]".to_owned(), "NOT_SET_HERE".to_owned()]
    {
        assert!(run.stderr.contains(&wanted), "{wanted} in {run:?}");
    }
    assert!(!run.stderr.contains("sk-"), "{run:?}");
}
