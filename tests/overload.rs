//! More requests than there is room for: limits that hold, a line that is fair, answers that say when to come back.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::post_with;
use harness::{Answer, Client, Router, Setup, Signal, Step, Stub, exchange, post, prompts, until};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const PATH: &str = "/v1/chat/completions";

/// A replica that answers each request when the signal is fired for it.
async fn held() -> (Stub, Signal) {
    let (stub, go) = (Stub::start().await, Signal::default());
    let whole = Answer::json(200, "{}").steps.remove(0);
    stub.always(Answer::steps([Step::Wait(go.clone()), whole]));
    (stub, go)
}

/// Sends a request whose answer is not read yet.
async fn send(router: &Router, seed: u64) -> Client {
    let mut client = Client::connect(router.data).await;
    client.send(post(PATH, prompts::cold(seed))).await;
    client
}

async fn in_flight_is(router: &Router, in_flight: u64, waiting: u64) {
    let look = |state: &Value| {
        let pool = &state["pools"][0];
        (pool["in_flight"] == in_flight && pool["waiting"] == waiting).then_some(())
    };
    router.until_state(&format!("{in_flight} in flight and {waiting} waiting"), look).await;
}

#[tokio::test]
async fn a_full_endpoint_gets_no_more_and_a_full_pool_says_so() {
    let ((a, go_a), (b, go_b)) = (held().await, held().await);
    let router = Setup::of(&[&a, &b]).pool("limits: {endpoint_requests_max: 3}").start().await;
    let mut clients = Vec::new();
    // All of one prompt: belief does not overfill its home.
    for number in 0..6 {
        clients.push(send(&router, 1).await);
        in_flight_is(&router, number + 1, 0).await;
    }
    // All six have come there before they are counted.
    a.request(2).await;
    b.request(2).await;
    assert_eq!((a.count(), b.count()), (3, 3));
    let refused = router.chat(prompts::cold(1)).await;
    refused.assert_router_error(429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["code"], "saturated");
    assert_eq!(router.endpoint("a").await["standing"], "full");
    go_a.fire();
    in_flight_is(&router, 5, 0).await;
    clients.push(send(&router, 1).await);
    in_flight_is(&router, 6, 0).await;
    a.request(3).await;
    assert_eq!((a.count(), b.count()), (4, 3), "the place that is free");
    [go_a, go_b].iter().for_each(Signal::fire_all);
    in_flight_is(&router, 0, 0).await;
}

#[tokio::test]
async fn limits_hold_under_a_storm() {
    let (most, now) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (a, b) = (Stub::start().await, Stub::start().await);
    for stub in [&a, &b] {
        stub.always(Answer::steps([
            Step::Pause(Duration::from_millis(5)),
            harness::script::write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
        ]));
    }
    let pool =
        "limits: {endpoint_requests_max: 4, requests_max: 7}\nqueue: {requests_max: 1000, timeout: 30s}";
    let router = Arc::new(Setup::of(&[&a, &b]).pool(pool).start().await);
    let watcher = {
        let (router, most) = (router.clone(), most.clone());
        tokio::spawn(async move {
            loop {
                let state = router.state().await;
                let in_flight = state["pools"][0]["in_flight"].as_u64().unwrap() as usize;
                most.fetch_max(in_flight, Ordering::Relaxed);
                for row in state["endpoints"].as_array().unwrap() {
                    assert!(row["in_flight"].as_u64().unwrap() <= 4, "{row}");
                }
            }
        })
    };
    let mut sent = JoinSet::new();
    for seed in 0..400 {
        let (router, now) = (router.clone(), now.clone());
        sent.spawn(async move {
            let status = router.chat(prompts::cold(seed % 5)).await.status();
            now.fetch_add(1, Ordering::Relaxed);
            status
        });
    }
    let statuses = sent.join_all().await;
    assert!(!watcher.is_finished(), "the limits were kept");
    watcher.abort();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let most = most.load(Ordering::Relaxed);
    assert!((1..=7).contains(&most), "{most} in flight at most");
    in_flight_is(&router, 0, 0).await;
}

#[tokio::test]
async fn who_waits_is_served_in_turn_and_the_line_is_bounded() {
    let (a, go) = held().await;
    let pool = "limits: {requests_max: 1}\nqueue: {requests_max: 2, timeout: 20s}";
    let router = Setup::of(&[&a]).pool(pool).start().await;
    let first = send(&router, 0).await;
    in_flight_is(&router, 1, 0).await;
    let second = send(&router, 1).await;
    in_flight_is(&router, 1, 1).await;
    let third = send(&router, 2).await;
    in_flight_is(&router, 1, 2).await;
    router.chat(prompts::cold(3)).await.assert_router_error(429);
    for (number, mut client) in [first, second, third].into_iter().enumerate() {
        a.request(number).await;
        go.fire();
        assert_eq!(client.response("POST").await.status(), 200, "number {number}");
        let wanted = prompts::cold(number as u64);
        assert_eq!(a.seen(|seen| seen.requests[number].body.clone()), wanted.as_bytes(), "in turn");
    }
    in_flight_is(&router, 0, 0).await;
}

