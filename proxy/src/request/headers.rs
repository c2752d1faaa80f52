//! Heads on their way through: what belongs to one connection stays there, the rest passes as it came.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use picker::decide::{Choice, Decision};
use pingora_core::Result;
use pingora_http::{HeaderNameVariant, RequestHeader, ResponseHeader};

use crate::edge::client_ip::Forwarded;
use crate::edge::keys::Credentials;
use crate::endpoints::Endpoint;

/// The endpoint that answered.
const ENDPOINT: &str = "x-prefixroute-endpoint";
/// The policy that chose it.
const POLICY: &str = "x-prefixroute-policy";
/// Blocks that it was believed to hold, of blocks in the prompt.
const MATCH: &str = "x-prefixroute-match";
/// Microseconds that the decision took.
const DECISION: &str = "x-prefixroute-decision-us";

/// Headers of one hop (RFC 9110, 7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "http2-settings",
];

/// Room for the head of an ordinary request.
const HEAD_BYTES: usize = 1024;

/// Names in a `Connection` header that are looked at; one with more has them all removed up to here.
const NOMINATED_MAX: usize = 32;

/// The head of the request as it goes to the engine: the client's own in origin form and in its own order and spelling,
/// less hop-by-hop headers and copies of the router's own, with the endpoint's `Host` and one framing.
///
/// `None`: a target that cannot stand in a request line. HOT: bytes are written as they are, no map is built.
pub(crate) fn to_engine(
    client: &RequestHeader,
    endpoint: &Endpoint,
    body_bytes: usize,
    changes: Changes<'_>,
) -> Option<BytesMut> {
    let target = target(client);
    if target.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r' | b' ')) {
        return None;
    }
    let mut head = BytesMut::with_capacity(HEAD_BYTES);
    for part in [client.method.as_str().as_bytes(), b" ", target, b" HTTP/1.1\r\n"] {
        head.put_slice(part);
    }
    put_header(&mut head, b"Host", endpoint.host.as_bytes());
    let nominated = nominated(&client.headers);
    let passed = client.map(|name, value| {
        let ours = is(&name, "host") || is(&name, "content-length") || changes.leave_out(&name);
        if passes(&name, &nominated) && !ours {
            put_header(&mut head, spelled(&name), value.as_bytes());
        }
        Ok(())
    });
    for (name, value) in changes.add() {
        put_header(&mut head, name.as_str().as_bytes(), value.as_bytes());
    }
    let framed = client.headers.contains_key(header::CONTENT_LENGTH)
        || client.headers.contains_key(header::TRANSFER_ENCODING)
        || matches!(client.method, Method::POST | Method::PUT | Method::PATCH);
    if framed || body_bytes > 0 {
        put_header(&mut head, b"Content-Length", body_bytes.to_string().as_bytes());
    }
    head.put_slice(b"\r\n");
    passed.ok().map(|()| head)
}

/// What the configuration changes of the client's headers.
#[derive(Clone, Copy)]
pub(crate) struct Changes<'a> {
    pub(crate) credentials: &'a Credentials,
    pub(crate) forwarded: Option<&'a Forwarded>,
}

impl<'a> Changes<'a> {
    fn leave_out(&self, name: &HeaderNameVariant<'_>) -> bool {
        let forwarded = self.forwarded.iter().flat_map(|forwarded| &forwarded.leave_out);
        self.credentials.leave_out.iter().chain(forwarded).any(|left| is(name, left.as_str()))
    }

    fn add(self) -> impl Iterator<Item = &'a (HeaderName, HeaderValue)> {
        self.credentials.add.iter().chain(self.forwarded.into_iter().flat_map(|forwarded| &forwarded.add))
    }
}

fn put_header(head: &mut BytesMut, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        head.put_slice(part);
    }
}

/// The request's target in origin form: a client that names another authority does not choose the upstream.
pub(super) fn target(client: &RequestHeader) -> &[u8] {
    let raw = client.raw_path();
    match client.uri.path_and_query() {
        Some(origin) if !raw.starts_with(b"/") && raw != b"*" => origin.as_str().as_bytes(),
        _ => raw,
    }
}

