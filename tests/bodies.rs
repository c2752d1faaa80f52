//! Request bodies of every size, framing and protocol, in front of endpoints of every temper.
//!
//! Frameworks that replay bodies from a bounded buffer hang above 64 KiB; the sizes straddle that. Where the
//! first endpoint may have started to generate there is no second generation: the client gets a 502 and the
//! second endpoint sees nothing.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use harness::client::post_head;
use harness::h2_client::{SendBody, piece, post_request, response_head};
use harness::script::{STREAM_HEAD, chunk, write};
use harness::upload::{Upload, upload};
use harness::wait::pace;
use harness::{Answer, Client, H2Client, Load, Router, Setup, Signal, Step, Stub, post, prompts};
use std::time::Duration;
use tokio::task::JoinSet;

const PATH: &str = "/v1/chat/completions";
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const SIZES: [usize; 6] = [KIB, 64 * KIB, 64 * KIB + 1, 100 * KIB, 5 * MIB, 31 * MIB];
/// For the misbehaving endpoints: below and above every buffer in between.
const SOME_SIZES: [usize; 3] = [KIB, 100 * KIB, 5 * MIB];

/// Two stubs, `a` the better choice for a cold prompt. Scraped once, so that the router cannot learn
/// from a scrape what the request is to find out.
async fn fleet() -> (Stub, Stub, Router) {
    let (a, b) = (Stub::start().await, Stub::start().await);
    b.load(Load::waiting(50.0));
    let load = "load:\n  scrape_interval: 60s\n  stale_after: 120s\n";
    let router = Setup::of(&[&a, &b]).pool(load).start().await;
    (a, b, router)
}

/// Every size, each in front of a fresh fleet: what was learnt from one refusal would spare the next.
async fn matrix(how: Upload, first_refuses: bool) {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let (a, b, router) = fleet().await;
        if first_refuses {
            a.refuse().await;
        }
        let body = prompts::chat_of_size(seed as u64, size);
        let response = upload(&router, how, &body).await;
        assert_eq!(response.status(), 200, "{how:?} {size}: {response:?}");
        let (served, name) = if first_refuses { (&b, "b") } else { (&a, "a") };
        assert_eq!(response.endpoint(), name, "{how:?} {size}");
        let received = served.request(0).await;
        assert!(received.body == body, "{how:?} {size}: {} bytes came, other ones", received.body.len());
        assert_eq!(received.head.header("expect"), None, "{how:?} {size}");
        assert_eq!(a.count() + b.count(), 1, "{how:?} {size}: one request in all");
        router.idle().await;
    }
}

#[tokio::test]
async fn bodies_with_a_length_arrive_whole() {
    matrix(Upload::Length, false).await;
}

#[tokio::test]
async fn bodies_with_a_length_go_on_when_the_first_endpoint_refuses() {
    matrix(Upload::Length, true).await;
}

#[tokio::test]
async fn chunked_bodies_arrive_whole() {
    matrix(Upload::Chunked, false).await;
}

#[tokio::test]
async fn chunked_bodies_go_on_when_the_first_endpoint_refuses() {
    matrix(Upload::Chunked, true).await;
}

#[tokio::test]
async fn bodies_behind_expect_arrive_whole() {
    matrix(Upload::Expect, false).await;
}

#[tokio::test]
async fn bodies_behind_expect_go_on_when_the_first_endpoint_refuses() {
    matrix(Upload::Expect, true).await;
}

#[tokio::test]
async fn http2_bodies_with_a_length_arrive_whole() {
    matrix(Upload::H2Length, false).await;
}

#[tokio::test]
async fn http2_bodies_with_a_length_go_on_when_the_first_endpoint_refuses() {
    matrix(Upload::H2Length, true).await;
}

#[tokio::test]
async fn http2_bodies_without_a_length_arrive_whole() {
    matrix(Upload::H2Open, false).await;
}

#[tokio::test]
async fn http2_bodies_without_a_length_go_on_when_the_first_endpoint_refuses() {
    matrix(Upload::H2Open, true).await;
}

