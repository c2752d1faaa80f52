//! Sends the client's own bytes to the chosen endpoint and streams the answer back.
//!
//! A request moves to the next best endpoint when the first one took no connection, or said that it is busy. One that an
//! engine may have begun is not sent again unless the operator wants it so: a second generation is worse than an error. In
//! every wait the client is watched: when it leaves, the engine's connection closes at once and the engine aborts.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use config::Retry;
use http::Method;
use picker::decide::Decision;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;

use super::attempt::{Answered, Attempt, prompt_name};
use super::headers::{self, Ours};
use super::read::Body;
use super::record::Record;
use super::reply::Refusal;
use super::usage::Watch;
use super::visit::Visit;
use crate::endpoints::booking::Booking;
use crate::endpoints::health::Trial;
use crate::learn::{self, Prompt};
use crate::metrics::Kind;
use crate::pool::{Candidates, Pool, Saturated, Taken};
use crate::router::Router;
use crate::upstream::Answer;

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
    /// The right to try an endpoint that is left out, if this request has it; the first try is that.
    pub(super) trial: Option<Trial>,
    /// An engine was gone when the request came on a kept connection.
    pub(super) met_a_death: bool,
    /// Set once a second engine was chosen for a request that the first one had: what the client is told if it cannot be had.
    pub(super) moved: Option<Refusal>,
}

/// What became of a request that is not over by an error.
pub(super) enum Forwarded {
    /// Its answer went out whole.
    Whole,
    /// None of the candidates took a connection; here is the body.
    NotConnected(Body),
}

