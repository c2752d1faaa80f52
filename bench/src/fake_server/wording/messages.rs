//! `/v1/messages`, Anthropic's API.

use serde::Serialize;

use super::{Answer, Null, json, named_event, word_text};

pub(super) fn whole(answer: &Answer) -> String {
    json(&Whole {
        id: answer.id("chatcmpl"),
        kind: "message",
        role: "assistant",
        content: [Text { kind: "text", text: answer.text() }],
        model: &answer.model,
        stop_reason: "max_tokens",
        usage: usage(answer),
    })
}

pub(super) fn opening(answer: &Answer) -> String {
    let message = OpenMessage {
        id: answer.id("chatcmpl"),
        kind: "message",
        role: "assistant",
        content: [],
        model: &answer.model,
        stop_reason: (),
        stop_sequence: (),
        // vLLM counts the cached tokens in here, and not at the end.
        usage: OpenUsage { input_tokens: answer.prompt_tokens, output_tokens: 0 },
    };
    let content_block = Text { kind: "text", text: String::new() };
    named_event("message_start", &MessageStart { kind: "message_start", message })
        + &named_event(
            "content_block_start",
            &BlockStart { kind: "content_block_start", content_block, index: 0 },
        )
}

pub(super) fn word(number: usize) -> String {
    let delta = Text { kind: "text_delta", text: word_text(number).to_owned() };
    named_event("content_block_delta", &BlockDelta { kind: "content_block_delta", delta, index: 0 })
}

pub(super) fn closing(answer: &Answer) -> String {
    let delta = StopDelta { stop_reason: "max_tokens", stop_sequence: () };
    named_event("content_block_stop", &BlockStop { kind: "content_block_stop", index: 0 })
        + &named_event("message_delta", &MessageDelta { kind: "message_delta", delta, usage: usage(answer) })
        + &named_event("message_stop", &MessageStop { kind: "message_stop" })
}

/// Anthropic's input tokens are those that were not cached.
fn usage(answer: &Answer) -> Usage {
    Usage {
        input_tokens: answer.prompt_tokens - answer.cached_tokens,
        output_tokens: answer.generated(),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: answer.cached_tokens,
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: [Text; 1],
    model: &'a str,
    stop_reason: &'static str,
    usage: Usage,
}

#[derive(Serialize)]
struct Text {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Usage {
    input_tokens: usize,
    output_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
}

#[derive(Serialize)]
struct MessageStart<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: OpenMessage<'a>,
}

#[derive(Serialize)]
struct OpenMessage<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: [Null; 0],
    model: &'a str,
    stop_reason: Null,
    stop_sequence: Null,
    usage: OpenUsage,
}

#[derive(Serialize)]
struct OpenUsage {
    input_tokens: usize,
    output_tokens: usize,
}

#[derive(Serialize)]
struct BlockStart {
    #[serde(rename = "type")]
    kind: &'static str,
    content_block: Text,
    index: usize,
}

#[derive(Serialize)]
struct BlockDelta {
    #[serde(rename = "type")]
    kind: &'static str,
    delta: Text,
    index: usize,
}

#[derive(Serialize)]
struct BlockStop {
    #[serde(rename = "type")]
    kind: &'static str,
    index: usize,
}

#[derive(Serialize)]
struct MessageDelta {
    #[serde(rename = "type")]
    kind: &'static str,
    delta: StopDelta,
    usage: Usage,
}

#[derive(Serialize)]
struct StopDelta {
    stop_reason: &'static str,
    stop_sequence: Null,
}

#[derive(Serialize)]
struct MessageStop {
    #[serde(rename = "type")]
    kind: &'static str,
}
