//! D41: names that clients make up cost no series, no memory and no page.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::{Answer, Client, Router, Setup, Stub, exchange, post_with};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

const CHAT: &str = "/v1/chat/completions";
const USAGE: &str = r#"{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":0}}}"#;
/// Requests with names of their own.
const REQUESTS: usize = 20_000;
const CLIENTS: usize = 4;
/// Sent at once on a connection.
const PIPELINED: usize = 25;

fn chat(model: &str) -> Vec<u8> {
    let lines = "x-api-key: sk-acme\r\n";
    post_with(CHAT, lines, format!(r#"{{"model":{model},"messages":[{{"role":"user","content":"hi"}}]}}"#))
}

/// A request with a made-up model, path, method or key.
fn made_up(number: usize) -> (Vec<u8>, &'static str) {
    let line =
        |line: String| format!("{line}\r\nhost: router\r\nx-api-key: sk-acme\r\ncontent-length: 0\r\n\r\n");
    match number % 4 {
        0 | 1 => (chat(&format!("\"model-{number}\"")), "POST"),
        2 => (line(format!("GET /v1/made-up/{number} HTTP/1.1")).into_bytes(), "GET"),
        _ => (line(format!("M{number} /v1/made-up HTTP/1.1")).into_bytes(), "M"),
    }
}

async fn flood(to: SocketAddr, numbers: Vec<usize>) -> usize {
    let mut client = Client::connect(to).await;
    let mut answered = 0;
    for batch in numbers.chunks(PIPELINED) {
        let requests: Vec<_> = batch.iter().map(|&number| made_up(number)).collect();
        client.send(requests.iter().flat_map(|(bytes, _)| bytes.clone()).collect::<Vec<_>>()).await;
        for (_, method) in requests {
            assert_eq!(client.response(method).await.status(), 200);
            answered += 1;
        }
    }
    answered
}

/// The series of a page by name and labels; panics where the page is not what Prometheus reads.
fn strictly_parsed(page: &str) -> HashMap<String, f64> {
    assert!(page.ends_with('\n'), "an end");
    let (mut series, mut kinds, mut done) = (HashMap::new(), HashMap::new(), HashSet::new());
    let mut family = String::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (what, name, rest) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or(""));
            assert!(is_name(name), "{line}");
            if what == "TYPE" {
                assert!(["counter", "gauge", "histogram", "summary"].contains(&rest), "{line}");
                assert!(kinds.insert(name.to_owned(), rest.to_owned()).is_none(), "twice: {line}");
            }
            if family != name {
                assert!(done.insert(name.to_owned()), "a family in two places: {line}");
                name.clone_into(&mut family);
            }
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let name = key.split('{').next().unwrap();
        assert!(is_name(name), "{line}");
        if let Some(labels) = key.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            check_labels(labels, line);
        }
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(kinds.contains_key(name) || kinds.contains_key(base), "no TYPE before {line}");
        let value =
            if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap_or_else(|_| panic!("{line}")) };
        assert!(series.insert(key.to_owned(), value).is_none(), "twice: {line}");
    }
    series
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':';
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// `{name="value",...}` with `\\`, `\"` and `\n` as the only escapes.
fn check_labels(labels: &str, line: &str) {
    let mut rest = labels.strip_prefix('{').unwrap_or_else(|| panic!("{line}"));
    let mut names = HashSet::new();
    loop {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        assert!(is_name(name) && !name.contains(':') && names.insert(name.to_owned()), "{line}");
        let mut letters = value.char_indices();
        let end = loop {
            match letters.next().unwrap_or_else(|| panic!("{line}")) {
                (at, '"') => break at,
                (_, '\\') => assert!(matches!(letters.next(), Some((_, '\\' | '"' | 'n'))), "{line}"),
                _ => {}
            }
        };
        rest = &value[end + 1..];
        match rest {
            "}" => return,
            _ => rest = rest.strip_prefix(',').unwrap_or_else(|| panic!("{line}")),
        }
    }
}

fn errors(series: &HashMap<String, f64>) -> f64 {
    series.iter().filter(|(key, _)| key.contains("errors_total")).map(|(_, value)| value).sum()
}

async fn page(router: &Router) -> HashMap<String, f64> {
    strictly_parsed(&router.metrics().await)
}

// D41
#[tokio::test]
async fn made_up_names_cost_no_series_and_no_memory() {
    let stub = Stub::answering(Answer::json(200, USAGE)).await;
    let router = Setup::of(&[&stub])
        .yaml("access_log: access.jsonl")
        .tenant("acme", &["sk-acme"], "limits: {requests_per_second: 1000000}")
        .start()
        .await;
    let warm = flood(router.data, (REQUESTS..REQUESTS + 400).collect()).await;
    let (before, resident) = (page(&router).await, router.resident_bytes());
    let each = REQUESTS / CLIENTS;
    let floods = (0..CLIENTS)
        .map(|client| tokio::spawn(flood(router.data, (client * each..(client + 1) * each).collect())));
    let mut answered = warm;
    for flood in floods.collect::<Vec<_>>() {
        answered += flood.await.unwrap();
    }
    let after = page(&router).await;
    assert!(after.len() <= before.len() + 20, "{} series grew to {}", before.len(), after.len());
    for made_up in ["model-", "made-up", "M3"] {
        assert!(!after.keys().any(|key| key.contains(made_up)), "{made_up}");
    }
    let grown = router.resident_bytes().saturating_sub(resident) >> 20;
    assert!(grown < 64, "{grown} MiB more");
    assert_eq!(after["prefixroute_tenant_requests_total{tenant=\"acme\"}"] as usize, answered);
    assert_eq!(stub.count(), answered);
    let models = router.state().await["models"].as_array().unwrap().len();
    assert!(models <= 65, "{models}");
}

// D41
#[tokio::test]
async fn odd_names_break_no_page_and_refusals_are_no_successes() {
    let stub = Stub::answering(Answer::json(200, USAGE)).await;
    let router = Setup::of(&[&stub]).tenant("acme", &["sk-acme"], "").start().await;
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    let odd = [
        r#""a\"b""#,
        r#""a\\b""#,
        r#""a\nb""#,
        r#""a\u0000b""#,
        r#""{a=\"b\"} 1\n# TYPE x counter\nx 1""#,
        "\"\u{1f600}\"",
        r#""\ud800""#,
        r#""""#,
        "null",
        "7",
        &long,
    ];
    for model in odd {
        assert_eq!(exchange(router.data, chat(model)).await.status(), 200, "{:.30}", model);
        let series = page(&router).await;
        assert!(!series.contains_key("x"), "a line of a client's");
    }
    let before = page(&router).await;
    for _ in 0..5 {
        exchange(router.data, post_with(CHAT, "x-api-key: wrong\r\n", "{}")).await.assert_router_error(401);
    }
    let after = page(&router).await;
    assert_eq!(errors(&after) - errors(&before), 5.0, "refusals are counted as such");
    let succeeded = |series: &HashMap<String, f64>| -> f64 {
        let of =
            series.iter().filter(|(key, _)| key.contains("2xx") || key.contains("tenant_requests_total"));
        of.map(|(_, value)| value).sum()
    };
    assert_eq!(succeeded(&after), succeeded(&before), "and as nothing else");
}
