//! Going down without losing a request: who is still connected, and when everybody is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::router::Router;

/// Counts the connections of clients, so that a drain can wait for the last.
#[derive(Default)]
pub(crate) struct Connections {
    open: AtomicUsize,
    changed: Notify,
}

/// One client's connection, counted until it is dropped.
pub(crate) struct Connected(Arc<Router>);

impl Connected {
    /// Counts a connection.
    pub(crate) fn new(router: &Arc<Router>) -> Self {
        router.connections.open.fetch_add(1, Ordering::Relaxed);
        Self(router.clone())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.open.fetch_sub(1, Ordering::Relaxed);
        self.0.connections.changed.notify_waiters();
    }
}

impl Connections {
    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Waits until none is open, for `limit` at most. True if none is.
    pub(crate) async fn none_left(&self, limit: Duration) -> bool {
        let none = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Registered before the count is read, so no change is missed.
                changed.as_mut().enable();
                if self.open() == 0 {
                    return;
                }
                changed.await;
            }
        };
        timeout(limit, none).await.is_ok()
    }
}

/// Resolves at SIGTERM or SIGINT. Errors: the system gives no signal handler.
pub(crate) async fn signalled() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
