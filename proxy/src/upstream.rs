//! One HTTP/1.1 exchange with an engine, over TCP or TLS: connect, send head and body, wait for the first byte.
//!
//! Head and body leave in one vectored write, which saves a segment, a system call and a copy a request. While a large
//! body is still being written the connection is watched for an early answer (a 413, a 401), which would otherwise be
//! lost or waited for until the write fails. The first bytes of the answer are read here, so it is known for certain
//! whether an engine that broke had answered anything. Only a request on a pooled connection that ends at once, or that is
//! reset a little later, may be sent again: the engine had closed it, or closes it with the request unread.

#[cfg(test)]
mod over_tls;
mod wire;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use pingora_core::protocols::http::v1::client::HttpSession;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::descriptors::ENGINES;
use crate::metrics::Count;
use crate::tls::handshake::HandshakeError;
pub(crate) use wire::Transport;
use wire::{Key, Wire};

/// A larger body may meet an early answer while it is being written.
const WATCHED_BODY_BYTES: usize = 64 * 1024;
/// Room for the first bytes of an answer; a longer head is read on by the session.
const FIRST_READ_BYTES: usize = 4 * 1024;
/// Idle connections kept for one engine; those beyond are closed.
const IDLE_CONNECTIONS_MAX: usize = 1_024;

/// A pooled connection that the engine had closed already shows it within a round trip, by a reset. One that breaks later may
/// have been worked on.
const KEEP_ALIVE_RACE: Duration = Duration::from_millis(200);
/// In so short a time nothing was generated, even where the end that comes does not tell whether the request was read.
const NOTHING_BEGUN: Duration = Duration::from_millis(50);
/// How long no connection to an engine is kept after one that was kept has lost a request: the others are likely to be as old,
/// and an engine that ends each one it is asked on again would get every second request twice.
const KEEP_NONE: Duration = Duration::from_secs(1);

/// How long a connection waits for its share of the descriptors. The client is watched meanwhile, so who waits for it is there.
const SHARE_WITHIN: Duration = Duration::from_secs(30);
/// Between two tries for a descriptor or port that the system did not have.
const SHORTAGE_REST: Duration = Duration::from_millis(50);
/// Life of an unused connection while others wait for its share: longer than from one scrape to the next.
const IDLE_WHEN_SHORT: Duration = Duration::from_millis(250);

/// A connection's part of what the process may open; given back with it.
type Share = Option<OwnedSemaphorePermit>;

/// Connections to engines, pooled by address and by the settings of TLS.
///
/// The pool is a stack per engine under one short lock: the newest connection is taken, which is the likeliest to live. A
/// connection is looked at when it is taken, and [`Upstream::sweep`] closes those that nobody took. pingora's own pool
/// has a task, a timer and a `getpeername` for every request; the figures are in ARCHITECTURE.md.
pub(crate) struct Upstream {
    pool: Mutex<Pool>,
    /// Requests that went out on a new connection because a kept one ended.
    pub(crate) resent: Count,
    connect: Duration,
    idle: Duration,
}

#[derive(Default)]
struct Pool {
    waiting: HashMap<Key, Vec<Idle>>,
    /// Engines of which no connection is kept, and until when. Mostly none.
    unkept: HashMap<Key, Instant>,
}

/// A connection that waits for its next request.
struct Idle {
    wire: Box<Wire>,
    share: Share,
    since: Instant,
}

/// A connection that nothing of this request has been written to.
pub(crate) struct Connection {
    wire: Box<Wire>,
    share: Share,
    /// Taken from the pool: the engine may have closed it already.
    reused: bool,
    engine: Transport,
}

/// A request as it goes on the wire.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Request line and headers, the empty line included, framed for `body`.
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
    /// The answer has no body, whatever its head says.
    pub(crate) bodiless: bool,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("connect timed out")]
    Timeout,
    #[error("connect refused")]
    Refused,
    #[error("connect failed")]
    Failed,
    /// Not the engine's doing: this process, or its host, has no descriptor or port for it.
    #[error("no descriptor or port is free for a connection")]
    Exhausted,
    /// The connection stands and is of no use.
    #[error(transparent)]
    Tls(#[from] HandshakeError),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// A pooled connection was reset before the request was read, and no new one was to be had: nothing has begun.
    #[error("gone since the last request")]
    Gone,
    /// A new connection was refused when the request was on its way: nothing has begun.
    #[error(transparent)]
    Tls(HandshakeError),
    /// The connection ended before a byte of an answer.
    #[error("closed without an answer")]
    NoByte,
    /// Not a byte in time.
    #[error("no first byte in time")]
    Timeout,
    /// What came is no HTTP answer, or broke within its head.
    #[error("broken answer")]
    Broken,
}

