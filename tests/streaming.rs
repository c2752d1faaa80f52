//! Streams pass byte for byte, at once, and no faster than their reader reads.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use harness::script::{STREAM_HEAD, chunk, chunked, last_chunk, write};
use harness::wait::pace;
use harness::wire::Framing;
use harness::{
    Answer, Client, DEADLINE, Response, Router, Setup, Signal, Step, Stub, post, prompts, until, within,
};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/chat/completions";
const MIB: usize = 1 << 20;

async fn fleet_of_one() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    (stub, router)
}

fn request() -> Vec<u8> {
    post(PATH, prompts::with(&prompts::cold(1), r#","stream":true"#))
}

/// Writes, each released when the client has seen the one before: held back bytes end in a time-out.
/// Returns how long each write took to become visible.
async fn each_write_is_seen(writes: &[&[u8]], frame: fn(&[u8]) -> Bytes) -> Vec<Duration> {
    let (stub, router) = fleet_of_one().await;
    let next = Signal::default();
    let steps = writes.iter().flat_map(|bytes| [Step::Wait(next.clone()), Step::Write(frame(bytes))]);
    let steps: Vec<_> = steps.chain([last_chunk()]).collect();
    stub.always(Answer::stream(steps));
    let mut client = Client::connect(router.data).await;
    client.send(request()).await;
    let mut framing = client.head().await.response_framing("POST");
    let mut delays = Vec::new();
    for bytes in writes {
        let released = Instant::now();
        next.fire();
        assert_eq!(client.body_until(&mut framing, bytes).await, *bytes);
        delays.push(released.elapsed());
    }
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
    delays
}

fn assert_prompt(mut delays: Vec<Duration>) {
    delays.sort();
    let median = delays[delays.len() / 2];
    assert!(median < Duration::from_millis(20), "{delays:?}");
}

// D21
#[tokio::test]
async fn split_characters_are_passed_on_as_they_come() {
    let writes: [&[u8]; 8] =
        [b"data: {\"c\":\"", b"\xE4", b"\xBD", b"\xA0", b"\xF0\x9F", b"\x98\x80", b"\"}", b"\n\n"];
    assert_prompt(each_write_is_seen(&writes, |bytes| chunked(bytes)).await);
}

// D21
#[tokio::test]
async fn bytes_that_are_no_utf8_are_passed_on_as_they_come() {
    let writes: [&[u8]; 4] = [b"data: {\"c\":\"", b"\xFF", b"\"}", b"\n\n"];
    assert_prompt(each_write_is_seen(&writes, |bytes| chunked(bytes)).await);
}

/// A head is news of its own, with a length as with chunks.
#[tokio::test]
async fn a_head_is_passed_on_before_its_body() {
    let (stub, router) = fleet_of_one().await;
    let rest = Signal::default();
    let head = write("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
    stub.always(Answer::steps([head, Step::Wait(rest.clone()), write("hello")]));
    let mut client = Client::connect(router.data).await;
    client.send(request()).await;
    let head = within("the head", Duration::from_secs(1), client.head()).await;
    assert_eq!((head.status(), head.header("content-length")), (200, Some("5")), "{head:?}");
    rest.fire();
    assert_eq!(client.body_until(&mut head.response_framing("POST"), b"hello").await, b"hello");
}

/// The cut falls inside a chunk: half a chunk is not held until its end.
#[tokio::test]
async fn half_a_chunk_is_passed_on_before_the_other_half() {
    let (stub, router) = fleet_of_one().await;
    let next = Signal::default();
    let (first, second) = (b"f\r\ndata: \xE4\xBD", b"\xA0 rest\n\r\n");
    stub.always(Answer::stream([write(first), Step::Wait(next.clone()), write(second), last_chunk()]));
    let mut client = Client::connect(router.data).await;
    client.send(request()).await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.body_until(&mut framing, b"\xBD").await, b"data: \xE4\xBD");
    next.fire();
    assert_eq!(client.body_until(&mut framing, b"\n").await, b"\xA0 rest\n");
}

/// Every legal form of the format, in one stream.
fn all_forms() -> Vec<u8> {
    let mut stream = Vec::new();
    for part in [
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n",
        "data: {\"choices\":[]}\r\r",
        "data:x\n\n",
        ": keep-alive\n\n:\n\n",
        "event: message\nid: 7\nretry: 100\ndata: {}\n\n",
        "data: one\ndata: two\n\n",
    ] {
        stream.extend_from_slice(part.as_bytes());
    }
    stream.extend_from_slice(b"data: ");
    stream.extend(std::iter::repeat_n(b'y', 3 * MIB));
    stream.extend_from_slice(
        b"\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"z\"},\"finish_reason\":\"stop\"}]}\n\n",
    );
    stream.extend_from_slice(usage_event("[]").as_bytes());
    stream.extend_from_slice(usage_event("null").as_bytes());
    stream.extend_from_slice(b"data: [DONE]");
    stream
}

fn usage_event(choices: &str) -> String {
    format!(
        "data: {{\"choices\":{choices},\"usage\":{{\"prompt_tokens\":100,\"completion_tokens\":5,\
         \"prompt_tokens_details\":{{\"cached_tokens\":64}}}}}}\n\n"
    )
}

const STREAM_HEADERS: [(&str, &str); 3] = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
];

fn head_with_stream_headers() -> Step {
    let lines: String = STREAM_HEADERS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write(format!("HTTP/1.1 200 OK\r\n{lines}transfer-encoding: chunked\r\n\r\n"))
}

async fn streamed(router: &Router) -> Response {
    Client::connect(router.data).await.exchange(request()).await
}

// D22
#[tokio::test]
async fn every_legal_form_of_an_event_stream_passes_unchanged() {
    let (stub, router) = fleet_of_one().await;
    let stream = all_forms();
    for size in [100, 4096, 1 << 20, stream.len()] {
        let chunks = stream.chunks(size.max(stream.len() / 500)).map(chunk);
        stub.always(Answer::steps(
            [head_with_stream_headers()].into_iter().chain(chunks).chain([last_chunk()]),
        ));
        let response = streamed(&router).await;
        assert!(
            response.body == stream,
            "chunks of {size}: {} of {} bytes",
            response.body.len(),
            stream.len()
        );
        assert_eq!(response.broken, None);
        for (name, value) in STREAM_HEADERS {
            assert_eq!(response.header(name), Some(value));
        }
    }
}

// D22
#[tokio::test]
async fn a_usage_event_cut_anywhere_passes_unchanged() {
    let (stub, router) = fleet_of_one().await;
    let event = usage_event("[]");
    let mut client = Client::connect(router.data).await;
    for cut in 1..event.len() {
        let (first, second) = event.as_bytes().split_at(cut);
        let steps =
            [chunk(first), Step::Pause(Duration::from_millis(1)), chunk(second), chunk("data: [DONE]\n\n")];
        stub.always(Answer::stream(steps.into_iter().chain([last_chunk()])));
        let response = client.exchange(request()).await;
        assert_eq!(response.text(), format!("{event}data: [DONE]\n\n"), "cut at {cut}");
    }
}

// D22
#[tokio::test]
async fn a_missing_done_is_not_invented() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::stream([chunk("data: {}\n\n"), last_chunk()]));
    let response = streamed(&router).await;
    assert_eq!((response.text().as_str(), response.broken), ("data: {}\n\n", None));
}

