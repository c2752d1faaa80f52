//! Replicas that look well and are not: what they answer goes before what they say of themselves, and they come back by
//! themselves.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::{POLICIES, Router};
use harness::script::{chunk, last_chunk};
use harness::{Answer, Client, Load, Setup, Signal, Step, Stub, post, prompts, until};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const PATH: &str = "/v1/chat/completions";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

fn whole() -> Answer {
    Answer::json(200, "{}")
}

fn streamed(seed: u64) -> String {
    prompts::with(&prompts::cold(seed), r#","stream":true"#)
}

/// A prompt that begins like others of its `family`.
fn of(family: u64, tail: u64) -> String {
    prompts::chat(&(prompts::text(family, 4096) + &prompts::text(tail, 300)))
}

/// Families of prompts, three requests old, that are at home at this endpoint.
async fn families_at(router: &Router, name: &str, from: u64) -> Vec<u64> {
    let mut found = Vec::new();
    for family in from..from + 60 {
        let mut at = String::new();
        for tail in 0..3 {
            at = router.chat(of(family, 1_000 + tail)).await.endpoint();
        }
        if at == name {
            found.push(family);
        }
    }
    assert!(!found.is_empty(), "some prompts at {name}");
    found
}

// D29 (60 requests instead of 300, half a second instead of ten)
#[tokio::test]
async fn one_hung_replica_holds_up_nobody_else() {
    for policy in POLICIES {
        let (a, b) = (Stub::start().await, Stub::start().await);
        let setup = Setup::of(&[&a, &b]).policy(policy).pool("timeouts: {first_byte: 500ms}");
        let router = Arc::new(setup.start().await);
        let (at_a, at_b) = (families_at(&router, "a", 0).await, families_at(&router, "b", 100).await);
        a.always(Answer::steps([Step::Hang]));
        let before = a.count();
        let over = Arc::new(AtomicBool::new(false));
        let others = {
            let (router, over) = (router.clone(), over.clone());
            tokio::spawn(async move {
                let (mut worst, mut count) = (Duration::ZERO, 0);
                while !over.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    let family = at_b[count % at_b.len()];
                    assert_eq!(router.chat(of(family, count as u64)).await.status(), 200);
                    worst = worst.max(started.elapsed());
                    count += 1;
                }
                (worst, count)
            })
        };
        let mut statuses = BTreeMap::<u16, usize>::new();
        for wave in 0..6 {
            let mut sent = JoinSet::new();
            for number in 0..10 {
                let (router, family) = (router.clone(), at_a[number % at_a.len()]);
                sent.spawn(async move { router.chat(of(family, 10 * wave + number as u64)).await.status() });
            }
            for status in sent.join_all().await {
                *statuses.entry(status).or_default() += 1;
            }
        }
        over.store(true, Ordering::Relaxed);
        let (worst, count) = others.await.unwrap();
        assert!(count > 100 && worst < Duration::from_millis(450), "{policy}: {count} others, {worst:?}");
        assert!(statuses.keys().all(|status| [200, 504].contains(status)), "{statuses:?}");
        assert!(statuses[&200] >= 40, "{policy}: {statuses:?}");
        assert!((1..=25).contains(&(a.count() - before)), "{} at the hung one", a.count() - before);
        router.sees("a", "standing", "out").await;
    }
}

