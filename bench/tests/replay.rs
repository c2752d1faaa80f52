//! The command `replay`, against fake servers and against servers that misbehave.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bench::demo::{Router, RouterError, RunningRouter};
use bench::engine::{ReplicaOptions, Seconds, Timing};
use bench::fake_server::{FakeServer, FakeServerOptions, RunningFakeServer};
use bench::replay::body::Edits;
use bench::replay::{self, Pace, Plan, Record, ReplayArgs, ReplayError, Target};
use bench::simulate::{Report, SimulateOptions, Workload, play_all};
use bench::trace::{TraceOptions, TraceRequest, file, generate, hashed};
use clap::Parser;
use futures_util::stream;
use picker::hash::BlockSize;
use picker::policy::Policy;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Barrier;

const DEADLINE: Duration = Duration::from_secs(120);

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: ReplayArgs,
}

/// A file that goes with its test.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("replay-{}-{number}.jsonl", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the command; its output comes whether or not it failed.
async fn replay(trace: &Path, flags: &str) -> (String, Result<(), ReplayError>) {
    let words = ["replay", trace.to_str().unwrap()].into_iter().chain(flags.split_whitespace());
    let Command { args } = Command::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    let mut out = Vec::new();
    let run = replay::run(&args, &SmallRouter, &mut out);
    let result = tokio::time::timeout(DEADLINE, run).await.unwrap();
    (String::from_utf8(out).unwrap(), result)
}

async fn json(trace: &Path, flags: &str) -> Value {
    let (text, result) = replay(trace, &format!("{flags} --json")).await;
    result.unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Routes in turn, or a system prompt to where it first went.
struct SmallRouter;

struct Route {
    policy: String,
    endpoints: Vec<(String, String)>,
    turn: AtomicUsize,
    homes: std::sync::Mutex<HashMap<String, usize>>,
    client: reqwest::Client,
}

impl Router for SmallRouter {
    async fn start(
        &self,
        policy: &str,
        endpoints: &[(String, String)],
    ) -> Result<RunningRouter, RouterError> {
        let route = Arc::new(Route {
            policy: policy.to_owned(),
            endpoints: endpoints.to_vec(),
            turn: AtomicUsize::new(0),
            homes: std::sync::Mutex::default(),
            client: replay::client()?,
        });
        let (url, task) = serve(axum::Router::new().fallback(forward).with_state(route)).await;
        Ok(RunningRouter::new(url, async move { task.abort() }))
    }
}

async fn forward(State(route): State<Arc<Route>>, body: Bytes) -> Response {
    let turn = || route.turn.fetch_add(1, Ordering::Relaxed) % route.endpoints.len();
    let place = match route.policy.as_str() {
        "prefix" => {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let system = body["messages"][0]["content"].as_str().unwrap().to_owned();
            *route.homes.lock().unwrap().entry(system).or_insert_with(turn)
        }
        _ => turn(),
    };
    let (name, url) = &route.endpoints[place];
    let request = route.client.post(format!("{url}/v1/chat/completions"));
    let upstream = request.header("content-type", "application/json").body(body).send().await.unwrap();
    let kind = upstream.headers()["content-type"].to_str().unwrap().to_owned();
    let head = [("x-prefixroute-endpoint", name.clone()), ("content-type", kind)];
    (upstream.status(), head, Body::from_stream(upstream.bytes_stream())).into_response()
}

async fn serve(app: axum::Router) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (url, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}

/// A server that computes in no time, in blocks of that size.
async fn fast(block: i64) -> RunningFakeServer {
    with_room(block, 100_000).await
}

/// The same with a cache of so many blocks.
async fn with_room(block: i64, cache_blocks: usize) -> RunningFakeServer {
    let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 1e12 };
    let block_size = BlockSize::new(block).unwrap();
    let replica = ReplicaOptions { timing, block_size, cache_blocks, ..ReplicaOptions::default() };
    FakeServer::start(FakeServerOptions { replica, ..FakeServerOptions::default() }).await.unwrap()
}

fn default_trace() -> File {
    File::new(&file::to_lines(&generate(&TraceOptions { rate: 0.0, ..TraceOptions::default() }).unwrap()))
}

