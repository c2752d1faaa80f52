//! Sends a trace to a URL at its own pace and records what came back.
//!
//! Open loop: a request goes out at its time whether or not earlier ones were answered, so a slow server
//! meets the queue that it made. Who served and how well is then read from the records ([`report`]) and from
//! the servers' own counters ([`counters`]).

pub mod counters;
pub mod report;
mod usage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use reqwest::{Client, Response};
use tokio::task::JoinSet;

use crate::trace::TraceRequest;
use usage::UsageFinder;

/// How long a request may take in all.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(600);
/// How long a connection may take to open.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);

/// How a trace is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Where requests go, path included.
    pub url: String,
    /// Whether bodies ask for a stream with usage; those that say `stream` themselves stay as they are.
    pub stream: bool,
}

/// What came of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its tenant.
    pub group: String,
    /// The `x-prefixroute-endpoint` header of the answer.
    pub endpoint: Option<String>,
    /// Status of the answer; none if there was none.
    pub status: Option<u16>,
    /// From sending to the first byte of the body.
    pub ttft: Option<Duration>,
    /// From sending to the last byte, or to the failure.
    pub latency: Duration,
    /// Prompt tokens by the answer's `usage`.
    pub prompt_tokens: Option<u64>,
    /// Of them cached, by the answer's `usage`.
    pub cached_tokens: Option<u64>,
    /// Why it failed, when it did: no answer, a broken one, or a status of 400 and more.
    pub failure: Option<String>,
}

/// Why a trace cannot be sent at all. What befalls single requests is in their records.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The client.
    #[error("cannot make an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// A request's task died.
    #[error("a request was lost: {0}")]
    Lost(#[from] tokio::task::JoinError),
}

/// Sends every request of a trace at its time. Records come in the order of the trace.
///
/// `progress` is called with the number of requests that have ended.
pub async fn send(
    trace: &[TraceRequest],
    options: &ReplayOptions,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Record>, ReplayError> {
    let client = client()?;
    let url: Arc<str> = options.url.as_str().into();
    let start = tokio::time::Instant::now();
    let mut requests = JoinSet::new();
    let mut records = vec![None; trace.len()];
    for (number, request) in trace.iter().enumerate() {
        let body = if options.stream { streaming(&request.body) } else { request.body.clone() };
        let due = start + request.at.to_duration();
        while let Ok(Some(ended)) = tokio::time::timeout_at(due, requests.join_next()).await {
            keep(ended?, &mut records, progress);
        }
        tokio::time::sleep_until(due).await;
        let (client, url, group) = (client.clone(), Arc::clone(&url), request.group.clone());
        requests.spawn(async move { (number, exchange(&client, &url, group, body).await) });
    }
    while let Some(ended) = requests.join_next().await {
        keep(ended?, &mut records, progress);
    }
    Ok(records.into_iter().flatten().collect())
}

/// A client that goes straight to the address it is given, whatever proxy the environment names.
pub fn client() -> Result<Client, reqwest::Error> {
    Client::builder().no_proxy().connect_timeout(CONNECT_WAIT_MAX).timeout(REQUEST_WAIT_MAX).build()
}

fn keep(ended: (usize, Record), records: &mut [Option<Record>], progress: &(dyn Fn(usize) + Sync)) {
    let (number, record) = ended;
    records[number] = Some(record);
    progress(records.iter().flatten().count());
}

/// A body that asks for a stream with usage; the rest of its bytes as they were.
fn streaming(body: &str) -> String {
    let asks =
        serde_json::from_str::<serde_json::Map<_, _>>(body).is_ok_and(|body| body.contains_key("stream"));
    match body.trim_end().strip_suffix('}') {
        Some(open) if !asks => {
            let comma = if open.trim_end().ends_with('{') { "" } else { "," };
            format!("{open}{comma}\"stream\":true,\"stream_options\":{{\"include_usage\":true}}}}")
        }
        _ => body.to_owned(),
    }
}

async fn exchange(client: &Client, url: &str, group: String, body: String) -> Record {
    let sent = Instant::now();
    let mut record = Record {
        group,
        endpoint: None,
        status: None,
        ttft: None,
        latency: Duration::ZERO,
        prompt_tokens: None,
        cached_tokens: None,
        failure: None,
    };
    let request = client.post(url).header("content-type", "application/json").body(body);
    let answered = match request.send().await {
        Ok(response) => read(response, sent, &mut record).await,
        Err(error) => Err(error),
    };
    record.latency = sent.elapsed();
    if let Err(error) = answered {
        record.failure = Some(with_causes(&error));
    }
    record
}

/// Reads an answer to its end.
async fn read(response: Response, sent: Instant, record: &mut Record) -> Result<(), reqwest::Error> {
    let status = response.status();
    record.status = Some(status.as_u16());
    let endpoint = response.headers().get("x-prefixroute-endpoint");
    record.endpoint = endpoint.and_then(|name| name.to_str().ok()).map(str::to_owned);
    let mut usage = UsageFinder::default();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        record.ttft.get_or_insert_with(|| sent.elapsed());
        usage.push(&chunk);
    }
    let usage = usage.finish();
    record.prompt_tokens = usage.map(|usage| usage.prompt_tokens);
    record.cached_tokens = usage.map(|usage| usage.cached_tokens);
    if status.is_client_error() || status.is_server_error() {
        record.failure = Some(format!("status {status}"));
    }
    Ok(())
}

/// An error and what is behind it, in a line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::streaming;

    #[test]
    fn a_body_is_made_to_stream_once() {
        let options = r#""stream":true,"stream_options":{"include_usage":true}}"#;
        for (body, want) in [
            (r#"{"a":1}"#, format!(r#"{{"a":1,{options}"#)),
            ("{ }\n", format!("{{ {options}")),
            (r#"{"stream":false}"#, r#"{"stream":false}"#.to_owned()),
            ("[1]", "[1]".to_owned()),
        ] {
            assert_eq!(streaming(body), want);
        }
    }
}
