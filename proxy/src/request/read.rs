//! Reads a request's body whole, before anything is decided: bounded in size, in time and in total memory.
//!
//! No allocation when the body came in one read. The memory of all bodies is a budget, taken as bytes arrive: a length that
//! is only announced takes nothing from others.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Version, header};
use pingora_core::protocols::http::ServerSession;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::router::PERMIT_BYTES;

/// First allocation for a body of several reads. Who has sent that much gets the room that was announced.
const FIRST_ROOM_BYTES: usize = 256 * 1024;
/// How long a body waits for memory that others hold.
const MEMORY_WITHIN: Duration = Duration::from_secs(1);

/// What is read, at most, of a request that was refused.
const LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;
const LINGER_WITHIN: Duration = Duration::from_secs(2);
const SCRATCH_BYTES: usize = 16 * 1024;

/// A body in memory, and the share of the budget that it holds.
pub(crate) struct Body {
    pub(crate) bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

impl Body {
    /// Holds other bytes in place of these: about as many.
    pub(crate) fn with(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

/// Why there is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// Longer than allowed.
    TooLarge,
    /// Not whole in time.
    TooSlow,
    /// Others hold the memory for bodies.
    NoMemory,
    /// The framing is broken.
    Malformed,
    /// The client left.
    Gone,
}

/// What a body may cost.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub(crate) bytes_max: usize,
    pub(crate) within: Duration,
    pub(crate) budget: &'a Arc<Semaphore>,
}

/// Reads the whole body. Answers `Expect: 100-continue` once the announced size is known to do.
pub(crate) async fn whole(session: &mut ServerSession, bounds: Bounds<'_>) -> Result<Body, ReadError> {
    if session.is_body_empty() {
        return Ok(Body { bytes: Bytes::new(), _share: None });
    }
    let length = content_length(&session.req_header().headers);
    if length.is_some_and(|length| length > bounds.bytes_max) {
        return Err(ReadError::TooLarge);
    }
    let mut reader = Reader { session, bounds, share: None };
    let bytes = timeout(bounds.within, reader.read(length)).await.unwrap_or(Err(ReadError::TooSlow))?;
    Ok(Body { bytes, _share: reader.share })
}

struct Reader<'a> {
    session: &'a mut ServerSession,
    bounds: Bounds<'a>,
    share: Option<OwnedSemaphorePermit>,
}

impl Reader<'_> {
    async fn read(&mut self, length: Option<usize>) -> Result<Bytes, ReadError> {
        self.say_continue().await?;
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        if self.session.is_body_done() || length == Some(first.len()) {
            self.check(first.len()).await?;
            // Over HTTP/2 an empty frame may still have to end the stream.
            while !self.session.is_body_done() && self.chunk().await?.is_some() {}
            return Ok(first);
        }
        let room = length.unwrap_or(usize::MAX).min(FIRST_ROOM_BYTES).max(first.len());
        let mut body = BytesMut::with_capacity(room);
        let mut next = Some(first);
        while let Some(chunk) = next {
            self.check(body.len() + chunk.len()).await?;
            if body.len() + chunk.len() > body.capacity() {
                let announced = length.unwrap_or(0).saturating_sub(body.len());
                body.reserve(announced.max(chunk.len()));
            }
            body.extend_from_slice(&chunk);
            next = self.chunk().await?;
        }
        Ok(body.freeze())
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, ReadError> {
        self.session.read_request_body().await.map_err(|error| match error.etype().as_str() {
            "InvalidChunk" | "InvalidTrailerEnd" => ReadError::Malformed,
            "ReadTimedout" => ReadError::TooSlow,
            _ => ReadError::Gone,
        })
    }

    /// Whether a body of `length` bytes so far is within its bounds.
    async fn check(&mut self, length: usize) -> Result<(), ReadError> {
        if length > self.bounds.bytes_max {
            return Err(ReadError::TooLarge);
        }
        self.take_share(length).await
    }

    /// Grows the share of the budget to `bytes`.
    async fn take_share(&mut self, bytes: usize) -> Result<(), ReadError> {
        let held = self.share.as_ref().map_or(0, |share| share.num_permits());
        let wanted = bytes.div_ceil(PERMIT_BYTES).saturating_sub(held);
        let Some(wanted) = u32::try_from(wanted).ok().filter(|&wanted| wanted > 0) else { return Ok(()) };
        let more = timeout(MEMORY_WITHIN, self.bounds.budget.clone().acquire_many_owned(wanted)).await;
        let more = more.map_err(|_| ReadError::NoMemory)?.map_err(|_| ReadError::NoMemory)?;
        match &mut self.share {
            Some(share) => share.merge(more),
            None => self.share = Some(more),
        }
        Ok(())
    }

    /// HTTP/1.0 has no such answer (RFC 9110, 15.2), and pingora has none for HTTP/2.
    async fn say_continue(&mut self) -> Result<(), ReadError> {
        let expect = self.session.get_header_bytes(header::EXPECT);
        let version = self.session.req_header().version;
        if expect.eq_ignore_ascii_case(b"100-continue") && version == Version::HTTP_11 {
            self.session.write_continue_response().await.map_err(|_| ReadError::Gone)?;
        }
        Ok(())
    }
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Ends a connection whose head was refused: what is still on its way is read and dropped, so that the answer is not
/// overtaken by a reset. Bounded in size and time.
pub(crate) async fn hang_up(session: ServerSession) {
    let ServerSession::H1(session) = session else { return };
    let mut stream = session.into_inner();
    let drain = async {
        let _ = stream.shutdown().await;
        let mut dropped = 0;
        let mut scratch = BytesMut::with_capacity(SCRATCH_BYTES);
        while let Ok(length @ 1..) = stream.read_buf(&mut scratch).await {
            dropped += length;
            if dropped > LINGER_BYTES_MAX {
                return;
            }
            scratch.clear();
        }
    };
    let _ = timeout(LINGER_WITHIN, drain).await;
}

/// Reads and drops what is left of a body that was refused, so that the answer is not overtaken by a reset. Bounded in
/// size and time; the connection is closed afterwards.
pub(crate) async fn linger(session: &mut ServerSession) {
    let drain = async {
        let mut left = LINGER_BYTES_MAX;
        while let Ok(Some(chunk)) = session.read_request_body().await {
            left = left.saturating_sub(chunk.len());
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(LINGER_WITHIN, drain).await;
}
