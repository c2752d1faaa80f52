//! D42: bytes that two parties could read as one request or as two. Beside what `headers.rs` has.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::get;
use harness::wait::pace;
use harness::{Answer, Client, Router, Setup, Stub, prompts};
use std::time::Duration;

async fn fleet_of_one() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    (stub, router)
}

/// Heads and bodies that must be refused, or read in one way.
fn riddles() -> Vec<(&'static str, String)> {
    let post = |lines: &str, body: &str| format!("POST /v1/x HTTP/1.1\r\nhost: router\r\n{lines}\r\n{body}");
    let chunks = "2\r\n{}\r\n0\r\n\r\n";
    let chunked = |line: &str| post(&format!("{line}\r\n"), chunks);
    vec![
        ("length and chunks", post("content-length: 2\r\ntransfer-encoding: chunked\r\n", chunks)),
        ("chunks and length", post("transfer-encoding: chunked\r\ncontent-length: 2\r\n", chunks)),
        ("chunked, identity", chunked("transfer-encoding: chunked, identity")),
        ("identity, chunked", chunked("transfer-encoding: identity, chunked")),
        ("identity", post("transfer-encoding: identity\r\ncontent-length: 2\r\n", "{}")),
        ("xchunked", chunked("transfer-encoding: xchunked")),
        ("chunked twice", chunked("transfer-encoding: chunked, chunked")),
        ("two codings", chunked("transfer-encoding: chunked\r\ntransfer-encoding: identity")),
        ("two chunked", chunked("transfer-encoding: chunked\r\ntransfer-encoding: chunked")),
        ("a blank before the colon", chunked("transfer-encoding : chunked")),
        ("a vertical tab", chunked("transfer-encoding: \u{b}chunked")),
        ("a form feed", chunked("transfer-encoding: chunked\u{c}")),
        ("quotes", chunked("transfer-encoding: \"chunked\"")),
        ("a parameter", chunked("transfer-encoding: chunked;x=1")),
        ("no coding", chunked("transfer-encoding: ")),
        ("a sign", post("content-length: +2\r\n", "{}")),
        ("a minus", post("content-length: -2\r\n", "{}")),
        ("a list of lengths", post("content-length: 2,2\r\n", "{}")),
        ("a list that differs", post("content-length: 2, 5\r\n", "{}")),
        ("hexadecimal", post("content-length: 0x2\r\n", "{}")),
        ("a blank within", post("content-length: 2 2\r\n", "{}")),
        ("an empty length", post("content-length: \r\n", "{}")),
        ("a length beyond all integers", post("content-length: 18446744073709551618\r\n", "{}")),
        ("two lengths", post("content-length: 2\r\ncontent-length: 5\r\n", "{}")),
        ("bare line feeds", "POST /v1/x HTTP/1.1\nhost: router\ncontent-length: 2\n\n{}".to_owned()),
        ("one bare line feed", post("x-a: b\ncontent-length: 2\r\n", "{}")),
        ("a folded header", post("x-a: b\r\n c: d\r\ncontent-length: 2\r\n", "{}")),
        ("a folded coding", post("transfer-encoding:\r\n chunked\r\n", chunks)),
        ("NUL in a value", post("x-a: b\0c\r\ncontent-length: 2\r\n", "{}")),
        ("CR in a value", post("x-a: b\rcontent-length: 9\r\ncontent-length: 2\r\n", "{}")),
        ("NUL in a name", post("x\0a: b\r\ncontent-length: 2\r\n", "{}")),
        (
            "a chunk head beyond all integers",
            post("transfer-encoding: chunked\r\n", "FFFFFFFFFFFFFFFF1\r\n{}\r\n0\r\n\r\n"),
        ),
        ("a signed chunk head", post("transfer-encoding: chunked\r\n", "+2\r\n{}\r\n0\r\n\r\n")),
        ("0x in a chunk head", post("transfer-encoding: chunked\r\n", "0x2\r\n{}\r\n0\r\n\r\n")),
        ("a chunk longer than its head", post("transfer-encoding: chunked\r\n", "2\r\n{}x\r\n0\r\n\r\n")),
        ("a bare line feed behind a chunk", post("transfer-encoding: chunked\r\n", "2\r\n{}\n0\r\n\r\n")),
        ("a bare line feed in a chunk head", post("transfer-encoding: chunked\r\n", "2\n{}\r\n0\r\n\r\n")),
        (
            "a trailer of framing",
            post("transfer-encoding: chunked\r\n", "2\r\n{}\r\n0\r\ncontent-length: 9\r\n\r\n"),
        ),
        (
            "an old version with chunks",
            post("transfer-encoding: chunked\r\n", chunks).replacen("HTTP/1.1", "HTTP/1.0", 1),
        ),
        ("a version that is none", post("content-length: 2\r\n", "{}").replacen("HTTP/1.1", "HTTP/1.9", 1)),
        ("a blank in the target", post("content-length: 2\r\n", "{}").replacen("/v1/x", "/v1/x y", 1)),
        ("a body of a GET", post("content-length: 2\r\n", "{}").replacen("POST", "GET", 1)),
        ("two hosts", post("host: other\r\ncontent-length: 2\r\n", "{}")),
    ]
}

