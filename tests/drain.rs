//! SIGTERM as clients and operators meet it: not ready first, told to close, nothing that was begun is lost, an end all the same.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::get;
use harness::h2_client::{post_request, response, response_head};
use harness::prompts::cold;
use harness::script::{chunk, last_chunk, write};
use harness::wait::pace;
use harness::wire::Framing;
use harness::{Answer, Client, DEADLINE, H2Client, Router, Setup, Signal, Step, Stub, exchange, post, until};
use std::time::Duration;

const PATH: &str = "/v1/chat/completions";
/// A phase that has to last.
const HALF_A_SECOND: Duration = Duration::from_millis(500);
/// More than are accepted before a signal arrives, and less than the system lets wait.
const WAITING: usize = 2_000;
const REST: &str = "data: tick\n\ndata: tick\n\ndata: [DONE]\n\n";

/// An answer of three events, each but the first let go by the test.
fn held_back(next: &Signal) -> Answer {
    let events = (0..3).flat_map(|_| [chunk("data: tick\n\n"), Step::Wait(next.clone())]);
    Answer::stream(events.chain([chunk("data: [DONE]\n\n"), last_chunk()]))
}

async fn stream_under_way(router: &Router, stub: &Stub) -> (Client, Framing, Signal) {
    let next = Signal::default();
    stub.always(held_back(&next));
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, cold(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    client.body_until(&mut framing, b"\n\n").await;
    (client, framing, next)
}

async fn not_ready(router: &Router) {
    until("the router not to be ready", DEADLINE, || async {
        (exchange(router.admin, get("/readyz")).await.status() == 503).then_some(())
    })
    .await;
}

async fn not_listening(router: &Router) {
    until("connections to be refused", DEADLINE, || async { Client::try_connect(router.data).await.err() })
        .await;
}

#[tokio::test]
async fn readiness_goes_first_and_connections_are_taken_meanwhile() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain_delay: 1h").start().await;
    let mut kept = Client::connect(router.data).await;
    assert_eq!(kept.exchange(get("/v1/models")).await.header("connection"), Some("keep-alive"));
    router.terminate().await;
    not_ready(&router).await;
    pace(HALF_A_SECOND).await;
    assert_eq!(exchange(router.admin, get("/healthz")).await.status(), 200);
    let response = exchange(router.data, get("/v1/models")).await;
    assert_eq!((response.status(), response.header("connection")), (200, Some("close")), "a new connection");
    let response = kept.exchange(get("/v1/models")).await;
    assert_eq!(
        (response.status(), response.header("connection")),
        (200, Some("close")),
        "one that was there"
    );
    kept.closed(DEADLINE).await;
    router.terminate().await;
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0), "the second signal, and nobody was there");
}

#[tokio::test]
async fn after_the_delay_the_drain_goes_on() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain_delay: 300ms").start().await;
    router.terminate().await;
    not_listening(&router).await;
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}

/// A request that is on its way when the router goes down is answered, on a connection that waits for one.
#[tokio::test]
async fn a_request_on_an_idle_connection_is_answered_and_told_to_close() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain_idle: 1h\ndrain: 2h").start().await;
    let (mut used, mut unused) = (Client::connect(router.data).await, Client::connect(router.data).await);
    assert_eq!(used.exchange(get("/v1/models")).await.status(), 200);
    // In two halves: the drain begins between them.
    unused.send("GET /v1/models HTTP/1.1\r\n").await;
    router.terminate().await;
    not_listening(&router).await;
    unused.send("host: router\r\n\r\n").await;
    for (shows, response) in
        [("half a head", unused.response("GET").await), ("idle", used.exchange(get("/v1/models")).await)]
    {
        assert_eq!((response.status(), response.header("connection")), (200, Some("close")), "{shows}");
    }
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}

/// The signal comes while the engine works: the answer still can tell the client.
#[tokio::test]
async fn a_request_under_way_is_answered_and_told_to_close() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain_idle: 1h\ndrain: 2h").start().await;
    let go = Signal::default();
    let answer = write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    stub.always(Answer::steps([Step::Wait(go.clone()), answer]));
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, cold(1))).await;
    stub.request(0).await;
    router.terminate().await;
    not_listening(&router).await;
    go.fire();
    let response = client.response("POST").await;
    assert_eq!((response.status(), response.header("connection")), (200, Some("close")));
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0), "nobody waits for the connection");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain_idle: 200ms").start().await;
    let mut idle = Client::connect(router.data).await;
    assert_eq!(idle.exchange(get("/v1/models")).await.status(), 200);
    router.terminate().await;
    idle.closed(DEADLINE).await;
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0), "nothing was cut");
}

/// Half of the limit at most: what nobody uses is not what a drain is cut for.
#[tokio::test]
async fn idle_connections_do_not_hold_a_drain_to_its_limit() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain_idle: 1h\ndrain: 1s").start().await;
    let mut idle = Client::connect(router.data).await;
    assert_eq!(idle.exchange(get("/v1/models")).await.status(), 200);
    router.terminate().await;
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}

