//! Traces as lines of JSON: `{"at": seconds, "group": "...", "body": {...}}`.
//!
//! A body is kept as the bytes it was written with, so that replaying a file sends what its author meant.

use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::TraceRequest;
pub use super::lines::TraceFileError;
use super::lines::{self, BadLines, Fault, Loaded};
use crate::engine::Seconds;

#[derive(Deserialize, Serialize)]
struct Written<'a> {
    at: f64,
    group: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Reads a file. Errors: it cannot be read, holds no request, or a line is bad; then file, line, column and reason.
pub fn read(path: &Path) -> Result<Vec<TraceRequest>, TraceFileError> {
    lines::read(path, BadLines::Refuse).map(|loaded| loaded.requests)
}

/// Reads the text of a file that is called `path`. Errors: as [`read`]; bad lines can be skipped.
pub fn parse(text: &str, path: &Path, bad: BadLines) -> Result<Loaded<Vec<TraceRequest>>, TraceFileError> {
    lines::parse(text.as_bytes(), path, bad)
}

impl lines::Line for TraceRequest {
    const TIME: &'static str = "at";
    const PER_SECOND: f64 = 1.0;

    fn parse(line: &str) -> Result<Self, Fault> {
        let Written { at, group, body } = serde_json::from_str(line)?;
        if !body.get().starts_with('{') {
            let reason = format!("found {:.20}, wanted an object", body.get());
            return Err(Fault::member(line, "body", &reason));
        }
        Ok(Self { at: Seconds(at), group, body: body.get().to_owned() })
    }

    fn at(&self) -> Seconds {
        self.at
    }
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
        let line = Written { at: request.at.0, group: request.group.clone(), body: &body };
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
        let read = parse(std::str::from_utf8(&bytes).unwrap(), path, BadLines::Refuse).unwrap();
        assert!(read.requests == trace, "not the same trace");
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
    fn bytes_that_are_no_text_are_a_bad_line() {
        let good = r#"{"at":2,"group":"g","body":{}}"#;
        let text = [good.as_bytes(), b"\n{\"at\":\xff}\n", good.as_bytes()].concat();
        let path = Path::new("t.jsonl");
        let error = lines::parse::<TraceRequest>(&text, path, BadLines::Refuse).unwrap_err();
        assert_eq!(error.to_string(), "t.jsonl:2:7: found a byte that is no UTF-8");
        assert_eq!(lines::parse::<TraceRequest>(&text, path, BadLines::Skip).unwrap().requests.len(), 2);
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = r#"{"at":2,"group":"g","body":{}}"#;
        for (line, reason) in [
            ("nonsense", "t.jsonl:3:2: expected ident"),
            (r#"{"at":0,"group":"g"}"#, "t.jsonl:3:20: missing field `body`"),
            (
                r#"{"at":-1,"group":"g","body":{}}"#,
                "t.jsonl:3:2: at: found -1, wanted 2 or more, as before it",
            ),
            (r#"{"at":2,"group":"g","body":[1]}"#, "t.jsonl:3:21: body: found [1], wanted an object"),
            (
                r#"{"at":1.5,"group":"g","body":{}}"#,
                "t.jsonl:3:2: at: found 1.5, wanted 2 or more, as before it",
            ),
        ] {
            let error =
                parse(&format!("{good}\n\n{line}\n"), Path::new("t.jsonl"), BadLines::Refuse).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
        let error = parse("\n \n", Path::new("t.jsonl"), BadLines::Refuse).unwrap_err();
        assert_eq!(error.to_string(), "t.jsonl: found no request");
        let error = read(Path::new("no/such/trace.jsonl")).unwrap_err().to_string();
        assert!(error.starts_with("no/such/trace.jsonl: "), "{error}");
    }
}
