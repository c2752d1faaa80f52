//! Tenants whose prompts are kept apart: in the belief by a seed, in the engines by a salt that only the router knows.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::{Answer, H2Client, Response, Router, Setup, Stub, exchange, get, post_with, prompts};

const CHAT: &str = "/v1/chat/completions";
const ACME: &str = "x-api-key: sk-acme\r\n";
const BETA: &str = "x-api-key: sk-beta\r\n";
const OPEN: &str = "x-api-key: sk-open\r\n";

/// Two tenants that are kept apart, and one that is not.
fn setup(stub: &Stub) -> Setup {
    Setup::of(&[stub])
        .yaml("cache_salt_secret: \"file:salt.secret\"")
        .beside("salt.secret", "a secret of more than sixteen bytes")
        .tenant("acme", &["sk-acme"], "isolate: true")
        .tenant("beta", &["sk-beta"], "isolate: true")
        .tenant("open", &["sk-open"], "")
}

async fn fleet() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    (stub, router)
}

async fn asked(router: &Router, path: &str, key: &str, body: impl AsRef<[u8]>) -> Response {
    exchange(router.data, post_with(path, key, body)).await
}

/// The salt of a tenant, as the engine got it.
async fn salt_of(stub: &Stub, router: &Router, key: &str) -> String {
    assert_eq!(asked(router, CHAT, key, "{}").await.status(), 200);
    let body = stub.last().body;
    let text = std::str::from_utf8(&body).unwrap();
    let salt = text.strip_prefix(r#"{"cache_salt":""#).and_then(|rest| rest.strip_suffix(r#""}"#));
    let salt = salt.unwrap_or_else(|| panic!("{text}")).to_owned();
    assert!(salt.len() == 64 && salt.bytes().all(|byte| byte.is_ascii_hexdigit()), "{salt}");
    salt
}

#[tokio::test]
async fn a_salt_is_put_in_and_no_other_byte_moves() {
    let (stub, router) = fleet().await;
    let salt = salt_of(&stub, &router, ACME).await;
    let long =
        prompts::with(&prompts::chat_of_size(7, 300_000), r#","x":1.50e-3,"y":[1 , 2],"z":"\u00e9\/""#);
    for (shows, sent, before, after) in [
        ("first of all", long.as_str(), "{", ","),
        ("behind white space", " \n{ \"model\" : \"m\" , \"model\":\"m\" }\n", " \n{", ","),
        ("in an empty one", "{ }", "{", ""),
        ("beside an inner one", r#"{"x":{"cache_salt":"mine"}}"#, "{", ","),
    ] {
        assert_eq!(asked(&router, CHAT, ACME, sent).await.status(), 200, "{shows}");
        let got = String::from_utf8(stub.last().body.to_vec()).unwrap();
        let put = format!("{before}\"cache_salt\":\"{salt}\"{after}");
        assert!(got.starts_with(&put), "{shows}: {:.120}", got);
        assert!(got.replacen(&put, before, 1) == sent, "{shows}: another byte moved");
        stub.last().assert_framed_once(got.as_bytes());
        // Who is not kept apart is forwarded as it came.
        assert_eq!(asked(&router, CHAT, OPEN, sent).await.status(), 200, "{shows}");
        assert!(stub.last().body == sent, "{shows}: open");
    }
}

#[tokio::test]
async fn a_clients_own_salt_stays_and_null_is_none() {
    let (stub, router) = fleet().await;
    let salt = salt_of(&stub, &router, ACME).await;
    for (sent, wanted) in [
        (r#"{"model":"m","cache_salt":"mine"}"#, r#"{"model":"m","cache_salt":"mine"}"#.to_owned()),
        (r#"{"cache\u005fsalt":"mine"}"#, r#"{"cache\u005fsalt":"mine"}"#.to_owned()),
        (
            r#"{"model":"m","cache_salt": null ,"x":1}"#,
            format!(r#"{{"model":"m","cache_salt": "{salt}" ,"x":1}}"#),
        ),
        (r#"{"cache\u005fsalt":null}"#, format!(r#"{{"cache\u005fsalt":"{salt}"}}"#)),
    ] {
        assert_eq!(asked(&router, CHAT, ACME, sent).await.status(), 200, "{sent}");
        stub.last().assert_framed_once(wanted.as_bytes());
    }
}

#[tokio::test]
async fn what_cannot_be_salted_is_refused_for_those_who_are_kept_apart_alone() {
    let (stub, router) = fleet().await;
    let utf16: Vec<u8> = r#"{"model":"m"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut bodies: Vec<(&str, &str, Vec<u8>)> = vec![
        ("no JSON", CHAT, b"no json".to_vec()),
        ("half of it", CHAT, br#"{"model":"m","#.to_vec()),
        ("two of it", CHAT, br#"{"model":"m"}{"model":"m"}"#.to_vec()),
        ("a list", CHAT, br#"[{"model":"m"}]"#.to_vec()),
        ("a text", CHAT, br#""prompt""#.to_vec()),
        ("null", CHAT, b"null".to_vec()),
        ("a salt of nothing", CHAT, br#"{"cache_salt":""}"#.to_vec()),
        ("a salt that is a number", CHAT, br#"{"cache_salt":0}"#.to_vec()),
        ("a salt that is false", CHAT, br#"{"cache_salt":false}"#.to_vec()),
        ("a salt that is a list", CHAT, br#"{"cache_salt":[]}"#.to_vec()),
        ("white space", CHAT, b" \n".to_vec()),
        ("UTF-16", CHAT, utf16),
        ("no UTF-8", CHAT, b"{\"model\":\"\xff\xfe\"}".to_vec()),
        ("an API that is not known", "/v1/score", br#"{"text_1":"a"}"#.to_vec()),
        ("another path", "/v1/chat/completions/x", b"{}".to_vec()),
        ("a segment of dots", "/v1/chat/completions/../score", b"{}".to_vec()),
        ("an API without a salt", "/v2/embed", br#"{"texts":["a"]}"#.to_vec()),
        ("with a slash", "/v2/embed/", br#"{"texts":["a"]}"#.to_vec()),
    ];
    bodies.push(("a compressed one", "/v1/chat/completions?x", b"\x1f\x8b\x08\x00\x00".to_vec()));
    for (shows, path, body) in bodies {
        let before = stub.count();
        let refusal = asked(&router, path, ACME, &body).await;
        assert_eq!(refusal.status(), 400, "{shows}: {refusal:?}");
        refusal.assert_router_error(400);
        assert_eq!(stub.count(), before, "{shows}");
        assert_eq!(asked(&router, path, OPEN, &body).await.status(), 200, "{shows}: open");
        assert!(stub.last().body == body, "{shows}: open");
    }
}

/// Two salts could be two different ones to the router and to an engine: refused for everybody.
#[tokio::test]
async fn two_salts_are_refused() {
    let (stub, router) = fleet().await;
    for body in [
        r#"{"cache_salt":"a","cache_salt":"b"}"#,
        r#"{"cache_salt":"a","cache_salt":"a"}"#,
        r#"{"cache_salt":null,"cache\u005fsalt":"b"}"#,
    ] {
        for key in [ACME, OPEN] {
            asked(&router, CHAT, key, body).await.assert_router_error(400);
        }
    }
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn what_has_no_prompt_passes_as_it_is() {
    let (stub, router) = fleet().await;
    let list = format!("GET /v1/models HTTP/1.1\r\nhost: router\r\n{ACME}\r\n");
    assert_eq!(exchange(router.data, list).await.status(), 200);
    for path in ["/tokenize", "/v1/messages/count_tokens"] {
        let body = r#"{"prompt":"a"}"#;
        assert_eq!(asked(&router, path, ACME, body).await.status(), 200, "{path}");
        assert!(stub.last().body == body, "fills no cache: {path}");
    }
    let with_body = format!("GET /v1/x HTTP/1.1\r\nhost: router\r\n{ACME}content-length: 2\r\n\r\n{{}}");
    exchange(router.data, with_body).await.assert_router_error(400);
}

#[tokio::test]
async fn tenants_share_no_prefix_and_each_has_its_own() {
    let (stub, router) = fleet().await;
    let body = prompts::cold(1);
    for (shows, key, shared) in [
        ("the first of one", ACME, false),
        ("the second of one", ACME, true),
        ("the first of another", BETA, false),
        ("of one who is not kept apart", OPEN, false),
        ("again of the first", ACME, true),
        ("again of the other", BETA, true),
        ("again of the open one", OPEN, true),
    ] {
        let (matched, total) = asked(&router, CHAT, key, &body).await.matched();
        assert_eq!((matched > 0, matched == total), (shared, shared), "{shows}: {matched}/{total}");
    }
    let salts = [salt_of(&stub, &router, ACME).await, salt_of(&stub, &router, BETA).await];
    assert_ne!(salts[0], salts[1]);
    assert_eq!(salts[0], salt_of(&stub, &router, ACME).await, "the same each time");
    // A salt of the client's own does not get it into another's.
    let guessed = prompts::with(&body, &format!(r#","cache_salt":"{}""#, salts[0]));
    assert_eq!(asked(&router, CHAT, BETA, &guessed).await.matched().0, 0, "in another's belief");
}

#[tokio::test]
async fn a_salt_goes_in_beside_an_alias_and_over_http2() {
    let stub = Stub::start().await;
    let router = setup(&stub).pool("models: [real]\naliases: {nice: real}").start().await;
    let client = H2Client::connect(router.h2c).await;
    let body = r#"{"messages":[],"model":"nice"}"#;
    let mut request = harness::h2_client::post_request(CHAT, None);
    request.headers_mut().append("x-api-key", "sk-acme".parse().unwrap());
    let response = client.exchange(request, body).await;
    assert_eq!(response.status(), 200, "{response:?}");
    let got = String::from_utf8(stub.last().body.to_vec()).unwrap();
    let cut = got.split_once(r#"","messages""#).unwrap().0.to_owned();
    assert!(cut.starts_with(r#"{"cache_salt":""#), "{got}");
    assert!(got.ends_with(r#""messages":[],"model":"real"}"#), "{got}");
    stub.last().assert_framed_once(got.as_bytes());
}

/// Two tenants behind one proxy share its connection, and nothing else.
#[tokio::test]
async fn each_request_of_a_connection_has_a_tenant_of_its_own() {
    let (stub, router) = fleet().await;
    let salts = [salt_of(&stub, &router, ACME).await, salt_of(&stub, &router, BETA).await];
    let mut client = harness::Client::connect(router.data).await;
    for _ in 0..3 {
        for (key, salt) in [ACME, BETA, OPEN].iter().zip([Some(&salts[0]), Some(&salts[1]), None]) {
            assert_eq!(client.exchange(post_with(CHAT, key, r#"{"x":1}"#)).await.status(), 200);
            let wanted = salt.map_or_else(
                || r#"{"x":1}"#.to_owned(),
                |salt| format!(r#"{{"cache_salt":"{salt}","x":1}}"#),
            );
            assert!(stub.last().body == wanted, "{key}: {:?}", stub.last().body);
        }
        assert_eq!(client.exchange(post_with(CHAT, OPEN, "no json")).await.status(), 200);
    }
}

#[tokio::test]
async fn a_salt_is_shown_nowhere() {
    let stub = Stub::answering(Answer::json(200, r#"{"id":"x"}"#)).await;
    let router = setup(&stub).yaml("access_log: access.jsonl").start().await;
    let salt = salt_of(&stub, &router, ACME).await;
    let mut shown = Vec::new();
    for body in [prompts::cold(1), "no json".to_owned(), r#"{"cache_salt":"own-salt-7","x":1}"#.to_owned()] {
        shown.push(format!("{:?}", asked(&router, CHAT, ACME, body).await));
    }
    shown.push(router.state().await.to_string());
    shown.push(exchange(router.data, get("/prefixroute/state")).await.text());
    shown.push(router.explain(&prompts::cold(1)).await.text());
    shown.push(router.metrics().await);
    harness::until("the access log", harness::DEADLINE, || async {
        let log = std::fs::read_to_string(router.beside("access.jsonl")).unwrap();
        (log.lines().count() >= 4).then_some(())
    })
    .await;
    shown.push(std::fs::read_to_string(router.beside("access.jsonl")).unwrap());
    router.reload().await;
    shown.push(router.output());
    for text in shown {
        assert!(!text.contains(&salt[..16]) && !text.contains("own-salt-7"), "{text}");
        assert!(!text.contains("more than sixteen"), "{text}");
    }
}

#[tokio::test]
async fn isolation_changes_live() {
    let (stub, router) = fleet().await;
    let body = prompts::cold(1);
    asked(&router, CHAT, OPEN, &body).await;
    let salt = salt_of(&stub, &router, ACME).await;
    let next = Setup::of(&[&stub])
        .yaml("cache_salt_secret: \"file:salt.secret\"")
        .beside("salt.secret", "another secret of that length")
        .tenant("acme", &["sk-acme"], "isolate: true")
        .tenant("beta", &["sk-beta"], "");
    router.becomes(&next).await;
    assert_ne!(salt_of(&stub, &router, ACME).await, salt, "another secret, another salt");
    let (matched, total) = asked(&router, CHAT, BETA, &body).await.matched();
    assert_eq!(matched, total, "no longer kept apart");
    assert!(stub.last().body == body);
}
