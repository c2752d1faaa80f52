//! A request from its head to its end: read whole, decide, forward, stream back.

mod attempt;
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
use std::time::{Duration, Instant};

use async_trait::async_trait;
use config::defaults::HEADERS_COUNT_MAX;
use http::{Method, Version, header};
use picker::decide::{Ask, Decision};
use picker::read::Api;
use pingora_core::ErrorType;
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora_core::server::ShutdownWatch;
use pingora_http::RequestHeader;
use tokio::time::sleep;

use crate::admin;
use crate::client;
use crate::client::patience::{Impatience, Terms};
use crate::decision_log::Noted;
use crate::endpoints::health::Trial;
use crate::live::Live;
use crate::metrics::Kind;
use crate::pool::Candidates;
use crate::router::Router;
use forward::{Forward, Forwarded, Stop, unless_gone};
use place::place;
use read::{Body, Bounds, ReadError};
use record::Record;
use visit::Visit;

/// Windows of HTTP/2 uploads: pingora's 64 KiB would cost a round trip each 64 KiB of a prompt.
const H2_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const H2_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Streams of one HTTP/2 connection that others could have opened: those that a client made us refuse. h2's own bounds on
/// streams that are reset before they are served (20), on the frames of a head and on tiny frames of a body stay.
const H2_REFUSED_STREAMS_MAX: usize = 128;
/// Bytes of answers that wait in a stream for a client that does not read.
const H2_SEND_BUFFER_BYTES: usize = 128 * 1024;
/// How much later than ours pingora's time-outs are.
const SPARE: Duration = Duration::from_secs(2);

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
        let (pool, model, clock) = (&placed.pool, placed.model.as_deref(), self.router.clock);
        let mut body = body.with(placed.body);
        let priority = visit.priority(session.req_header(), &pool.config.queue);
        pool.known.budget.earn(pool.config.retry.budget_percent);
        client::serving(session, true);
        let mut is_let_in = false;
        loop {
            let admitted = unless_gone(session, pool.admit(model, priority, clock)).await?;
            let (_place, mut candidates) = admitted.map_err(|full| Stop::Refuse(full.into()))?;
            let trial = if asks_for_work(session, api) { candidates.trial(clock) } else { None };
            let names = (session_id(session.req_header()), visit.seed());
            let mut decision = self.decide(&body, &candidates, trial.as_ref(), record, api, names)?;
            if live.decision_log.is_some() {
                record.note(Noted::new(&decision, &candidates));
            }
            let Some(first) = candidates.take_next(&mut decision) else {
                if candidates.list.is_empty() {
                    return Err(Stop::Refuse(Kind::NoEndpoint.into()));
                }
                // Another request was faster: in line again.
                continue;
            };
            if !std::mem::replace(&mut is_let_in, true) {
                visit.admit_prompt(&body, &decision, pool, clock).map_err(Stop::Refuse)?;
            }
            let (router, candidates) = (&self.router, &candidates);
            let forward = Forward {
                router,
                visit,
                session,
                record,
                candidates,
                trial,
                met_a_death: false,
                moved: None,
            };
            body = match forward.run(decision, first, body).await? {
                Forwarded::Whole => return Ok(()),
                // Those are known to be down now, and others stand best.
                Forwarded::NotConnected(body) if record.attempts() < pool.config.retry.attempts_max.get() => {
                    body
                }
                Forwarded::NotConnected(_) => return Err(Stop::Refuse(Kind::Unreachable.into())),
            };
        }
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
        trial: Option<&Trial>,
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
        let trial = trial.map(|trial| trial.endpoint().id());
        if let Some(probe) = trial.or_else(|| pool.known.due_for_probe(candidates, clock)) {
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
                match session.req_header().version {
                    // It has no chunks whose last could be missing.
                    Version::HTTP_10 => client::end_by_reset(&session),
                    _ => session.shutdown().await,
                }
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
    /// The client left or said nothing, or the router shuts down.
    Ended,
    /// It is no HTTP, too long or too slow, which has been answered. What follows is nobody's request.
    Refused(Kind),
}

