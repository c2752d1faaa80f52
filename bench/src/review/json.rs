//! A review as JSON, for programs: the figures of the text, plain numbers, `null` for what is not known.

use serde::Serialize;

use super::advice::Advice;
use super::counts::{Counter, Counts, Times};
use super::disagg::Verdict;
use super::histogram::Histogram;
use super::traffic::{Play, Traffic};
use super::{Basis, Review, sections};

#[derive(Serialize)]
struct Json<'a> {
    asked: usize,
    faults: &'a [String],
    /// Of the hit rate that is judged.
    basis: &'static str,
    interval_seconds: Option<f64>,
    replicas: Vec<ReplicaJson<'a>>,
    fleet: Figures,
    fleet_over_interval: Option<Figures>,
    capacity_tokens: Option<f64>,
    trace: Option<TraceJson<'a>>,
    disaggregation: DisaggJson,
    advice: Vec<Advice>,
}

#[derive(Serialize)]
struct ReplicaJson<'a> {
    name: &'a str,
    engines: usize,
    up_seconds: Option<f64>,
    running: Option<f64>,
    waiting: Option<f64>,
    waiting_for_capacity: Option<f64>,
    waiting_deferred: Option<f64>,
    kv_usage: Option<f64>,
    asleep: bool,
    caches_prefixes: Option<bool>,
    capacity_blocks: Option<f64>,
    block_size: Option<f64>,
    capacity_tokens: Option<f64>,
    since_start: Figures,
    over_interval: Option<Figures>,
    missing: Vec<&'static str>,
}

#[derive(Serialize)]
struct Figures {
    query_tokens: Option<f64>,
    hit_tokens: Option<f64>,
    hit_rate: Option<f64>,
    preemptions: Option<f64>,
    ended: Option<f64>,
    ttft: Option<TimesJson>,
    queue: Option<TimesJson>,
    prefill: Option<TimesJson>,
    decode: Option<TimesJson>,
}

/// Percentiles are bounds of buckets; `null` beyond the last.
#[derive(Serialize)]
struct TimesJson {
    count: f64,
    mean_seconds: Option<f64>,
    p50_at_most_seconds: Option<f64>,
    p95_at_most_seconds: Option<f64>,
}

#[derive(Serialize)]
struct TraceJson<'a> {
    path: &'a str,
    /// Why it cannot be of the replicas' traffic.
    unlike: Option<String>,
    requests: usize,
    seconds: f64,
    block_size: usize,
    prompt_tokens: u64,
    ceiling: f64,
    distinct_tokens: u64,
    shared_tokens: u64,
    pooled_hit_rate: Option<f64>,
    tokens_per_second: Option<f64>,
    best: Option<&'static str>,
    plays: Vec<PlayJson>,
}

#[derive(Serialize)]
struct PlayJson {
    policy: &'static str,
    hit_rate: f64,
    of_ceiling: Option<f64>,
    ttft_p95_ms: f64,
    imbalance: f64,
    caches_per_shared_block: Option<f64>,
}

#[derive(Serialize)]
struct DisaggJson {
    verdict: &'static str,
    missing: Option<String>,
    prefill_share: Option<f64>,
    busy_replicas_at_most: Option<f64>,
    busy_replicas_after_routing: Option<f64>,
}

pub(super) fn text(review: &Review) -> String {
    let replicas = review.replicas.iter().map(replica).collect();
    let json = Json {
        asked: review.asked,
        faults: &review.faults,
        basis: match review.counted(Counts::hit_rate).1 {
            Basis::SinceStart => "since_start",
            Basis::Over(_) => "over_interval",
        },
        interval_seconds: review.interval.map(|interval| interval.as_secs_f64()),
        replicas,
        fleet: figures(&review.since_start),
        fleet_over_interval: review.over.as_ref().map(figures),
        capacity_tokens: review.caches().map(|(_, tokens)| tokens),
        trace: review.traffic.as_ref().map(|traffic| trace(traffic, review.unlike())),
        disaggregation: disagg(review),
        advice: review.advice(),
    };
    // Keys are names and every number is finite or null: it cannot fail.
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
}

