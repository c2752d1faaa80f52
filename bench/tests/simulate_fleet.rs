//! What befalls a simulated fleet, and what a router knows of it.
#![allow(clippy::unwrap_used, clippy::panic)]

use bench::engine::{EvictionOrder, Link, ReplicaOptions, Seconds, Timing};
use bench::simulate::{Changes, Pacing, Report, Run, SimulateOptions, Split, Workload, play_all};
use bench::trace::hashed::HashedRequest;
use picker::hash::BlockSize;
use picker::policy::Policy;

const BLOCK: usize = 100;

/// Requests of `tokens` each at `rate` a second: of `sessions` sessions in turn, which share half of their prompts.
fn workload(requests: u64, rate: f64, tokens: u32, sessions: u64) -> Workload {
    let blocks = u64::from(tokens) / BLOCK as u64;
    let id = |request: u64, block: u64| {
        let shared = block < blocks / 2;
        if shared { (request % sessions) * 1000 + block } else { 1_000_000 + request * 1000 + block }
    };
    let request = |number: u64| HashedRequest {
        at: Seconds(number as f64 / rate),
        input_tokens: tokens,
        output_tokens: 101,
        hash_ids: (0..blocks).map(|block| id(number, block)).collect(),
        session: Some((number % sessions).to_string()),
    };
    let trace: Vec<HashedRequest> = (0..requests).map(request).collect();
    Workload::of_hashes(&trace, Some(BlockSize::new(BLOCK as i64).unwrap())).unwrap()
}

/// Three replicas of one lane: 12,000 tokens a second, room for 100,000.
fn options() -> SimulateOptions {
    let timing = Timing { prefill_overhead: Seconds(0.005), prefill_tokens_per_second: 12_000.0 };
    let block_size = BlockSize::new(BLOCK as i64).unwrap();
    let eviction = EvictionOrder::TailFirst;
    let replica = ReplicaOptions { cache_blocks: 1000, block_size, eviction, slots: 1, timing };
    SimulateOptions { replica, ..SimulateOptions::default() }
}

fn changes() -> Changes {
    options().changes
}

fn play(workload: &Workload, options: &SimulateOptions, policy: Policy) -> Run {
    play_all(workload, options, &[policy], &|_| ()).unwrap().remove(0)
}

fn error(workload: &Workload, options: &SimulateOptions) -> String {
    play_all(workload, options, &Policy::ALL, &|_| ()).unwrap_err().to_string()
}

#[test]
fn a_lost_replica_leaves_its_requests_to_the_others() {
    let workload = workload(90, 10.0, 4000, 90);
    let changes = Changes { lose_at: Some(Seconds(4.05)), ..changes() };
    let options = SimulateOptions { changes, ..options() };
    for policy in Policy::ALL {
        let run = play(&workload, &options, policy);
        let name = policy.name();
        assert!(run.served.iter().all(|served| served.answer.is_some()), "{name}: all are answered");
        assert!(run.routed().take(41).any(|replica| replica == 2), "{name}: it was there");
        assert!(run.routed().skip(41).all(|replica| replica < 2), "{name}: it is gone");
        assert!(run.lost > 0 && Report::of(&run).lost == run.lost, "{name}");
    }
    let run = play(&workload, &options, Policy::RoundRobin);
    let kept = play(&workload, &self::options(), Policy::RoundRobin);
    let late = run.served.iter().zip(&kept.served).take(41);
    let late: Vec<f64> =
        late.filter(|(lost, kept)| lost.replica != kept.replica).map(|(lost, _)| lost.ttft.0).collect();
    assert_eq!(late.len(), run.lost, "what was in flight went elsewhere");
    // Request 38 came at 3.8 and had no token yet: it began anew at 4.05.
    assert!(run.served[38].ttft.0 > kept.served[38].ttft.0 + 0.2, "{:?}", run.served[38]);
    // Request 32 had its first token; that its stream broke does not change when that came.
    assert_eq!(run.served[32].ttft, kept.served[32].ttft);
    assert_ne!(run.served[32].replica, 2);
}

