//! What is counted of each tenant, and its lines on the page.

use super::rows::{Count, Family, Series, counter, gauge};
use crate::edge::limits::Limit;

/// Figures of one tenant that are counted as they happen.
#[derive(Debug, Default)]
pub(crate) struct TenantCounters {
    pub(crate) requests: Count,
    refused: [Count; Limit::ALL.len()],
}

/// What a row shows.
pub(crate) struct TenantFigures {
    requests: u64,
    refused: [u64; Limit::ALL.len()],
    in_flight: u32,
}

/// What the page shows of each tenant.
pub(super) const FAMILIES: [Family<TenantFigures>; 3] = [
    counter("prefixroute_tenant_requests_total", |of| of.requests as f64, "Requests with a key of a tenant."),
    Family {
        name: "prefixroute_tenant_refused_total",
        kind: "counter",
        help: "Requests of a tenant that were refused, by the limit.",
        series: Series::By("limit", &Limit::NAMES, |of, place| of.refused[place] as f64),
    },
    gauge("prefixroute_tenant_in_flight", |of| of.in_flight.into(), "Requests of a tenant in flight."),
];

impl TenantCounters {
    /// A request was refused.
    pub(crate) fn refuse(&self, limit: Limit) {
        if let Some(place) = Limit::ALL.iter().position(|&other| other == limit) {
            self.refused[place].add(1);
        }
    }

    /// The figures now.
    pub(crate) fn figures(&self, in_flight: u32) -> TenantFigures {
        let refused = std::array::from_fn(|place| self.refused[place].read());
        TenantFigures { requests: self.requests.read(), refused, in_flight }
    }
}
