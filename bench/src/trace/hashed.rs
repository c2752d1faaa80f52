//! Traces in Mooncake's form: a prompt is known by its length and the ids of its blocks, not by its text.
//!
//! A line is `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`, with `session_id`
//! (a text or a number) and `turn` where they are known. An id names a block and all before it. Source:
//! `kvcache-ai/Mooncake`, `FAST25-release/traces`. How many tokens a block has is not in the file.

use std::collections::HashMap;
use std::path::Path;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

use super::lines::{self, BadLines, Fault, Line, Loaded, TraceFileError};
use crate::engine::Seconds;

/// One request that is known by its blocks only.
#[derive(Clone, Debug, PartialEq)]
pub struct HashedRequest {
    /// When it is sent, from the beginning of the trace.
    pub at: Seconds,
    /// Length of the prompt, in tokens.
    pub input_tokens: u32,
    /// Length of the answer, in tokens.
    pub output_tokens: u32,
    /// One id for each block of the prompt; the last block may be partial. Equal id, equal prefix up to there.
    pub hash_ids: Vec<u64>,
    /// The conversation it is of, where that is known.
    pub session: Option<String>,
}

/// Reads a file. Errors: it cannot be read, holds no request, or a line is bad; then file, line, column and reason.
pub fn read(path: &Path) -> Result<Vec<HashedRequest>, TraceFileError> {
    lines::read(path, BadLines::Refuse).map(|loaded| loaded.requests)
}

/// Reads the text of a file that is called `path`. Errors: as [`read`]; bad lines can be skipped.
pub fn parse(text: &str, path: &Path, bad: BadLines) -> Result<Loaded<Vec<HashedRequest>>, TraceFileError> {
    lines::parse(text.as_bytes(), path, bad)
}

/// A trace as text, a line for each request. Times are rounded to a microsecond; turns count from 1.
pub fn to_lines(trace: &[HashedRequest]) -> String {
    let mut turns: HashMap<&str, u32> = HashMap::new();
    let mut text = String::new();
    for request in trace {
        let session = request.session.as_deref();
        let turn = session.map(|session| {
            let turn = turns.entry(session).or_default();
            *turn += 1;
            *turn
        });
        // Numbers, texts and lists: it cannot fail.
        text += &serde_json::to_string(&Written::of(request, turn)).unwrap_or_default();
        text.push('\n');
    }
    text
}

impl Line for HashedRequest {
    const TIME: &'static str = "timestamp";
    const PER_SECOND: f64 = 1e3;

    fn parse(line: &str) -> Result<Self, Fault> {
        let Read { timestamp, input_length, output_length, hash_ids, session_id, _turn: _ } =
            serde_json::from_str(line)?;
        Ok(Self {
            at: Seconds(timestamp / Self::PER_SECOND),
            input_tokens: input_length,
            output_tokens: output_length,
            hash_ids: hash_ids.into_iter().map(|id| id.0).collect(),
            session: session_id.map(|session| session.0),
        })
    }

    fn at(&self) -> Seconds {
        self.at
    }
}

#[derive(Deserialize)]
struct Read {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<HashId>,
    session_id: Option<Session>,
    /// Checked, not kept: the order of the file tells it.
    #[serde(rename = "turn")]
    _turn: Option<u32>,
}

#[derive(Serialize)]
struct Written<'a> {
    timestamp: serde_json::Number,
    input_length: u32,
    output_length: u32,
    hash_ids: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<u32>,
}

impl<'a> Written<'a> {
    fn of(request: &'a HashedRequest, turn: Option<u32>) -> Self {
        Self {
            timestamp: milliseconds(request.at),
            input_length: request.input_tokens,
            output_length: request.output_tokens,
            hash_ids: &request.hash_ids,
            session_id: request.session.as_deref(),
            turn,
        }
    }
}

/// Without a fraction where there is none, as the published traces write it.
fn milliseconds(at: Seconds) -> serde_json::Number {
    let micros = (at.0 * 1e6).round();
    let whole = (micros / 1e3).trunc();
    match serde_json::Number::from_f64(micros / 1e3) {
        Some(fraction) if whole * 1e3 != micros => fraction,
        _ => serde_json::Number::from(whole as u64),
    }
}

/// An id; its own type so that a wrong one is told what was wanted.
struct HashId(u64);

impl<'de> Deserialize<'de> for HashId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_u64(HashIdVisitor)
    }
}

struct HashIdVisitor;

impl Visitor<'_> for HashIdVisitor {
    type Value = HashId;

    fn expecting(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text.write_str("a hash id, a whole number from 0 to 18446744073709551615")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<HashId, E> {
        Ok(HashId(id))
    }
}

/// A text, or a number as its text.
struct Session(String);

impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SessionVisitor)
    }
}

struct SessionVisitor;

