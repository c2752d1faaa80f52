//! What replicas say about their load, and what may be concluded when they say little, nothing or too much.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::fixtures;
use harness::router::{POLICIES, Router, row, run};
use harness::wait::pace;
use harness::{DEADLINE, Load, Metrics, Setup, Stub, prompts, until};
use serde_json::Value;
use std::time::{Duration, Instant};

async fn stubs<const COUNT: usize>() -> [Stub; COUNT] {
    let mut stubs = Vec::new();
    for _ in 0..COUNT {
        stubs.push(Stub::start().await);
    }
    stubs.try_into().ok().expect("as many as asked for")
}

/// Sends cold prompts one at a time; how many reached each stub.
async fn spread<const COUNT: usize>(router: &Router, stubs: &[Stub; COUNT], requests: u64) -> [usize; COUNT] {
    let before = stubs.each_ref().map(Stub::count);
    let used: usize = before.iter().sum();
    for seed in 0..requests {
        let response = router.chat(prompts::cold(used as u64 + seed)).await;
        assert_eq!(response.status(), 200, "{response:?}");
    }
    std::array::from_fn(|index| stubs[index].count() - before[index])
}

/// A page with two engines, in this order of lines.
fn two_engines(swap: bool) -> Metrics {
    let gauges = [
        ("num_requests_waiting", "0", "40"),
        ("num_requests_running", "10", "60"),
        ("kv_cache_usage_perc", "0.05", "0.98"),
    ];
    let lines = gauges.map(|(name, first, second)| {
        let line = |engine: u8, value: &str| {
            format!("vllm:{name}{{engine=\"{engine}\",model_name=\"m\"}} {value}\n")
        };
        if swap { line(1, second) + &line(0, first) } else { line(0, first) + &line(1, second) }
    });
    Metrics::Page(lines.concat())
}

// D14
#[tokio::test]
async fn engines_behind_one_page_are_added() {
    for policy in POLICIES {
        for swap in [false, true] {
            let replicas: [Stub; 2] = stubs().await;
            replicas[0].metrics(two_engines(swap));
            replicas[1].load(Load { waiting: 5.0, running: 20.0, kv: 0.40 });
            let router = Setup::of(&[&replicas[0], &replicas[1]]).policy(policy).start().await;
            router.sees("a", "waiting", 40).await;
            router.sees("a", "running", 70).await;
            let [_, b] = spread(&router, &replicas, 60).await;
            assert!(b >= 55, "swapped {swap}: {b} of 60 went to the less loaded replica");
        }
    }
}

