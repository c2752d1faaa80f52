//! The belief as an operator and a client meet it: what it remembers, what it forgets first, what it costs.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::{Response, get};
use harness::router::{POLICIES, Router, free_addresses, run};
use harness::{Answer, Load, Metrics, Setup, Stub, prompts};
use serde_json::Value;

/// Bytes of a block, and of what stands before the text of a chat of one message: two tags and the role.
const BLOCK: usize = 256;
const BEFORE_TEXT: usize = 6;

/// A chat of exactly `blocks` blocks that shares none with another seed.
fn blocks(seed: u64, blocks: usize) -> String {
    prompts::chat(&prompts::text(seed, blocks * BLOCK - BEFORE_TEXT))
}

async fn pair(yaml: &str) -> (Stub, Stub, Router) {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let router = Setup::of(&[&a, &b]).pool(yaml).start().await;
    (a, b, router)
}

/// Sends while one endpoint looks idle and the other busy; it must go to the idle one.
async fn send_to(router: &Router, idle: (&str, &Stub), busy: (&str, &Stub), body: &str) -> Response {
    idle.1.load(Load::IDLE);
    busy.1.load(Load::waiting(50.0));
    router.sees(idle.0, "waiting", 0).await;
    router.sees(busy.0, "waiting", 50).await;
    let response = router.chat(body).await;
    assert_eq!(response.endpoint(), idle.0, "{response:?}");
    response
}

// D10
#[tokio::test]
async fn one_block_more_costs_a_prompt_its_tail_and_not_its_head() {
    let (a, b, router) = pair("index: {capacity_blocks: 64}").await;
    let known = blocks(1, 64);
    let first = send_to(&router, ("a", &a), ("b", &b), &known).await;
    assert_eq!(first.matched(), (0, 64), "exactly the capacity");
    send_to(&router, ("a", &a), ("b", &b), &blocks(2, 1)).await;
    b.load(Load::IDLE);
    router.sees("b", "waiting", 0).await;
    let again = router.chat(&known).await;
    assert_eq!(again.endpoint(), "a");
    assert!(again.matched().0 >= 62, "{:?}", again.matched());
}

// D10
#[tokio::test]
async fn a_prompt_longer_than_the_capacity_is_remembered_up_to_it() {
    let (_a, _b, router) = pair("index: {capacity_blocks: 64}").await;
    let long = blocks(3, 200);
    let first = router.chat(&long).await;
    let second = router.chat(&long).await;
    assert_eq!((first.matched(), second.matched()), ((0, 200), (64, 200)));
    assert_eq!(first.endpoint(), second.endpoint());
}

/// The capacities at the edge: one block, and more than there is memory for.
#[tokio::test]
async fn one_block_of_belief_is_enough_to_serve() {
    let (_a, _b, router) = pair("index: {capacity_blocks: 1}").await;
    let first = router.chat(&blocks(4, 3)).await;
    let second = router.chat(&blocks(4, 3)).await;
    assert_eq!((first.matched(), second.matched()), ((0, 3), (1, 3)));
}

#[tokio::test]
async fn an_index_that_cannot_fit_the_machine_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let [listen, admin] = free_addresses();
    let rows: String = (0..1024)
        .map(|number| {
            format!("    - {{name: e{number}, url: \"http://10.0.{}.{}:80\"}}\n", number / 256, number % 256)
        })
        .collect();
    let text = format!(
        "listeners:\n  - address: {listen}\nadmin: {admin}\npools:\n  - endpoints:\n{rows}    index: {{capacity_blocks: 67108863}}\n"
    );
    std::fs::write(&file, text).unwrap();
    let run = run(&["serve", "--config", file.to_str().unwrap()]).await;
    assert_eq!(run.code, 2, "{}", run.stderr);
    for part in [
        "pools[0].index.capacity_blocks: found 67108863",
        "1024 endpoints",
        "bytes of memory, wanted at most",
    ] {
        assert!(run.stderr.contains(part), "{part} in {}", run.stderr);
    }
    assert!(std::net::TcpListener::bind(listen).is_ok(), "nothing was left behind");
}

