//! What bounds a request body: its size, its time, and the memory of all of them together (D06).
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use harness::client::post_head;
use harness::script::{chunked, write};
use harness::upload::{Upload, upload};
use harness::wait::pace;
use harness::{
    Answer, Client, DEADLINE, H2Client, Response, Router, Setup, Signal, Step, Stub, get, post, prompts,
    until, within,
};
use std::time::{Duration, Instant};

const PATH: &str = "/v1/chat/completions";
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

async fn limited(limit: &str) -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml(&format!("limits:\n  body_bytes_max: {limit}\n")).start().await;
    (stub, router)
}

/// D06: up to the limit a body passes, over it comes a 413 and no upstream sees a byte.
async fn limit_holds(how: Upload) {
    let (stub, router) = limited("1MiB").await;
    for size in [MIB - 1, MIB] {
        let body = prompts::chat_of_size(1, size);
        let response = upload(&router, how, &body).await;
        assert_eq!(response.status(), 200, "{how:?} {size}: {response:?}");
        assert!(stub.last().body == body, "{how:?} {size}: another body");
    }
    for size in [MIB + 1, 8 * MIB] {
        let response = upload_over_the_limit(&router, how, size).await;
        response.assert_router_error(413);
        assert_eq!(stub.count(), 2, "{how:?} {size}: something reached the upstream");
    }
    router.idle().await;
}

