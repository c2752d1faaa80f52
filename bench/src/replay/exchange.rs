//! One request and its answer.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response};
use tokio::time::Instant;

use super::answer::{Answer, AnswerReader};
use super::failure::{Failure, Kind};
use super::plan::Outgoing;

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Target {
    /// Base address; each request's path is put behind it.
    pub url: String,
    /// The header `authorization`, marked as secret.
    pub authorization: Option<HeaderValue>,
    /// What a request may take in all.
    pub timeout: Duration,
    /// What the header `x-request-id` begins with; the request's number in the trace, from 1, stands behind it.
    pub ids: Option<String>,
}

impl Target {
    /// An address that wants no key and is waited for long.
    pub fn of(url: &str) -> Self {
        Self { url: url.to_owned(), authorization: None, timeout: super::REQUEST_WAIT_MAX, ids: None }
    }
}

/// What came of one request. Times run from when it was due, so that what waits behind a slow answer is counted; who sends
/// as fast as answers come has no such time, and they run from its sending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Its tenant or conversation.
    pub group: Option<String>,
    /// The `x-prefixroute-endpoint` header of the answer.
    pub endpoint: Option<String>,
    /// Status of the answer; none if there was none.
    pub status: Option<u16>,
    /// How long after it was due it was sent.
    pub late: Duration,
    /// To the first event of a stream that has a token; none of other answers.
    pub ttft: Option<Duration>,
    /// To the last byte, or to the failure.
    pub latency: Duration,
    /// Between the events of its stream that have tokens.
    pub gaps: Vec<Duration>,
    /// From the first token to the last, by those that came after the first; none of fewer than two.
    pub tpot: Option<Duration>,
    /// Prompt tokens by the answer's `usage`.
    pub prompt_tokens: Option<u64>,
    /// Of them cached, by the answer's `usage`.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer by its `usage`, else the events that had some.
    pub output_tokens: Option<u64>,
    /// Why it failed, when it did.
    pub failure: Option<Failure>,
}

/// Sends a request of that place in its trace that was due then, and reads its answer to the end.
pub(super) async fn exchange(
    client: &Client,
    target: &Target,
    number: usize,
    outgoing: Outgoing,
    group: Option<String>,
    due: Option<Instant>,
) -> Record {
    let sent = Instant::now();
    let due = due.unwrap_or(sent);
    let mut record = Record { group, late: sent.saturating_duration_since(due), ..Record::default() };
    match request(client, target, number, outgoing).send().await {
        Ok(response) => read(response, due, &mut record).await,
        Err(error) => record.failure = Some(Failure::of(&error, false)),
    }
    record.latency = due.elapsed();
    record
}

fn request(client: &Client, target: &Target, number: usize, outgoing: Outgoing) -> reqwest::RequestBuilder {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = &target.authorization {
        headers.insert(reqwest::header::AUTHORIZATION, key.clone());
    }
    let id = target.ids.as_ref().map(|ids| HeaderValue::try_from(format!("{ids}-{}", number + 1)));
    if let Some(Ok(id)) = id {
        headers.insert("x-request-id", id);
    }
    // A session that is no header goes without: the policy `sticky` then takes the prompt's beginning.
    if let Some(Ok(session)) = outgoing.session.map(HeaderValue::try_from) {
        headers.insert("x-session-id", session);
    }
    let url = format!("{}{}", target.url, outgoing.path);
    client.post(url).timeout(target.timeout).headers(headers).body(outgoing.body)
}

/// Reads an answer to its end.
async fn read(response: Response, due: Instant, record: &mut Record) {
    let status = response.status();
    record.status = Some(status.as_u16());
    record.endpoint = text(&response, "x-prefixroute-endpoint").map(str::to_owned);
    let streamed = text(&response, "content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let mut reader = AnswerReader::new(streamed);
    let mut chunks = response.bytes_stream();
    let mut broken = None;
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(chunk) => reader.push(&chunk, due.elapsed()),
            Err(error) => broken = Some(Failure::of(&error, true)),
        }
    }
    let answer = reader.finish(due.elapsed());
    record.failure = broken.or_else(|| failure(status, &answer));
    take(answer, record);
}

fn text<'a>(response: &'a Response, header: &str) -> Option<&'a str> {
    response.headers().get(header).and_then(|value| value.to_str().ok())
}

fn failure(status: reqwest::StatusCode, answer: &Answer) -> Option<Failure> {
    let said = |text: String| match &answer.error {
        Some(error) => format!("{text}: {error}"),
        None => text,
    };
    if status.is_client_error() || status.is_server_error() {
        return Some(Failure { kind: Kind::Status(status.as_u16()), text: said(format!("status {status}")) });
    }
    if answer.error.is_some() {
        return Some(Failure { kind: Kind::StreamError, text: said("the answer says".to_owned()) });
    }
    let (kind, text) = match answer.streamed {
        true => (Kind::Cut, "the stream ended without saying that it is complete"),
        false => (Kind::NoJson, "an answer that is neither a stream of events nor JSON"),
    };
    (!answer.complete).then(|| Failure { kind, text: text.to_owned() })
}

fn take(answer: Answer, record: &mut Record) {
    let events = answer.first_token.map(|_| answer.gaps.len() as u64 + 1);
    record.output_tokens = answer.usage.and_then(|usage| usage.output_tokens).or(events);
    record.prompt_tokens = answer.usage.map(|usage| usage.prompt_tokens);
    record.cached_tokens = answer.usage.and_then(|usage| usage.cached_tokens);
    record.ttft = answer.first_token;
    let after_first = record.output_tokens.and_then(|tokens| u32::try_from(tokens.saturating_sub(1)).ok());
    let span = answer.last_token.zip(answer.first_token).map(|(last, first)| last - first);
    record.tpot = span.zip(after_first.filter(|tokens| *tokens > 0)).map(|(span, tokens)| span / tokens);
    record.gaps = answer.gaps;
}
