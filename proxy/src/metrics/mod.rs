//! Every metric that the router exports, by name, and the handles through which the hot path counts.
//!
//! Labels are bounded: names come from the configuration, everything else from enums of this crate. Handles are
//! registered once; counting is an atomic add. What belongs to an endpoint is kept by it (`endpoint.rs`), so its series
//! go with it.

mod endpoint;
mod pool;
mod rows;
mod tenant;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use picker::belief::Memory;
use picker::decide::Reading;
use picker::memo::Memo;
use picker::read::{Api, Unreadable};

use crate::reload::Outcome;
pub(crate) use endpoint::{EndpointCounters, Figures};
pub(crate) use pool::PoolFigures;
pub(crate) use rows::{Count, Row};
pub(crate) use tenant::{TenantCounters, TenantFigures};

const DECISION: &str = "prefixroute_decision_seconds";
const FIRST_BYTE: &str = "prefixroute_first_byte_seconds";
const PREDICTION_ERROR: &str = "prefixroute_prediction_error_ratio";

/// From 250 ns: a decision's own time is the claim that the router makes.
const DECISION_BUCKETS: [f64; 14] =
    [250e-9, 500e-9, 1e-6, 2e-6, 4e-6, 8e-6, 16e-6, 32e-6, 64e-6, 128e-6, 256e-6, 512e-6, 1e-3, 10e-3];
const FIRST_BYTE_BUCKETS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Shares of a prompt.
const PREDICTION_ERROR_BUCKETS: [f64; 10] = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0];

/// What the router answered by itself, or how an exchange ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 400: broken HTTP.
    BadRequest,
    /// 400: `cache_salt` twice.
    DuplicateSalt,
    /// 400: a prompt of an isolated tenant that cannot be kept apart.
    Unsalted,
    /// 401, or 400 for keys that differ.
    InvalidKey,
    /// 404: no pool serves it.
    ModelNotFound,
    /// 403: not among the paths that are.
    PathNotServed,
    /// 405: CONNECT.
    MethodNotAllowed,
    /// 408: head or body.
    RequestTimeout,
    /// 431
    HeadersTooLarge,
    /// 413
    BodyTooLarge,
    /// 429, or 413 for what a tenant may never send.
    RateLimited,
    /// 502: nobody could be reached.
    Unreachable,
    /// 502: the upstream broke before a byte.
    UpstreamBroke,
    /// 504
    UpstreamTimeout,
    /// 503: no endpoint at all.
    NoEndpoint,
    /// 429: all endpoints have as many requests as they may, or asked for a pause.
    Saturated,
    /// 503: no memory for the body in time.
    Overloaded,
    /// The upstream broke after its first byte.
    MidStream,
    /// The client left.
    ClientGone,
    /// The router's own doing: a task that ended without an outcome.
    Aborted,
}

impl Kind {
    /// Each with its name, in the order of [`Kind`].
    pub(crate) const ALL: [(Self, &'static str); 20] = [
        (Self::BadRequest, "bad_request"),
        (Self::DuplicateSalt, "duplicate_salt"),
        (Self::Unsalted, "prompt_not_isolated"),
        (Self::InvalidKey, "invalid_api_key"),
        (Self::ModelNotFound, "model_not_found"),
        (Self::PathNotServed, "path_not_served"),
        (Self::MethodNotAllowed, "method_not_allowed"),
        (Self::RequestTimeout, "request_timeout"),
        (Self::HeadersTooLarge, "headers_too_large"),
        (Self::BodyTooLarge, "body_too_large"),
        (Self::RateLimited, "rate_limit_exceeded"),
        (Self::Unreachable, "unreachable"),
        (Self::UpstreamBroke, "upstream_broke"),
        (Self::UpstreamTimeout, "upstream_timeout"),
        (Self::NoEndpoint, "no_endpoint"),
        (Self::Saturated, "saturated"),
        (Self::Overloaded, "overloaded"),
        (Self::MidStream, "mid_stream"),
        (Self::ClientGone, "client_gone"),
        (Self::Aborted, "aborted"),
    ];

    /// Whether a line each would only fill a disk: what clients do wrong, and load that is turned away.
    pub(crate) fn is_quiet(self) -> bool {
        match self {
            Self::BadRequest
            | Self::DuplicateSalt
            | Self::Unsalted
            | Self::InvalidKey
            | Self::ModelNotFound => true,
            Self::PathNotServed | Self::MethodNotAllowed | Self::RequestTimeout | Self::BodyTooLarge => true,
            Self::HeadersTooLarge | Self::RateLimited | Self::Saturated | Self::ClientGone => true,
            Self::Unreachable | Self::UpstreamBroke | Self::UpstreamTimeout | Self::NoEndpoint => false,
            Self::Overloaded | Self::MidStream | Self::Aborted => false,
        }
    }

    /// The value of the label `kind`, and the error's `code` for the client.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

const APIS: [Api; 7] =
    [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Embeddings, Api::Tokenize, Api::Other];

/// The recorder of one router, and the handles of the metrics that are not an endpoint's.
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    handles: Handles,
}

impl Metrics {
    /// A recorder of its own: two routers in one process do not mix.
    pub(crate) fn new() -> Self {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(DECISION.to_owned()), &DECISION_BUCKETS)
            .and_then(|it| {
                it.set_buckets_for_metric(Matcher::Full(FIRST_BYTE.to_owned()), &FIRST_BYTE_BUCKETS)
            })
            .and_then(|it| {
                it.set_buckets_for_metric(
                    Matcher::Full(PREDICTION_ERROR.to_owned()),
                    &PREDICTION_ERROR_BUCKETS,
                )
            })
            .expect("the bucket lists are not empty");
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        let handles = with_local_recorder(&recorder, || {
            describe();
            Handles::register()
        });
        Self { handle, handles }
    }

