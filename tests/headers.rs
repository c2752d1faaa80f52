//! Which headers pass, which end here, and requests that no header or target may lead astray.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::{get, post_head};
use harness::wait::pace;
use harness::{Answer, Client, Router, Setup, Stub, prompts, within};
use std::time::Duration;

/// Within this a connection that the router gave up is closed, what it still reads of it included.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

async fn fleet_of_one() -> (Stub, Router) {
    let stub = Stub::start().await;
    let router = Setup::of(&[&stub]).start().await;
    (stub, router)
}

const NOISY_REQUEST: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: public.example\r\nAuthorization: Bearer k\r\n\
    Connection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=9\r\nProxy-Connection: keep-alive\r\n\
    TE: trailers\r\nX-PrefixRoute-Endpoint: b\r\nx-prefixroute-match: 9/9\r\nx-prefixroute-policy: mine\r\n\
    X-Request-Id: r-1\r\nAccept: a\r\nAccept: b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// The headers of the noisy request as the stub got them.
async fn noise_at_the_stub() -> Vec<(String, String)> {
    let (stub, router) = fleet_of_one().await;
    assert_eq!(harness::exchange(router.data, NOISY_REQUEST).await.status(), 200);
    let (request, address) = (stub.request(0).await, stub.address().to_string());
    assert_eq!(request.head.all("host"), [address.as_str()], "host is the endpoint's");
    request.head.headers
}

#[tokio::test]
async fn hop_by_hop_headers_of_a_request_are_stripped() {
    let headers = noise_at_the_stub().await;
    for name in ["x-private", "keep-alive", "proxy-connection", "te"] {
        assert!(!headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name)), "{name} in {headers:?}");
    }
    let nominates = |(name, value): &(String, String)| {
        name.eq_ignore_ascii_case("connection") && value.contains("rivate")
    };
    assert!(!headers.iter().any(nominates), "{headers:?}");
}

#[tokio::test]
async fn the_routers_own_names_in_a_request_are_dropped() {
    let headers = noise_at_the_stub().await;
    assert!(!headers.iter().any(|(name, _)| name.to_lowercase().starts_with("x-prefixroute")), "{headers:?}");
}

/// Between different names HTTP gives order no meaning; within one it does.
#[tokio::test]
async fn end_to_end_headers_of_a_request_keep_case_and_number() {
    let headers = noise_at_the_stub().await;
    for name in ["Authorization", "X-Request-Id", "Content-Type"] {
        assert_eq!(headers.iter().filter(|(found, _)| found == name).count(), 1, "{name} in {headers:?}");
    }
    let accepted: Vec<_> =
        headers.iter().filter(|(name, _)| name == "Accept").map(|(_, value)| value.as_str()).collect();
    assert_eq!(accepted, ["a", "b"]);
}

#[tokio::test]
async fn headers_of_a_response_keep_their_order_when_others_are_stripped() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::raw(
        "HTTP/1.1 200 OK\r\nconnection: x-secret\r\nFirst: 1\r\nx-secret: 1\r\nSecond: 2\r\nkeep-alive: timeout=5\r\n\
         Third: 3\r\nfourth: 4\r\ncontent-length: 2\r\n\r\n{}",
    ));
    let response = router.chat(prompts::cold(1)).await;
    let wanted = ["First", "Second", "Third", "fourth"];
    let names = response.head.headers.iter().map(|(name, _)| name.as_str());
    let found: Vec<_> =
        names.filter(|name| wanted.iter().any(|one| one.eq_ignore_ascii_case(name))).collect();
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn hop_by_hop_headers_of_a_response_are_stripped_and_own_names_are_the_routers() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::raw(
        "HTTP/1.1 200 OK\r\nconnection: keep-alive, x-secret\r\nx-secret: 1\r\nkeep-alive: timeout=5\r\n\
         x-prefixroute-endpoint: liar\r\nx-kept: yes\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 2\r\n\r\n{}",
    ));
    let response = router.chat(prompts::cold(1)).await;
    for name in ["x-secret", "keep-alive"] {
        assert_eq!(response.header(name), None, "{response:?}");
    }
    assert_eq!(response.head.all("x-prefixroute-endpoint"), ["a"]);
    assert_eq!(response.head.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(response.header("x-kept"), Some("yes"));
}

#[tokio::test]
async fn an_absolute_target_and_a_foreign_host_do_not_choose_the_upstream() {
    let (stub, router) = fleet_of_one().await;
    let request = "GET http://elsewhere.example/v1/models HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n";
    let response = harness::exchange(router.data, request).await;
    assert!([200, 400].contains(&response.status()), "{response:?}");
    if stub.count() > 0 {
        let head = stub.last().head;
        assert_eq!(
            (head.target(), head.header("host")),
            ("/v1/models", Some(stub.address().to_string().as_str()))
        );
    }
}

/// A client that offers an upgrade gets an ordinary answer or a refusal, never a tunnel.
#[tokio::test]
async fn an_upgrade_is_not_tunnelled() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    let upgrade = "GET /v1/models HTTP/1.1\r\nhost: router\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\n";
    let response = client.exchange([upgrade.as_bytes(), &get("/next")].concat()).await;
    assert!([200, 400, 501].contains(&response.status()), "{response:?}");
    let upgrades =
        stub.seen(|seen| seen.requests.iter().filter(|one| one.head.header("upgrade").is_some()).count());
    assert_eq!(upgrades, 0, "an upgrade is between two ends of one connection");
}

/// Broken HTTP is the router's own 400; nothing of it reaches a replica.
async fn is_400(broken: &str) {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    client.send(broken).await;
    let response = client.response("POST").await;
    assert_eq!((response.status(), stub.count()), (400, 0), "{response:?}");
    response.assert_router_error(400);
}

