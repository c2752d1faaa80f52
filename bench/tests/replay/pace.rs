//! When requests leave, and from when their times count.

use super::faults::stub;
use super::*;

async fn sent(requests: usize, url: &str, pace: Pace) -> Vec<Record> {
    let body = r#"{"model":"m","messages":[]}"#.to_owned();
    let request = TraceRequest { at: Seconds(0.0), group: "g".to_owned(), body };
    let plan = Plan::of_bodies(vec![request; requests], Edits::default());
    let (plan, target) = (Arc::new(plan), Arc::new(Target::of(url)));
    let sent = replay::collect(&plan, &target, pace, &|_| {});
    tokio::time::timeout(DEADLINE, sent).await.unwrap().unwrap()
}

/// All are due at once and go one by one: each one's time has that of all before it.
#[tokio::test]
async fn waiting_for_a_slow_answer_counts() {
    let url = stub().await;
    let records = sent(4, &url, Pace::Open { speed: 1.0, in_flight_max: 1 }).await;
    for pair in records.windows(2) {
        assert!(pair[1].late >= pair[0].latency, "sent after the one before had ended");
        assert!(pair[1].ttft.unwrap() >= pair[1].late, "from when it was due");
    }
    let records = sent(4, &url, Pace::Closed { clients: 1 }).await;
    assert!(records.iter().all(|record| record.late.is_zero()), "no time at which it was due");
}

/// Answers only when as many as clients are waiting, so fewer would hang; more are counted.
#[tokio::test]
async fn a_closed_loop_has_its_clients_under_way() {
    struct Gate {
        here: AtomicUsize,
        most: AtomicUsize,
        all: Barrier,
    }
    async fn together(State(gate): State<Arc<Gate>>) -> &'static str {
        let here = gate.here.fetch_add(1, Ordering::SeqCst) + 1;
        gate.most.fetch_max(here, Ordering::SeqCst);
        gate.all.wait().await;
        gate.here.fetch_sub(1, Ordering::SeqCst);
        "{}"
    }
    let all = Barrier::new(3);
    let gate = Arc::new(Gate { here: AtomicUsize::new(0), most: AtomicUsize::new(0), all });
    let (url, _) = serve(axum::Router::new().fallback(together).with_state(Arc::clone(&gate))).await;
    let records = sent(9, &url, Pace::Closed { clients: 3 }).await;
    assert_eq!((records.len(), gate.most.load(Ordering::SeqCst)), (9, 3));
    assert!(records.iter().all(|record| record.failure.is_none()));
}

#[tokio::test]
async fn records_come_in_the_order_of_the_trace() {
    let server = fast(16).await;
    let trace = generate(&TraceOptions { rate: 0.0, ..TraceOptions::default() }).unwrap();
    let plan = Plan::of_bodies(trace.clone(), Edits::default());
    let pace = Pace::Open { speed: 1.0, in_flight_max: 8 };
    let target = Target::of(&server.url());
    let records = replay::collect(&Arc::new(plan), &Arc::new(target), pace, &|_| {}).await.unwrap();
    let came: Vec<_> = records.into_iter().filter_map(|record| record.group).collect();
    assert_eq!(came, trace.into_iter().map(|request| request.group).collect::<Vec<_>>());
}