/// An address at which nobody listens.
async fn nobody() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Behaviours 65 to 67. Each play is cold: with a salt in common the second would hit 94 % and more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_compared_on_cold_caches() {
    let servers = [with_room(16, 64).await, with_room(16, 64).await, with_room(16, 64).await];
    let flags: String = servers
        .iter()
        .zip(["a", "b", "c"])
        .map(|(one, name)| format!(" --server {name}={}", one.url()))
        .collect();
    let trace = default_trace();
    let found = json(&trace.0, &format!("--compare prefix,round-robin {flags}")).await;
    let [prefix, round_robin] = [0, 1].map(|place| &found["lanes"][place]);
    let share = |figures: &Value, name: &str| figures[name].as_f64().unwrap();
    for figures in [prefix, &prefix["rounds"][0], &prefix["rounds"][1]] {
        for name in ["cached_share", "server_hit_rate"] {
            assert_eq!(share(figures, name), 10752.0 / 14144.0, "{name} {figures}");
        }
        assert_eq!(figures["groups_on_one"], figures["groups"]);
    }
    assert_eq!(
        (&prefix["requests"], &prefix["groups"], &prefix["failed"]),
        (&128.into(), &16.into(), &0.into())
    );
    assert_eq!(prefix["endpoints"], serde_json::json!({"a": 48, "b": 48, "c": 32}), "{prefix}");
    assert!(share(round_robin, "cached_share") < 0.5, "{round_robin}");
    assert_eq!(share(round_robin, "cached_share"), share(round_robin, "server_hit_rate"));
    assert_eq!(round_robin["groups_on_one"], 0);

    let (text, _) = replay(&trace.0, &format!("--compare prefix,round-robin --rounds 1 {flags}")).await;
    let line = text.lines().find(|line| line.starts_with("prefix ")).unwrap_or_else(|| panic!("{text}"));
    let cells: Vec<&str> = line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!((cells[1], cells[2]), ("76.0 %", "76.0 %"), "{text}");
    assert!(line.contains("8/8") && line.trim_end().ends_with("24 24 16"), "{text}");
}

/// Who plays alone sends the trace's own bytes: a second run finds warm caches.
#[tokio::test]
async fn one_lane_is_told_at_length() {
    let server = fast(16).await;
    let (trace, url) = (default_trace(), server.url());
    let flags =
        format!("--url {url} --server s={url} --clients 1 --slo-ttft 60s --slo-tpot 1s --slo-latency 60s");
    let (text, result) = replay(&trace.0, &flags).await;
    assert!(result.is_ok());
    let has = |line: &str| assert!(text.contains(line), "{line:?} in\n{text}");
    has("64 requests to 127.0.0.1:");
    has(", from 1 client: 0 failed, ");
    has("cached: 76.0 % of 14144 prompt tokens by usage, 76.0 % by the servers\n");
    has("no answer names its endpoint (x-prefixroute-endpoint)\n");
    has("good: 64 of 64 (100.0 %), ");
    has(" a second: first token within 60.0 s, token to token within 1000 ms, whole answer within 60.0 s\n");
    let row =
        |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    assert!(row("s ").ends_with("76.0 %        10752            14144"), "{text}");
    assert!(row("first token").contains(" ms"));
    let again = json(&trace.0, &format!("--url {url} --salt other")).await;
    assert_eq!(again["lanes"][0]["cached_tokens"], 10752, "another salt is cold");
    let again = json(&trace.0, &format!("--url {url}")).await;
    assert_eq!(again["lanes"][0]["cached_tokens"], 64 * 208, "no salt is warm");
    assert_eq!(again["cache_salt"], Value::Null);
    let whole = json(&trace.0, &format!("--url {url} --no-stream")).await;
    assert_eq!(
        (&whole["lanes"][0]["ttft_ms"]["count"], &whole["lanes"][0]["failed"]),
        (&0.into(), &0.into())
    );
    assert_eq!(whole["lanes"][0]["cached_tokens"], 64 * 208);
}

