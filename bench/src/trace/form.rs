//! The forms of a trace, told apart by the first line, so that a command takes any file.

use std::path::Path;

use picker::hash::BlockSize;

use super::TraceRequest;
use super::hashed::HashedRequest;
use super::lines::{self, BadLines, Loaded, TraceFileError};
use crate::decisions::to_trace;

/// A form in which traces are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Bodies: see [`mod@super::file`].
    Bodies,
    /// Lengths and ids of blocks: see [`super::hashed`].
    Hashed,
    /// The router's log: see [`crate::decisions`].
    Decisions,
}

/// The requests of a file of any form.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyTrace {
    /// With their bodies.
    Bodies(Vec<TraceRequest>),
    /// Known by their blocks only, as in Mooncake's form and in the router's log; with the size of the blocks, where the file
    /// tells it.
    Hashed(Vec<HashedRequest>, Option<BlockSize>),
}

impl AnyTrace {
    /// Keeps the first requests.
    pub fn truncate(&mut self, requests: usize) {
        match self {
            Self::Bodies(trace) => trace.truncate(requests),
            Self::Hashed(trace, _) => trace.truncate(requests),
        }
    }
}

/// The form of a text, by the first line that is a JSON object: `candidates` is the router's log, `timestamp` or `hash_ids`
/// Mooncake's. A text without
/// such a line is taken as bodies, whose reader then says what is wrong.
pub fn form(text: &[u8]) -> Form {
    type Members<'a> = std::collections::HashMap<std::borrow::Cow<'a, str>, serde::de::IgnoredAny>;
    let mut lines = text.split(|&byte| byte == b'\n');
    let first = lines.find_map(|line| serde_json::from_slice::<Members<'_>>(line).ok());
    let has = |member| first.as_ref().is_some_and(|first| first.contains_key(member));
    match () {
        () if has("candidates") => Form::Decisions,
        () if has("timestamp") || has("hash_ids") => Form::Hashed,
        () => Form::Bodies,
    }
}

/// Reads a file of either form. Errors: it cannot be read, has no good line, or a bad one that is not to be skipped.
pub fn read(path: &Path, bad: BadLines) -> Result<Loaded<AnyTrace>, TraceFileError> {
    parse(&lines::bytes(path)?, path, bad)
}

/// Reads the text of a file of either form that is called `path`. Errors: as [`read`].
pub fn parse(text: &[u8], path: &Path, bad: BadLines) -> Result<Loaded<AnyTrace>, TraceFileError> {
    match form(text) {
        Form::Bodies => lines::parse(text, path, bad).map(|loaded| loaded.map(AnyTrace::Bodies)),
        Form::Hashed => {
            lines::parse(text, path, bad).map(|loaded| loaded.map(|trace| AnyTrace::Hashed(trace, None)))
        }
        Form::Decisions => lines::parse(text, path, bad).map(|loaded: Loaded<Vec<_>>| {
            loaded.map(|log| {
                let (trace, size) = to_trace(&log);
                AnyTrace::Hashed(trace, Some(size))
            })
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const BODY: &str = r#"{"at":0,"group":"timestamp","body":{"timestamp":1}}"#;
    const HASHED: &str = r#"{"timestamp":0,"input_length":90,"output_length":7,"hash_ids":[0,1]}"#;

    #[test]
    fn the_first_object_tells_the_form() {
        for (shows, text, want) in [
            ("ours", BODY.to_owned(), Form::Bodies),
            ("Mooncake's", HASHED.to_owned(), Form::Hashed),
            ("the first counts", format!("{BODY}\n{HASHED}"), Form::Bodies),
            ("a broken line tells nothing", format!("\n{{\"at\n[1]\n{HASHED}"), Form::Hashed),
            ("a missing member does not hide it", r#"{"timestamp":0}"#.to_owned(), Form::Hashed),
            ("nor does another", r#"{"hash_ids":[]}"#.to_owned(), Form::Hashed),
            (
                "the router's log",
                r#"{"timestamp":0,"hash_ids":[],"candidates":[]}"#.to_owned(),
                Form::Decisions,
            ),
            ("nothing", String::new(), Form::Bodies),
        ] {
            assert_eq!(form(text.as_bytes()), want, "{shows}");
        }
    }

    #[test]
    fn both_forms_are_read_and_skip_what_is_bad() {
        for (good, hashed) in [(BODY, false), (HASHED, true)] {
            let text = format!("{good}\n{{}}\n{good}");
            let loaded = parse(text.as_bytes(), Path::new("t.jsonl"), BadLines::Skip).unwrap();
            let (requests, is_hashed) = match loaded.requests {
                AnyTrace::Bodies(requests) => (requests.len(), false),
                AnyTrace::Hashed(requests, _) => (requests.len(), true),
            };
            assert_eq!((requests, is_hashed, loaded.skipped.lines), (2, hashed, 1));
            let error =
                parse(text.as_bytes(), Path::new("t.jsonl"), BadLines::Refuse).unwrap_err().to_string();
            assert!(error.starts_with("t.jsonl:2:2: missing field"), "{error}");
        }
    }
}
