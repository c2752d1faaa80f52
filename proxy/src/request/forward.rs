//! Sends the client's own bytes to the chosen endpoint and streams the answer back.
//!
//! Only an endpoint that takes no connection moves a request to the next best one: after that the engine may have begun,
//! and a second generation is worse than an error. The belief is committed when the engine has accepted the connection
//! and taken back when the request fails before the first byte, is refused, or the client leaves before it. In every
//! wait the client is watched: when it leaves, the engine's connection closes at once and the engine aborts.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use picker::belief::{Commit, EndpointId};
use picker::decide::{Choice, Decision};
use pingora_core::ErrorType;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;

use super::headers::{self, Changes, Ours};
use super::read::Body;
use super::record::Record;
use super::reply::Refusal;
use super::usage::Watch;
use super::visit::Visit;
use crate::endpoints::Endpoint;
use crate::endpoints::booking::{Booking, Wanted};
use crate::learn::{Answered, Prompt};
use crate::metrics::Kind;
use crate::pool::{Candidates, Member, Pool};
use crate::router::Router;
use crate::upstream::{Answer, Connection, ExchangeError, Request};

/// Why a request ended before its answer was whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing was forwarded: the router answers.
    Refuse(Refusal),
    /// The same, and the body was not read to its end: what follows on the connection is nobody's request.
    Unread(Refusal),
    /// The client left.
    Gone,
    /// The engine broke in the middle of its answer: so must ours.
    MidStream,
}

/// A request on its way to an engine.
pub(super) struct Forward<'a> {
    pub(super) router: &'a Arc<Router>,
    pub(super) visit: &'a mut Visit,
    pub(super) session: &'a mut ServerSession,
    pub(super) record: &'a mut Record,
    pub(super) candidates: &'a Candidates,
}