/// Connections that the system has completed are served, even those that nobody has accepted yet: the router is stopped in the
/// midst, and finds the signal and the connections at once.
#[tokio::test]
async fn what_waits_to_be_accepted_is_not_reset() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).start().await;
    router.signal("STOP").await;
    let mut clients = Vec::new();
    for _ in 0..WAITING {
        let mut client = Client::connect(router.data).await;
        // Answered by the router itself: two thousand connections at once would be too many for the stub.
        client.send(get("/prefixroute/state")).await;
        clients.push(client);
    }
    router.terminate().await;
    router.signal("CONT").await;
    for client in &mut clients {
        assert_eq!(client.response("GET").await.status(), 200);
    }
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}

#[tokio::test]
async fn http2_is_told_to_go_away_and_its_streams_finish() {
    let stub = Stub::start().await;
    let next = Signal::default();
    stub.always(held_back(&next));
    let mut router = Setup::of(&[&stub]).start().await;
    let client = H2Client::connect(router.h2c).await;
    let mut stream = client.start(post_request(PATH, None), false).await;
    stream.body.send_data(cold(1).into(), true).unwrap();
    let (head, mut body) = response_head(stream.response).await;
    assert_eq!(head.first_line, "HTTP/2 200");
    router.terminate().await;
    let reason = client.refuses_streams().await;
    assert!(reason.is_go_away() && reason.is_remote(), "{reason:?}");
    assert_eq!(reason.reason(), Some(h2::Reason::NO_ERROR));
    next.fire_all();
    let mut text = Vec::new();
    while let Some(piece) = harness::h2_client::piece(&mut body).await {
        text.extend_from_slice(&piece.expect("a stream that is not cut"));
    }
    assert_eq!(String::from_utf8_lossy(&text), format!("data: tick\n\n{REST}"));
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}

/// A stream that the client opened before it heard of the end is served.
#[tokio::test]
async fn http2_requests_are_answered_until_the_client_knows() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain_delay: 1h").start().await;
    let client = H2Client::connect(router.h2c).await;
    router.terminate().await;
    not_ready(&router).await;
    let stream = client.start(http::Request::get("http://router/v1/models").body(()).unwrap(), true).await;
    assert_eq!(response(stream.response).await.status(), 200);
    router.terminate().await;
    assert_eq!(router.ended(DEADLINE).await.code(), Some(1), "the connection was there");
}

#[tokio::test]
async fn a_second_signal_ends_at_once_and_says_so() {
    for signal in ["TERM", "INT"] {
        let stub = Stub::start().await;
        let mut router = Setup::of(&[&stub]).yaml("drain: 1h").start().await;
        let (mut client, mut framing, _never) = stream_under_way(&router, &stub).await;
        router.terminate().await;
        not_listening(&router).await;
        router.signal(signal).await;
        assert_eq!(router.ended(DEADLINE).await.code(), Some(1), "{signal}");
        assert!(client.piece(&mut framing).await.is_err(), "what was cut looks cut");
        let told = |line: &str| line.contains("\"stopped\"") && line.contains("\"cut\":1");
        until("the log to tell", DEADLINE, || async { router.output().lines().any(told).then_some(()) })
            .await;
    }
}

#[tokio::test]
async fn the_limit_ends_a_drain_with_another_exit_code() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).yaml("drain: 1s").start().await;
    let (mut client, mut framing, _never) = stream_under_way(&router, &stub).await;
    router.terminate().await;
    assert_eq!(router.ended(DEADLINE).await.code(), Some(1));
    assert!(client.piece(&mut framing).await.is_err(), "what was cut looks cut");
}

/// Keep-alive clients and new connections under way when the signal comes: each request that was sent is answered.
#[tokio::test]
async fn no_request_is_lost_by_a_drain_under_load() {
    let stub = Stub::start().await;
    let mut router = Setup::of(&[&stub]).start().await;
    let data = router.data;
    let clients = (0..16).map(|number| {
        tokio::spawn(async move {
            let mut answered = 0;
            // As a client does that opens a connection when the last one was closed with notice.
            while let Ok(mut client) = Client::try_connect(data).await {
                loop {
                    client.send(post(PATH, cold(number))).await;
                    let response = client.response("POST").await;
                    assert_eq!((response.status(), &response.broken), (200, &None), "{response:?}");
                    answered += 1;
                    if number % 2 == 0 || response.header("connection") == Some("close") {
                        break;
                    }
                }
            }
            answered
        })
    });
    let clients: Vec<_> = clients.collect();
    stub.wait("requests", DEADLINE, |seen| (seen.requests.len() > 100).then_some(())).await;
    pace(HALF_A_SECOND).await;
    router.terminate().await;
    for client in clients {
        assert!(client.await.expect("no request was lost") > 0);
    }
    assert_eq!(router.ended(DEADLINE).await.code(), Some(0));
}
