//! `/v1/responses`.

use serde::Serialize;

use super::{Answer, Null, json, named_event, word_text};

pub(super) fn whole(answer: &Answer) -> String {
    json(&response(answer, true))
}

pub(super) fn opening(answer: &Answer) -> String {
    let item = Item { content: vec![], status: "in_progress", ..item(answer) };
    let part = Part { text: String::new(), logprobs: Some([]), ..part(answer) };
    state_event(answer, "response.created", 0, false)
        + &state_event(answer, "response.in_progress", 1, false)
        + &item_event("response.output_item.added", 2, item)
        + &part_event(answer, "response.content_part.added", 3, part)
}

pub(super) fn word(answer: &Answer, number: usize) -> String {
    let kind = "response.output_text.delta";
    let delta = TextDelta {
        content_index: 0,
        delta: word_text(number),
        item_id: answer.id("msg"),
        logprobs: [],
        output_index: 0,
        sequence_number: 4 + number,
        kind,
    };
    named_event(kind, &delta)
}

pub(super) fn closing(answer: &Answer) -> String {
    let next = 4 + answer.words;
    let kind = "response.output_text.done";
    let done = TextDone {
        content_index: 0,
        item_id: answer.id("msg"),
        logprobs: [],
        output_index: 0,
        sequence_number: next,
        text: answer.text(),
        kind,
    };
    named_event(kind, &done)
        + &part_event(answer, "response.content_part.done", next + 1, part(answer))
        + &item_event("response.output_item.done", next + 2, item(answer))
        + &state_event(answer, "response.completed", next + 3, true)
}

fn state_event(answer: &Answer, kind: &'static str, sequence_number: usize, complete: bool) -> String {
    named_event(kind, &State { response: response(answer, complete), sequence_number, kind })
}

fn item_event(kind: &'static str, sequence_number: usize, item: Item) -> String {
    named_event(kind, &ItemState { item, output_index: 0, sequence_number, kind })
}

fn part_event(answer: &Answer, kind: &'static str, sequence_number: usize, part: Part) -> String {
    let item_id = answer.id("msg");
    named_event(kind, &PartState { content_index: 0, item_id, output_index: 0, part, sequence_number, kind })
}

fn item(answer: &Answer) -> Item {
    Item {
        id: answer.id("msg"),
        content: vec![part(answer)],
        role: "assistant",
        status: "completed",
        kind: "message",
        phase: (),
    }
}

fn part(answer: &Answer) -> Part {
    Part { annotations: [], text: answer.text(), kind: "output_text", logprobs: None }
}

fn response(answer: &Answer, complete: bool) -> Response<'_> {
    Response {
        id: answer.id("resp"),
        created_at: answer.created,
        incomplete_details: complete.then_some(Incomplete { reason: "max_output_tokens" }),
        instructions: answer.instructions.as_deref(),
        metadata: (),
        model: &answer.model,
        object: "response",
        output: if complete { vec![item(answer)] } else { vec![] },
        parallel_tool_calls: true,
        temperature: 0.0,
        tool_choice: "none",
        tools: [],
        top_p: 1.0,
        background: false,
        max_output_tokens: answer.words,
        max_tool_calls: (),
        previous_response_id: (),
        prompt: (),
        reasoning: (),
        service_tier: "auto",
        status: if complete { "incomplete" } else { "in_progress" },
        text: (),
        top_logprobs: (),
        truncation: "disabled",
        usage: complete.then(|| usage(answer)),
        user: (),
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        kv_transfer_params: (),
        ec_transfer_params: (),
        input_messages: (),
        output_messages: (),
    }
}

fn usage(answer: &Answer) -> Usage {
    Usage {
        input_tokens: answer.prompt_tokens,
        input_tokens_details: InputDetails {
            cached_tokens: answer.cached_tokens,
            cache_write_tokens: 0,
            input_tokens_per_turn: [],
            cached_tokens_per_turn: [],
        },
        output_tokens: answer.generated(),
        output_tokens_details: OutputDetails {
            reasoning_tokens: 0,
            tool_output_tokens: 0,
            output_tokens_per_turn: [],
            tool_output_tokens_per_turn: [],
        },
        total_tokens: answer.prompt_tokens + answer.generated(),
    }
}

#[derive(Serialize)]
struct Response<'a> {
    id: String,
    created_at: u64,
    incomplete_details: Option<Incomplete>,
    instructions: Option<&'a str>,
    metadata: Null,
    model: &'a str,
    object: &'static str,
    output: Vec<Item>,
    parallel_tool_calls: bool,
    temperature: f64,
    tool_choice: &'static str,
    tools: [Null; 0],
    top_p: f64,
    background: bool,
    max_output_tokens: usize,
    max_tool_calls: Null,
    previous_response_id: Null,
    prompt: Null,
    reasoning: Null,
    service_tier: &'static str,
    status: &'static str,
    text: Null,
    top_logprobs: Null,
    truncation: &'static str,
    usage: Option<Usage>,
    user: Null,
    presence_penalty: f64,
    frequency_penalty: f64,
    kv_transfer_params: Null,
    ec_transfer_params: Null,
    input_messages: Null,
    output_messages: Null,
}

#[derive(Serialize)]
struct Incomplete {
    reason: &'static str,
}

#[derive(Serialize)]
struct Item {
    id: String,
    content: Vec<Part>,
    role: &'static str,
    status: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    phase: Null,
}

#[derive(Serialize)]
struct Part {
    annotations: [Null; 0],
    text: String,
    #[serde(rename = "type")]
    kind: &'static str,
    logprobs: Option<[Null; 0]>,
}

#[derive(Serialize)]
struct Usage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: usize,
    cache_write_tokens: usize,
    input_tokens_per_turn: [Null; 0],
    cached_tokens_per_turn: [Null; 0],
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
    tool_output_tokens: usize,
    output_tokens_per_turn: [Null; 0],
    tool_output_tokens_per_turn: [Null; 0],
}

#[derive(Serialize)]
struct State<'a> {
    response: Response<'a>,
    sequence_number: usize,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct ItemState {
    item: Item,
    output_index: usize,
    sequence_number: usize,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct PartState {
    content_index: usize,
    item_id: String,
    output_index: usize,
    part: Part,
    sequence_number: usize,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct TextDelta {
    content_index: usize,
    delta: &'static str,
    item_id: String,
    logprobs: [Null; 0],
    output_index: usize,
    sequence_number: usize,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct TextDone {
    content_index: usize,
    item_id: String,
    logprobs: [Null; 0],
    output_index: usize,
    sequence_number: usize,
    text: String,
    #[serde(rename = "type")]
    kind: &'static str,
}
