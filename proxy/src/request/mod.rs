//! A request from its head to its end: read whole, decide, forward, stream back.

#[allow(dead_code, reason = "to be called before a body is forwarded")]
mod edit;
mod forward;
mod headers;
#[allow(dead_code, reason = "to be called for `/v1/models`")]
pub(crate) mod models;
pub(crate) mod read;
mod record;
pub(crate) mod reply;
pub(crate) mod usage;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use async_trait::async_trait;
use http::{Method, Version, header};
use picker::decide::{Ask, Decision};
use picker::read::Api;
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora_core::server::ShutdownWatch;
use pingora_http::RequestHeader;

use crate::admin;
use crate::client;
use crate::metrics::Kind;
use crate::router::{Candidates, Router};
use forward::{Forward, Stop};
use read::{Body, Bounds, ReadError};
use record::Record;

/// Windows of HTTP/2 uploads: pingora's 64 KiB would cost a round trip each 64 KiB of a prompt.
const H2_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const H2_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Names the client's session (llm-d's default).
const SESSION: &str = "x-session-id";

/// The front of one data listener.
pub(crate) struct Front {
    router: Arc<Router>,
    options: HttpServerOptions,
    /// On loopback the state page answers here too.
    shows_state: bool,
}

impl Front {
    /// A front that speaks HTTP/1, or HTTP/2 with prior knowledge.
    pub(crate) fn new(router: Arc<Router>, h2c: bool, loopback: bool) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = h2c;
        options.h2_idle_timeout = Some(router.config.timeouts.keep_alive);
        Self { router, options, shows_state: loopback }
    }

    /// Serves one request whose head has been read.
    async fn serve(&self, session: &mut ServerSession, record: &mut Record, api: Api) -> Result<(), Stop> {
        if let Some(kind) = refusal(session.req_header()) {
            return Err(Stop::Unread(kind));
        }
        let body = read::whole(session, self.bounds()).await.map_err(unread)?;
        let candidates = self.router.candidates();
        let session_id = session_id(session.req_header());
        let decision = self.decide(&body, &candidates, record, api, session_id)?;
        client::serving(session, true);
        let router = &self.router;
        Forward { router, session, record, candidates: &candidates }.run(decision, body).await
    }

    fn bounds(&self) -> Bounds<'_> {
        let config = &self.router.config;
        let (bytes_max, within) = (config.limits.body_bytes_max, config.timeouts.request_body);
        Bounds { bytes_max, within, budget: &self.router.bodies }
    }

    fn decide(
        &self,
        body: &Body,
        candidates: &Candidates,
        record: &mut Record,
        api: Api,
        session: &[u8],
    ) -> Result<Decision, Stop> {
        let started = Instant::now();
        let ask = Ask { api, body: &body.bytes, tenant: b"", session };
        let decision = self.router.decide(&ask, candidates, self.router.take_turn());
        let mut decision = decision.map_err(|_| Stop::Refuse(Kind::DuplicateSalt))?;
        record.decision(&decision, started.elapsed());
        if let Some(probe) = self.router.due_for_probe(candidates) {
            decision.prefer(probe);
        }
        Ok(decision)
    }

    /// Ends the request; gives the connection if it can take another.
    async fn end(
        &self,
        mut session: ServerSession,
        record: &mut Record,
        outcome: Result<(), Stop>,
    ) -> Option<ReusedHttpStream> {
        match outcome {
            Ok(()) => record.done(),
            Err(Stop::Refuse(kind)) => {
                record.trouble(kind);
                reply::error(&mut session, kind).await.ok()?;
            }
            Err(Stop::Unread(kind)) => {
                record.trouble(kind);
                refuse_unread(&mut session, kind).await;
                return None;
            }
            Err(Stop::Gone) => {
                record.trouble(Kind::ClientGone);
                return None;
            }
            Err(Stop::MidStream) => {
                record.trouble(Kind::MidStream);
                session.shutdown().await;
                return None;
            }
        }
        reusable(session).await
    }
}