/// The first endpoint takes the request and breaks before a byte: 502, and the second is not asked.
async fn no_second_generation(how: Upload, first: Answer) {
    for (seed, size) in SOME_SIZES.into_iter().enumerate() {
        let (a, b, router) = fleet().await;
        a.always(first.clone());
        let response = upload(&router, how, &prompts::chat_of_size(seed as u64, size)).await;
        response.assert_router_error(502);
        assert_eq!((a.count(), b.count()), (1, 0), "{how:?} {size}: requests at a and at b");
        router.idle().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_closes_without_a_byte_gives_502_and_no_second_generation() {
    no_second_generation(Upload::Length, Answer::steps([Step::Close])).await;
}

#[tokio::test]
async fn an_endpoint_that_closes_without_a_byte_gives_502_and_no_second_generation_over_http2() {
    no_second_generation(Upload::H2Length, Answer::steps([Step::Close])).await;
}

#[tokio::test]
async fn an_endpoint_that_closes_after_the_head_gives_502_and_no_second_generation() {
    no_second_generation(Upload::Length, Answer::steps([Step::Close]).head_only()).await;
}

#[tokio::test]
async fn an_endpoint_that_closes_after_the_head_gives_502_and_no_second_generation_over_http2() {
    no_second_generation(Upload::H2Length, Answer::steps([Step::Close]).head_only()).await;
}

#[tokio::test]
async fn an_endpoint_that_resets_after_reading_gives_502_and_no_second_generation() {
    no_second_generation(Upload::Length, Answer::steps([Step::Reset])).await;
}

#[tokio::test]
async fn an_endpoint_that_resets_after_reading_gives_502_and_no_second_generation_over_http2() {
    no_second_generation(Upload::H2Length, Answer::steps([Step::Reset])).await;
}

const HALF: &str = "data: half\n\n";

/// Half an answer, and after the signal a death.
fn half(head: &str, half: Step, death: Step, dies: &Signal) -> Answer {
    Answer::steps([write(head), half, Step::Wait(dies.clone()), death])
}

fn half_a_stream(death: Step, dies: &Signal) -> Answer {
    half(STREAM_HEAD, chunk(HALF), death, dies)
}

fn half_a_length(death: Step, dies: &Signal) -> Answer {
    half("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", write(HALF), death, dies)
}

/// A response that breaks in its middle is seen to be broken; the second endpoint is not asked.
async fn visibly_broken(first: impl FnOnce(&Signal) -> Answer) {
    let (a, b, router) = fleet().await;
    let dies = Signal::default();
    a.always(first(&dies));
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, prompts::cold(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    assert_eq!(client.body_until(&mut framing, b"\n\n").await, HALF.as_bytes());
    dies.fire();
    let end = client.piece(&mut framing).await;
    assert!(end.is_err(), "a broken response looks whole: {end:?}");
    assert_eq!((a.count(), b.count()), (1, 0), "requests at a and at b");
    router.idle().await;
}

/// The same over HTTP/2, where a stream error shows it.
async fn visibly_broken_over_http2(first: impl FnOnce(&Signal) -> Answer) {
    let (a, b, router) = fleet().await;
    let dies = Signal::default();
    a.always(first(&dies));
    let client = H2Client::connect(router.h2c).await;
    let mut stream = client.start(post_request(PATH, None), false).await;
    stream.body.send(prompts::cold(1).into(), true).await.unwrap();
    let (_, mut body) = response_head(stream.response).await;
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), HALF);
    dies.fire();
    let end = piece(&mut body).await;
    assert!(matches!(end, Some(Err(_))), "a broken response looks whole: {end:?}");
    assert_eq!((a.count(), b.count()), (1, 0), "requests at a and at b");
    router.idle().await;
}

#[tokio::test]
async fn a_stream_that_dies_midway_has_no_last_chunk() {
    visibly_broken(|dies| half_a_stream(Step::Close, dies)).await;
}

#[tokio::test]
async fn a_stream_that_is_reset_midway_has_no_last_chunk() {
    visibly_broken(|dies| half_a_stream(Step::Reset, dies)).await;
}

#[tokio::test]
async fn a_response_that_dies_midway_is_shorter_than_its_length() {
    visibly_broken(|dies| half_a_length(Step::Close, dies)).await;
}

#[tokio::test]
async fn a_stream_that_dies_midway_ends_in_a_stream_error_over_http2() {
    visibly_broken_over_http2(|dies| half_a_stream(Step::Close, dies)).await;
}

#[tokio::test]
async fn a_response_that_dies_midway_ends_in_a_stream_error_over_http2() {
    visibly_broken_over_http2(|dies| half_a_length(Step::Close, dies)).await;
}

/// The engine judges the head alone and hangs up on the upload.
async fn early_refusal_comes_through(how: Upload) {
    for (seed, size) in SOME_SIZES.into_iter().enumerate() {
        let (a, b, router) = fleet().await;
        let refusal = "HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\nconnection: close\r\n\r\ntoo large";
        a.always(Answer::raw(refusal).head_only());
        let response = upload(&router, how, &prompts::chat_of_size(seed as u64, size)).await;
        assert_eq!((response.status(), response.text().as_str()), (413, "too large"), "{how:?} {size}");
        assert_eq!(b.count(), 0, "{how:?} {size}");
    }
}

#[tokio::test]
async fn an_early_413_of_the_engine_is_forwarded() {
    early_refusal_comes_through(Upload::Length).await;
}

#[tokio::test]
async fn an_early_413_of_the_engine_is_forwarded_over_http2() {
    early_refusal_comes_through(Upload::H2Length).await;
}

/// D27: a request on a pooled connection that closes before it was read has begun nothing: once more on a new one.
#[tokio::test]
async fn a_reused_connection_that_closes_without_reading_is_replaced_once() {
    for end in [Step::Close, Step::Reset] {
        let (a, b, router) = fleet().await;
        assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), "a");
        router.idle().await;
        let warm = a.last().connection;
        a.script(move |request| match request.connection == warm {
            true => Answer::steps([end.clone()]).head_only(),
            false => Answer::json(200, "{}"),
        });
        // More than the engine reads at once: some of it stays in the socket.
        let response = router.chat(prompts::chat_of_size(2, 512 * 1024)).await;
        assert_eq!((response.status(), response.endpoint().as_str()), (200, "a"), "{response:?}");
        let connections = a.seen(|seen| seen.requests.iter().map(|one| one.connection).collect::<Vec<_>>());
        assert_eq!(connections.len(), 3, "first, lost and repeated: {connections:?}");
        assert_eq!(connections[1], warm, "the connection was reused: {connections:?}");
        assert_ne!(connections[2], warm, "the repetition has a new one: {connections:?}");
        assert_eq!(b.count(), 0);
        assert_eq!(a.seen(|seen| seen.requests.iter().filter(|one| one.complete).count()), 2, "read whole");
    }
}