fn replica(replica: &super::Replica) -> ReplicaJson<'_> {
    let snapshot = &replica.snapshot;
    ReplicaJson {
        name: &replica.name,
        engines: snapshot.engines,
        up_seconds: replica.up.map(|up| up.as_secs_f64()),
        running: snapshot.load.running,
        waiting: snapshot.load.waiting,
        waiting_for_capacity: snapshot.load.waiting_for_capacity,
        waiting_deferred: snapshot.load.waiting_deferred,
        kv_usage: snapshot.load.kv_usage,
        asleep: snapshot.load.asleep,
        caches_prefixes: snapshot.caches_prefixes,
        capacity_blocks: snapshot.capacity.map(|capacity| capacity.blocks),
        block_size: snapshot.capacity.map(|capacity| capacity.block_size),
        capacity_tokens: snapshot.capacity.map(|capacity| capacity.tokens),
        since_start: figures(&snapshot.counts),
        over_interval: replica.over.as_ref().map(figures),
        missing: sections::missing_of(replica).into_iter().map(|(metric, _)| metric).collect(),
    }
}

fn figures(counts: &Counts) -> Figures {
    let of = |kind| counts.times(kind).map(times);
    Figures {
        query_tokens: counts.counter(Counter::Queries),
        hit_tokens: counts.counter(Counter::Hits),
        hit_rate: counts.hit_rate(),
        preemptions: counts.counter(Counter::Preemptions),
        ended: counts.counter(Counter::Finished),
        ttft: of(Times::FirstToken),
        queue: of(Times::Queue),
        prefill: of(Times::Prefill),
        decode: of(Times::Decode),
    }
}

fn times(histogram: &Histogram) -> TimesJson {
    let bound = |share| histogram.at_most(share).filter(|bound| bound.is_finite());
    TimesJson {
        count: histogram.count,
        mean_seconds: histogram.mean(),
        p50_at_most_seconds: bound(0.5),
        p95_at_most_seconds: bound(0.95),
    }
}

fn trace(traffic: &Traffic, unlike: Option<String>) -> TraceJson<'_> {
    let played = traffic.played.as_ref();
    let play = |play: &Play| PlayJson {
        policy: play.report.policy,
        hit_rate: play.report.hit_rate,
        of_ceiling: traffic.of_ceiling(play),
        ttft_p95_ms: play.report.ttft_p95_ms,
        imbalance: play.report.imbalance,
        caches_per_shared_block: play.reach,
    };
    TraceJson {
        path: &traffic.path,
        unlike,
        requests: traffic.requests,
        seconds: traffic.span.0,
        block_size: traffic.block_size,
        prompt_tokens: traffic.prompt_tokens,
        ceiling: traffic.ceiling(),
        distinct_tokens: traffic.distinct_tokens,
        shared_tokens: traffic.shared_tokens,
        pooled_hit_rate: played.map(|played| traffic.share(played.pooled_tokens)),
        tokens_per_second: played.map(|played| played.stage.tokens_per_second),
        best: played.map(|played| played.best().report.policy),
        plays: played.map(|played| played.plays.iter().map(play).collect()).unwrap_or_default(),
    }
}

fn disagg(review: &Review) -> DisaggJson {
    match review.disagg() {
        Err(missing) => DisaggJson {
            verdict: "unknown",
            missing: Some(missing),
            prefill_share: None,
            busy_replicas_at_most: None,
            busy_replicas_after_routing: None,
        },
        Ok(estimate) => DisaggJson {
            verdict: match estimate.verdict() {
                Verdict::OneReplica | Verdict::No => "no",
                Verdict::Perhaps => "perhaps",
                Verdict::Average | Verdict::Part => "unknown",
            },
            missing: None,
            prefill_share: estimate.share(),
            busy_replicas_at_most: estimate.busy(),
            busy_replicas_after_routing: estimate.busy_after(),
        },
    }
}