impl Visitor<'_> for SessionVisitor {
    type Value = Session;

    fn expecting(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text.write_str("a session, a text or a whole number")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Session, E> {
        Ok(Session(name.to_owned()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Session, E> {
        Ok(Session(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Session, E> {
        Ok(Session(number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PATH: &str = "t.jsonl";

    fn request(at: f64, hash_ids: &[u64], session: Option<&str>) -> HashedRequest {
        let (hash_ids, session) = (hash_ids.to_vec(), session.map(str::to_owned));
        HashedRequest { at: Seconds(at), input_tokens: 90, output_tokens: 7, hash_ids, session }
    }

    #[test]
    fn published_lines_are_read() {
        let text = concat!(
            r#"{"timestamp":0,"input_length":90,"output_length":7,"hash_ids":[0,1]}"#,
            "\n\n",
            r#"{"timestamp":2586,"input_length":90,"output_length":7,"hash_ids":[0,2],"session_id":3,"turn":1}"#,
            "\n",
            r#"{"timestamp":2586.5,"input_length":90,"output_length":7,"hash_ids":[],"session_id":"a"}"#,
        );
        let want = [
            request(0.0, &[0, 1], None),
            request(2.586, &[0, 2], Some("3")),
            request(2.5865, &[], Some("a")),
        ];
        assert_eq!(parse(text, Path::new(PATH), BadLines::Refuse).unwrap().requests, want);
    }

    #[test]
    fn what_is_written_is_read() {
        let trace = [
            request(0.0, &[0, u64::MAX], Some("a")),
            request(1.5, &[0, 2], None),
            request(1.500_001, &[0, u64::MAX, 4], Some("a")),
        ];
        let text = to_lines(&trace);
        let want = r#"{"timestamp":1500.001,"input_length":90,"output_length":7,"hash_ids":[0,18446744073709551615,4],"session_id":"a","turn":2}"#;
        assert_eq!(text.lines().nth(2), Some(want));
        assert!(text.lines().nth(1).unwrap().starts_with(r#"{"timestamp":1500,"#), "no fraction");
        assert_eq!(parse(&text, Path::new(PATH), BadLines::Refuse).unwrap().requests, trace);
    }

    #[test]
    fn a_bad_line_is_named_with_its_column() {
        let good = r#"{"timestamp":20,"input_length":9,"output_length":7,"hash_ids":[0]}"#;
        for (line, reason) in [
            ("nonsense", "t.jsonl:3:2: expected ident"),
            (&good[..30], "t.jsonl:3:30: EOF while parsing an object"),
            (
                r#"{"timestamp":20,"input_length":9,"hash_ids":[0]}"#,
                "t.jsonl:3:48: missing field `output_length`",
            ),
            (
                r#"{"input_length":9,"output_length":7,"timestamp":19,"hash_ids":[0]}"#,
                "t.jsonl:3:37: timestamp: found 19, wanted 20 or more, as before it",
            ),
            (
                r#"{"timestamp":20,"input_length":-9,"output_length":7,"hash_ids":[0]}"#,
                "t.jsonl:3:33: invalid value: integer `-9`, expected u32",
            ),
            (
                r#"{"timestamp":20,"input_length":9,"output_length":7,"hash_ids":[0,-1]}"#,
                "t.jsonl:3:67: invalid type: integer `-1`, expected a hash id, a whole number from 0 to 18446744073709551615",
            ),
            (
                r#"{"timestamp":20,"input_length":9,"output_length":7,"hash_ids":[18446744073709551616]}"#,
                "t.jsonl:3:83: invalid type: floating point `1.8446744073709552e+19`, expected a hash id, a whole number from 0 to 18446744073709551615",
            ),
            (
                r#"{"timestamp":20,"input_length":9,"output_length":7,"hash_ids":[0],"session_id":[]}"#,
                "t.jsonl:3:81: invalid type: sequence, expected a session, a text or a whole number",
            ),
        ] {
            let error = parse(&format!("{good}\n\n{line}\n"), Path::new(PATH), BadLines::Refuse).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }

    #[test]
    fn a_negative_time_and_an_empty_file_are_named() {
        let line = r#"{"timestamp":-1,"input_length":9,"output_length":7,"hash_ids":[0]}"#;
        for (text, reason) in [
            (line, "t.jsonl:1:2: timestamp: found -1, wanted 0 or more"),
            ("\n", "t.jsonl: found no request"),
        ] {
            assert_eq!(parse(text, Path::new(PATH), BadLines::Refuse).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn bad_lines_are_skipped_and_counted() {
        let line =
            |at: usize| format!(r#"{{"timestamp":{at},"input_length":9,"output_length":7,"hash_ids":[0]}}"#);
        let text = [line(5), "x\n".repeat(3), line(4), line(6), "{}\n".repeat(4)].join("\n");
        let loaded = parse(&text, Path::new(PATH), BadLines::Skip).unwrap();
        let times: Vec<f64> = loaded.requests.iter().map(|request| request.at.0).collect();
        assert_eq!((times, loaded.skipped.lines), (vec![0.005, 0.006], 8));
        assert_eq!(loaded.skipped.reasons.len(), lines::REASONS_MAX);
        assert_eq!(loaded.skipped.reasons[0], "t.jsonl:2:1: expected value");
        let none = parse("x\n\ny\n", Path::new(PATH), BadLines::Skip).unwrap_err().to_string();
        assert_eq!(none, "t.jsonl: found no good line among 2, the first is t.jsonl:1:1: expected value");
    }
}
