//! A client that goes away stops the engine, at any moment and in any manner (D23).
//!
//! The stub is silent meanwhile, so only a router that watches its client can notice. The bar is one second;
//! a failure reports what was measured.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use h2::RecvStream;
use harness::client::post_head;
use harness::h2_client::{H2Stream, SendBody, piece, post_request, response_head};
use harness::script::chunk;
use harness::wire::Framing;
use harness::{Answer, Client, H2Client, Router, Setup, Step, Stub, post, prompts, within};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/chat/completions";
const BAR: Duration = Duration::from_secs(1);

/// How the client goes.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Fin,
    Rst,
    H2Reset,
    H2Drop,
}

/// When it goes.
#[derive(Clone, Copy, Debug)]
enum Phase {
    BeforeTheFirstByte { stream: bool },
    Midstream,
}

/// A client with a request under way.
enum Waiting {
    H1(Client),
    H2(H2Client, H2Stream),
    H2Midstream(H2Client, RecvStream),
}

fn body(phase: Phase) -> String {
    match phase {
        Phase::BeforeTheFirstByte { stream: false } => prompts::cold(1),
        _ => prompts::with(&prompts::cold(1), r#","stream":true"#),
    }
}

fn silent_after(phase: Phase) -> Answer {
    match phase {
        Phase::BeforeTheFirstByte { .. } => Answer::steps([Step::Hang]),
        Phase::Midstream => Answer::stream([chunk("data: first\n\n"), Step::Hang]),
    }
}

async fn ask(router: &Router, leave: Leave, phase: Phase) -> Waiting {
    match leave {
        Leave::Fin | Leave::Rst => {
            let mut client = Client::connect(router.data).await;
            client.send(post(PATH, body(phase))).await;
            if let Phase::Midstream = phase {
                let mut framing = client.head().await.response_framing("POST");
                client.body_until(&mut framing, b"\n\n").await;
            }
            Waiting::H1(client)
        }
        Leave::H2Reset | Leave::H2Drop => ask_over_h2(router, phase).await,
    }
}

async fn ask_over_h2(router: &Router, phase: Phase) -> Waiting {
    let client = H2Client::connect(router.h2c).await;
    let body = Bytes::from(body(phase));
    let mut stream = client.start(post_request(PATH, Some(body.len())), false).await;
    stream.body.send(body, true).await.unwrap();
    match phase {
        Phase::BeforeTheFirstByte { .. } => Waiting::H2(client, stream),
        Phase::Midstream => {
            let (_, mut received) = response_head(stream.response).await;
            piece(&mut received).await.unwrap().unwrap();
            Waiting::H2Midstream(client, received)
        }
    }
}

/// The client goes. Returns what must live on for the manner to be what it says.
fn go(waiting: Waiting, leave: Leave) -> Option<H2Client> {
    match (waiting, leave) {
        (Waiting::H1(client), Leave::Rst) => client.reset(),
        (Waiting::H1(client), _) => client.close(),
        (Waiting::H2(client, mut stream), Leave::H2Reset) => {
            stream.body.send_reset(h2::Reason::CANCEL);
            return Some(client);
        }
        // Dropping the last handle of a stream under way sends RST_STREAM.
        (Waiting::H2Midstream(client, received), Leave::H2Reset) => {
            drop(received);
            return Some(client);
        }
        (Waiting::H2(client, _) | Waiting::H2Midstream(client, _), _) => client.drop_connection(),
    }
    None
}

async fn stops_the_engine(leave: Leave, phase: Phase) {
    let stub = Stub::answering(silent_after(phase)).await;
    let router = Setup::of(&[&stub]).start().await;
    let waiting = ask(&router, leave, phase).await;
    stub.request(0).await;
    router.sees("a", "in_flight", 1).await;
    let left = Instant::now();
    let kept = go(waiting, leave);
    let seen = stub.abandoned(0, Duration::from_secs(8)).await;
    let measured = seen.duration_since(left);
    assert!(measured < BAR, "{leave:?} {phase:?}: the stub saw the close after {measured:?}");
    router.idle().await;
    stub.always(Answer::json(200, "{}"));
    assert_eq!(router.chat(prompts::cold(2)).await.status(), 200, "a following request");
    assert_eq!(
        router.endpoint("a").await["usable"],
        true,
        "a client's leaving is no failure of the endpoint"
    );
    drop(kept);
}

const PLAIN: Phase = Phase::BeforeTheFirstByte { stream: false };
const STREAM: Phase = Phase::BeforeTheFirstByte { stream: true };

#[tokio::test]
async fn fin_before_the_first_byte() {
    stops_the_engine(Leave::Fin, PLAIN).await;
}

#[tokio::test]
async fn fin_before_the_first_byte_of_a_stream() {
    stops_the_engine(Leave::Fin, STREAM).await;
}

#[tokio::test]
async fn fin_midstream() {
    stops_the_engine(Leave::Fin, Phase::Midstream).await;
}

#[tokio::test]
async fn rst_before_the_first_byte() {
    stops_the_engine(Leave::Rst, PLAIN).await;
}

#[tokio::test]
async fn rst_before_the_first_byte_of_a_stream() {
    stops_the_engine(Leave::Rst, STREAM).await;
}

#[tokio::test]
async fn rst_midstream() {
    stops_the_engine(Leave::Rst, Phase::Midstream).await;
}

#[tokio::test]
async fn http2_stream_reset_before_the_first_byte() {
    stops_the_engine(Leave::H2Reset, PLAIN).await;
}

#[tokio::test]
async fn http2_stream_reset_before_the_first_byte_of_a_stream() {
    stops_the_engine(Leave::H2Reset, STREAM).await;
}

#[tokio::test]
async fn http2_stream_reset_midstream() {
    stops_the_engine(Leave::H2Reset, Phase::Midstream).await;
}

#[tokio::test]
async fn http2_connection_drop_before_the_first_byte() {
    stops_the_engine(Leave::H2Drop, PLAIN).await;
}

#[tokio::test]
async fn http2_connection_drop_before_the_first_byte_of_a_stream() {
    stops_the_engine(Leave::H2Drop, STREAM).await;
}

#[tokio::test]
async fn http2_connection_drop_midstream() {
    stops_the_engine(Leave::H2Drop, Phase::Midstream).await;
}

/// Another stream of the same connection lives on when one is reset.
#[tokio::test]
async fn an_http2_stream_reset_leaves_its_neighbours_alone() {
    let stub = Stub::answering(silent_after(PLAIN)).await;
    let router = Setup::of(&[&stub]).start().await;
    let Waiting::H2(client, mut stream) = ask_over_h2(&router, PLAIN).await else { panic!("no stream") };
    stub.request(0).await;
    stub.always(Answer::json(200, "{}"));
    stream.body.send_reset(h2::Reason::CANCEL);
    stub.abandoned(0, BAR).await;
    assert_eq!(client.post(PATH, prompts::cold(2), true).await.status(), 200);
}

/// During an upload the endpoint has not been asked at all, or sees its connection close.
async fn gone_during_upload(leave: Leave) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let half = Bytes::from(prompts::chat_of_size(1, 5 << 20)).slice(..2 << 20);
    match leave {
        Leave::Fin | Leave::Rst => {
            let mut client = Client::connect(router.data).await;
            client.send(post_head(PATH, "content-length: 5242880\r\n")).await;
            client.send(half).await;
            go(Waiting::H1(client), leave);
        }
        Leave::H2Reset | Leave::H2Drop => {
            let client = H2Client::connect(router.h2c).await;
            let mut stream = client.start(post_request(PATH, Some(5 << 20)), false).await;
            stream.body.send(half, false).await.unwrap();
            go(Waiting::H2(client, stream), leave);
        }
    }
    router.idle().await;
    if stub.count() > 0 {
        stub.abandoned(0, BAR).await;
    }
    assert_eq!(router.chat(prompts::cold(2)).await.status(), 200, "a following request");
    router.idle().await;
}

