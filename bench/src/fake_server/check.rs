//! From the bytes of a request to something that can be served, or to the fault that vLLM would find.
//!
//! The order of the checks is vLLM's: media type, UTF-8, JSON, members and their types, the model, then
//! values. Only the first fault is told. Two JSON texts that Python takes are refused here: lone surrogate
//! escapes, and `NaN`.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use serde_json::Value;

use super::fault::Fault;
use crate::prompt::{self, Api, Object, PromptError};

/// Tokens of an answer at most, and when none are asked for: a bound on what one request makes the server
/// write.
const ANSWER_TOKENS_MAX: u64 = 65_536;
const ANSWER_TOKENS_DEFAULT: u64 = 16;
/// Choices of one prompt at most.
const CHOICES_MAX: i64 = 128;

/// A request that can be served.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) api: Api,
    pub(crate) model: String,
    pub(crate) cache_salt: String,
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Tokens of each choice.
    pub(crate) answer_tokens: usize,
    /// Choices of each prompt.
    pub(crate) choices: usize,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Echoed by `/v1/responses`.
    pub(crate) instructions: Option<String>,
}

/// Reads a request. `models` are the models served; a request that names none is for the first.
pub(crate) fn request(
    api: Api,
    headers: &HeaderMap,
    body: &[u8],
    models: &[String],
) -> Result<Request, Fault> {
    let body = object(headers, body)?;
    let answer_tokens = members(api, &body)?;
    let model = model(&body, models)?;
    let cache_salt = values(api, &body)?;
    let prompts = prompts(api, &body)?;
    let stream = boolean(&body, "stream")?;
    let options = body.get("stream_options").filter(|options| !options.is_null());
    Ok(Request {
        api,
        model,
        cache_salt,
        prompts,
        answer_tokens,
        choices: integer(&body, "n")?.unwrap_or(1) as usize,
        stream,
        include_usage: options.and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true)),
        instructions: body.get("instructions").and_then(Value::as_str).map(str::to_owned),
    })
}

/// The body as a JSON object.
pub(crate) fn object(headers: &HeaderMap, body: &[u8]) -> Result<Object, Fault> {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media.to_ascii_lowercase().starts_with("application/json") {
        let text = "Unsupported Media Type: Only 'application/json' is allowed".to_owned();
        return Err(Fault::Validation { text, location: None });
    }
    let text = std::str::from_utf8(body).map_err(|_| Fault::Unreadable)?;
    if text.is_empty() {
        return Err(missing("body", &Value::Null));
    }
    match serde_json::from_str(text).map_err(|error| not_json(text, &error))? {
        Value::Object(body) => Ok(body),
        Value::Null => Err(missing("body", &Value::Null)),
        other => {
            let message = "Input should be a valid dictionary or object to extract fields from";
            let rest = format!("'msg': '{message}', 'input': '{}'", described(&other));
            Err(Fault::validation("model_attributes_type", "body", &rest))
        }
    }
}

/// The model asked for, if it is served.
pub(crate) fn model(body: &Object, models: &[String]) -> Result<String, Fault> {
    let default = || models.first().cloned().unwrap_or_default();
    let Some(model) = body.get("model").and_then(Value::as_str) else { return Ok(default()) };
    if models.iter().any(|known| known == model) {
        return Ok(model.to_owned());
    }
    Err(Fault::UnknownModel { model: model.to_owned(), known: models.join(", ") })
}

/// The prompts of a body, with vLLM's words for what is no prompt.
pub(crate) fn prompts(api: Api, body: &Object) -> Result<Vec<Vec<u32>>, Fault> {
    let prompts = prompt::token_ids(api, body).map_err(|error| match error {
        PromptError::Missing { .. } if api == Api::Completions => no_prompt(),
        PromptError::Missing { member } => missing_member(api, body, member),
        PromptError::WrongType { member, .. } => not_a_list(body, member),
        PromptError::TokenId(id) => Fault::value(format!("Token id {id} is out of vocabulary")),
    })?;
    match api {
        Api::Completions | Api::Embeddings if prompts.is_empty() || prompts.iter().any(Vec::is_empty) => {
            Err(no_prompt())
        }
        _ => Ok(prompts),
    }
}

/// Checks that the members are there and of their types. Returns the answer's tokens.
fn members(api: Api, body: &Object) -> Result<usize, Fault> {
    let prompt = api.prompt_member();
    match body.get(prompt) {
        _ if api == Api::Completions => {}
        Some(Value::Array(_)) => {}
        Some(Value::String(_)) if prompt == "input" => {}
        Some(Value::Null) | None => return Err(missing_member(api, body, prompt)),
        Some(_) => return Err(not_a_list(body, prompt)),
    }
    if let Some(model) = body.get("model").filter(|model| !model.is_string() && !model.is_null()) {
        return Err(wrong_type("string_type", "model", "Input should be a valid string", model));
    }
    boolean(body, "stream")?;
    integer(body, "n")?;
    let asked = match api {
        Api::Chat => integer(body, "max_completion_tokens")?.or(integer(body, "max_tokens")?),
        Api::Responses => integer(body, "max_output_tokens")?,
        Api::Messages if body.get("max_tokens").is_none() => {
            return Err(missing_member(api, body, "max_tokens"));
        }
        Api::Completions | Api::Messages => integer(body, "max_tokens")?,
        Api::Embeddings => None,
    };
    if let Some(tokens) = asked.filter(|&tokens| tokens < 1) {
        let message =
            format!("max_tokens must be at least 1, got {tokens}. (parameter=max_tokens, value={tokens})");
        return Err(Fault::parameter("max_tokens", message));
    }
    let tokens = asked.map_or(ANSWER_TOKENS_DEFAULT, |tokens| tokens.unsigned_abs());
    Ok(tokens.min(ANSWER_TOKENS_MAX) as usize)
}