/// Reads a request's head. Errors: there is none.
pub(crate) async fn head(
    session: &mut ServerSession,
    router: &Router,
    shutdown: &ShutdownWatch,
) -> Result<(), NoHead> {
    let mut down = shutdown.clone();
    let (keep_alive, idle, terms) = {
        let live = router.live();
        let ending = &live.config.ending;
        (live.config.timeouts.keep_alive, ending.idle.min(ending.drain / 2), Terms::of(&live.config))
    };
    client::expect_head(session, keep_alive, terms);
    if session.get_keepalive().is_some() {
        // pingora's own time for each read; ours is for all of them and ends before.
        session.set_keepalive(Some((keep_alive.max(terms.head) + SPARE).as_secs()));
    }
    // Going down, a connection stays for a moment: a request that is on its way would be lost with it.
    let left = async {
        let _ = down.wait_for(|down| *down).await;
        sleep(idle).await;
    };
    let read = tokio::select! {
        biased;
        read = session.read_request() => read,
        () = left => return Err(NoHead::Ended),
    };
    let impatience = client::impatience(session);
    client::has_head(session);
    if let Some(none) = no_head(session, &read, impatience, terms) {
        if let NoHead::Refused(kind) = none {
            router.metrics.error(kind);
            let _ = reply::no_head(session, kind).await;
        }
        return Err(none);
    }
    let keep_alive = keep_alive.as_secs().max(1);
    let closing = *shutdown.borrow() || session.get_keepalive().is_none();
    session.set_keepalive((!closing).then_some(keep_alive));
    Ok(())
}

/// Why there is no head, if there is none.
fn no_head(
    session: &ServerSession,
    read: &pingora_core::Result<bool>,
    impatience: Option<Impatience>,
    terms: Terms,
) -> Option<NoHead> {
    match read {
        Ok(true) if is_large(session, terms) => Some(NoHead::Refused(Kind::HeadersTooLarge)),
        Ok(true) => None,
        Err(error) if *error.etype() == ErrorType::InvalidHTTPHeader => {
            // httparse 1.10 has no other sign of it, and pingora 0.9.1 hands on what it said.
            let said = error.cause.as_ref().map(ToString::to_string);
            let many = said.is_some_and(|said| said.contains("too many headers"));
            Some(NoHead::Refused(if many { Kind::HeadersTooLarge } else { Kind::BadRequest }))
        }
        Ok(false) | Err(_) => Some(match impatience {
            Some(Impatience::Slow) => NoHead::Refused(Kind::RequestTimeout),
            Some(Impatience::Large) => NoHead::Refused(Kind::HeadersTooLarge),
            Some(Impatience::Silent) | None => NoHead::Ended,
        }),
    }
}

/// Whether a head that was read whole is too large all the same: one read may bring it. Over HTTP/2 its size is settled
/// already, and only headers are counted.
fn is_large(session: &ServerSession, terms: Terms) -> bool {
    let long = match session {
        ServerSession::H1(session) => session.get_headers_raw_bytes().len() > terms.head_bytes_max,
        _ => false,
    };
    long || session.req_header().headers.len() > HEADERS_COUNT_MAX
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

/// Whether an engine has to work for the answer: what asks for none is answered by the server around it.
fn asks_for_work(session: &ServerSession, api: Api) -> bool {
    session.req_header().method == Method::POST && api != Api::Tokenize
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
        if let Err(none) = head(&mut session, &self.router, shutdown).await {
            if let NoHead::Refused(kind) = none {
                seen::log_refused(&self.router.live(), self.entrance, kind);
                read::hang_up(session).await;
            }
            return None;
        }
        if self.router.lets_go() {
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
        // A longer head is answered 431 by h2 itself, without a body.
        let head_bytes_max = self.router.live().config.limits.headers_bytes_max;
        options.max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX));
        options.max_local_error_reset_streams(Some(H2_REFUSED_STREAMS_MAX));
        options.max_send_buffer_size(H2_SEND_BUFFER_BYTES);
        Some(options)
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}