#[tokio::test]
async fn fin_during_upload() {
    gone_during_upload(Leave::Fin).await;
}

#[tokio::test]
async fn rst_during_upload() {
    gone_during_upload(Leave::Rst).await;
}

#[tokio::test]
async fn http2_stream_reset_during_upload() {
    gone_during_upload(Leave::H2Reset).await;
}

#[tokio::test]
async fn http2_connection_drop_during_upload() {
    gone_during_upload(Leave::H2Drop).await;
}

/// A half-close counts as gone, as it does for vLLM itself (`fixtures/SOURCES.md`).
#[tokio::test]
async fn a_half_closed_client_counts_as_gone() {
    let stub = Stub::answering(silent_after(PLAIN)).await;
    let router = Setup::of(&[&stub]).start().await;
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, prompts::cold(1))).await;
    stub.request(0).await;
    client.half_close().await;
    stub.abandoned(0, BAR).await;
}

/// The belief of a request whose client left before the first byte is withdrawn or kept, but load is not:
/// many leavers leave nothing behind.
#[tokio::test]
async fn a_hundred_leavers_leave_nothing_in_flight() {
    let stub = Stub::answering(silent_after(PLAIN)).await;
    let router = Setup::of(&[&stub]).start().await;
    for seed in 0..100 {
        let mut client = Client::connect(router.data).await;
        client.send(post(PATH, prompts::cold(seed))).await;
        if seed % 2 == 0 { client.close() } else { client.reset() }
    }
    router.idle().await;
    let open = |seen: &harness::log::Seen| seen.requests.iter().filter(|one| one.abandoned.is_none()).count();
    stub.wait("every connection to close", BAR, |seen| (open(seen) == 0).then_some(())).await;
}