/// Checks values that have the right type. Returns the cache salt, empty for none.
fn values(api: Api, body: &Object) -> Result<String, Fault> {
    let given = |member: &str| body.get(member).filter(|value| !value.is_null());
    if let Some(n) = integer(body, "n")?.filter(|n| !(1..=CHOICES_MAX).contains(n)) {
        let wanted = if n < 1 { "at least 1".to_owned() } else { format!("at most {CHOICES_MAX}") };
        return Err(Fault::value(format!("n must be {wanted}, got {n}.")));
    }
    if given("stream_options").is_some() && !boolean(body, "stream")? {
        let message =
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)".to_owned();
        return Err(Fault::parameter("stream_options", message));
    }
    if let Some(degrees) = given("temperature").and_then(Value::as_f64).filter(|degrees| *degrees < 0.0) {
        let message = format!(
            "temperature must be non-negative, got {degrees:?}. (parameter=temperature, value={degrees:?})"
        );
        return Err(Fault::parameter("temperature", message));
    }
    if api == Api::Chat && body.get("messages").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        let message =
            "Cannot apply chat template to an empty conversation. Provide at least one message.".to_owned();
        return Err(Fault::value(message));
    }
    match given("cache_salt") {
        None => Ok(String::new()),
        Some(Value::String(salt)) if !salt.is_empty() => Ok(salt.clone()),
        Some(_) => {
            let message =
                "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)";
            Err(Fault::parameter("cache_salt", message.to_owned()))
        }
    }
}

fn integer(body: &Object, member: &'static str) -> Result<Option<i64>, Fault> {
    let (kind, reason, value) = match body.get(member) {
        None | Some(Value::Null) => return Ok(None),
        Some(value @ Value::String(text)) => match text.trim().parse() {
            Ok(number) => return Ok(Some(number)),
            Err(_) => ("int_parsing", ", unable to parse string as an integer", value),
        },
        Some(value) => match value.as_i64().or_else(|| whole(value)) {
            Some(number) => return Ok(Some(number)),
            None => ("int_type", "", value),
        },
    };
    Err(wrong_type(kind, member, &format!("Input should be a valid integer{reason}"), value))
}

/// A number such as `4.0`, which is an integer to vLLM.
fn whole(value: &Value) -> Option<i64> {
    value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15).map(|number| number as i64)
}

fn boolean(body: &Object, member: &'static str) -> Result<bool, Fault> {
    match body.get(member) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(wrong_type("bool_type", member, "Input should be a valid boolean", other)),
    }
}

fn no_prompt() -> Fault {
    let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
    Fault::parameter("prompt", message.to_owned())
}

/// vLLM adds a member to the body of `/v1/responses` before it checks it.
fn missing_member(api: Api, body: &Object, member: &str) -> Fault {
    let members = body.len() + usize::from(api == Api::Responses);
    let rest = format!("'msg': 'Field required', 'input': '<dict of {members} items>'");
    Fault::validation("missing", &format!("body.{member}"), &rest)
}

fn missing(location: &str, input: &Value) -> Fault {
    let rest = format!("'msg': 'Field required', 'input': '{}'", described(input));
    Fault::validation("missing", location, &rest)
}

fn not_a_list(body: &Object, member: &'static str) -> Fault {
    wrong_type("list_type", member, "Input should be a valid list", body.get(member).unwrap_or(&Value::Null))
}

fn wrong_type(kind: &str, member: &str, message: &str, found: &Value) -> Fault {
    let rest = format!("'msg': '{message}', 'input': '{}'", described(found));
    Fault::validation(kind, &format!("body.{member}"), &rest)
}

/// A value as vLLM shows it: containers by their size.
fn described(value: &Value) -> String {
    match value {
        Value::Object(members) => format!("<dict of {} items>", members.len()),
        Value::Array(items) => format!("<list of {} items>", items.len()),
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
    }
}

/// JSON that does not parse. The place is exact, the reason one of the two that Python gives most.
fn not_json(text: &str, error: &serde_json::Error) -> Fault {
    let line_start: usize =
        text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let place = line_start + error.column();
    let before = text.get(..place).unwrap_or(text).trim_end();
    let reason = match before.chars().next_back() {
        Some('{' | ',') => "Expecting property name enclosed in double quotes",
        _ => "Expecting value",
    };
    let rest =
        format!("'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': '{reason}'}}");
    Fault::validation("json_invalid", &format!("body.{place}"), &rest)
}