fn figure(metrics: &str, name: &str) -> f64 {
    let line =
        metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

// D11
#[tokio::test]
async fn a_flood_of_unique_prompts_stays_within_what_was_announced() {
    let (_a, _b, router) = pair("index: {capacity_blocks: 3000}").await;
    let announced = router
        .output()
        .lines()
        .find_map(|line| serde_json::from_str::<Value>(line).ok()?["index_bytes_max"].as_u64());
    let announced = announced.unwrap();
    assert!(announced <= 2 * (3000 * 24 + 400_000), "{announced}");
    let send = async |numbers: std::ops::Range<u64>| {
        for number in numbers {
            assert_eq!(router.chat(&blocks(number, 32)).await.status(), 200);
        }
    };
    send(0..1_000).await;
    let before = router.resident_bytes();
    send(1_000..4_000).await;
    let after = router.resident_bytes();
    // A slope of 1 % per 10,000 requests, and what the allocator makes of it.
    assert!(after < before + before / 50 + (1 << 20), "{before} bytes grew to {after}");
    let state = router.state().await;
    let index = &state["index"];
    assert_eq!(index["bytes_max"], announced);
    assert!(index["bytes"].as_u64().unwrap() <= announced, "{index}");
    assert_eq!(index["blocks"], 2 * 3000);
    let metrics = router.metrics().await;
    assert_eq!(figure(&metrics, "prefixroute_index_bytes_max "), announced as f64);
    let blocks: f64 = ["a", "b"]
        .map(|name| figure(&metrics, &format!("prefixroute_index_blocks{{endpoint=\"{name}\"")))
        .iter()
        .sum();
    let evicted: f64 = ["a", "b"]
        .map(|name| figure(&metrics, &format!("prefixroute_index_evictions_total{{endpoint=\"{name}\"")))
        .iter()
        .sum();
    assert_eq!(blocks + evicted, 4_000.0 * 32.0, "each block is held or was evicted");
    assert_eq!(evicted, index["evictions"].as_f64().unwrap());
}

fn page(cache: &str, started: u32) -> Metrics {
    let load = Load::IDLE.page();
    Metrics::Page(format!(
        "{load}vllm:cache_config_info{{{cache}}} 1\nprocess_start_time_seconds {started}\n"
    ))
}

// D12, part 1: a physical block of 4,096 tokens is nothing to route by.
#[tokio::test]
async fn a_huge_block_size_leaves_affinity_alone() {
    for policy in POLICIES {
        let (a, b, router) = pair(&format!("policy: {policy}")).await;
        for stub in [&a, &b] {
            stub.metrics(page(r#"block_size="4096",num_gpu_blocks="500",prefix_match_unit="32""#, 1));
        }
        router.sees("a", "block_size", 4096).await;
        router.sees("b", "block_size", 4096).await;
        let shared = prompts::text(1, 800 * 4);
        for number in 0..20 {
            router.chat(prompts::chat(&format!("{shared}{}", prompts::text(100 + number, 100 * 4)))).await;
        }
        let most = a.count().max(b.count());
        assert!(most >= 18, "{} and {}", a.count(), b.count());
    }
}

// D12, part 2
#[tokio::test]
async fn a_restart_with_another_block_size_concerns_that_replica_alone() {
    for policy in POLICIES {
        let (a, b, router) = pair(&format!("policy: {policy}")).await;
        let cache = |size: u32| format!(r#"block_size="{size}",num_gpu_blocks="1000""#);
        for stub in [&a, &b] {
            stub.metrics(page(&cache(16), 1));
        }
        router.sees("a", "block_size", 16).await;
        router.sees("b", "block_size", 16).await;
        let mut sent = Vec::new();
        for number in 0..8 {
            let body = blocks(number, 20);
            sent.push((router.chat(&body).await.endpoint(), body));
        }
        a.metrics(page(&cache(64), 100));
        router.sees("a", "block_size", 64).await;
        router.sees("a", "index_blocks", 0).await;
        for (endpoint, body) in sent {
            let explained = router.explain(&body).await.json();
            let wanted = if endpoint == "a" { "0/20" } else { "20/20" };
            assert_eq!(explained["match"], wanted, "{endpoint} {explained}");
        }
        let warming = send_to_a(&router, &a, &b).await;
        assert_eq!(router.chat(&warming).await.matched(), (20, 20));
    }
}

async fn send_to_a(router: &Router, a: &Stub, b: &Stub) -> String {
    let body = blocks(99, 20);
    b.load(Load::waiting(50.0));
    router.sees("b", "waiting", 50).await;
    assert_eq!(router.chat(&body).await.endpoint(), "a");
    assert!(a.count() > 0);
    body
}

// D12, part 3
#[tokio::test]
async fn block_sizes_that_cannot_be_leave_the_default() {
    let (a, _b, router) = pair("index: {capacity_blocks: 777}").await;
    for (place, size) in ["None", "0", "-1", "abc", ""].into_iter().enumerate() {
        let cache = if size.is_empty() {
            "x=\"1\"".to_owned()
        } else {
            format!(r#"block_size="{size}",num_gpu_blocks="{size}""#)
        };
        a.metrics(page(&cache, 100 * (1 + place as u32)));
        let ok = router.endpoint("a").await["scrapes"]["ok"].as_u64().unwrap();
        router
            .until_state("two more scrapes", |state| {
                let row = harness::router::row(state, "a")?;
                (row["scrapes"]["ok"].as_u64()? > ok + 1).then_some(())
            })
            .await;
        assert_eq!(router.endpoint("a").await["index_capacity_blocks"], 777, "{size}");
        let body = blocks(50 + place as u64, 4);
        let first = router.chat(&body).await;
        assert_eq!((first.status(), router.chat(&body).await.matched()), (200, (4, 4)), "{size}");
    }
    assert_eq!(harness::client::exchange(router.admin, get("/healthz")).await.status(), 200);
}

/// A system prompt that comes again is known by its bytes; what is decided stays the same.
#[tokio::test]
async fn a_beginning_that_comes_again_is_known() {
    let (_a, _b, router) = pair("").await;
    let system = prompts::text(1, 20_000);
    let asked = |question: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}]}}"#
        )
    };
    let mut matched = Vec::new();
    for question in ["one", "two", "three", "four"] {
        matched.push(router.chat(asked(question)).await.matched());
    }
    assert_eq!(matched, [(0, 79), (78, 79), (78, 79), (78, 79)]);
    let metrics = router.metrics().await;
    let count =
        |outcome: &str| figure(&metrics, &format!("prefixroute_memo_lookups_total{{outcome=\"{outcome}\""));
    assert_eq!((count("hit"), count("miss")), (2.0, 2.0), "kept when it came twice");
    assert!(figure(&metrics, "prefixroute_memo_bytes ") > 20_000.0);
    assert_eq!(router.state().await["memo"]["hits"], 2);
}