impl Forward<'_> {
    /// Forwards the request and relays the answer whole.
    pub(super) async fn run(mut self, mut decision: Decision, body: Body) -> Result<(), Stop> {
        let mut refusal = Kind::NoEndpoint;
        for _ in 0..self.pool().config.attempts_max.get() {
            let Some(choice) = decision.take_best() else { break };
            let Some(member) = self.candidates.member(choice.id) else { continue };
            let endpoint = &member.endpoint;
            self.record.attempt();
            let booking = self.book(endpoint, &choice, &decision);
            if let Some(answer) = self.answer(member, &booking, &choice, &decision, &body).await? {
                drop(body);
                return self.pass_on(answer, booking, &choice, decision).await;
            }
            endpoint.set_reachable(false);
            endpoint.counters.connect_failures.add(1);
            refusal = Kind::Unreachable;
        }
        Err(refuse(refusal))
    }

    fn pool(&self) -> &Pool {
        &self.candidates.pool
    }

    fn book(&self, endpoint: &Arc<Endpoint>, choice: &Choice, decision: &Decision) -> Booking {
        let block_tokens = self.pool().rules.block.tokens();
        let Decision { blocks, stream: is_streamed, .. } = decision;
        let wanted = Wanted { blocks, matched: choice.matched, block_tokens, is_streamed: *is_streamed };
        Booking::new(endpoint.clone(), wanted, self.router.clock)
    }

    /// The head of the endpoint's answer; `None` if it takes no connection.
    async fn answer(
        &mut self,
        member: &Member,
        booking: &Booking,
        choice: &Choice,
        decision: &Decision,
        body: &Body,
    ) -> Result<Option<Answer>, Stop> {
        let endpoint = booking.endpoint();
        let connected = unless_gone(self.session, connect(&self.candidates.pool, member)).await?;
        let Some(connection) = connected else { return Ok(None) };
        endpoint.set_reachable(true);
        let pool = &self.candidates.pool;
        let belief = Belief::commit(pool, decision, choice);
        decision.learn(&pool.known.index, choice, booking.work());
        decision.remember(&pool.known.sessions, choice.id, self.router.clock.now());
        let client = self.session.req_header();
        let bodiless = client.method == Method::HEAD;
        let forwarded = self.visit.forwarded(client);
        let changes = Changes { credentials: &member.credentials, forwarded: forwarded.as_ref() };
        let head = headers::to_engine(client, endpoint, body.bytes.len(), changes);
        let head = head.ok_or(refuse(Kind::BadRequest))?;
        let request = Request { head: &head, body: &body.bytes, bodiless };
        let (api, first_byte) = (self.record.api, pool.config.timeouts.first_byte);
        let exchange = pool.upstream.exchange(connection, request, first_byte);
        // Once the request is written, while the engine works.
        let learning = async { pool.learn(api, &body.bytes, decision) };
        let exchange = async { tokio::join!(biased; exchange, learning).0 };
        let mut answer = match unless_gone(self.session, exchange).await? {
            Ok(answer) => answer,
            Err(ExchangeError::Gone | ExchangeError::Tls(_)) => return Ok(None),
            Err(ExchangeError::NoByte | ExchangeError::Broken) => {
                return Err(refuse(Kind::UpstreamBroke));
            }
            Err(ExchangeError::Timeout) => return Err(refuse(Kind::UpstreamTimeout)),
        };
        let status = self.final_head(&mut answer).await?;
        belief.settle(status);
        Ok(Some(answer))
    }

    /// Passes an answer on to the client. From here on nothing is tried again. An answer that came whole is learned from.
    async fn pass_on(
        &mut self,
        answer: Answer,
        mut booking: Booking,
        choice: &Choice,
        decision: Decision,
    ) -> Result<(), Stop> {
        let (pool, endpoint) = (&self.candidates.pool, booking.endpoint());
        let (policy, took) = (pool.rules.policy.name(), self.record.decision_time);
        let ours = self.visit.live.config.response_headers;
        let ours = ours.then(|| Ours::new(endpoint, policy, choice, &decision, took));
        let status = answer.session.get_status().map_or(0, |status| status.as_u16());
        let prompt = Prompt::new(self.record.answered(status, (pool, endpoint), choice, decision), &booking);
        let head = answer.session.resp_header().ok_or(Stop::MidStream)?;
        let mut watch = Watch::new(self.record.api, head);
        self.relay(answer, ours.as_ref(), &mut Progress { watch: &mut watch, booking: &mut booking }).await?;
        self.record.usage = watch.usage();
        if status == 200 && self.record.api.fills_cache() {
            let (usage, shows_pace) = (watch.usage(), watch.shows_pace());
            let answered = Answered { model: self.record.model(), prompt, usage, shows_pace };
            pool.learn_from(&self.router.metrics, &booking, answered);
        }
        Ok(())
    }

    /// Reads on past informational heads, passing early hints to the client, and gives the final status.
    async fn final_head(&mut self, answer: &mut Answer) -> Result<u16, Stop> {
        loop {
            let status = answer.session.get_status().map_or(0, |status| status.as_u16());
            match status {
                // A switch of protocols that nobody asked for.
                0 | 101 => return Err(refuse(Kind::UpstreamBroke)),
                100 => {}
                102..200 => self.inform(answer).await?,
                _ if answer.session.resp_header().is_some_and(|head| headers::is_coded(&head.headers)) => {
                    return Err(refuse(Kind::UpstreamBroke));
                }
                _ => return Ok(status),
            }
            answer.session.read_timeout = Some(self.pool().config.timeouts.first_byte);
            let next = unless_gone(self.session, answer.session.read_response()).await?;
            next.map_err(|error| match error.etype() {
                ErrorType::ReadTimedout => refuse(Kind::UpstreamTimeout),
                _ => refuse(Kind::UpstreamBroke),
            })?;
        }
    }

    async fn inform(&mut self, answer: &Answer) -> Result<(), Stop> {
        let client = self.session.req_header();
        let Some(hint) = answer.session.resp_header() else { return Ok(()) };
        if client.version == http::Version::HTTP_10 {
            return Ok(());
        }
        let mut hint = Box::new(hint.clone());
        hint.set_version(client.version);
        self.session.write_response_header(hint).await.map_err(|_| Stop::Gone)
    }

    /// Streams the answer chunk by chunk, each as soon as it is there. Memory does not grow with the stream.
    async fn relay(
        &mut self,
        mut answer: Answer,
        ours: Option<&Ours>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Stop> {
        let client = self.session.req_header();
        let head = answer.session.resp_header().ok_or(Stop::MidStream)?;
        let mut head = headers::to_client(head, client, ours).map_err(|_| Stop::MidStream)?;
        self.visit.dress(client, &mut head, self.router.clock).map_err(|_| Stop::MidStream)?;
        let bodiless = client.method == Method::HEAD || answer.session.is_body_done();
        if client.version == http::Version::HTTP_10 {
            // Without chunks only the end of the connection ends a body of unknown length.
            self.session.set_keepalive(None);
        }
        answer.session.read_timeout = Some(self.pool().config.timeouts.idle);
        if bodiless {
            self.visit.leave();
            write_alone(self.session, head).await.map_err(|_| Stop::Gone)?;
        } else {
            self.session.write_response_header(head).await.map_err(|_| Stop::Gone)?;
            self.relay_body(&mut answer, progress).await?;
        }
        self.pool().upstream.release(answer).await;
        Ok(())
    }

    async fn relay_body(&mut self, answer: &mut Answer, progress: &mut Progress<'_>) -> Result<(), Stop> {
        loop {
            let chunk = unless_gone(self.session, answer.session.read_body_bytes()).await?;
            let chunk = chunk.map_err(|_| Stop::MidStream)?;
            let last = chunk.is_none() || answer.session.is_body_done();
            let chunk = chunk.unwrap_or_else(Bytes::new);
            progress.see(&chunk, last);
            self.record.response_bytes += chunk.len() as u64;
            if last {
                self.visit.leave();
            }
            let written = self.session.write_response_body(chunk, last).await;
            written.map_err(|_| Stop::Gone)?;
            if last {
                return Ok(());
            }
        }
    }
}

