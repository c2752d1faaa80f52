//! What is wrong with a request, in vLLM's words and shapes.
//!
//! vLLM answers in three shapes: `{"error": {...}}`, Anthropic's `{"type": "error", ...}` for `/v1/messages`,
//! and FastAPI's `{"detail": ...}`. Source: recorded answers of vLLM 0.32, `tests/fixtures/vllm/errors`.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::prompt::Api;

/// Why a request gets no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The body does not fit the request's type.
    #[error("1 validation error:\n  {text}")]
    Validation { text: String, location: Option<String> },
    /// It fits, but a value cannot be served.
    #[error("{message}")]
    Value { message: String, parameter: Option<&'static str> },
    /// Another model is asked for.
    #[error("The model `{model}` does not exist. Valid aliases: {known}.")]
    UnknownModel { model: String, known: String },
    /// The body is not UTF-8.
    #[error("There was an error parsing the body")]
    Unreadable,
    /// The server is being stopped.
    #[error("The engine is shutting down")]
    Stopped,
    /// No such path.
    #[error("Not Found")]
    UnknownPath,
    /// The path takes another method.
    #[error("Method Not Allowed")]
    WrongMethod,
}

impl Fault {
    /// A body that does not fit. `location` is `body` or `body.member`; `rest` follows it in the message.
    pub(crate) fn validation(kind: &str, location: &str, rest: &str) -> Self {
        let text = format!("{{'type': '{kind}', 'loc': '{location}', {rest}}}");
        Self::Validation { text, location: Some(location.to_owned()) }
    }

    /// A value that cannot be served, in a parameter that vLLM names in the message too.
    pub(crate) fn parameter(parameter: &'static str, message: String) -> Self {
        Self::Value { message, parameter: Some(parameter) }
    }

    /// A value that cannot be served, for which vLLM names no parameter.
    pub(crate) fn value(message: String) -> Self {
        Self::Value { message, parameter: None }
    }

    /// The answer, in the shape of `api`.
    pub(crate) fn response(&self, api: Option<Api>) -> Response {
        let (status, kind, parameter) = self.verdict();
        let message = self.to_string();
        let anthropic = api == Some(Api::Messages) && !matches!(self, Self::Validation { .. });
        let body = match kind {
            None => serde_json::to_string(&Detail { detail: message }),
            Some(kind) if anthropic => {
                serde_json::to_string(&Anthropic { kind: "error", error: AnthropicError { kind, message } })
            }
            Some(kind) => {
                let error = OpenAiError { message, kind, param: parameter, code: status.as_u16() };
                serde_json::to_string(&OpenAi { error })
            }
        };
        (status, [(CONTENT_TYPE, "application/json")], body.unwrap_or_default()).into_response()
    }

    /// Status, `type` and `param`. No `type`: FastAPI's own shape.
    fn verdict(&self) -> (StatusCode, Option<&'static str>, Option<&str>) {
        match self {
            Self::Validation { location, .. } => {
                (StatusCode::BAD_REQUEST, Some("Bad Request"), location.as_deref())
            }
            Self::Value { parameter, .. } => (StatusCode::BAD_REQUEST, Some("BadRequestError"), *parameter),
            Self::UnknownModel { .. } => (StatusCode::NOT_FOUND, Some("NotFoundError"), Some("model")),
            Self::Stopped => (StatusCode::INTERNAL_SERVER_ERROR, Some("InternalServerError"), None),
            Self::Unreadable => (StatusCode::BAD_REQUEST, None, None),
            Self::UnknownPath => (StatusCode::NOT_FOUND, None, None),
            Self::WrongMethod => (StatusCode::METHOD_NOT_ALLOWED, None, None),
        }
    }
}

#[derive(Serialize)]
struct OpenAi<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: String,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: u16,
}

#[derive(Serialize)]
struct Anthropic<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: String,
}

#[derive(Serialize)]
struct Detail {
    detail: String,
}
