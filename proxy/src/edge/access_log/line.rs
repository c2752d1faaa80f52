//! What a line of the access log holds: always the same fields in the same order, `null` where there is nothing to say.
//!
//! Clients write some of them, so each is cut to [`TEXT_BYTES_MAX`] bytes and escaped. Never here: a query, a prompt, a
//! key or a salt.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};

/// Bytes of one text, before it is escaped.
const TEXT_BYTES_MAX: usize = 256;
/// Room for an ordinary line.
const LINE_BYTES: usize = 640;

/// One request. The order of the fields is the order in the line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line<'a> {
    /// When its head had been read: RFC 3339 in UTC, to the millisecond.
    #[serde(serialize_with = "rfc3339")]
    pub(crate) time: SystemTime,
    /// Its `x-request-id`.
    pub(crate) request_id: Option<Text<'a>>,
    /// The trace that its `traceparent` names.
    pub(crate) trace_id: Option<&'a str>,
    /// The client's address, seen through known proxies.
    pub(crate) client: Option<IpAddr>,
    /// Whose key it had.
    pub(crate) tenant: Option<&'a str>,
    /// The listener's address.
    pub(crate) listener: Option<Text<'a>>,
    /// Its method.
    pub(crate) method: Text<'a>,
    /// Its path, without the query.
    #[serde(serialize_with = "without_query")]
    pub(crate) path: Text<'a>,
    /// Such as `HTTP/1.1`.
    pub(crate) protocol: &'a str,
    /// Of the answer; 499 where the client left before.
    pub(crate) status: u16,
    /// The pool that served it.
    pub(crate) pool: Option<&'a str>,
    /// The model that it asked for.
    pub(crate) model: Option<Text<'a>>,
    /// The endpoint that answered.
    pub(crate) endpoint: Option<&'a str>,
    /// Which prompt its body held.
    pub(crate) api: &'a str,
    /// Whether the client asked for a stream.
    pub(crate) stream: bool,
    /// Leading blocks that the endpoint was believed to hold.
    pub(crate) matched_blocks: u32,
    /// Blocks of the prompt.
    pub(crate) blocks: u32,
    /// Tokens of the prompt, as the engine counts.
    pub(crate) prompt_tokens: Option<u64>,
    /// Of these, tokens that the engine had.
    pub(crate) cached_tokens: Option<u64>,
    /// Endpoints that were tried.
    pub(crate) attempts: u32,
    /// Bytes of its body.
    pub(crate) request_bytes: u64,
    /// Bytes of the answer's body.
    pub(crate) response_bytes: u64,
    /// Microseconds that the decision took.
    #[serde(serialize_with = "micros")]
    pub(crate) decision_us: Option<Duration>,
    /// Milliseconds to the first byte of the endpoint's answer.
    #[serde(serialize_with = "millis")]
    pub(crate) ttfb_ms: Option<Duration>,
    /// Milliseconds to its end.
    #[serde(serialize_with = "millis")]
    pub(crate) total_ms: Option<Duration>,
    /// What the router answered by itself, or how the exchange ended badly.
    pub(crate) trouble: Option<&'a str>,
    /// Its `User-Agent`.
    pub(crate) user_agent: Option<Text<'a>>,
}

/// Bytes that a client wrote: cut, and what is no UTF-8 replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl Line<'_> {
    /// The line, with its end.
    pub(crate) fn json(&self) -> Vec<u8> {
        let mut line = Vec::with_capacity(LINE_BYTES);
        // Nothing in a line can fail: no map with keys that are no text, no writer but memory.
        let _ = serde_json::to_writer(&mut line, self);
        line.push(b'\n');
        line
    }
}

impl Default for Line<'_> {
    fn default() -> Self {
        Self {
            time: SystemTime::UNIX_EPOCH,
            request_id: None,
            trace_id: None,
            client: None,
            tenant: None,
            listener: None,
            method: Text::default(),
            path: Text::default(),
            protocol: "",
            status: 0,
            pool: None,
            model: None,
            endpoint: None,
            api: "",
            stream: false,
            matched_blocks: 0,
            blocks: 0,
            prompt_tokens: None,
            cached_tokens: None,
            attempts: 0,
            request_bytes: 0,
            response_bytes: 0,
            decision_us: None,
            ttfb_ms: None,
            total_ms: None,
            trouble: None,
            user_agent: None,
        }
    }
}

impl<'a> Text<'a> {
    /// What is shown of it.
    pub(crate) fn shown(self) -> Cow<'a, str> {
        let cut = &self.0[..self.0.len().min(TEXT_BYTES_MAX)];
        // A letter that the cut went through is left out; anything else that is no UTF-8 shows as such.
        let last = cut.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
        let is_begun = std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none());
        let begun = if is_begun && cut.len() < self.0.len() { last.len() } else { 0 };
        String::from_utf8_lossy(&cut[..cut.len() - begun])
    }

    /// What stands before the query.
    pub(crate) fn path(self) -> Self {
        let end = self.0.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(self.0.len());
        Self(&self.0[..end])
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown())
    }
}

