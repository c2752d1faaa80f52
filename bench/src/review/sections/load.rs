//! Queues, KV usage, preemptions and times.

use super::super::advice::spread as ratio;
use super::super::counts::{Counter, Counts, Times};
use super::super::document::Section;
use super::super::histogram::Histogram;
use super::super::replica::Load;
use super::super::words::{at_most, percent, seconds, times, whole};
use super::super::{Replica, Review};
use super::{NONE, fleet_name, spread};

fn cell(value: Option<f64>, format: fn(f64) -> String) -> String {
    value.map_or(NONE.to_owned(), format)
}

/// One decimal where it is a mean of two readings.
fn requests(number: f64) -> String {
    if number.fract() == 0.0 { whole(number) } else { format!("{number:.1}") }
}

pub(super) fn load(review: &Review) -> Option<Section> {
    if review.replicas.is_empty() {
        return None;
    }
    let head = ["replica", "running", "waiting", "KV in use", "preemptions", "ended", "preempted of ended"];
    let ended = |counts: &Counts| counts.counter(Counter::Finished).filter(|ended| *ended > 0.0);
    let (sums, basis) = review.counted(ended);
    let row = |name: String, [running, waiting, usage]: [String; 3], counts: &Counts| {
        let counter = |counter| cell(counts.counter(counter), whole);
        let preempted = cell(counts.preempted(), times);
        vec![
            name,
            running,
            waiting,
            usage,
            counter(Counter::Preemptions),
            counter(Counter::Finished),
            preempted,
        ]
    };
    let of = |replica: &Replica| {
        let Load { running, waiting, kv_usage, asleep, .. } = replica.snapshot.load;
        let name = if asleep { format!("{} (asleep)", replica.name) } else { replica.name.clone() };
        let loads = [cell(running, requests), cell(waiting, requests), cell(kv_usage, percent)];
        row(name, loads, replica.counts(basis))
    };
    let figures: [fn(&Load) -> Option<f64>; 3] =
        [|load| load.running, |load| load.waiting, |load| load.kv_usage];
    let values = figures.map(|figure| review.loads(figure));
    let fleet = row(
        format!("{}: max/mean, then sums", fleet_name(review)),
        values.each_ref().map(|values| spread(values)),
        sums,
    );
    let rows = review.replicas.iter().map(of).chain([fleet]);
    let section = Section::new(&format!("Load now, and preemptions {basis}")).table(&head, rows);
    let section = match review.interval {
        Some(_) => section.line("Loads are the mean of two readings: two moments, not a course."),
        None => section.line("Loads are of one reading: one moment, not a course."),
    };
    Some(match ratio(&values[2]) {
        Some(_) => section
            .line("KV in use counts blocks of running requests only; what is kept for reuse is not in it."),
        None => section,
    })
}

pub(super) fn first_token(review: &Review) -> Option<Section> {
    let (fleet, basis) = review.counted(|counts| counts.times(Times::FirstToken)?.mean());
    fleet.times(Times::FirstToken)?;
    let head = ["replica", "requests", "TTFT mean", "p50", "p95", "queue mean", "queue p95", "queue of TTFT"];
    let row = |name: &str, counts: &Counts| {
        let (first, queue) = (counts.times(Times::FirstToken), counts.times(Times::Queue));
        let mean = |times: Option<&Histogram>| times.and_then(Histogram::mean);
        let bound = |times: Option<&Histogram>, share| times.and_then(|times| times.at_most(share));
        let of = mean(queue)
            .zip(mean(first))
            .filter(|(_, first)| *first > 0.0)
            .map(|(queue, first)| queue / first);
        vec![
            name.to_owned(),
            cell(first.map(|first| first.count), whole),
            cell(mean(first), seconds),
            cell(bound(first, 0.5), at_most),
            cell(bound(first, 0.95), at_most),
            cell(mean(queue), seconds),
            cell(bound(queue, 0.95), at_most),
            cell(of, percent),
        ]
    };
    let of = |replica: &Replica| row(&replica.name, replica.counts(basis));
    let rows = review.replicas.iter().map(of).chain([row(&fleet_name(review), fleet)]);
    let section = Section::new(&format!("Time to first token, {basis}")).table(&head, rows);
    Some(section.line("Percentiles are bounds of vLLM's buckets. Queue time is counted when a request ends, so those that still wait are not in it."))
}
