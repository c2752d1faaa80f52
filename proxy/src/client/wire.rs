//! What carries a client's bytes: TCP, or TLS over it.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora_core::protocols::ALPN;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::descriptors::is_readable;

/// A connection in clear text or not.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    /// Reads through a buffer: a record at once and not a quarter of it.
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
}

impl Wire {
    /// Whether bytes that were written still wait to be sent. TLS takes more than the socket does.
    pub(super) fn holds_back(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// What the handshake chose to speak.
    pub(super) fn protocol(&self) -> Option<ALPN> {
        let Self::Tls(stream) = self else { return None };
        match stream.get_ref().1.alpn_protocol()? {
            b"h2" => Some(ALPN::H2),
            _ => Some(ALPN::H1),
        }
    }

    /// Whether bytes, or an end, lie in the socket.
    pub(super) fn is_readable(&self) -> bool {
        is_readable(self.tcp())
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0.get_ref(),
        }
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        self.tcp().as_raw_fd()
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
            // Most clients close without a word. A request has a length, so none is cut unseen.
            Self::Tls(stream) => match Pin::new(stream).poll_read(context, into) {
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Poll::Ready(Ok(()))
                }
                read => read,
            },
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
