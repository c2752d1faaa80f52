//! Traces as lines of JSON: `{"at": seconds, "group": "...", "body": {...}}`.
//!
//! A body is kept as the bytes it was written with, so that replaying a file sends what its author meant.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::TraceRequest;
use crate::engine::Seconds;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceFileError {
    /// The file.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file's name.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line of it.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file's name.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What was found and what was wanted.
        reason: String,
    },
    /// Nothing in it.
    #[error("{}: found no request", path.display())]
    Empty {
        /// The file's name.
        path: PathBuf,
    },
}

#[derive(Deserialize, Serialize)]
struct Line<'a> {
    at: f64,
    group: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Reads a file. Empty lines are passed over; the first bad line ends it, and so does a time before the last one's.
pub fn read(path: &Path) -> Result<Vec<TraceRequest>, TraceFileError> {
    let text = fs::read_to_string(path)
        .map_err(|source| TraceFileError::Unreadable { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// Reads the text of a file that is called `path`.
pub fn parse(text: &str, path: &Path) -> Result<Vec<TraceRequest>, TraceFileError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut last = Seconds(0.0);
    let request = |(number, line)| {
        let bad = |reason| TraceFileError::Line { path: path.to_owned(), line: number + 1, reason };
        let request = parse_line(line).and_then(|request| in_order(request, last)).map_err(bad)?;
        last = request.at;
        Ok(request)
    };
    let trace = lines.map(request).collect::<Result<Vec<_>, _>>()?;
    if trace.is_empty() {
        return Err(TraceFileError::Empty { path: path.to_owned() });
    }
    Ok(trace)
}

fn in_order(request: TraceRequest, last: Seconds) -> Result<TraceRequest, String> {
    if request.at < last {
        return Err(format!("at: found {}, wanted {} or more, as before it", request.at.0, last.0));
    }
    Ok(request)
}

fn parse_line(line: &str) -> Result<TraceRequest, String> {
    let line: Line<'_> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if line.at < 0.0 {
        return Err(format!("at: found {}, wanted 0 or more", line.at));
    }
    if !line.body.get().starts_with('{') {
        return Err(format!("body: found {:.20}, wanted an object", line.body.get()));
    }
    Ok(TraceRequest { at: Seconds(line.at), group: line.group, body: line.body.get().to_owned() })
}

/// Writes a trace.
pub fn write(trace: &[TraceRequest], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(to_lines(trace).as_bytes())
}

/// A trace as text, a line for each request. A body that is no JSON leaves its line out; `generate` makes
/// none.
pub fn to_lines(trace: &[TraceRequest]) -> String {
    let line = |request: &TraceRequest| {
        let body = RawValue::from_string(request.body.clone()).ok()?;
        let line = Line { at: request.at.0, group: request.group.clone(), body: &body };
        Some(serde_json::to_string(&line).ok()? + "\n")
    };
    trace.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{TraceOptions, generate};
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let trace = generate(&TraceOptions::default()).unwrap();
        let mut bytes = Vec::new();
        write(&trace, &mut bytes).unwrap();
        let path = Path::new("trace.jsonl");
        let read = parse(std::str::from_utf8(&bytes).unwrap(), path).unwrap();
        assert!(read == trace, "not the same trace");
    }

    #[test]
    fn the_first_trace_is_read_as_it_was_written() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/seed/traces/default.jsonl");
        let trace = read(&path).unwrap();
        assert_eq!(trace.len(), 64);
        assert_eq!((trace[0].at, trace[0].group.as_str()), (Seconds(0.000795), "tenant-1"));
        assert!(trace[0].body.starts_with(r#"{"model": "cc-sim", "max_tokens": 1, "messages": [{"#));
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = r#"{"at":2,"group":"g","body":{}}"#;
        for (line, reason) in [
            ("nonsense", "t.jsonl:3: expected ident at line 1 column 2"),
            (r#"{"at":0,"group":"g"}"#, "t.jsonl:3: missing field `body` at line 1 column 20"),
            (r#"{"at":-1,"group":"g","body":{}}"#, "t.jsonl:3: at: found -1, wanted 0 or more"),
            (r#"{"at":2,"group":"g","body":[1]}"#, "t.jsonl:3: body: found [1], wanted an object"),
            (
                r#"{"at":1.5,"group":"g","body":{}}"#,
                "t.jsonl:3: at: found 1.5, wanted 2 or more, as before it",
            ),
        ] {
            let error = parse(&format!("{good}\n\n{line}\n"), Path::new("t.jsonl")).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
        let error = parse("\n \n", Path::new("t.jsonl")).unwrap_err();
        assert_eq!(error.to_string(), "t.jsonl: found no request");
        let error = read(Path::new("no/such/trace.jsonl")).unwrap_err().to_string();
        assert!(error.starts_with("no/such/trace.jsonl: "), "{error}");
    }
}
