//! Reads an answer as its bytes go by: when tokens came, what it says that it used, and whether it came to its end.
//!
//! A whole answer is one JSON text; a stream is events, of OpenAI's chat and completions, of `/v1/responses` and of
//! `/v1/messages`. What cannot be read counts as nothing: a server is not judged by its wording.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

/// Bytes that are kept of a line, or of a whole answer; what is longer is text, not usage.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Letters that are kept of an error.
const ERROR_LETTERS_MAX: usize = 160;
/// Ends of streams, by the type of the event.
const LAST_EVENTS: [&str; 4] =
    ["response.completed", "response.incomplete", "response.failed", "message_stop"];

/// What an answer says that it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    /// None where nothing is said of it: vLLM says nothing of 0, and nothing at all without
    /// `--enable-prompt-tokens-details`.
    pub(super) cached_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
}

/// What was read of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) usage: Option<Usage>,
    /// When the first event with a token came; of streams only.
    pub(super) first_token: Option<Duration>,
    /// When the last one did.
    pub(super) last_token: Option<Duration>,
    /// Between two events with tokens.
    pub(super) gaps: Vec<Duration>,
    /// It is a stream of events.
    pub(super) streamed: bool,
    /// A stream said that it is complete; what is no stream is JSON.
    pub(super) complete: bool,
    /// The error that it is, or that its stream ended in.
    pub(super) error: Option<String>,
}

/// Takes chunks, keeps a line of a stream or the whole of an answer.
#[derive(Debug)]
pub(super) struct AnswerReader {
    kept: Vec<u8>,
    answer: Answer,
}

impl AnswerReader {
    /// A reader of a stream of events, or of one JSON text.
    pub(super) fn new(streamed: bool) -> Self {
        Self { kept: Vec::new(), answer: Answer { streamed, ..Answer::default() } }
    }

    /// Takes the next bytes, which came at that time.
    pub(super) fn push(&mut self, chunk: &[u8], at: Duration) {
        if !self.answer.streamed {
            return self.keep(chunk);
        }
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            self.keep(piece);
            if piece.ends_with(b"\n") {
                self.end_line(at);
            }
        }
    }

    /// What there was.
    pub(super) fn finish(mut self, at: Duration) -> Answer {
        match self.answer.streamed {
            true => self.end_line(at),
            false => {
                let whole = std::mem::take(&mut self.kept);
                self.read(&whole, at);
            }
        }
        self.answer
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.kept.len() + piece.len() <= KEPT_BYTES_MAX {
            self.kept.extend_from_slice(piece);
        } else {
            // What cannot be read whole is taken for what it says that it is.
            self.answer.complete |= !self.answer.streamed;
        }
    }

    fn end_line(&mut self, at: Duration) {
        let mut line = std::mem::take(&mut self.kept);
        if let Some(data) = line.strip_prefix(b"data:") {
            match data.trim_ascii() {
                b"[DONE]" => self.answer.complete = true,
                data => self.read(data, at),
            }
        }
        line.clear();
        self.kept = line;
    }

    /// Reads one JSON text.
    fn read(&mut self, text: &[u8], at: Duration) {
        let Ok(said) = serde_json::from_slice::<Said>(text) else { return };
        if self.answer.streamed && said.has_token() {
            self.token(at);
        }
        self.answer.complete |= !self.answer.streamed;
        self.answer.complete |= said.kind.as_deref().is_some_and(|kind| LAST_EVENTS.contains(&kind));
        let nested = said.response.or(said.message).and_then(|inner| inner.usage);
        self.take_usage(said.usage.or(nested));
        if let Some(error) = said.error.filter(|error| !error.is_null()) {
            self.answer.error = Some(error_text(&error));
        }
    }

    fn token(&mut self, at: Duration) {
        if let Some(last) = self.answer.last_token {
            self.answer.gaps.push(at.saturating_sub(last));
        }
        self.answer.first_token.get_or_insert(at);
        self.answer.last_token = Some(at);
    }

    /// `/v1/messages` says the prompt's at the start and the answer's at the end.
    fn take_usage(&mut self, said: Option<SaidUsage>) {
        let Some(said) = said else { return };
        let before = self.answer.usage;
        let prompt_tokens = said.prompt_tokens.or(before.map(|usage| usage.prompt_tokens));
        let details = said.details.and_then(|details| details.cached_tokens);
        let cached = details.or(said.cache_read).or(before.and_then(|usage| usage.cached_tokens));
        let output = said.output_tokens.or(before.and_then(|usage| usage.output_tokens));
        if let Some(prompt_tokens) = prompt_tokens {
            self.answer.usage = Some(Usage { prompt_tokens, cached_tokens: cached, output_tokens: output });
        }
    }
}

/// The message of an error, in a line.
fn error_text(error: &Value) -> String {
    let text = error.get("message").and_then(Value::as_str).or(error.as_str());
    let text = text.map_or_else(|| error.to_string(), str::to_owned);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(ERROR_LETTERS_MAX).collect()
}

