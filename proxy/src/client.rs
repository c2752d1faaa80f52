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

mod wire;

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;

use wire::Wire;

const READ_BUFFER_BYTES: usize = 16 * 1024;
const WRITE_BUFFER_BYTES: usize = 4 * 1024;
/// Bytes of next requests that are set aside. Behind more than that a client's leaving shows only when a write fails.
const AHEAD_BYTES_MAX: usize = 256 * 1024;

/// A connection that pingora's sessions can run on.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufWriter<Wire>,
    /// Read and not yet asked for.
    ahead: BytesMut,
    /// A request has been read whole and its answer is not: whoever reads now only asks whether the client is there.
    serving: AtomicBool,
}

/// Notes whether the request on a connection is being served: between the end of its body and the end of its answer.
pub(crate) fn serving(session: &ServerSession, serving: bool) {
    // Over HTTP/2 there is no such stream, and no need.
    if let ServerSession::H1(session) = session
        && let Some(client) = (**session.stream()).as_any().downcast_ref::<Client>()
    {
        client.serving.store(serving, Ordering::Relaxed);
    }
}

impl Client {
    /// Buffers a connection in clear text.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self::over(Wire::Plain(stream))
    }

    /// Buffers a connection whose handshake is done. A short answer is one record.
    pub(crate) fn over_tls(stream: TlsStream<BufReader<TcpStream>>) -> Self {
        Self::over(Wire::Tls(Box::new(stream)))
    }

    fn over(wire: Wire) -> Self {
        let stream = BufWriter::with_capacity(WRITE_BUFFER_BYTES, wire);
        Self { stream, ahead: BytesMut::new(), serving: AtomicBool::new(false) }
    }

    /// Sends what waits to be sent.
    fn poll_send(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.stream.buffer().is_empty() && !self.stream.get_ref().holds_back() {
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
        poll_read_buf(Pin::new(stream.get_mut()), context, ahead)
    }

    /// Ready when the client has left.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ahead.len() < AHEAD_BYTES_MAX {
            if ready!(self.poll_ahead(context))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
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
        if self.ahead.is_empty() {
            if into.remaining() >= READ_BUFFER_BYTES {
                return Pin::new(self.stream.get_mut()).poll_read(context, into);
            }
            ready!(self.poll_ahead(context))?;
        }
        let length = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead[..length]);
        self.ahead.advance(length);
        Poll::Ready(Ok(()))
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
        self.stream.get_ref().as_raw_fd()
    }
}

impl Ssl for Client {
    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.stream.get_ref().protocol()
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
