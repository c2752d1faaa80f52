//! The old process's part: it hands its listening sockets over, and is told when it may go.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Weak;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::message::{hear, say, send_sockets};
use super::{KEPT, READY, SERVING, UpgradeError, WORD_WITHIN, YOURS, check_peer, silent};
use crate::listen::Shared;

/// Time for a process to be there that takes the sockets.
const TAKER_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Time for it to be able to serve: it builds its indexes, and scrapes its engines.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Hands `sockets` over to the process that waits at `path`. Once it returns that process serves. Blocks. Errors: why nothing has changed hands.
/// They are not held while it waits: a drain closes them.
pub(crate) fn give(path: &Path, sockets: &Weak<[Shared]>) -> Result<(), UpgradeError> {
    let stream = connect(path)?;
    check_peer(&stream)?;
    let held = sockets.upgrade().ok_or(UpgradeError::Draining)?;
    send_sockets(&stream, &held).map_err(|cause| silent(READY, cause))?;
    drop(held);
    expect(&stream, READY, READY_WITHIN)?;
    say(&stream, YOURS).map_err(|cause| silent(SERVING, cause))?;
    expect(&stream, SERVING, WORD_WITHIN)
}

/// Waits for a process that listens there: it may have been started a moment ago.
fn connect(path: &Path) -> Result<UnixStream, UpgradeError> {
    let deadline = Instant::now() + TAKER_WITHIN;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if may_come(&error) => {}
            Err(cause) => return Err(UpgradeError::Path { path: path.to_owned(), cause }),
        }
        if Instant::now() >= deadline {
            return Err(UpgradeError::Nobody { path: path.to_owned(), within: TAKER_WITHIN });
        }
        sleep(LOOK_AGAIN);
    }
}

fn may_come(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Waits for a word. Without it the other side is told that nothing has changed hands.
fn expect(stream: &UnixStream, word: &'static str, within: Duration) -> Result<(), UpgradeError> {
    let heard = stream.set_read_timeout(Some(within)).and_then(|()| hear(stream));
    let found = match heard {
        Ok(found) if found == word => return Ok(()),
        Ok(found) => UpgradeError::Unexpected { found, wanted: word },
        Err(cause) => silent(word, cause),
    };
    // It may be gone.
    let _ = say(stream, KEPT);
    Err(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    use super::*;

    /// What comes of a taker that says these words after the list.
    fn given_to(words: &'static [&str]) -> (Result<(), UpgradeError>, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let taker = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            super::super::message::receive_sockets(&stream).unwrap();
            let mut heard = String::new();
            for word in words {
                say(&stream, word).unwrap();
                heard = hear(&stream).unwrap_or_default();
            }
            heard
        });
        let none: Arc<[Shared]> = Arc::new([]);
        (give(&path, &Arc::downgrade(&none)), taker.join().unwrap())
    }

    #[test]
    fn only_who_serves_has_taken_over() {
        assert!(given_to(&[READY, SERVING]).0.is_ok());
        for (shows, words, told) in [
            ("one that ends at once", &[][..], ""),
            ("one that ends when it has them", &[READY], YOURS),
            ("one that cannot start", &["no"], KEPT),
            ("one that breaks off", &[READY, "no"], KEPT),
        ] {
            let (given, heard) = given_to(words);
            assert!(given.is_err(), "{shows}");
            assert_eq!(heard, told, "{shows}");
        }
    }
}