/// Why a connection had no answer.
enum Lost {
    /// It was kept, and was reset: the engine had closed it, or closed it with the request unread.
    Unread,
    /// It was kept, and ended at once: as before, or with the request read and nothing done.
    AtOnce,
    Error(ExchangeError),
}

/// An answer whose head has been read.
pub(crate) struct Answer {
    pub(crate) session: HttpSession,
    /// The request did not leave whole, so the connection is of no further use.
    partial: bool,
    share: Share,
    engine: Transport,
}

impl Upstream {
    /// `connect` bounds connecting; an idle connection is closed after `idle`.
    pub(crate) fn new(connect: Duration, idle: Duration) -> Self {
        let (pool, resent) = Default::default();
        Self { pool, resent, connect, idle }
    }

    /// A pooled connection if there is one that lives, else a new one.
    pub(crate) async fn connect(&self, engine: Transport) -> Result<Connection, ConnectError> {
        while let Some(Idle { mut wire, share, since }) = self.take(engine.key()) {
            if since.elapsed() < self.idle && wire.is_silent() {
                return Ok(Connection { wire, share, reused: true, engine });
            }
        }
        self.connect_anew(engine).await
    }

    fn take(&self, key: Key) -> Option<Idle> {
        self.pool.lock().waiting.get_mut(&key)?.pop()
    }

    /// A new connection, with TLS its handshake included.
    ///
    /// Where this process lacks descriptors or ports it waits for some, [`SHARE_WITHIN`] at most, and closes idle ones: that
    /// says nothing of the engine, so it is no time of its connect.
    pub(crate) async fn connect_anew(&self, engine: Transport) -> Result<Connection, ConnectError> {
        let short = Instant::now() + SHARE_WITHIN;
        loop {
            let share = timeout_at(short, self.share()).await.map_err(|_| ConnectError::Exhausted)?;
            match timeout(self.connect, Wire::connect(&engine)).await.map_err(|_| ConnectError::Timeout)? {
                Err(ConnectError::Exhausted) if Instant::now() < short => {
                    drop(share);
                    drop(self.take_any());
                    sleep(SHORTAGE_REST).await;
                }
                wire => return Ok(Connection { wire: wire?, share, reused: false, engine }),
            }
        }
    }

    /// A share of the descriptors for engines; an idle connection gives its own.
    async fn share(&self) -> Share {
        if let Ok(share) = ENGINES.clone().try_acquire_owned() {
            return Some(share);
        }
        match self.take_any() {
            Some(idle) => idle.share,
            // It is never closed.
            None => ENGINES.clone().acquire_owned().await.ok(),
        }
    }

    /// The oldest idle connection to some engine.
    fn take_any(&self) -> Option<Idle> {
        let mut pool = self.pool.lock();
        pool.waiting.values_mut().find(|waiting| !waiting.is_empty()).map(|waiting| waiting.remove(0))
    }

    /// Sends a request and waits for the head of its answer, `first_byte` at most. A pooled connection that the engine closed
    /// before it read the request, or at once, is replaced by a new one, once: nothing has begun. Where
    /// there is no new one, only a reset says that another engine may have the request: what read it may have died of it.
    /// Cancel by dropping: the connection closes, the engine aborts.
    pub(crate) async fn exchange(
        &self,
        connection: Connection,
        request: Request<'_>,
        first_byte: Duration,
    ) -> Result<Answer, ExchangeError> {
        let engine = connection.reused.then(|| connection.engine.clone());
        let lost = match connection.exchange(request, first_byte).await {
            Ok(answer) => return Ok(answer),
            Err(lost) => lost,
        };
        let (engine, gone) = match (lost, engine) {
            (Lost::Error(error), _) => return Err(error),
            (Lost::Unread, Some(engine)) => (engine, ExchangeError::Gone),
            (Lost::AtOnce, Some(engine)) => (engine, ExchangeError::NoByte),
            (Lost::Unread | Lost::AtOnce, None) => return Err(ExchangeError::NoByte),
        };
        self.keep_none(engine.key());
        let anew = self.connect_anew(engine).await.map_err(|_| gone)?;
        self.resent.add(1);
        anew.exchange(request, first_byte).await.map_err(|lost| match lost {
            Lost::Error(error) => error,
            Lost::Unread | Lost::AtOnce => ExchangeError::NoByte,
        })
    }

    /// Closes the pooled connections to an engine, and keeps none for a while.
    fn keep_none(&self, key: Key) {
        let mut pool = self.pool.lock();
        pool.unkept.insert(key, Instant::now() + KEEP_NONE);
        let closed = pool.waiting.remove(&key);
        // Closed outside the lock.
        drop(pool);
        drop(closed);
    }

