//! What runs say: a table, a line for each decision, or JSON.

use std::time::Duration;

use serde::Serialize;

use super::figures::{self, Groups, Tokens};
use super::run::Reason;
use super::{Run, Served, ShownDecision};
use crate::engine::Seconds;
use crate::replay::report::percentile;
use crate::table;

/// A fleet above this is told by its extremes.
const REPLICAS_SHOWN_MAX: usize = 16;

/// A run in figures. Serialised, the names are the members of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the policy, or of what assigned the requests.
    pub policy: &'static str,
    /// Cached tokens of all prompts' tokens, 0 to 1.
    pub hit_rate: f64,
    /// Cached tokens of those that one cache without a bound would have had; 1 where it would have had none.
    pub of_ceiling: f64,
    /// Prompt tokens that were cached.
    pub hit_tokens: u64,
    /// Prompt tokens.
    pub query_tokens: u64,
    /// Computed prompt tokens: those of the busiest replica over the mean.
    pub imbalance: f64,
    /// The worst of that over the windows of the trace.
    pub worst_window: f64,
    /// The same of requests, over all.
    pub request_imbalance: f64,
    /// Time to first token, the mean.
    pub ttft_mean_ms: f64,
    /// What that is above the mean of the best assignment that was found; nothing where none was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regret_ms: Option<f64>,
    /// Time to first token, half of all.
    pub ttft_p50_ms: f64,
    /// Time to first token, 95 of 100.
    pub ttft_p95_ms: f64,
    /// Time to first token, 99 of 100.
    pub ttft_p99_ms: f64,
    /// Wait for a lane, 95 of 100.
    pub queue_p95_ms: f64,
    /// How long an answer stood still for other prompts, 95 of 100.
    pub stall_p95_ms: f64,
    /// From the first token of an answer to its end, with what it stood still; 95 of 100.
    pub decode_p95_ms: f64,
    /// Requests whose prompts were computed on a prefill replica.
    pub apart: usize,
    /// Groups that one replica served alone.
    pub groups_on_one: usize,
    /// Groups.
    pub groups: usize,
    /// Requests that went to another replica than the one before of their group.
    pub moves: usize,
    /// Requests in flight at a replica that was lost; they were sent again.
    pub lost: usize,
    /// Requests of each replica.
    pub requests: Vec<usize>,
    /// The decisions that were asked for, as lines.
    pub decisions: Vec<String>,
}

impl Report {
    /// The figures of a run. Percentiles are by nearest rank.
    pub fn of(run: &Run) -> Self {
        let served = run.measured();
        let Tokens { prompt, cached, cached_at_best } = figures::tokens(served);
        let Groups { on_one, all, moves } = figures::groups(served);
        let requests = figures::requests(served, run.replicas);
        let decision = |decision| decision_line(run.name, decision);
        let millis = |figure: fn(&Served) -> Seconds| Millis::of(served.iter().map(figure));
        let (ttfts, waits, stalls) =
            (millis(|served| served.ttft), millis(|served| served.wait), millis(|served| served.stall));
        Self {
            policy: run.name,
            hit_rate: cached as f64 / prompt.max(1) as f64,
            of_ceiling: if cached_at_best == 0 { 1.0 } else { cached as f64 / cached_at_best as f64 },
            hit_tokens: cached,
            query_tokens: prompt,
            imbalance: figures::imbalance(&figures::computed(served, run.replicas)),
            worst_window: figures::worst_window(served, run.window, run.replicas),
            request_imbalance: figures::imbalance(&requests),
            ttft_mean_ms: run.ttft_mean() * 1e3,
            regret_ms: None,
            ttft_p50_ms: ttfts.percentile(0.5),
            ttft_p95_ms: ttfts.percentile(0.95),
            ttft_p99_ms: ttfts.percentile(0.99),
            queue_p95_ms: waits.percentile(0.95),
            stall_p95_ms: stalls.percentile(0.95),
            decode_p95_ms: millis(decode).percentile(0.95),
            apart: served.iter().filter(|served| served.apart).count(),
            groups_on_one: on_one,
            groups: all,
            moves,
            lost: run.lost,
            requests,
            decisions: run.decisions.iter().map(decision).collect(),
        }
    }
}

