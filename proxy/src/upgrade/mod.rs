//! Another process in place of this one, with the same listening sockets: no connection is refused, none is reset.
//!
//! The new process listens at `upgrade_socket` ([`take`]); the old one, at SIGQUIT, connects and hands its listening sockets
//! over (`give`). It goes on serving until the new one has read its configuration, scraped the engines and accepts:
//!
//! ```text
//! old                                     new
//! the sockets, what each is for    ->
//!                                  <-     ready      can serve, does not yet
//! yours                            ->                goes once the new one serves
//!                                  <-     serving    accepts
//! ```
//!
//! Whatever fails before `serving` leaves the old one as it was. An old one that is gone before `yours` leaves its place to
//! the new. Both look at whose process the other is: a listening socket is a door to the engines.
//!
//! pingora's transfer (`server/transfer_fd` of 0.9.1) is not used: whoever on the machine reaches its socket may have it
//! (mode 0666), the old process leaves before the new one can serve, faults are panics, and the descriptors are bare numbers.

mod give;
mod message;
mod take;

use std::io;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::listen::Role;

pub(crate) use give::give;
pub use take::take;

/// Time for the other side's next word, where it has nothing to do first.
const WORD_WITHIN: Duration = Duration::from_secs(10);

/// The new process can serve.
const READY: &str = "ready";
/// The listeners are the new process's.
const YOURS: &str = "yours";
/// The new process serves.
const SERVING: &str = "serving";
/// The old process goes on.
const KEPT: &str = "kept";

/// Why listening sockets did not change hands.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// No place to meet at.
    #[error("upgrade_socket: found none, wanted the path where the two processes meet")]
    NoSocket,
    /// The old process has no sockets to give any more.
    #[error("this process drains")]
    Draining,
    /// The folder of the socket is open to others.
    #[error("upgrade_socket: {folder} can be written to by others, wanted a folder of this user's own")]
    OpenFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// Something else lies at the path.
    #[error("upgrade_socket: {0} is no socket, and not replaced")]
    NoneOfOurs(PathBuf),
    /// Another process waits at the path.
    #[error("upgrade_socket: another process waits at {0}")]
    Taken(PathBuf),
    /// The path cannot be used.
    #[error("upgrade_socket: {path}: {cause}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Nobody came.
    #[error("no process came to {path} within {within:?}")]
    Nobody {
        /// Where it was waited for.
        path: PathBuf,
        /// How long.
        within: Duration,
    },
    /// A process of somebody else's.
    #[error("the process at the other end is of user {found}, wanted {wanted}")]
    Stranger {
        /// Its user.
        found: u32,
        /// Ours.
        wanted: u32,
    },
    /// The other process ended, or fell silent.
    #[error("the other process said nothing where {wanted:?} was due: {cause}")]
    Silent {
        /// The word that was due.
        wanted: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// What came is not what was due.
    #[error("the other process said {found:?}, wanted {wanted}")]
    Unexpected {
        /// The beginning of what came.
        found: String,
        /// What was due.
        wanted: &'static str,
    },
}

/// The listening sockets of an old process, and the way back to it. By default there is no old one.
#[derive(Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
    old: Option<UnixStream>,
}

/// One that came, checked to listen where it says.
struct Socket {
    role: Role,
    /// The old configuration's address.
    wanted: SocketAddr,
    socket: TcpListener,
}

impl Inherited {
    /// The socket for an address of the configuration, if it came. Among those of port 0 the role tells them apart.
    pub(crate) fn take(&mut self, role: Role, wanted: SocketAddr) -> Option<TcpListener> {
        let fits = |one: &Socket| one.wanted == wanted && (wanted.port() != 0 || one.role == role);
        let place = self.sockets.iter().position(fits)?;
        Some(self.sockets.remove(place).socket)
    }

    /// Whether there is an old process.
    pub(crate) fn takes_over(&self) -> bool {
        self.old.is_some()
    }
}

/// Errors: the process at the other end is not this user's.
fn check_peer(stream: &UnixStream) -> Result<(), UpgradeError> {
    let peer = socket_peercred(stream).map_err(|error| silent("a user", error.into()))?;
    let (found, wanted) = (peer.uid, geteuid());
    if found == wanted {
        return Ok(());
    }
    Err(UpgradeError::Stranger { found: found.as_raw(), wanted: wanted.as_raw() })
}

const fn silent(wanted: &'static str, cause: io::Error) -> UpgradeError {
    UpgradeError::Silent { wanted, cause }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn inherited(rows: &[(Role, &str)]) -> Inherited {
        let socket = |(role, wanted): &(Role, &str)| Socket {
            role: *role,
            wanted: wanted.parse().unwrap(),
            socket: TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        Inherited { sockets: rows.iter().map(socket).collect(), old: None }
    }

    #[test]
    fn a_socket_goes_where_its_address_is_wanted() {
        let rows = [
            (Role::Data, "127.0.0.1:0"),
            (Role::Data, "127.0.0.1:8080"),
            (Role::Admin, "127.0.0.1:0"),
            (Role::Admin, "127.0.0.1:9090"),
        ];
        for (shows, role, wanted, place) in [
            ("its own", Role::Data, "127.0.0.1:8080", Some(1)),
            ("of any port the role's own", Role::Admin, "127.0.0.1:0", Some(2)),
            ("the first of several", Role::Data, "127.0.0.1:0", Some(0)),
            ("a port that changes its role", Role::Data, "127.0.0.1:9090", Some(3)),
            ("another port", Role::Data, "127.0.0.1:8081", None),
            ("another address", Role::Data, "0.0.0.0:8080", None),
        ] {
            let mut inherited = inherited(&rows);
            let of = |one: &TcpListener| one.local_addr().unwrap();
            let places: Vec<_> = inherited.sockets.iter().map(|one| of(&one.socket)).collect();
            let found = inherited.take(role, wanted.parse().unwrap());
            assert_eq!(found.map(|one| of(&one)), place.map(|place: usize| places[place]), "{shows}");
        }
        let mut inherited = inherited(&rows[1..2]);
        assert!(inherited.take(Role::Data, "127.0.0.1:8080".parse().unwrap()).is_some());
        assert!(inherited.take(Role::Data, "127.0.0.1:8080".parse().unwrap()).is_none(), "only once");
    }
}
