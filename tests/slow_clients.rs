//! Clients that take their time before their request is there: each step of it ends, whatever they drip.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::tls::{Authority, Visitor};
use harness::wait::pace;
use harness::{Answer, Client, DEADLINE, Router, Setup, Stub, get, within};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD: Duration = Duration::from_millis(600);
const TERMS: &str = "timeouts: {request_head: 600ms, keep_alive: 2s}";

async fn impatient() -> (Stub, Router) {
    let stub = Stub::answering(Answer::json(200, "{}")).await;
    let router = Setup::of(&[&stub]).yaml(TERMS).start().await;
    (stub, router)
}

/// Drips header lines until the router takes no more, then reads what it said.
async fn drip(client: &mut Client) -> (Duration, harness::Response) {
    let started = Instant::now();
    let answer = tokio::select! {
        answer = client_drips(client) => answer,
        () = pace(DEADLINE) => panic!("a head in drips was never refused"),
    };
    (started.elapsed(), answer)
}

async fn client_drips(client: &mut Client) -> harness::Response {
    client.send("GET /v1/models HTTP/1.1\r\nhost: x\r\n").await;
    for _ in 0..4 {
        client.send("x-a: b\r\n").await;
        pace(HEAD / 6).await;
    }
    client.response("GET").await
}

#[tokio::test]
async fn a_head_in_drips_is_408_within_its_time() {
    let (stub, router) = impatient().await;
    let mut client = Client::connect(router.data).await;
    let (took, answer) = drip(&mut client).await;
    answer.assert_router_error(408);
    assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
    assert!(took >= HEAD / 2 && took < HEAD * 5, "{took:?}");
    client.closed(DEADLINE).await;
    assert_eq!(stub.count(), 0);
    assert!(router.metrics().await.contains("prefixroute_errors_total{kind=\"request_timeout\"} 1\n"));
}

/// What a connection was silent before is no part of a head's time, nor is its drip of the silence.
#[tokio::test]
async fn a_head_has_its_time_from_its_first_byte_on() {
    let (stub, router) = impatient().await;
    let mut client = Client::connect(router.data).await;
    assert_eq!(client.exchange(get("/v1/x")).await.status(), 200);
    pace(HEAD + HEAD / 2).await;
    client.send("GET /v1/x HTTP/1.1\r\n").await;
    pace(HEAD / 2).await;
    client.send("host: x\r\n\r\n").await;
    assert_eq!(client.response("GET").await.status(), 200, "a slow head within its time");
    let (took, answer) = drip(&mut client).await;
    answer.assert_router_error(408);
    assert!(took < HEAD * 5, "{took:?}");
    assert_eq!(stub.count(), 2);
}

#[tokio::test]
async fn who_says_nothing_is_let_go_without_an_answer() {
    let (_stub, router) = impatient().await;
    for address in [router.data, router.admin] {
        let started = Instant::now();
        let mut client = Client::connect(address).await;
        assert!(client.rest().await.is_empty());
        assert!(started.elapsed() >= HEAD && started.elapsed() < HEAD * 5, "{:?}", started.elapsed());
    }
    let mut client = Client::connect(router.data).await;
    assert_eq!(client.exchange(get("/v1/x")).await.status(), 200);
    let started = Instant::now();
    assert!(client.rest().await.is_empty());
    let silent = started.elapsed();
    assert!(silent > HEAD * 2 && silent < DEADLINE, "{silent:?} of 2 s to keep it alive");
}

#[tokio::test]
async fn a_preface_of_http2_has_the_time_of_a_head() {
    let (_stub, router) = impatient().await;
    for beginning in [&b""[..], b"PRI * HTTP/2"] {
        let started = Instant::now();
        let mut stream = TcpStream::connect(router.h2c).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let read = within("the close", DEADLINE, stream.read(&mut [0; 64])).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        assert!(started.elapsed() >= HEAD / 2, "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_preface_over_tls_has_the_time_of_a_head() {
    let (authority, stub) = (Authority::new("one"), Stub::start().await);
    let pair = authority.sign(&["edge.example"]);
    let listener = "address: 127.0.0.1:0\ntls:\n  certificates:\n    - {cert: 0.crt, key: \"file:0.key\"}";
    let setup = Setup::of(&[&stub]).yaml(TERMS).listener(listener);
    let router = setup.beside("0.crt", pair.cert.as_str()).beside("0.key", pair.key.as_str()).start().await;
    let visitor = Visitor::new(&authority, "edge.example", None).offering(&["h2"]);
    let mut stream = visitor.shake(router.listeners[2]).await.unwrap();
    let read = within("the close", DEADLINE, stream.read(&mut [0; 64])).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}
