//! An HTTP/2 client with prior knowledge, for the h2c listener.

use crate::client::Response;
use crate::wait::{DEADLINE, until, within};
use crate::wire::Head;
use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{Method, Request};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Why a stream that nobody wants any more is reset.
pub const CANCEL: h2::Reason = h2::Reason::CANCEL;

const RESPONSE_DEADLINE: Duration = Duration::from_secs(30);

/// A connection that many streams can share.
pub struct H2Client {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

/// A request whose body may still be on its way.
pub struct H2Stream {
    /// The response to come.
    pub response: ResponseFuture,
    /// The request's body.
    pub body: SendStream<Bytes>,
}

impl H2Client {
    /// Connects and shakes hands.
    pub async fn connect(to: SocketAddr) -> Self {
        let stream = within("a connection", DEADLINE, TcpStream::connect(to)).await.expect("an h2c listener");
        stream.set_nodelay(true).unwrap();
        let handshake = h2::client::Builder::new().initial_window_size(1 << 20).handshake(stream);
        let (requests, connection) =
            within("the HTTP/2 handshake", DEADLINE, handshake).await.expect("HTTP/2");
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { requests, driver }
    }

    /// Sends a head; `end` says that no body follows.
    pub async fn start(&self, request: Request<()>, end: bool) -> H2Stream {
        let ready = within("room for a stream", DEADLINE, self.requests.clone().ready()).await;
        let (response, body) =
            ready.and_then(|mut ready| ready.send_request(request, end)).expect("a stream");
        H2Stream { response, body }
    }

    /// Sends a request and waits for its response.
    pub async fn exchange(&self, request: Request<()>, body: impl Into<Bytes>) -> Response {
        let body = body.into();
        let mut stream = self.start(request, body.is_empty()).await;
        // An answer may come before the body is through: 413. Then the rest need not be taken.
        let upload = async {
            if !body.is_empty() {
                let _ = stream.body.send(body, true).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            response = response(stream.response) => response,
            () = upload => unreachable!("an upload never ends the exchange"),
        }
    }

    /// A JSON POST, with or without a content-length.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>, declare_length: bool) -> Response {
        let body = body.into();
        let length = declare_length.then_some(body.len());
        self.exchange(post_request(path, length), body).await
    }

    /// Waits until the server takes no more streams; why.
    pub async fn refuses_streams(&self) -> h2::Error {
        until("the connection to take no more streams", DEADLINE, || self.refusal()).await
    }

    async fn refusal(&self) -> Option<h2::Error> {
        self.requests.clone().ready().await.err()
    }

    /// Drops the connection with all its streams.
    pub fn drop_connection(self) {
        self.driver.abort();
    }
}

impl Drop for H2Client {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sends a body under flow control.
pub trait SendBody {
    /// Sends `data`, as the window allows; `end` closes the stream.
    fn send(&mut self, data: Bytes, end: bool) -> impl Future<Output = Result<(), h2::Error>>;
}

impl SendBody for SendStream<Bytes> {
    async fn send(&mut self, mut data: Bytes, end: bool) -> Result<(), h2::Error> {
        while !data.is_empty() {
            self.reserve_capacity(data.len());
            let room = std::future::poll_fn(|context| self.poll_capacity(context)).await;
            let room = room.ok_or(h2::Reason::STREAM_CLOSED)??;
            let part = data.split_to(room.min(data.len()));
            self.send_data(part, end && data.is_empty())?;
        }
        Ok(())
    }
}

/// The head of a JSON POST.
pub fn post_request(path: &str, length: Option<usize>) -> Request<()> {
    let uri = format!("http://router{path}");
    let mut request =
        Request::builder().method(Method::POST).uri(uri).header("content-type", "application/json");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    request.body(()).unwrap()
}

/// The head and the body stream of a response.
pub async fn response_head(response: ResponseFuture) -> (Head, RecvStream) {
    let response = within("an HTTP/2 response", RESPONSE_DEADLINE, response).await;
    let (parts, body) = response.expect("an HTTP/2 response head").into_parts();
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    (Head { first_line: format!("HTTP/2 {}", parts.status.as_str()), headers }, body)
}

/// The next bytes of a body; none at its proper end.
pub async fn piece(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let piece = within("a piece of an HTTP/2 body", RESPONSE_DEADLINE, body.data()).await?;
    if let Ok(bytes) = &piece {
        let _ = body.flow_control().release_capacity(bytes.len());
    }
    Some(piece)
}

/// The whole response.
pub async fn response(response: ResponseFuture) -> Response {
    let (head, mut stream) = response_head(response).await;
    let mut body = BytesMut::new();
    let mut broken = None;
    while let Some(part) = piece(&mut stream).await {
        match part {
            Ok(bytes) => body.extend_from_slice(&bytes),
            Err(fault) => {
                broken = Some(fault.to_string());
                break;
            }
        }
    }
    Response { interim: Vec::new(), head, body: body.freeze(), broken }
}
