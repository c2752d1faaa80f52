//! What a stub does with a request: how much it reads, then steps in order.

use crate::log::Received;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How much of a request the stub reads before its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// Head and body.
    #[default]
    All,
    /// The head only; the body stays in the socket.
    HeadOnly,
}

/// A thing for a stub to do.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes and flushes these bytes.
    Write(Bytes),
    /// Writes this chunk so many times, as fast as it is taken.
    Flood(Bytes, usize),
    /// Waits until the test fires the signal once.
    Wait(Signal),
    /// Lets time pass between two writes: the pace of an engine, not a way to wait for something.
    Pause(Duration),
    /// Never goes on; ends when the peer has gone.
    Hang,
    /// Closes the connection (FIN; RST when unread bytes are left).
    Close,
    /// Resets the connection.
    Reset,
    /// The process is no more: its connections close, and its port refuses.
    Die,
}

/// How one request is served.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// How much of the request is read first.
    pub reading: Reading,
    /// Then these, in order. After the last the connection serves the next request.
    pub steps: Vec<Step>,
}

impl Answer {
    /// Reads the request, then takes these steps.
    pub fn steps(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { reading: Reading::All, steps: steps.into_iter().collect() }
    }

    /// Reads the request, then writes these bytes: status line, headers, body.
    pub fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self::steps([write(bytes)])
    }

    /// A JSON answer with a content-length.
    pub fn json(status: u16, body: &str) -> Self {
        let length = body.len();
        Self::raw(format!(
            "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    }

    /// The head of a stream and its first event; more steps follow.
    pub fn stream(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::steps([write(STREAM_HEAD)].into_iter().chain(steps))
    }

    /// The same, after the head of the request only.
    pub fn head_only(mut self) -> Self {
        self.reading = Reading::HeadOnly;
        self
    }
}

/// Status line and headers of a server-sent event stream, as vLLM writes them.
pub const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// A step that writes `bytes`.
pub fn write(bytes: impl AsRef<[u8]>) -> Step {
    Step::Write(Bytes::copy_from_slice(bytes.as_ref()))
}

/// A step that writes `bytes` as one chunk.
pub fn chunk(bytes: impl AsRef<[u8]>) -> Step {
    Step::Write(chunked(bytes))
}

/// A step that ends a chunked body.
pub fn last_chunk() -> Step {
    write("0\r\n\r\n")
}

/// `bytes` as one chunk of the chunked coding.
pub fn chunked(bytes: impl AsRef<[u8]>) -> Bytes {
    let bytes = bytes.as_ref();
    let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    framed.into()
}

/// Decides the answer once the request's head is there; `Received::body` is still empty then.
pub type Script = Arc<dyn Fn(&Received) -> Answer + Send + Sync>;

/// Something that a test fires and a script waits for; each firing lets one wait pass.
#[derive(Clone, Debug)]
pub struct Signal(Arc<Semaphore>);

impl Default for Signal {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Signal {
    /// Lets one waiting step go on, now or when it gets there.
    pub fn fire(&self) {
        self.0.add_permits(1);
    }

    /// Lets every waiting step go on.
    pub fn fire_all(&self) {
        self.0.close();
    }

    pub(crate) async fn fired(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}
