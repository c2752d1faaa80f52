//! What is counted of each pool, and its lines on the page.

use super::rows::{Family, Series, counter, gauge};

/// What a row shows.
pub(crate) struct PoolFigures {
    pub(crate) in_flight: u32,
    pub(crate) waiting: usize,
    pub(crate) waited: u64,
    /// Turned away at once, and after a wait.
    pub(crate) saturated: [u64; 2],
    pub(crate) retries_denied: u64,
    pub(crate) resent: u64,
}

/// What the page shows of each pool.
pub(super) const FAMILIES: [Family<PoolFigures>; 6] = [
    gauge("prefixroute_pool_in_flight", |of| of.in_flight.into(), "Requests of a pool in flight."),
    gauge(
        "prefixroute_pool_waiting",
        |of| of.waiting as f64,
        "Requests that wait for an endpoint with room.",
    ),
    counter("prefixroute_pool_waited_total", |of| of.waited as f64, "Requests that have waited for one."),
    Family {
        name: "prefixroute_pool_saturated_total",
        kind: "counter",
        help: "Requests that found no room, by whether they were turned away at once or after a wait.",
        series: Series::By("when", &["at_once", "waiting"], |of, place| of.saturated[place] as f64),
    },
    counter(
        "prefixroute_pool_retries_denied_total",
        |of| of.retries_denied as f64,
        "Requests that were not sent once more because the retry budget was spent.",
    ),
    counter(
        "prefixroute_pool_resent_total",
        |of| of.resent as f64,
        "Requests sent to the same engine again because a kept connection ended before it answered.",
    ),
];
