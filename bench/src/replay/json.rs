//! `replay --json`: every figure of every lane, of all its rounds and of each.

use std::collections::BTreeMap;

use serde::Serialize;

use super::command::{Played, Told};
use super::plays::Outcome;
use super::send::Pace;
use super::servers::Counted;
use super::spans::Spans;
use super::tally::{Slo, Tally};

#[derive(Serialize)]
struct Json<'a> {
    trace: &'a str,
    requests: usize,
    skipped_lines: usize,
    skipped_reasons: &'a [String],
    /// Open loop.
    speed: Option<f64>,
    /// Closed loop.
    clients: Option<usize>,
    cache_salt: Option<&'a str>,
    /// What the `x-request-id` of every request begins with.
    request_ids: &'a str,
    interrupted: bool,
    lanes: Vec<Lane<'a>>,
}

#[derive(Serialize)]
struct Lane<'a> {
    name: &'a str,
    #[serde(flatten)]
    all: Figures,
    rounds: Vec<Figures>,
}

#[derive(Serialize)]
struct Figures {
    requests: usize,
    failed: usize,
    failures: Vec<Failures>,
    took_s: f64,
    answers_per_second: f64,
    output_tokens_per_second: f64,
    ttft_ms: Percentiles,
    inter_token_ms: Percentiles,
    tpot_ms: Percentiles,
    latency_ms: Percentiles,
    late_ms: Percentiles,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    cached_share: Option<f64>,
    server_hit_rate: Option<f64>,
    groups_on_one: usize,
    groups: usize,
    good: Option<usize>,
    endpoints: BTreeMap<String, usize>,
    servers: Vec<Server>,
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct Failures {
    kind: String,
    count: usize,
    first: String,
}

#[derive(Serialize)]
struct Percentiles {
    count: u64,
    mean: Option<f64>,
    p50: Option<f64>,
    p90: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

#[derive(Serialize)]
struct Server {
    name: String,
    query_tokens: Option<f64>,
    hit_tokens: Option<f64>,
    hit_rate: Option<f64>,
    fault: Option<String>,
}

/// The text.
pub(super) fn text(told: &Told<'_>) -> String {
    let (speed, clients) = match told.pace {
        Pace::Open { speed, .. } => (Some(speed), None),
        Pace::Closed { clients } => (None, Some(clients)),
    };
    let json = Json {
        trace: &told.trace,
        requests: told.requests,
        skipped_lines: told.skipped.lines,
        skipped_reasons: &told.skipped.reasons,
        speed,
        clients,
        cache_salt: told.salt.as_deref(),
        request_ids: &told.ids,
        interrupted: told.interrupted,
        lanes: told.played.iter().map(|played| lane(played, &told.slo)).collect(),
    };
    // String keys and finite numbers only: it cannot fail.
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
}

fn lane<'a>(played: &'a Played, slo: &Slo) -> Lane<'a> {
    let all = figures(&Outcome::of_all(&played.rounds), slo);
    let rounds = played.rounds.iter().map(|round| figures(round, slo)).collect();
    Lane { name: &played.lane.name, all, rounds }
}

fn figures(Outcome { tally, counted }: &Outcome, slo: &Slo) -> Figures {
    Figures {
        requests: tally.requests,
        failed: tally.failed(),
        failures: failures(tally),
        took_s: tally.took.as_secs_f64(),
        answers_per_second: tally.per_second((tally.requests - tally.failed()) as f64),
        output_tokens_per_second: tally.per_second(tally.output_tokens as f64),
        ttft_ms: percentiles(&tally.ttft),
        inter_token_ms: percentiles(&tally.gaps),
        tpot_ms: percentiles(&tally.tpot),
        latency_ms: percentiles(&tally.latency),
        late_ms: percentiles(&tally.late),
        prompt_tokens: tally.prompt_tokens,
        cached_tokens: tally.cached_tokens,
        output_tokens: tally.output_tokens,
        cached_share: tally.cached_share(),
        server_hit_rate: counted.sum().map(|sum| sum.hit_rate()),
        groups_on_one: tally.groups_on_one,
        groups: tally.groups,
        good: slo.is_set().then_some(tally.good),
        endpoints: tally.endpoints.clone(),
        servers: servers(counted),
        remarks: counted.remarks.clone(),
    }
}

fn failures(tally: &Tally) -> Vec<Failures> {
    let one = |(kind, failed): (&super::Kind, &super::tally::Failed)| Failures {
        kind: kind.to_string(),
        count: failed.count,
        first: failed.first.clone(),
    };
    tally.failures.iter().map(one).collect()
}

fn percentiles(spans: &Spans) -> Percentiles {
    let millis = |span: Option<std::time::Duration>| span.map(|span| span.as_secs_f64() * 1e3);
    let at = |share| millis(spans.at(share));
    Percentiles {
        count: spans.count(),
        mean: millis(spans.mean()),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        max: at(1.0),
    }
}

fn servers(counted: &Counted) -> Vec<Server> {
    let one =
        |(name, counters): &(String, Result<super::counters::Counters, super::servers::ServerFault>)| {
            let counters_or = counters.as_ref();
            Server {
                name: name.clone(),
                query_tokens: counters_or.ok().map(|counters| counters.query_tokens),
                hit_tokens: counters_or.ok().map(|counters| counters.hit_tokens),
                hit_rate: counters_or.ok().map(|counters| counters.hit_rate()),
                fault: counters_or.err().map(ToString::to_string),
            }
        };
    counted.servers.iter().map(one).collect()
}
