//! The fake server over real sockets, held to what a real vLLM answered.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use bench::engine::{Figures, ReplicaOptions, Seconds, Timing};
use bench::fake_server::{FakeServer, FakeServerOptions, RunningFakeServer};
use picker::tokens::words;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

const DEADLINE: Duration = Duration::from_secs(10);
/// Faults that this engine does not have: no vocabulary, no context limit, and images pass unread.
const NOT_OURS: [&str; 5] = [
    "completion_token_out_of_vocab",
    "image_to_text_model",
    "prompt_plus_max_tokens_too_long",
    "too_long_prompt",
    "too_long_prompt_stream",
];

fn options() -> FakeServerOptions {
    let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 1e9 };
    FakeServerOptions {
        models: vec!["tiny-llama".to_owned()],
        replica: ReplicaOptions { timing, ..ReplicaOptions::default() },
        ..FakeServerOptions::default()
    }
}

/// A server on which nothing is ever computed.
fn stuck(slots: usize) -> FakeServerOptions {
    let timing = Timing { prefill_overhead: Seconds(3600.0), prefill_tokens_per_second: 1e9 };
    FakeServerOptions { replica: ReplicaOptions { timing, slots, ..options().replica }, ..options() }
}

async fn start(options: FakeServerOptions) -> RunningFakeServer {
    FakeServer::start(options).await.unwrap()
}

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vllm").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Status and body of a response with a length.
fn parsed(response: &[u8]) -> (String, Vec<u8>) {
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(response[..end].to_vec()).unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), response[end + 4..].to_vec())
}

fn length(head: &[u8]) -> Option<usize> {
    let head = String::from_utf8_lossy(head).to_lowercase();
    head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok())
}

/// Sends bytes on a new connection and reads one response with a length.
async fn exchange(server: &RunningFakeServer, request: &[u8]) -> Vec<u8> {
    let mut connection = TcpStream::connect(server.addr()).await.unwrap();
    connection.write_all(request).await.unwrap();
    let mut response = Vec::new();
    let read = async {
        loop {
            assert!(connection.read_buf(&mut response).await.unwrap() > 0, "closed after {response:?}");
            let end = response.windows(4).position(|window| window == b"\r\n\r\n");
            if end.is_some_and(|end| response.len() >= end + 4 + length(&response[..end]).unwrap()) {
                return;
            }
        }
    };
    timeout(DEADLINE, read).await.unwrap();
    response
}

/// Posts JSON and leaves the connection to the caller.
async fn post(server: &RunningFakeServer, path: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = TcpStream::connect(server.addr()).await.unwrap();
    connection.write_all((head + &body).as_bytes()).await.unwrap();
    connection
}

async fn text(server: &RunningFakeServer, path: &str, body: Option<&Value>) -> String {
    let url = server.url() + path;
    let client = bench::replay::client().unwrap();
    let request = match body {
        Some(body) => client.post(url).json(body),
        None => client.get(url),
    };
    let response = timeout(DEADLINE, request.send()).await.unwrap().unwrap();
    assert_eq!(response.status(), 200, "{path}");
    timeout(DEADLINE, response.text()).await.unwrap().unwrap()
}

async fn answer(server: &RunningFakeServer, path: &str, body: &Value) -> Value {
    serde_json::from_str(&text(server, path, Some(body)).await).unwrap()
}

async fn until(server: &RunningFakeServer, shows: &str, holds: impl Fn(Figures) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds(server.figures()) {
        assert!(Instant::now() < deadline, "{shows}: {:?}", server.figures());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn faults_are_answered_as_vllm_answers_them() {
    let server = start(options()).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vllm/errors");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = files
        .filter_map(|file| Some(file.to_str()?.strip_suffix(".request.http")?.to_owned()))
        .filter(|name| !NOT_OURS.contains(&name.as_str()))
        .collect();
    assert_eq!(names.len(), 27);
    for name in names {
        let request = fixture(&format!("errors/{name}.request.http"));
        let (status, body) = parsed(&fixture(&format!("errors/{name}.response.http")));
        let (got_status, got) = parsed(&exchange(&server, &request).await);
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&body), "{name}");
        assert_eq!(got_status, status, "{name}");
    }
    let figures = server.figures();
    assert_eq!(
        (figures.running, figures.waiting, figures.cache.query_tokens),
        (0, 0, 0),
        "none was admitted"
    );
}