    /// Puts the connection back if its answer was read whole and both sides mean to keep it.
    pub(crate) async fn release(&self, answer: Answer) {
        let Answer { mut session, partial, share, engine } = answer;
        if partial {
            return;
        }
        session.respect_keepalive();
        let Some(wire) = session.reuse().await.and_then(Wire::of) else {
            return;
        };
        let (key, now) = (engine.key(), Instant::now());
        let mut pool = self.pool.lock();
        if pool.unkept.get(&key).is_some_and(|until| *until > now) {
            return;
        }
        let waiting = pool.waiting.entry(key).or_default();
        if waiting.len() < IDLE_CONNECTIONS_MAX {
            waiting.push(Idle { wire, share, since: now });
        }
    }

    /// Closes connections that have waited too long, and forgets engines that have none. To be called about once a second.
    /// Where the share of engines is used up, others need them sooner.
    pub(crate) fn sweep(&self) {
        let is_short = ENGINES.available_permits() == 0;
        let idle_max = if is_short { self.idle.min(IDLE_WHEN_SHORT) } else { self.idle };
        let mut closed = Vec::new();
        let now = Instant::now();
        let mut pool = self.pool.lock();
        pool.unkept.retain(|_, until| *until > now);
        pool.waiting.retain(|_, waiting| {
            let fresh = waiting.partition_point(|idle| idle.since.elapsed() >= idle_max);
            closed.extend(waiting.drain(..fresh));
            !waiting.is_empty()
        });
        // Closed outside the lock.
        drop(pool);
        drop(closed);
    }
}

impl Connection {
    async fn exchange(self, request: Request<'_>, first_byte: Duration) -> Result<Answer, Lost> {
        let answer = timeout(first_byte, self.head_of_answer(request)).await;
        answer.unwrap_or(Err(Lost::Error(ExchangeError::Timeout)))
    }

    async fn head_of_answer(mut self, request: Request<'_>) -> Result<Answer, Lost> {
        let started = Instant::now();
        let (first, partial) = match self.first_bytes(request).await {
            Ok(first) => first,
            Err(error) => return Err(self.no_byte(&error, started).await),
        };
        self.wire.rewind(first);
        let mut session = HttpSession::new(self.wire);
        session.read_response().await.map_err(|_| Lost::Error(ExchangeError::Broken))?;
        // The session does not know that the answer to a HEAD has no body: its connection is not used again.
        let partial = partial || request.bodiless;
        Ok(Answer { session, partial, share: self.share, engine: self.engine })
    }

    /// Why not a byte came, when no first byte but that error did.
    async fn no_byte(&self, error: &io::Error, started: Instant) -> Lost {
        if !self.reused {
            return Lost::Error(self.wire.refusal().map_or(ExchangeError::NoByte, ExchangeError::Tls));
        }
        let (elapsed, race) = (started.elapsed(), started + KEEP_ALIVE_RACE);
        let is_reset = match error.kind() {
            io::ErrorKind::UnexpectedEof => timeout_at(race, self.wire.reset()).await.is_ok(),
            _ => elapsed < KEEP_ALIVE_RACE,
        };
        match is_reset {
            true => Lost::Unread,
            false if elapsed < NOTHING_BEGUN => Lost::AtOnce,
            false => Lost::Error(ExchangeError::NoByte),
        }
    }

