//! HTTP between three parties: framing, hop-by-hop headers, old clients, many requests on one connection.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use harness::client::{Response, get, post, post_head};
use harness::h2_client::{SendBody, post_request, response};
use harness::script::{chunk, last_chunk, write};
use harness::wait::pace;
use harness::{Answer, Client, H2Client, Router, Setup, Signal, Step, Stub, prompts, within};
use std::time::Duration;

const PATH: &str = "/v1/chat/completions";
const MIB: usize = 1 << 20;

async fn fleet_of_one() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    (stub, router)
}

/// A small JSON object and three flushed events, compressed; the router has no business inside.
const GZIP_JSON: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\xca\xcf\x56\xb2\x2a\x29\x2a\x4d\xad\x05\x00\x90\x5f\xd4\xa7\x0b\x00\x00\x00";
const GZIP_EVENTS: [&[u8]; 4] = [
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4a\x49\x2c\x49\xb4\x52\xc8\xcf\x4b\xe5\xe2\x02\x00\x00\x00\xff\xff",
    b"\x4a\x01\x33\x4b\xca\xf3\xb9\xb8\x00\x00\x00\x00\xff\xff",
    b"\x82\x32\x33\x8a\x52\x81\xe2\x00\x00\x00\x00\xff\xff",
    b"\x03\x00\x5f\x37\xca\x27\x23\x00\x00\x00",
];

/// A way to frame a response, and what the client must get.
struct Framed {
    shows: &'static str,
    method: &'static str,
    status: u16,
    body: Vec<u8>,
    encoding: Option<&'static str>,
    steps: Vec<Step>,
}

fn framed(shows: &'static str, status: u16, body: &[u8], lines: &str, wire: &[u8]) -> Framed {
    let head = format!("HTTP/1.1 {status} Scripted\r\n{lines}\r\n");
    let steps = vec![write([head.as_bytes(), wire].concat())];
    Framed { shows, method: "POST", status, body: body.to_vec(), encoding: None, steps }
}

/// Each way to frame a response that recipe D43 names.
fn framings() -> Vec<Framed> {
    let gzip_length = format!("content-encoding: gzip\r\ncontent-length: {}\r\n", GZIP_JSON.len());
    let gzip_chunks: Vec<u8> = GZIP_EVENTS.iter().flat_map(harness::script::chunked).collect();
    let gzip_lines = "content-encoding: gzip\r\ntransfer-encoding: chunked\r\n";
    let trailers = b"5\r\nhello\r\n0\r\nx-checksum: 1\r\n\r\n";
    vec![
        framed("exact length", 200, b"hello", "content-length: 5\r\n", b"hello"),
        framed(
            "chunked with trailers",
            200,
            b"hello",
            "transfer-encoding: chunked\r\ntrailer: x-checksum\r\n",
            trailers,
        ),
        Framed { encoding: Some("gzip"), ..framed("gzip JSON", 200, GZIP_JSON, &gzip_length, GZIP_JSON) },
        Framed {
            encoding: Some("gzip"),
            ..framed(
                "gzip stream",
                200,
                &GZIP_EVENTS.concat(),
                gzip_lines,
                &[&gzip_chunks[..], b"0\r\n\r\n"].concat(),
            )
        },
        closing(framed("ended by the close", 200, b"until the end", "", b"until the end")),
        framed("204", 204, b"", "", b""),
        framed("304", 304, b"", "etag: \"1\"\r\ncontent-length: 1234\r\n", b""),
        Framed { method: "HEAD", ..framed("HEAD", 200, b"", "content-length: 4321\r\n", b"") },
        framed("no length at all", 200, b"", "content-length: 0\r\n", b""),
        with_early_hints(framed("103 first", 200, b"hello", "content-length: 5\r\n", b"hello")),
        framed("more bytes than its length", 200, b"hello", "content-length: 5\r\n", b"hello, and then some"),
    ]
}

fn closing(mut framed: Framed) -> Framed {
    framed.steps.push(Step::Close);
    framed
}

fn with_early_hints(mut framed: Framed) -> Framed {
    framed.steps.insert(0, write("HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"));
    framed
}

fn differs(framed: &Framed, response: &Response) -> Option<String> {
    let right = response.status() == framed.status
        && response.body == framed.body
        && response.broken.is_none()
        && response.header("content-encoding") == framed.encoding;
    (!right).then(|| format!("{}: {response:?}", framed.shows))
}

