//! Going down without losing a request: who is still connected, and when everybody is done.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
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

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// SIGTERM, SIGINT.
    End,
    /// SIGQUIT: a process that takes over.
    Upgrade,
}

/// The signals that end a router. Once there is one, they no longer end the process by themselves.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl Signals {
    /// Listens for them on a runtime. Errors: the system gives no signal handler.
    pub fn listen(runtime: &Handle) -> io::Result<Self> {
        let _entered = runtime.enter();
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Wanted {
        tokio::select! {
            _ = self.terminate.recv() => Wanted::End,
            _ = self.interrupt.recv() => Wanted::End,
            _ = self.quit.recv() => Wanted::Upgrade,
        }
    }

    /// The next one that wants an end.
    pub(crate) async fn end(&mut self) {
        while self.next().await != Wanted::End {}
    }
}