    /// The page of `/metrics`, with the pools, endpoints and tenants of this moment.
    pub(crate) fn render(
        &self,
        pools: &[Row<PoolFigures>],
        endpoints: &[Row<Figures>],
        tenants: &[Row<TenantFigures>],
    ) -> String {
        let mut page = self.handle.render();
        rows::render(&pool::FAMILIES, pools, &mut page);
        rows::render(&endpoint::FAMILIES, endpoints, &mut page);
        if !tenants.is_empty() {
            rows::render(&tenant::FAMILIES, tenants, &mut page);
        }
        page
    }

    /// Lines of the access log that were lost so far.
    pub(crate) fn log_lines_dropped(&self, requests: u64, decisions: u64) {
        self.handles.access_log_dropped.absolute(requests);
        self.handles.decision_log_dropped.absolute(decisions);
    }

    /// Folds recorded samples into the buckets; without it they would pile up between two scrapes.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    pub(crate) fn request(&self, api: Api) {
        if let Some(place) = APIS.iter().position(|&other| other == api) {
            self.handles.requests[place].increment(1);
        }
    }

    pub(crate) fn error(&self, kind: Kind) {
        self.handles.errors[kind as usize].increment(1);
    }

    pub(crate) fn reading(&self, reading: &Reading) {
        match reading {
            Reading::Unreadable(Unreadable::Encoding) => self.handles.unreadable[0].increment(1),
            Reading::Unreadable(Unreadable::Syntax(_)) => self.handles.unreadable[1].increment(1),
            Reading::Prompt | Reading::NoPrompt => {}
        }
    }

    pub(crate) fn decided(&self, seconds: f64, cold: bool) {
        self.handles.decision.record(seconds);
        if cold {
            self.handles.cold.increment(1);
        }
    }

    pub(crate) fn first_byte(&self, seconds: f64) {
        self.handles.first_byte.record(seconds);
    }

    /// A prediction was off by this share of the prompt.
    pub(crate) fn predicted(&self, error: f64) {
        self.handles.prediction_error.record(error);
    }

    pub(crate) fn index(&self, memory: Memory) {
        self.handles.index_bytes.set(memory.bytes as f64);
        self.handles.index_bytes_max.set(memory.bytes_max as f64);
    }

    /// The memos of all pools.
    pub(crate) fn memos<'a>(&self, memos: impl Iterator<Item = &'a Memo> + Clone) {
        self.handles.memo_bytes.set(memos.clone().map(Memo::bytes).sum::<usize>() as f64);
        self.handles.memo[0].absolute(memos.clone().map(Memo::hits).sum());
        self.handles.memo[1].absolute(memos.map(Memo::misses).sum());
    }

    /// A configuration was read again.
    pub(crate) fn reloaded(&self, outcome: &Outcome) {
        let place = match outcome {
            Outcome::Applied { .. } => 0,
            Outcome::Unchanged => 1,
            Outcome::Refused { .. } => 2,
        };
        self.handles.reloads[place].increment(1);
    }

    /// The configuration at work, and whether it is what the file says.
    pub(crate) fn configured(&self, version: u64, in_sync: bool) {
        self.handles.config_version.set(version as f64);
        self.handles.config_in_sync.set(f64::from(u8::from(in_sync)));
    }

    /// A client's TLS handshake failed.
    pub(crate) fn handshake_failed(&self) {
        self.handles.handshake_failures.increment(1);
    }

    /// Connections of clients: open, how many there may be, how often there were as many.
    pub(crate) fn connections(&self, open: usize, max: usize, times_full: u64) {
        self.handles.connections.set(open as f64);
        self.handles.connections_max.set(max as f64);
        self.handles.connections_full.absolute(times_full);
    }

    pub(crate) fn retry(&self) {
        self.handles.retries.increment(1);
    }
}

