//! The access log: a line of JSON for each request, always the same fields, nothing that is secret, no line lost.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::script::{chunk, last_chunk};
use harness::{
    Answer, Client, DEADLINE, H2Client, Router, Setup, Signal, Step, Stub, exchange, get, post, post_with,
    prompts, until, within,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncReadExt;

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "x-api-key: sk-acme\r\n";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
/// All fields of every line, in their order.
const FIELDS: [&str; 27] = [
    "time",
    "request_id",
    "trace_id",
    "client",
    "tenant",
    "listener",
    "method",
    "path",
    "protocol",
    "status",
    "pool",
    "model",
    "endpoint",
    "api",
    "stream",
    "matched_blocks",
    "blocks",
    "prompt_tokens",
    "cached_tokens",
    "attempts",
    "request_bytes",
    "response_bytes",
    "decision_us",
    "ttfb_ms",
    "total_ms",
    "trouble",
    "user_agent",
];

fn setup(stub: &Stub) -> Setup {
    Setup::of(&[stub])
        .yaml("access_log: access.jsonl\ncache_salt_secret: \"file:salt.secret\"")
        .beside("salt.secret", "a secret of more than sixteen bytes")
        .tenant("acme", &["sk-acme"], "isolate: true")
        .tenant("open", &["sk-open"], "")
}

/// The file, once it has so many lines.
async fn text(log: &Path, lines: usize) -> String {
    until(&format!("{lines} lines in {}", log.display()), DEADLINE, || async {
        let text = std::fs::read_to_string(log).ok()?;
        (text.lines().count() >= lines && text.ends_with('\n')).then_some(text)
    })
    .await
}

async fn lines(router: &Router, count: usize) -> Vec<Value> {
    let text = text(&router.beside("access.jsonl"), count).await;
    let lines: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), count, "one line for each request: {text}");
    lines
}

