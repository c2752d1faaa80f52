//! `/v1/completions`.

use serde::Serialize;

use super::{Answer, DONE, Null, Usage, WholeDetails, event, json, word_text};

pub(super) fn whole(answer: &Answer) -> String {
    let choice = |index| Choice {
        index,
        text: answer.text(),
        logprobs: (),
        finish_reason: "length",
        stop_reason: (),
        token_ids: (),
        prompt_logprobs: (),
        prompt_token_ids: (),
        routed_experts: (),
    };
    json(&Whole {
        id: answer.id("cmpl"),
        object: "text_completion",
        created: answer.created,
        model: &answer.model,
        choices: (0..answer.choices).map(choice).collect(),
        service_tier: (),
        system_fingerprint: &answer.fingerprint,
        usage: answer.usage(answer.details(None)).of_whole_answer(),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    })
}

pub(super) fn word(answer: &Answer, index: usize, number: usize) -> String {
    let last = answer.is_last(number);
    let choice = ChunkChoice {
        index,
        text: word_text(number),
        logprobs: (),
        finish_reason: last.then_some("length"),
        stop_reason: (),
        prompt_token_ids: (),
        token_ids: (),
    };
    let mut chunk = chunk(answer, vec![choice]);
    chunk.system_fingerprint = (last && !answer.include_usage).then_some(&answer.fingerprint);
    event(&chunk)
}

pub(super) fn closing(answer: &Answer) -> String {
    if !answer.include_usage {
        return DONE.to_owned();
    }
    let usage = Chunk {
        usage: Some(answer.usage(StreamDetails { cached_tokens: answer.cached_tokens })),
        system_fingerprint: Some(&answer.fingerprint),
        ..chunk(answer, Vec::new())
    };
    event(&usage) + DONE
}

fn chunk(answer: &Answer, choices: Vec<ChunkChoice>) -> Chunk<'_> {
    Chunk {
        id: answer.id("cmpl"),
        object: "text_completion",
        created: answer.created,
        model: &answer.model,
        choices,
        usage: None,
        system_fingerprint: None,
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
    kv_transfer_params: Null,
    ec_transfer_params: Null,
    metrics: Null,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Null,
    finish_reason: &'static str,
    stop_reason: Null,
    token_ids: Null,
    prompt_logprobs: Null,
    prompt_token_ids: Null,
    routed_experts: Null,
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
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    text: &'static str,
    logprobs: Null,
    finish_reason: Option<&'static str>,
    stop_reason: Null,
    prompt_token_ids: Null,
    token_ids: Null,
}

#[derive(Serialize)]
struct StreamDetails {
    cached_tokens: usize,
}
