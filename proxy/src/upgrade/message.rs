//! What the two processes say to each other: the sockets with a list of what they are for, then words of a line each.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::{Socket, UpgradeError, silent};
use crate::listen::{Role, Shared};

/// The first line; another version of the list would have another.
const FIRST: &str = "prefixroute sockets 1";
/// A configuration has at most 16 listeners and the admin pages.
const SOCKETS_MAX: usize = 32;
const LIST_BYTES_MAX: usize = 4096;
const WORD_BYTES_MAX: usize = 64;
const WANTED_LIST: &str = "a list of listening sockets";

/// Sends sockets: a list of lines `data ADDRESS` and `admin ADDRESS` that ends with an empty one, and their descriptors with its first bytes.
pub(super) fn send_sockets(stream: &UnixStream, sockets: &[Shared]) -> io::Result<()> {
    let row = |one: &Shared| format!("{} {}\n", name(one.role), one.wanted);
    let list = format!("{FIRST}\n{}\n", sockets.iter().map(row).collect::<String>());
    let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|one| one.socket.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !rights.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("too many listeners"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(list.as_bytes())], &mut rights, SendFlags::NOSIGNAL)?;
    (&*stream).write_all(&list.as_bytes()[sent..])
}

/// The sockets that another process sends. Errors: it ended or fell silent; what came is no such list; a socket does not listen where the list says.
pub(super) fn receive_sockets(stream: &UnixStream) -> Result<Vec<Socket>, UpgradeError> {
    let (mut list, mut descriptors) = (Vec::new(), Vec::new());
    while !list.ends_with(b"\n\n") {
        let length = receive(stream, &mut list, &mut descriptors);
        let length = length.map_err(|cause| silent(WANTED_LIST, cause))?;
        if length == 0 {
            return Err(silent(WANTED_LIST, io::ErrorKind::UnexpectedEof.into()));
        }
        if list.len() > LIST_BYTES_MAX {
            return Err(unexpected(&list));
        }
    }
    sockets(&list, descriptors).ok_or_else(|| unexpected(&list))
}

/// Reads once: bytes, and descriptors beside them, which no child process inherits.
fn receive(stream: &UnixStream, list: &mut Vec<u8>, descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut bytes = [0; LIST_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    list.extend_from_slice(&bytes[..received.bytes]);
    Ok(received.bytes)
}

/// Each row with its descriptor; none if something does not fit.
fn sockets(list: &[u8], descriptors: Vec<OwnedFd>) -> Option<Vec<Socket>> {
    let text = std::str::from_utf8(list).ok()?;
    let rows = text.strip_prefix(FIRST)?.strip_prefix('\n')?.strip_suffix('\n')?;
    let rows: Vec<_> = rows.lines().map(row).collect::<Option<_>>()?;
    if rows.len() != descriptors.len() {
        return None;
    }
    let listening = |((role, wanted), descriptor): ((Role, SocketAddr), OwnedFd)| {
        let listens = socket_acceptconn(&descriptor).ok()?;
        let socket = TcpListener::from(descriptor);
        let address = socket.local_addr().ok()?;
        let is_there = address.ip() == wanted.ip() && [0, address.port()].contains(&wanted.port());
        socket.set_nonblocking(true).ok()?;
        (listens && is_there).then_some(Socket { role, wanted, socket })
    };
    rows.into_iter().zip(descriptors).map(listening).collect()
}

fn row(line: &str) -> Option<(Role, SocketAddr)> {
    let (role, address) = line.split_once(' ')?;
    let role = [Role::Data, Role::Admin].into_iter().find(|one| name(*one) == role)?;
    Some((role, address.parse().ok()?))
}

const fn name(role: Role) -> &'static str {
    match role {
        Role::Data => "data",
        Role::Admin => "admin",
    }
}

fn unexpected(found: &[u8]) -> UpgradeError {
    let found = String::from_utf8_lossy(&found[..found.len().min(WORD_BYTES_MAX)]).into_owned();
    UpgradeError::Unexpected { found, wanted: WANTED_LIST }
}

/// Says a word.
pub(super) fn say(mut stream: &UnixStream, word: &str) -> io::Result<()> {
    stream.write_all(format!("{word}\n").as_bytes())
}

/// The next word. Errors: none came in time; the other side ended (`UnexpectedEof`).
pub(super) fn hear(mut stream: &UnixStream) -> io::Result<String> {
    let mut word = Vec::new();
    let mut byte = [0];
    while word.len() < WORD_BYTES_MAX {
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        word.extend_from_slice(&byte);
    }
    Ok(String::from_utf8_lossy(&word).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn listener(wanted: &str) -> Shared {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = wanted.replace("PORT", &socket.local_addr().unwrap().port().to_string());
        Shared { role: Role::Data, wanted: wanted.parse().unwrap(), socket }
    }

    #[test]
    fn sockets_arrive_with_what_they_are_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let admin = Shared { role: Role::Admin, ..listener("127.0.0.1:0") };
        let sent = [listener("127.0.0.1:PORT"), admin];
        send_sockets(&ours, &sent).unwrap();
        let received = receive_sockets(&theirs).unwrap();
        assert_eq!(received.len(), 2);
        for (sent, received) in sent.iter().zip(&received) {
            assert_eq!((sent.role, sent.wanted), (received.role, received.wanted));
            assert_eq!(sent.socket.local_addr().unwrap(), received.socket.local_addr().unwrap());
        }
    }

    #[test]
    fn what_does_not_listen_where_the_list_says_is_refused() {
        let elsewhere = [listener("127.0.0.2:PORT"), listener("127.0.0.1:1")];
        for one in elsewhere {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send_sockets(&ours, &[one]).unwrap();
            assert!(matches!(receive_sockets(&theirs), Err(UpgradeError::Unexpected { .. })));
        }
        let connected = std::net::TcpStream::connect(listener_address()).unwrap();
        let wanted = connected.local_addr().unwrap();
        let socket = TcpListener::from(OwnedFd::from(connected));
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_sockets(&ours, &[Shared { role: Role::Data, wanted, socket }]).unwrap();
        assert!(matches!(receive_sockets(&theirs), Err(UpgradeError::Unexpected { .. })), "a connection");
    }

    /// A listener that lives as long as the test.
    fn listener_address() -> SocketAddr {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || socket.accept().map(|_| ()));
        address
    }

    #[test]
    fn other_lists_are_refused() {
        for list in [
            "\n\n",
            "prefixroute sockets 2\n\n",
            "prefixroute sockets 1\ndata 127.0.0.1:1\n\n",
            "prefixroute sockets 1\nother 127.0.0.1:1\n\n",
            "prefixroute sockets 1\ndata localhost:1\n\n",
        ] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(list.as_bytes()).unwrap();
            assert!(matches!(receive_sockets(&theirs), Err(UpgradeError::Unexpected { .. })), "{list:?}");
        }
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&[b'x'; 2 * LIST_BYTES_MAX]).unwrap();
        assert!(matches!(receive_sockets(&theirs), Err(UpgradeError::Unexpected { .. })), "without an end");
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(matches!(receive_sockets(&theirs), Err(UpgradeError::Silent { .. })), "nothing at all");
    }

    #[test]
    fn a_word_is_a_line() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        say(&ours, "ready").unwrap();
        say(&ours, "serving").unwrap();
        assert_eq!((hear(&theirs).unwrap(), hear(&theirs).unwrap()), ("ready".into(), "serving".into()));
        drop(ours);
        assert_eq!(hear(&theirs).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
