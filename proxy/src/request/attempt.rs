//! One try of a request at one endpoint: connect, send, wait for the head of the answer, and what that teaches.
//!
//! The belief is committed when the engine has accepted the connection and taken back when the request fails before the
//! first byte, is refused, or the client leaves before it.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::DateTime;
use http::{HeaderMap, Method, header};
use picker::belief::{Commit, EndpointId};
use picker::decide::{Choice, Decision};
use pingora_core::ErrorType;

use super::asks_for_work;
use super::forward::{Forward, Stop, refuse, unless_gone};
use super::headers::{self, Changes};
use super::read::Body;
use crate::endpoints::booking::{Booking, Wanted};
use crate::endpoints::health::Failure;
use crate::metrics::Kind;
use crate::pool::{Member, Pool, Taken};
use crate::upstream::{Answer, ConnectError, Connection, ExchangeError, Request};

/// A 500 with a body up to this size is looked into.
const LOOKED_INTO_BYTES: usize = 1024;
/// What vLLM answers to new requests when it has begun to shut down (0.32): it has begun none of them.
const LEAVING: &[u8] = b"cannot schedule new futures after shutdown";

/// What came of a try.
pub(super) enum Attempt {
    /// The head of an answer for the client.
    Answered(Answered),
    /// The endpoint takes no connection: nothing has begun there.
    NotConnected,
    /// It did not take the request: it is busy, or about to end.
    Busy(Answered),
    /// It had the request and broke, or gave no byte in time: it may have begun.
    Unanswered(Kind),
}

/// An answer whose head is there, and where it is booked.
pub(super) struct Answered {
    pub(super) answer: Answer,
    /// The beginning of its body, where that was looked into.
    pub(super) peeked: Option<Bytes>,
    pub(super) booking: Booking,
    pub(super) choice: Choice,
    pub(super) status: u16,
}

