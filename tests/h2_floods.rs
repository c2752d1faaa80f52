//! Floods of HTTP/2 frames: the connection that sends one ends or waits, others and the router's memory do not notice.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::{Answer, DEADLINE, H2Client, Router, Setup, Stub, h2_client, prompts, within};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// RFC 9113, 7.
const ENHANCE_YOUR_CALM: u32 = 11;
/// GET http://x/ by the static table of HPACK, with a literal authority.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x41, 0x01, b'x'];
/// The same as a POST.
const POST: &[u8] = &[0x83, 0x86, 0x84, 0x41, 0x01, b'x'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [head.as_slice(), payload].concat()
}

/// A connection whose frames the test writes itself.
async fn connect(router: &Router) -> TcpStream {
    let mut stream = TcpStream::connect(router.h2c).await.unwrap();
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    stream.write_all(&preface).await.unwrap();
    stream
}

/// The code of the GOAWAY that ends a connection; none where it ends without one.
async fn ending(stream: &mut TcpStream) -> Option<u32> {
    let mut seen = Vec::new();
    // A reset may follow.
    let _ = within("the end of the connection", DEADLINE, stream.read_to_end(&mut seen)).await;
    let mut rest = seen.as_slice();
    let mut code = None;
    while let [a, b, c, kind, _, _, _, _, _, ..] = *rest {
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap();
        let Some(payload) = rest.get(9..9 + length) else { break };
        if kind == GOAWAY {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        rest = &rest[9 + length..];
    }
    code
}

async fn start() -> (Stub, Router) {
    let stub = Stub::answering(Answer::json(200, "{}")).await;
    let router = Setup::of(&[&stub]).yaml("timeouts: {keep_alive: 2s}").start().await;
    (stub, router)
}

/// Whether another client's request is served while the flood lasts, and memory has not followed it.
async fn unharmed(router: &Router, before: u64) {
    let client = H2Client::connect(router.h2c).await;
    assert_eq!(client.post(CHAT, prompts::chat("hi"), true).await.status(), 200);
    let grown = router.resident_bytes().saturating_sub(before) >> 20;
    assert!(grown < 48, "{grown} MiB more");
}

/// CVE-2023-44487.
#[tokio::test]
async fn streams_that_are_reset_at_once_end_their_connection() {
    let (stub, router) = start().await;
    let before = router.resident_bytes();
    let mut stream = connect(&router).await;
    let mut flood = Vec::new();
    for number in 0..10_000u32 {
        flood.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, GET));
        flood.extend(frame(RST_STREAM, 0, 2 * number + 1, &8u32.to_be_bytes()));
    }
    // It may be cut before all has been taken.
    let _ = within("the flood to be taken or cut", DEADLINE, stream.write_all(&flood)).await;
    let code = ending(&mut stream).await;
    assert!([Some(ENHANCE_YOUR_CALM), None].contains(&code), "{code:?}");
    unharmed(&router, before).await;
    router.idle().await;
    assert!(stub.count() < 10_000 / 4, "{} of 10,000 reached the engine", stub.count());
}

/// CVE-2024-27316.
#[tokio::test]
async fn a_head_of_endless_continuations_ends_its_connection() {
    let (stub, router) = start().await;
    let before = router.resident_bytes();
    let mut stream = connect(&router).await;
    stream.write_all(&frame(HEADERS, END_STREAM, 1, GET)).await.unwrap();
    // A literal header without indexing, of 8,000 bytes.
    let header = [&[0x00, 0x01, b'a', 0x7f, 0xc1, 0x3d][..], &[b'b'; 8000]].concat();
    let more = frame(CONTINUATION, 0, 1, &header);
    let flood = async { while stream.write_all(&more).await.is_ok() {} };
    within("the flood to be cut", DEADLINE, flood).await;
    unharmed(&router, before).await;
    assert_eq!(stub.count(), 1, "the other client's");
}

/// A head that never ends is no stream yet, so its connection counts as silent.
#[tokio::test]
async fn a_head_whose_continuations_come_in_drips_ends_with_its_connection() {
    let (stub, router) = start().await;
    let mut stream = connect(&router).await;
    stream.write_all(&frame(HEADERS, END_STREAM, 1, GET)).await.unwrap();
    let drips = async {
        while stream.write_all(&frame(CONTINUATION, 0, 1, &[0x00, 0x01, b'a', 0x01, b'b'])).await.is_ok() {
            harness::wait::pace(Duration::from_millis(200)).await;
        }
    };
    within("the connection to be closed", DEADLINE, drips).await;
    assert_eq!(stub.count(), 0);
}

/// Whose answers nobody reads: the flood comes to a halt, or its connection to an end.
#[tokio::test]
async fn pings_and_settings_whose_answers_nobody_reads_take_no_memory() {
    let (_stub, router) = start().await;
    for one in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[]), frame(DATA, 0, 1, &[])] {
        let before = router.resident_bytes();
        let mut stream = connect(&router).await;
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, POST)).await.unwrap();
        let flood = one.repeat(4096);
        let sent = async {
            for _ in 0..100 {
                if stream.write_all(&flood).await.is_err() {
                    return;
                }
            }
        };
        // Held up for good is as well as cut.
        let _ = tokio::time::timeout(Duration::from_secs(2), sent).await;
        unharmed(&router, before).await;
    }
}

/// A client that has its streams refused, over and over.
#[tokio::test]
async fn refused_streams_are_counted_and_end_their_connection() {
    let (stub, router) = start().await;
    let mut stream = connect(&router).await;
    let mut flood = Vec::new();
    // More than are forgiven, and few enough to be read whole before the end, which a reset would overtake.
    for number in 0..200u32 {
        // A body longer than its content-length is an error of the stream.
        flood.extend(frame(
            HEADERS,
            END_HEADERS,
            2 * number + 1,
            &[POST, &[0x0f, 0x0d, 0x01, b'1']].concat(),
        ));
        flood.extend(frame(DATA, 0, 2 * number + 1, b"{}"));
    }
    let _ = within("the flood to be taken or cut", DEADLINE, stream.write_all(&flood)).await;
    assert_eq!(ending(&mut stream).await, Some(ENHANCE_YOUR_CALM));
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn one_connection_has_no_more_than_100_streams_at_once() {
    let stub = Stub::answering(Answer::steps([harness::Step::Hang])).await;
    let router = Setup::of(&[&stub]).start().await;
    let mut stream = connect(&router).await;
    for number in 0..150u32 {
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, GET)).await.unwrap();
    }
    stub.wait("100 requests", DEADLINE, |seen| (seen.requests.len() >= 100).then_some(())).await;
    let other = H2Client::connect(router.h2c).await;
    let _stream = other.start(h2_client::post_request(CHAT, None), true).await;
    stub.wait("another's request", DEADLINE, |seen| (seen.requests.len() >= 101).then_some(())).await;
    assert_eq!(stub.count(), 101);
}