#[test]
fn an_added_replica_is_used_from_then_on() {
    let workload = workload(90, 10.0, 4000, 6);
    let changes = Changes { add_at: Some(Seconds(4.05)), ..changes() };
    let options = SimulateOptions { changes, ..options() };
    for policy in [Policy::LeastQueue, Policy::RoundRobin, Policy::Random] {
        let run = play(&workload, &options, policy);
        let name = policy.name();
        assert!(run.routed().take(41).all(|replica| replica < 3), "{name}: it is not there yet");
        assert!(run.routed().skip(41).any(|replica| replica == 3), "{name}: nobody uses it");
        assert_eq!((Report::of(&run).requests.len(), run.lost), (4, 0), "{name}");
    }
    let both = Changes { lose_at: Some(Seconds(2.0)), ..changes };
    let run = play(&workload, &SimulateOptions { changes: both, ..options }, Policy::RoundRobin);
    assert!(run.routed().skip(20).all(|replica| replica != 2), "the last of the first three is lost");
    assert!(run.routed().skip(41).any(|replica| replica == 3), "the new one stays");
}

#[test]
fn a_slow_replica_computes_at_its_own_rate() {
    let workload = workload(6, 0.1, 4000, 6);
    let changes = Changes { first_rate: 0.5, ..changes() };
    let run = play(&workload, &SimulateOptions { changes, ..options() }, Policy::RoundRobin);
    let ttfts: Vec<f64> = run.served.iter().map(|served| (served.ttft.millis() * 1e3).round()).collect();
    assert_eq!(ttfts, [671_667.0, 338_333.0, 338_333.0, 671_667.0, 338_333.0, 338_333.0]);
    // Who looks at what is in flight gives it less.
    let busy = self::workload(90, 12.0, 4000, 6);
    let run = play(&busy, &SimulateOptions { changes, ..options() }, Policy::LeastQueue);
    let requests = Report::of(&run).requests;
    assert!(requests[0] < requests[1] && requests[0] < requests[2], "{requests:?}");
}

#[test]
fn old_figures_reach_those_who_look_at_them_only() {
    let workload = workload(300, 20.0, 2000, 30);
    let aged =
        |age, policy| play(&workload, &SimulateOptions { metrics_age: Seconds(age), ..options() }, policy);
    for policy in [Policy::PrefixOnly, Policy::LeastQueue, Policy::RoundRobin, Policy::Random] {
        assert_eq!(aged(0.0, policy), aged(10.0, policy), "{}: needs no scrape", policy.name());
    }
    assert!(!aged(0.0, Policy::Prefix).routed().eq(aged(10.0, Policy::Prefix).routed()));
    assert_eq!(aged(2.0, Policy::Prefix), aged(2.0, Policy::Prefix));
}

#[test]
fn speed_and_bursts_move_arrivals() {
    let slow = workload(60, 10.0, 4000, 6);
    let fast = workload(60, 20.0, 4000, 6);
    let paced = |workload, speed, burst| {
        let pacing = Pacing { speed, burst };
        play(workload, &SimulateOptions { pacing, ..options() }, Policy::RoundRobin)
    };
    let same = |one: &Run, other: &Run| {
        let pairs = one.served.iter().zip(&other.served);
        pairs.into_iter().all(|(one, other)| (one.ttft.0 - other.ttft.0).abs() < 1e-9)
    };
    assert!(same(&paced(&slow, 2.0, 1), &paced(&fast, 1.0, 1)));
    assert!(!same(&paced(&slow, 1.0, 1), &paced(&slow, 2.0, 1)));
    // Bursts of six a second hit each of three lanes twice: the second waits for the first.
    let apart = workload(12, 1.0, 4000, 12);
    let burst = paced(&apart, 1.0, 6);
    let waits: Vec<bool> = burst.served.iter().map(|served| served.wait.0 > 0.3).collect();
    assert_eq!(waits, [[false; 3], [true; 3], [false; 3], [true; 3]].concat());
}

/// Behaviour 50: 4,000-token prompts, nothing cached, the lanes busy for half of the time.
#[test]
fn prefill_apart_from_decode() {
    let workload = workload(120, 4.0, 4000, 120);
    let split = |threshold_tokens, gigabits_per_second| {
        let link = Link::of(gigabits_per_second);
        let split = Split { prefill_replicas: 3, threshold_tokens, link, kv_bytes_per_token: 131_072.0 };
        play(&workload, &SimulateOptions { split: Some(split), ..options() }, Policy::LeastQueue)
    };
    let together = play(&workload, &options(), Policy::LeastQueue);
    assert_eq!(split(0, 10.0), together, "threshold 0 changes nothing");
    assert_eq!(split(4001, 10.0), together, "nor does one that no prompt reaches");
    let (today, fast, slow) =
        (Report::of(&together), Report::of(&split(512, 400.0)), Report::of(&split(512, 10.0)));
    assert!(today.stall_p95_ms > 300.0, "an answer stands still for another's prompt: {today:?}");
    assert_eq!(fast.stall_p95_ms, 0.0, "400 Gb/s: no prompt is computed where answers run");
    assert!(fast.decode_p95_ms < today.decode_p95_ms - 300.0, "400 Gb/s: {fast:?} {today:?}");
    assert_eq!((today.apart, fast.apart, slow.apart), (0, 120, 120));
    assert!(fast.ttft_p95_ms < today.ttft_p95_ms, "{fast:?} {today:?}");
    assert!(slow.ttft_p50_ms > today.ttft_p50_ms + 300.0, "10 Gb/s: the way costs more than the wait");
    // An idle pool: 338.3 ms of computing and 11.0 or 419.9 ms on the way.
    assert!((fast.ttft_p50_ms - 349.3).abs() < 0.1, "{fast:?}");
    assert!((slow.ttft_p50_ms - 758.3).abs() < 0.1, "{slow:?}");
}