// D30 (five seconds instead of sixty; cooldowns in proportion)
#[tokio::test]
async fn a_black_hole_that_looks_idle_gets_next_to_nothing_and_comes_back() {
    let hang = Answer::steps([Step::Hang]);
    for (shows, hole) in [("hangs", hang), ("answers 500", Answer::json(500, r#"{"error":"engine"}"#))] {
        for policy in POLICIES {
            let stubs = [Stub::start().await, Stub::start().await, Stub::start().await];
            let router = Arc::new(
                Setup::of(&stubs.each_ref())
                    .policy(policy)
                    .pool("timeouts: {first_byte: 400ms}\nhealth: {cooldown: 500ms, cooldown_max: 2s}")
                    .start()
                    .await,
            );
            let [a, b, c] = &stubs;
            let warm = families_at(&router, "a", 0).await;
            a.load(Load { waiting: 0.0, running: 0.0, kv: 0.0 });
            [b, c].iter().for_each(|stub| stub.load(Load::waiting(3.0)));
            router.sees("c", "waiting", 3).await;
            a.always(hole.clone());
            let (mut late, mut failed_late, mut late_at_a) = (0, 0, 0);
            let mut sent = JoinSet::new();
            for number in 0..250 {
                let body = match number % 5 {
                    0 => of(warm[number as usize % warm.len()], 5_000 + number),
                    _ => prompts::cold(10_000 + number),
                };
                let router = router.clone();
                if number == 125 {
                    late_at_a = a.count();
                }
                sent.spawn(async move { (number, router.chat(body).await.status()) });
                harness::wait::pace(Duration::from_millis(20)).await;
            }
            let share = a.count() - late_at_a;
            for (number, status) in sent.join_all().await {
                if number >= 125 {
                    late += 1;
                    failed_late += usize::from(status != 200);
                }
            }
            assert!(late == 125 && failed_late <= 6, "{shows}, {policy}: {failed_late} of {late}");
            assert!(share <= 6, "{shows}, {policy}: {share} of {late} at the hole");
            a.always(whole());
            let healed = Instant::now();
            let serves = || async { (router.chat(prompts::cold(0)).await.endpoint() == "a").then_some(()) };
            until("a healed replica to be asked", Duration::from_secs(5), serves).await;
            router.sees("a", "standing", "free").await;
            assert!(healed.elapsed() < Duration::from_secs(4), "within the longest cooldown");
        }
    }
}

/// vLLM, paused, answers its pages, accepts streams and computes nothing. (Alone it is asked all the same.)
#[tokio::test]
async fn a_replica_without_first_tokens_is_left_out_until_one_comes() {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let setup = Setup::of(&[&a, &b])
        .pool("policy: prefix-only\nhealth: {stall: 500ms, cooldown: 1h, cooldown_max: 1h}");
    let router = setup.start().await;
    let at_a = families_at(&router, "a", 0).await[0];
    let go = Signal::default();
    let paused = Answer::stream([Step::Wait(go.clone()), chunk(EVENT), last_chunk()]);
    a.always(paused);
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, prompts::with(&of(at_a, 1), r#","stream":true"#))).await;
    client.head().await;
    router.sees("a", "standing", "out").await;
    for tail in 10..20 {
        assert_eq!(router.chat(of(at_a, tail)).await.endpoint(), "b", "in spite of belief");
    }
    go.fire_all();
    router.sees("a", "standing", "free").await;
}

#[tokio::test]
async fn a_replica_is_left_out_while_its_health_path_says_so() {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let well = Arc::new(AtomicBool::new(true));
    let says = well.clone();
    let script = move |request: &harness::log::Received| {
        let is_well = says.load(Ordering::Relaxed) || request.head.target() != "/health?deep=1";
        Answer::json(if is_well { 200 } else { 503 }, "{}")
    };
    a.script(script);
    let setup = Setup::of(&[&a, &b]).pool("health: {path: \"/health?deep=1\", interval: 100ms}");
    let router = setup.start().await;
    for _ in 0..2 {
        well.store(false, Ordering::Relaxed);
        router.sees("a", "standing", "out").await;
        for seed in 0..10 {
            assert_eq!(router.chat(prompts::cold(seed)).await.endpoint(), "b");
        }
        well.store(true, Ordering::Relaxed);
        router.sees("a", "standing", "free").await;
    }
    well.store(false, Ordering::Relaxed);
    router.sees("a", "standing", "out").await;
    let without = Setup::of(&[&a, &b]);
    router.becomes(&without).await;
    router.sees("a", "standing", "free").await;
}

/// When all are left out, all are tried: a router must not make an outage of doubts.
#[tokio::test]
async fn a_fleet_that_all_looks_bad_is_served_all_the_same() {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let setup = Setup::of(&[&a, &b]).pool("health: {failures: 2, cooldown: 1h, cooldown_max: 1h}");
    let router = setup.start().await;
    [&a, &b].iter().for_each(|stub| stub.always(Answer::json(500, "{}")));
    for seed in 0..20 {
        assert_eq!(router.chat(prompts::cold(seed)).await.status(), 500);
    }
    router.sees("a", "standing", "out").await;
    router.sees("b", "standing", "out").await;
    a.always(whole());
    let served = || async { (router.chat(streamed(99)).await.status() == 200).then_some(()) };
    until("a request that is served", Duration::from_secs(5), served).await;
    router.sees("a", "standing", "free").await;
    router.sees("b", "standing", "out").await;
    for seed in 100..110 {
        assert_eq!(router.chat(prompts::cold(seed)).await.endpoint(), "a");
    }
}

/// Another process at the same address is innocent of what the last one did.
#[tokio::test]
async fn a_restarted_engine_begins_anew() {
    let (a, b) = (Stub::start().await, Stub::start().await);
    let setup = Setup::of(&[&a, &b]).pool("health: {failures: 2, cooldown: 1h, cooldown_max: 1h}");
    let router = setup.start().await;
    let page = |started: u32| {
        harness::Metrics::Page(format!("{}process_start_time_seconds {started}\n", Load::IDLE.page()))
    };
    a.metrics(page(1_000));
    a.scrapes(2).await;
    a.always(Answer::json(500, "{}"));
    let out = || async {
        router.chat(prompts::cold(rand(&a))).await;
        (router.endpoint("a").await["standing"] == "out").then_some(())
    };
    until("a to be left out", Duration::from_secs(5), out).await;
    a.always(whole());
    a.metrics(page(2_000));
    router.sees("a", "standing", "free").await;
}

/// Another number each time.
fn rand(stub: &Stub) -> u64 {
    stub.seen(|seen| 10_000 + seen.scrapes as u64 * 100 + seen.requests.len() as u64)
}