fn pages_that_tell_nothing() -> [(&'static str, Metrics); 4] {
    [
        ("another engine", Metrics::Page("sglang:num_queue_reqs{model_name=\"m\"} 80\n".into())),
        ("HTML", Metrics::Page("<html><body>\n<p>metrics 1</p>\n</body></html>\n".into())),
        ("empty", Metrics::Page(String::new())),
        ("cut", Metrics::Page("vllm:num_requests_waiting{engine=\"0\",model_na".into())),
    ]
}

// D15
#[tokio::test]
async fn a_page_without_known_names_is_not_idle() {
    for policy in POLICIES {
        for (shows, page) in pages_that_tell_nothing() {
            let replicas: [Stub; 2] = stubs().await;
            replicas[0].metrics(page);
            replicas[1].load(Load::waiting(1.0));
            let router = Setup::of(&[&replicas[0], &replicas[1]]).policy(policy).start().await;
            router.sees("b", "waiting", 1).await;
            let a = router.endpoint("a").await;
            assert_eq!((&a["waiting"], &a["kv_usage"]), (&Value::Null, &Value::Null), "{shows}: {a}");
            let [_, b] = spread(&router, &replicas, 60).await;
            assert!(b >= 30, "{shows}: {b} of 60 went to the measured replica");
        }
    }
}

// D15
#[tokio::test]
async fn a_page_without_known_names_is_warned_of_once() {
    let replicas: [Stub; 1] = stubs().await;
    replicas[0].metrics(Metrics::Page("sglang:num_queue_reqs 80\n".into()));
    let router = Setup::of(&[&replicas[0]]).start().await;
    replicas[0].scrapes(10).await;
    let warnings = router.output().lines().filter(|line| line.to_lowercase().contains("warn")).count();
    assert!((1..=2).contains(&warnings), "{warnings} warnings in ten scrapes:\n{}", router.output());
}

fn gauges(lines: &[(&str, f64)]) -> Metrics {
    let line =
        |(name, value): &(&str, f64)| format!("vllm:{name}{{engine=\"0\",model_name=\"m\"}} {value}\n");
    Metrics::Page(lines.iter().map(line).collect())
}

const WAITING: (&str, f64) = ("num_requests_waiting", 0.0);
const RUNNING: (&str, f64) = ("num_requests_running", 0.0);

// D16
#[tokio::test]
async fn renamed_and_missing_gauges_are_neither_idle_nor_fatal() {
    for policy in POLICIES {
        let replicas: [Stub; 4] = stubs().await;
        replicas[0].metrics(gauges(&[WAITING, RUNNING, ("gpu_cache_usage_perc", 0.97)]));
        replicas[1].metrics(gauges(&[WAITING, RUNNING, ("kv_cache_usage_perc", 0.10)]));
        let both = [("gpu_cache_usage_perc", 0.0), ("kv_cache_usage_perc", 0.90)];
        replicas[2].metrics(gauges(&[WAITING, RUNNING, both[0], both[1]]));
        let without_waiting = [RUNNING, ("kv_cache_usage_perc", 0.10)];
        replicas[3].metrics(gauges(&without_waiting));
        let router =
            Setup::of(&[&replicas[0], &replicas[1], &replicas[2], &replicas[3]]).policy(policy).start().await;
        router.sees("a", "kv_usage", 0.97).await;
        router.sees("c", "kv_usage", 0.90).await;
        router.sees("d", "kv_usage", 0.10).await;
        let d = router.endpoint("d").await;
        assert_eq!((&d["waiting"], &d["usable"]), (&Value::Null, &Value::Bool(true)), "{d}");
        let [a, b, c, _] = spread(&router, &replicas, 80).await;
        assert!(a + c < b, "full replicas got {a} and {c}, the empty one {b}");
        replicas[3].metrics(gauges(&[("num_requests_waiting", 3.0), without_waiting[0], without_waiting[1]]));
        router.sees("d", "waiting", 3).await;
    }
}

/// Scrapes that fail soon and figures that age soon.
const HASTY: &str = "load:\n  scrape_interval: 100ms\n  scrape_timeout: 50ms\n  stale_after: 200ms\n";

async fn scrapes_failed(router: &Router, name: &str, times: u64) {
    let failed =
        |state: &Value| row(state, name)?["scrapes"]["failed"].as_u64().filter(|&failed| failed >= times);
    router.until_state(&format!("{times} failed scrapes of {name}"), failed).await;
}

async fn served_promptly(router: &Router, requests: u64) {
    for seed in 0..requests {
        let started = Instant::now();
        let response = router.chat(prompts::cold(seed)).await;
        assert_eq!(response.status(), 200, "{response:?}");
        let taken = started.elapsed();
        assert!(taken < Duration::from_millis(250), "request {seed} took {taken:?}");
    }
}

// D19
#[tokio::test]
async fn a_lone_replica_whose_scrapes_hang_is_served_all_the_same() {
    for policy in POLICIES {
        let replicas: [Stub; 1] = stubs().await;
        let router = Setup::of(&[&replicas[0]]).pool(HASTY).policy(policy).start().await;
        replicas[0].metrics(Metrics::Hang);
        scrapes_failed(&router, "a", 4).await;
        served_promptly(&router, 20).await;
    }
}

// D19
#[tokio::test]
async fn a_fleet_whose_scrapes_all_fail_is_served_all_the_same() {
    for policy in POLICIES {
        for metrics in [
            Metrics::Hang,
            Metrics::Close,
            Metrics::Raw("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".into()),
        ] {
            let replicas: [Stub; 3] = stubs().await;
            replicas.iter().for_each(|stub| stub.metrics(metrics.clone()));
            let router = Setup::of(&[&replicas[0], &replicas[1], &replicas[2]])
                .pool(HASTY)
                .policy(policy)
                .start()
                .await;
            for name in ["a", "b", "c"] {
                scrapes_failed(&router, name, 4).await;
            }
            served_promptly(&router, 20).await;
            let counts = replicas.each_ref().map(Stub::count);
            assert!(counts.iter().all(|&count| count > 0), "{metrics:?}: not all were tried: {counts:?}");
        }
    }
}

// D19
#[tokio::test]
async fn one_replica_whose_scrapes_fail_gets_less_and_comes_back() {
    for policy in POLICIES {
        let replicas: [Stub; 3] = stubs().await;
        let router =
            Setup::of(&[&replicas[0], &replicas[1], &replicas[2]]).pool(HASTY).policy(policy).start().await;
        replicas[0].metrics(Metrics::Hang);
        scrapes_failed(&router, "a", 4).await;
        let [a, b, c] = spread(&router, &replicas, 30).await;
        assert!(a < b && a < c, "the unknown replica got {a}, the others {b} and {c}");
        replicas[0].load(Load::IDLE);
        router.sees("a", "usable", true).await;
        router.sees("a", "waiting", 0).await;
        let [a, ..] = spread(&router, &replicas, 30).await;
        assert!(a > 0, "the replica whose scrapes came back gets nothing");
    }
}

// D19
#[tokio::test]
async fn figures_that_are_stale_before_the_next_scrape_are_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let text = "pools:\n- load:\n    scrape_interval: 15s\n    stale_after: 200ms\n";
    std::fs::write(&file, text).unwrap();
    let run = run(&["serve", "--config", file.to_str().unwrap()]).await;
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("stale_after"), "{run:?}");
}