/// The keys of a JSON text in order, and `data: [DONE]` as it is.
fn keys(json: &str) -> Vec<String> {
    let ends = json.match_indices("\":").map(|(end, _)| end);
    ends.map(|end| json[..end].rsplit('"').next().unwrap().to_owned()).collect()
}

/// The shapes of events in order. A shape that was among the last two is not said again: a named event is two
/// lines.
fn event_shapes(text: &str) -> Vec<Vec<String>> {
    let mut shapes: Vec<Vec<String>> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("data: ") || line.starts_with("event: ")) {
        let shape = if line.starts_with("data: {") { keys(line) } else { vec![line.to_owned()] };
        if !shapes.iter().rev().take(2).any(|seen| *seen == shape) {
            shapes.push(shape);
        }
    }
    shapes
}

#[tokio::test]
async fn answers_have_the_shape_of_vllms() {
    let server = start(options()).await;
    let messages = json!([{"role": "user", "content": "Where is my refund?"}]);
    for (file, path, body) in [
        ("chat_cached", "/v1/chat/completions", json!({"messages": messages, "max_tokens": 6})),
        ("completion", "/v1/completions", json!({"prompt": "Where is my refund?", "max_tokens": 4})),
        ("responses", "/v1/responses", json!({"instructions": "Be kind.", "input": "Where is my refund?"})),
        ("messages", "/v1/messages", json!({"messages": messages, "max_tokens": 6})),
        ("tokenize_prompt", "/tokenize", json!({"prompt": "Where is my refund?"})),
    ] {
        let want = String::from_utf8(parsed(&fixture(&format!("http/{file}.response.http"))).1).unwrap();
        assert_eq!(keys(&text(&server, path, Some(&body)).await), keys(&want), "{file}");
    }
}

#[tokio::test]
async fn streams_have_the_shape_of_vllms() {
    let server = start(options()).await;
    let messages = json!([{"role": "user", "content": "Where is my refund?"}]);
    let usage = json!({"include_usage": true});
    for (file, path, mut body) in [
        ("chat_stream", "/v1/chat/completions", json!({"messages": messages, "max_tokens": 6})),
        (
            "chat_stream_usage",
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 6, "stream_options": usage}),
        ),
        (
            "completion_stream_usage",
            "/v1/completions",
            json!({"prompt": "Where is my refund?", "max_tokens": 4, "stream_options": usage}),
        ),
        ("messages_stream", "/v1/messages", json!({"messages": messages, "max_tokens": 6})),
        (
            "responses_stream",
            "/v1/responses",
            json!({"instructions": "Be kind.", "input": "Where is my refund?"}),
        ),
    ] {
        body["stream"] = json!(true);
        let want = fixture(&format!("http/{file}.response.http"));
        let got = text(&server, path, Some(&body)).await;
        assert_eq!(event_shapes(&got), event_shapes(&String::from_utf8_lossy(&want)), "{file}");
    }
}

#[tokio::test]
async fn a_stream_says_the_words_of_the_whole_answer() {
    let server = start(options()).await;
    let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "n": 2});
    let whole = answer(&server, "/v1/chat/completions", &body).await;
    body["stream"] = json!(true);
    let mut choices = [String::new(), String::new()];
    for line in text(&server, "/v1/chat/completions", Some(&body)).await.lines() {
        let Some(event) = line.strip_prefix("data: {") else { continue };
        let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        let choice = &event["choices"][0];
        choices[choice["index"].as_u64().unwrap() as usize] += choice["delta"]["content"].as_str().unwrap();
    }
    assert_eq!(whole["usage"]["completion_tokens"], 40);
    for (index, said) in choices.iter().enumerate() {
        assert_eq!(whole["choices"][index]["message"]["content"], **said);
        assert_eq!(words::token_ids(said).len(), 20);
    }
}

