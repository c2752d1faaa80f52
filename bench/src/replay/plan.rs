//! What is sent when: a trace of any form, whose bodies are made at the moment they go out.
//!
//! Of a trace in Mooncake's form the texts are many times its file; only those of the requests under way are there at once.

use std::sync::Arc;
use std::time::Duration;

use picker::hash::BlockSize;
use serde::Serialize;

use super::body::{Edited, Edits};
use crate::prompt::Api;
use crate::simulate::{PlayError, block_size_of};
use crate::trace::TraceRequest;
use crate::trace::form::AnyTrace;
use crate::trace::hashed::HashedRequest;
use crate::trace::text::Wording;

/// The model of a trace that names none, as of `trace` and `fake-server`.
pub const MODEL: &str = "cc-sim";

/// How prompts that are known by their blocks become bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hashed {
    /// Tokens in a block; `None` for the smallest power of two that explains the trace.
    pub block: Option<BlockSize>,
    /// Tokens that the engine makes of one word.
    pub tokens_per_word: f64,
    /// `Chat` or `Completions`.
    pub api: Api,
}

/// A trace that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Plan {
    requests: Arc<Requests>,
    edits: Edits,
}

#[derive(Clone, Debug)]
enum Requests {
    Bodies(Vec<TraceRequest>),
    Hashed { requests: Vec<HashedRequest>, wording: Wording, api: Api },
}

/// One request as it goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Behind the base address.
    pub path: &'static str,
    /// The conversation, where the trace knows it.
    pub session: Option<String>,
    /// Its bytes.
    pub body: String,
}

impl Plan {
    /// Requests with bodies, which are changed by `edits`.
    pub fn of_bodies(requests: Vec<TraceRequest>, edits: Edits) -> Self {
        Self { requests: Arc::new(Requests::Bodies(requests)), edits }
    }

    /// A trace of either form. Errors: a prompt that has not as many blocks as its length makes.
    pub fn new(trace: AnyTrace, hashed: &Hashed, edits: Edits) -> Result<Self, PlayError> {
        let requests = match trace {
            AnyTrace::Bodies(requests) => Requests::Bodies(requests),
            AnyTrace::Hashed(requests, told) => {
                let size = block_size_of(&requests, hashed.block.or(told))?;
                let wording = Wording::new(size, hashed.tokens_per_word);
                Requests::Hashed { requests, wording, api: hashed.api }
            }
        };
        Ok(Self { requests: Arc::new(requests), edits })
    }

    /// The same trace under another salt.
    pub fn salted(&self, salt: String) -> Self {
        Self { requests: Arc::clone(&self.requests), edits: Edits { salt: Some(salt), ..self.edits.clone() } }
    }