impl Forward<'_> {
    /// Forwards the request, first to the endpoint that was taken for it, and relays the answer whole.
    pub(super) async fn run(
        mut self,
        mut decision: Decision,
        mut next: Taken,
        body: Body,
    ) -> Result<Forwarded, Stop> {
        let Retry { attempts_max, unanswered: repeats, .. } = self.pool().config.retry;
        loop {
            self.record.attempt(next.held.endpoint());
            let has_tries = self.record.attempts() < attempts_max.get();
            next = match self.attempt(next, &decision, &body).await? {
                Attempt::Answered(answered) => {
                    drop(body);
                    return self.pass_on(answered, decision).await;
                }
                Attempt::Busy(answered) => {
                    let left = answered.booking.endpoint().health.pause_left(self.router.clock.millis());
                    match self.another(&mut decision, has_tries, Saturated(left).into()) {
                        Some(another) => another,
                        None => {
                            drop(body);
                            return self.pass_on(answered, decision).await;
                        }
                    }
                }
                Attempt::Unanswered(kind) => {
                    let another = self.another(&mut decision, has_tries && repeats, kind.into());
                    another.ok_or_else(|| refuse(kind))?
                }
                Attempt::NotConnected => {
                    let next = if has_tries { self.candidates.take_next(&mut decision) } else { None };
                    match (next, self.moved) {
                        (Some(next), _) => next,
                        (None, Some(refusal)) => return Err(Stop::Refuse(refusal)),
                        (None, None) => return Ok(Forwarded::NotConnected(body)),
                    }
                }
            };
            self.trial = None;
        }
    }

    /// The next best endpoint that is free, for a request that another one had: once, and within the pool's budget. `refusal`
    /// is what the client is told if that cannot be had.
    fn another(&mut self, decision: &mut Decision, may: bool, refusal: Refusal) -> Option<Taken> {
        if self.moved.is_some() || !may {
            return None;
        }
        let (now, candidates) = (self.router.clock.millis(), self.candidates);
        let mut another = candidates.take_next(decision)?;
        while another.held.endpoint().health.is_busy(now) {
            another = candidates.take_next(decision)?;
        }
        if !self.pool().known.budget.spend() {
            self.pool().known.retries_denied.add(1);
            return None;
        }
        self.moved = Some(refusal);
        Some(another)
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.candidates.pool
    }

    /// Whether no endpoint but the one of now was tried.
    pub(super) fn is_first_try(&self) -> bool {
        self.record.attempts() == 1
    }

    /// Passes an answer on to the client. From here on nothing is tried again. An answer that came whole is learned from.
    async fn pass_on(&mut self, answered: Answered, decision: Decision) -> Result<Forwarded, Stop> {
        let Answered { answer, peeked, mut booking, choice, status } = answered;
        let (pool, endpoint) = (&self.candidates.pool, booking.endpoint().clone());
        let (policy, took) = (pool.rules.policy.name(), self.record.decision_time);
        let ours = self.visit.live.config.response_headers;
        let ours = ours.then(|| Ours::new(&endpoint, policy, &choice, &decision, took));
        let name = prompt_name(&decision);
        let prompt =
            Prompt::new(self.record.answered(status, (pool, &endpoint), &choice, decision), &booking);
        let head = answer.session.resp_header().ok_or(Stop::MidStream)?;
        let mut watch = Watch::new(self.record.api, head);
        let works = status < 400 && self.tells_health();
        let mut progress = Progress { watch: &mut watch, booking: &mut booking, works };
        let relayed = self.relay(answer, peeked, ours.as_ref(), &mut progress).await;
        if relayed == Err(Stop::MidStream) {
            self.note_failure(&booking, Kind::MidStream, name);
        }
        relayed?;
        if works {
            endpoint.note_answer();
        }
        self.record.usage = watch.usage();
        if status == 200 && self.record.api.fills_cache() {
            let (usage, shows_pace) = (watch.usage(), watch.shows_pace());
            let answered = learn::Answered { model: self.record.model(), prompt, usage, shows_pace };
            pool.learn_from(&self.router.metrics, &booking, answered);
        }
        Ok(Forwarded::Whole)
    }

    /// Streams the answer chunk by chunk, each as soon as it is there. Memory does not grow with the stream.
    async fn relay(
        &mut self,
        mut answer: Answer,
        peeked: Option<Bytes>,
        ours: Option<&Ours>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Stop> {
        let client = self.session.req_header();
        let head = answer.session.resp_header().ok_or(Stop::MidStream)?;
        let mut head = headers::to_client(head, client, ours).map_err(|_| Stop::MidStream)?;
        self.visit.dress(client, &mut head, self.router.clock).map_err(|_| Stop::MidStream)?;
        let is_read = peeked.is_none() && answer.session.is_body_done();
        let bodiless = client.method == Method::HEAD || is_read;
        // Without chunks only the end of the connection ends a body of unknown length. And a drain may have begun since the
        // request came: here is the last chance to say so.
        if client.version == http::Version::HTTP_10 || self.router.lets_go() {
            self.session.set_keepalive(None);
        }
        if bodiless {
            self.visit.leave();
            write_alone(self.session, head).await.map_err(|_| Stop::Gone)?;
        } else {
            self.session.write_response_header(head).await.map_err(|_| Stop::Gone)?;
            self.relay_body(&mut answer, peeked, progress).await?;
        }
        self.pool().upstream.release(answer).await;
        Ok(())
    }

    async fn relay_body(
        &mut self,
        answer: &mut Answer,
        mut peeked: Option<Bytes>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Stop> {
        loop {
            let chunk = match peeked.take() {
                None => unless_gone(self.session, answer.session.read_body_bytes()).await?,
                peeked => Ok(peeked),
            };
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
    /// The answer shows that the engine works.
    works: bool,
}

impl Progress<'_> {
    /// The next piece of the body is there. HOT: once a chunk, no allocation.
    fn see(&mut self, piece: &[u8], last: bool) {
        self.watch.see(piece);
        if last || self.watch.has_first_token() {
            self.booking.first_token();
            if self.works && self.booking.endpoint().health.is_out() {
                self.booking.endpoint().note_answer();
            }
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

pub(super) fn refuse(kind: Kind) -> Stop {
    Stop::Refuse(kind.into())
}

/// Runs `work` to its end unless the client leaves first.
pub(super) async fn unless_gone<T>(
    session: &mut ServerSession,
    work: impl Future<Output = T>,
) -> Result<T, Stop> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        _ = session.read_body_or_idle(true) => Err(Stop::Gone),
    }
}