struct Handles {
    requests: [Counter; APIS.len()],
    errors: [Counter; Kind::ALL.len()],
    unreadable: [Counter; 2],
    cold: Counter,
    retries: Counter,
    decision: Histogram,
    first_byte: Histogram,
    prediction_error: Histogram,
    index_bytes: Gauge,
    index_bytes_max: Gauge,
    memo_bytes: Gauge,
    memo: [Counter; 2],
    reloads: [Counter; 3],
    config_version: Gauge,
    config_in_sync: Gauge,
    handshake_failures: Counter,
    access_log_dropped: Counter,
    decision_log_dropped: Counter,
    connections: Gauge,
    connections_max: Gauge,
    connections_full: Counter,
}

impl Handles {
    fn register() -> Self {
        Self {
            requests: APIS.map(|api| counter!("prefixroute_requests_total", "api" => api.name())),
            errors: Kind::ALL.map(|(_, name)| counter!("prefixroute_errors_total", "kind" => name)),
            unreadable: ["encoding", "syntax"]
                .map(|reason| counter!("prefixroute_unreadable_bodies_total", "reason" => reason)),
            cold: counter!("prefixroute_cold_requests_total"),
            retries: counter!("prefixroute_retries_total"),
            decision: histogram!(DECISION),
            first_byte: histogram!(FIRST_BYTE),
            prediction_error: histogram!(PREDICTION_ERROR),
            index_bytes: gauge!("prefixroute_index_bytes"),
            index_bytes_max: gauge!("prefixroute_index_bytes_max"),
            memo_bytes: gauge!("prefixroute_memo_bytes"),
            reloads: ["applied", "unchanged", "refused"]
                .map(|outcome| counter!("prefixroute_config_reloads_total", "outcome" => outcome)),
            config_version: gauge!("prefixroute_config_version"),
            config_in_sync: gauge!("prefixroute_config_in_sync"),
            handshake_failures: counter!("prefixroute_tls_handshake_failures_total"),
            access_log_dropped: counter!("prefixroute_access_log_dropped_total"),
            decision_log_dropped: counter!("prefixroute_decision_log_dropped_total"),
            connections: gauge!("prefixroute_connections"),
            connections_max: gauge!("prefixroute_connections_max"),
            connections_full: counter!("prefixroute_connections_full_total"),
            memo: ["hit", "miss"]
                .map(|outcome| counter!("prefixroute_memo_lookups_total", "outcome" => outcome)),
        }
    }
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("prefixroute_requests_total", "Requests received, by API.");
    describe_counter!("prefixroute_errors_total", "Requests that ended badly, by kind.");
    describe_counter!(
        "prefixroute_unreadable_bodies_total",
        "Bodies routed by load because they could not be read."
    );
    describe_counter!(
        "prefixroute_cold_requests_total",
        "Prompts of which no endpoint was believed to hold a block."
    );
    describe_counter!("prefixroute_config_reloads_total", "Readings of the configuration, by outcome.");
    describe_gauge!("prefixroute_config_version", "Configurations that were put to work so far.");
    describe_gauge!("prefixroute_config_in_sync", "1 when the configuration at work is what the file says.");
    describe_counter!("prefixroute_tls_handshake_failures_total", "TLS handshakes of clients that failed.");
    describe_counter!("prefixroute_access_log_dropped_total", "Lines of the access log that were lost.");
    describe_counter!("prefixroute_decision_log_dropped_total", "Lines of the decision log that were lost.");
    describe_gauge!("prefixroute_connections", "Connections of clients.");
    describe_gauge!("prefixroute_connections_max", "Connections of clients that there may be.");
    describe_counter!(
        "prefixroute_connections_full_total",
        "Times that there were as many, and others waited."
    );
    describe_counter!("prefixroute_retries_total", "Requests that went to a further endpoint.");
    describe_histogram!(DECISION, "Time of a decision, from the body's bytes to the ordered endpoints.");
    describe_histogram!(FIRST_BYTE, "Time from a request's head to the first byte of its answer.");
    describe_gauge!("prefixroute_index_bytes", "Bytes that the belief takes now.");
    describe_gauge!(
        "prefixroute_index_bytes_max",
        "Bytes that the belief may take with the capacities as they are."
    );
    describe_gauge!(
        "prefixroute_memo_bytes",
        "Bytes of beginnings of prompts that are kept, 16 MiB at most for each pool."
    );
    describe_counter!(
        "prefixroute_memo_lookups_total",
        "Long lists of tools or messages, by whether their beginning was known."
    );
    describe_histogram!(
        PREDICTION_ERROR,
        "Predicted less reported cached tokens, without the sign, as a share of the prompt."
    );
}
