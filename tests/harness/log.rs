//! What a stub saw: each request with its raw bytes, its connection and its end.

use crate::wire::Head;
use bytes::Bytes;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A request as a stub received it.
#[derive(Clone, Debug)]
pub struct Received {
    /// Which connection carried it, counted from 0 in the order of acceptance.
    pub connection: usize,
    /// Its head.
    pub head: Head,
    /// The bytes of its head, blank line included.
    pub head_raw: Bytes,
    /// Its body, decoded.
    pub body: Bytes,
    /// Its body as it was framed on the wire.
    pub body_raw: Bytes,
    /// Whether the body came to its proper end.
    pub complete: bool,
    /// When the script had come to its end.
    pub served: Option<Instant>,
    /// When the stub saw the peer close or reset before that.
    pub abandoned: Option<Instant>,
}

impl Received {
    /// Panics unless it came under one framing only, whole, with this body.
    pub fn assert_framed_once(&self, body: &[u8]) {
        let lengths = self.head.all("content-length").len();
        let codings = self.head.all("transfer-encoding").len();
        assert_eq!(lengths + codings, 1, "{:?}", self.head);
        assert!(self.complete && self.body == body, "{} bytes, complete {}", self.body.len(), self.complete);
    }
}

/// What all connections of a stub have seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// Requests, `/metrics` left out, in the order of their heads.
    pub requests: Vec<Received>,
    /// Connections accepted.
    pub connections: usize,
    /// Scrapes of `/metrics` begun.
    pub scrapes: usize,
    /// Scrapes of `/metrics` under way, and the most at once.
    pub scraping: (usize, usize),
    /// Bytes written by `Flood` steps.
    pub flooded: usize,
}

/// The log of a stub: a record behind a lock, and a way to wait for it to change.
#[derive(Debug)]
pub struct Log {
    seen: Mutex<Seen>,
    changed: watch::Sender<()>,
}

impl Default for Log {
    fn default() -> Self {
        Self { seen: Mutex::default(), changed: watch::Sender::new(()) }
    }
}

impl Log {
    /// Changes the record and wakes those who wait.
    pub fn note<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        let result = change(&mut self.seen.lock());
        self.changed.send_replace(());
        result
    }

    /// Looks at the record.
    pub fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock())
    }

    /// Waits until `look` finds something; panics naming `what` at the deadline.
    pub async fn wait<T>(&self, what: &str, deadline: Duration, look: impl Fn(&Seen) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        let found = async {
            loop {
                changes.borrow_and_update();
                if let Some(found) = self.look(&look) {
                    return found;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        match tokio::time::timeout(deadline, found).await {
            Ok(found) => found,
            Err(_) => panic!("waited {deadline:?} in vain for {what}; seen: {}", self.look(summary)),
        }
    }
}

fn summary(seen: &Seen) -> String {
    let lines = seen.requests.iter().map(|request| {
        let Received { connection, head, body, complete, served, abandoned, .. } = request;
        let (served, abandoned, length) = (served.is_some(), abandoned.is_some(), body.len());
        format!(
            "\n  connection {connection}: {} (body {length} bytes, complete {complete}, served {served}, abandoned {abandoned})",
            head.first_line
        )
    });
    format!("{} connections, {} scrapes{}", seen.connections, seen.scrapes, lines.collect::<String>())
}