/// Flips D's page and measures how long until the router knows.
async fn flip(router: &Router, d: &Stub, waiting: f64) -> Duration {
    d.load(Load::waiting(waiting));
    let flipped = Instant::now();
    router.sees("d", "waiting", waiting).await;
    flipped.elapsed()
}

// D20, scaled to 100 ms and a few seconds.
#[tokio::test]
async fn slow_hanging_and_huge_pages_do_not_blind_the_others() {
    let replicas: [Stub; 4] = stubs().await;
    let [a, b, c, d] = &replicas;
    a.metrics(Metrics::Trickle(Load::IDLE.page()));
    b.metrics(Metrics::HangAfterHead);
    c.metrics(Metrics::Huge(64 << 20));
    let router = Setup::of(&[a, b, c, d]).start().await;
    flip(&router, d, 50.0).await;
    scrapes_failed(&router, "c", 5).await;
    let before = router.resident_bytes();
    for round in 0..8 {
        let taken = flip(&router, d, if round % 2 == 0 { 0.0 } else { 50.0 }).await;
        assert!(taken < Duration::from_millis(500), "a change showed after {taken:?}");
        served_promptly(&router, 5).await;
        pace(Duration::from_millis(300)).await;
    }
    let grown = router.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "resident memory grew by {} MiB", grown >> 20);
    for (name, stub) in [("a", a), ("b", b), ("c", c)] {
        // A scrape that was given up may be seen to end just after the next began.
        let most = stub.seen(|seen| seen.scraping.1);
        assert!(most <= 2, "{most} scrapes of {name} at once");
    }
    let last_error = router.endpoint("c").await["last_error"].clone();
    assert!(last_error.is_string(), "a page over the limit is a failed scrape: {last_error}");
}