/// Behaviour 55: 12.6 Gb/s is what a busy prefill replica makes. Below, the caches queue at its link without end.
#[test]
fn a_link_that_does_not_keep_up_is_seen() {
    let workload = workload(120, 2.9, 4000, 120);
    let last_ttft_ms = |gigabits_per_second| {
        let link = Link::of(gigabits_per_second);
        let split = Split { prefill_replicas: 1, threshold_tokens: 1, link, kv_bytes_per_token: 131_072.0 };
        let run = play(&workload, &SimulateOptions { split: Some(split), ..options() }, Policy::LeastQueue);
        run.served.last().unwrap().ttft.millis()
    };
    let (slow, enough) = (last_ttft_ms(10.0), last_ttft_ms(25.0));
    // 119 caches of 419.4 ms each, one every 344.8 ms, queue 74.6 ms longer each time.
    assert!((slow - 758.3 - 119.0 * 74.6).abs() < 10.0, "{slow}");
    assert!((enough - 506.6).abs() < 0.5, "{enough}");
}

/// What the decode replica holds is neither computed nor moved.
#[test]
fn only_uncached_tokens_are_moved() {
    let workload = workload(2, 0.1, 4000, 1);
    let (link, kv_bytes_per_token) = (Link::of(10.0), 131_072.0);
    let split = Some(Split { prefill_replicas: 1, threshold_tokens: 1, link, kv_bytes_per_token });
    let run = play(&workload, &SimulateOptions { split, ..options() }, Policy::Prefix);
    assert_eq!(run.served[1].cached_tokens, 2000);
    assert!(run.served.iter().all(|served| served.computed_tokens == 0), "others computed all of it");
    let (first, second) = (run.served[0].ttft.millis(), run.served[1].ttft.millis());
    assert!((first - 758.26).abs() < 0.01 && (second - 381.88).abs() < 0.01, "{first} {second}");
}

#[test]
fn fleets_of_every_size() {
    let workload = workload(50, 10.0, 400, 5);
    for replicas in [1, 1_000, 1_024] {
        let options = SimulateOptions { replicas, metrics_age: Seconds(0.1), ..options() };
        for run in play_all(&workload, &options, &Policy::ALL, &|_| ()).unwrap() {
            let report = Report::of(&run);
            assert_eq!(report.requests.iter().sum::<usize>(), 50);
            assert!(report.imbalance >= 1.0 && report.imbalance <= replicas as f64, "{report:?}");
        }
    }
    let added = Changes { add_at: Some(Seconds(1.0)), ..changes() };
    let lost = Changes { lose_at: Some(Seconds(1.0)), ..changes() };
    for (replicas, changes, want) in [
        (0, changes(), "replicas: found 0, wanted 1 to 1024"),
        (1_025, changes(), "replicas: found 1025, wanted 1 to 1024"),
        (1_024, added, "replicas: found 1024, wanted 1 to 1024"),
        (1, lost, "lose-replica-at: found a fleet of 1, wanted at least 2"),
    ] {
        assert_eq!(error(&workload, &SimulateOptions { replicas, changes, ..options() }), want);
    }
}

#[test]
fn warm_requests_count_in_no_figure() {
    let workload = workload(50, 10.0, 400, 5);
    let run = play(&workload, &SimulateOptions { warm: 45, window: 5, ..options() }, Policy::RoundRobin);
    let report = Report::of(&run);
    assert_eq!((run.served.len(), report.query_tokens, report.hit_tokens), (50, 5 * 400, 5 * 200));
    assert_eq!(report.requests.iter().sum::<usize>(), 5);
    let error = error(&workload, &SimulateOptions { warm: 50, ..options() });
    assert_eq!(error, "warm: found 50, wanted fewer than the 50 requests");
}
