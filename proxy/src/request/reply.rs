//! Answers that the router makes itself: OpenAI's error shape, one place that maps a cause to a status.

use bytes::Bytes;
use http::header;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;

use super::forward::{Stop, write_alone};
use super::visit::Visit;
use crate::clock::Clock;
use crate::edge::keys::CHALLENGE;
use crate::edge::limits::Refused;
use crate::edge::tenants::Stranger;
use crate::metrics::Kind;
use crate::pool::Saturated;

/// Seconds after which a client may try again, where the cause passes by itself.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Why the router answers by itself, and what the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    status: u16,
    message: &'static str,
    /// Seconds after which the client may try again; none where that is of no use.
    retry_after: Option<u64>,
}

impl From<Kind> for Refusal {
    /// The verdict on each cause. No `_` arm: a new cause has to choose.
    fn from(kind: Kind) -> Self {
        let (status, retry, message) = match kind {
            Kind::BadRequest => (400, false, "the request is not valid HTTP"),
            Kind::DuplicateSalt => (400, false, "cache_salt stands in the body more than once, wanted once"),
            Kind::Unsalted => {
                (400, false, "the body is no JSON object, or not for an API whose prompts can be kept apart")
            }
            Kind::InvalidKey => (401, false, "the API key is missing or not known here"),
            Kind::ModelNotFound => (404, false, "the model does not exist, or is not served here"),
            Kind::PathNotServed => (403, false, "this path is not served here"),
            Kind::MethodNotAllowed => (405, false, "CONNECT is not served"),
            Kind::RequestTimeout => (408, false, "the request did not arrive in time"),
            Kind::HeadersTooLarge => {
                (431, false, "the request's headers are larger or more than this server accepts")
            }
            Kind::BodyTooLarge => (413, false, "the request body is larger than this server accepts"),
            Kind::RateLimited => (429, true, "too many requests for this key"),
            Kind::Unreachable => (502, false, "no endpoint could be reached"),
            Kind::UpstreamBroke => (502, false, "the endpoint broke the connection before it answered"),
            Kind::UpstreamTimeout => (504, false, "the endpoint did not answer in time"),
            Kind::NoEndpoint => (503, true, "there is no endpoint to send the request to"),
            Kind::Saturated => (429, true, "all endpoints have as many requests as they can take"),
            Kind::Overloaded => (503, true, "no memory for the request body in time"),
            Kind::MidStream | Kind::Aborted => (500, false, "the request was aborted"),
            // Nobody is left to read it; the log says it as nginx does.
            Kind::ClientGone => (499, false, "the client left"),
        };
        Self { kind, status, message, retry_after: retry.then_some(RETRY_AFTER_SECONDS) }
    }
}

impl From<Stranger> for Refusal {
    fn from(stranger: Stranger) -> Self {
        let (kind, status, message) = (Kind::InvalidKey, stranger.status(), stranger.message());
        Self { kind, status, message, retry_after: None }
    }
}

impl From<Saturated> for Refusal {
    fn from(Saturated(left): Saturated) -> Self {
        let seconds = left.map_or(RETRY_AFTER_SECONDS, |left| left.as_millis().div_ceil(1_000) as u64);
        Self { retry_after: Some(seconds.max(RETRY_AFTER_SECONDS)), ..Kind::Saturated.into() }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let (kind, status, message) = (Kind::RateLimited, refused.status(), refused.message());
        Self { kind, status, message, retry_after: refused.retry_after_seconds() }
    }
}

impl Refusal {
    /// The status that the client gets.
    pub(crate) const fn status(&self) -> u16 {
        self.status
    }

    /// Head and body in OpenAI's shape.
    fn shaped(&self) -> pingora_core::Result<(ResponseHeader, Bytes)> {
        let error_type = match self.status {
            429 => "rate_limit_error",
            ..500 => "invalid_request_error",
            _ => "server_error",
        };
        let body = serde_json::json!({
            "error": {"message": self.message, "type": error_type, "param": null, "code": self.kind.name()}
        });
        let mut head = ResponseHeader::build(self.status, Some(8))?;
        head.insert_header(header::CONTENT_TYPE, "application/json")?;
        if let Some(seconds) = self.retry_after {
            head.insert_header(header::RETRY_AFTER, seconds)?;
        }
        if self.status == 401 {
            head.insert_header(header::WWW_AUTHENTICATE, CHALLENGE)?;
        }
        Ok((head, Bytes::from(body.to_string())))
    }
}

