//! The whole router behind TLS: what clients send and engines answer comes through, over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use config::Flags;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::reload::Read;
use crate::serve::{Running, start};
use crate::tls::VERSIONS;

/// An engine that echoes chats, and streams for completions what it is told to, piece by piece.
struct Engine {
    address: SocketAddr,
    pieces: mpsc::UnboundedSender<&'static str>,
    /// That the router closed the connection of a completion.
    left: mpsc::UnboundedReceiver<()>,
}

struct Told {
    pieces: Mutex<mpsc::UnboundedReceiver<&'static str>>,
    left: mpsc::UnboundedSender<()>,
}

impl Engine {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (pieces, told) = mpsc::unbounded_channel();
        let (leave, left) = mpsc::unbounded_channel();
        let told = Arc::new(Told { pieces: Mutex::new(told), left: leave });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, told.clone()));
            }
        });
        Self { address, pieces, left }
    }
}

async fn serve(mut stream: TcpStream, told: Arc<Told>) {
    let mut read = BytesMut::new();
    while let Some((head, body)) = message(&mut stream, &mut read).await {
        if head.starts_with("POST /v1/completions") {
            if !serve_pieces(&mut stream, &told).await {
                return told.left.send(()).unwrap();
            }
        } else {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
        }
    }
}

/// Streams until an empty piece; false if the router closed before.
async fn serve_pieces(stream: &mut TcpStream, told: &Told) -> bool {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut pieces = told.pieces.lock().await;
    loop {
        let piece = tokio::select! {
            piece = pieces.recv() => piece.unwrap(),
            _ = stream.read_u8() => return false,
        };
        stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await.unwrap();
        if piece.is_empty() {
            return true;
        }
    }
}

fn content_length(head: &str) -> Option<usize> {
    let head = head.to_ascii_lowercase();
    let (_, value) = head.split_once("content-length: ")?;
    value.split_once("\r\n")?.0.parse().ok()
}

/// The next head and its body of a known length; `None` at the end.
async fn message(stream: &mut (impl AsyncRead + Unpin), read: &mut BytesMut) -> Option<(String, Bytes)> {
    let end = loop {
        if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if timeout(DEADLINE, stream.read_buf(read)).await.unwrap().unwrap_or(0) == 0 {
            return None;
        }
    };
    let head = String::from_utf8(read.split_to(end).to_vec()).unwrap();
    let length = content_length(&head).unwrap_or(0);
    while read.len() < length {
        assert_ne!(timeout(DEADLINE, stream.read_buf(read)).await.unwrap().unwrap(), 0, "a whole body");
    }
    Some((head, read.split_to(length).freeze()))
}

/// A router with TLS in front of an engine.
async fn router(engine: &Engine) -> Running {
    let anywhere = || Some("127.0.0.1:0".to_owned());
    let endpoints = vec![format!("engine=http://{}", engine.address)];
    let flags = Flags { endpoints, listen: anywhere(), admin: anywhere(), ..Flags::default() };
    let mut loaded = config::load(None, &flags, &config::System).unwrap();
    loaded.config.listeners[0].tls = Some(server_tls(vec![Authority::new("one").sign(&["a.example"])]));
    start(Read::once(loaded), &Handle::current(), &Handle::current()).unwrap()
}

async fn client(router: &Running, protocol: &str) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(router.listeners[0]).await.unwrap();
    let connector = TlsConnector::from(visitor(&[protocol], None, &VERSIONS));
    connector.connect(ServerName::try_from("a.example").unwrap(), stream).await.unwrap()
}

/// A prompt of about that many bytes.
fn prompt(bytes: usize) -> Bytes {
    let words: String = (0..bytes / 8).map(|number| format!("{number:07} ")).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}]}}"#).into()
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: a.example\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

const SIZES: [usize; 3] = [1_000, 100_000, 5_000_000];

#[tokio::test]
async fn bodies_of_all_sizes_pass_over_http_1() {
    let engine = Engine::start().await;
    let router = router(&engine).await;
    let mut client = client(&router, "http/1.1").await;
    let mut read = BytesMut::new();
    for size in SIZES {
        let body = prompt(size);
        client.write_all(&post("/v1/chat/completions", &body)).await.unwrap();
        client.flush().await.unwrap();
        let (head, echo) = message(&mut client, &mut read).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(echo == body, "{size}: {} bytes came back", echo.len());
    }
}