fn request(method: &str, size: usize, seed: u64) -> Vec<u8> {
    match method {
        "HEAD" => b"HEAD /v1/models HTTP/1.1\r\nhost: router\r\n\r\n".to_vec(),
        _ => post(PATH, prompts::chat_of_size(seed, size)),
    }
}

// D43
#[tokio::test]
async fn every_framing_arrives_as_it_was_meant_on_one_connection() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    let mut faults = Vec::new();
    let framings = framings();
    for (round, framed) in framings.iter().cycle().take(55).enumerate() {
        stub.always(Answer::steps(framed.steps.clone()));
        let response = client.exchange(request(framed.method, 100 + round * 997, round as u64)).await;
        faults.extend(differs(framed, &response));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(stub.count(), 55, "one request upstream for each");
}

// D43
#[tokio::test]
async fn every_framing_arrives_as_it_was_meant_over_http2() {
    let (stub, router) = fleet_of_one().await;
    let client = H2Client::connect(router.h2c).await;
    let mut faults = Vec::new();
    for framed in framings() {
        stub.always(Answer::steps(framed.steps.clone()));
        let uri = format!("http://router{PATH}");
        let request = http::Request::builder().method(framed.method).uri(uri).body(()).unwrap();
        let response = client.exchange(request, Bytes::new()).await;
        faults.extend(differs(&framed, &response));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

// D43
#[tokio::test]
async fn a_connection_with_surplus_bytes_is_not_used_again() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::raw(
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstale",
    ));
    assert_eq!(router.chat(prompts::cold(1)).await.text(), "{}");
    stub.always(Answer::json(200, r#"{"fresh":1}"#));
    assert_eq!(router.chat(prompts::cold(2)).await.text(), r#"{"fresh":1}"#);
    let connections = stub.seen(|seen| seen.requests.iter().map(|one| one.connection).collect::<Vec<_>>());
    assert_ne!(connections[0], connections[1], "a connection with unread bytes went back to the pool");
}

// D43
#[tokio::test]
async fn each_compressed_event_is_passed_on_before_the_next() {
    let (stub, router) = fleet_of_one().await;
    let next = Signal::default();
    let head = write("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n");
    let events = GZIP_EVENTS.iter().flat_map(|event| [chunk(event), Step::Wait(next.clone())]);
    stub.always(Answer::steps([head].into_iter().chain(events).chain([last_chunk()])));
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, prompts::cold(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    for event in GZIP_EVENTS {
        let seen = within("an event", Duration::from_secs(1), client.body_until(&mut framing, event)).await;
        assert_eq!(seen, event);
        next.fire();
    }
}

/// A pooled connection carries one request after the other.
#[tokio::test]
async fn upstream_connections_are_reused() {
    let (stub, router) = fleet_of_one().await;
    for seed in 0..20 {
        assert_eq!(router.chat(prompts::cold(seed)).await.status(), 200);
        // The client may have its answer a moment before the connection is put back.
        router.idle().await;
    }
    let used = stub.seen(|seen| seen.requests.iter().map(|one| one.connection).collect::<Vec<_>>());
    assert!(used.iter().all(|connection| *connection == used[0]), "{used:?}");
}

// D44
#[tokio::test]
async fn a_body_in_one_byte_chunks_with_extensions_and_a_trailer_arrives_whole() {
    let (stub, router) = fleet_of_one().await;
    let body = prompts::chat_of_size(1, 300);
    let mut client = Client::connect(router.data).await;
    client.send(post_head(PATH, "transfer-encoding: chunked\r\ntrailer: x-sum\r\n")).await;
    for byte in body.bytes() {
        client.send([b"1;note=\"a b\"\r\n".as_slice(), &[byte], b"\r\n"].concat()).await;
    }
    client.send("0;last\r\nx-sum: 9\r\n\r\n").await;
    assert_eq!(client.response("POST").await.status(), 200);
    stub.request(0).await.assert_framed_once(body.as_bytes());
    for seed in 0..20 {
        let body = prompts::chat_of_size(seed, 300);
        assert_eq!(client.exchange(post(PATH, &body)).await.status(), 200, "follow-up {seed}");
        stub.last().assert_framed_once(body.as_bytes());
    }
}

/// One byte of a body is still a body, however the router probes for clients that leave.
#[tokio::test]
async fn a_last_byte_that_comes_alone_ends_its_body() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    for seed in 0..3 {
        let request = post(PATH, prompts::cold(seed));
        let (most, last) = request.split_at(request.len() - 1);
        client.send(most).await;
        pace(Duration::from_millis(100)).await;
        client.send(last).await;
        let response = within("an answer", Duration::from_secs(2), client.response("POST")).await;
        assert_eq!(response.status(), 200, "{response:?}");
        stub.last().assert_framed_once(prompts::cold(seed).as_bytes());
    }
}

// D44
#[tokio::test]
async fn a_client_that_expects_100_and_does_not_wait_for_it_is_served() {
    let (stub, router) = fleet_of_one().await;
    let body = prompts::cold(1);
    let head = post_head(PATH, &format!("content-length: {}\r\nexpect: 100-continue\r\n", body.len()));
    let mut client = Client::connect(router.data).await;
    let response = client.exchange([head, body.clone().into_bytes()].concat()).await;
    assert_eq!(response.status(), 200);
    stub.request(0).await.assert_framed_once(body.as_bytes());
    assert_eq!(stub.last().head.header("expect"), None);
}

// D44
#[tokio::test]
async fn an_unknown_expectation_does_not_hang() {
    let (stub, router) = fleet_of_one().await;
    let body = prompts::cold(1);
    let head = post_head(PATH, &format!("content-length: {}\r\nexpect: something-else\r\n", body.len()));
    let request = [head, body.into_bytes()].concat();
    let response = within("an answer", Duration::from_secs(2), harness::exchange(router.data, request)).await;
    assert!([200, 417].contains(&response.status()), "{response:?}");
    drop(stub);
}

// D44
#[tokio::test]
async fn an_http2_body_that_ends_with_an_empty_frame_arrives_whole() {
    let (stub, router) = fleet_of_one().await;
    let client = H2Client::connect(router.h2c).await;
    let mut stream = client.start(post_request(PATH, None), false).await;
    stream.body.send(prompts::cold(1).into(), false).await.unwrap();
    stream.body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(response(stream.response).await.status(), 200);
    stub.request(0).await.assert_framed_once(prompts::cold(1).as_bytes());
    for seed in 0..20 {
        assert_eq!(client.post(PATH, prompts::cold(seed), true).await.status(), 200, "follow-up {seed}");
        stub.last().assert_framed_once(prompts::cold(seed).as_bytes());
    }
}

// D44
#[tokio::test]
async fn half_a_chunk_head_and_a_close_leave_the_processor_idle() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    client.send(post_head(PATH, "transfer-encoding: chunked\r\n")).await;
    client.send("4\r").await;
    client.close();
    router.idle().await;
    let before = router.processor_ticks();
    pace(Duration::from_secs(1)).await;
    let used = router.processor_ticks() - before;
    assert!(used < 30, "{used} ticks of 10 ms in an idle second");
    assert_eq!(stub.count(), 0);
}

// D45
#[tokio::test]
async fn a_preflight_gets_the_replicas_answer() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::raw("HTTP/1.1 204 No Content\r\naccess-control-allow-origin: *\r\n\r\n"));
    let preflight = format!(
        "OPTIONS {PATH} HTTP/1.1\r\nhost: router\r\norigin: http://page\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization,content-type\r\n\r\n"
    );
    let mut client = Client::connect(router.data).await;
    for request in [preflight.as_str(), "OPTIONS * HTTP/1.1\r\nhost: router\r\n\r\n"] {
        let response = client.exchange(request).await;
        assert_eq!((response.status(), response.header("access-control-allow-origin")), (204, Some("*")));
    }
    let lines =
        stub.seen(|seen| seen.requests.iter().map(|one| one.head.first_line.clone()).collect::<Vec<_>>());
    assert_eq!(lines, [format!("OPTIONS {PATH} HTTP/1.1"), "OPTIONS * HTTP/1.1".to_owned()]);
    router.idle().await;
    assert_eq!(router.endpoint("a").await["index_blocks"], 0, "a preflight leaves no belief");
}