/// The engine's answer as the client gets it, in the engine's order and spelling.
///
/// The framing is made anew for the client's side of the connection: a known length stays, anything else is chunked over
/// HTTP/1.1, closed over 1.0, and its own over HTTP/2.
pub(crate) fn to_client(
    engine: &ResponseHeader,
    client: &RequestHeader,
    ours: Option<&Ours>,
) -> Result<Box<ResponseHeader>> {
    let mut head = Box::new(ResponseHeader::build(engine.status, Some(engine.headers.len() + 4))?);
    head.set_reason_phrase(engine.get_reason_phrase())?;
    let nominated = nominated(&engine.headers);
    engine.map(|name, value| match name {
        _ if !passes(&name, &nominated) => Ok(()),
        HeaderNameVariant::Case(name) => head.append_header(name.clone(), value.clone()).map(|_| ()),
        HeaderNameVariant::Titled(name) => head.append_header(name.to_owned(), value.clone()).map(|_| ()),
    })?;
    let bodiless = client.method == Method::HEAD || matches!(engine.status.as_u16(), 204 | 304);
    if client.version == Version::HTTP_11 && !bodiless && !head.headers.contains_key(header::CONTENT_LENGTH) {
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    head.set_version(if client.version == Version::HTTP_2 { Version::HTTP_2 } else { Version::HTTP_11 });
    if let Some(ours) = ours {
        ours.insert(&mut head)?;
    }
    Ok(head)
}

/// Whether a transfer coding other than chunked lies on the body: it would go on without its name.
pub(crate) fn is_coded(headers: &HeaderMap) -> bool {
    let chunked = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    !headers.get_all(header::TRANSFER_ENCODING).iter().all(chunked)
}

/// Whether a header goes on to the next hop.
fn passes(name: &HeaderNameVariant<'_>, nominated: &[HeaderName]) -> bool {
    let nominated = nominated.iter().map(HeaderName::as_str);
    !HOP_BY_HOP
        .into_iter()
        .chain([ENDPOINT, POLICY, MATCH, DECISION])
        .chain(nominated)
        .any(|hop| is(name, hop))
}

fn is(name: &HeaderNameVariant<'_>, wanted: &str) -> bool {
    spelled(name).eq_ignore_ascii_case(wanted.as_bytes())
}

/// The name as its sender spelled it.
fn spelled<'a>(name: &'a HeaderNameVariant<'_>) -> &'a [u8] {
    match name {
        HeaderNameVariant::Case(name) => name.as_slice(),
        HeaderNameVariant::Titled(name) => name.as_bytes(),
    }
}

/// What the router's own headers say.
pub(crate) struct Ours {
    endpoint: HeaderValue,
    policy: &'static str,
    matched: String,
    decision_us: String,
}

impl Ours {
    /// For a request that went to `endpoint` by `choice`.
    pub(crate) fn new(
        endpoint: &Endpoint,
        policy: &'static str,
        choice: &Choice,
        decision: &Decision,
        took: Duration,
    ) -> Self {
        let matched = format!("{}/{}", choice.matched, decision.blocks.total());
        let decision_us = format!("{:.1}", took.as_nanos() as f64 / 1e3);
        Self { endpoint: endpoint.label.clone(), policy, matched, decision_us }
    }

    fn insert(&self, head: &mut ResponseHeader) -> Result<()> {
        head.insert_header(ENDPOINT, self.endpoint.clone())?;
        head.insert_header(POLICY, self.policy)?;
        head.insert_header(MATCH, self.matched.as_str())?;
        head.insert_header(DECISION, self.decision_us.as_str())
    }
}

/// Names that `Connection` makes hop-by-hop. Framing, `Host` and what the router sets itself are not the sender's to drop.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).map(str::trim);
    names
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .filter(|name| ![header::HOST, header::CONTENT_LENGTH, header::CONTENT_TYPE].contains(name))
        .take(NOMINATED_MAX)
        .collect()
}