fn without_query<S: Serializer>(path: &Text<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    path.path().serialize(serializer)
}

fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    let time: DateTime<Utc> = DateTime::from_timestamp_millis(millis).unwrap_or(DateTime::UNIX_EPOCH);
    serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

fn micros<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| tenths(time, 1e6)).serialize(serializer)
}

fn millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| tenths(time, 1e3)).serialize(serializer)
}

/// In so many units a second, to a tenth of one.
fn tenths(time: Duration, units: f64) -> f64 {
    (time.as_secs_f64() * units * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(line: &Line<'_>) -> serde_json::Value {
        serde_json::from_slice(&line.json()).expect("JSON")
    }

    #[test]
    fn a_line_has_every_field_in_its_place() {
        let line = Line {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_790_000_000_123),
            request_id: Some(Text(b"r-1")),
            trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736"),
            client: "192.0.2.1".parse().ok(),
            tenant: Some("team-a"),
            listener: Some(Text(b"127.0.0.1:8000")),
            method: Text(b"POST"),
            path: Text(b"/v1/chat/completions?key=secret"),
            protocol: "HTTP/1.1",
            status: 200,
            pool: Some("default"),
            model: Some(Text(b"m")),
            endpoint: Some("a"),
            api: "chat",
            stream: true,
            matched_blocks: 3,
            blocks: 4,
            prompt_tokens: Some(70),
            cached_tokens: Some(48),
            attempts: 1,
            request_bytes: 300,
            response_bytes: 900,
            decision_us: Some(Duration::from_nanos(12_340)),
            ttfb_ms: Some(Duration::from_micros(45_678)),
            total_ms: Some(Duration::from_secs(2)),
            trouble: None,
            user_agent: Some(Text(b"curl/8")),
        };
        let wanted = concat!(
            r#"{"time":"2026-09-21T14:13:20.123Z","request_id":"r-1","#,
            r#""trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","client":"192.0.2.1","tenant":"team-a","#,
            r#""listener":"127.0.0.1:8000","method":"POST","path":"/v1/chat/completions","#,
            r#""protocol":"HTTP/1.1","status":200,"pool":"default","model":"m","endpoint":"a","api":"chat","#,
            r#""stream":true,"matched_blocks":3,"blocks":4,"prompt_tokens":70,"cached_tokens":48,"#,
            r#""attempts":1,"request_bytes":300,"response_bytes":900,"decision_us":12.3,"ttfb_ms":45.7,"#,
            r#""total_ms":2000.0,"trouble":null,"user_agent":"curl/8"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8_lossy(&line.json()), wanted);
        let nothing = json(&Line::default());
        assert_eq!(nothing.as_object().map(serde_json::Map::len), Some(27), "none is left out");
        assert_eq!(nothing["time"], "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn texts_are_cut_and_escaped() {
        let long = "é".repeat(200);
        let odd = format!("a{long}");
        let no_text = [b"\xff", long.as_bytes()].concat();
        for (shows, text, wanted) in [
            ("as it is", b"curl/8".to_vec(), "curl/8".to_owned()),
            ("quotes and ends of lines", b"\"\r\n{}\\\x00\x1b".to_vec(), "\"\r\n{}\\\0\u{1b}".to_owned()),
            ("no UTF-8", b"a\xffb".to_vec(), "a\u{fffd}b".to_owned()),
            ("half a letter at its own end", b"a\xc3".to_vec(), "a\u{fffd}".to_owned()),
            ("cut between letters", long.clone().into_bytes(), "é".repeat(128)),
            ("cut through a letter", odd.into_bytes(), format!("a{}", "é".repeat(127))),
            ("the same behind no UTF-8", no_text, format!("\u{fffd}{}", "é".repeat(127))),
        ] {
            let line = Line { user_agent: Some(Text(&text)), ..Line::default() };
            assert_eq!(json(&line)["user_agent"], wanted, "{shows}");
            assert_eq!(line.json().iter().filter(|&&byte| byte == b'\n').count(), 1, "{shows}: one line");
        }
    }

    #[test]
    fn a_query_is_never_written() {
        for (shows, path, wanted) in [
            ("a query", "/v1/models?key=secret", "/v1/models"),
            ("two", "/v1/models?a?key=secret", "/v1/models"),
            ("a fragment", "/v1/models#secret", "/v1/models"),
            ("none", "/v1/models", "/v1/models"),
        ] {
            let line = Line { path: Text(path.as_bytes()), ..Line::default() };
            assert_eq!(json(&line)["path"], wanted, "{shows}");
        }
    }
}
