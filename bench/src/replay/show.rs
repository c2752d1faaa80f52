//! What a replay says in words: one lane at length, several side by side.

use std::collections::BTreeSet;
use std::time::Duration;

use super::command::{Played, Told};
use super::counters::Counters;
use super::plays::Outcome;
use super::send::Pace;
use super::spans::Spans;
use super::tally::{Slo, Tally};
use crate::table::{format_lines, table};

/// Endpoints that are told one by one in a row of a comparison.
const ENDPOINTS_SHOWN_MAX: usize = 16;

/// The text, with a line feed at its end.
pub(super) fn text(told: &Told<'_>) -> String {
    let outcomes: Vec<(&Played, Outcome)> =
        told.played.iter().map(|played| (played, Outcome::of_all(&played.rounds))).collect();
    let body = match &outcomes[..] {
        [(played, outcome)] => alone(&played.lane.name, outcome, told),
        several => side_by_side(several, told),
    };
    // Several plays have a salt, and their place in their requests' ids.
    let behind = if told.salt.is_some() { "ROUND-LANE-REQUEST" } else { "REQUEST" };
    let ids = format!("\nx-request-id: {}-{behind}\n", told.ids);
    told.skipped.text() + &interrupted(told) + &body + &ids
}

fn interrupted(told: &Told<'_>) -> String {
    match told.interrupted {
        true => "Interrupted: only what had ended by then is counted.\n\n".to_owned(),
        false => String::new(),
    }
}

