//! The paths of the server and what each answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde::Serialize;

use super::check::{self, Request};
use super::fault::Fault;
use super::seat::{Engine, Seat, unix_seconds};
use super::wording::Answer;
use super::{metrics, stream};
use crate::prompt::{self, Api};

/// Bytes of a body at most.
const BODY_BYTES_MAX: usize = 64 << 20;
/// A token is a byte at least, so a prompt that the server reads always fits.
const MODEL_TOKENS_MAX: usize = BODY_BYTES_MAX;

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    let generate = |api| {
        post(move |State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes| async move {
            answer(api, &engine, &headers, body).await.unwrap_or_else(|fault| fault.response(Some(api)))
        })
    };
    Router::new()
        .route("/v1/chat/completions", generate(Api::Chat))
        .route("/v1/completions", generate(Api::Completions))
        .route("/v1/responses", generate(Api::Responses))
        .route("/v1/messages", generate(Api::Messages))
        .route("/v1/embeddings", generate(Api::Embeddings))
        .route("/tokenize", post(tokenize))
        .route("/v1/models", get(models))
        .route("/health", get(StatusCode::OK))
        .route("/ping", get(StatusCode::OK))
        .route("/version", get(|| async { json_response("{\"version\":\"0.32.0\"}".to_owned()) }))
        .route("/metrics", get(metrics_page))
        .fallback(|| async { Fault::UnknownPath.response(None) })
        .method_not_allowed_fallback(|| async { Fault::WrongMethod.response(None) })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(engine)
}

async fn answer(api: Api, engine: &Arc<Engine>, headers: &HeaderMap, body: Bytes) -> Result<Response, Fault> {
    let request = check::request(api, headers, &body, &engine.options.models)?;
    drop(body);
    let mut seat = take_seat(engine, &request);
    let streamed = request.stream && api != Api::Embeddings;
    let answer = word_answer(engine, request, &seat);
    if streamed {
        let head = [(CONTENT_TYPE, "text/event-stream; charset=utf-8")];
        return Ok((head, stream::body(Arc::clone(engine), seat, answer)).into_response());
    }
    seat.first_token().await?;
    engine.compute(stream::rest_of_answer(&answer, engine.options.inter_token)).await?;
    seat.finish(answer.generated());
    Ok(json_response(answer.whole()))
}

fn take_seat(engine: &Arc<Engine>, request: &Request) -> Seat {
    let root = picker::hash::model_root(&request.model, &request.cache_salt);
    let size = engine.options.replica.block_size;
    engine.sit(&prompt::engine_prompts(root, &request.prompts, size))
}

fn word_answer(engine: &Engine, request: Request, seat: &Seat) -> Answer {
    let size = engine.options.replica.block_size.tokens();
    let full: usize = request.prompts.iter().map(|prompt| prompt.len() / size * size).sum();
    let (choices, words) = match request.api {
        Api::Chat | Api::Completions => (request.prompts.len() * request.choices, request.answer_tokens),
        Api::Embeddings => (request.prompts.len(), 0),
        Api::Responses | Api::Messages => (1, request.answer_tokens),
    };
    Answer {
        api: request.api,
        number: engine.next_answer(),
        created: unix_seconds() as u64,
        model: request.model,
        fingerprint: engine.fingerprint.clone(),
        choices,
        words,
        prompt_tokens: seat.admission.prompt_tokens,
        cached_tokens: seat.admission.cached_tokens,
        created_cache_tokens: full.saturating_sub(seat.admission.cached_tokens),
        include_usage: request.include_usage,
        instructions: request.instructions,
    }
}

async fn tokenize(State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes) -> Response {
    tokens(&engine, &headers, &body).unwrap_or_else(|fault| fault.response(None))
}

fn tokens(engine: &Engine, headers: &HeaderMap, body: &[u8]) -> Result<Response, Fault> {
    let body = check::object(headers, body)?;
    check::model(&body, &engine.options.models)?;
    let api = if body.contains_key("messages") { Api::Chat } else { Api::Completions };
    let tokens = check::prompts(api, &body)?.concat();
    let page = Tokens { count: tokens.len(), max_model_len: MODEL_TOKENS_MAX, tokens, token_strs: () };
    Ok(json_response(serde_json::to_string(&page).unwrap_or_default()))
}

async fn models(State(engine): State<Arc<Engine>>) -> Response {
    let created = engine.started_at as u64;
    let model = |id| Model {
        id,
        object: "model",
        created,
        owned_by: "vllm",
        root: id,
        parent: (),
        max_model_len: MODEL_TOKENS_MAX,
        permission: [],
    };
    let list = Models { object: "list", data: engine.options.models.iter().map(model).collect() };
    json_response(serde_json::to_string(&list).unwrap_or_default())
}

async fn metrics_page(State(engine): State<Arc<Engine>>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::page(&engine)).into_response()
}

fn json_response(body: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: (),
}

#[derive(Serialize)]
struct Models<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a String,
    parent: (),
    max_model_len: usize,
    permission: [(); 0],
}
