//! A trace made ready: what of a request does not depend on where it goes is worked out once, for all policies.

use std::collections::HashMap;

use picker::decide::Ask;
use picker::hash::{BlockSize, model_root};
use picker::read;

use super::{BodyError, PlayError};
use crate::engine::{Prompt, Seconds};
use crate::prompt::{Api, Object, engine_prompts, token_ids};
use crate::trace::TraceRequest;

/// One request, ready to be played.
pub(super) struct Ready<'a> {
    pub(super) at: Seconds,
    pub(super) ask: Ask<'a>,
    /// Place of its group among the names.
    pub(super) group: usize,
    /// What the engine sees.
    pub(super) prompts: Vec<Prompt>,
}

/// All requests of a trace.
pub(super) struct Asks<'a> {
    pub(super) ready: Vec<Ready<'a>>,
    /// Names of the groups.
    pub(super) groups: Vec<&'a str>,
}

impl<'a> Asks<'a> {
    /// Reads every body as the engine does. Errors: the first that has no prompt.
    pub(super) fn of(trace: &'a [TraceRequest], size: BlockSize) -> Result<Self, PlayError> {
        let (mut groups, mut places) = (Vec::new(), HashMap::new());
        let mut ready = Vec::with_capacity(trace.len());
        for (number, request) in (1..).zip(trace) {
            let bad = |reason| PlayError::Body { number, reason };
            let (api, prompts) = read_body(&request.body, size).map_err(bad)?;
            let group = *places.entry(request.group.as_str()).or_insert_with(|| {
                groups.push(request.group.as_str());
                groups.len() - 1
            });
            let ask = Ask { api: router_api(api), body: request.body.as_bytes(), tenant: b"", session: b"" };
            ready.push(Ready { at: request.at, ask, group, prompts });
        }
        Ok(Self { ready, groups })
    }
}

fn read_body(body: &str, size: BlockSize) -> Result<(Api, Vec<Prompt>), BodyError> {
    let body: Object = serde_json::from_str(body).map_err(|error| BodyError::Json(error.to_string()))?;
    let api = api(&body)?;
    let text = |member| body.get(member).and_then(|value| value.as_str()).unwrap_or_default();
    let root = model_root(text("model"), text("cache_salt"));
    Ok((api, engine_prompts(root, &token_ids(api, &body)?, size)))
}

/// A trace has no paths: the member that holds the prompt tells which API it was made for.
fn api(body: &Object) -> Result<Api, BodyError> {
    let apis = [Api::Chat, Api::Completions, Api::Responses];
    apis.into_iter().find(|api| body.contains_key(api.prompt_member())).ok_or(BodyError::NoPrompt)
}

fn router_api(api: Api) -> read::Api {
    match api {
        Api::Chat => read::Api::Chat,
        Api::Completions => read::Api::Completions,
        Api::Responses => read::Api::Responses,
        Api::Messages => read::Api::Messages,
        Api::Embeddings => read::Api::Embeddings,
    }
}
