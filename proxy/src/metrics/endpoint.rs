//! What is counted of each endpoint, and its lines on the page.
//!
//! Not through the recorder: that keeps a series for good, and an endpoint's are to go with it.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Figures of one endpoint that are counted as they happen.
#[derive(Debug, Default)]
pub(crate) struct EndpointCounters {
    /// Answers by hundreds of their status.
    pub(crate) answers: [Count; 5],
    pub(crate) connect_failures: Count,
    pub(crate) matched_blocks: Count,
    pub(crate) total_blocks: Count,
    /// Of prompts whose answers told what was cached: predicted, cached, all; in the engine's tokens.
    pub(crate) predicted_tokens: Count,
    pub(crate) cached_tokens: Count,
    pub(crate) prompt_tokens: Count,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

/// An endpoint at one moment. Names are safe in a label by their check.
pub(crate) struct Row {
    pub(crate) endpoint: String,
    pub(crate) pool: String,
    pub(crate) figures: Figures,
}

/// What a row shows.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) usable: bool,
    pub(crate) answers: [u64; 5],
    pub(crate) connect_failures: u64,
    pub(crate) scrapes: [u64; 2],
    pub(crate) in_flight: u32,
    pub(crate) prefilling: u32,
    pub(crate) uncached_tokens: u64,
    pub(crate) backlog_seconds: f64,
    pub(crate) overhead_seconds: f64,
    pub(crate) tokens_per_second: f64,
    pub(crate) queueing: f64,
    pub(crate) matched_blocks: u64,
    pub(crate) total_blocks: u64,
    pub(crate) index_blocks: usize,
    pub(crate) index_capacity_blocks: usize,
    pub(crate) index_evictions: u64,
    pub(crate) predicted_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) truncations: u64,
    pub(crate) drops: u64,
}

/// A metric: its name, kind and help, and its series of an endpoint.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    series: Series,
}

