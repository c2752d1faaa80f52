//! What runs say: a table, a line for each decision, or JSON.

use std::time::Duration;

use serde::Serialize;

use super::{Run, ShownDecision};
use crate::engine::Seconds;
use crate::replay::report::percentile;
use crate::table;

/// A fleet above this is told by its extremes.
const REPLICAS_SHOWN_MAX: usize = 16;

/// A run in figures. Serialised, the names are the members of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the policy.
    pub policy: &'static str,
    /// Cached tokens of all prompts' tokens, 0 to 1.
    pub hit_rate: f64,
    /// Prompt tokens that were cached.
    pub hit_tokens: u64,
    /// Prompt tokens.
    pub query_tokens: u64,
    /// Time to first token, half of all.
    pub ttft_p50_ms: f64,
    /// Time to first token, 95 of 100.
    pub ttft_p95_ms: f64,
    /// Wait for a lane, 95 of 100.
    pub queue_p95_ms: f64,
    /// Groups that one replica served alone.
    pub groups_on_one: usize,
    /// Groups.
    pub groups: usize,
    /// Requests of each replica.
    pub requests: Vec<usize>,
    /// The decisions that were asked for, as lines.
    pub decisions: Vec<String>,
}

impl Report {
    /// The figures of a run. Percentiles are by nearest rank.
    pub fn of(run: &Run) -> Self {
        let cache = run.cache;
        Self {
            policy: run.policy.name(),
            hit_rate: cache.hit_tokens as f64 / cache.query_tokens.max(1) as f64,
            hit_tokens: cache.hit_tokens,
            query_tokens: cache.query_tokens,
            ttft_p50_ms: percentile_ms(&run.ttfts, 0.5),
            ttft_p95_ms: percentile_ms(&run.ttfts, 0.95),
            queue_p95_ms: percentile_ms(&run.waits, 0.95),
            groups_on_one: run.groups_on_one.0,
            groups: run.groups_on_one.1,
            requests: run.requests.clone(),
            decisions: run
                .decisions
                .iter()
                .map(|decision| decision_line(run.policy.name(), decision))
                .collect(),
        }
    }

    fn cells(&self) -> [String; 7] {
        [
            self.policy.to_owned(),
            format!("{:.1} %", self.hit_rate * 1e2),
            format!("{:.0} ms", self.ttft_p50_ms),
            format!("{:.0} ms", self.ttft_p95_ms),
            format!("{:.0} ms", self.queue_p95_ms),
            format!("{}/{}", self.groups_on_one, self.groups),
            requests(&self.requests),
        ]
    }
}

/// Each replica's, or of a large fleet the least and the most.
fn requests(counts: &[usize]) -> String {
    match (counts.iter().min(), counts.iter().max()) {
        (Some(least), Some(most)) if counts.len() > REPLICAS_SHOWN_MAX => format!("{least} to {most}"),
        _ => counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn percentile_ms(values: &[Seconds], share: f64) -> f64 {
    let values: Vec<Duration> = values.iter().map(|value| value.to_duration()).collect();
    percentile(&values, share).unwrap_or_default().as_secs_f64() * 1e3
}

/// A line for each run.
pub fn table(reports: &[Report]) -> String {
    let head = [
        "policy",
        "hit rate",
        "TTFT p50",
        "TTFT p95",
        "queue p95",
        "groups on one replica",
        "requests per replica",
    ];
    table::table(head, reports.iter().map(Report::cells))
}

/// A decision in a line, without its end.
pub fn decision_line(policy: &str, decision: &ShownDecision) -> String {
    let ShownDecision { number, group, replica, matched, total, cold, score, next } = decision;
    let reason = match cold {
        true => "cold, no endpoint holds a block".to_owned(),
        false => format!("match {matched}/{total} blocks"),
    };
    let next = next.map_or(String::new(), |(replica, score)| {
        format!(", next {} {}", replica_name(replica), two_decimals(score))
    });
    let winner = replica_name(*replica);
    format!("{number:>4}  {group}  {policy} -> {winner}: {reason}, score {}{next}", two_decimals(*score))
}

fn replica_name(replica: usize) -> String {
    format!("replica-{}", replica + 1)
}

/// Without the sign of minus nothing.
fn two_decimals(score: f64) -> String {
    format!("{:.2}", score + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_fleet_is_told_by_its_extremes() {
        assert_eq!(requests(&[19, 22, 23]), "19 22 23");
        let many: Vec<usize> = (4..=20).collect();
        assert_eq!((requests(&many).as_str(), requests(&many[1..]).len()), ("4 to 20", 42));
    }

    #[test]
    fn decisions_read_as_sentences() {
        let cold = ShownDecision {
            number: 1,
            group: "tenant-1".to_owned(),
            replica: 1,
            matched: 0,
            total: 14,
            cold: true,
            score: 5.0,
            next: Some((2, 3.9)),
        };
        let warm =
            ShownDecision { number: 12, matched: 12, cold: false, score: -0.0, next: None, ..cold.clone() };
        for (decision, want) in [
            (
                cold,
                "   1  tenant-1  prefix -> replica-2: cold, no endpoint holds a block, score 5.00, next replica-3 3.90",
            ),
            (warm, "  12  tenant-1  prefix -> replica-2: match 12/14 blocks, score 0.00"),
        ] {
            assert_eq!(decision_line("prefix", &decision), want);
        }
    }
}
