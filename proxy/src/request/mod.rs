//! A request from its head to its end: read whole, decide, forward, stream back.

pub(crate) mod edit;
mod forward;
mod headers;
pub(crate) mod models;
pub(crate) mod place;
pub(crate) mod read;
mod record;
pub(crate) mod reply;
mod seen;
pub(crate) mod usage;
mod visit;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::{Method, Version, header};
use picker::decide::{Ask, Decision};
use picker::read::Api;
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora_core::server::ShutdownWatch;
use pingora_http::RequestHeader;
use tokio::time::timeout;

use crate::admin;
use crate::client;
use crate::live::Live;
use crate::metrics::Kind;
use crate::pool::Candidates;
use crate::router::Router;
use forward::{Forward, Stop};
use place::place;
use read::{Body, Bounds, ReadError};
use record::Record;
use visit::Visit;

/// Windows of HTTP/2 uploads: pingora's 64 KiB would cost a round trip each 64 KiB of a prompt.
const H2_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const H2_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Time for a request's head, beyond the time that a connection may wait for one.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Names the client's session (llm-d's default).
const SESSION: &str = "x-session-id";

/// The front of one client's connection.
pub(crate) struct Front {
    router: Arc<Router>,
    options: HttpServerOptions,
    entrance: Entrance,
}

/// Where a connection came in.
#[derive(Clone, Copy)]
pub(crate) struct Entrance {
    /// The listener's address. On loopback the state page answers too, where everybody may ask for everything.
    pub(crate) listener: SocketAddr,
    pub(crate) peer: IpAddr,
    pub(crate) tls: bool,
}

impl Front {
    /// A front that speaks HTTP/1, or HTTP/2 with prior knowledge.
    pub(crate) fn new(router: Arc<Router>, entrance: Entrance, h2c: bool) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = h2c;
        options.h2_idle_timeout = Some(router.live().config.timeouts.keep_alive);
        Self { router, options, entrance }
    }

    /// Serves one request whose head has been read.
    async fn serve(
        &self,
        visit: &mut Visit,
        session: &mut ServerSession,
        record: &mut Record,
        api: Api,
    ) -> Result<(), Stop> {
        if let Some(kind) = refusal(session.req_header()) {
            return Err(Stop::Unread(kind.into()));
        }
        visit.enter(session.req_header(), self.router.clock).map_err(Stop::Unread)?;
        let live = visit.live.clone();
        if let Some(preflight) = visit.preflight(session.req_header()) {
            record.answered_here(preflight.status.as_u16());
            return reply::head_alone(session, preflight).await;
        }
        let body = read::whole(session, self.bounds(&live)).await.map_err(unread)?;
        record.request_bytes = body.bytes.len() as u64;
        if let Some(list) = models::answer(&live, session.req_header()).map_err(Stop::Refuse)? {
            record.answered_here(200);
            visit.leave();
            return reply::json(session, list, visit, self.router.clock).await.map_err(|_| Stop::Gone);
        }
        let placed =
            place(&live, (api, session.req_header().uri.path()), body.bytes.clone(), visit.isolation())
                .map_err(Stop::Refuse)?;
        let candidates = placed.pool.candidates(placed.model.as_deref(), self.router.clock);
        let body = body.with(placed.body);
        let session_id = session_id(session.req_header());
        let decision = self.decide(&body, &candidates, record, api, (session_id, visit.seed()))?;
        visit.admit_prompt(&body, &decision, &candidates.pool, self.router.clock).map_err(Stop::Refuse)?;
        client::serving(session, true);
        let router = &self.router;
        Forward { router, visit, session, record, candidates: &candidates }.run(decision, body).await
    }

    fn bounds(&self, live: &Live) -> Bounds<'_> {
        let config = &live.config;
        let (bytes_max, within) = (config.limits.body_bytes_max, config.timeouts.request_body);
        Bounds { bytes_max, within, budget: &self.router.bodies }
    }

    fn decide(
        &self,
        body: &Body,
        candidates: &Candidates,
        record: &mut Record,
        api: Api,
        (session, tenant): (&[u8], &[u8]),
    ) -> Result<Decision, Stop> {
        let started = Instant::now();
        let ask = Ask { api, body: &body.bytes, tenant, session };
        let (pool, clock) = (&candidates.pool, self.router.clock);
        let decision = pool.decide(&ask, &candidates.list, clock, self.router.take_turn());
        let mut decision = decision.map_err(|_| Stop::Refuse(Kind::DuplicateSalt.into()))?;
        record.decision(&decision, started.elapsed());
        if let Some(probe) = pool.known.due_for_probe(candidates, clock) {
            decision.prefer(probe);
        }
        Ok(decision)
    }

    /// Ends the request; gives the connection if it can take another.
    async fn end(
        &self,
        mut session: ServerSession,
        record: &mut Record,
        visit: &mut Visit,
        outcome: Result<(), Stop>,
    ) -> Option<ReusedHttpStream> {
        visit.leave();
        match outcome {
            Ok(()) => record.done(),
            Err(Stop::Refuse(refusal)) => {
                record.refused(refusal);
                reply::error(&mut session, refusal, visit, self.router.clock).await.ok()?;
            }
            Err(Stop::Unread(refusal)) => {
                record.refused(refusal);
                session.set_keepalive(None);
                if reply::error(&mut session, refusal, visit, self.router.clock).await.is_ok() {
                    read::linger(&mut session).await;
                }
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

/// The connection, ready for the next request.
pub(crate) async fn reusable(session: ServerSession) -> Option<ReusedHttpStream> {
    let settings = HttpPersistentSettings::for_session(&session);
    let stream = session.finish().await.ok()??;
    Some(ReusedHttpStream::from_reusable_stream(stream, settings))
}

/// Why a connection has no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHead {
    /// The client left, or the router shuts down.
    Ended,
    /// It is no HTTP, which has been answered.
    Broken,
}

/// Reads a request's head. Errors: there is none.
pub(crate) async fn head(
    session: &mut ServerSession,
    router: &Router,
    shutdown: &ShutdownWatch,
) -> Result<(), NoHead> {
    let mut down = shutdown.clone();
    let keep_alive = router.live().config.timeouts.keep_alive;
    // From the last answer on: a head that comes in drips would hold its connection for ever.
    let read = tokio::select! {
        biased;
        read = timeout(keep_alive + HEAD_WITHIN, session.read_request()) => read.map_err(|_| NoHead::Ended)?,
        _ = down.wait_for(|down| *down) => return Err(NoHead::Ended),
    };
    match read {
        Ok(true) => {}
        Err(error) if *error.etype() == pingora_core::ErrorType::InvalidHTTPHeader => {
            router.metrics.error(Kind::BadRequest);
            let _ = reply::broken_http(session).await;
            return Err(NoHead::Broken);
        }
        Ok(false) | Err(_) => return Err(NoHead::Ended),
    }
    let keep_alive = keep_alive.as_secs().max(1);
    let closing = *shutdown.borrow() || session.get_keepalive().is_none();
    session.set_keepalive((!closing).then_some(keep_alive));
    Ok(())
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
    let kind = match error {
        ReadError::TooLarge => Kind::BodyTooLarge,
        ReadError::TooSlow => Kind::RequestTimeout,
        ReadError::NoMemory => Kind::Overloaded,
        ReadError::Malformed => Kind::BadRequest,
        ReadError::Gone => return Stop::Gone,
    };
    Stop::Unread(kind.into())
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
        session.set_write_timeout(Some(self.router.live().config.timeouts.client_write));
        let broken = |none: &NoHead| {
            if *none == NoHead::Broken {
                seen::log_broken(&self.router.live(), self.entrance);
            }
        };
        head(&mut session, &self.router, shutdown).await.inspect_err(broken).ok()?;
        if self.router.draining.load(Ordering::Relaxed) {
            session.set_keepalive(None);
        }
        let live = self.router.hold_live();
        let is_ours = self.entrance.listener.ip().is_loopback() && live.edge.is_open();
        if is_ours && admin::is_state(session.req_header()) {
            admin::answer_state(&mut session, &self.router).await.ok()?;
            return reusable(session).await;
        }
        let api = api(&session);
        let mut visit = Visit::new(live, self.entrance, session.req_header());
        let mut record = Record::new(&self.router, api);
        let outcome = self.serve(&mut visit, &mut session, &mut record, api).await;
        client::serving(&session, false);
        record.saw(&visit, session.req_header());
        self.end(session, &mut record, &mut visit, outcome).await
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
