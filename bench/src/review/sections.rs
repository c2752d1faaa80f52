//! What a review says, part by part. Parts about the trace are in `sections/trace.rs`.

mod disagg;
mod load;
mod trace;

use super::advice::{self, Advice};
use super::counts::{Counter, Counts};
use super::document::Section;
use super::words::{count, percent, span, whole};
use super::{Basis, Replica, Review};

/// Nothing to show in a cell.
const NONE: &str = "-";

/// The first line.
pub(super) fn title(review: &Review) -> String {
    let read = match review.replicas.len() {
        read if read == review.asked => String::new(),
        read => format!(", {read} read"),
    };
    let trace = review.traffic.as_ref().map_or(String::new(), |traffic| {
        format!(", trace {} of {}", traffic.path, count(traffic.requests, "request"))
    });
    format!("Review of {}{read}{trace}", count(review.asked, "replica"))
}

/// All parts; those without anything to say are left out.
pub(super) fn all(review: &Review) -> Vec<Section> {
    let parts = [
        faults(review),
        Some(change(&review.advice())),
        hit_rates(review),
        trace::could_be(review),
        trace::capacity(review),
        trace::reach(review),
        load::load(review),
        load::first_token(review),
        Some(disagg::disagg(review)),
        missing(review),
    ];
    parts.into_iter().flatten().collect()
}

fn faults(review: &Review) -> Option<Section> {
    let section = || Section::new("Not read").lines(review.faults.iter().cloned());
    (!review.faults.is_empty()).then(section)
}

/// The first advice whole, of the others what would be next.
fn change(advice: &[Advice]) -> Section {
    let (first, later) = advice.split_at(advice.len().min(1));
    let first = first.iter().fold(Section::new("Change first"), |section, advice| {
        section
            .line(format!("Because: {}", advice.because))
            .line(format!("Change: {}", advice.change))
            .line(format!("Proof: {}", advice.proof))
    });
    later.iter().fold(first, |section, advice| {
        section.line(format!("Then ({}): {}; {}", advice.rule, advice.because, advice.change))
    })
}

fn hit_rates(review: &Review) -> Option<Section> {
    let head =
        ["replica", "up", "looked up since start", "hit rate", "looked up over the interval", "hit rate"];
    let row = |name: &str, up: Option<f64>, all: &Counts, over: Option<&Counts>| {
        let up = up.map_or(NONE.to_owned(), span);
        let mut row = vec![name.to_owned(), up];
        for counts in [Some(all), over] {
            let queries = counts.and_then(|counts| counts.counter(Counter::Queries));
            row.push(queries.map_or(NONE.to_owned(), whole));
            row.push(counts.and_then(Counts::hit_rate).map_or(NONE.to_owned(), percent));
        }
        row
    };
    let of = |replica: &Replica| {
        let up = replica.up.map(|up| up.as_secs_f64());
        row(&replica.name, up, &replica.snapshot.counts, replica.over.as_ref())
    };
    let fleet = row(&fleet_name(review), None, &review.since_start, review.over.as_ref());
    let rows = review.replicas.iter().map(of).chain([fleet]);
    let section =
        Section::new("Prefix-cache hit rate: prompt tokens found, of those looked up").table(&head, rows);
    (!review.replicas.is_empty()).then(|| section.lines([basis(review)]))
}

/// Which of both counts is judged.
fn basis(review: &Review) -> String {
    match (review.interval, review.hit_rate()) {
        (None, _) => "What follows is judged since the start: there was one reading only, and counters since the start hide the present.".to_owned(),
        (Some(_), Some((_, basis @ Basis::Over(_)))) => format!("What follows is judged {basis}."),
        (Some(_), Some((_, Basis::SinceStart))) => "The hit rate is judged since the start: between the readings no prompt token was looked up.".to_owned(),
        (Some(_), None) => "There is no hit rate to judge.".to_owned(),
    }
}

/// How many of them it is that were read.
fn fleet_name(review: &Review) -> String {
    match review.replicas.len() {
        read if read == review.asked => "fleet".to_owned(),
        read => format!("fleet ({read} of {})", review.asked),
    }
}

/// Each metric once, with who lacks it.
fn missing(review: &Review) -> Option<Section> {
    let mut lines: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for replica in &review.replicas {
        for (metric, without) in missing_of(replica) {
            match lines.iter_mut().find(|(known, ..)| *known == metric) {
                Some((_, _, names)) => names.push(&replica.name),
                None => lines.push((metric, without, vec![&replica.name])),
            }
        }
    }
    let line = |(metric, without, names): &(&str, &str, Vec<&str>)| {
        let whose =
            if names.len() == review.replicas.len() { "every replica".to_owned() } else { names.join(", ") };
        format!("{metric} of {whose}: cannot be said: {without}")
    };
    let section = || Section::new("Missing counters").lines(lines.iter().map(line));
    (!lines.is_empty()).then(section)
}

pub(super) fn missing_of(replica: &Replica) -> Vec<(&'static str, &'static str)> {
    let snapshot = &replica.snapshot;
    let load = &snapshot.load;
    let gauges = [
        ("vllm:num_requests_running", "how load is spread", load.running.is_none()),
        ("vllm:num_requests_waiting", "how queues are spread", load.waiting.is_none()),
        ("vllm:kv_cache_usage_perc", "how much of the cache running requests hold", load.kv_usage.is_none()),
        (
            "vllm:cache_config_info",
            "what the cache holds, so what policies make of the trace on it",
            snapshot.capacity.is_none(),
        ),
    ];
    let gauges =
        gauges.into_iter().filter(|(.., missing)| *missing).map(|(metric, without, _)| (metric, without));
    snapshot.counts.missing().into_iter().map(|known| (known.metric, known.without)).chain(gauges).collect()
}

/// `2.00` or nothing.
fn spread(values: &[f64]) -> String {
    advice::spread(values).map_or(NONE.to_owned(), |spread| format!("{spread:.2}"))
}
