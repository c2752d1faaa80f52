//! The demo through a router of a few lines, and the load sender against fake servers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod small_router;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bench::demo::{self, DemoArgs};
use bench::engine::{ReplicaOptions, Seconds, Timing};
use bench::fake_server::{FakeServer, FakeServerOptions};
use bench::replay::body::Edits;
use bench::replay::counters::Counters;
use bench::replay::servers::{Server, Watch};
use bench::replay::{self, Pace, Plan, Record, Target, report};
use bench::trace::{TraceOptions, TraceRequest, file, generate};
use small_router::SmallRouter;

fn args() -> DemoArgs {
    DemoArgs { hold: false, requests: 64, rate: 40.0, seed: 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_ends_in_the_published_table() {
    let mut out = Vec::new();
    let router = SmallRouter::default();
    let run = demo::run(args(), &router, &mut out);
    tokio::time::timeout(Duration::from_secs(60), run).await.unwrap().unwrap();
    let story = String::from_utf8(out).unwrap();
    let line = |policy: &str| {
        let line = story.lines().find(|line| line.starts_with(policy)).unwrap_or_else(|| panic!("{story}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // policy, rate, %, p50, ms, p95, ms, three counts, groups
    let prefix = line("prefix ");
    assert_eq!((prefix[1].as_str(), prefix[10].as_str()), ("76.0", "8/8"), "{story}");
    assert_eq!(prefix[7..10], ["24", "24", "16"], "{story}");
    let round_robin = line("round-robin ");
    assert!(round_robin[1].parse::<f64>().unwrap() < 50.0, "{story}");
    assert_eq!(round_robin[7..10], ["22", "21", "21"], "{story}");
    let p50 = |line: &[String]| line[3].parse::<f64>().unwrap();
    assert!(p50(&prefix) >= 34.0 && p50(&prefix) < p50(&round_robin), "{story}");
}

#[tokio::test]
async fn a_router_that_fails_ends_the_demo_with_its_reason() {
    let mut out = Vec::new();
    let few = DemoArgs { requests: 5, ..args() };
    let error = demo::run(few, &SmallRouter { broken: true }, &mut out).await.unwrap_err().to_string();
    let want = "policy round-robin: 5 of 5 requests failed, the first: status 502 Bad Gateway";
    assert_eq!(error, want);
    let error = demo::run(DemoArgs { rate: -1.0, ..args() }, &SmallRouter::default(), &mut out).await;
    assert_eq!(error.unwrap_err().to_string(), "rate: found -1, wanted 0 or more");
}

fn fast() -> FakeServerOptions {
    let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 1e9 };
    FakeServerOptions {
        replica: ReplicaOptions { timing, cache_blocks: 1024, ..ReplicaOptions::default() },
        ..FakeServerOptions::default()
    }
}

/// Records of a trace that is sent at its times.
async fn sent(trace: Vec<TraceRequest>, url: &str, stream: bool) -> Vec<Record> {
    let plan = Plan::of_bodies(trace, Edits { stream, ..Edits::default() });
    let pace = Pace::Open { speed: 1.0, in_flight_max: 512 };
    replay::collect(&Arc::new(plan), &Arc::new(Target::of(url)), pace, &|_| {}).await.unwrap()
}

#[tokio::test]
async fn usage_and_counters_agree_on_what_was_cached() {
    let server = FakeServer::start(fast()).await.unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/seed/traces/default.jsonl");
    let trace = file::read(&path).unwrap();
    let client = replay::client().unwrap();
    let servers = [Server { name: "a".to_owned(), url: server.url() }];
    for (stream, hits) in [(true, 10_752), (false, 64 * 208)] {
        let watch = Watch::begin(&client, &servers).await;
        let records = sent(trace.clone(), &server.url(), stream).await;
        assert_eq!(report::failures(&records), None);
        let wait = Duration::from_secs(10);
        let counted = watch.end(Some(14_144.0), wait).await.every().unwrap();
        let want = Counters { query_tokens: 14_144.0, hit_tokens: f64::from(hits) };
        assert_eq!(counted, [want], "stream {stream}");
        let cached: u64 = records.iter().filter_map(|record| record.cached_tokens).sum();
        assert_eq!(cached, hits as u64, "stream {stream}");
        assert!(records.iter().all(|record| record.prompt_tokens == Some(221)));
        assert!(
            records.iter().all(|record| record.ttft.is_some() == stream),
            "who is answered whole sees no first token"
        );
    }
}

#[tokio::test]
async fn what_was_never_counted_is_said_and_a_dead_address_is_a_failure() {
    let server = FakeServer::start(fast()).await.unwrap();
    let client = replay::client().unwrap();
    let servers = [Server { name: "a".to_owned(), url: server.url() }];
    let watch = Watch::begin(&client, &servers).await;
    let error = watch.end(Some(1.0), Duration::ZERO).await.every().unwrap_err().to_string();
    assert!(
        error.starts_with("after 0ns the servers have counted 0 prompt tokens, wanted the 1 of"),
        "{error}"
    );

    let url = server.url();
    server.stop().await;
    let trace = generate(&TraceOptions { requests: 3, rate: 0.0, ..TraceOptions::default() }).unwrap();
    let records = sent(trace, &url, true).await;
    assert_eq!(report::failures(&records).unwrap().0, 3);
}