async fn upload_over_the_limit(router: &Router, how: Upload, size: usize) -> Response {
    let body = prompts::chat_of_size(1, size);
    if how.is_h2() || !matches!(how, Upload::Expect) {
        return upload(router, how, &body).await;
    }
    let mut client = Client::connect(router.data).await;
    client.send(post_head(PATH, &format!("content-length: {size}\r\nexpect: 100-continue\r\n"))).await;
    let response = client.response("POST").await;
    assert!(response.interim.is_empty(), "a refused client must not be told to go on: {response:?}");
    response
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    limit_holds(Upload::Length).await;
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_is_413() {
    limit_holds(Upload::Chunked).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_instead_of_100() {
    limit_holds(Upload::Expect).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_over_http2() {
    limit_holds(Upload::H2Length).await;
    limit_holds(Upload::H2Open).await;
}

/// D06: the follow-up on the same connection is a request of its own or finds the connection closed.
#[tokio::test]
async fn what_follows_a_refused_body_is_never_misread() {
    let (stub, router) = limited("1MiB").await;
    for body in [post(PATH, prompts::chat_of_size(1, MIB + 1)), chunked_post(MIB + 1)] {
        let before = stub.count();
        let mut client = Client::connect(router.data).await;
        let _ = client.try_send(&body).await;
        client.response("POST").await.assert_router_error(413);
        let follow_up = get("/v1/models");
        if client.try_send(&follow_up).await.is_ok() {
            let answer = client.next_bytes().await;
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
        }
        let seen = stub.seen(|seen| {
            seen.requests[before..].iter().map(|one| one.head.first_line.clone()).collect::<Vec<_>>()
        });
        assert!(seen.iter().all(|line| line == "GET /v1/models HTTP/1.1"), "misread: {seen:?}");
    }
}

fn chunked_post(size: usize) -> Vec<u8> {
    let body = prompts::chat_of_size(1, size);
    let head = post_head(PATH, "transfer-encoding: chunked\r\n");
    [head, chunked(body).to_vec(), b"0\r\n\r\n".to_vec()].concat()
}

/// D06: a trickled chunked body over the limit is refused when it crosses it, not at its end.
#[tokio::test]
async fn a_trickled_body_is_refused_when_it_crosses_the_limit() {
    let (stub, router) = limited("64KiB").await;
    let mut client = Client::connect(router.data).await;
    client.send(post_head(PATH, "transfer-encoding: chunked\r\n")).await;
    let piece = chunked(vec![b'x'; 10 * KIB]);
    for _ in 0..7 {
        client.send(&piece).await;
        pace(Duration::from_millis(20)).await;
    }
    client.response("POST").await.assert_router_error(413);
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn a_trickled_body_arrives_whole() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let body = prompts::chat_of_size(1, 2000);
    let mut client = Client::connect(router.data).await;
    client.send(post_head(PATH, "content-length: 2000\r\n")).await;
    for part in body.as_bytes().chunks(100) {
        client.send(part).await;
        pace(Duration::from_millis(10)).await;
    }
    assert_eq!(client.response("POST").await.status(), 200);
    assert_eq!(stub.request(0).await.body, body);
}

async fn hasty() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml("timeouts:\n  request_body: 300ms\n").start().await;
    (stub, router)
}

#[tokio::test]
async fn a_client_that_stops_in_its_body_is_408() {
    let (stub, router) = hasty().await;
    let mut client = Client::connect(router.data).await;
    client.send(post_head(PATH, "content-length: 100\r\n")).await;
    client.send("{\"model\":").await;
    client.response("POST").await.assert_router_error(408);
    client.closed(Duration::from_secs(5)).await;
    assert_eq!(stub.count(), 0);
}

/// The deadline is for the whole body: a byte now and then does not renew it.
#[tokio::test]
async fn a_client_that_trickles_for_too_long_is_408() {
    let (stub, router) = hasty().await;
    let mut client = Client::connect(router.data).await;
    client.send(post_head(PATH, "content-length: 1000\r\n")).await;
    let started = Instant::now();
    for _ in 0..12 {
        let _ = client.try_send("x").await;
        pace(Duration::from_millis(50)).await;
    }
    client.response("POST").await.assert_router_error(408);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn a_client_that_stops_in_its_body_is_408_over_http2() {
    let (stub, router) = hasty().await;
    let client = H2Client::connect(router.h2c).await;
    let mut stream = client.start(harness::h2_client::post_request(PATH, Some(100)), false).await;
    stream.body.send_data(Bytes::from_static(b"{\"model\":"), false).unwrap();
    harness::h2_client::response(stream.response).await.assert_router_error(408);
    assert_eq!(stub.count(), 0);
}

/// Bodies that wait in memory are bounded together: what does not fit waits or is refused, and room comes back.
#[tokio::test]
async fn all_bodies_together_are_bounded() {
    let release = Signal::default();
    let stub = Stub::start().await;
    let limits = "limits:\n  body_bytes_max: 4MiB\n  bodies_bytes_max: 8MiB\n";
    let router = Setup::of(&[&stub]).yaml(limits).start().await;
    let wait = release.clone();
    stub.script(move |_| {
        Answer::steps([Step::Wait(wait.clone()), write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")])
    });
    let before = router.resident_bytes();
    let data = router.data;
    let upload = |seed| harness::exchange(data, post(PATH, prompts::chat_of_size(seed, 3 * MIB)));
    let clients: Vec<_> = (0..8).map(|seed| tokio::spawn(upload(seed))).collect();
    stub.wait("the first bodies", harness::DEADLINE, |seen| (seen.requests.len() >= 2).then_some(())).await;
    let grown = router.resident_bytes().saturating_sub(before);
    // The allocator keeps what it has freed for a while, so this is loose; that only two bodies fit is exact.
    assert!(grown < 64 * MIB as u64, "{} MiB for 8 MiB of bodies", grown / MIB as u64);
    assert!(stub.count() <= 2, "{} bodies of 3 MiB fit 8 MiB", stub.count());
    release.fire_all();
    for client in clients {
        let status = client.await.unwrap().status();
        assert!([200, 413, 429, 503].contains(&status), "{status}");
    }
    assert_eq!(router.chat(prompts::chat_of_size(9, 3 * MIB)).await.status(), 200, "room came back");
}

/// Three bodies of the largest size fill the memory for bodies.
async fn room_for_three() -> (Stub, Router) {
    let stub = Stub::start().await;
    let limits = "limits:\n  body_bytes_max: 1MiB\n  bodies_bytes_max: 3MiB\n";
    let router = Setup::of(&[&stub]).yaml(limits).start().await;
    (stub, router)
}

/// Ten clients announce more than three times the memory and send nothing of it. Half of them wait for a 100, which
/// tells that their heads have been read.
#[tokio::test]
async fn announced_lengths_take_no_memory_from_others() {
    let (stub, router) = room_for_three().await;
    let mut silent = Vec::new();
    for index in 0..10 {
        let expects = index % 2 == 1;
        let expect = if expects { "expect: 100-continue\r\n" } else { "" };
        let mut client = Client::connect(router.data).await;
        client.send(post_head(PATH, &format!("content-length: {MIB}\r\n{expect}"))).await;
        if expects {
            assert_eq!(within("a 100", Duration::from_secs(2), client.head()).await.status(), 100);
        }
        silent.push(client);
    }
    let small = within("an answer", Duration::from_secs(2), router.chat(prompts::cold(1))).await;
    assert_eq!((small.status(), stub.count()), (200, 1), "{small:?}");
}

/// Bodies that do lie in memory fill it: the next is told to come again, soon, and they are served in the end.
#[tokio::test]
async fn a_body_without_room_is_503_within_3_s() {
    let (stub, router) = room_for_three().await;
    let bodies: Vec<_> = (0..3).map(|seed| prompts::chat_of_size(seed, MIB)).collect();
    let mut clients = Vec::new();
    for body in &bodies {
        let mut client = Client::connect(router.data).await;
        client.send(post_head(PATH, &format!("content-length: {MIB}\r\n"))).await;
        client.send(&body[..MIB - 1]).await;
        clients.push(client);
    }
    // What was sent has been read only soon after.
    let refused = until("a body without room", DEADLINE, || async {
        let response = within("an answer", Duration::from_secs(3), router.chat(prompts::cold(9))).await;
        (response.status() != 200).then_some(response)
    })
    .await;
    refused.assert_router_error(503);
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "overloaded");
    for (client, body) in clients.iter_mut().zip(&bodies) {
        client.send(&body[MIB - 1..]).await;
        assert_eq!(client.response("POST").await.status(), 200);
        assert!(stub.last().body == *body, "another body");
    }
    assert_eq!(router.chat(prompts::cold(10)).await.status(), 200, "room came back");
}

/// A request with a head of so many bytes, its headers of 1,000 bytes each at most.
fn head_of(bytes: usize) -> Vec<u8> {
    let mut head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n".to_vec();
    let end = bytes - 2;
    while head.len() < end {
        // Each has room for a name and a line's end, and leaves room for another.
        let left = end - head.len();
        let line = if left > 1_010 { 1_000 } else { left };
        head.extend_from_slice(b"x: ");
        head.extend(std::iter::repeat_n(b'a', line - 5));
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    assert_eq!(head.len(), bytes);
    head
}

#[tokio::test]
async fn a_head_over_the_limit_is_431() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml("limits: {headers_bytes_max: 16KiB}").start().await;
    let mut client = Client::connect(router.data).await;
    for bytes in [200, 16 * KIB - 1, 16 * KIB] {
        assert_eq!(client.exchange(head_of(bytes)).await.status(), 200, "{bytes}");
    }
    for bytes in [16 * KIB + 1, 32 * KIB, 200 * KIB] {
        let mut client = Client::connect(router.data).await;
        client.send(head_of(bytes)).await;
        let answer = client.response("GET").await;
        answer.assert_router_error(431);
        assert_eq!(answer.json()["error"]["code"], "headers_too_large");
        client.closed(DEADLINE).await;
    }
    assert_eq!(stub.count(), 3);
    let endless = async {
        let mut client = Client::connect(router.data).await;
        client.send("GET / HTTP/1.1\r\n").await;
        while client.try_send([b'a'; KIB]).await.is_ok() {}
    };
    within("an endless head to be cut", DEADLINE, endless).await;
}

#[tokio::test]
async fn too_many_headers_are_431() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let many = |count: usize| {
        let lines: String = (1..count).map(|number| format!("x-{number}: y\r\n")).collect();
        format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{lines}\r\n")
    };
    let mut client = Client::connect(router.data).await;
    assert_eq!(client.exchange(many(256)).await.status(), 200);
    client.exchange(many(257)).await.assert_router_error(431);
    assert_eq!(stub.count(), 1);
}

/// Over HTTP/2 a head that is too large is answered by h2 itself, without a body.
#[tokio::test]
async fn a_head_over_the_limit_is_431_over_http2() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).yaml("limits: {headers_bytes_max: 16KiB}").start().await;
    let client = H2Client::connect(router.h2c).await;
    let with = |headers: usize, bytes: usize| {
        let mut request = harness::h2_client::post_request(PATH, Some(2));
        for number in 0..headers {
            let name = http::HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap();
            request.headers_mut().insert(name, "a".repeat(bytes).parse().unwrap());
        }
        request
    };
    for (headers, bytes, status) in [(10, 1000, 200), (20, 1000, 431), (250, 1, 200), (300, 1, 431)] {
        let response = client.exchange(with(headers, bytes), "{}").await;
        assert_eq!(response.status(), status, "{headers} of {bytes}");
    }
    assert_eq!(stub.count(), 2);
}

/// An engine's head is bounded as well: by pingora's parser, to 1 MiB and 256 headers.
#[tokio::test]
async fn an_engines_huge_head_is_502() {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    let answer = |lines: String| Answer::raw(format!("HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n"));
    let many = |count: usize| (0..count).map(|number| format!("x-{number}: y\r\n")).collect::<String>();
    for (shows, lines, status) in [
        ("many", many(255), 200),
        ("too many", many(300), 502),
        ("large", format!("x: {}\r\n", "a".repeat(900 * KIB)), 200),
        ("too large", format!("x: {}\r\n", "a".repeat(2 * MIB)), 502),
    ] {
        stub.always(answer(lines));
        assert_eq!(router.chat("{}").await.status(), status, "{shows}");
    }
    stub.always(Answer::steps([
        write("HTTP/1.1 200 OK\r\n"),
        Step::Flood("x: yyyyyyyyyyyyyyyy\r\n".into(), 1 << 20),
    ]));
    router.chat("{}").await.assert_router_error(502);
}
