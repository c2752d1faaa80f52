//! Heads on their way through: what belongs to one connection stays there, the rest passes as it came.

use http::{HeaderName, HeaderValue, Method, Version, header};
use picker::decide::{Choice, Decision};
use pingora_core::Result;
use pingora_http::{RequestHeader, ResponseHeader};

use crate::endpoints::Endpoint;

/// The endpoint that answered.
pub(crate) const ENDPOINT: HeaderName = HeaderName::from_static("x-prefixroute-endpoint");
/// The policy that chose it.
pub(crate) const POLICY: HeaderName = HeaderName::from_static("x-prefixroute-policy");
/// Blocks that it was believed to hold, of blocks in the prompt.
pub(crate) const MATCH: HeaderName = HeaderName::from_static("x-prefixroute-match");

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

/// Names in a `Connection` header that are looked at; one with more has them all removed up to here.
const NOMINATED_MAX: usize = 32;

/// The request as the engine gets it: the client's own head in origin form, less hop-by-hop headers and copies of the
/// router's own, with the endpoint's `Host` and one framing.
pub(crate) fn to_engine(
    client: &RequestHeader,
    endpoint: &Endpoint,
    body_bytes: usize,
) -> Result<RequestHeader> {
    let mut head = client.clone();
    let framed = client.headers.contains_key(header::CONTENT_LENGTH)
        || client.headers.contains_key(header::TRANSFER_ENCODING)
        || matches!(client.method, Method::POST | Method::PUT | Method::PATCH);
    if client.uri.authority().is_some()
        && let Some(origin) = client.uri.path_and_query()
    {
        head.set_uri(http::Uri::from(origin.clone()));
    }
    head.set_version(Version::HTTP_11);
    for name in nominated(&client.headers) {
        head.remove_header(&name);
    }
    for name in HOP_BY_HOP {
        head.remove_header(name);
    }
    for name in [ENDPOINT, POLICY, MATCH, header::CONTENT_LENGTH] {
        head.remove_header(&name);
    }
    head.insert_header(header::HOST, endpoint.host.clone())?;
    if framed || body_bytes > 0 {
        head.insert_header(header::CONTENT_LENGTH, body_bytes)?;
    }
    Ok(head)
}

/// The engine's answer as the client gets it.
///
/// The framing is made anew for the client's side of the connection: a known length stays, anything else is chunked over
/// HTTP/1.1, closed over 1.0, and its own over HTTP/2.
pub(crate) fn to_client(
    engine: &ResponseHeader,
    client: &RequestHeader,
    ours: Option<&Ours>,
) -> Result<Box<ResponseHeader>> {
    let mut head = Box::new(engine.clone());
    for name in nominated(&engine.headers) {
        head.remove_header(&name);
    }
    for name in HOP_BY_HOP {
        head.remove_header(name);
    }
    for name in [ENDPOINT, POLICY, MATCH] {
        head.remove_header(&name);
    }
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

/// What the three headers say.
pub(crate) struct Ours {
    endpoint: HeaderValue,
    policy: &'static str,
    matched: String,
}

impl Ours {
    /// For a request that went to `endpoint` by `choice`.
    pub(crate) fn new(
        endpoint: &Endpoint,
        policy: &'static str,
        choice: &Choice,
        decision: &Decision,
    ) -> Self {
        let matched = format!("{}/{}", choice.matched, decision.blocks.total());
        Self { endpoint: endpoint.label.clone(), policy, matched }
    }

    fn insert(&self, head: &mut ResponseHeader) -> Result<()> {
        head.insert_header(ENDPOINT, self.endpoint.clone())?;
        head.insert_header(POLICY, self.policy)?;
        head.insert_header(MATCH, self.matched.as_str())
    }
}

/// Names that `Connection` makes hop-by-hop. Framing, `Host` and what the router sets itself are not the sender's to drop.
fn nominated(headers: &http::HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).map(str::trim);
    names
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .filter(|name| ![header::HOST, header::CONTENT_LENGTH, header::CONTENT_TYPE].contains(name))
        .take(NOMINATED_MAX)
        .collect()
}