/// A prompt that the engine refuses pushes nothing out that it holds.
#[tokio::test]
async fn a_refused_prompt_costs_the_others_nothing() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).pool("index: {capacity_blocks: 1000}").start().await;
    for seed in 0..20 {
        assert_eq!(router.chat(blocks(seed, 40)).await.status(), 200);
    }
    stub.always(Answer::json(
        400,
        r#"{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}"#,
    ));
    assert_eq!(router.chat(blocks(100, 900)).await.status(), 400);
    for seed in 0..20 {
        assert_eq!(router.explain(&blocks(seed, 40)).await.json()["match"], "40/40");
    }
    stub.always(Answer::json(200, "{}"));
    assert_eq!(router.chat(blocks(101, 900)).await.status(), 200);
    assert_eq!(
        router.explain(&blocks(101, 900)).await.json()["match"],
        "900/900",
        "one that is answered is believed"
    );
}

/// The configured capacity is the operator's; the bound on what an engine may claim is not for it.
#[tokio::test]
async fn a_large_capacity_outlives_the_first_scrape() {
    let (_a, _b, router) = pair("index: {capacity_blocks: 2000000}").await;
    for name in ["a", "b"] {
        router.sees(name, "index_capacity_blocks", 2_000_000).await;
        assert!(router.endpoint(name).await["scrapes"]["ok"].as_u64() > Some(0));
    }
}
