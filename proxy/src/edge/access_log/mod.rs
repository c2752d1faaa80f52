//! The access log: one line of JSON for each request.

mod line;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use crate::lines::Sink;
pub(crate) use line::{Line, Text};

/// Opens what is configured; a file is appended to, and made where there is none. Errors: the system's.
pub(crate) fn open(to: &config::AccessLog) -> io::Result<Sink> {
    Ok(match to {
        config::AccessLog::Stdout => Box::new(io::stdout()),
        config::AccessLog::File(path) => {
            // To open a pipe that nobody reads is to wait for a reader: asked first, without waiting, it is an error.
            let mut asking = OpenOptions::new();
            let _asked = asking.append(true).create(true).custom_flags(libc::O_NONBLOCK).open(path)?;
            Box::new(OpenOptions::new().append(true).create(true).open(path)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("missing").join("access.log");
        assert!(open(&config::AccessLog::File(path)).is_err());
    }
}