/// How long an answer takes after its first token, with what it stood still.
fn decode(served: &Served) -> Seconds {
    served.answer.map_or(Seconds(0.0), |(from, to)| to - from + served.stall)
}

/// Spans to take percentiles of.
struct Millis(Vec<Duration>);

impl Millis {
    fn of(values: impl Iterator<Item = Seconds>) -> Self {
        Self(values.map(Seconds::to_duration).collect())
    }

    fn percentile(&self, share: f64) -> f64 {
        percentile(&self.0, share).unwrap_or_default().as_secs_f64() * 1e3
    }
}

/// Each replica's, or of a large fleet the least and the most.
fn requests(counts: &[usize]) -> String {
    match (counts.iter().min(), counts.iter().max()) {
        (Some(least), Some(most)) if counts.len() > REPLICAS_SHOWN_MAX => format!("{least} to {most}"),
        _ => counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
    }
}

/// Which columns a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Those of the published table.
    Published,
    /// All.
    Full,
}

/// A column: its head, how a cell is made, and whether the published table has it.
type Column = (&'static str, fn(&Report) -> String, bool);

const COLUMNS: [Column; 18] = [
    ("policy", |report| report.policy.to_owned(), true),
    ("hit rate", |report| percent(report.hit_rate), true),
    ("of ceiling", |report| percent(report.of_ceiling), false),
    ("imbalance", |report| two_decimals(report.imbalance), false),
    ("worst window", |report| two_decimals(report.worst_window), false),
    ("requests max/mean", |report| two_decimals(report.request_imbalance), false),
    ("TTFT mean", |report| millis(report.ttft_mean_ms), false),
    ("TTFT p50", |report| millis(report.ttft_p50_ms), true),
    ("TTFT p95", |report| millis(report.ttft_p95_ms), true),
    ("TTFT p99", |report| millis(report.ttft_p99_ms), false),
    ("queue p95", |report| millis(report.queue_p95_ms), true),
    ("stall p95", |report| millis(report.stall_p95_ms), false),
    ("decode p95", |report| millis(report.decode_p95_ms), false),
    ("apart", |report| report.apart.to_string(), false),
    ("groups on one replica", |report| format!("{}/{}", report.groups_on_one, report.groups), true),
    ("moves", |report| report.moves.to_string(), false),
    ("lost", |report| report.lost.to_string(), false),
    ("requests per replica", |report| requests(&report.requests), true),
];

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 1e2)
}

fn millis(millis: f64) -> String {
    format!("{millis:.0} ms")
}

fn regret(millis: f64) -> String {
    format!("{millis:.1} ms")
}

