//! An HTTP/1.1 client that sends exactly what it is given and hides nothing of what comes back.

use crate::wait::{DEADLINE, within};
use crate::wire::{Framing, Head, Reader};
use bytes::Bytes;
use std::io::Result;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// A response may follow tens of megabytes through an unoptimised build.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(30);

/// A response as it came.
#[derive(Clone, Debug)]
pub struct Response {
    /// Interim responses (1xx) before it.
    pub interim: Vec<Head>,
    /// Status line and headers.
    pub head: Head,
    /// The decoded body, as far as it came.
    pub body: Bytes,
    /// Why the body ended early, if it did.
    pub broken: Option<String>,
}

impl Response {
    /// The status.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The body as text; bytes that are no UTF-8 become U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; panics with the response when it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|fault| panic!("{fault} in {self:?}"))
    }

    /// The endpoint that the router says it chose; empty when it says nothing.
    pub fn endpoint(&self) -> String {
        self.header("x-prefixroute-endpoint").unwrap_or_default().to_owned()
    }

    /// Matched and total blocks that the router says; panics when it says nothing.
    pub fn matched(&self) -> (usize, usize) {
        let header = self.header("x-prefixroute-match");
        let (matched, total) =
            header.and_then(|text| text.split_once('/')).unwrap_or_else(|| panic!("{self:?}"));
        (matched.parse().unwrap(), total.parse().unwrap())
    }

    /// Panics unless this is an error made by the router, in OpenAI's shape, with this status.
    pub fn assert_router_error(&self, status: u16) {
        assert_eq!(self.status(), status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        let body = self.json();
        let error = body.get("error").unwrap_or_else(|| panic!("no error in {body}"));
        for member in ["message", "type", "param", "code"] {
            assert!(error.get(member).is_some(), "no {member} in {body}");
        }
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    }
}

/// A client connection.
#[derive(Debug)]
pub struct Client {
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Client {
    /// Connects.
    pub async fn connect(to: SocketAddr) -> Self {
        Self::try_connect(to).await.unwrap_or_else(|fault| panic!("connect to {to}: {fault}"))
    }

    /// Connects, or says why not.
    pub async fn try_connect(to: SocketAddr) -> Result<Self> {
        let stream = within("a connection", DEADLINE, TcpStream::connect(to)).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self { reader: Reader::new(reader), writer })
    }

    /// Writes these bytes, and panics when the other side does not take them.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).await.expect("the router takes what the client sends");
    }

    /// Writes these bytes; a refusal half way is the caller's to judge.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        within("the router to take bytes", RESPONSE_DEADLINE, self.writer.write_all(bytes.as_ref())).await
    }

    /// The next head; 1xx heads count.
    pub async fn head(&mut self) -> Head {
        let head = within("a response head", RESPONSE_DEADLINE, self.reader.head()).await;
        head.expect("a whole head").expect("a response before the close")
    }

    /// The next decoded bytes of a body; none at its proper end.
    pub async fn piece(&mut self, framing: &mut Framing) -> Result<Option<Bytes>> {
        within("a piece of the body", RESPONSE_DEADLINE, self.reader.piece(framing)).await
    }

    /// Body bytes until they hold `end`; panics when the body ends before.
    pub async fn body_until(&mut self, framing: &mut Framing, end: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        while !body.ends_with(end) {
            let piece = self.piece(framing).await.expect("an unbroken body");
            body.extend_from_slice(&piece.unwrap_or_else(|| panic!("the body ended after {body:?}")));
        }
        body
    }

    /// The response to a request with this method.
    pub async fn response(&mut self, method: &str) -> Response {
        let mut interim = Vec::new();
        let head = loop {
            let head = self.head().await;
            match head.status() {
                100 | 102 | 103 => interim.push(head),
                _ => break head,
            }
        };
        let body = self.reader.body(head.response_framing(method));
        let (body, fault) = within("the end of the body", RESPONSE_DEADLINE, body).await;
        Response { interim, head, body, broken: fault.map(|fault| fault.to_string()) }
    }

    /// Sends a request and waits for the response; the connection stays for the next.
    pub async fn exchange(&mut self, request: impl AsRef<[u8]>) -> Response {
        let request = request.as_ref();
        let method = Head::parse(request).method().to_owned();
        self.send(request).await;
        self.response(&method).await
    }

    /// Everything up to the close, undecoded.
    pub async fn rest(&mut self) -> Bytes {
        within("the close", RESPONSE_DEADLINE, self.reader.body(Framing::UntilClose)).await.0
    }

    /// The raw beginning of what comes next; empty when the connection closes or is reset instead.
    pub async fn next_bytes(&mut self) -> Bytes {
        let mut framing = Framing::UntilClose;
        self.piece(&mut framing).await.ok().flatten().unwrap_or_default()
    }

    /// Resolves when the router has closed the connection; panics after `deadline`.
    pub async fn closed(&mut self, deadline: Duration) {
        within("the router to close the connection", deadline, self.reader.peer_gone()).await;
    }

    /// Ends the writing side (FIN) and keeps reading.
    pub async fn half_close(&mut self) {
        self.writer.shutdown().await.expect("an open connection");
    }

    /// Closes with a FIN.
    pub fn close(self) {}

    /// Closes with an RST.
    pub fn reset(self) {
        let stream = self.reader.into_inner().reunite(self.writer).expect("two halves of one stream");
        stream.set_zero_linger().expect("a stream can linger for no time");
    }
}

/// One request on a connection of its own.
pub async fn exchange(to: SocketAddr, request: impl AsRef<[u8]>) -> Response {
    Client::connect(to).await.exchange(request).await
}

/// The bytes of a GET.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: router\r\n\r\n").into_bytes()
}

/// The bytes of a JSON POST.
pub fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = post_head(path, &format!("content-length: {}\r\n", body.len()));
    request.extend_from_slice(body);
    request
}

/// The bytes of a JSON POST with these further header lines.
pub fn post_with(path: &str, lines: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = post_head(path, &format!("{lines}content-length: {}\r\n", body.len()));
    request.extend_from_slice(body);
    request
}

/// The head of a JSON POST with these further header lines.
pub fn post_head(path: &str, lines: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n{lines}\r\n")
        .into_bytes()
}
