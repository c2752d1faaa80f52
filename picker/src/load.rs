//! What is known of an endpoint's load when a decision is made.

/// Load of one endpoint. A figure that was never measured, or is stale, is `None`: unknown is never idle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that wait in the engine's queue.
    pub waiting: Option<f64>,
    /// Requests that the engine runs.
    pub running: Option<f64>,
    /// Share of the KV cache that running requests hold, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests that this router has in flight there, now.
    pub in_flight: u32,
}