#[tokio::test]
async fn requests_sent_at_once_are_answered_in_turn() {
    let engine = Engine::start().await;
    let router = router(&engine).await;
    let mut client = client(&router, "http/1.1").await;
    let bodies = [prompt(100), prompt(20_000), prompt(200)];
    let all = bodies.each_ref().map(|body| post("/v1/chat/completions", body)).concat();
    client.write_all(&all).await.unwrap();
    client.flush().await.unwrap();
    let mut read = BytesMut::new();
    for body in bodies {
        assert_eq!(message(&mut client, &mut read).await.unwrap().1, body);
    }
}

#[tokio::test]
async fn each_piece_of_a_stream_comes_before_the_next_is_made() {
    let engine = Engine::start().await;
    let router = router(&engine).await;
    let mut client = client(&router, "http/1.1").await;
    client.write_all(&post("/v1/completions", &prompt(100))).await.unwrap();
    client.flush().await.unwrap();
    let mut seen = Vec::new();
    for piece in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        engine.pieces.send(piece).unwrap();
        while !seen.ends_with(format!("{piece}\r\n").as_bytes()) {
            assert_ne!(timeout(DEADLINE, client.read_buf(&mut seen)).await.unwrap().unwrap(), 0);
        }
    }
    engine.pieces.send("").unwrap();
    while !seen.ends_with(b"0\r\n\r\n") {
        assert_ne!(timeout(DEADLINE, client.read_buf(&mut seen)).await.unwrap().unwrap(), 0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_engine() {
    for (shows, says_so, ahead) in [
        ("with a word", true, false),
        ("without one", false, false),
        ("with a word, behind a request sent ahead", true, true),
        ("without one, behind a request sent ahead", false, true),
    ] {
        let mut engine = Engine::start().await;
        let router = router(&engine).await;
        let mut client = client(&router, "http/1.1").await;
        client.write_all(&post("/v1/completions", &prompt(100))).await.unwrap();
        if ahead {
            client.write_all(&post("/v1/chat/completions", b"{}")).await.unwrap();
        }
        client.flush().await.unwrap();
        engine.pieces.send("data: one\n\n").unwrap();
        client.read_u8().await.unwrap();
        if says_so {
            client.shutdown().await.unwrap();
        } else {
            client.get_mut().0.shutdown().await.unwrap();
        }
        assert_eq!(timeout(DEADLINE, engine.left.recv()).await, Ok(Some(())), "{shows}");
    }
}

#[tokio::test]
async fn bodies_and_streams_pass_over_http_2() {
    let engine = Engine::start().await;
    let router = router(&engine).await;
    let (mut send, connection) = h2::client::handshake(client(&router, "h2").await).await.unwrap();
    tokio::spawn(connection);
    for size in SIZES {
        let body = prompt(size);
        let echo = over_http_2(&mut send, "/v1/chat/completions", body.clone()).await;
        assert!(echo == body, "{size}: {} bytes came back", echo.len());
    }
    for piece in ["data: one\n\n", "data: two\n\n", ""] {
        engine.pieces.send(piece).unwrap();
    }
    let answer = over_http_2(&mut send, "/v1/completions", prompt(100)).await;
    assert_eq!(answer, "data: one\n\ndata: two\n\n");
}

async fn over_http_2(send: &mut h2::client::SendRequest<Bytes>, path: &str, mut body: Bytes) -> Bytes {
    let request = http::Request::post(format!("https://a.example{path}")).body(()).unwrap();
    let (response, mut stream) = send.send_request(request, false).unwrap();
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|context| stream.poll_capacity(context));
        let room = timeout(DEADLINE, room).await.unwrap().unwrap().unwrap();
        let part = body.split_to(room.min(body.len()));
        stream.send_data(part, body.is_empty()).unwrap();
    }
    let (head, mut answer) = timeout(DEADLINE, response).await.unwrap().unwrap().into_parts();
    assert_eq!(head.status, 200);
    let mut whole = BytesMut::new();
    while let Some(piece) = timeout(DEADLINE, answer.data()).await.unwrap() {
        let piece = piece.unwrap();
        answer.flow_control().release_capacity(piece.len()).unwrap();
        whole.extend_from_slice(&piece);
    }
    whole.freeze()
}
