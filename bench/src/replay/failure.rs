//! Why a request failed, by kinds that can be counted.

use std::error::Error;
use std::fmt;
use std::io;

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Nobody listens there.
    Refused,
    /// No connection, for another reason.
    Connect,
    /// Not over in time.
    Timeout,
    /// The connection ended before an answer began.
    NoAnswer,
    /// A status of 400 and more.
    Status(u16),
    /// The answer broke off, or a stream ended without saying that it is complete.
    Cut,
    /// A stream said that it failed.
    StreamError,
    /// An answer that no API of these gives: another server listens there.
    NoJson,
}

impl fmt::Display for Kind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => to.write_str("refused"),
            Self::Connect => to.write_str("no connection"),
            Self::Timeout => to.write_str("timeout"),
            Self::NoAnswer => to.write_str("no answer"),
            Self::Status(status) => write!(to, "status {status}"),
            Self::Cut => to.write_str("cut off"),
            Self::StreamError => to.write_str("error in stream"),
            Self::NoJson => to.write_str("no JSON"),
        }
    }
}

/// A failure: its kind, and what was said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// To count it by.
    pub kind: Kind,
    /// One line.
    pub text: String,
}

impl Failure {
    /// Of an error of the client, before or after an answer began.
    pub(super) fn of(error: &reqwest::Error, answered: bool) -> Self {
        let kind = match error {
            error if error.is_timeout() => Kind::Timeout,
            error if is_refused(error) => Kind::Refused,
            error if error.is_connect() => Kind::Connect,
            _ if answered => Kind::Cut,
            _ => Kind::NoAnswer,
        };
        Self { kind, text: with_causes(error) }
    }
}

fn is_refused(error: &reqwest::Error) -> bool {
    let mut io_errors = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors.any(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
}

/// An error and what is behind it, in a line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    causes(error).fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// What is behind an error, the nearest first.
fn causes<'a>(error: &'a dyn Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (**cause).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_in_words() {
        assert_eq!(Kind::Status(502).to_string(), "status 502");
        assert_eq!(Kind::Cut.to_string(), "cut off");
    }

    #[test]
    fn an_error_is_told_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::other("inner"));
        assert_eq!(with_causes(&error), "outer: inner");
    }
}
