//! What is counted of each endpoint, and its lines on the page.

use super::rows::{Count, Family, Series, counter, gauge};
use crate::endpoints::health::Failure;

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

/// What a row shows.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) usable: bool,
    pub(crate) is_out: bool,
    pub(crate) is_busy: bool,
    pub(crate) ejections: u64,
    pub(crate) failures: [u64; Failure::NAMES.len()],
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

/// What the page shows of each endpoint.
pub(super) const FAMILIES: [Family<Figures>; 25] = [
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
        "prefixroute_endpoint_left_out",
        |of| f64::from(u8::from(of.is_out)),
        "1 while an endpoint is left out for failures, or by its health path.",
    ),
    gauge(
        "prefixroute_endpoint_busy",
        |of| f64::from(u8::from(of.is_busy)),
        "1 while an endpoint is spared because it answered 429 or 503.",
    ),
    counter(
        "prefixroute_endpoint_ejections_total",
        |of| of.ejections as f64,
        "Times that an endpoint was left out for failures.",
    ),
    Family {
        name: "prefixroute_endpoint_failures_total",
        kind: "counter",
        help: "Requests that failed at an endpoint, and stalls of it, by kind.",
        series: Series::By("kind", &Failure::NAMES, |of, place| of.failures[place] as f64),
    },
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