// D22
#[tokio::test]
async fn a_stream_that_ends_with_the_connection_passes_unchanged() {
    let (stub, router) = fleet_of_one().await;
    let head = STREAM_HEAD.replace("transfer-encoding: chunked\r\n", "");
    stub.always(Answer::steps([write(head), write("data: {}\n\n"), write("data: [DONE]"), Step::Close]));
    let response = streamed(&router).await;
    assert_eq!((response.text().as_str(), response.broken), ("data: {}\n\ndata: [DONE]", None));
}

/// The head of a stream is passed on at once, long before its first event.
#[tokio::test]
async fn the_head_of_a_stream_does_not_wait_for_its_first_event() {
    let (stub, router) = fleet_of_one().await;
    let next = Signal::default();
    stub.always(Answer::stream([Step::Wait(next.clone()), chunk("data: late\n\n"), last_chunk()]));
    let mut client = Client::connect(router.data).await;
    client.send(request()).await;
    let head = client.head().await;
    assert_eq!(head.status(), 200);
    next.fire();
    let mut framing = head.response_framing("POST");
    assert_eq!(client.body_until(&mut framing, b"\n\n").await, b"data: late\n\n");
}

/// Ends when the stubs' output has stood still for half a second; what it came to.
async fn stalled_flood(stub: &Stub) -> usize {
    let last = std::cell::Cell::new((0, Instant::now()));
    until("the flood to stall", Duration::from_secs(30), || async {
        let flooded = stub.seen(|seen| seen.flooded);
        if flooded != last.get().0 {
            last.set((flooded, Instant::now()));
        }
        (flooded > 0 && last.get().1.elapsed() > Duration::from_millis(500)).then_some(flooded)
    })
    .await
}

/// Reads a piece five times a second for as long as the test lasts.
async fn read_slowly(mut client: Client) {
    let mut framing: Framing = client.head().await.response_framing("POST");
    while let Ok(Some(_)) = client.piece(&mut framing).await {
        pace(Duration::from_millis(200)).await;
    }
}

// D24, scaled: 300 MB offered to each of six readers who first read nothing, then little; one reads 64 MB fast.
#[tokio::test]
async fn slow_readers_slow_the_sender_and_nobody_else() {
    let (stub, router) = fleet_of_one().await;
    let event = chunked([b"data: ".as_slice(), &vec![b'x'; 64 << 10], b"\n\n"].concat());
    let flood = |times| Answer::stream([Step::Flood(event.clone(), times), last_chunk()]);
    stub.always(flood(300 * MIB / event.len()));
    let before = router.resident_bytes();
    let mut readers = Vec::new();
    for _ in 0..6 {
        let mut client = Client::connect(router.data).await;
        client.send(request()).await;
        readers.push(client);
    }
    stub.wait("six streams", DEADLINE, |seen| (seen.requests.len() == 6).then_some(())).await;
    let taken = stalled_flood(&stub).await;
    assert!(taken < 6 * 40 * MIB, "the stub could send {} MiB to six readers who do not read", taken / MIB);
    let slow: Vec<_> = readers.into_iter().map(|client| tokio::spawn(read_slowly(client))).collect();
    let fast = 64 * MIB / event.len();
    stub.always(flood(fast));
    let response = streamed(&router).await;
    assert_eq!(response.body.len(), fast * ((64 << 10) + 8), "the fast reader gets everything");
    let grown = router.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB as u64, "resident memory grew by {} MiB", grown / MIB as u64);
    assert!(slow.iter().all(|reader| !reader.is_finished()), "a slow reader was cut off");
    slow.iter().for_each(tokio::task::JoinHandle::abort);
    router.idle().await;
}
