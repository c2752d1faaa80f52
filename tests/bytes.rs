//! The bytes are the client's: what a real engine said arrives as it said it, what a client sent likewise.
//!
//! The stub replays wire recordings of vLLM 0.32 (`fixtures/SOURCES.md`). Compared are status, body and every
//! end-to-end header in order and case; `date`, hop-by-hop headers and the router's own three are left out.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use harness::fixtures::{Recorded, recorded};
use harness::script::write;
use harness::wire::{Framing, Head, Reader};
use harness::{Answer, Client, H2Client, Response, Router, Setup, Step, Stub};
use std::time::Duration;

/// Between the ends of one connection only; `date` may be made anew by a proxy.
const NOT_END_TO_END: [&str; 9] = [
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-connection",
    "date",
    "expect",
];

async fn fleet_of_one() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    (stub, router)
}

fn end_to_end(head: &Head) -> Vec<(String, String)> {
    let kept = |name: &str| {
        let lower = name.to_lowercase();
        !NOT_END_TO_END.contains(&lower.as_str()) && !lower.starts_with("x-prefixroute-")
    };
    head.headers.iter().filter(|(name, _)| kept(name)).cloned().collect()
}

/// Head and decoded body of a recording.
async fn decoded(recording: &[u8], framing: impl Fn(&Head) -> Framing) -> (Head, Bytes) {
    let mut reader = Reader::new(recording);
    let head = reader.head().await.unwrap().unwrap();
    let (body, fault) = reader.body(framing(&head)).await;
    assert!(fault.is_none(), "a recording is whole: {fault:?}");
    (head, body)
}

/// The recorded response in writes of `size` bytes, and a close where the engine closed.
fn replay(response: &[u8], size: usize) -> Answer {
    let closes = Head::parse(response).header("connection") == Some("close");
    let writes = response.chunks(size).map(write);
    Answer::steps(writes.chain(closes.then_some(Step::Close)))
}

/// What differs between the recording and what came through, if anything.
async fn difference(pair: &Recorded, response: &Response, stub: &Stub) -> Option<String> {
    let (sent_head, sent_body) = decoded(&pair.request, Head::request_framing).await;
    let (head, body) = decoded(&pair.response, |head| head.response_framing(sent_head.method())).await;
    let upstream = stub.last();
    let faults = [
        (response.status() != head.status()).then(|| format!("status {}", response.status())),
        response.broken.clone(),
        (response.body != body).then(|| format!("response body {:?}", response.text())),
        (upstream.body != sent_body).then(|| format!("request body {:?}", upstream.body)),
        (upstream.head.method() != sent_head.method()).then(|| upstream.head.first_line.clone()),
        (upstream.head.target() != sent_head.target()).then(|| upstream.head.first_line.clone()),
        headers_differ(&end_to_end(&head), response),
    ];
    let faults: Vec<_> = faults.into_iter().flatten().collect();
    (!faults.is_empty()).then(|| format!("{}: {}", pair.name, faults.join("; ")))
}

/// Over HTTP/2 names are lower case and their order is free.
fn headers_differ(recorded: &[(String, String)], response: &Response) -> Option<String> {
    let mut wanted = recorded.to_vec();
    let mut found = end_to_end(&response.head);
    if response.head.first_line.starts_with("HTTP/2") {
        wanted.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
        wanted.sort();
        found.sort();
    }
    (found != wanted).then(|| format!("headers {found:?}, wanted {wanted:?}"))
}

fn report(folder: &str, pairs: usize, faults: &[String]) {
    assert!(pairs > 20, "{folder} has only {pairs} pairs");
    assert!(faults.is_empty(), "{} of {pairs} in {folder}:\n{}", faults.len(), faults.join("\n"));
}

async fn replay_folder(folder: &str, write_size: usize) {
    let (stub, router) = fleet_of_one().await;
    let pairs = recorded(folder);
    let mut faults = Vec::new();
    for pair in &pairs {
        stub.always(replay(&pair.response, write_size));
        let response = Client::connect(router.data).await.exchange(&pair.request).await;
        faults.extend(difference(pair, &response, &stub).await);
    }
    report(folder, pairs.len(), &faults);
}

async fn replay_folder_over_h2(folder: &str) {
    let (stub, router) = fleet_of_one().await;
    let client = H2Client::connect(router.h2c).await;
    let pairs = recorded(folder);
    let mut faults = Vec::new();
    for pair in &pairs {
        stub.always(replay(&pair.response, usize::MAX));
        let (head, body) = decoded(&pair.request, Head::request_framing).await;
        let response = client.exchange(h2_request(&head), body).await;
        faults.extend(difference(pair, &response, &stub).await);
    }
    report(folder, pairs.len(), &faults);
}

fn h2_request(head: &Head) -> http::Request<()> {
    let uri = format!("http://router{}", head.target());
    let mut request = http::Request::builder().method(head.method()).uri(uri);
    for (name, value) in end_to_end(head).into_iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
        request = request.header(name, value);
    }
    request.body(()).unwrap()
}

#[tokio::test]
async fn every_api_response_arrives_byte_for_byte() {
    replay_folder("vllm/http", usize::MAX).await;
}

#[tokio::test]
async fn every_response_of_the_other_server_arrives_byte_for_byte() {
    replay_folder("vllm/http_variant", usize::MAX).await;
}

#[tokio::test]
async fn every_malformed_request_is_forwarded_and_the_engines_own_error_comes_back() {
    replay_folder("vllm/errors", usize::MAX).await;
}

#[tokio::test]
async fn responses_cut_into_small_writes_arrive_byte_for_byte() {
    replay_folder("vllm/http", 13).await;
}

#[tokio::test]
async fn every_api_response_arrives_byte_for_byte_over_http2() {
    replay_folder_over_h2("vllm/http").await;
}

#[tokio::test]
async fn every_engine_error_arrives_byte_for_byte_over_http2() {
    replay_folder_over_h2("vllm/errors").await;
}

/// The conversation on one connection: no response leaves a byte behind for the next.
#[tokio::test]
async fn responses_follow_each_other_on_one_connection() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    let mut faults = Vec::new();
    for pair in recorded("vllm/http").iter().filter(|pair| pair.name != "chat_http10") {
        stub.always(replay(&pair.response, usize::MAX));
        let response = client.exchange(&pair.request).await;
        faults.extend(difference(pair, &response, &stub).await);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// An event is passed on when it comes, not when the next one does.
#[tokio::test]
async fn a_streamed_event_is_seen_before_the_next_is_sent() {
    let (stub, router) = fleet_of_one().await;
    let next = harness::Signal::default();
    let event = |text: &str| harness::script::chunk(format!("data: {text}\n\n"));
    let steps = [event("one"), Step::Wait(next.clone()), event("two"), Step::Wait(next.clone())];
    stub.always(Answer::stream(steps.into_iter().chain([harness::script::last_chunk()])));
    let mut client = Client::connect(router.data).await;
    client.send(harness::post("/v1/chat/completions", harness::prompts::cold(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.body_until(&mut framing, b"\n\n").await, b"data: one\n\n");
    next.fire();
    assert_eq!(client.body_until(&mut framing, b"\n\n").await, b"data: two\n\n");
    next.fire();
    let end = harness::within("the end", Duration::from_secs(5), client.piece(&mut framing)).await;
    assert!(end.unwrap().is_none());
}
