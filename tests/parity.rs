//! The simulator and the proxy are one router: before like servers, one request at a time, they pick alike.
//!
//! The proxy is the real binary before three fake servers, which it scrapes all the while; the simulator is given the same
//! servers on its virtual clock, the same seed, tokenizer and blocks. A figure of `simulate` is worth what this holds.
//!
//! `expected-ttft` weighs seconds, which on a real clock differ from run to run. While the caches have room they decide
//! nothing but ties, so every request must find the same tokens; where prompts evict each other, about as many in all.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;

use bench::engine::{EvictionOrder, ReplicaOptions, Seconds, Timing};
use bench::fake_server::{FakeServer, FakeServerOptions, RunningFakeServer};
use bench::simulate::{SimulateOptions, simulate};
use bench::trace::{TraceRequest, file};
use harness::{Router, Setup, fixtures, prompts};
use picker::policy::Policy;
use serde_json::Value;

const NAMES: [&str; 3] = ["a", "b", "c"];
const SEED: u64 = 7;
/// Scrapes of each server between two requests: the first may have been asked for before the last answer ended.
const SCRAPES: u64 = 2;
/// Blocks that hold every prompt of the trace.
const ROOM: usize = 256;
/// How far the hits of `expected-ttft` may be apart where prompts evict each other.
const APART: f64 = 0.1;

/// What became of one request: where it went, and the prompt tokens that were cached there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Routed {
    endpoint: usize,
    cached_tokens: usize,
}

/// 64 requests of 8 tenants, one after another.
fn trace() -> Vec<TraceRequest> {
    let path = fixtures::path("../../bench/tests/fixtures/seed/traces/seq.jsonl");
    let mut trace = file::read(&path).unwrap();
    trace.iter_mut().zip(0..).for_each(|(request, second)| request.at = Seconds(f64::from(second)));
    trace
}

fn engine(cache_blocks: usize) -> ReplicaOptions {
    let timing = Timing { prefill_overhead: Seconds::from_millis(5.0), prefill_tokens_per_second: 4000.0 };
    ReplicaOptions { cache_blocks, eviction: EvictionOrder::TailFirst, timing, ..ReplicaOptions::default() }
}

fn simulated(trace: &[TraceRequest], policy: Policy, replica: ReplicaOptions) -> Vec<Routed> {
    let options =
        SimulateOptions { replicas: NAMES.len(), replica, seed: SEED, ..SimulateOptions::default() };
    let run = simulate(trace, &options, policy).unwrap();
    let served = run.served.iter();
    served.map(|it| Routed { endpoint: it.replica, cached_tokens: it.cached_tokens }).collect()
}

async fn proxied(trace: &[TraceRequest], policy: Policy, replica: ReplicaOptions) -> Vec<Routed> {
    let mut servers = Vec::new();
    for name in NAMES {
        servers.push(server(name, replica).await);
    }
    let router = router(policy, servers.iter().map(RunningFakeServer::addr)).await;
    let mut routed = Vec::new();
    for request in trace {
        routed.push(send(&router, request).await);
        settled(&router).await;
    }
    routed
}

async fn server(name: &str, replica: ReplicaOptions) -> RunningFakeServer {
    let options = FakeServerOptions { name: name.to_owned(), replica, ..FakeServerOptions::default() };
    FakeServer::start(options).await.unwrap()
}

async fn router(policy: Policy, servers: impl Iterator<Item = SocketAddr>) -> Router {
    let setup =
        NAMES.iter().zip(servers).fold(Setup::default(), |setup, (name, at)| setup.endpoint(name, at));
    let policy = format!("policy: {}\nseed: {SEED}", policy.name());
    setup.pool(&policy).pool("index: {tokenizer: words}\nload: {scrape_interval: 10ms}").start().await
}

/// As a stream that ends in its usage: the router sees the first token and the report.
async fn send(router: &Router, request: &TraceRequest) -> Routed {
    let members = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let response = router.chat(prompts::with(&request.body, members)).await;
    assert_eq!(response.status(), 200, "{response:?}");
    let endpoint = NAMES.iter().position(|name| *name == response.endpoint()).unwrap();
    Routed { endpoint, cached_tokens: cached_tokens(&response.text()) }
}

/// What the last event before `[DONE]` says.
fn cached_tokens(stream: &str) -> usize {
    let mut events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let usage = events.rfind(|event| event.starts_with('{')).unwrap();
    let usage: Value = serde_json::from_str(usage).unwrap();
    let tokens = &usage["usage"]["prompt_tokens_details"]["cached_tokens"];
    tokens.as_u64().unwrap() as usize
}

/// Waits until the router has figures that no request is in.
async fn settled(router: &Router) {
    router.idle().await;
    let before = router.until_state("scrapes", scrapes).await;
    router
        .until_state("scrapes of every server", |state| {
            let now = scrapes(state)?;
            now.iter().zip(&before).all(|(now, before)| *now >= before + SCRAPES).then_some(())
        })
        .await;
}

fn scrapes(state: &Value) -> Option<Vec<u64>> {
    state["endpoints"].as_array()?.iter().map(|row| row["scrapes"]["ok"].as_u64()).collect()
}

/// Every policy's, played at once: most of the time servers pretend to compute.
async fn proxied_each(trace: &Arc<Vec<TraceRequest>>, replica: ReplicaOptions) -> Vec<(Policy, Vec<Routed>)> {
    let plays = Policy::ALL.map(|policy| {
        let trace = Arc::clone(trace);
        (policy, tokio::spawn(async move { proxied(&trace, policy, replica).await }))
    });
    let mut routed = Vec::new();
    for (policy, play) in plays {
        routed.push((policy, play.await.unwrap()));
    }
    routed
}

fn found(routed: &[Routed]) -> Vec<usize> {
    routed.iter().map(|it| it.cached_tokens).collect()
}

fn are_near(one: &[Routed], other: &[Routed]) -> bool {
    let [one, other] = [one, other].map(|routed| found(routed).iter().sum::<usize>() as f64);
    (one - other).abs() <= APART * one
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulator_and_proxy_pick_the_same_endpoints() {
    let trace = Arc::new(trace());
    for (shows, cache_blocks) in [("room for all wherever they go", ROOM), ("prompts evict each other", 32)] {
        let replica = engine(cache_blocks);
        for (policy, got) in proxied_each(&trace, replica).await {
            let wanted = simulated(&trace, policy, replica);
            let name = policy.name();
            match (policy, cache_blocks) {
                (Policy::ExpectedTtft, ROOM) => assert_eq!(found(&got), found(&wanted), "{name}, {shows}"),
                (Policy::ExpectedTtft, _) => assert!(are_near(&wanted, &got), "{shows}: {got:?}"),
                _ => assert_eq!(got, wanted, "{name}, {shows}"),
            }
        }
    }
}
