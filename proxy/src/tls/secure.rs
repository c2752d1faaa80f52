//! An engine's connection over TLS, as pingora's client sessions take it.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::handshake::HandshakeError;

/// A TLS connection, at which the first bytes of an answer may be read twice.
///
/// An end without a `close_notify` is an error here, not an end: an answer without a length may have been cut.
#[derive(Debug)]
pub(crate) struct Secure {
    stream: TlsStream<BufReader<TcpStream>>,
    rewound: BytesMut,
    refusal: Option<HandshakeError>,
}

impl Secure {
    /// After the handshake.
    pub(crate) fn new(stream: TlsStream<BufReader<TcpStream>>) -> Self {
        Self { stream, rewound: BytesMut::new(), refusal: None }
    }

    /// Gives back what was read; the next read finds it again.
    pub(crate) fn rewind(&mut self, read: BytesMut) {
        self.rewound = read;
    }

    /// That the engine refused the router's certificate, once a read has shown it.
    pub(crate) const fn refusal(&self) -> Option<HandshakeError> {
        self.refusal
    }
}

impl AsyncRead for Secure {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rewound.is_empty() {
            let read = Pin::new(&mut self.stream).poll_read(context, into);
            if let Poll::Ready(Err(error)) = &read {
                self.refusal = self.refusal.or(HandshakeError::refusal(error));
            }
            return read;
        }
        let length = self.rewound.len().min(into.remaining());
        into.put_slice(&self.rewound[..length]);
        self.rewound.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Secure {
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
impl Shutdown for Secure {
    async fn shutdown(&mut self) {
        // The other side may be gone already.
        let _ = self.stream.shutdown().await;
    }
}

impl UniqueID for Secure {
    fn id(&self) -> UniqueIDType {
        self.stream.get_ref().0.get_ref().as_raw_fd()
    }
}

impl Ssl for Secure {}

impl Peek for Secure {}

impl GetTimingDigest for Secure {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Secure {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Secure {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
