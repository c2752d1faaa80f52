//! Answers that the router makes itself: OpenAI's error shape, one place that maps a cause to a status.

use bytes::Bytes;
use http::header;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;

use crate::metrics::Kind;

/// Seconds after which a client may try again, where the cause passes by itself.
const RETRY_AFTER_SECONDS: u16 = 1;

/// What the client is told.
struct Verdict {
    status: u16,
    error_type: &'static str,
    message: &'static str,
    retry_after: bool,
}

/// The verdict on each cause. No `_` arm: a new cause has to choose.
fn verdict(kind: Kind) -> Verdict {
    let (status, retry_after, message) = match kind {
        Kind::BadRequest => (400, false, "the request is not valid HTTP"),
        Kind::DuplicateSalt => (400, false, "cache_salt stands in the body more than once, wanted once"),
        Kind::MethodNotAllowed => (405, false, "CONNECT is not served"),
        Kind::RequestTimeout => (408, false, "the request body did not arrive in time"),
        Kind::BodyTooLarge => (413, false, "the request body is larger than this server accepts"),
        Kind::Unreachable => (502, false, "no endpoint could be reached"),
        Kind::UpstreamBroke => (502, false, "the endpoint broke the connection before it answered"),
        Kind::UpstreamTimeout => (504, false, "the endpoint did not answer in time"),
        Kind::NoEndpoint => (503, true, "there is no endpoint to send the request to"),
        Kind::Overloaded => (503, true, "no memory for the request body in time"),
        Kind::MidStream | Kind::Aborted => (500, false, "the request was aborted"),
        // Nobody is left to read it; the log says it as nginx does.
        Kind::ClientGone => (499, false, "the client left"),
    };
    let error_type = if status < 500 { "invalid_request_error" } else { "server_error" };
    Verdict { status, error_type, message, retry_after }
}

/// The status of a cause.
pub(crate) fn status(kind: Kind) -> u16 {
    verdict(kind).status
}

/// Answers with the error of `kind`. Errors: the client is gone.
pub(crate) async fn error(session: &mut ServerSession, kind: Kind) -> pingora_core::Result<()> {
    let (head, body) = shaped(kind)?;
    send(session, head, body).await
}

/// Answers a request whose head could not be read, and closes.
pub(crate) async fn broken_http(session: &mut ServerSession) -> pingora_core::Result<()> {
    let (mut head, body) = shaped(Kind::BadRequest)?;
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    session.write_error_response(head, body).await
}

/// Head and body in OpenAI's shape.
fn shaped(kind: Kind) -> pingora_core::Result<(ResponseHeader, Bytes)> {
    let Verdict { status, error_type, message, retry_after } = verdict(kind);
    let body = serde_json::json!({
        "error": {"message": message, "type": error_type, "param": null, "code": kind.name()}
    });
    let mut head = ResponseHeader::build(status, Some(4))?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    if retry_after {
        head.insert_header(header::RETRY_AFTER, RETRY_AFTER_SECONDS)?;
    }
    Ok((head, Bytes::from(body.to_string())))
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