/// The texts of blocks share exactly what the trace says: an engine that counts words hits what the simulation of the ids does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_sent_as_text_that_shares_what_they_share() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/traces");
    for (name, block, count, api) in [
        ("mooncake_conversation", 512, 120, "chat"),
        ("miniswe_agent_bs16", 16, 40, "completions"),
        ("taubench_airline_bs64", 64, 250, "chat"),
    ] {
        let path = folder.join(format!("{name}.jsonl"));
        let requests = hashed::read(&path).unwrap();
        assert_eq!(requests.len(), count);
        let tokens: u64 = requests.iter().map(|request| u64::from(request.input_tokens)).sum();
        let server = fast(block).await;
        let flags = format!("--url {} --clients 1 --max-tokens 1 --api {api}", server.url());
        let found = json(&path, &flags).await;
        let lane = &found["lanes"][0];
        assert_eq!((&lane["failed"], &lane["prompt_tokens"]), (&0.into(), &tokens.into()), "{name}");
        assert_eq!(lane["cached_tokens"], simulated(&requests), "{name}");
    }
}

/// Cached tokens on one replica with room for all.
fn simulated(requests: &[hashed::HashedRequest]) -> u64 {
    let workload = Workload::of_hashes(requests, None).unwrap();
    let defaults = SimulateOptions::default();
    let replica = ReplicaOptions { cache_blocks: 100_000, ..defaults.replica };
    let replica = ReplicaOptions { block_size: workload.block_size(), ..replica };
    let options = SimulateOptions { replicas: 1, replica, ..defaults };
    let runs = play_all(&workload, &options, &[Policy::RoundRobin], &|_| ()).unwrap();
    Report::of(&runs[0]).hit_tokens
}

/// Misbehaves as the model says that is asked for, and says its counters from a list.
async fn answer(headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let header = |name| headers.get(name).map_or("", |value| value.to_str().unwrap());
    let event = |text: &str| Ok::<_, std::io::Error>(format!("data: {text}\n\n"));
    let token = event(r#"{"choices":[{"delta":{"content":"a"}}]}"#);
    let kind = [("content-type", "text/event-stream; charset=utf-8"), ("x-prefixroute-endpoint", "e")];
    let streamed = |events: Vec<_>| (kind, Body::from_stream(stream::iter(events))).into_response();
    match body["model"].as_str().unwrap() {
        "busy" => (StatusCode::SERVICE_UNAVAILABLE, r#"{"error":{"message":"come again"}}"#).into_response(),
        "no-end" => streamed(vec![token]),
        "error" => streamed(vec![token, event(r#"{"error":{"message":"out of memory"}}"#)]),
        "slow" => std::future::pending().await,
        "key" if header("authorization") != "Bearer sk-secret" => StatusCode::UNAUTHORIZED.into_response(),
        "session" if header("x-session-id") != "s-1" => StatusCode::BAD_REQUEST.into_response(),
        _ => streamed(vec![token, event("[DONE]")]),
    }
}

async fn stub() -> String {
    serve(axum::Router::new().fallback(answer)).await.0
}

fn bodies(models: &[&str]) -> File {
    let body = |model: &&str| TraceRequest {
        at: Seconds(0.0),
        group: "g".to_owned(),
        body: format!(r#"{{"model":"{model}","messages":[]}}"#),
    };
    File::new(&file::to_lines(&models.iter().map(body).collect::<Vec<_>>()))
}

#[tokio::test]
async fn failures_are_counted_by_kind_and_the_rest_is_told() {
    let trace = bodies(&["good", "busy", "busy", "no-end", "no-end", "error", "slow"]);
    let url = stub().await;
    let found = json(&trace.0, &format!("--url {url} --timeout 1s")).await;
    let lane = &found["lanes"][0];
    let kinds: Vec<(&str, u64, &str)> = lane["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (one["kind"].as_str().unwrap(), one["count"].as_u64().unwrap(), one["first"].as_str().unwrap())
        })
        .collect();
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    let (kind, count, first) = kinds[0];
    assert_eq!((kind, count), ("timeout", 1), "{first}");
    assert_eq!(kinds[1], ("status 503", 2, "status 503 Service Unavailable: come again"));
    assert_eq!((kinds[2].0, kinds[2].1), ("cut off", 2), "without an end");
    assert_eq!(kinds[3], ("error in stream", 1, "the answer says: out of memory"));
    assert_eq!((&lane["failed"], &lane["latency_ms"]["count"]), (&6.into(), &1.into()));
    let (text, _) = replay(&trace.0, &format!("--url {url} --timeout 1s")).await;
    assert!(
        text.contains("2 failed: status 503; the first: status 503 Service Unavailable: come again\n"),
        "{text}"
    );
}

/// Reads a request whole, says that and closes.
async fn says(answer: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                connection.read_buf(&mut request).await.unwrap();
            }
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    url
}

#[tokio::test]
async fn answers_that_break_off_and_that_never_begin_are_told_apart() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-length: 999\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n";
    for (answer, kind) in [(head, "cut off"), ("", "no answer"), ("HTTP/1.1 200", "no answer")] {
        let (text, result) = replay(&bodies(&["m"]).0, &format!("--url {}", says(answer).await)).await;
        assert!(text.contains(&format!("\n1 failed: {kind}; the first: ")) && result.is_err(), "{text}");
    }
}

#[tokio::test]
async fn who_reaches_nobody_has_failed() {
    let (text, result) = replay(&bodies(&["a", "b"]).0, &format!("--url {}", nobody().await)).await;
    assert!(text.contains("2 failed: refused; the first: "), "{text}");
    let error = result.unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.is_usage()),
        ("none of the 2 requests was answered", false)
    );
}

/// A page of counters that fall at every look.
async fn restarts(State(looks): State<Arc<AtomicUsize>>) -> String {
    format!("vllm:prefix_cache_queries_total {}\n", 1000 - looks.fetch_add(1, Ordering::Relaxed))
}

#[tokio::test]
async fn servers_that_cannot_be_counted_are_told_and_the_rest_still_counts() {
    let good = fast(16).await;
    let app = axum::Router::new().fallback(restarts).with_state(Arc::default());
    let (other, falling, refusing) = (stub_page("up 1\n").await, serve(app).await.0, nobody().await);
    let flags = format!(
        "--url {} --server good={} --server other={other} --server new={falling} --server gone={refusing}",
        good.url(),
        good.url()
    );
    let (text, result) = replay(&default_trace().0, &format!("{flags} --clients 1")).await;
    assert!(result.is_ok());
    let line =
        |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        line("server other: "),
        "server other: found no vllm:prefix_cache_queries_total on its /metrics, wanted an engine that counts its prefix cache"
    );
    assert_eq!(
        line("server new: "),
        "server new: restarted midway: its counters began anew, so what it counted is left out"
    );
    assert!(line("server gone: ").ends_with("Connection refused (os error 111)"), "{text}");
    assert!(line("cached: ").ends_with("76.0 % by the servers"), "{text}");
    assert!(line("good ").trim_end().ends_with("14144"), "{text}");
}