/// Legal but awkward Prometheus text, with the figures it stands for.
#[tokio::test]
async fn awkward_pages_read_right() {
    let cases: Value = serde_json::from_slice(&fixtures::bytes("seed/http.json")).unwrap();
    let replicas: [Stub; 1] = stubs().await;
    let router = Setup::of(&[&replicas[0]]).start().await;
    for case in cases["metrics_parse"].as_array().unwrap() {
        let figures = ["waiting", "running", "kv_usage", "block_size", "num_gpu_blocks"];
        let wanted = figures.map(|figure| (figure, case["want"][figure].clone()));
        replicas[0].metrics(Metrics::Page(case["text"].as_str().unwrap().to_owned()));
        for (figure, value) in wanted.iter().filter(|(_, value)| !value.is_null()) {
            router.sees("a", figure, value.clone()).await;
        }
    }
}

/// Labels with quotes, commas and braces; timestamps; exponents; a name that is a prefix of another.
#[tokio::test]
async fn every_legal_way_to_write_a_sample_reads_right() {
    let replicas: [Stub; 1] = stubs().await;
    let router = Setup::of(&[&replicas[0]]).start().await;
    let name = "vllm:num_requests_waiting";
    for (text, wanted) in [
        (format!("{name}{{a=\"x,}}\\\"\\\\{{\",b=\"2\"}} 11\n"), 11.0),
        (format!("{name} 12 1700000000000\n"), 12.0),
        (format!("{name}{{engine=\"0\"}} 1.3e1 1700000000000\n"), 13.0),
        (format!("{name}_by_reason{{r=\"capacity\"}} 99\n{name} 14\n{name}_total 98\n"), 14.0),
        (format!("  \t{name}  \t15\r\n"), 15.0),
        (format!("{name} +16\n# {name} 97\n#{name} 96\n"), 16.0),
        (format!("{name}{{engine=\"0\",}} 17\n"), 17.0),
        (format!("{name} 18"), 18.0),
    ] {
        replicas[0].metrics(Metrics::Page(text));
        router.sees("a", "waiting", wanted).await;
    }
}

#[tokio::test]
async fn recorded_pages_of_a_real_engine_read_right() {
    let replicas: [Stub; 1] = stubs().await;
    replicas[0].metrics(Metrics::Raw(fixtures::bytes("vllm/metrics/loaded.response.http").into()));
    let router = Setup::of(&[&replicas[0]]).start().await;
    for (figure, value) in [("waiting", 8), ("running", 4), ("block_size", 32), ("num_gpu_blocks", 128)] {
        router.sees("a", figure, value).await;
    }
    replicas[0].metrics(Metrics::Raw(fixtures::bytes("vllm/metrics/idle.response.http").into()));
    for (figure, value) in [("waiting", 0), ("running", 0), ("kv_usage", 0)] {
        router.sees("a", figure, value).await;
    }
}

// Behaviour 61
#[tokio::test]
async fn an_endpoint_that_refuses_is_skipped_until_it_answers_again() {
    for policy in POLICIES {
        let replicas: [Stub; 2] = stubs().await;
        let router = Setup::of(&[&replicas[0], &replicas[1]]).policy(policy).start().await;
        replicas[0].refuse().await;
        router.sees("a", "usable", false).await;
        let [a, b] = spread(&router, &replicas, 10).await;
        assert_eq!((a, b), (0, 10));
        replicas[0].accept_again().await;
        router.sees("a", "usable", true).await;
        replicas[1].load(Load::waiting(50.0));
        router.sees("b", "waiting", 50).await;
        let [a, _] = spread(&router, &replicas, 10).await;
        assert_eq!(a, 10);
    }
}

/// Load shown by the state has its age, and the age does not stand still when scrapes stop.
#[tokio::test]
async fn figures_carry_their_age() {
    let replicas: [Stub; 1] = stubs().await;
    let router = Setup::of(&[&replicas[0]]).start().await;
    let age = |state: &Value| row(state, "a")?["age_ms"].as_f64();
    let fresh = router.until_state("a fresh figure", age).await;
    assert!(fresh < 5000.0, "{fresh} ms");
    replicas[0].metrics(Metrics::Close);
    let older = |state: &Value| age(state).is_none_or(|now| now > fresh + 500.0).then_some(());
    until("an ageing figure", DEADLINE, || async { older(&router.state().await) }).await;
}