    /// The first bytes of the answer, never none, and whether they came before the request had left. An unexpected end is
    /// one that came after it had left whole.
    async fn first_bytes(&mut self, request: Request<'_>) -> io::Result<(BytesMut, bool)> {
        let (sent, early) = if request.body.len() > WATCHED_BODY_BYTES {
            self.send_watching(request).await
        } else {
            (send(&mut self.wire, request).await, None)
        };
        if let Some(early) = early {
            return Ok((early, true));
        }
        let mut first = BytesMut::with_capacity(FIRST_READ_BYTES);
        // An engine that refuses may have answered before it closed: look, also when the write failed.
        match (self.wire.read_buf(&mut first).await, sent) {
            (Ok(1..), sent) => Ok((first, sent.is_err())),
            (_, Err(error)) | (Err(error), Ok(())) => Err(error),
            (Ok(0), Ok(())) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Writes a request unless an answer comes first.
    async fn send_watching(&mut self, request: Request<'_>) -> (io::Result<()>, Option<BytesMut>) {
        let (mut reader, mut writer) = tokio::io::split(&mut self.wire);
        let mut early = BytesMut::with_capacity(FIRST_READ_BYTES);
        tokio::select! {
            biased;
            sent = send(&mut writer, request) => (sent, None),
            read = reader.read_buf(&mut early) => match read {
                Ok(1..) => (Ok(()), Some(early)),
                Ok(0) => (Err(io::ErrorKind::ConnectionAborted.into()), None),
                Err(error) => (Err(error), None),
            },
        }
    }
}

async fn send(into: &mut (impl AsyncWrite + Unpin), request: Request<'_>) -> io::Result<()> {
    into.write_all_buf(&mut Buf::chain(request.head, request.body)).await?;
    into.flush().await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::SocketAddr;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ASK: Request<'_> =
        Request { head: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", body: b"", bodiless: false };

    async fn read_request(stream: &mut TcpStream) {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0, "a whole head");
        }
    }

    /// A pooled connection to an engine that answered one request on it.
    async fn pooled(upstream: &Upstream) -> (SocketAddr, TcpListener, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = listener.local_addr().unwrap();
        let connection = upstream.connect(peer.into()).await.unwrap();
        let (mut engine, _) = listener.accept().await.unwrap();
        let serve = async {
            read_request(&mut engine).await;
            engine.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        };
        let (answer, ()) = tokio::join!(upstream.exchange(connection, ASK, SECOND), serve);
        upstream.release(answer.unwrap()).await;
        (peer, listener, engine)
    }

    /// Nobody else may have the request: it may be what the engine has died of.
    #[tokio::test]
    async fn an_engine_that_read_the_request_and_is_no_more_is_not_gone_before_it() {
        let upstream = Upstream::new(SECOND, SECOND);
        let (peer, listener, mut engine) = pooled(&upstream).await;
        let connection = upstream.connect(peer.into()).await.unwrap();
        let die = async {
            read_request(&mut engine).await;
            drop((listener, engine));
        };
        let (answer, ()) = tokio::join!(upstream.exchange(connection, ASK, SECOND), die);
        assert_eq!((answer.err(), upstream.resent.read()), (Some(ExchangeError::NoByte), 0));
    }

    /// The next endpoint may have the request: nothing has begun at this one.
    #[tokio::test]
    async fn a_dead_pooled_connection_to_an_engine_that_is_no_more_is_told_apart() {
        let upstream = Upstream::new(SECOND, SECOND);
        let (peer, listener, engine) = pooled(&upstream).await;
        let connection = upstream.connect(peer.into()).await.unwrap();
        assert!(connection.reused);
        drop((listener, engine));
        assert_eq!(upstream.exchange(connection, ASK, SECOND).await.err(), Some(ExchangeError::Gone));
    }

    /// It may have begun: it had read the request whole, and took its time.
    #[tokio::test]
    async fn a_pooled_connection_that_closes_after_it_was_asked_is_not_replaced() {
        let upstream = Upstream::new(SECOND, SECOND);
        let (peer, _listener, mut engine) = pooled(&upstream).await;
        let connection = upstream.connect(peer.into()).await.unwrap();
        let die = async {
            read_request(&mut engine).await;
            sleep(2 * NOTHING_BEGUN).await;
            drop(engine);
        };
        let (answer, ()) = tokio::join!(upstream.exchange(connection, ASK, SECOND), die);
        assert_eq!(answer.err(), Some(ExchangeError::NoByte));
    }

    #[tokio::test]
    async fn an_idle_connection_is_not_taken_after_its_time_and_is_swept() {
        let upstream = Upstream::new(SECOND, Duration::ZERO);
        let (peer, listener, mut engine) = pooled(&upstream).await;
        upstream.sweep();
        assert_eq!(engine.read(&mut [0]).await.unwrap(), 0, "closed");
        let (connection, _) = tokio::join!(upstream.connect(peer.into()), listener.accept());
        assert!(!connection.unwrap().reused);
    }

    #[tokio::test]
    async fn a_connection_that_spoke_unasked_is_not_taken() {
        let upstream = Upstream::new(SECOND, SECOND);
        let (peer, listener, mut engine) = pooled(&upstream).await;
        engine.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        let spoken = async {
            while upstream
                .pool
                .lock()
                .waiting
                .get_mut(&(peer, 0))
                .is_some_and(|idle| idle[0].wire.is_silent())
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(SECOND, spoken).await.unwrap();
        let (connection, _) = tokio::join!(upstream.connect(peer.into()), listener.accept());
        assert!(!connection.unwrap().reused);
    }

    #[tokio::test]
    async fn a_dead_pooled_connection_is_replaced() {
        let upstream = Upstream::new(SECOND, SECOND);
        let (peer, listener, engine) = pooled(&upstream).await;
        let connection = upstream.connect(peer.into()).await.unwrap();
        drop(engine);
        let serve = async {
            let (mut anew, _) = listener.accept().await.unwrap();
            read_request(&mut anew).await;
            anew.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        };
        let (answer, ()) = tokio::join!(upstream.exchange(connection, ASK, SECOND), serve);
        let answer = answer.unwrap();
        assert_eq!(
            (answer.session.get_status(), upstream.resent.read()),
            (Some(http::StatusCode::NO_CONTENT), 1)
        );
        upstream.release(answer).await;
        assert!(upstream.pool.lock().waiting.is_empty(), "for a while none is kept");
    }
}
