//! From a request's body to the tokens that the fake engine sees.
//!
//! A real engine renders a chat template and asks a vocabulary. Here a prompt is the contents of the messages
//! joined by one newline, text parts only, without roles; its tokens are the word pieces of
//! `picker::tokens::words`. The simulator and the fake server read bodies through this file, so that they
//! agree on every token.

use picker::hash::{BlockHash, BlockSize, Tail, token_block_hashes};
use picker::tokens::words;
use serde_json::{Map, Value};

use crate::engine::Prompt;

/// A JSON object as it was parsed; of duplicate members the last wins, as in vLLM.
pub type Object = Map<String, Value>;

/// Whose request shape a body has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/v1/embeddings`
    Embeddings,
}

/// Why a body has no prompt. `member` is the member that should have held it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The member is absent or null.
    #[error("found no {member}")]
    Missing {
        /// Name of the member.
        member: &'static str,
    },
    /// The member is of another type.
    #[error("found {member} of another type, wanted {wanted}")]
    WrongType {
        /// Name of the member.
        member: &'static str,
        /// What it may be.
        wanted: &'static str,
    },
    /// A number that is no token id.
    #[error("found token id {0}, wanted 0 to 4294967295")]
    TokenId(serde_json::Number),
}

impl Api {
    /// The API that a body was made for, by the member that holds its prompt: traces have no paths. None of a body without
    /// such a member.
    pub fn of_members(has: impl Fn(&str) -> bool) -> Option<Self> {
        [Self::Chat, Self::Completions, Self::Responses].into_iter().find(|api| has(api.prompt_member()))
    }

    /// Where its requests go.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
        }
    }

    /// The member that holds the prompt.
    pub fn prompt_member(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Completions => "prompt",
            Self::Responses | Self::Embeddings => "input",
        }
    }
}

/// The prompts of a body as token ids: one, or one for each member of a list of prompts. O(bytes).
pub fn token_ids(api: Api, body: &Object) -> Result<Vec<Vec<u32>>, PromptError> {
    let member = api.prompt_member();
    let prompt = body.get(member).filter(|prompt| !prompt.is_null());
    let prompt = prompt.ok_or(PromptError::Missing { member })?;
    match (api, prompt) {
        (Api::Completions | Api::Embeddings, prompt) => plain(member, prompt),
        (Api::Responses, Value::String(input)) => {
            Ok(conversation(body.get("instructions"), &[], Some(input)))
        }
        (Api::Responses, Value::Array(items)) => Ok(conversation(body.get("instructions"), items, None)),
        (Api::Messages, Value::Array(messages)) => Ok(conversation(body.get("system"), messages, None)),
        (Api::Chat, Value::Array(messages)) => Ok(conversation(None, messages, None)),
        _ => Err(PromptError::WrongType { member, wanted: "a list" }),
    }
}

/// Prompts as the engine's cache sees them: lengths and the hashes of full blocks.
pub fn engine_prompts(root: BlockHash, prompts: &[Vec<u32>], size: BlockSize) -> Vec<Prompt> {
    let one = |tokens: &Vec<u32>| Prompt {
        tokens: tokens.len(),
        blocks: token_block_hashes(root, tokens, size, Tail::Drop),
    };
    prompts.iter().map(one).collect()
}

/// A string, a list of strings, a list of ids, or a list of lists of ids.
fn plain(member: &'static str, prompt: &Value) -> Result<Vec<Vec<u32>>, PromptError> {
    match prompt {
        Value::String(text) => Ok(vec![words::token_ids(text)]),
        Value::Array(items) if items.first().is_some_and(Value::is_number) => Ok(vec![ids(member, items)?]),
        Value::Array(items) => items.iter().map(|item| item_ids(member, item)).collect(),
        _ => Err(PromptError::WrongType { member, wanted: "a string or a list" }),
    }
}

fn item_ids(member: &'static str, item: &Value) -> Result<Vec<u32>, PromptError> {
    match item {
        Value::String(text) => Ok(words::token_ids(text)),
        Value::Array(items) => ids(member, items),
        _ => Err(PromptError::WrongType { member, wanted: "a list of strings or of lists of token ids" }),
    }
}

fn ids(member: &'static str, items: &[Value]) -> Result<Vec<u32>, PromptError> {
    let id = |item: &Value| match item {
        Value::Number(number) => {
            let id = number.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| PromptError::TokenId(number.clone()))
        }
        _ => Err(PromptError::WrongType { member, wanted: "a list of token ids" }),
    };
    items.iter().map(id).collect()
}