#[tokio::test]
async fn a_wait_ends_with_its_time_or_with_the_client() {
    let (a, go) = held().await;
    let pool = "limits: {requests_max: 1}\nqueue: {requests_max: 9, timeout: 300ms}";
    let router = Setup::of(&[&a]).pool(pool).start().await;
    let mut first = send(&router, 0).await;
    in_flight_is(&router, 1, 0).await;
    let late = router.chat(prompts::cold(1)).await;
    late.assert_router_error(429);
    assert_eq!(late.header("retry-after"), Some("1"));
    in_flight_is(&router, 1, 0).await;
    let mut longer =
        Setup::of(&[&a]).pool("limits: {requests_max: 1}\nqueue: {requests_max: 9, timeout: 20s}");
    router.becomes(&longer).await;
    let leaves = send(&router, 2).await;
    in_flight_is(&router, 1, 1).await;
    leaves.close();
    in_flight_is(&router, 1, 0).await;
    assert_eq!(a.count(), 1, "who left was not sent");
    let stays = send(&router, 3).await;
    in_flight_is(&router, 1, 1).await;
    // A reload does not lose who waits.
    longer = longer.yaml("response_headers: false");
    router.becomes(&longer).await;
    go.fire();
    assert_eq!(first.response("POST").await.status(), 200);
    let mut stays = stays;
    go.fire();
    assert_eq!(stays.response("POST").await.status(), 200);
}

#[tokio::test]
async fn a_higher_priority_goes_first_and_takes_the_last_place() {
    let (a, go) = held().await;
    let router = Setup::of(&[&a])
        .pool(
            "limits: {requests_max: 1}\nqueue: {requests_max: 2, timeout: 20s, priority_header: X-Priority}",
        )
        .tenant("batch", &["batch-key"], "priority: 1")
        .tenant("chat", &["chat-key"], "priority: 9")
        .start()
        .await;
    let ask = |key: &'static str, lines: &'static str, seed| {
        let lines = format!("authorization: Bearer {key}\r\n{lines}");
        let request = post_with(PATH, &lines, prompts::cold(seed));
        let data = router.data;
        async move {
            let mut client = Client::connect(data).await;
            client.send(request).await;
            client
        }
    };
    let mut running = ask("batch-key", "", 0).await;
    in_flight_is(&router, 1, 0).await;
    let mut low = ask("batch-key", "", 1).await;
    in_flight_is(&router, 1, 1).await;
    let mut urgent = ask("batch-key", "x-priority: 50\r\n", 2).await;
    in_flight_is(&router, 1, 2).await;
    let mut high = ask("chat-key", "", 3).await;
    low.response("POST").await.assert_router_error(429);
    let equal =
        post_with(PATH, "authorization: Bearer batch-key\r\nx-priority: nonsense\r\n", prompts::cold(4));
    exchange(router.data, equal).await.assert_router_error(429);
    for (number, (client, seed)) in
        [(&mut running, 0), (&mut urgent, 2), (&mut high, 3)].into_iter().enumerate()
    {
        a.request(number).await;
        go.fire();
        assert_eq!(client.response("POST").await.status(), 200);
        assert_eq!(a.seen(|seen| seen.requests[number].body.clone()), prompts::cold(seed).as_bytes());
    }
    let metrics = router.metrics().await;
    assert!(
        metrics.contains("prefixroute_pool_saturated_total{pool=\"default\",when=\"at_once\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("prefixroute_pool_saturated_total{pool=\"default\",when=\"waiting\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("prefixroute_pool_waited_total{pool=\"default\"} 3"), "{metrics}");
}

/// Nobody to send to is another thing than no room: 503 at once, however long the line is.
#[tokio::test]
async fn without_endpoints_nobody_waits() {
    let router = Setup::default().pool("queue: {requests_max: 9, timeout: 20s}").start().await;
    let response = router.chat(prompts::cold(1)).await;
    response.assert_router_error(503);
    assert_eq!(response.header("retry-after"), Some("1"));
}

/// A place frees when its endpoint dies, and who waits goes on.
#[tokio::test]
async fn a_line_moves_on_when_an_endpoint_dies() {
    let ((a, _keep), (b, go)) = (held().await, held().await);
    let pool = "limits: {endpoint_requests_max: 1}\nqueue: {requests_max: 9, timeout: 20s}";
    let router = Setup::of(&[&a, &b]).pool(pool).start().await;
    let mut clients = vec![send(&router, 0).await];
    in_flight_is(&router, 1, 0).await;
    clients.push(send(&router, 1).await);
    in_flight_is(&router, 2, 0).await;
    clients.push(send(&router, 2).await);
    in_flight_is(&router, 2, 1).await;
    a.refuse().await;
    until("its request to be told", Duration::from_secs(5), || async {
        (router.state().await["pools"][0]["in_flight"] == 1).then_some(())
    })
    .await;
    go.fire_all();
    in_flight_is(&router, 0, 0).await;
    assert_eq!(b.count(), 2, "its own, and who waited");
}
