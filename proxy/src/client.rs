//! A client's connection: a TCP or TLS stream with buffers of the right size, that knows when its client has left.
//!
//! The head and a prompt of ten KB arrive in one read, and the head and body of a short answer leave in one write: two
//! system calls a request less than without buffers, at 20 KiB a connection. pingora's own listeners buffer 64 KiB, and
//! their buffers cannot be had without them.
//!
//! Nothing waits in the write buffer: whoever waits for an engine also waits for the client to speak or leave, and that
//! read sends what has been written so far. While a request is being served ([`serving`]) it is pingora's probe of an idle
//! client. It is answered only when the client has left: bytes of a next request are set aside for it, so they neither cut
//! the running answer nor hide the client's leaving behind them.

pub(crate) mod patience;

use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use rustls::CommonState;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;

use crate::carrier::Carrier;
use crate::descriptors::{has_hung_up, is_readable};
use patience::{Impatience, Patience, Terms};

const READ_BUFFER_BYTES: usize = 16 * 1024;
const WRITE_BUFFER_BYTES: usize = 4 * 1024;
/// Bytes of next requests that are set aside.
const AHEAD_BYTES_MAX: usize = 256 * 1024;
/// How often a client with more than that is looked at: its leaving lies behind what is not read. A reset shows, and an end if
/// the system has room for all that lies before it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// HTTP/2's client preface (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that pingora's sessions can run on.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufWriter<Carrier>,
    /// Read and not yet asked for.
    ahead: BytesMut,
    /// A request has been read whole and its answer is not: whoever reads now only asks whether the client is there.
    serving: AtomicBool,
    patience: Mutex<Patience>,
    /// When it is looked whether the client has left, where that cannot be read.
    look: Option<Pin<Box<Sleep>>>,
}

/// The stream under an HTTP/1 session; over HTTP/2 there is none for a session alone.
fn of(session: &ServerSession) -> Option<&Client> {
    let ServerSession::H1(session) = session else { return None };
    (**session.stream()).as_any().downcast_ref()
}

/// Gives a client time for its next head: `silent` until it begins, and the terms' from there on.
pub(crate) fn expect_head(session: &ServerSession, silent: Duration, terms: Terms) {
    if let Some(client) = of(session) {
        client.patience.lock().expect(silent, terms);
    }
}

/// The head is there, or nothing more is to be heard of it.
pub(crate) fn has_head(session: &ServerSession) {
    if let Some(client) = of(session) {
        client.patience.lock().rest();
    }
}

/// Why a head did not come.
pub(crate) fn impatience(session: &ServerSession) -> Option<Impatience> {
    of(session)?.patience.lock().over()
}

/// Lets the end of a connection be a reset: an answer that only the end ends would else look whole.
pub(crate) fn end_by_reset(session: &ServerSession) {
    if let Some(client) = of(session) {
        // Of a connection that is gone already there is nothing to reset.
        let _ = client.stream.get_ref().tcp().set_zero_linger();
    }
}

/// Notes whether the request on a connection is being served: between the end of its body and the end of its answer.
pub(crate) fn serving(session: &ServerSession, serving: bool) {
    if let Some(client) = of(session) {
        client.serving.store(serving, Ordering::Relaxed);
    }
}

/// Most clients leave TLS without a word. A request has a length, so none is cut unseen.
fn is_an_end<T: Default>(read: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    match read {
        Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Poll::Ready(Ok(T::default()))
        }
        read => read,
    }
}

impl Client {
    /// Buffers a connection in clear text.
    pub(crate) fn new(stream: TcpStream, patience: Patience) -> Self {
        Self::over(Carrier::Plain(stream), patience)
    }

    /// Buffers a connection whose handshake is done. A short answer is one record.
    pub(crate) fn over_tls(stream: TlsStream<BufReader<TcpStream>>, patience: Patience) -> Self {
        Self::over(Carrier::over_tls(stream), patience)
    }

    fn over(carrier: Carrier, patience: Patience) -> Self {
        let stream = BufWriter::with_capacity(WRITE_BUFFER_BYTES, carrier);
        let (serving, patience) = (AtomicBool::new(false), Mutex::new(patience));
        Self { stream, ahead: BytesMut::new(), serving, patience, look: None }
    }

    /// Whether the handshake chose HTTP/2.
    pub(crate) fn chose_http2(&self) -> bool {
        matches!(self.selected_alpn_proto(), Some(ALPN::H2))
    }

    /// Waits for HTTP/2's preface and leaves it to be read. False when something else came, or too late.
    pub(crate) async fn speaks_http2(&mut self) -> bool {
        let speaks = poll_fn(|context| self.poll_preface(context)).await;
        self.patience.get_mut().rest();
        speaks
    }

    fn poll_preface(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        // What a handshake leaves to be sent goes out while the client is silent.
        if self.poll_send(context).is_err() {
            return Poll::Ready(false);
        }
        while self.ahead.len() < PREFACE.len() && PREFACE.starts_with(&self.ahead) {
            match self.poll_ahead(context) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending => return self.poll_patience(context).map(|()| false),
            }
        }
        Poll::Ready(self.ahead.starts_with(PREFACE))
    }

    /// Sends what waits to be sent.
    fn poll_send(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        // TLS takes more than the socket does.
        let holds_back = self.stream.get_ref().tls().is_some_and(CommonState::wants_write);
        if self.stream.buffer().is_empty() && !holds_back {
            return Ok(());
        }
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads once into `ahead`; gives how much.
    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.ahead.reserve(READ_BUFFER_BYTES);
        let Self { stream, ahead, .. } = self;
        is_an_end(poll_read_buf(Pin::new(stream.get_mut()), context, ahead))
    }

    /// Reads what was set aside, or once.
    fn poll_bytes(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            if into.remaining() >= READ_BUFFER_BYTES {
                return is_an_end(Pin::new(self.stream.get_mut()).poll_read(context, into));
            }
            ready!(self.poll_ahead(context))?;
        }
        let length = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead[..length]);
        self.ahead.advance(length);
        Poll::Ready(Ok(()))
    }

    /// Ready when there is no more patience, after a read that found nothing.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { stream, patience, .. } = self;
        patience.get_mut().poll(context, || is_readable(stream.get_ref().tcp()))
    }

    /// Ready when the client has left.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ahead.len() < AHEAD_BYTES_MAX {
            if ready!(self.poll_ahead(context))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        while !has_hung_up(self.stream.get_ref().tcp()) {
            let look = self.look.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
            ready!(look.as_mut().poll(context));
            self.look = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_send(context)?;
        if *self.serving.get_mut() {
            return self.poll_gone(context);
        }
        if self.patience.get_mut().is_too_much() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = into.filled().len();
        let read = self.poll_bytes(context, into);
        if read.is_pending() {
            return self.poll_patience(context).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        self.patience.get_mut().heard(into.filled().len() - before);
        read
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[async_trait]
impl Shutdown for Client {
    async fn shutdown(&mut self) {
        // The other side may be gone already.
        let _ = self.stream.shutdown().await;
    }
}

impl UniqueID for Client {
    fn id(&self) -> UniqueIDType {
        self.stream.get_ref().tcp().as_raw_fd()
    }
}

impl Ssl for Client {
    fn selected_alpn_proto(&self) -> Option<ALPN> {
        match self.stream.get_ref().tls()?.alpn_protocol()? {
            b"h2" => Some(ALPN::H2),
            _ => Some(ALPN::H1),
        }
    }
}

impl Peek for Client {}

impl GetTimingDigest for Client {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Client {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Client {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