/// D27: but only once, and nowhere else.
#[tokio::test]
async fn a_reused_connection_is_replaced_no_more_than_once() {
    let (a, b, router) = fleet().await;
    assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), "a");
    a.always(Answer::steps([Step::Close]).head_only());
    router.chat(prompts::chat_of_size(2, 512 * 1024)).await.assert_router_error(502);
    assert_eq!((a.count(), b.count()), (3, 0), "requests at a and at b");
}

/// D27: an engine that has read the request whole and takes its time, or lives on for half a second, has begun: no second
/// generation.
#[tokio::test]
async fn a_reused_connection_that_closes_after_reading_gives_502_and_no_second_generation() {
    for (millis, end) in [(120, Step::Close), (500, Step::Close), (500, Step::Reset)] {
        let steps = [Step::Pause(Duration::from_millis(millis)), end];
        let (a, b, router) = fleet().await;
        assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), "a");
        let warm = a.last().connection;
        a.always(Answer::steps(steps.clone()));
        router.chat(prompts::cold(2)).await.assert_router_error(502);
        assert_eq!((a.count(), b.count()), (2, 0), "{steps:?}: requests at a and at b");
        assert_eq!(a.last().connection, warm, "the connection was reused");
        assert!(a.last().complete, "the engine had the whole request");
        router.idle().await;
    }
}

/// D27: an engine closes after each response without saying so; no request may fall into the gap.
#[tokio::test]
async fn an_engine_that_closes_after_each_response_loses_no_request() {
    let stub = Stub::answering(Answer::steps([
        write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
        Step::Close,
    ]))
    .await;
    let router = Setup::of(&[&stub]).start().await;
    let mut client = Client::connect(router.data).await;
    for seed in 0..100 {
        let response = client.exchange(post(PATH, prompts::cold(seed))).await;
        assert_eq!(response.status(), 200, "request {seed}: {response:?}");
    }
    assert_eq!(stub.count(), 100, "each request was processed once");
}

/// D27, fifty times faster: waves come just when the engine closes what has been idle. None is lost, none processed twice.
#[tokio::test]
async fn requests_that_meet_an_idle_close_are_processed_once() {
    const WAVES: u64 = 50;
    const CLIENTS: u64 = 40;
    const IDLE: Duration = Duration::from_millis(100);
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    stub.closes_idle(IDLE);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(router.data).await);
    }
    for wave in 0..WAVES {
        let mut asking = JoinSet::new();
        for (seed, mut client) in (wave * CLIENTS..).zip(clients.drain(..)) {
            asking.spawn(async move {
                let answer = client.exchange(post(PATH, prompts::chat_of_size(seed, 8 * 1024))).await;
                assert_eq!(answer.status(), 200, "request {seed}: {answer:?}");
                client
            });
        }
        clients = asking.join_all().await;
        // From 98 to 102 ms.
        pace(IDLE * (98 + wave as u32 % 5) / 100).await;
    }
    let whole = stub.seen(|seen| seen.requests.iter().filter(|one| one.complete).count() as u64);
    assert_eq!(whole, WAVES * CLIENTS, "each was read whole once");
    let connections = stub.seen(|seen| seen.connections) as u64;
    assert!(connections > CLIENTS, "some were closed: {connections}");
}

#[tokio::test]
async fn a_body_of_no_bytes_is_forwarded() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let mut client = Client::connect(router.data).await;
    assert_eq!(client.exchange(post(PATH, "")).await.status(), 200);
    let empty = [post_head(PATH, "transfer-encoding: chunked\r\n"), b"0\r\n\r\n".to_vec()].concat();
    assert_eq!(client.exchange(empty).await.status(), 200);
    assert_eq!(client.exchange(post_head(PATH, "")).await.status(), 200);
    for index in 0..3 {
        assert!(stub.request(index).await.body.is_empty());
    }
    let h2 = H2Client::connect(router.h2c).await;
    assert_eq!(h2.post(PATH, Bytes::new(), true).await.status(), 200);
    assert!(stub.request(3).await.body.is_empty());
}