/// What is read of an answer or an event.
#[derive(Deserialize)]
struct Said {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<SaidUsage>,
    response: Option<Inner>,
    message: Option<Inner>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<HashMap<String, Value>>,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Inner {
    usage: Option<SaidUsage>,
}

#[derive(Deserialize)]
struct SaidUsage {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u64>,
    #[serde(alias = "output_tokens", rename = "completion_tokens")]
    output_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details", rename = "prompt_tokens_details")]
    details: Option<Details>,
    #[serde(rename = "cache_read_input_tokens")]
    cache_read: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Said {
    fn has_token(&self) -> bool {
        let by_kind =
            self.kind.as_deref().is_some_and(|kind| kind.ends_with("delta") && kind != "message_delta");
        by_kind || self.choices.iter().any(Choice::has_token)
    }
}

impl Choice {
    /// Text, reasoning or a call: anything but the role, which some engines send before there is a token.
    fn has_token(&self) -> bool {
        let text = self.text.as_ref().is_some_and(|text| !text.is_empty());
        let filled = |(name, value): (&String, &Value)| name != "role" && !is_empty(value);
        text || self.delta.as_ref().is_some_and(|delta| delta.iter().any(filled))
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read(text: &str, bytes: usize, streamed: bool) -> Answer {
        let mut reader = AnswerReader::new(streamed);
        text.as_bytes().chunks(bytes).for_each(|chunk| reader.push(chunk, Duration::from_millis(1)));
        reader.finish(Duration::from_millis(1))
    }

    const USAGE: &str =
        r#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;

    #[test]
    fn usage_is_found_however_the_bytes_are_cut() {
        let want = Some(Usage { prompt_tokens: 9, cached_tokens: Some(4), output_tokens: Some(2) });
        let silent = Some(Usage { prompt_tokens: 9, cached_tokens: None, output_tokens: None });
        let stream = format!("data: {{\"choices\":[]}}\n\ndata: {USAGE}\n\ndata: [DONE]\n\n");
        let printed = USAGE.replace(",", ",\n  ");
        let bare = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#;
        for (text, streamed, want) in [
            (USAGE, false, want),
            (&printed, false, want),
            (&stream, true, want),
            (&stream.replace("data: ", "data:").replace('\n', "\r\n"), true, want),
            (bare, false, silent),
            (r#"{"usage":null}"#, false, None),
            ("", false, None),
        ] {
            for bytes in 1..80 {
                assert_eq!(read(text, bytes, streamed).usage, want, "{text} by {bytes}");
            }
        }
    }

    #[test]
    fn other_apis_say_it_elsewhere() {
        let want = Some(Usage { prompt_tokens: 9, cached_tokens: Some(4), output_tokens: Some(2) });
        let responses = r#"data: {"type":"response.completed","response":{"usage":{"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}}"#;
        let messages = concat!(
            "event: message_start\n",
            r#"data: {"type":"message_start","message":{"usage":{"input_tokens":9,"cache_read_input_tokens":4}}}"#,
            "\n\n",
            r#"data: {"type":"message_delta","usage":{"output_tokens":2}}"#,
            "\n\n",
            r#"data: {"type":"message_stop"}"#
        );
        for stream in [responses, messages] {
            let answer = read(stream, 7, true);
            assert_eq!((answer.usage, answer.complete, answer.first_token), (want, true, None), "{stream}");
        }
    }

    #[test]
    fn tokens_are_timed_and_roles_are_none() {
        let mut reader = AnswerReader::new(true);
        let chat = |delta: &str| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
        for (delta, millis) in [
            (r#"{"role":"assistant","content":""}"#, 10),
            (r#"{"reasoning":"hm","content":null}"#, 20),
            (r#"{"content":"a"}"#, 25),
            (r#"{"content":"","tool_calls":[]}"#, 30),
            (r#"{"tool_calls":[{"index":0}]}"#, 40),
        ] {
            reader.push(chat(delta).as_bytes(), Duration::from_millis(millis));
        }
        let answer = reader.finish(Duration::from_millis(50));
        let millis = |time: Duration| time.as_millis();
        assert_eq!(answer.first_token.map(millis), Some(20));
        assert_eq!(answer.last_token.map(millis), Some(40));
        assert_eq!(answer.gaps.into_iter().map(millis).collect::<Vec<_>>(), [5, 15]);
        assert!(!answer.complete, "no [DONE]");
    }

    #[test]
    fn every_kind_of_token_event_counts() {
        for (event, want) in [
            (r#"{"choices":[{"text":"a"}]}"#, true),
            (r#"{"choices":[{"text":""}]}"#, false),
            (r#"{"type":"response.output_text.delta","delta":"a"}"#, true),
            (r#"{"type":"content_block_delta","delta":{"text":"a"}}"#, true),
            (r#"{"type":"message_delta","delta":{}}"#, false),
            (r#"{"type":"response.created"}"#, false),
        ] {
            let answer = read(&format!("data: {event}\n\n"), 99, true);
            assert_eq!(answer.first_token.is_some(), want, "{event}");
        }
    }

    #[test]
    fn errors_are_told_in_a_line() {
        for (text, streamed, want) in [
            (r#"{"error":{"message":"no\n such  model"}}"#, false, "no such model"),
            (r#"{"error":"down"}"#, false, "down"),
            (r#"{"error":{"code":5}}"#, false, r#"{"code":5}"#),
            ("data: {\"error\":{\"message\":\"shut\"}}\n\n", true, "shut"),
        ] {
            assert_eq!(read(text, 5, streamed).error.as_deref(), Some(want));
        }
        assert_eq!(read(r#"{"error":null}"#, 5, false).error, None);
        let long = format!(r#"{{"error":"{}"}}"#, "é".repeat(999));
        assert_eq!(read(&long, 999, false).error.unwrap().chars().count(), ERROR_LETTERS_MAX);
    }
}