async fn stub_page(page: &'static str) -> String {
    serve(axum::Router::new().fallback(move || async move { page })).await.0
}

/// Behaviour 64: a server that is not listed has counted the rest.
#[tokio::test]
async fn counters_that_never_cover_what_was_sent_are_told() {
    let (served, listed) = (fast(16).await, fast(16).await);
    let flags = format!("--url {} --server {} --server-wait 0s", served.url(), listed.url());
    let (text, result) = replay(&default_trace().0, &flags).await;
    assert!(result.is_ok());
    let want = "after 0ns the servers have counted 0 prompt tokens, wanted the 14144 of the answers";
    assert!(text.contains(want), "{text}");
}

#[tokio::test]
async fn keys_and_sessions_are_sent_and_keys_are_not_told() {
    let key = File::new("sk-secret\n");
    let url = stub().await;
    let (text, result) =
        replay(&bodies(&["key"]).0, &format!("--url {url} --key file:{}", key.0.display())).await;
    assert!(result.is_ok() && !text.contains("secret"), "{text}");
    let (text, _) = replay(&bodies(&["key"]).0, &format!("--url {url}")).await;
    assert!(text.contains("1 failed: status 401"), "{text}");
    let line = r#"{"timestamp":0,"input_length":9,"output_length":7,"hash_ids":[0],"session_id":"s-1"}"#;
    let found = json(&File::new(line).0, &format!("--url {url} --model session")).await;
    let lane = &found["lanes"][0];
    assert_eq!((&lane["failed"], &lane["groups"], &lane["groups_on_one"]), (&0.into(), &1.into(), &1.into()));
}