/// Answers with an error. Errors: the client is gone.
pub(crate) async fn error(
    session: &mut ServerSession,
    refusal: Refusal,
    visit: &Visit,
    clock: Clock,
) -> pingora_core::Result<()> {
    let (mut head, body) = refusal.shaped()?;
    visit.dress(session.req_header(), &mut head, clock)?;
    send(session, head, body).await
}

/// Answers with a JSON document of the router's own making. Errors: the client is gone.
pub(super) async fn json(
    session: &mut ServerSession,
    body: Bytes,
    visit: &Visit,
    clock: Clock,
) -> pingora_core::Result<()> {
    let mut head = ResponseHeader::build(200, Some(8))?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    visit.dress(session.req_header(), &mut head, clock)?;
    send(session, head, body).await
}

/// Answers with a head that no body follows, and drops what came with the request. Error: the client left.
pub(super) async fn head_alone(session: &mut ServerSession, head: ResponseHeader) -> Result<(), Stop> {
    session.drain_request_body().await.map_err(|_| Stop::Gone)?;
    write_alone(session, Box::new(head)).await.map_err(|_| Stop::Gone)
}

/// Answers a request whose head could not be read, or not whole, and closes.
pub(crate) async fn no_head(session: &mut ServerSession, kind: Kind) -> pingora_core::Result<()> {
    let (mut head, body) = Refusal::from(kind).shaped()?;
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    session.write_error_response(head, body).await
}

/// Answers with a whole body.
pub(crate) async fn send(
    session: &mut ServerSession,
    mut head: ResponseHeader,
    body: Bytes,
) -> pingora_core::Result<()> {
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    let bodiless = session.req_header().method == http::Method::HEAD || body.is_empty();
    session.write_response_header(Box::new(head)).await?;
    if bodiless { session.finish_body().await } else { session.write_response_body(body, true).await }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::edge::limits::Limit;

    const OPERATORS: &str = include_str!("../../../deploy/README.md");
    /// Endings of which no client is told by a status.
    const UNTOLD: [Kind; 3] = [Kind::MidStream, Kind::ClientGone, Kind::Aborted];

    /// Status, code, and whether the client may try again.
    type Row = [String; 3];

    fn row(refusal: Refusal) -> Row {
        let untold = UNTOLD.contains(&refusal.kind);
        let status = if untold { "none".to_owned() } else { refusal.status.to_string() };
        let retry = if refusal.retry_after.is_some() { "yes" } else { "no" };
        [status, format!("`{}`", refusal.kind.name()), retry.to_owned()]
    }

    fn written() -> Vec<Row> {
        let (_, rest) = OPERATORS.split_once("<!-- statuses: ").expect("a mark before the table");
        let (table, _) = rest.split_once("<!-- end of statuses -->").expect("a mark behind the table");
        let cells = |line: &str| -> Option<Row> {
            let mut cells = line.split('|').skip(1).map(|cell| cell.trim().to_owned());
            Some([cells.next()?, cells.next()?, cells.next()?])
        };
        table.lines().filter_map(cells).filter(|[_, code, _]| code.starts_with('`')).collect()
    }

    #[test]
    fn operators_are_told_every_status_that_the_router_makes() {
        let strangers = [Stranger::MissingKey, Stranger::WrongKey, Stranger::SeveralKeys];
        let later = [Some(Duration::ZERO), None].map(|after| Refused { limit: Limit::Tokens, after });
        let made: BTreeSet<Row> = Kind::ALL
            .iter()
            .map(|(kind, _)| Refusal::from(*kind))
            .chain(strangers.map(Refusal::from))
            .chain(later.map(Refusal::from))
            .map(row)
            .collect();
        let written = written();
        assert_eq!(written.iter().cloned().collect::<BTreeSet<_>>(), made);
        assert_eq!(written.len(), made.len(), "each once");
    }
}
