//! Secrets, and where values come from that stand in no configuration: the environment and further files.

use std::fmt;
use std::path::Path;

use crate::defaults::FILE_BYTES_MAX;

/// Bytes that are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// What lies outside the configuration's text. The tests' own needs no machine.
pub trait Outside {
    /// The value of an environment variable. Error: why there is none, in a few words.
    fn variable(&self, name: &str) -> Result<String, String>;

    /// A file's bytes, [`FILE_BYTES_MAX`] at most. Error: why there are none, in a few words.
    fn file(&self, path: &Path) -> Result<Vec<u8>, String>;
}

/// This process's environment and file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Secret {
    /// Takes a secret.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The secret itself: for the one who needs it, never for a log, a metric, a page or an error.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(..)")
    }
}

impl Outside for System {
    fn variable(&self, name: &str) -> Result<String, String> {
        std::env::var(name).map_err(|error| match error {
            std::env::VarError::NotPresent => "a variable that is not set".to_owned(),
            std::env::VarError::NotUnicode(_) => "a variable that is not UTF-8".to_owned(),
        })
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        let bytes = crate::file::read_bounded(path).map_err(|error| error.to_string())?;
        if bytes.len() > FILE_BYTES_MAX { Err("a longer file".to_owned()) } else { Ok(bytes) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    #[test]
    fn a_further_file_is_read_up_to_its_limit() {
        for (length, found) in
            [(FILE_BYTES_MAX, Ok(FILE_BYTES_MAX)), (FILE_BYTES_MAX + 1, Err("a longer file".to_owned()))]
        {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&vec![b'a'; length]).unwrap();
            assert_eq!(System.file(file.path()).map(|bytes| bytes.len()), found);
        }
        assert!(System.file(Path::new("no/such")).is_err());
    }

    #[test]
    fn a_variable_that_is_not_set_is_told() {
        assert!(System.variable("PATH").is_ok());
        assert_eq!(System.variable("NO_SUCH_VARIABLE").unwrap_err(), "a variable that is not set");
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(..)");
    }
}