#[tokio::test]
async fn bad_traces_are_refused_or_skipped() {
    let url = stub().await;
    let good = r#"{"at":0,"group":"g","body":{"model":"m","messages":[]}}"#;
    let trace = File::new(&format!("{good}\n{{\"at\":0,\"group\":\"g\"}}\n{good}\n{good}\n"));
    let (text, result) = replay(&trace.0, &format!("--url {url}")).await;
    let error = result.unwrap_err();
    assert!(error.to_string().ends_with(":2:20: missing field `body`") && error.is_usage(), "{error}");
    assert_eq!(text, "");
    let (text, result) = replay(&trace.0, &format!("--url {url} --skip-bad --limit 2")).await;
    assert!(result.is_ok() && text.starts_with("1 bad line left out, the first of them:\n  "), "{text}");
    assert!(text.contains("2 requests to "), "{text}");
    let odd = r#"{"timestamp":0,"input_length":900,"output_length":7,"hash_ids":[0]}"#;
    let (_, result) = replay(&File::new(odd).0, &format!("--url {url} --block-size 16")).await;
    let error = result.unwrap_err().to_string();
    assert!(
        error.ends_with("request 1: found 1 hash ids, wanted 57 for 900 tokens in blocks of 16"),
        "{error}"
    );
}

async fn sent(requests: usize, url: &str, pace: Pace) -> Vec<Record> {
    let body = r#"{"model":"m","messages":[]}"#.to_owned();
    let request = TraceRequest { at: Seconds(0.0), group: "g".to_owned(), body };
    let plan = Plan::of_bodies(vec![request; requests], Edits::default());
    let (plan, target) = (Arc::new(plan), Arc::new(Target::of(url)));
    let sent = replay::collect(&plan, &target, pace, &|_| {});
    tokio::time::timeout(DEADLINE, sent).await.unwrap().unwrap()
}

/// All are due at once and go one by one: each one's time has that of all before it.
#[tokio::test]
async fn waiting_for_a_slow_answer_counts() {
    let url = stub().await;
    let records = sent(4, &url, Pace::Open { speed: 1.0, in_flight_max: 1 }).await;
    for pair in records.windows(2) {
        assert!(pair[1].late >= pair[0].latency, "sent after the one before had ended");
        assert!(pair[1].ttft.unwrap() >= pair[1].late, "from when it was due");
    }
    let records = sent(4, &url, Pace::Closed { clients: 1 }).await;
    assert!(records.iter().all(|record| record.late.is_zero()), "no time at which it was due");
}

/// Answers only when as many as clients are waiting, so fewer would hang; more are counted.
#[tokio::test]
async fn a_closed_loop_has_its_clients_under_way() {
    struct Gate {
        here: AtomicUsize,
        most: AtomicUsize,
        all: Barrier,
    }
    async fn together(State(gate): State<Arc<Gate>>) -> &'static str {
        let here = gate.here.fetch_add(1, Ordering::SeqCst) + 1;
        gate.most.fetch_max(here, Ordering::SeqCst);
        gate.all.wait().await;
        gate.here.fetch_sub(1, Ordering::SeqCst);
        "{}"
    }
    let all = Barrier::new(3);
    let gate = Arc::new(Gate { here: AtomicUsize::new(0), most: AtomicUsize::new(0), all });
    let (url, _) = serve(axum::Router::new().fallback(together).with_state(Arc::clone(&gate))).await;
    let records = sent(9, &url, Pace::Closed { clients: 3 }).await;
    assert_eq!((records.len(), gate.most.load(Ordering::SeqCst)), (9, 3));
    assert!(records.iter().all(|record| record.failure.is_none()));
}

#[tokio::test]
async fn records_come_in_the_order_of_the_trace() {
    let server = fast(16).await;
    let trace = generate(&TraceOptions { rate: 0.0, ..TraceOptions::default() }).unwrap();
    let plan = Plan::of_bodies(trace.clone(), Edits::default());
    let pace = Pace::Open { speed: 1.0, in_flight_max: 8 };
    let target = Target::of(&server.url());
    let records = replay::collect(&Arc::new(plan), &Arc::new(target), pace, &|_| {}).await.unwrap();
    let came: Vec<_> = records.into_iter().filter_map(|record| record.group).collect();
    assert_eq!(came, trace.into_iter().map(|request| request.group).collect::<Vec<_>>());
}