// D45
#[tokio::test]
async fn head_has_no_body_and_leaves_the_connection_usable() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::raw(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n",
    ));
    let mut client = Client::connect(router.data).await;
    for _ in 0..3 {
        let response = client.exchange("HEAD /v1/models HTTP/1.1\r\nhost: router\r\n\r\n").await;
        assert_eq!((response.status(), response.header("content-length")), (200, Some("500")));
    }
    stub.always(Answer::json(200, "{}"));
    assert_eq!(client.exchange(get("/v1/models")).await.text(), "{}");
    router.idle().await;
}

#[tokio::test]
async fn an_http10_client_gets_a_plain_body_and_a_close() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::stream([chunk("data: 1\n\n"), chunk("data: 2\n\n"), last_chunk()]));
    let mut client = Client::connect(router.data).await;
    client.send("POST /v1/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}").await;
    let head = client.head().await;
    assert_eq!(head.header("transfer-encoding"), None, "an HTTP/1.0 client knows no chunks: {head:?}");
    assert_eq!(client.rest().await, "data: 1\n\ndata: 2\n\n");
}

/// Shorter than HTTP/2's preface, so a listener that peeks for it would wait for ever.
#[tokio::test]
async fn a_tiny_http10_request_is_answered() {
    let (_stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(within("an answer", Duration::from_secs(2), client.response("GET")).await.status(), 200);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let (stub, router) = fleet_of_one().await;
    stub.script(|request| Answer::json(200, &format!("{:?}", request.head.target())));
    let mut client = Client::connect(router.data).await;
    client.send(["/1", "/2", "/3", "/4"].map(get).concat()).await;
    for target in ["/1", "/2", "/3", "/4"] {
        assert_eq!(client.response("GET").await.text(), format!("{target:?}"));
    }
}

/// A next request larger than a buffer comes while the first is being served, and waits its turn whole.
#[tokio::test]
async fn pipelined_bodies_are_answered_in_order_and_forwarded_once() {
    let (stub, router) = fleet_of_one().await;
    let go_on = Signal::default();
    let gate = go_on.clone();
    stub.script(move |request| {
        let answer = Answer::json(200, &format!("{:?}", request.head.target()));
        Answer::steps([Step::Wait(gate.clone())].into_iter().chain(answer.steps))
    });
    let bodies = [1000, 40 << 10, 2000].map(|size| prompts::chat_of_size(size as u64, size));
    let targets = ["/1", "/2", "/3"];
    let mut client = Client::connect(router.data).await;
    client.send([0, 1, 2].map(|index| post(targets[index], &bodies[index])).concat()).await;
    stub.request(0).await;
    pace(Duration::from_millis(100)).await;
    for target in targets {
        go_on.fire();
        assert_eq!(client.response("POST").await.text(), format!("{target:?}"));
    }
    let arrived = stub.seen(|seen| seen.requests.iter().map(|one| one.body.clone()).collect::<Vec<_>>());
    assert!(arrived == bodies, "{} requests, or other bodies", arrived.len());
}

/// Bytes that come after the body must not cut the response that is running.
#[tokio::test]
async fn a_request_pipelined_into_a_stream_does_not_cut_it() {
    let (stub, router) = fleet_of_one().await;
    let next = Signal::default();
    let gate = next.clone();
    stub.script(move |request| match request.head.method() {
        "POST" => {
            let events = (0..21).flat_map(|_| [chunk("data: tick\n\n"), Step::Wait(gate.clone())]);
            Answer::stream(events.chain([last_chunk()]))
        }
        _ => Answer::json(200, "{}"),
    });
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, prompts::cold(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    client.body_until(&mut framing, b"\n\n").await;
    client.send(get("/v1/models")).await;
    for _ in 0..20 {
        next.fire();
        assert_eq!(client.body_until(&mut framing, b"\n\n").await, b"data: tick\n\n");
    }
    next.fire();
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
    assert_eq!(client.response("GET").await.text(), "{}", "and then the pipelined one");
}

/// 31 MB over one HTTP/2 connection in four streams at once.
#[tokio::test]
async fn http2_uploads_share_a_connection() {
    let (stub, router) = fleet_of_one().await;
    let client = H2Client::connect(router.h2c).await;
    let bodies: Vec<_> = (0..4).map(|seed| prompts::chat_of_size(seed, 8 * MIB - 1)).collect();
    let upload = |index: usize| client.post(PATH, bodies[index].clone(), true);
    let (first, second, third, fourth) = tokio::join!(upload(0), upload(1), upload(2), upload(3));
    assert_eq!([first, second, third, fourth].map(|response| response.status()), [200; 4]);
    let mut arrived = stub.seen(|seen| seen.requests.iter().map(|one| one.body.clone()).collect::<Vec<_>>());
    let mut sent: Vec<_> = bodies.into_iter().map(Bytes::from).collect();
    arrived.sort();
    sent.sort();
    assert!(arrived == sent, "bodies were mixed up");
}
