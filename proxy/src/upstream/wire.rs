//! A connection to an engine, and where it leads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::ConnectError;
use crate::carrier::Carrier;
use crate::tls::client::EndpointTls;
use crate::tls::handshake::HandshakeError;

/// Where an engine is reached, and how it is spoken to there.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    pub(crate) address: SocketAddr,
    /// None for clear text.
    pub(crate) tls: Option<Arc<EndpointTls>>,
}

/// What connections must have in common for one to serve in place of another: the address, and the settings of TLS, 0 for
/// clear text.
pub(super) type Key = (SocketAddr, u64);

/// A connection to an engine, as pingora's client sessions take it: its first bytes may be read twice.
///
/// Over TLS an end without a `close_notify` is an error, not an end: an answer without a length may have been cut.
#[derive(Debug)]
pub(super) struct Wire {
    carrier: Carrier,
    rewound: BytesMut,
    refusal: Option<HandshakeError>,
}

impl Transport {
    pub(super) fn key(&self) -> Key {
        (self.address, self.tls.as_ref().map_or(0, |tls| tls.id().get()))
    }
}

impl From<SocketAddr> for Transport {
    fn from(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }
}

impl From<io::Error> for ConnectError {
    /// Why TCP gave no connection. Lacking descriptors, ports or memory for sockets is our own fault.
    fn from(error: io::Error) -> Self {
        const OURS: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::ENOBUFS, libc::ENOMEM];
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Refused,
            Some(code) if OURS.contains(&code) => Self::Exhausted,
            _ => Self::Failed,
        }
    }
}

impl Wire {
    /// A new connection, its handshake included.
    pub(super) async fn connect(to: &Transport) -> Result<Box<Self>, ConnectError> {
        let stream = TcpStream::connect(to.address).await?;
        stream.set_nodelay(true).map_err(|_| ConnectError::Failed)?;
        let carrier = match &to.tls {
            None => Carrier::Plain(stream),
            // Boxed, lest every request in clear text carry room for a handshake.
            Some(tls) => Carrier::over_tls(Box::pin(tls.handshake(stream)).await?),
        };
        Ok(Box::new(Self { carrier, rewound: BytesMut::new(), refusal: None }))
    }

    /// Whether it is open and nothing has come on it: an engine speaks only when asked. A session's ticket is no speech.
    pub(super) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Gives back the first bytes of an answer; the session finds them again.
    pub(super) fn rewind(&mut self, read: BytesMut) {
        self.rewound = read;
    }

    /// That the engine refused the router's certificate, once a read has shown it.
    pub(super) const fn refusal(&self) -> Option<HandshakeError> {
        self.refusal
    }

    /// Waits for a reset behind an end that has come. A socket that had been closed before the request came answers it with one;
    /// an engine that closed after it had read all sends none.
    pub(super) async fn reset(&self) -> io::Result<()> {
        self.carrier.tcp().ready(Interest::ERROR).await.map(drop)
    }

    /// The connection of a session.
    pub(super) fn of(stream: Stream) -> Option<Box<Self>> {
        stream.into_any().downcast().ok()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rewound.is_empty() {
            let read = Pin::new(&mut self.carrier).poll_read(context, into);
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

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.carrier).poll_write(context, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.carrier).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.carrier.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(context)
    }
}

#[async_trait]
impl Shutdown for Wire {
    async fn shutdown(&mut self) {
        // The other side may be gone already.
        let _ = self.carrier.shutdown().await;
    }
}

impl UniqueID for Wire {
    fn id(&self) -> UniqueIDType {
        self.carrier.tcp().as_raw_fd()
    }
}

impl Ssl for Wire {}

impl Peek for Wire {}

impl GetTimingDigest for Wire {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Wire {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Wire {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this process lacks is told apart from what an engine does.
    #[test]
    fn a_shortage_is_ours_and_not_the_engines() {
        for (code, ours) in [
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::EADDRNOTAVAIL, true),
            (libc::ECONNREFUSED, false),
            (libc::EHOSTUNREACH, false),
            (libc::ETIMEDOUT, false),
        ] {
            let error = ConnectError::from(io::Error::from_raw_os_error(code));
            assert_eq!(error == ConnectError::Exhausted, ours, "{code}");
        }
    }
}