/// System text, messages and a last text, joined by newlines; what has no text leaves no line.
fn conversation(system: Option<&Value>, messages: &[Value], last: Option<&str>) -> Vec<Vec<u32>> {
    let mut text = String::new();
    let contents = messages.iter().filter_map(|message| message.get("content"));
    for content in system.into_iter().chain(contents).filter(|content| !content.is_null()) {
        start_line(&mut text);
        push_text(&mut text, content);
    }
    if let Some(last) = last {
        start_line(&mut text);
        text.push_str(last);
    }
    vec![words::token_ids(&text)]
}

fn start_line(text: &mut String) {
    if !text.is_empty() {
        text.push('\n');
    }
}

/// A content: a string, or a list of parts of which those with a text count.
fn push_text(text: &mut String, content: &Value) {
    let parts = match content {
        Value::String(content) => return text.push_str(content),
        Value::Array(parts) => parts,
        _ => return,
    };
    for part in parts {
        if let Some(part) = part.get("text").or(Some(part)).and_then(Value::as_str) {
            text.push_str(part);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn ids_of(api: Api, body: &Value) -> Result<Vec<Vec<u32>>, PromptError> {
        token_ids(api, body.as_object().unwrap())
    }

    fn api_of(body: &Value) -> Api {
        if body.get("prompt").is_some() { Api::Completions } else { Api::Chat }
    }

    #[test]
    fn the_cases_of_the_fixture() {
        let fixture: Value =
            serde_json::from_str(include_str!("../tests/fixtures/seed/prompt_text.json")).unwrap();
        let cases = fixture["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 4);
        for case in cases {
            let (name, a) = (&case["name"], &case["a"]);
            let tokens = ids_of(api_of(a), a).unwrap();
            for (place, piece) in case["first_tokens"].as_array().into_iter().flatten().enumerate() {
                assert_eq!(tokens[0][place], words::fnv1a32(piece.as_str().unwrap().as_bytes()), "{name}");
            }
            if let Some(common) = case["min_common_tokens"].as_u64() {
                let other = ids_of(api_of(&case["b"]), &case["b"]).unwrap();
                let shared = tokens[0].iter().zip(&other[0]).take_while(|(one, two)| one == two).count();
                assert!(shared as u64 >= common, "{name}: {shared}");
            }
        }
    }

    #[test]
    fn every_shape_of_a_prompt() {
        let text = |text: &str| words::token_ids(text);
        for (shows, api, body, want) in [
            ("a string", Api::Completions, json!({"prompt": "a b"}), vec![text("a b")]),
            ("strings", Api::Completions, json!({"prompt": ["a", "b c"]}), vec![text("a"), text("b c")]),
            ("ids", Api::Completions, json!({"prompt": [1, 23]}), vec![vec![1, 23]]),
            ("lists of ids", Api::Embeddings, json!({"input": [[1], [2, 3]]}), vec![vec![1], vec![2, 3]]),
            ("an empty list", Api::Completions, json!({"prompt": []}), vec![]),
            (
                "responses: a string",
                Api::Responses,
                json!({"instructions": "s", "input": "u"}),
                vec![text("s\nu")],
            ),
            (
                "responses: items",
                Api::Responses,
                json!({"instructions": "s", "input": [{"role": "user", "content": [{"type": "input_text", "text": "u"}]}]}),
                vec![text("s\nu")],
            ),
            (
                "messages: system blocks",
                Api::Messages,
                json!({"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "u"}]}),
                vec![text("s\nu")],
            ),
            (
                "a message without text leaves no line",
                Api::Chat,
                json!({"messages": [{"content": "s"}, {"content": null}, {"role": "user"}, {"content": "u"}]}),
                vec![text("s\nu")],
            ),
        ] {
            assert_eq!(ids_of(api, &body), Ok(want), "{shows}");
        }
    }

    #[test]
    fn what_is_no_prompt_is_said() {
        for (api, body, want) in [
            (Api::Chat, json!({}), "found no messages"),
            (Api::Completions, json!({"prompt": null}), "found no prompt"),
            (Api::Chat, json!({"messages": "hi"}), "found messages of another type, wanted a list"),
            (Api::Completions, json!({"prompt": [1, -2]}), "found token id -2, wanted 0 to 4294967295"),
            (
                Api::Embeddings,
                json!({"input": [1, "a"]}),
                "found input of another type, wanted a list of token ids",
            ),
        ] {
            assert_eq!(ids_of(api, &body).unwrap_err().to_string(), want);
        }
    }
}
