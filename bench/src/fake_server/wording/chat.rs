//! `/v1/chat/completions`.

use serde::Serialize;

use super::{Answer, DONE, Null, Usage, WholeDetails, event, json, word_text};

pub(super) fn whole(answer: &Answer) -> String {
    let message = |text: String| Message { role: "assistant", content: text, ..Message::default() };
    let choice = |index| Choice {
        index,
        message: message(answer.text()),
        logprobs: (),
        finish_reason: "length",
        stop_reason: (),
        token_ids: (),
        routed_experts: (),
    };
    json(&Whole {
        id: answer.id("chatcmpl"),
        object: "chat.completion",
        created: answer.created,
        model: &answer.model,
        choices: (0..answer.choices).map(choice).collect(),
        service_tier: (),
        system_fingerprint: &answer.fingerprint,
        usage: answer.usage(answer.details(Some(answer.created_cache_tokens))).of_whole_answer(),
        prompt_logprobs: (),
        prompt_token_ids: (),
        prompt_text: (),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    })
}

pub(super) fn opening(answer: &Answer) -> String {
    let role = |index| {
        let delta = Delta { role: Some("assistant"), content: "" };
        let choice = ChunkChoice { index, delta, ..ChunkChoice::default() };
        let first =
            Chunk { prompt_token_ids: Some(()), prompt_text: Some(()), ..chunk(answer, vec![choice]) };
        event(&first)
    };
    (0..answer.choices).map(role).collect()
}

pub(super) fn word(answer: &Answer, index: usize, number: usize) -> String {
    let delta = Delta { role: None, content: word_text(number) };
    let mut choice = ChunkChoice { index, delta, token_ids: Some(()), ..ChunkChoice::default() };
    let last = answer.is_last(number);
    if last {
        choice.finish_reason = Some("length");
        choice.stop_reason = Some(());
    }
    let mut chunk = chunk(answer, vec![choice]);
    chunk.system_fingerprint = (last && !answer.include_usage).then_some(&answer.fingerprint);
    event(&chunk)
}

pub(super) fn closing(answer: &Answer) -> String {
    if !answer.include_usage {
        return DONE.to_owned();
    }
    let details = StreamDetails {
        cached_tokens: answer.cached_tokens,
        created_cache_tokens: answer.created_cache_tokens,
    };
    let usage = Chunk {
        usage: Some(answer.usage(details)),
        system_fingerprint: Some(&answer.fingerprint),
        ..chunk(answer, Vec::new())
    };
    event(&usage) + DONE
}

fn chunk(answer: &Answer, choices: Vec<ChunkChoice>) -> Chunk<'_> {
    Chunk {
        id: answer.id("chatcmpl"),
        object: "chat.completion.chunk",
        created: answer.created,
        model: &answer.model,
        choices,
        usage: None,
        system_fingerprint: None,
        prompt_token_ids: None,
        prompt_text: None,
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    service_tier: Null,
    system_fingerprint: &'a str,
    usage: Usage<WholeDetails>,
    prompt_logprobs: Null,
    prompt_token_ids: Null,
    prompt_text: Null,
    kv_transfer_params: Null,
    ec_transfer_params: Null,
    metrics: Null,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Null,
    finish_reason: &'static str,
    stop_reason: Null,
    token_ids: Null,
    routed_experts: Null,
}

#[derive(Default, Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Null,
    annotations: Null,
    audio: Null,
    function_call: Null,
    reasoning: Null,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage<StreamDetails>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Null>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<Null>,
}

#[derive(Default, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Null,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Null>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Null>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: &'static str,
}

#[derive(Serialize)]
struct StreamDetails {
    cached_tokens: usize,
    created_cache_tokens: usize,
}