    /// How many requests.
    pub fn len(&self) -> usize {
        match &*self.requests {
            Requests::Bodies(requests) => requests.len(),
            Requests::Hashed { requests, .. } => requests.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When a request is sent, from the first one's time on.
    pub fn at(&self, number: usize) -> Duration {
        let at = |number: usize| match &*self.requests {
            Requests::Bodies(requests) => requests.get(number).map(|request| request.at.0),
            Requests::Hashed { requests, .. } => requests.get(number).map(|request| request.at.0),
        };
        let since_first = at(number).unwrap_or_default() - at(0).unwrap_or_default();
        Duration::try_from_secs_f64(since_first).unwrap_or_default()
    }

    /// The tenant or the conversation of a request.
    pub fn group(&self, number: usize) -> Option<&str> {
        match &*self.requests {
            Requests::Bodies(requests) => requests.get(number).map(|request| request.group.as_str()),
            Requests::Hashed { requests, .. } => requests.get(number)?.session.as_deref(),
        }
    }

    /// The bytes of a request. O(its prompt).
    pub fn outgoing(&self, number: usize) -> Option<Outgoing> {
        match &*self.requests {
            Requests::Bodies(requests) => {
                let Edited { api, body } = self.edits.apply(&requests.get(number)?.body);
                // What has no prompt goes where most go; the engine judges it.
                Some(Outgoing { path: api.unwrap_or(Api::Chat).path(), session: None, body })
            }
            Requests::Hashed { requests, wording, api } => {
                let request = requests.get(number)?;
                let body = self.edits.apply(&written(request, wording, *api)).body;
                Some(Outgoing { path: api.path(), session: request.session.clone(), body })
            }
        }
    }
}

/// The body of a request that is known by its blocks.
fn written(request: &HashedRequest, wording: &Wording, api: Api) -> String {
    let text = &*wording.prompt(&request.hash_ids, request.input_tokens);
    let messages = [Message { role: "user", content: text }];
    let (messages, prompt) = if api == Api::Chat { (Some(messages), None) } else { (None, Some(text)) };
    let body = Written { model: MODEL, max_tokens: request.output_tokens.max(1), messages, prompt };
    // Texts and numbers: it cannot fail.
    serde_json::to_string(&body).unwrap_or_default()
}

#[derive(Serialize)]
struct Written<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<[Message<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::engine::Seconds;
    use crate::prompt::{Object, token_ids};

    fn hashed(at: f64, ids: &[u64], tokens: u32) -> HashedRequest {
        let (hash_ids, session) = (ids.to_vec(), Some("s".to_owned()));
        HashedRequest { at: Seconds(at), input_tokens: tokens, output_tokens: 0, hash_ids, session }
    }

    fn plan(api: Api) -> Plan {
        let trace = AnyTrace::Hashed(vec![hashed(5.0, &[1, 2], 20), hashed(7.5, &[1, 3], 32)], None);
        let how = Hashed { block: BlockSize::new(16).ok(), tokens_per_word: 1.0, api };
        Plan::new(trace, &how, Edits { max_tokens: Some(3), ..Edits::default() }).unwrap()
    }

    #[test]
    fn blocks_become_bodies_with_their_tokens() {
        for (api, path) in [(Api::Chat, "/v1/chat/completions"), (Api::Completions, "/v1/completions")] {
            let plan = plan(api);
            let prompt = |number| {
                let outgoing = plan.outgoing(number).unwrap();
                assert_eq!((outgoing.path, outgoing.session.as_deref()), (path, Some("s")));
                let body: Object = serde_json::from_str(&outgoing.body).unwrap();
                assert_eq!((&body["model"], &body["max_tokens"]), (&"cc-sim".into(), &3.into()));
                token_ids(api, &body).unwrap().concat()
            };
            let (one, two) = (prompt(0), prompt(1));
            assert_eq!((one.len(), two.len()), (20, 32));
            assert_eq!(one[..16], two[..16]);
            assert_ne!(one[16..], two[16..20]);
            assert_eq!(plan.outgoing(2), None);
        }
    }

    /// Times of day, as a log has them, are times all the same.
    #[test]
    fn time_runs_from_the_first_request() {
        let plan = plan(Api::Chat);
        assert_eq!((plan.len(), plan.at(0), plan.at(1)), (2, Duration::ZERO, Duration::from_millis(2500)));
        assert_eq!(plan.group(1), Some("s"));
    }

    #[test]
    fn bodies_go_where_their_prompt_says() {
        let request =
            |body: &str| TraceRequest { at: Seconds(0.0), group: "g".to_owned(), body: body.to_owned() };
        let bodies = [r#"{"prompt":"a"}"#, r#"{"input":"a"}"#, r#"{"x":1}"#].map(request);
        let plan = Plan::of_bodies(bodies.to_vec(), Edits::default());
        let paths: Vec<_> = (0..3).map(|number| plan.outgoing(number).unwrap().path).collect();
        assert_eq!(paths, ["/v1/completions", "/v1/responses", "/v1/chat/completions"]);
        let salted = plan.salted("x".to_owned()).outgoing(2).unwrap().body;
        assert_eq!(salted, r#"{"x":1,"cache_salt":"x"}"#);
    }

    #[test]
    fn counts_that_no_block_explains_are_refused() {
        let trace = AnyTrace::Hashed(vec![hashed(0.0, &[1, 2], 20), hashed(0.0, &[1], 90)], None);
        let how = Hashed { block: BlockSize::new(16).ok(), tokens_per_word: 1.0, api: Api::Chat };
        let error = Plan::new(trace, &how, Edits::default()).unwrap_err().to_string();
        assert_eq!(error, "request 2: found 1 hash ids, wanted 6 for 90 tokens in blocks of 16");
    }
}