/// Behind a pipelined request, and with an engine that writes meanwhile.
#[tokio::test]
async fn a_client_gone_while_the_engine_streams_is_noticed_by_the_writes() {
    let ticks = (0..400).flat_map(|_| [chunk("data: tick\n\n"), Step::Pause(Duration::from_millis(20))]);
    let stub = Stub::answering(Answer::stream(ticks)).await;
    let router = Setup::of(&[&stub]).start().await;
    let mut client = Client::connect(router.data).await;
    client.send([post(PATH, prompts::cold(1)), harness::get("/v1/models")].concat()).await;
    let mut framing: Framing = client.head().await.response_framing("POST");
    within("the first event", BAR, client.piece(&mut framing)).await.unwrap();
    client.reset();
    stub.abandoned(0, BAR).await;
    router.idle().await;
}

/// Bytes of a next request, as many as fit a buffer, or more than the router sets aside, lie between it and the client's leaving.
async fn gone_behind_a_next_request(leave: Leave) {
    // Behind more than is set aside a reset shows, and an end only if the system had room for what lies before it.
    let sizes: &[usize] = match leave {
        Leave::Rst => &[4 << 10, 64 << 10, 300 << 10],
        _ => &[4 << 10, 64 << 10],
    };
    for &size in sizes {
        let stub = Stub::answering(silent_after(PLAIN)).await;
        let router = Setup::of(&[&stub]).start().await;
        let mut client = Client::connect(router.data).await;
        client.send(post(PATH, prompts::cold(1))).await;
        stub.request(0).await;
        client.send(post(PATH, prompts::chat_of_size(2, size))).await;
        let left = Instant::now();
        go(Waiting::H1(client), leave);
        let measured = stub.abandoned(0, Duration::from_secs(8)).await.duration_since(left);
        assert!(measured < BAR, "{leave:?} behind {size} bytes: the stub saw the close after {measured:?}");
        router.idle().await;
        assert_eq!(stub.count(), 1, "{leave:?}: nobody waits for the next request");
    }
}

#[tokio::test]
async fn fin_behind_a_next_request() {
    gone_behind_a_next_request(Leave::Fin).await;
}

#[tokio::test]
async fn rst_behind_a_next_request() {
    gone_behind_a_next_request(Leave::Rst).await;
}
