//! What is known of an endpoint's load when a decision is made.

use crate::ledger::InFlight;
use crate::pace::Pace;

/// Load of one endpoint. A figure that was never measured, or is stale, is `None`: unknown is never idle. What this router
/// itself has in flight there is always known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that wait in the engine's queue.
    pub waiting: Option<f64>,
    /// Requests that the engine runs.
    pub running: Option<f64>,
    /// Share of the KV cache that running requests hold, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests that wait at the engine and are not this router's.
    pub foreign: Option<f64>,
    /// Of the requests in flight, those sent since the engine was asked for its figures: it has not counted them.
    pub unseen: u32,
    /// What this router has in flight there, now.
    pub in_flight: InFlight,
    /// How fast the endpoint computes.
    pub pace: Pace,
}
