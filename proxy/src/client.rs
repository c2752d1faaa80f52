//! A client's connection: a TCP stream with buffers of the right size.
//!
//! The head and a prompt of ten KB arrive in one read, and the head and body of a short answer leave in one write: two
//! system calls a request less than without buffers, at 20 KiB a connection. pingora's own listeners buffer 64 KiB, and
//! their buffers cannot be had without them.
//!
//! Nothing waits in the write buffer: whoever waits for an engine also waits for the client to speak or leave, and that
//! read sends what has been written so far.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter, ReadBuf};
use tokio::net::TcpStream;

const READ_BUFFER_BYTES: usize = 16 * 1024;
const WRITE_BUFFER_BYTES: usize = 4 * 1024;

/// A connection that pingora's sessions can run on.
#[derive(Debug)]
pub(crate) struct Client(BufReader<BufWriter<TcpStream>>);

impl Client {
    /// Buffers a connection.
    pub(crate) fn new(stream: TcpStream) -> Self {
        let writer = BufWriter::with_capacity(WRITE_BUFFER_BYTES, stream);
        Self(BufReader::with_capacity(READ_BUFFER_BYTES, writer))
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.0.get_ref().buffer().is_empty()
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.0).poll_flush(context)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[async_trait]
impl Shutdown for Client {
    async fn shutdown(&mut self) {
        // The other side may be gone already.
        let _ = self.0.shutdown().await;
    }
}

impl UniqueID for Client {
    fn id(&self) -> UniqueIDType {
        self.0.get_ref().get_ref().as_raw_fd()
    }
}

impl Ssl for Client {}

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