#[tokio::test]
async fn a_line_tells_of_a_request_in_stable_fields() {
    let usage = r#"{"usage":{"prompt_tokens":1200,"total_tokens":1201,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":800}}}"#;
    let stub = Stub::answering(Answer::json(200, usage)).await;
    let router = setup(&stub).start().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let head = format!(
        "{KEY}X-Request-Id: r-1\r\nTraceparent: {parent}\r\ntracestate: a=1\r\nUser-Agent: test/1 \u{e9}\"\r\n"
    );
    let body = prompts::with(&prompts::cold(1), r#","stream":false"#);
    let sent = exchange(router.data, post_with(&format!("{CHAT}?secret=query"), &head, &body)).await;
    assert_eq!(sent.status(), 200);
    let received = stub.last().head;
    assert_eq!(received.all("traceparent"), [parent.as_str()], "passed on as it came");
    assert_eq!(received.all("tracestate"), ["a=1"]);
    assert_eq!(received.all("x-request-id"), ["r-1"]);
    let raw = text(&router.beside("access.jsonl"), 1).await;
    let places: Vec<_> = FIELDS.iter().map(|field| raw.find(&format!("\"{field}\":"))).collect();
    assert!(places.is_sorted() && places.iter().all(Option::is_some), "{places:?} in {raw}");
    let line = &lines(&router, 1).await[0];
    assert_eq!(line.as_object().unwrap().len(), FIELDS.len(), "no other field: {raw}");
    let (_, total) = sent.matched();
    for (field, wanted) in [
        ("request_id", json!("r-1")),
        ("trace_id", json!(trace)),
        ("client", json!("127.0.0.1")),
        ("tenant", json!("acme")),
        ("listener", json!(router.data.to_string())),
        ("method", json!("POST")),
        ("path", json!(CHAT)),
        ("protocol", json!("HTTP/1.1")),
        ("status", json!(200)),
        ("pool", json!("default")),
        ("model", json!("m")),
        ("endpoint", json!("a")),
        ("api", json!("chat")),
        ("stream", json!(false)),
        ("matched_blocks", json!(0)),
        ("blocks", json!(total)),
        ("prompt_tokens", json!(1200)),
        ("cached_tokens", json!(800)),
        ("attempts", json!(1)),
        ("request_bytes", json!(body.len())),
        ("response_bytes", json!(usage.len())),
        ("trouble", Value::Null),
        ("user_agent", json!("test/1 \u{e9}\"")),
    ] {
        assert_eq!(line[field], wanted, "{field} in {raw}");
    }
    assert!(line["decision_us"].is_number() && line["ttfb_ms"].is_number() && line["total_ms"].is_number());
    let time = line["time"].as_str().unwrap();
    assert!(time.len() == "2026-01-01T00:00:00.000Z".len() && time.ends_with('Z'), "{time}");
}

#[tokio::test]
async fn every_ending_is_one_line() {
    let stub = Stub::start().await;
    let router = setup(&stub)
        .pool("models: [m]\nmodels_interval: off")
        .yaml("paths: [/v1/*]\nlimits: {body_bytes_max: 64KiB}\ncors: {origins: [\"*\"]}")
        .start()
        .await;
    let chat = |lines: &str, body: &str| post_with(CHAT, lines, body);
    let broken = "POST /v1/x HTTP/1.1\r\nhost: router\r\nx-api-key: sk-open\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    let other = prompts::cold(1).replacen("\"m\"", "\"nobody\"", 1);
    let origin = "OPTIONS /v1/x HTTP/1.1\r\nhost: router\r\norigin: https://a.example\r\naccess-control-request-method: POST\r\n\r\n";
    let rows: Vec<(&str, Vec<u8>, u64, Value)> = vec![
        ("a good one", chat(KEY, &prompts::cold(1)), 200, Value::Null),
        ("no key", chat("", "{}"), 401, json!("invalid_api_key")),
        (
            "two keys",
            chat("x-api-key: sk-acme\r\nx-api-key: sk-open\r\n", "{}"),
            400,
            json!("invalid_api_key"),
        ),
        ("another path", get("/metrics"), 403, json!("path_not_served")),
        ("another model", chat(KEY, &other), 404, json!("model_not_found")),
        ("too large", chat(KEY, &"x".repeat(100_000)), 413, json!("body_too_large")),
        ("not salted", chat(KEY, "no json"), 400, Value::String("*".to_owned())),
        ("a broken chunk", broken.as_bytes().to_vec(), 400, json!("bad_request")),
        ("a preflight", origin.as_bytes().to_vec(), 204, Value::Null),
        ("no HTTP", b"GARBAGE\r\n\r\n".to_vec(), 400, json!("bad_request")),
        ("a tunnel", b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\n".to_vec(), 405, json!("method_not_allowed")),
    ];
    for (count, (shows, request, status, trouble)) in (1..).zip(rows) {
        let mut client = Client::connect(router.data).await;
        client.send(&request).await;
        let response = client.response("POST").await;
        assert_eq!(u64::from(response.status()), status, "{shows}: {response:?}");
        let line = lines(&router, count).await.pop().unwrap();
        assert_eq!(line["status"], json!(status), "{shows}: {line}");
        match trouble {
            Value::String(any) if any == "*" => assert!(line["trouble"].is_string(), "{shows}: {line}"),
            trouble => assert_eq!(line["trouble"], trouble, "{shows}: {line}"),
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_and_an_engine_that_breaks_are_told_apart() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let streamed = post_with(CHAT, KEY, prompts::with(&prompts::cold(1), r#","stream":true"#));
    stub.always(Answer::steps([Step::Hang]));
    let mut client = Client::connect(router.data).await;
    client.send(&streamed).await;
    stub.request(0).await;
    client.close();
    let line = lines(&router, 1).await.pop().unwrap();
    assert_eq!((&line["status"], &line["trouble"]), (&json!(499), &json!("client_gone")), "{line}");
    stub.always(Answer::stream([chunk(EVENT), Step::Hang]));
    let mut client = Client::connect(router.data).await;
    client.send(&streamed).await;
    assert_eq!(client.head().await.status(), 200);
    client.close();
    let line = lines(&router, 2).await.pop().unwrap();
    assert_eq!((&line["status"], &line["trouble"]), (&json!(200), &json!("client_gone")), "{line}");
    assert_eq!((&line["stream"], &line["endpoint"]), (&json!(true), &json!("a")), "{line}");
    stub.always(Answer::stream([chunk(EVENT), Step::Reset]));
    let response = exchange(router.data, &streamed).await;
    assert!(response.broken.is_some(), "{response:?}");
    let line = lines(&router, 3).await.pop().unwrap();
    assert_eq!(line["status"], 200, "{line}");
    assert!(line["trouble"].is_string() && line["trouble"] != "client_gone", "{line}");
    stub.always(Answer::steps([Step::Hang]));
    let many = H2Client::connect(router.h2c).await;
    let mut request = harness::h2_client::post_request(CHAT, None);
    request.headers_mut().append("x-api-key", "sk-acme".parse().unwrap());
    let (requests, mut stream) = (stub.count(), many.start(request, false).await);
    stream.body.send_data("{}".into(), true).unwrap();
    stub.request(requests).await;
    stream.body.send_reset(harness::h2_client::CANCEL);
    let line = lines(&router, 4).await.pop().unwrap();
    assert_eq!((&line["status"], &line["trouble"]), (&json!(499), &json!("client_gone")), "{line}");
    stub.refuse().await;
    exchange(router.data, &streamed).await.assert_router_error(502);
    let line = lines(&router, 5).await.pop().unwrap();
    assert_eq!((&line["status"], &line["endpoint"]), (&json!(502), &json!("a")), "tried last: {line}");
}

#[tokio::test]
async fn http2_requests_are_lines_of_their_own() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let client = H2Client::connect(router.h2c).await;
    for count in 1..=3 {
        let mut request = harness::h2_client::post_request(CHAT, None);
        request.headers_mut().append("x-api-key", "sk-acme".parse().unwrap());
        assert_eq!(client.exchange(request, prompts::cold(1)).await.status(), 200);
        let line = lines(&router, count).await.pop().unwrap();
        assert_eq!(line["protocol"], "HTTP/2");
        assert_eq!(line["listener"], json!(router.h2c.to_string()));
        assert_eq!(line["path"], CHAT, "{line}");
    }
}

/// What a client writes is cut and escaped; what is secret is not there at all.
#[tokio::test]
async fn lines_hold_nothing_secret_and_nothing_without_bound() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let long = "y".repeat(5000);
    let head = format!(
        "{KEY}user-agent: {long}\r\nx-request-id: {long}\r\ncookie: secret-cookie\r\nx-session-id: secret-session\r\n"
    );
    let body = r#"{"model":"odd\"\n\u2028name","messages":[{"role":"user","content":"secret-prompt"}],"cache_salt":"secret-salt"}"#;
    let requests = [
        post_with(&format!("{CHAT}?secret-query"), &head, body),
        post_with(&format!("/v1/{long}?secret-query"), "x-api-key: sk-open\r\n", "{}"),
        post_with("/v1/a%22b\"c", "x-api-key: sk-open\r\n", "{}"),
        post_with(CHAT, "x-api-key: sk-wrong-secret\r\n", body),
        post_with(&format!("http://user:secret-word@x{CHAT}?secret-query"), "x-api-key: sk-open\r\n", "{}"),
        post_with(CHAT, &format!("x-api-key: sk-open\r\ntraceparent: secret-{long}\r\n"), "{}"),
    ];
    for request in &requests {
        let response = exchange(router.data, request).await;
        assert!(
            [200, 400, 401].contains(&response.status()),
            "{:.80}: {response:?}",
            String::from_utf8_lossy(request)
        );
    }
    let all = lines(&router, requests.len()).await;
    let raw = text(&router.beside("access.jsonl"), requests.len()).await;
    for secret in ["secret", "sk-", "sixteen"] {
        assert!(!raw.contains(secret), "{secret} in {raw}");
    }
    assert!(raw.lines().all(|line| line.len() < 3000), "{raw}");
    assert_eq!(all[0]["model"], "odd\"\n\u{2028}name");
    assert_eq!(all[0]["user_agent"].as_str().unwrap().len(), 256);
    assert_eq!(all[5]["trace_id"], Value::Null);
    // Nothing that a client wrote is a salt of ours.
    assert!(!raw.contains("cache_salt"), "{raw}");
}

#[tokio::test]
async fn a_file_that_was_renamed_is_let_go_at_sighup() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    let (log, old) = (router.beside("access.jsonl"), router.beside("access.jsonl.1"));
    let ask = || exchange(router.data, post_with(CHAT, KEY, "{}"));
    ask().await;
    text(&log, 1).await;
    std::fs::rename(&log, &old).unwrap();
    ask().await;
    text(&old, 2).await;
    assert!(!log.exists(), "until it is told, it writes on");
    router.signal("HUP").await;
    until("the new file", DEADLINE, || async { log.exists().then_some(()) }).await;
    ask().await;
    text(&log, 1).await;
    ask().await;
    text(&log, 2).await;
    assert_eq!(text(&old, 2).await.lines().count(), 2);
    // Another file is a change like any other.
    router.becomes(&setup(&stub).yaml("response_headers: false").file_named("other.jsonl")).await;
    ask().await;
    text(&router.beside("other.jsonl"), 1).await;
    assert_eq!(text(&log, 2).await.lines().count(), 2);
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_is_refused_and_the_old_one_goes_on() {
    let stub = Stub::start().await;
    let router = setup(&stub).start().await;
    router.write(setup(&stub).file_named("nowhere/access.jsonl").file());
    let refused = router.reload().await;
    assert_eq!(refused.status(), 422, "{}", refused.text());
    assert!(refused.text().contains("nowhere/access.jsonl"), "{}", refused.text());
    exchange(router.data, post_with(CHAT, KEY, "{}")).await;
    lines(&router, 1).await;
}

#[tokio::test]
async fn a_log_on_stdout_is_one_line_of_json_for_each_request() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml("access_log: stdout").start().await;
    for count in 1..=3 {
        router.chat(prompts::cold(1)).await;
        until("a line", DEADLINE, || async {
            let output = router.output();
            let lines = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            (lines.filter(|line| line["path"] == CHAT && line["status"] == 200).count() == count)
                .then_some(())
        })
        .await;
    }
}

/// What was answered is written when the process has ended, with what was being answered at SIGTERM.
#[tokio::test]
async fn no_line_is_lost_at_the_end() {
    let signal = Signal::default();
    let stub = Stub::start().await;
    let mut router = setup(&stub).yaml("drain: 5s").start().await;
    let mut client = Client::connect(router.data).await;
    for _ in 0..300 {
        assert_eq!(client.exchange(post_with(CHAT, KEY, "{}")).await.status(), 200);
    }
    stub.always(Answer::stream([chunk(EVENT), Step::Wait(signal.clone()), last_chunk()]));
    client.send(post_with(CHAT, KEY, "{}")).await;
    assert_eq!(client.head().await.status(), 200);
    router.terminate().await;
    until("the drain", DEADLINE, || async { Client::try_connect(router.data).await.err() }).await;
    signal.fire_all();
    client.rest().await;
    assert!(router.ended(Duration::from_secs(8)).await.success());
    assert_eq!(lines(&router, 301).await.len(), 301);
}

/// The end of the process waits for a reader that is behind, as a full disk or a slow collector is.
#[tokio::test]
async fn lines_that_wait_for_their_reader_are_written_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("log.pipe");
    let made = tokio::process::Command::new("mkfifo").arg(&pipe).status().await;
    assert!(made.unwrap().success());
    let mut reader = tokio::net::unix::pipe::OpenOptions::new().open_receiver(&pipe).unwrap();
    let stub = Stub::start().await;
    let log = format!("access_log: {}\ndrain: 1s", pipe.display());
    let mut router = Setup::of(&[&stub]).yaml(&log).start().await;
    let mut client = Client::connect(router.data).await;
    for _ in 0..500 {
        assert_eq!(client.exchange(post(CHAT, "{}")).await.status(), 200, "nobody waits for the log");
    }
    client.close();
    router.terminate().await;
    until("the end of the drain", DEADLINE, || async {
        router.output().contains("\"stopped\"").then_some(())
    })
    .await;
    let mut text = String::new();
    within("the end of the log", DEADLINE, reader.read_to_string(&mut text)).await.unwrap();
    assert_eq!(text.lines().count(), 500);
    assert!(text.ends_with('\n') && router.ended(Duration::from_secs(5)).await.success());
}