enum Series {
    /// One.
    One(fn(&Figures) -> f64),
    /// One for each value of a further label.
    By(&'static str, &'static [&'static str], fn(&Figures, usize) -> f64),
}

const fn gauge(name: &'static str, figure: fn(&Figures) -> f64, help: &'static str) -> Family {
    Family { name, kind: "gauge", help, series: Series::One(figure) }
}

const fn counter(name: &'static str, figure: fn(&Figures) -> f64, help: &'static str) -> Family {
    Family { name, kind: "counter", help, series: Series::One(figure) }
}

const FAMILIES: [Family; 21] = [
    Family {
        name: "prefixroute_endpoint_answers_total",
        kind: "counter",
        help: "Answers of an endpoint, by hundreds of the status.",
        series: Series::By("status", &["1xx", "2xx", "3xx", "4xx", "5xx"], |of, place| {
            of.answers[place] as f64
        }),
    },
    counter(
        "prefixroute_endpoint_connect_failures_total",
        |of| of.connect_failures as f64,
        "Connects to an endpoint that failed.",
    ),
    Family {
        name: "prefixroute_endpoint_scrapes_total",
        kind: "counter",
        help: "Scrapes of an endpoint's /metrics, by outcome.",
        series: Series::By("outcome", &["ok", "failed"], |of, place| of.scrapes[place] as f64),
    },
    gauge(
        "prefixroute_endpoint_usable",
        |of| f64::from(u8::from(of.usable)),
        "1 when the last connect to the endpoint succeeded and its engine is awake.",
    ),
    gauge(
        "prefixroute_endpoint_in_flight",
        |of| of.in_flight.into(),
        "Requests that this router has in flight at an endpoint.",
    ),
    gauge(
        "prefixroute_endpoint_prefilling",
        |of| of.prefilling.into(),
        "Requests in flight without a first token.",
    ),
    gauge(
        "prefixroute_endpoint_uncached_tokens",
        |of| of.uncached_tokens as f64,
        "Uncached prompt tokens of those.",
    ),
    gauge(
        "prefixroute_endpoint_backlog_seconds",
        |of| of.backlog_seconds,
        "Seconds of computing that those are predicted to take.",
    ),
    gauge(
        "prefixroute_endpoint_overhead_seconds",
        |of| of.overhead_seconds,
        "Seconds that every prompt takes, as learned.",
    ),
    gauge(
        "prefixroute_endpoint_tokens_per_second",
        |of| of.tokens_per_second,
        "Uncached prompt tokens a second, as learned.",
    ),
    gauge(
        "prefixroute_endpoint_queueing",
        |of| of.queueing,
        "Share of the prompts ahead that one waits for, as learned.",
    ),
    counter(
        "prefixroute_matched_blocks_total",
        |of| of.matched_blocks as f64,
        "Blocks that the chosen endpoint was believed to hold.",
    ),
    counter(
        "prefixroute_prompt_blocks_total",
        |of| of.total_blocks as f64,
        "Blocks of the prompts sent to an endpoint.",
    ),
    gauge(
        "prefixroute_index_blocks",
        |of| of.index_blocks as f64,
        "Blocks that an endpoint is believed to hold.",
    ),
    gauge(
        "prefixroute_index_capacity_blocks",
        |of| of.index_capacity_blocks as f64,
        "Blocks that an endpoint may be believed to hold.",
    ),
    counter(
        "prefixroute_index_evictions_total",
        |of| of.index_evictions as f64,
        "Blocks that left the belief for want of room.",
    ),
    counter(
        "prefixroute_predicted_tokens_total",
        |of| of.predicted_tokens as f64,
        "Prompt tokens that should have been cached.",
    ),
    counter(
        "prefixroute_cached_tokens_total",
        |of| of.cached_tokens as f64,
        "Prompt tokens that were, as the engine reported.",
    ),
    counter(
        "prefixroute_prompt_tokens_total",
        |of| of.prompt_tokens as f64,
        "Prompt tokens of the answers that told.",
    ),
    counter(
        "prefixroute_belief_truncations_total",
        |of| of.truncations as f64,
        "Prompts that lost credit after a shortfall.",
    ),
    counter(
        "prefixroute_belief_drops_total",
        |of| of.drops as f64,
        "Times that an endpoint's whole belief was dropped: restart, sleep, refused connects, misses.",
    ),
];

/// Adds the families of all endpoints to a page.
pub(super) fn render(rows: &[Row], page: &mut String) {
    for family in &FAMILIES {
        // Writing to a text cannot fail.
        let _ = writeln!(page, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(page, "# TYPE {} {}", family.name, family.kind);
        rows.iter().for_each(|row| family.line(row, page));
        page.push('\n');
    }
}

impl Family {
    fn line(&self, row: &Row, page: &mut String) {
        let Row { endpoint, pool, figures } = row;
        let name = self.name;
        match self.series {
            Series::One(figure) => {
                let figure = figure(figures);
                let _ = writeln!(page, "{name}{{endpoint=\"{endpoint}\",pool=\"{pool}\"}} {figure}");
            }
            Series::By(label, values, figure) => {
                for (place, value) in values.iter().enumerate() {
                    let figure = figure(figures, place);
                    let _ = writeln!(
                        page,
                        "{name}{{endpoint=\"{endpoint}\",pool=\"{pool}\",{label}=\"{value}\"}} {figure}"
                    );
                }
            }
        }
    }
}

impl Count {
    /// Counts on.
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// What it has come to.
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_each_family_once_and_a_line_for_each_series() {
        let row = |endpoint: &str| Row {
            endpoint: endpoint.to_owned(),
            pool: "p".to_owned(),
            figures: Figures { scrapes: [7, 1], in_flight: 3, backlog_seconds: 0.5, ..Figures::default() },
        };
        let mut page = String::new();
        render(&[row("a"), row("b")], &mut page);
        for line in [
            "prefixroute_endpoint_scrapes_total{endpoint=\"a\",pool=\"p\",outcome=\"ok\"} 7\n",
            "prefixroute_endpoint_scrapes_total{endpoint=\"b\",pool=\"p\",outcome=\"failed\"} 1\n",
            "prefixroute_endpoint_in_flight{endpoint=\"b\",pool=\"p\"} 3\n",
            "prefixroute_endpoint_backlog_seconds{endpoint=\"a\",pool=\"p\"} 0.5\n",
            "# TYPE prefixroute_endpoint_in_flight gauge\n",
        ] {
            assert_eq!(page.matches(line).count(), 1, "{line}");
        }
        let lines =
            page.lines().filter(|line| line.starts_with("prefixroute_endpoint_answers_total")).count();
        assert_eq!(lines, 10, "five hundreds of two endpoints");
    }
}