/// One lane: a paragraph for each thing to know.
fn alone(name: &str, outcome: &Outcome, told: &Told<'_>) -> String {
    let Outcome { tally, counted } = outcome;
    let mut parts = vec![head(name, tally, told), times(tally), shares(outcome, &told.slo)];
    parts.push(places(outcome));
    parts.push(failures(tally));
    let faults = counted
        .servers
        .iter()
        .filter_map(|(name, one)| Some(format!("server {name}: {}\n", one.as_ref().err()?)));
    let remarks = counted.remarks.iter().map(|remark| format!("{remark}\n"));
    parts.push(faults.chain(remarks).chain([warning(tally)]).collect());
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

fn head(name: &str, tally: &Tally, told: &Told<'_>) -> String {
    let Tally { requests, took, .. } = tally;
    let (pace, failed) = (pace(told.pace), tally.failed());
    let rate = tally.per_second((requests - failed) as f64);
    format!(
        "{requests} requests to {name} in {}, {pace}: {failed} failed, {rate:.1} answers a second\n",
        span(*took)
    )
}

fn pace(pace: Pace) -> String {
    match pace {
        Pace::Open { speed: 1.0, .. } => "at the trace's times".to_owned(),
        Pace::Open { speed, .. } => format!("at the trace's times / {speed}"),
        Pace::Closed { clients: 1 } => "from 1 client".to_owned(),
        Pace::Closed { clients } => format!("from {clients} clients"),
    }
}

fn times(tally: &Tally) -> String {
    let kinds = [
        ("first token", &tally.ttft),
        ("between events", &tally.gaps),
        ("token to token", &tally.tpot),
        ("whole answer", &tally.latency),
        ("sender late", &tally.late),
    ];
    let row = |(name, spans): (&str, &Spans)| {
        let at = |share| spans.at(share).map_or("-".to_owned(), span);
        [name.to_owned(), at(0.5), at(0.9), at(0.95), at(0.99), at(1.0)]
    };
    // A closed loop has no time at which a request is due: its sender is never late.
    let told = |spans: &Spans| spans.at(1.0).is_some_and(|most| !most.is_zero());
    let seen = kinds.into_iter().filter(|(_, spans)| told(spans));
    table(["", "p50", "p90", "p95", "p99", "max"], seen.map(row))
}

/// What was cached, where groups went, what was good.
fn shares(outcome: &Outcome, slo: &Slo) -> String {
    let tally = &outcome.tally;
    let lines = [Some(cached(outcome)), groups(tally), good(tally, slo)];
    lines.into_iter().flatten().map(|line| line + "\n").collect()
}

fn cached(Outcome { tally, counted }: &Outcome) -> String {
    let servers = counted.sum().map(|sum| format!("{} by the servers", percent(sum.hit_rate())));
    let usage = match (tally.cached_share(), tally.with_usage) {
        (Some(share), _) => format!("{} of {} prompt tokens by usage", percent(share), tally.prompt_tokens),
        (None, 0) => "no answer says its usage".to_owned(),
        (None, _) => {
            "no usage says what was cached (nothing was, or vLLM runs without --enable-prompt-tokens-details)"
                .to_owned()
        }
    };
    format!("cached: {}", std::iter::once(usage).chain(servers).collect::<Vec<_>>().join(", "))
}

fn groups(tally: &Tally) -> Option<String> {
    let Tally { groups_on_one, groups, endpoints, .. } = tally;
    match (*groups, endpoints.is_empty()) {
        (0, false) => None,
        (_, true) => Some("no answer names its endpoint (x-prefixroute-endpoint)".to_owned()),
        _ => Some(format!("groups on one endpoint: {groups_on_one}/{groups}")),
    }
}

fn good(tally: &Tally, slo: &Slo) -> Option<String> {
    let limits = [("first token", slo.ttft), ("token to token", slo.tpot), ("whole answer", slo.latency)];
    let limits = limits.iter().filter_map(|(name, most)| Some(format!("{name} within {}", span((*most)?))));
    let limits: Vec<String> = limits.collect();
    let (good, all) = (tally.good, tally.requests);
    let (share, rate) = (percent(good as f64 / all.max(1) as f64), tally.per_second(good as f64));
    slo.is_set()
        .then(|| format!("good: {good} of {all} ({share}), {rate:.1} a second: {}", limits.join(", ")))
}

/// A row for each endpoint that answered and each server that was read; those of one name are one.
fn places(Outcome { tally, counted }: &Outcome) -> String {
    let counters = |name: &str| counted.servers.iter().find(|(known, _)| known == name).map(|(_, one)| one);
    let names: BTreeSet<&String> =
        tally.endpoints.keys().chain(counted.servers.iter().map(|(name, _)| name)).collect();
    let row = |name: &String| {
        let requests = tally.endpoints.get(name).map_or("-".to_owned(), usize::to_string);
        let figures = counters(name).and_then(|one| one.as_ref().ok());
        let [rate, hit, asked] = counter_cells(figures);
        [name.clone(), requests, rate, hit, asked]
    };
    let mut rows: Vec<[String; 5]> = names.into_iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let answered: usize = tally.endpoints.values().sum();
    let [rate, hit, asked] = counter_cells(counted.sum().as_ref());
    rows.push(["all".to_owned(), answered.to_string(), rate, hit, asked]);
    table(["endpoint", "requests", "hit rate", "hit tokens", "queried tokens"], rows)
}

fn counter_cells(counters: Option<&Counters>) -> [String; 3] {
    let cell = |of: fn(&Counters) -> String| counters.map_or("-".to_owned(), of);
    [
        cell(|one| percent(one.hit_rate())),
        cell(|one| one.hit_tokens.to_string()),
        cell(|one| one.query_tokens.to_string()),
    ]
}

fn failures(tally: &Tally) -> String {
    let line = |(kind, failed): (&super::Kind, &super::tally::Failed)| {
        format!("{} failed: {kind}; the first: {}\n", failed.count, failed.first)
    };
    tally.failures.iter().map(line).collect()
}

/// Several lanes: a table, and what else is to know of each.
fn side_by_side(several: &[(&Played, Outcome)], told: &Told<'_>) -> String {
    let rounds = several.first().map_or(0, |(played, _)| played.rounds.len());
    let (count, pace) =
        (if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") }, pace(told.pace));
    let mut late = Spans::default();
    several.iter().for_each(|(_, outcome)| late.merge(&outcome.tally.late));
    let head =
        format!("{count} of {} requests, {pace}, one after another{}\n\n", told.requests, lateness(&late));
    let notes: String = several.iter().map(|(played, outcome)| notes(&played.lane.name, outcome)).collect();
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    head + &comparison(several, &told.slo) + &notes
}

/// How late the sender was; nothing of one that was never late, as in a closed loop.
fn lateness(late: &Spans) -> String {
    match (late.at(0.99), late.at(1.0)) {
        (Some(p99), Some(most)) if !most.is_zero() => {
            format!("; sender late: p99 {}, max {}", span(p99), span(most))
        }
        _ => String::new(),
    }
}

/// Lateness of the sender above which its figures are those of its own machine.
const LATE_MAX: Duration = Duration::from_millis(50);

/// A line for who reads percentiles that are not the servers'.
fn warning(tally: &Tally) -> String {
    match tally.late.at(0.99) {
        Some(late) if late > LATE_MAX => {
            let late = span(late);
            format!(
                "requests left up to {late} late (p99): this machine was busy, or --in-flight was reached; all times include it\n"
            )
        }
        _ => String::new(),
    }
}

/// A column: its head, and how a cell is made.
type Column = (&'static str, fn(&Outcome) -> String);

const COLUMNS: [Column; 11] = [
    ("cached by usage", |one| one.tally.cached_share().map_or("-".to_owned(), percent)),
    ("by servers", |one| one.counted.sum().map_or("-".to_owned(), |sum| percent(sum.hit_rate()))),
    ("TTFT p50", |one| at(&one.tally.ttft, 0.5)),
    ("TTFT p95", |one| at(&one.tally.ttft, 0.95)),
    ("TTFT p99", |one| at(&one.tally.ttft, 0.99)),
    ("token p95", |one| at(&one.tally.tpot, 0.95)),
    ("answer p95", |one| at(&one.tally.latency, 0.95)),
    ("good", |one| percent(one.tally.good as f64 / one.tally.requests.max(1) as f64)),
    ("failed", |one| one.tally.failed().to_string()),
    ("groups on one", |one| format!("{}/{}", one.tally.groups_on_one, one.tally.groups)),
    ("requests per endpoint", |one| per_endpoint(&one.tally)),
];

fn comparison(several: &[(&Played, Outcome)], slo: &Slo) -> String {
    // A column in which nobody has a figure is left out.
    let told = |head: &str| match head {
        "good" => slo.is_set(),
        "by servers" => several.iter().any(|(_, one)| !one.counted.servers.is_empty()),
        "token p95" => several.iter().any(|(_, one)| one.tally.tpot.count() > 0),
        "groups on one" => several.iter().any(|(_, one)| one.tally.groups > 0),
        _ => true,
    };
    let columns = || COLUMNS.iter().filter(|(head, _)| told(head));
    let head = std::iter::once(String::new()).chain(columns().map(|(head, _)| (*head).to_owned())).collect();
    let row = |(played, outcome): &(&Played, Outcome)| {
        std::iter::once(played.lane.name.clone()).chain(columns().map(|(_, cell)| cell(outcome))).collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(several.iter().map(row)).collect();
    format_lines(&lines)
}

fn notes(name: &str, Outcome { tally, counted }: &Outcome) -> String {
    let faults = counted
        .servers
        .iter()
        .filter_map(|(server, one)| Some(format!("server {server}: {}\n", one.as_ref().err()?)));
    let failures = failures(tally);
    let failures = failures.lines().map(|line| format!("{line}\n"));
    let remarks = counted.remarks.iter().map(|remark| format!("{remark}\n"));
    let warning = Some(warning(tally)).filter(|line| !line.is_empty());
    failures.chain(faults).chain(remarks).chain(warning).map(|line| format!("{name}: {line}")).collect()
}

fn at(spans: &Spans, share: f64) -> String {
    spans.at(share).map_or("-".to_owned(), span)
}

/// Each endpoint's, or of a large fleet the least and the most.
fn per_endpoint(tally: &Tally) -> String {
    let counts: Vec<usize> = tally.endpoints.values().copied().collect();
    match (counts.iter().min(), counts.iter().max()) {
        (Some(least), Some(most)) if counts.len() > ENDPOINTS_SHOWN_MAX => format!("{least} to {most}"),
        (None, _) => "-".to_owned(),
        _ => counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 1e2)
}

/// In milliseconds, with a decimal where it tells something; from 10 s on in seconds.
fn span(span: Duration) -> String {
    let millis = span.as_secs_f64() * 1e3;
    match millis {
        _ if millis >= 1e4 => format!("{:.1} s", millis / 1e3),
        _ if millis >= 1e1 => format!("{millis:.0} ms"),
        _ => format!("{millis:.1} ms"),
    }
}