impl Forward<'_> {
    /// Tries the request at the endpoint that was taken for it. Errors: the request is over.
    pub(super) async fn attempt(
        &mut self,
        Taken { choice, held }: Taken,
        decision: &Decision,
        body: &Body,
    ) -> Result<Attempt, Stop> {
        let candidates = self.candidates;
        let Some(member) = candidates.member(choice.id) else { return Ok(Attempt::NotConnected) };
        let block_tokens = self.pool().rules.block.tokens();
        let Decision { blocks, stream: is_streamed, .. } = decision;
        let wanted = Wanted { blocks, matched: choice.matched, block_tokens, is_streamed: *is_streamed };
        let booking = Booking::new(held, wanted, self.router.clock);
        // Before the connection: prompts that begin alike and come at once go to one endpoint.
        let belief = Belief::commit(&candidates.pool, decision, &choice);
        let connected = unless_gone(self.session, connect(&candidates.pool, member)).await?;
        let connection = match connected {
            Ok(connection) => connection,
            // This process lacks descriptors: no fault of the endpoint's.
            Err(Some(ConnectError::Exhausted)) => return Err(refuse(Kind::Overloaded)),
            Err(_) => return Ok(self.not_connected(&booking)),
        };
        booking.endpoint().set_reachable(true);
        if self.is_first_try() {
            decision.learn(&candidates.pool.known.index, &choice, booking.work());
        }
        decision.remember(&candidates.pool.known.sessions, choice.id, self.router.clock.now());
        let (mut answer, status) = match self.exchange(connection, member, decision, body).await? {
            Ok(answered) => answered,
            Err(Unanswered::NotBegun) => return Ok(self.not_connected(&booking)),
            Err(Unanswered::MayHaveBegun(kind)) => {
                self.note_failure(&booking, kind, prompt_name(decision));
                return Ok(Attempt::Unanswered(kind));
            }
        };
        belief.settle(status);
        answer.session.read_timeout = Some(self.pool().config.timeouts.idle);
        let peeked = match status {
            500 => unless_gone(self.session, peek(&mut answer)).await?,
            _ => None,
        };
        let is_leaving = peeked.as_ref().is_some_and(|body| memchr::memmem::find(body, LEAVING).is_some());
        let pause = answer.session.resp_header().and_then(|head| pause(&head.headers, SystemTime::now()));
        let answered = Answered { answer, peeked, booking, choice, status };
        Ok(self.judge(answered, is_leaving, pause, decision))
    }

    fn not_connected(&self, booking: &Booking) -> Attempt {
        let endpoint = booking.endpoint();
        endpoint.set_reachable(false);
        endpoint.counters.connect_failures.add(1);
        Attempt::NotConnected
    }

    /// What an answer's status says of its endpoint.
    fn judge(
        &self,
        answered: Answered,
        is_leaving: bool,
        pause: Option<Duration>,
        decision: &Decision,
    ) -> Attempt {
        let (endpoint, now) = (answered.booking.endpoint(), self.router.clock.millis());
        match answered.status {
            429 | 503 => {
                endpoint.health.busy(pause, now);
                Attempt::Busy(answered)
            }
            500 if is_leaving => {
                endpoint.health.busy(None, now);
                Attempt::Busy(answered)
            }
            500 | 502 | 504 if self.tells_health() => {
                self.pool().failed(endpoint, Failure::Status, prompt_name(decision), now);
                Attempt::Answered(answered)
            }
            _ => Attempt::Answered(answered),
        }
    }

    /// Notes that an endpoint broke a request, or let it wait too long.
    pub(super) fn note_failure(&self, booking: &Booking, kind: Kind, prompt: u64) {
        let failure = match kind {
            Kind::UpstreamTimeout => Failure::Timeout,
            _ => Failure::Broke,
        };
        if self.tells_health() {
            let now = self.router.clock.millis();
            self.pool().failed(booking.endpoint(), failure, prompt, now);
        }
    }

    /// Whether its outcome says something of the engine.
    pub(super) fn tells_health(&self) -> bool {
        asks_for_work(self.session, self.record.api)
    }

    /// The head of the answer, and its status.
    async fn exchange(
        &mut self,
        connection: Connection,
        member: &Member,
        decision: &Decision,
        body: &Body,
    ) -> Result<Result<(Answer, u16), Unanswered>, Stop> {
        let pool = &self.candidates.pool;
        let client = self.session.req_header();
        let bodiless = client.method == Method::HEAD;
        let forwarded = self.visit.forwarded(client);
        let changes = Changes { credentials: &member.credentials, forwarded: forwarded.as_ref() };
        let head = headers::to_engine(client, &member.endpoint, body.bytes.len(), changes);
        let head = head.ok_or(refuse(Kind::BadRequest))?;
        let request = Request { head: &head, body: &body.bytes, bodiless };
        let (api, first_byte) = (self.record.api, pool.config.timeouts.first_byte);
        let exchange = pool.upstream.exchange(connection, request, first_byte);
        // Once the request is written, while the engine works.
        let learning = async { pool.learn(api, &body.bytes, decision) };
        let exchange = async { tokio::join!(biased; exchange, learning).0 };
        Ok(match unless_gone(self.session, exchange).await? {
            Ok(mut answer) => match self.final_head(&mut answer).await? {
                Ok(status) => Ok((answer, status)),
                Err(kind) => Err(Unanswered::MayHaveBegun(kind)),
            },
            Err(ExchangeError::Tls(_)) => Err(Unanswered::NotBegun),
            // The first time it was the engine's end that was to come anyhow. The second time it may be the request's doing.
            Err(ExchangeError::Gone) if !std::mem::replace(&mut self.met_a_death, true) => {
                Err(Unanswered::NotBegun)
            }
            Err(ExchangeError::Gone) => Err(Unanswered::MayHaveBegun(Kind::UpstreamBroke)),
            Err(ExchangeError::NoByte | ExchangeError::Broken) => {
                Err(Unanswered::MayHaveBegun(Kind::UpstreamBroke))
            }
            Err(ExchangeError::Timeout) => Err(Unanswered::MayHaveBegun(Kind::UpstreamTimeout)),
        })
    }

    /// Reads on past informational heads, passing early hints to the client, and gives the final status. The inner error: there
    /// is none.
    async fn final_head(&mut self, answer: &mut Answer) -> Result<Result<u16, Kind>, Stop> {
        loop {
            let status = answer.session.get_status().map_or(0, |status| status.as_u16());
            match status {
                // A switch of protocols that nobody asked for.
                0 | 101 => return Ok(Err(Kind::UpstreamBroke)),
                100 => {}
                102..200 => self.inform(answer).await?,
                _ if answer.session.resp_header().is_some_and(|head| headers::is_coded(&head.headers)) => {
                    return Ok(Err(Kind::UpstreamBroke));
                }
                _ => return Ok(Ok(status)),
            }
            answer.session.read_timeout = Some(self.pool().config.timeouts.first_byte);
            let next = unless_gone(self.session, answer.session.read_response()).await?;
            if let Err(error) = next {
                return Ok(Err(match error.etype() {
                    ErrorType::ReadTimedout => Kind::UpstreamTimeout,
                    _ => Kind::UpstreamBroke,
                }));
            }
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
}

/// Why there is no head of an answer.
enum Unanswered {
    NotBegun,
    MayHaveBegun(Kind),
}

/// Names a request's prompt; 0 for none.
pub(super) fn prompt_name(decision: &Decision) -> u64 {
    decision.blocks.prompts().flatten().last().map_or(0, |last| last.0)
}

/// A connection; the error is `None` where the endpoint's name does not resolve.
async fn connect(pool: &Pool, member: &Member) -> Result<Connection, Option<ConnectError>> {
    let transport = member.transport().await.ok_or(None)?;
    pool.upstream.connect(transport).await.map_err(Some)
}

/// The whole body of an answer that says it is short; `None` if it does not, or breaks.
async fn peek(answer: &mut Answer) -> Option<Bytes> {
    let length = answer.session.resp_header()?.headers.get(header::CONTENT_LENGTH)?;
    let length: usize = length.to_str().ok()?.parse().ok()?;
    if length == 0 || length > LOOKED_INTO_BYTES {
        return None;
    }
    let mut body = Vec::with_capacity(length);
    while let Ok(Some(chunk)) = answer.session.read_body_bytes().await {
        body.extend_from_slice(&chunk);
    }
    (!body.is_empty()).then(|| body.into())
}

/// The pause that an answer asks for with `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
fn pause(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = u64::try_from(DateTime::parse_from_rfc2822(text).ok()?.timestamp()).ok()?;
    let date = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(date))?;
    Some(date.duration_since(now).unwrap_or_default())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_pause_is_seconds_or_a_date() {
        // 2026-11-30, 12:00:00 GMT.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_040_000);
        for (text, seconds) in [
            ("3", Some(3)),
            (" 120 ", Some(120)),
            ("Mon, 30 Nov 2026 12:00:07 GMT", Some(7)),
            ("Mon, 30 Nov 2026 11:00:00 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(pause(&headers, now), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(pause(&HeaderMap::new(), now), None);
    }
}
