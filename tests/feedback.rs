//! Reports of cached tokens against a belief that is twice too large: predicted and found, without and with the correction.
//!
//! `cargo test -p prefixroute-tests --test feedback -- --nocapture` prints the figures.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use bench::engine::{CacheFigures, ReplicaOptions, Seconds, Timing};
use bench::fake_server::{FakeServer, FakeServerOptions, RunningFakeServer};
use harness::{Router, Setup, prompts};
use picker::chance::Draw;

/// Tenants, each with a prompt of its own, before two replicas that say how many prompts they hold.
#[derive(Clone, Copy)]
struct Fleet {
    tenants: u64,
    told: usize,
    held: [usize; 2],
}

/// There is room for all, if it is found.
const ONE_HOLDS_HALF: Fleet = Fleet { tenants: 12, told: 8, held: [4, 8] };
/// There is not, whatever a router does.
const BOTH_HOLD_HALF: Fleet = Fleet { tenants: 20, told: 10, held: [5, 5] };

const REQUESTS: u64 = 1600;
const PHASES: u64 = 4;
/// Blocks of the router in a prompt, and tokens in each.
const BLOCKS: usize = 17;
const BLOCK_TOKENS: usize = 64;
const ENGINE_BLOCK_TOKENS: usize = 16;

/// Shares of the prompts in one phase.
#[derive(Clone, Copy, Debug)]
struct Phase {
    predicted: f64,
    found: f64,
}

async fn replica(name: &str, cache_blocks: usize, told: usize) -> RunningFakeServer {
    let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 1e9 };
    FakeServer::start(FakeServerOptions {
        name: name.to_owned(),
        models: vec!["m".to_owned()],
        replica: ReplicaOptions { cache_blocks, timing, ..ReplicaOptions::default() },
        told_cache_blocks: Some(told * BLOCKS * BLOCK_TOKENS / ENGINE_BLOCK_TOKENS),
        ..FakeServerOptions::default()
    })
    .await
    .unwrap()
}

/// Blocks of a fake engine that a tenant's prompt takes.
async fn engine_blocks() -> usize {
    let engine = replica("scale", 1_000, 1).await;
    let body = prompts::cold(1);
    let answer = harness::exchange(engine.addr(), harness::post("/v1/chat/completions", body)).await.json();
    answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize / ENGINE_BLOCK_TOKENS
}

fn counted(replicas: &[RunningFakeServer]) -> (f64, f64) {
    replicas.iter().map(|it| it.figures().cache).fold((0.0, 0.0), |sum, cache: CacheFigures| {
        (sum.0 + cache.hit_tokens as f64, sum.1 + cache.query_tokens as f64)
    })
}

/// Sends the same requests, as streams that tell no usage or as whole answers that do.
async fn run(fleet: Fleet, tells: bool) -> Vec<Phase> {
    let blocks = engine_blocks().await + 1;
    let [a, b] = fleet.held.map(|prompts| replica("half", prompts * blocks, fleet.told));
    let replicas = [a.await, b.await];
    let setup = Setup::default().endpoint("a", replicas[0].addr()).endpoint("b", replicas[1].addr());
    let router = setup.start().await;
    router.sees("a", "index_capacity_blocks", fleet.told * BLOCKS).await;
    let mut phases = Vec::new();
    for phase in 0..PHASES {
        let turns = phase * REQUESTS / PHASES..(phase + 1) * REQUESTS / PHASES;
        phases.push(send(&router, &replicas, turns, fleet.tenants, tells).await);
    }
    phases
}

async fn send(
    router: &Router,
    replicas: &[RunningFakeServer],
    turns: std::ops::Range<u64>,
    tenants: u64,
    tells: bool,
) -> Phase {
    let before = counted(replicas);
    let (mut matched, mut total) = (0, 0);
    for turn in turns {
        let body = prompts::cold(Draw { seed: 5, turn }.number(0) % tenants);
        let body = if tells { body } else { prompts::with(&body, r#","stream":true"#) };
        let response = router.chat(body).await;
        assert_eq!(response.status(), 200);
        matched += response.matched().0;
        total += response.matched().1;
    }
    let after = counted(replicas);
    Phase { predicted: matched as f64 / total as f64, found: (after.0 - before.0) / (after.1 - before.1) }
}

/// Runs a fleet without reports and with them; the last phase of each.
async fn compared(fleet: Fleet) -> [Phase; 2] {
    let (silent, told) = (run(fleet, false).await, run(fleet, true).await);
    eprintln!("{:>8} {:>22} {:>22}", "requests", "silent engines", "engines that tell");
    for (number, (silent, told)) in (1..).zip(silent.iter().zip(&told)) {
        let shown = |phase: &Phase| format!("{:.3} found {:.3}", phase.predicted, phase.found);
        eprintln!("{:>8} {:>22} {:>22}", number * REQUESTS / PHASES, shown(silent), shown(told));
    }
    [silent, told].map(|phases| *phases.last().unwrap())
}

fn error(phase: Phase) -> f64 {
    (phase.predicted - phase.found).abs()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_that_a_replica_keeps_losing_go_where_there_is_room() {
    let [silent, told] = compared(ONE_HOLDS_HALF).await;
    assert!(error(told) < error(silent) / 2.0, "{told:?} against {silent:?}");
    assert!(told.found > silent.found + 0.05, "{told:?} against {silent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_belief_that_is_twice_too_large_shrinks_and_costs_no_hits() {
    let [silent, told] = compared(BOTH_HOLD_HALF).await;
    assert!(error(silent) > 0.4 && error(told) < 0.25, "{told:?} against {silent:?}");
    assert!(told.found > silent.found - 0.08, "{told:?} against {silent:?}");
}