/// A line for each run.
pub fn table(reports: &[Report], columns: Columns) -> String {
    let shown = || COLUMNS.iter().filter(|(.., published)| *published || columns == Columns::Full);
    let regrets = reports.iter().any(|report| report.regret_ms.is_some());
    let head =
        shown().map(|(head, ..)| (*head).to_owned()).chain(regrets.then(|| "regret".to_owned())).collect();
    let row = |report: &Report| {
        let regret = regrets.then(|| report.regret_ms.map_or(String::new(), regret));
        shown().map(|(_, cell, _)| cell(report)).chain(regret).collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(reports.iter().map(row)).collect();
    table::format_lines(&lines)
}

/// A decision in a line, without its end.
pub fn decision_line(policy: &str, decision: &ShownDecision) -> String {
    let ShownDecision { number, group, replica, matched, total, cold, score, reasons, next } = decision;
    let match_text = match cold {
        true => "cold, no endpoint holds a block".to_owned(),
        false => format!("match {matched}/{total} blocks"),
    };
    let (winner, score, reasons) = (replica_name(*replica), two_decimals(*score), reason_texts(reasons));
    let next = next.map_or(String::new(), |(replica, score)| {
        format!(", next {} {}", replica_name(replica), two_decimals(score))
    });
    let group = if group.is_empty() { "-" } else { group };
    format!("{number:>4}  {group}  {policy} -> {winner}: {match_text}, score {score}{next}{reasons}")
}

/// `; prefix 3 x 0.86 + kv 2 x 1.00`, or nothing where there is no sum.
fn reason_texts(reasons: &[Reason]) -> String {
    let text = |reason: &Reason| {
        let value = reason.value.map_or("unknown".to_owned(), two_decimals);
        format!("{} {} x {value}", reason.name, weight(reason.weight))
    };
    let texts: Vec<String> = reasons.iter().map(text).collect();
    if texts.is_empty() { String::new() } else { format!("; {}", texts.join(" + ")) }
}

/// As it is written in a file, or to three decimals.
fn weight(weight: f64) -> String {
    let short = (weight * 1e3).round() / 1e3 + 0.0;
    short.to_string()
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

    /// 40 tokens of 100 were cached where 80 could have been, all on the first of two replicas; the first request is left out.
    #[test]
    fn the_full_table_has_every_figure() {
        let served = |group, replica, cached_tokens, millis: f64| Served {
            group: Some(group),
            replica,
            prompt_tokens: 50,
            cached_tokens,
            computed_tokens: 50 - cached_tokens,
            cached_at_best: 40,
            wait: Seconds::from_millis(millis / 2.0),
            ttft: Seconds::from_millis(millis),
            apart: replica == 0,
            answer: Some((Seconds(1.0), Seconds(1.125))),
            stall: Seconds::from_millis(3.0),
        };
        let run = Run {
            name: "round-robin",
            served: vec![served(0, 1, 0, 999.0), served(0, 0, 10, 10.0), served(0, 0, 30, 20.0)],
            warm: 1,
            window: 1,
            replicas: 2,
            lost: 4,
            decisions: Vec::new(),
        };
        let report = Report::of(&run);
        let full = table(std::slice::from_ref(&report), Columns::Full);
        let cells: Vec<&str> = full.lines().nth(1).unwrap_or_default().split("   ").map(str::trim).collect();
        let cells: Vec<&str> = cells.into_iter().filter(|cell| !cell.is_empty()).collect();
        let want = [
            "round-robin",
            "40.0 %",
            "50.0 %",
            "2.00",
            "2.00",
            "2.00",
            "15 ms",
            "10 ms",
            "20 ms",
            "20 ms",
            "10 ms",
            "3 ms",
            "128 ms",
            "2",
            "1/1",
            "0",
            "4",
            "2 0",
        ];
        assert_eq!(cells, want, "{full}");
        let published = table(&[report], Columns::Published);
        let head = published.lines().next().unwrap_or_default();
        let names = [
            "policy",
            "hit rate",
            "TTFT p50",
            "TTFT p95",
            "queue p95",
            "groups on one replica",
            "requests per replica",
        ];
        assert_eq!(
            head.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>(),
            names
        );
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
            reasons: vec![
                Reason { name: "queue", weight: 2.0, value: Some(1.0) },
                Reason { name: "kv", weight: 0.5, value: None },
            ],
            next: Some((2, 3.9)),
        };
        let warm = ShownDecision {
            number: 12,
            group: String::new(),
            matched: 12,
            cold: false,
            score: -0.0,
            reasons: Vec::new(),
            next: None,
            ..cold.clone()
        };
        for (decision, want) in [
            (
                cold,
                "   1  tenant-1  prefix -> replica-2: cold, no endpoint holds a block, score 5.00, next replica-3 3.90; queue 2 x 1.00 + kv 0.5 x unknown",
            ),
            (warm, "  12  -  prefix -> replica-2: match 12/14 blocks, score 0.00"),
        ] {
            assert_eq!(decision_line("prefix", &decision), want);
        }
    }
}