/// What the stub got is what one reader makes of it: one framing, no line that somebody else reads in another way.
fn assert_unambiguous(shows: &str, stub: &Stub) {
    stub.seen(|seen| {
        for request in &seen.requests {
            let head = &request.head;
            let framings = head.all("content-length").len() + head.all("transfer-encoding").len();
            assert!(framings <= 1, "{shows}: {head:?}");
            assert!(
                head.header("transfer-encoding").is_none_or(|coding| coding == "chunked"),
                "{shows}: {head:?}"
            );
            assert_eq!(head.all("host").len(), 1, "{shows}: {head:?}");
            let lines = request.head_raw.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            for line in lines {
                assert!(line.ends_with(b"\r") && !line.contains(&0), "{shows}: {head:?}");
                assert!(!line[..line.len() - 1].contains(&b'\r'), "{shows}: {head:?}");
                assert!(!line.starts_with(b" ") && !line.starts_with(b"\t"), "{shows}: {head:?}");
            }
        }
    });
}

// D42
#[tokio::test]
async fn a_request_is_read_in_one_way_or_refused() {
    for (shows, riddle) in riddles() {
        let (stub, router) = fleet_of_one().await;
        let mut client = Client::connect(router.data).await;
        client.send([riddle.as_bytes(), &get("/smuggled")].concat()).await;
        let first = client.response("POST").await;
        let rest = client_rest(&mut client).await;
        assert_unambiguous(shows, &stub);
        let lines = stub.seen(|seen| {
            let lines = seen.requests.iter().map(|one| one.head.first_line.clone());
            lines.collect::<Vec<_>>()
        });
        let answers = 1 + rest.matches("HTTP/1.1 ").count();
        if first.status() == 200 {
            // Each answer belongs to a request of its own, in order, and the engine got as many.
            assert_eq!(lines.len(), answers, "{shows}: {lines:?} {rest}");
            assert!(lines[0].contains("/v1/x") && lines.len() <= 2, "{shows}: {lines:?}");
            let bodies =
                stub.seen(|seen| seen.requests.iter().map(|one| one.body.clone()).collect::<Vec<_>>());
            assert!(bodies.iter().all(|body| body.is_empty() || body == "{}"), "{shows}: {bodies:?}");
        } else {
            assert!([400, 408, 501, 505].contains(&first.status()), "{shows}: {first:?}");
            assert!(answers == 1 && lines.is_empty(), "{shows}: served after a refusal: {lines:?} {rest}");
        }
    }
}

/// What else comes on the connection until it closes, or until nothing more does.
async fn client_rest(client: &mut Client) -> String {
    let mut rest = Vec::new();
    loop {
        tokio::select! {
            bytes = client.next_bytes() => match bytes.is_empty() {
                true => break,
                false => rest.extend_from_slice(&bytes),
            },
            () = pace(Duration::from_millis(120)) => break,
        }
    }
    String::from_utf8_lossy(&rest).into_owned()
}

// D42
#[tokio::test]
async fn a_huge_chunk_extension_is_bounded_or_read() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    let head = "POST /v1/x HTTP/1.1\r\nhost: router\r\ntransfer-encoding: chunked\r\n\r\n";
    let _ = client.try_send(format!("{head}2;x={}\r\n{{}}\r\n0\r\n\r\n", "y".repeat(1 << 20))).await;
    let _ = client.try_send(get("/smuggled")).await;
    let response = client.next_bytes().await;
    let text = String::from_utf8_lossy(&response);
    assert!(
        text.is_empty() || text.starts_with("HTTP/1.1 400") || text.starts_with("HTTP/1.1 200"),
        "{text}"
    );
    assert_unambiguous("an extension", &stub);
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200, "it lives");
}

