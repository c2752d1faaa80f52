//! Answers of engines: however they are cut, the figures are those of the whole, and those that serde_json reads.
//!
//! The first byte chooses what the answer is, `1` to `5`; the second how long its pieces are, the third where one more cut
//! lies; the rest is the answer.

use std::sync::LazyLock;

use http::header;
use picker::read::Api;
use pingora_http::ResponseHeader;

use super::json::Members;
use crate::request::usage::{Usage, Watch};

/// API and whether the answer is a stream, in the order of the digits.
const KINDS: [(Api, bool); 5] = [
    (Api::Chat, false),
    (Api::Chat, true),
    (Api::Responses, true),
    (Api::Messages, true),
    (Api::Completions, false),
];

static HEADS: LazyLock<[ResponseHeader; 2]> =
    LazyLock::new(|| ["application/json", "text/event-stream"].map(head));

fn head(content_type: &str) -> ResponseHeader {
    let mut head = ResponseHeader::build(200, None).expect("a status");
    head.insert_header(header::CONTENT_TYPE, content_type).expect("a value");
    head
}

/// Runs the oracle. Panics where it does not hold.
pub fn run(data: &[u8]) {
    let [kind, stride, cut, answer @ ..] = data else { return };
    let (api, is_stream) = KINDS[usize::from(kind.wrapping_sub(b'1')) % KINDS.len()];
    let watch = || Watch::new(api, &HEADS[usize::from(is_stream)]);
    let seen = |watch: &Watch| (watch.usage(), watch.has_first_token(), watch.shows_pace());
    let mut whole = watch();
    whole.see(answer);
    let mut pieces = watch();
    answer.chunks(usize::from(*stride % 64) + 1).for_each(|piece| pieces.see(piece));
    assert_eq!(seen(&whole), seen(&pieces), "in pieces");
    let (head, tail) = answer.split_at(answer.len() * usize::from(*cut) / 256);
    let mut halves = watch();
    [head, b"", tail].into_iter().for_each(|piece| halves.see(piece));
    assert_eq!(seen(&whole), seen(&halves), "in halves");
    if let Some(Usage { prompt_tokens, cached_tokens, .. }) = whole.usage() {
        assert!(prompt_tokens > 0 && cached_tokens.is_none_or(|cached| cached <= prompt_tokens));
    }
    if is_stream { streamed(api, &whole, answer) } else { document(&whole, answer) }
}

fn document(whole: &Watch, answer: &[u8]) {
    let mut said = Said::default();
    if !is_escaped(answer) && said.read(answer) {
        assert_eq!(whole.usage(), said.usage());
    }
}

/// A name with an escaped letter is not looked for; serde_json would find it.
fn is_escaped(text: &[u8]) -> bool {
    memchr::memmem::find(text, b"\\u").is_some()
}

fn streamed(api: Api, whole: &Watch, answer: &[u8]) {
    let events = events(answer);
    let before = if api == Api::Responses { 2 } else { 0 };
    assert_eq!(whole.has_first_token(), events.len() > before, "{} events with data", events.len());
    let mut said = Said::default();
    if !is_escaped(answer) && events.iter().all(|event| !event.contains(&b'{') || said.read(event)) {
        assert_eq!(whole.usage(), said.usage());
    }
}

/// The data of every event that has some, the last one too if it has not ended.
fn events(answer: &[u8]) -> Vec<Vec<u8>> {
    let mut events = Vec::new();
    let mut now: Option<Vec<u8>> = None;
    for line in lines(answer) {
        if line.is_empty() {
            events.extend(now.take());
        } else if let Some(text) = line.strip_prefix(b"data:") {
            let data = now.get_or_insert_default();
            data.extend_from_slice(text);
            data.push(b'\n');
        }
    }
    events.extend(now);
    events
}

/// Lines that end in LF, CR or both; of one that has not ended, what is there of it.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        lines.push(&rest[..end]);
        let end = if rest[end..].starts_with(b"\r\n") { end + 2 } else { end + 1 };
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// What documents have said, by serde_json.
#[derive(Default)]
struct Said {
    figures: Option<Figures>,
    has_error: bool,
}

#[derive(Clone, Copy, Default)]
struct Figures {
    prompt: Option<u32>,
    cached: Option<u32>,
    completion: Option<u32>,
    read: Option<u32>,
    created: Option<u32>,
}

impl Said {
    /// Whether it could be read.
    fn read(&mut self, text: &[u8]) -> bool {
        let Some(members) = Members::of(text) else { return false };
        for (name, value) in &members.0 {
            match name.as_str() {
                "error" => self.has_error |= value.starts_with('{'),
                "usage" => self.usage_object(value),
                "response" | "message" => {
                    let inner = Members::of(value.as_bytes()).map(|inner| inner.0).unwrap_or_default();
                    inner
                        .iter()
                        .filter(|(name, _)| name == "usage")
                        .for_each(|(_, value)| self.usage_object(value));
                }
                _ => {}
            }
        }
        true
    }

    fn usage_object(&mut self, value: &str) {
        let Some(members) = Members::of(value.as_bytes()) else { return };
        let mut figures = Figures::default();
        for (name, value) in &members.0 {
            let figure = match name.as_str() {
                "prompt_tokens" | "input_tokens" => &mut figures.prompt,
                "completion_tokens" | "output_tokens" => &mut figures.completion,
                "cache_read_input_tokens" => &mut figures.read,
                "cache_creation_input_tokens" => &mut figures.created,
                "prompt_tokens_details" | "input_tokens_details" => {
                    let inner = Members::of(value.as_bytes()).map(|inner| inner.0).unwrap_or_default();
                    let cached = inner.iter().filter(|(name, _)| name == "cached_tokens");
                    figures.cached =
                        cached.filter_map(|(_, value)| value.parse().ok()).next_back().or(figures.cached);
                    continue;
                }
                _ => continue,
            };
            *figure = value.parse().ok().or(*figure);
        }
        self.figures = Some(figures);
    }

    fn usage(&self) -> Option<Usage> {
        let Figures { prompt, cached, completion, read, created } =
            self.figures.filter(|_| !self.has_error)?;
        let prompt_tokens = prompt?.saturating_add(read.unwrap_or(0).saturating_add(created.unwrap_or(0)));
        let cached_tokens = read.or(cached).filter(|cached| *cached <= prompt_tokens);
        (prompt_tokens > 0).then_some(Usage { prompt_tokens, cached_tokens, completion_tokens: completion })
    }
}
