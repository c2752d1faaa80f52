//! Listening sockets: bound here, or taken over from a router that runs.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;

use crate::upgrade::Inherited;

/// Connections that may wait to be accepted; the system caps it at its own limit.
const BACKLOG: u32 = 65_535;

/// A listener that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}")]
pub struct BindError {
    /// The address that was wanted.
    pub address: SocketAddr,
    /// What the system said.
    pub cause: io::Error,
}

/// Who is served on a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Clients.
    Data,
    /// Operators.
    Admin,
}

/// A listening socket.
pub(crate) struct Listening {
    pub(crate) socket: TcpListener,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The same socket, for another process.
    pub(crate) shared: Shared,
}

/// What another process has to know of a listening socket to go on with it.
pub(crate) struct Shared {
    pub(crate) role: Role,
    /// As the configuration has it: port 0 is any.
    pub(crate) wanted: SocketAddr,
    pub(crate) socket: StdListener,
}

/// Listens at `wanted` on a runtime, with a socket of the old process where there is one. Errors: the system's.
pub(crate) fn listen(
    role: Role,
    wanted: SocketAddr,
    inherited: &mut Inherited,
    runtime: &Handle,
) -> Result<Listening, BindError> {
    let _entered = runtime.enter();
    let mut listening = || {
        let socket = match inherited.take(role, wanted) {
            Some(socket) => socket,
            None => bind(wanted)?.into_std()?,
        };
        let shared = Shared { role, wanted, socket: socket.try_clone()? };
        let socket = TcpListener::from_std(socket)?;
        Ok(Listening { address: socket.local_addr()?, socket, shared })
    };
    listening().map_err(|cause| BindError { address: wanted, cause })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Connections that the system has completed and nobody has accepted. They would be reset with the socket, when no other
/// process holds it: whoever stops to accept takes them first.
pub(crate) fn backlog(socket: TcpListener) -> impl Iterator<Item = (tokio::net::TcpStream, SocketAddr)> {
    let socket = socket.into_std().ok();
    // Ends with "would block"; another process that accepts as well takes its share. Bounded, should connections never end.
    std::iter::from_fn(move || {
        let (stream, peer) = socket.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((tokio::net::TcpStream::from_std(stream).ok()?, peer))
    })
    .take(BACKLOG as usize)
}
