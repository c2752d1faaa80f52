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
