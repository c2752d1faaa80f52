//! The new process's part: it waits for the old one, takes its listening sockets, and says when it serves.

use std::fs::{Permissions, remove_file, set_permissions, symlink_metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::message::{hear, receive_sockets, say};
use super::{Inherited, READY, SERVING, UpgradeError, WORD_WITHIN, YOURS, check_peer, silent};

/// Time for the old process to come.
const GIVER_WITHIN: Duration = Duration::from_secs(60);
/// Modes of a folder that lets others put files into it.
const OTHERS_WRITE: u32 = 0o022;
const OWN_USER_ONLY: u32 = 0o600;
const ROOT: u32 = 0;

/// Waits at `path` for the old process and takes its listening sockets. Blocks, for a minute at most. Errors: nothing was
/// taken.
pub fn take(path: Option<&Path>) -> Result<Inherited, UpgradeError> {
    let path = path.ok_or(UpgradeError::NoSocket)?;
    check_folder(path)?;
    let meeting = Meeting::open(path)?;
    tracing::info!(upgrade_socket = %path.display(), "waiting for the process that serves: send it SIGQUIT");
    let (old, sockets) = meeting.wait()?;
    tracing::info!(listeners = sockets.len(), "listening sockets taken over");
    Ok(Inherited { sockets, old: Some(old) })
}

impl Inherited {
    /// Asks the old process for its place. Errors: it keeps it. One that is gone has left it.
    pub(crate) fn ask(&self) -> Result<(), UpgradeError> {
        let Some(old) = &self.old else { return Ok(()) };
        let heard =
            say(old, READY).and_then(|()| old.set_read_timeout(Some(WORD_WITHIN))).and_then(|()| hear(old));
        match heard {
            Ok(word) if word == YOURS => Ok(()),
            Ok(found) => Err(UpgradeError::Unexpected { found, wanted: YOURS }),
            Err(error) if is_gone(&error) => {
                tracing::warn!("the old process is gone");
                Ok(())
            }
            Err(cause) => Err(silent(YOURS, cause)),
        }
    }

    /// Lets the old process go: this one serves. What it had and nobody wants here is closed.
    pub(crate) fn serving(self) {
        for unwanted in &self.sockets {
            tracing::warn!(address = %unwanted.wanted, "no longer listened on");
        }
        if let Some(old) = self.old {
            // It may be gone.
            let _ = say(&old, SERVING);
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Errors: others could put a socket of their own there.
fn check_folder(path: &Path) -> Result<(), UpgradeError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let found = folder.metadata().map_err(|cause| UpgradeError::Path { path: folder.to_owned(), cause })?;
    let trusted = [ROOT, geteuid().as_raw()].contains(&found.uid());
    if trusted && found.mode() & OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(UpgradeError::OpenFolder { folder: folder.to_owned() })
}

/// The socket where the two meet; its file goes with it.
struct Meeting {
    listener: UnixListener,
    path: PathBuf,
}

impl Meeting {
    /// Nobody can connect before its mode is right: it listens last.
    fn open(path: &Path) -> Result<Self, UpgradeError> {
        make_room(path)?;
        let failed = |cause| UpgradeError::Path { path: path.to_owned(), cause };
        let open = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            set_permissions(path, Permissions::from_mode(OWN_USER_ONLY))?;
            socket.listen(1)?;
            Ok(Self { listener: socket.into(), path: path.to_owned() })
        };
        open().map_err(failed)
    }

    /// Whoever comes and is not the old process, or breaks off, is let go.
    fn wait(&self) -> Result<(UnixStream, Vec<super::Socket>), UpgradeError> {
        let deadline = Instant::now() + GIVER_WITHIN;
        let failed = |cause| UpgradeError::Path { path: self.path.clone(), cause };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(UpgradeError::Nobody { path: self.path.clone(), within: GIVER_WITHIN });
            }
            SockRef::from(&self.listener).set_read_timeout(Some(left)).map_err(failed)?;
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if may_pass(&error) => continue,
                Err(cause) => return Err(failed(cause)),
            };
            match received(&stream) {
                Ok(sockets) => return Ok((stream, sockets)),
                Err(error) => tracing::warn!(%error, "no listening sockets came, still waiting"),
            }
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = remove_file(&self.path);
    }
}

fn may_pass(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn received(stream: &UnixStream) -> Result<Vec<super::Socket>, UpgradeError> {
    check_peer(stream)?;
    stream.set_read_timeout(Some(WORD_WITHIN)).map_err(|cause| silent("sockets", cause))?;
    receive_sockets(stream)
}

/// Removes the socket of a process that is gone. Errors: something else lies there, or somebody waits.
fn make_room(path: &Path) -> Result<(), UpgradeError> {
    let Ok(found) = symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() || found.uid() != geteuid().as_raw() {
        return Err(UpgradeError::NoneOfOurs(path.to_owned()));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(UpgradeError::Taken(path.to_owned()));
    }
    remove_file(path).map_err(|cause| UpgradeError::Path { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_a_folder_of_ones_own_will_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for (bits, is_right) in
            [(0o700, true), (0o755, true), (0o770, false), (0o707, false), (0o1777, false)]
        {
            mode(folder.path(), bits);
            assert_eq!(check_folder(&path).is_ok(), is_right, "{bits:o}");
        }
        mode(folder.path(), 0o700);
        assert!(matches!(check_folder(&folder.path().join("no/socket")), Err(UpgradeError::Path { .. })));
    }

    #[test]
    fn the_socket_is_for_its_own_user_and_goes_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let meeting = Meeting::open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, OWN_USER_ONLY);
        assert!(matches!(Meeting::open(&path), Err(UpgradeError::Taken(_))), "somebody waits");
        drop(meeting);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_process_left_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Meeting::open(&path).unwrap());
        std::fs::write(&path, "a file").unwrap();
        assert!(matches!(Meeting::open(&path), Err(UpgradeError::NoneOfOurs(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
        let long = folder.path().join("s".repeat(120));
        assert!(
            matches!(Meeting::open(&long), Err(UpgradeError::Path { .. })),
            "longer than a socket's path"
        );
    }

    /// A word of the old process, or none.
    fn asked(answer: Option<&str>) -> Result<(), UpgradeError> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        if let Some(word) = answer {
            say(&theirs, word).unwrap();
        }
        let _open = answer.map(|_| theirs);
        Inherited { sockets: Vec::new(), old: Some(ours) }.ask()
    }

    #[test]
    fn the_place_is_had_when_it_is_given_or_left() {
        assert!(asked(Some(YOURS)).is_ok());
        assert!(asked(None).is_ok(), "the old process is gone");
        assert!(asked(Some(super::super::KEPT)).is_err());
    }
}
