//! What a pool does on a bad day: further tries, endpoints that are left out, limits, and who waits.

use std::num::NonZeroU32;
use std::time::Duration;

/// What becomes of a request that an endpoint failed before a byte of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Endpoints that one request is tried at.
    pub attempts_max: NonZeroU32,
    /// Further sendings of requests that an endpoint has had, in hundredths of all requests: a storm cannot double the load.
    pub budget_percent: u32,
    /// Whether a request that an endpoint had, and did not answer, is sent to another: it may be generated twice.
    pub unanswered: bool,
}

/// When an endpoint is left out, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Failures in a row after which it is left out.
    pub failures: NonZeroU32,
    /// After that time without a first token, while streams wait for one, it is left out; none for never.
    pub stall: Option<Duration>,
    /// How long it is left out the first time, until one request tries it; twice as long after each that fails.
    pub cooldown: Duration,
    /// The longest that comes to; at least `cooldown`.
    pub cooldown_max: Duration,
    /// A path that answers 200 while all is well; none where engines are not asked.
    pub path: Option<String>,
    /// From one look at the path to the next.
    pub interval: Duration,
}

/// Requests of this router that may be in flight in a pool; none: as many as come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLimits {
    /// In the whole pool.
    pub requests_max: Option<NonZeroU32>,
    /// At each endpoint.
    pub endpoint_requests_max: Option<NonZeroU32>,
}

/// Who waits when the limits are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Requests that may wait; with 0 nobody does.
    pub requests_max: u32,
    /// How long one may wait.
    pub timeout: Duration,
    /// The header by which clients say their priority, in lower case; none where they have no say.
    pub priority_header: Option<String>,
}