#[tokio::test]
async fn the_last_token_is_never_cached() {
    let server = start(options()).await;
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let body = |prompt: Value| json!({"prompt": prompt, "max_tokens": 1});
    let exact = body(json!((0..32).collect::<Vec<u32>>()));
    let longer = body(json!((0..33).collect::<Vec<u32>>()));
    for (shows, body, want) in [
        ("cold", &exact, 0),
        ("two blocks exactly hit one", &exact, 16),
        ("a token more hits both", &longer, 32),
    ] {
        assert_eq!(cached(&answer(&server, "/v1/completions", body).await), want, "{shows}");
    }
    let mut salted = longer.clone();
    salted["cache_salt"] = json!("other");
    assert_eq!(cached(&answer(&server, "/v1/completions", &salted).await), 0, "a salt shares nothing");
    let batch = body(json!([(0..33).collect::<Vec<u32>>(), (100..120).collect::<Vec<u32>>()]));
    let answer = answer(&server, "/v1/completions", &batch).await;
    assert_eq!((cached(&answer), &answer["usage"]["prompt_tokens"]), (json!(32), &json!(53)));
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_lane() {
    let server = start(stuck(1)).await;
    let body = json!({"messages": [{"role": "user", "content": "hello"}]});
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    for (shows, first, second) in [("plain", &body, &streamed), ("stream", &streamed, &body)] {
        let runs = post(&server, "/v1/chat/completions", first).await;
        until(&server, shows, |figures| figures.running == 1).await;
        let waits = post(&server, "/v1/chat/completions", second).await;
        until(&server, shows, |figures| figures.waiting == 1).await;
        let leaves = post(&server, "/v1/chat/completions", first).await;
        until(&server, shows, |figures| figures.waiting == 2).await;
        drop(leaves);
        until(&server, shows, |figures| (figures.running, figures.waiting) == (1, 1)).await;
        drop(runs);
        until(&server, shows, |figures| (figures.running, figures.waiting) == (1, 0)).await;
        drop(waits);
        until(&server, shows, |figures| (figures.running, figures.kv_usage) == (0, 0.0)).await;
    }
    let page = text(&server, "/metrics", None).await;
    assert!(page.contains("finished_reason=\"length\",model_name=\"tiny-llama\"} 0.0"), "{page}");
}

#[tokio::test]
async fn who_waits_is_served_when_the_lane_is_free() {
    let timing = Timing { prefill_overhead: Seconds(0.1), prefill_tokens_per_second: 1e9 };
    let replica = ReplicaOptions { timing, slots: 1, ..options().replica };
    let server = start(FakeServerOptions { replica, ..options() }).await;
    let body = json!({"messages": [{"role": "user", "content": "hello"}]});
    let began = Instant::now();
    let path = "/v1/chat/completions";
    tokio::join!(answer(&server, path, &body), answer(&server, path, &body), answer(&server, path, &body));
    assert!(began.elapsed() >= Duration::from_millis(300), "one after another: {:?}", began.elapsed());
}

/// Reads until a text has come.
async fn read_until(connection: &mut TcpStream, wanted: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let read = timeout(DEADLINE, connection.read_buf(&mut seen)).await.unwrap().unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&seen));
    }
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn the_head_of_a_stream_comes_before_its_lane_and_a_stop_breaks_it() {
    let server = start(stuck(1)).await;
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "stream": true});
    let mut runs = post(&server, "/v1/chat/completions", &body).await;
    let mut waits = post(&server, "/v1/chat/completions", &body).await;
    for stream in [&mut runs, &mut waits] {
        let head = read_until(stream, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(head.contains("content-type: text/event-stream; charset=utf-8"), "{head}");
    }
    let address = server.addr();
    // A stop that only gave up on its connections would take two seconds.
    timeout(Duration::from_millis(1500), server.stop()).await.unwrap();
    for mut stream in [runs, waits] {
        let mut rest = Vec::new();
        let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest, b"", "no end that looks clean");
    }
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn words_come_one_by_one() {
    let server = start(FakeServerOptions { inter_token: Duration::from_secs(3600), ..options() }).await;
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "stream": true});
    let mut stream = post(&server, "/v1/chat/completions", &body).await;
    let seen = read_until(&mut stream, "\"content\":\"the\"").await;
    assert!(!seen.contains("\"content\":\" cache\""), "{seen}");
    assert_eq!(server.figures().running, 1, "a request keeps its lane until its last word");
}

