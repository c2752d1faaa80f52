//! What carries an engine's bytes: TCP, or TLS over it, and where it leads.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::v1::client::HttpSession;
use pingora_core::protocols::l4::stream::Stream as Tcp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::ConnectError;
use crate::tls::client::EndpointTls;
use crate::tls::handshake::HandshakeError;
use crate::tls::secure::Secure;

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

/// A connection to an engine.
pub(super) enum Wire {
    Plain(Box<Tcp>),
    Tls(Box<Secure>),
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
    pub(super) async fn connect(to: &Transport) -> Result<Self, ConnectError> {
        let stream = TcpStream::connect(to.address).await?;
        stream.set_nodelay(true).map_err(|_| ConnectError::Failed)?;
        match &to.tls {
            None => Ok(Self::Plain(Box::new(Tcp::from(stream)))),
            // Boxed, lest every request in clear text carry room for a handshake.
            Some(tls) => Ok(Self::Tls(Box::new(Box::pin(tls.handshake(stream)).await?))),
        }
    }

    /// Whether it is open and nothing has come on it: an engine speaks only when asked. A session's ticket is no speech.
    pub(super) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Gives back the first bytes of an answer; the session finds them again.
    pub(super) fn rewind(&mut self, read: BytesMut) {
        match self {
            Self::Plain(stream) => stream.rewind(&read),
            Self::Tls(stream) => stream.rewind(read),
        }
    }

    /// That the engine refused the router's certificate, once a read has shown it.
    pub(super) fn refusal(&self) -> Option<HandshakeError> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.refusal(),
        }
    }

    pub(super) fn into_session(self) -> HttpSession {
        match self {
            Self::Plain(stream) => HttpSession::new(stream),
            Self::Tls(stream) => HttpSession::new(stream),
        }
    }

    /// The connection of a session that was to that transport.
    pub(super) fn of(stream: Stream, transport: &Transport) -> Option<Self> {
        let stream = stream.into_any();
        match transport.tls {
            None => stream.downcast().ok().map(Self::Plain),
            Some(_) => stream.downcast().ok().map(Self::Tls),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, from),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, from),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, from),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
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
