//! `/v1/embeddings`. The recorded vLLM served none; the shape is OpenAI's as vLLM's documentation gives it.

use serde::Serialize;

use super::{Answer, Usage, WholeDetails, json};

/// A unit vector: short, since nobody reads it.
const EMBEDDING: [f32; 4] = [0.5; 4];

pub(super) fn whole(answer: &Answer) -> String {
    let item = |index| Item { index, object: "embedding", embedding: EMBEDDING };
    json(&Whole {
        id: answer.id("embd"),
        object: "list",
        created: answer.created,
        model: &answer.model,
        data: (0..answer.choices).map(item).collect(),
        usage: answer.usage(answer.details(None)).of_whole_answer(),
    })
}

#[derive(Serialize)]
struct Whole<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<Item>,
    usage: Usage<WholeDetails>,
}

#[derive(Serialize)]
struct Item {
    index: usize,
    object: &'static str,
    embedding: [f32; 4],
}