/// An answer under way: what is seen of it, and the place that it holds.
struct Progress<'a> {
    watch: &'a mut Watch,
    booking: &'a mut Booking,
}

impl Progress<'_> {
    /// The next piece of the body is there. HOT: once a chunk, no allocation.
    fn see(&mut self, piece: &[u8], last: bool) {
        self.watch.see(piece);
        if last || self.watch.has_first_token() {
            self.booking.first_token();
        }
    }
}

/// Writes a head that no body follows. Over HTTP/2 the head itself ends the stream: a `content-length` that an empty
/// frame contradicts would break it.
pub(super) async fn write_alone(
    session: &mut ServerSession,
    head: Box<ResponseHeader>,
) -> pingora_core::Result<()> {
    if let ServerSession::H2(stream) = session {
        return stream.write_response_header(head, true);
    }
    session.write_response_header(head).await?;
    session.finish_body().await
}

async fn connect(pool: &Pool, member: &Member) -> Option<Connection> {
    pool.upstream.connect(member.transport().await?).await.ok()
}

fn refuse(kind: Kind) -> Stop {
    Stop::Refuse(kind.into())
}

/// Runs `work` to its end unless the client leaves first.
async fn unless_gone<T>(session: &mut ServerSession, work: impl Future<Output = T>) -> Result<T, Stop> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        _ = session.read_body_or_idle(true) => Err(Stop::Gone),
    }
}

/// A commit that is taken back when dropped: the request failed, or the client left, before the first byte.
struct Belief<'a> {
    pool: &'a Pool,
    decision: &'a Decision,
    to: EndpointId,
    commit: Option<Commit>,
    /// Nothing was committed yet: a prompt that the engine may refuse, too long for it perhaps, must not push out all that
    /// it holds.
    waits: bool,
}

impl<'a> Belief<'a> {
    fn commit(pool: &'a Pool, decision: &'a Decision, choice: &Choice) -> Self {
        let to = choice.id;
        let waits = pool.known.index.is_large(to, &decision.blocks);
        let commit = if waits { None } else { decision.commit(&pool.known.index, to) };
        Self { pool, decision, to, commit, waits }
    }

    /// The engine has answered: a request that it refused has filled no cache.
    fn settle(mut self, status: u16) {
        if status < 400 {
            self.commit = None;
            if self.waits {
                self.decision.commit(&self.pool.known.index, self.to);
            }
        }
    }
}

impl Drop for Belief<'_> {
    fn drop(&mut self) {
        if let Some(commit) = self.commit.take() {
            self.pool.known.index.undo(commit, &self.decision.blocks);
        }
    }
}