// D42
#[tokio::test]
async fn an_engine_that_does_not_switch_gets_no_tunnel() {
    let (stub, router) = fleet_of_one().await;
    let upgrade = "GET /v1/x HTTP/1.1\r\nhost: router\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\
        http2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n";
    let mut client = Client::connect(router.data).await;
    client.send([upgrade.as_bytes(), &get("/smuggled")].concat()).await;
    assert_eq!(client.response("GET").await.status(), 200);
    let head = stub.seen(|seen| seen.requests[0].head.clone());
    for name in ["upgrade", "http2-settings", "connection"] {
        assert!(head.header(name).is_none_or(|value| !value.to_lowercase().contains("upgrade")), "{head:?}");
    }
    // An engine that switches though nobody asked is broken.
    stub.always(Answer::raw(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\n",
    ));
    let mut client = Client::connect(router.data).await;
    client.send([upgrade.as_bytes(), &get("/smuggled")].concat()).await;
    client.response("GET").await.assert_router_error(502);
}

/// A riddle over HTTP/2: what it shows, its header fields, its body.
type Riddle<'a> = (&'a str, Vec<(&'a str, &'a str)>, Option<&'a str>);

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A connection with one request of these header fields, each as it is: no client library would send them.
fn http2(fields: &[(&str, &str)], body: Option<&str>) -> Vec<u8> {
    let pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "router"), (":path", "/v1/x")];
    let own = |name: &str| fields.iter().any(|(found, _)| *found == name);
    let pseudo = pseudo.iter().filter(|(name, _)| !own(name));
    let (own_pseudo, rest): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| name.starts_with(':'));
    let mut block = Vec::new();
    for (name, value) in pseudo.chain(own_pseudo).chain(rest) {
        block.push(0); // literal, not indexed, with a new name
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    let ends = u8::from(body.is_none());
    let data = body.map(|body| frame(0, 1, 1, body.as_bytes())).unwrap_or_default();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    [preface.as_slice(), &frame(4, 0, 0, &[]), &frame(1, 4 | ends, 1, &block), &data].concat()
}

// D42
#[tokio::test]
async fn http2_carries_no_second_head_into_http1() {
    let smuggled = "a\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let rows: Vec<Riddle<'_>> = vec![
        ("CRLF in a value", vec![("x-a", smuggled)], None),
        ("LF in a value", vec![("x-a", "a\nb: c")], None),
        ("NUL in a value", vec![("x-a", "a\0b")], None),
        ("CRLF in a name", vec![("x-a: b\r\nx-c", "d")], None),
        ("a colon in a name", vec![("x:a", "b")], None),
        ("a blank in a name", vec![("content-length ", "2")], None),
        ("a capital in a name", vec![("Transfer-Encoding", "chunked")], Some("0\r\n\r\n")),
        ("CRLF in the path", vec![(":path", "/v1/x HTTP/1.1\r\nx: y\r\n\r\nGET /smuggled")], None),
        ("a blank in the path", vec![(":path", "/v1/x HTTP/1.1 /smuggled")], None),
        ("no path", vec![(":path", "")], None),
        ("CRLF in the method", vec![(":method", "GET /smuggled HTTP/1.1\r\nx: y\r\n\r\nGET")], None),
        ("a blank in the method", vec![(":method", "GET /smuggled")], None),
        ("CRLF in the authority", vec![(":authority", "x\r\nx: y")], None),
        ("a coding", vec![("transfer-encoding", "chunked")], Some("0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")),
        ("a length too small", vec![("content-length", "2")], Some("{}GET /smuggled HTTP/1.1\r\n\r\n")),
        ("a length too large", vec![("content-length", "9")], Some("{}")),
        ("two lengths", vec![("content-length", "2"), ("content-length", "3")], Some("{}")),
        ("a connection", vec![("connection", "content-length")], Some("{}")),
        ("an upgrade", vec![("upgrade", "foo")], Some("{}")),
        ("te", vec![("te", "gzip, chunked")], Some("{}")),
        ("two hosts", vec![("host", "a"), ("host", "b")], Some("{}")),
    ];
    for (shows, fields, body) in rows {
        let (stub, router) = fleet_of_one().await;
        let mut client = Client::connect(router.h2c).await;
        client.send(http2(&fields, body)).await;
        let _ = client_rest(&mut client).await;
        let reached = stub.seen(|seen| seen.requests.first().map(|request| request.head.clone()));
        assert_eq!(reached, None, "{shows}");
        assert_eq!(router.chat("{}").await.status(), 200, "{shows}: it lives");
    }
    // The frames are right: without a riddle it is a request.
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.h2c).await;
    client.send(http2(&[("x-a", "b")], Some("{}"))).await;
    let request = stub.request(0).await;
    assert_eq!((request.head.header("x-a"), request.body.as_ref()), (Some("b"), b"{}".as_slice()));
}