/// Names and types, and of series the names of their labels.
fn metric_heads(page: &str) -> Vec<String> {
    page.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_metrics_page_is_vllms() {
    let server = start(options()).await;
    let real = String::from_utf8(fixture("idle.txt")).unwrap();
    let idle = text(&server, "/metrics", None).await;
    for head in metric_heads(&idle) {
        assert!(real.contains(&head), "vLLM has no {head:?}");
    }
    for line in idle.lines().filter(|line| line.starts_with("vllm:") && !line.contains("cache_config_info")) {
        assert!(real.contains(line), "vLLM has no {line:?}");
    }
    let prompt: Vec<u32> = (0..40).collect();
    for _ in 0..2 {
        answer(&server, "/v1/completions", &json!({"prompt": prompt, "max_tokens": 3})).await;
    }
    let page = text(&server, "/metrics", None).await;
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"tiny-llama\"} 0.0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny-llama\"} 0.0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny-llama\"} 0.0",
        "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"tiny-llama\"} 80.0",
        "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"tiny-llama\"} 32.0",
        "vllm:prompt_tokens_total{engine=\"0\",model_name=\"tiny-llama\"} 80.0",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny-llama\"} 6.0",
        "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"tiny-llama\"} 2.0",
    ] {
        assert!(page.lines().any(|have| have == line), "{line}\n{page}");
    }
    assert!(page.contains("block_size=\"16\"") && page.contains("num_gpu_blocks=\"64\""), "{page}");
}

#[tokio::test]
async fn the_other_paths_answer() {
    let server = start(options()).await;
    let models: Value = serde_json::from_str(&text(&server, "/v1/models", None).await).unwrap();
    assert_eq!(models["data"][0]["id"], "tiny-llama");
    assert_eq!(text(&server, "/health", None).await, "");
    assert_eq!(text(&server, "/version", None).await, "{\"version\":\"0.32.0\"}");
    let tokens =
        answer(&server, "/tokenize", &json!({"messages": [{"role": "user", "content": "a b"}]})).await;
    assert_eq!(tokens["tokens"], json!(words::token_ids("a b")));
    let vectors = answer(&server, "/v1/embeddings", &json!({"input": ["a b", "c"]})).await;
    assert_eq!(vectors["data"].as_array().unwrap().len(), 2);
    assert_eq!(vectors["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn a_large_body_is_taken_up_to_the_limit() {
    let server = start(options()).await;
    let body = |bytes: usize| json!({"prompt": "a".repeat(bytes), "max_tokens": 1});
    let taken = answer(&server, "/v1/completions", &body(40 << 20)).await;
    assert_eq!(taken["usage"]["prompt_tokens"], 1, "a long word is one token");
    let url = server.url() + "/v1/completions";
    let refused = bench::replay::client().unwrap().post(url).json(&body(65 << 20)).send();
    // A server that answers before it has read all may also close before the client has sent all.
    if let Ok(response) = timeout(DEADLINE, refused).await.unwrap() {
        assert_eq!(response.status(), 413);
    }
}

#[tokio::test]
async fn a_port_in_use_is_said() {
    let server = start(options()).await;
    let again = FakeServerOptions { address: server.addr(), ..options() };
    let error = FakeServer::start(again).await.err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot listen on {}: ", server.addr())), "{error}");
}
