//! The decision log: why each request went where it went and what came of it, nothing that is secret, and the commands that
//! read it.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::binary;
use harness::{Answer, DEADLINE, Router, Setup, Step, Stub, exchange, post_with, prompts, until};
use serde_json::Value;
use std::path::Path;

const CHAT: &str = "/v1/chat/completions";
const USAGE: &str = r#"{"usage":{"prompt_tokens":1200,"total_tokens":1207,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":800}}}"#;

async fn fleet(more: &str) -> (Stub, Stub, Router) {
    let (a, b) =
        (Stub::answering(Answer::json(200, USAGE)).await, Stub::answering(Answer::json(200, USAGE)).await);
    let log = format!("decision_log: {{path: decisions.jsonl{more}}}");
    let router = Setup::of(&[&a, &b]).yaml(&log).pool("policy: prefix").start().await;
    (a, b, router)
}

async fn ask(router: &Router, id: &str, body: String) -> u16 {
    exchange(router.data, post_with(CHAT, &format!("x-request-id: {id}\r\n"), body)).await.status()
}

/// The file's lines, once it has so many.
async fn lines(router: &Router, count: usize) -> Vec<Value> {
    let log = router.beside("decisions.jsonl");
    let text = until(&format!("{count} decisions"), DEADLINE, || async {
        let text = std::fs::read_to_string(&log).ok()?;
        (text.lines().count() >= count && text.ends_with('\n')).then_some(text)
    })
    .await;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn command(words: &[&str], log: &Path) -> (bool, String) {
    let ran = tokio::process::Command::new(binary()).args(words).arg(log).output().await.unwrap();
    let text = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn a_line_tells_the_reasons_and_what_came() {
    let (_a, _b, router) = fleet("").await;
    let prompt = prompts::cold(1);
    for id in ["first", "second"] {
        assert_eq!(ask(&router, id, prompt.clone()).await, 200);
        router.idle().await;
    }
    let lines = lines(&router, 2).await;
    let [first, second] = [&lines[0], &lines[1]];
    assert_eq!(
        (&first["request"], &first["cold"], &second["cold"]),
        (&"first".into(), &true.into(), &false.into())
    );
    let hashes = second["hash_ids"].as_array().unwrap();
    assert!(!hashes.is_empty() && first["hash_ids"] == second["hash_ids"]);
    assert!(hashes.iter().all(|hash| hash.as_u64().unwrap() < 1 << 48), "exact as a double");
    assert_eq!((&second["policy"], &second["pool"]), (&"prefix".into(), &"default".into()));
    assert_eq!((&second["prompt_tokens"], &second["cached_tokens"]), (&1200.into(), &800.into()));
    assert_eq!((&second["input_length"], &second["output_length"]), (&1200.into(), &7.into()));
    assert_eq!((&second["status"], &second["trouble"]), (&200.into(), &Value::Null));
    let went = &second["candidates"][0];
    assert_eq!((&went["endpoint"], &went["matched"]), (&second["endpoint"], &hashes.len().into()));
    assert_eq!(went["endpoint"], first["endpoint"], "where its prefix is");
    let columns = second["columns"].as_array().unwrap();
    let figures = went["figures"].as_array().unwrap();
    let total: f64 = columns
        .iter()
        .zip(figures)
        .map(|(column, figure)| column["weight"].as_f64().unwrap() * figure.as_f64().unwrap())
        .sum();
    assert!((total - went["total"].as_f64().unwrap()).abs() < 1e-9, "the parts make the total: {second}");
}

#[tokio::test]
async fn a_request_that_failed_is_there_with_its_reasons() {
    let (a, b, router) = fleet("").await;
    [&a, &b].iter().for_each(|stub| stub.always(Answer::steps([Step::Close])));
    assert_eq!(ask(&router, "lost", prompts::cold(1)).await, 502);
    let line = &lines(&router, 1).await[0];
    assert_eq!((&line["status"], &line["trouble"]), (&502.into(), &"upstream_broke".into()));
    assert_eq!((&line["ttfb_ms"], &line["prompt_tokens"]), (&Value::Null, &Value::Null));
    assert_eq!(line["candidates"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn nothing_of_a_prompt_is_there() {
    let (_a, _b, router) = fleet("").await;
    let secret = "the sycophantic walrus";
    assert_eq!(ask(&router, "x", prompts::chat(&secret.repeat(200))).await, 200);
    lines(&router, 1).await;
    let text = std::fs::read_to_string(router.beside("decisions.jsonl")).unwrap();
    assert!(!text.contains("walrus"), "{text}");
}

#[tokio::test]
async fn files_are_bounded_in_number_and_size() {
    let (_a, _b, router) = fleet(", file_bytes_max: 64KiB, files: 2").await;
    for seed in 0..300 {
        assert_eq!(ask(&router, "x", prompts::chat_of_size(seed, 20_000)).await, 200);
    }
    until("a file to be put aside", DEADLINE, || async {
        router.beside("decisions.jsonl.1").exists().then_some(())
    })
    .await;
    assert!(!router.beside("decisions.jsonl.2").exists());
    let dropped = router.metrics().await;
    assert!(dropped.contains("prefixroute_decision_log_dropped_total 0\n"), "{dropped}");
}

#[tokio::test]
async fn the_log_is_explained_and_played() {
    let (_a, _b, router) = fleet("").await;
    for (number, seed) in [1, 2, 1, 3, 1, 2].into_iter().enumerate() {
        assert_eq!(ask(&router, &format!("r-{number}"), prompts::cold(seed)).await, 200);
        router.idle().await;
    }
    lines(&router, 6).await;
    let log = router.beside("decisions.jsonl");
    let (well, text) = command(&["explain", "--request", "r-2"], &log).await;
    assert!(
        well && text.contains("request r-2 at ")
            && text.contains("why: ")
            && text.contains("came: status 200"),
        "{text}"
    );
    let (well, text) = command(&["explain", "--request", "r-9"], &log).await;
    assert!(!well && text.contains("found no request \"r-9\" among 6"), "{text}");
    let (well, text) = command(&["simulate", "--replicas", "2", "--oracle=20"], &log).await;
    assert!(
        well && text.contains("as routed") && text.contains("oracle") && text.contains("regret"),
        "{text}"
    );
    // A crash may have cut the last line.
    let whole = std::fs::read(&log).unwrap();
    std::fs::write(&log, &whole[..whole.len() - 20]).unwrap();
    let (well, text) = command(&["simulate"], &log).await;
    assert!(well && text.contains("1 bad line left out") && text.contains("decisions.jsonl:6:"), "{text}");
    std::fs::write(&log, [&whole[..whole.len() - 20], b"\n", &whole].concat()).unwrap();
    let (well, text) = command(&["simulate"], &log).await;
    assert!(
        !well && text.contains("decisions.jsonl:6:") && text.contains("; --skip-bad leaves it out"),
        "{text}"
    );
    // What was put aside is looked at for a request that the newest file has not.
    let aside = router.beside("decisions.jsonl.1");
    std::fs::rename(&log, &aside).unwrap();
    std::fs::write(&log, "").unwrap();
    let (well, text) = command(&["explain", "--request", "r-2"], &log).await;
    assert!(well && text.contains("request r-2 at "), "{text}");
    let (well, text) = command(&["explain", "--request", "r-9"], &log).await;
    assert!(
        !well && text.contains("found no request \"r-9\" among 11 and 1 bad lines in it and 1 older"),
        "{text}"
    );
}
