//! What access log and spans tell of a request besides what became of it: kept only where there are any.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderName, Method, Version, header};
use picker::read::Api;
use pingora_http::RequestHeader;

use super::Entrance;
use super::reply::Refusal;
use super::visit::Visit;
use crate::edge::access_log::{Line, Text};
use crate::edge::tenants::Tenant;
use crate::edge::trace_context::{TraceParent, trace_parent};
use crate::lines::Lines;
use crate::live::Live;
use crate::metrics::Kind;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bytes of a path that are kept; the log shows fewer.
const PATH_BYTES_MAX: usize = 1024;

/// Tells the access log of a request whose head cannot be read: nothing of it is known but where it came in.
pub(super) fn log_refused(live: &Live, Entrance { listener, peer, .. }: Entrance, kind: Kind) {
    let Some(log) = &live.access_log else { return };
    let listener = listener.to_string();
    let line = Line {
        time: SystemTime::now(),
        client: Some(peer.to_canonical()),
        listener: Some(Text(listener.as_bytes())),
        status: Refusal::from(kind).status(),
        api: Api::Other.name(),
        trouble: Some(kind.name()),
        ..Line::default()
    };
    log.write(line.json());
}

/// A request's head, as far as logs and spans go.
pub(super) struct Seen {
    pub(super) access_log: Option<Arc<Lines>>,
    pub(super) decision_log: Option<Arc<Lines>>,
    time: SystemTime,
    client: IpAddr,
    tenant: Option<Arc<Tenant>>,
    listener: String,
    method: Method,
    path: Vec<u8>,
    protocol: &'static str,
    request_id: Option<Vec<u8>>,
    trace: Option<Trace>,
    user_agent: Option<Vec<u8>>,
}

/// Whose part the request is, as its `traceparent` has it.
struct Trace {
    trace_id: String,
    parent_id: String,
    sampled: bool,
}

impl Seen {
    /// A request whose head was read so long `ago`.
    pub(super) fn new(visit: &Visit, head: &RequestHeader, ago: Duration) -> Self {
        let header = |name: HeaderName| head.headers.get(name).map(|value| value.as_bytes().to_vec());
        let path = head.uri.path().as_bytes();
        Self {
            access_log: visit.live.access_log.clone(),
            decision_log: visit.live.decision_log.clone(),
            time: SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH),
            client: visit.client,
            tenant: visit.tenant.clone(),
            listener: visit.entrance.listener.to_string(),
            method: head.method.clone(),
            path: path[..path.len().min(PATH_BYTES_MAX)].to_vec(),
            protocol: protocol(head.version),
            request_id: header(REQUEST_ID),
            trace: trace_parent(&head.headers).map(Trace::of),
            user_agent: header(header::USER_AGENT),
        }
    }

    /// Its part of the line.
    pub(super) fn line(&self) -> Line<'_> {
        Line {
            time: self.time,
            request_id: self.request_id.as_deref().map(Text),
            trace_id: self.trace.as_ref().map(|trace| trace.trace_id.as_str()),
            client: Some(self.client),
            tenant: self.tenant.as_ref().map(|tenant| tenant.name.as_str()),
            listener: Some(Text(self.listener.as_bytes())),
            method: Text(self.method.as_str().as_bytes()),
            path: Text(&self.path),
            protocol: self.protocol,
            user_agent: self.user_agent.as_deref().map(Text),
            ..Line::default()
        }
    }

    /// The caller's span.
    pub(super) fn parent(&self) -> Option<TraceParent<'_>> {
        let Trace { trace_id, parent_id, sampled } = self.trace.as_ref()?;
        Some(TraceParent { trace_id, parent_id, sampled: *sampled })
    }
}

impl Trace {
    fn of(parent: TraceParent<'_>) -> Self {
        let TraceParent { trace_id, parent_id, sampled } = parent;
        Self { trace_id: trace_id.to_owned(), parent_id: parent_id.to_owned(), sampled }
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}