#[tokio::test]
async fn a_broken_request_line_is_400() {
    is_400("GARBAGE\r\n\r\n").await;
}

#[tokio::test]
async fn a_broken_header_line_is_400() {
    is_400("GET / HTTP/1.1\r\nhost: router\r\nbad header line\r\n\r\n").await;
}

#[tokio::test]
async fn two_different_lengths_are_400() {
    is_400("POST /v1/x HTTP/1.1\r\nhost: router\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x").await;
}

#[tokio::test]
async fn a_length_that_is_no_number_is_400() {
    is_400("POST /v1/x HTTP/1.1\r\nhost: router\r\ncontent-length: nine\r\n\r\n{}").await;
}

#[tokio::test]
async fn a_broken_chunk_head_is_400() {
    is_400("POST /v1/x HTTP/1.1\r\nhost: router\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n")
        .await;
}

/// A good chunk before the fault, a fault at once, a size that fits no integer.
const BROKEN_CHUNKS: [&str; 3] = ["2\r\n{}\r\nXX\r\n", "zz\r\n", "FFFFFFFFFFFFFFFF1\r\n"];

/// When the client sends what would be its next request.
#[derive(Clone, Copy, Debug)]
enum Next {
    ShortlyAfter,
    AfterThe400,
}

/// The 400 says that it is the last answer, and it is: the next request is neither answered nor forwarded.
async fn nothing_is_served_after(chunks: &str, next: Next) {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    client.send([&post_head("/v1/x", "transfer-encoding: chunked\r\n"), chunks.as_bytes()].concat()).await;
    if let Next::ShortlyAfter = next {
        pace(Duration::from_millis(200)).await;
        let _ = client.try_send(get("/smuggled")).await;
    }
    let response = client.response("POST").await;
    response.assert_router_error(400);
    assert_eq!(response.header("connection"), Some("close"), "{chunks:?} {next:?}");
    if let Next::AfterThe400 = next {
        let _ = client.try_send(get("/smuggled")).await;
    }
    let rest = within("the close", CLOSED_WITHIN, client.rest()).await;
    assert!(rest.is_empty(), "{chunks:?} {next:?}: answered once more: {rest:?}");
    assert_eq!(stub.count(), 0, "{chunks:?} {next:?}: reached a replica");
}

// D42
#[tokio::test]
async fn a_request_sent_shortly_after_a_broken_chunk_is_never_served() {
    for chunks in BROKEN_CHUNKS {
        nothing_is_served_after(chunks, Next::ShortlyAfter).await;
    }
}

// D42
#[tokio::test]
async fn a_request_sent_after_the_400_of_a_broken_chunk_is_never_served() {
    for chunks in BROKEN_CHUNKS {
        nothing_is_served_after(chunks, Next::AfterThe400).await;
    }
}

#[tokio::test]
async fn a_tunnel_is_405_and_the_end_of_its_connection() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    let tunnel = "CONNECT elsewhere.example:443 HTTP/1.1\r\nhost: elsewhere.example:443\r\n\r\n";
    client.exchange(tunnel).await.assert_router_error(405);
    client.closed(CLOSED_WITHIN).await;
    assert_eq!(stub.count(), 0);
}

/// The engine would get the coded body without the coding's name.
#[tokio::test]
async fn another_coding_under_the_chunks_of_a_request_is_400() {
    for codings in
        ["transfer-encoding: gzip, chunked\r\n", "transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n"]
    {
        let head = String::from_utf8(post_head("/v1/x", codings)).unwrap();
        is_400(&format!("{head}2\r\n{{}}\r\n0\r\n\r\n")).await;
    }
}

#[tokio::test]
async fn another_coding_under_the_chunks_of_a_response_is_502() {
    let (stub, router) = fleet_of_one().await;
    stub.always(Answer::raw(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ));
    router.chat(prompts::cold(1)).await.assert_router_error(502);
    assert_eq!(stub.count(), 1);
}

#[tokio::test]
async fn http11_without_a_host_is_400() {
    is_400("GET /v1/models HTTP/1.1\r\n\r\n").await;
    is_400("POST /v1/x HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}").await;
}

#[tokio::test]
async fn http10_without_a_host_is_served() {
    let (stub, router) = fleet_of_one().await;
    let request = "POST /v1/x HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(harness::exchange(router.data, request).await.status(), 200);
    assert_eq!(stub.request(0).await.body, "{}");
}

/// Interim answers came with HTTP/1.1: an older client would take one for its answer.
#[tokio::test]
async fn http10_gets_no_100() {
    let (stub, router) = fleet_of_one().await;
    let mut client = Client::connect(router.data).await;
    client.send("POST /v1/x HTTP/1.0\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n").await;
    pace(Duration::from_millis(100)).await;
    client.send("{}").await;
    let response = client.response("POST").await;
    assert_eq!((response.status(), response.interim.len()), (200, 0), "{response:?}");
    assert_eq!(stub.request(0).await.body, "{}");
}

#[tokio::test]
async fn two_framings_in_one_request_are_read_in_one_way_only() {
    let (stub, router) = fleet_of_one().await;
    let both = "POST /v1/completions HTTP/1.1\r\nhost: router\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n\
        2\r\n{}\r\n0\r\n\r\n";
    let mut client = Client::connect(router.data).await;
    client.send(both).await;
    let status = client.response("POST").await.status();
    match stub.count() {
        0 => assert_eq!(status, 400),
        _ => stub.request(0).await.assert_framed_once(b"{}"),
    }
}
