//! How an answer is worded: as one JSON object, or as server-sent events.
//!
//! Members and their order are those that vLLM 0.32 wrote (`tests/fixtures/vllm/http`); `()` is a member that
//! is always null here. The text itself is the same few words over and over, so that an answer can be
//! foretold.

mod chat;
mod completions;
mod embeddings;
mod messages;
mod responses;

use serde::Serialize;

use crate::prompt::Api;

/// A member that is always null.
type Null = ();

/// The words of every answer, each with the space before it.
const WORDS: [&str; 16] = [
    " the", " cache", " holds", " what", " was", " asked", " before", " and", " so", " this", " answer",
    " comes", " sooner", " than", " it", " would",
];

/// All that an answer says.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) api: Api,
    /// A number that no other answer of the server has.
    pub(crate) number: u64,
    /// Seconds since the epoch.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
    /// Choices in all: of every prompt, `n`.
    pub(crate) choices: usize,
    /// Words of each choice, at least one.
    pub(crate) words: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    /// Tokens in full blocks of the prompts that were not cached before.
    pub(crate) created_cache_tokens: usize,
    pub(crate) include_usage: bool,
    pub(crate) instructions: Option<String>,
}

impl Answer {
    /// The answer as one JSON object.
    pub(crate) fn whole(&self) -> String {
        match self.api {
            Api::Chat => chat::whole(self),
            Api::Completions => completions::whole(self),
            Api::Responses => responses::whole(self),
            Api::Messages => messages::whole(self),
            Api::Embeddings => embeddings::whole(self),
        }
    }

    /// The events before the first word's.
    pub(crate) fn opening(&self) -> String {
        match self.api {
            Api::Chat => chat::opening(self),
            Api::Responses => responses::opening(self),
            Api::Messages => messages::opening(self),
            Api::Completions | Api::Embeddings => String::new(),
        }
    }

    /// The event of one word of one choice.
    pub(crate) fn word(&self, choice: usize, number: usize) -> String {
        match self.api {
            Api::Chat => chat::word(self, choice, number),
            Api::Completions => completions::word(self, choice, number),
            Api::Responses => responses::word(self, number),
            Api::Messages => messages::word(number),
            Api::Embeddings => String::new(),
        }
    }

    /// The events after the last word's.
    pub(crate) fn closing(&self) -> String {
        match self.api {
            Api::Chat => chat::closing(self),
            Api::Completions => completions::closing(self),
            Api::Responses => responses::closing(self),
            Api::Messages => messages::closing(self),
            Api::Embeddings => String::new(),
        }
    }

    /// Words of all choices.
    pub(crate) fn generated(&self) -> usize {
        self.choices * self.words
    }

    fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{:016x}", self.number)
    }

    /// The whole text of a choice.
    fn text(&self) -> String {
        (0..self.words).map(word_text).collect()
    }

    fn is_last(&self, number: usize) -> bool {
        number + 1 == self.words
    }

    fn usage<Details>(&self, details: Details) -> Usage<Details> {
        Usage {
            prompt_tokens: self.prompt_tokens,
            total_tokens: self.prompt_tokens + self.generated(),
            completion_tokens: self.generated(),
            prompt_tokens_details: details,
            completion_tokens_details: None,
        }
    }

    /// `prompt_tokens_details` of a whole answer. Completions do not say what they cached.
    fn details(&self, created: Option<usize>) -> WholeDetails {
        WholeDetails {
            cached_tokens: self.cached_tokens,
            created_cache_tokens: created,
            multimodal_tokens: (),
        }
    }
}

/// The text of a word: the first of an answer has no space before it.
fn word_text(number: usize) -> &'static str {
    let word = WORDS[number % WORDS.len()];
    if number == 0 { word.trim_start() } else { word }
}

/// OpenAI's `usage`; details differ between APIs and between whole answers and streams.
#[derive(Serialize)]
struct Usage<Details> {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: Details,
    /// Present, as null, in whole answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<Null>,
}

impl<Details> Usage<Details> {
    fn of_whole_answer(mut self) -> Self {
        self.completion_tokens_details = Some(());
        self
    }
}

#[derive(Serialize)]
struct WholeDetails {
    cached_tokens: usize,
    created_cache_tokens: Option<usize>,
    multimodal_tokens: Null,
}

/// JSON of an own type. These have string keys and finite numbers only, so it cannot fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// An event without a name, as OpenAI's streams have.
fn event(value: &impl Serialize) -> String {
    format!("data: {}\n\n", json(value))
}

/// An event with its name, as Anthropic's streams and `/v1/responses` have.
fn named_event(name: &str, value: &impl Serialize) -> String {
    format!("event: {name}\ndata: {}\n\n", json(value))
}

/// The last event of OpenAI's streams.
const DONE: &str = "data: [DONE]\n\n";
