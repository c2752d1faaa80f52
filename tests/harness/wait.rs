//! Waiting with a deadline: the one place where a test may poll.

use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything may take that should be quick; generous, because the machines are shared.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Between two looks at a condition. Polling, never synchronisation: a longer wait only costs time.
const POLL: Duration = Duration::from_millis(5);

/// Looks at `condition` until it yields something; panics naming `what` when `deadline` has passed.
pub async fn until<T, F, Fut>(what: &str, deadline: Duration, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// The result of `future`; panics naming `what` when it takes longer than `deadline`.
pub async fn within<T>(what: &str, deadline: Duration, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(deadline, future).await {
        Ok(result) => result,
        Err(_) => panic!("waited {deadline:?} in vain for {what}"),
    }
}

/// Holds the test's own pace: a client that trickles, a phase that must last. Never to wait for an effect.
pub async fn pace(duration: Duration) {
    tokio::time::sleep(duration).await;
}