/// What the client says its session is; empty for nothing. The header goes on as it came.
pub(crate) fn session_id(head: &RequestHeader) -> &[u8] {
    head.headers.get(SESSION).map_or(b"", |value| value.as_bytes())
}

/// Answers with an error and closes, once what the client still sends has been read and dropped.
async fn refuse_unread(session: &mut ServerSession, kind: Kind) {
    session.set_keepalive(None);
    if reply::error(session, kind).await.is_ok() {
        read::linger(session).await;
    }
}

/// The connection, ready for the next request.
pub(crate) async fn reusable(session: ServerSession) -> Option<ReusedHttpStream> {
    let settings = HttpPersistentSettings::for_session(&session);
    let stream = session.finish().await.ok()??;
    Some(ReusedHttpStream::from_reusable_stream(stream, settings))
}

/// Reads a request's head, or gives up: the client left, the router shuts down, or it is no HTTP, which is answered.
pub(crate) async fn head(
    session: &mut ServerSession,
    router: &Router,
    shutdown: &ShutdownWatch,
) -> Option<()> {
    let mut down = shutdown.clone();
    let read = tokio::select! {
        biased;
        read = session.read_request() => read,
        _ = down.wait_for(|down| *down) => return None,
    };
    match read {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) => {
            if *error.etype() == pingora_core::ErrorType::InvalidHTTPHeader {
                router.metrics.error(Kind::BadRequest);
                let _ = reply::broken_http(session).await;
            }
            return None;
        }
    }
    let keep_alive = router.config.timeouts.keep_alive.as_secs().max(1);
    let closing = *shutdown.borrow() || session.get_keepalive().is_none();
    session.set_keepalive((!closing).then_some(keep_alive));
    Some(())
}

/// What is wrong with a head that pingora lets pass.
fn refusal(head: &RequestHeader) -> Option<Kind> {
    if head.method == Method::CONNECT {
        // Nothing is tunnelled here.
        return Some(Kind::MethodNotAllowed);
    }
    // Another coding would reach the engine without its name (RFC 9112, 7); HTTP/1.1 must name its host (3.2).
    let another = headers::is_coded(&head.headers);
    let nameless = head.version == Version::HTTP_11 && !head.headers.contains_key(header::HOST);
    (another || nameless).then_some(Kind::BadRequest)
}

fn unread(error: ReadError) -> Stop {
    match error {
        ReadError::TooLarge => Stop::Unread(Kind::BodyTooLarge),
        ReadError::TooSlow => Stop::Unread(Kind::RequestTimeout),
        ReadError::NoMemory => Stop::Unread(Kind::Overloaded),
        ReadError::Malformed => Stop::Unread(Kind::BadRequest),
        ReadError::Gone => Stop::Gone,
    }
}

/// Which prompt a request holds: only a POST has one.
fn api(session: &ServerSession) -> Api {
    let head = session.req_header();
    if head.method == Method::POST { Api::of(head.uri.path()) } else { Api::Other }
}

#[async_trait]
impl HttpServerApp for Front {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        // Bytes of a next request must not cut the answer to this one.
        session.set_pipelining_enabled(true);
        // A 100 Continue is no answer before the end of the body; who really answers early closes.
        session.set_close_on_response_before_downstream_finish(false);
        session.set_write_timeout(Some(self.router.config.timeouts.client_write));
        head(&mut session, &self.router, shutdown).await?;
        if self.router.draining.load(Ordering::Relaxed) {
            session.set_keepalive(None);
        }
        if self.shows_state && admin::is_state(session.req_header()) {
            admin::answer_state(&mut session, &self.router).await.ok()?;
            return reusable(session).await;
        }
        let api = api(&session);
        let mut record = Record::new(&self.router, api);
        let outcome = self.serve(&mut session, &mut record, api).await;
        client::serving(&session, false);
        self.end(session, &mut record, outcome).await
    }

    fn h2_options(&self) -> Option<H2Options> {
        let mut options = default_h2_options();
        options.initial_window_size(H2_STREAM_WINDOW_BYTES);
        options.initial_connection_window_size(H2_CONNECTION_WINDOW_BYTES);
        Some(options)
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}
