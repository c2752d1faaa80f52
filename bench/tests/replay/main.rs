//! The command `replay`, against fake servers and against servers that misbehave.
#![allow(clippy::unwrap_used, clippy::panic)]

mod faults;
mod pace;
#[path = "../small_router/mod.rs"]
mod small_router;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
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
use small_router::{SmallRouter, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Barrier, watch};

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
    let router = SmallRouter::default();
    let run = replay::run(&args, &router, &mut out);
    let result = tokio::time::timeout(DEADLINE, run).await.unwrap();
    (String::from_utf8(out).unwrap(), result)
}

async fn json(trace: &Path, flags: &str) -> Value {
    let (text, result) = replay(trace, &format!("{flags} --json")).await;
    result.unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
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
