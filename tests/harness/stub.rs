//! A scripted replica: a TCP server that logs raw requests and answers byte by byte as told.
//!
//! It answers `GET /metrics` by itself, from a page that a test may change at any time; everything else follows
//! the script. While a script runs it watches the connection, so the log tells when the router hung up. With
//! `Reading::HeadOnly` it does not: watching means reading, and the body is to stay unread.

use crate::log::{Log, Received, Seen};
use crate::metrics_page::{Load, Metrics};
use crate::script::{Answer, Reading, Script, Step};
use crate::wait::{DEADLINE, until};
use crate::wire::{Head, Reader};
use bytes::Bytes;
use parking_lot::Mutex;
use std::io::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What a stub says when it has no script.
const PLAIN_ANSWER: &str = r#"{"object":"chat.completion","choices":[]}"#;

/// A replica under a test's control; gone with its connections when dropped.
pub struct Stub {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    log: Log,
    metrics: Mutex<Metrics>,
    script: Mutex<Script>,
    /// Whether connections are left in the backlog.
    resting: watch::Sender<bool>,
    /// Whether the process is no more.
    dead: watch::Sender<bool>,
    /// When a connection is closed on which no further request comes; from the end of the last.
    idle: Mutex<Option<Duration>>,
}

impl Stub {
    /// An idle replica that answers everything with a small 200.
    pub async fn start() -> Self {
        Self::with_backlog(1024).await
    }

    /// The same with a backlog of so many connections that wait to be accepted.
    pub async fn with_backlog(connections: u32) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // As `TcpListener::bind` does: the port is to be had again while old connections are remembered.
        socket.set_reuseaddr(true).expect("an option of every socket");
        socket.bind("127.0.0.1:0".parse().unwrap()).expect("a free port on loopback");
        let listener = socket.listen(connections).expect("a listener");
        let address = listener.local_addr().unwrap();
        let script: Script = Arc::new(|_| Answer::json(200, PLAIN_ANSWER));
        let metrics = Mutex::new(Metrics::load(Load::IDLE));
        let shared = Arc::new(Shared {
            log: Log::default(),
            metrics,
            script: Mutex::new(script),
            resting: watch::Sender::default(),
            dead: watch::Sender::default(),
            idle: Mutex::default(),
        });
        let accepting = Mutex::new(Some(tokio::spawn(accept(shared.clone(), listener))));
        Self { shared, address, accepting }
    }

    /// A replica that answers everything with `answer`.
    pub async fn answering(answer: Answer) -> Self {
        let stub = Self::start().await;
        stub.always(answer);
        stub
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on every request gets this answer.
    pub fn always(&self, answer: Answer) {
        self.script(move |_| answer.clone());
    }

    /// From now on `script` chooses the answer.
    pub fn script(&self, script: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        *self.shared.script.lock() = Arc::new(script);
    }

    /// From now on `GET /metrics` is answered so.
    pub fn metrics(&self, metrics: Metrics) {
        *self.shared.metrics.lock() = metrics;
    }

    /// From now on the page shows this load. `Router::sees` waits until the router knows.
    pub fn load(&self, load: Load) {
        self.metrics(Metrics::load(load));
    }

    /// Closes every connection and refuses new ones until `accept_again`.
    pub async fn refuse(&self) {
        let accepting = self.accepting.lock().take();
        if let Some(accepting) = accepting {
            accepting.abort();
            let _ = accepting.await;
        }
        // A process that another test is just starting may hold the socket for a moment longer.
        let refused = || async { TcpStream::connect(self.address).await.err() };
        until("the stub to refuse", DEADLINE, refused).await;
    }

    /// Leaves further connections in the backlog, until told not to.
    pub fn rest(&self, resting: bool) {
        self.shared.resting.send_replace(resting);
    }

    /// From now on a connection is closed when so long no further request has come on it, as engines do after 5 s.
    pub fn closes_idle(&self, after: Duration) {
        *self.shared.idle.lock() = Some(after);
    }

    /// Listens again at the old address.
    pub async fn accept_again(&self) {
        let bind = || async { TcpListener::bind(self.address).await.ok() };
        let listener = until("the stub's old port", DEADLINE, bind).await;
        *self.accepting.lock() = Some(tokio::spawn(accept(self.shared.clone(), listener)));
    }

    /// What it has seen; `look` gets the record under a lock.
    pub fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        self.shared.log.look(look)
    }

    /// How many requests it has seen, scrapes left out.
    pub fn count(&self) -> usize {
        self.seen(|seen| seen.requests.len())
    }

    /// Waits for `look` to find something in the record; panics naming `what` after `deadline`.
    pub async fn wait<T>(&self, what: &str, deadline: Duration, look: impl Fn(&Seen) -> Option<T>) -> T {
        self.shared.log.wait(what, deadline, look).await
    }

    /// The request number `index`, from 0, once it has come to its end.
    pub async fn request(&self, index: usize) -> Received {
        let complete = |seen: &Seen| seen.requests.get(index).filter(|request| request.complete).cloned();
        self.wait(&format!("request {index} at the stub"), DEADLINE, complete).await
    }

    /// The last request, which has come already.
    pub fn last(&self) -> Received {
        self.seen(|seen| seen.requests.last().cloned()).expect("the stub has seen a request")
    }

    /// When the router hung up on request `index` while its script was running.
    pub async fn abandoned(&self, index: usize, deadline: Duration) -> Instant {
        let abandoned = |seen: &Seen| seen.requests.get(index)?.abandoned;
        self.wait(&format!("the router to hang up on request {index}"), deadline, abandoned).await
    }

    /// Waits for `more` scrapes to begin after now.
    pub async fn scrapes(&self, more: usize) {
        let goal = self.seen(|seen| seen.scrapes) + more;
        let reached = |seen: &Seen| (seen.scrapes >= goal).then_some(());
        self.wait(&format!("{more} more scrapes"), DEADLINE, reached).await;
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.lock().take() {
            accepting.abort();
        }
    }
}

/// Accepts until aborted; the connections end with it.
async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let (mut resting, mut dead) = (shared.resting.subscribe(), shared.dead.subscribe());
    loop {
        let accepted = tokio::select! {
            biased;
            _ = dead.wait_for(|dead| *dead) => return,
            _ = resting.wait_for(|resting| *resting) => None,
            accepted = listener.accept() => Some(accepted),
        };
        let Some(accepted) = accepted else {
            let _ = resting.wait_for(|resting| !*resting).await;
            continue;
        };
        let Ok((stream, _)) = accepted else { return };
        let _ = stream.set_nodelay(true);
        let number = shared.log.note(|seen| {
            seen.connections += 1;
            seen.connections - 1
        });
        let connection = Connection::new(shared.clone(), number, stream);
        connections.spawn(async move { connection.serve().await });
        while connections.try_join_next().is_some() {}
    }
}

struct Connection {
    shared: Arc<Shared>,
    number: usize,
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

/// What becomes of a connection after an answer.
enum Ending {
    Next,
    Closed,
    Reset,
    Abandoned,
}

impl Connection {
    fn new(shared: Arc<Shared>, number: usize, stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        let mut reader = Reader::new(reader);
        reader.record();
        Self { shared, number, reader, writer }
    }

    async fn serve(mut self) {
        while let Some(head) = self.next_head().await {
            let scrape = head.first_line.starts_with("GET /metrics ");
            let ending = match scrape {
                true => self.scrape().await,
                false => self.request(head).await,
            };
            match ending {
                Ending::Next => {}
                Ending::Closed | Ending::Abandoned => return,
                Ending::Reset => return self.reset(),
            }
        }
    }

    /// None at the end, or when it has been idle for too long.
    async fn next_head(&mut self) -> Option<Head> {
        let idle = self.shared.idle.lock().unwrap_or(Duration::MAX);
        tokio::time::timeout(idle, self.reader.head()).await.ok()?.ok()?
    }

    fn reset(self) {
        let stream = self.reader.into_inner().reunite(self.writer).expect("two halves of one stream");
        stream.set_zero_linger().expect("a stream can linger for no time");
    }

    async fn request(&mut self, head: Head) -> Ending {
        let framing = head.request_framing();
        let received = self.received(head);
        let script = self.shared.script.lock().clone();
        let answer = script(&received);
        let index = self.shared.log.note(|seen| {
            seen.requests.push(received);
            seen.requests.len() - 1
        });
        if answer.reading == Reading::All {
            let (body, fault) = self.reader.body(framing).await;
            let body_raw = self.reader.take_raw();
            self.note(index, |request| {
                (request.body, request.body_raw, request.complete) = (body, body_raw, fault.is_none());
            });
            if fault.is_some() {
                self.note(index, |request| request.abandoned = Some(Instant::now()));
                return Ending::Abandoned;
            }
        }
        let ending = self.answer(answer).await;
        self.note(index, |request| match ending {
            Ending::Abandoned => request.abandoned = Some(Instant::now()),
            _ => request.served = Some(Instant::now()),
        });
        ending
    }

    fn received(&mut self, head: Head) -> Received {
        let head_raw = self.reader.take_raw();
        let (body, body_raw) = (Bytes::new(), Bytes::new());
        let connection = self.number;
        Received {
            connection,
            head,
            head_raw,
            body,
            body_raw,
            complete: false,
            served: None,
            abandoned: None,
        }
    }

    fn note(&self, index: usize, change: impl FnOnce(&mut Received)) {
        self.shared.log.note(|seen| change(&mut seen.requests[index]));
    }

    /// Takes the steps, unless the peer goes first.
    async fn answer(&mut self, answer: Answer) -> Ending {
        let Self { shared, reader, writer, .. } = self;
        let steps = take_steps(shared, writer, answer.steps);
        if answer.reading == Reading::HeadOnly {
            return steps.await.unwrap_or(Ending::Abandoned);
        }
        tokio::select! {
            biased;
            ending = steps => ending.unwrap_or(Ending::Abandoned),
            () = reader.peer_gone() => Ending::Abandoned,
        }
    }

    async fn scrape(&mut self) -> Ending {
        self.reader.take_raw();
        self.shared.log.note(|seen| {
            seen.scrapes += 1;
            seen.scraping.0 += 1;
            seen.scraping.1 = seen.scraping.1.max(seen.scraping.0);
        });
        let metrics = self.shared.metrics.lock().clone();
        let ending = self.answer(Answer::steps(scrape_steps(metrics))).await;
        self.shared.log.note(|seen| seen.scraping.0 -= 1);
        ending
    }
}

async fn take_steps(
    Shared { log, dead, .. }: &Shared,
    writer: &mut OwnedWriteHalf,
    steps: Vec<Step>,
) -> Result<Ending> {
    for step in steps {
        match step {
            Step::Write(bytes) => writer.write_all(&bytes).await?,
            Step::Flood(chunk, times) => flood(log, writer, &chunk, times).await?,
            Step::Wait(signal) => signal.fired().await,
            Step::Pause(duration) => tokio::time::sleep(duration).await,
            Step::Hang => std::future::pending().await,
            Step::Close => return Ok(Ending::Closed),
            Step::Reset => return Ok(Ending::Reset),
            Step::Die => {
                dead.send_replace(true);
                std::future::pending().await
            }
        }
    }
    Ok(Ending::Next)
}

async fn flood(log: &Log, writer: &mut OwnedWriteHalf, chunk: &Bytes, times: usize) -> Result<()> {
    for _ in 0..times {
        writer.write_all(chunk).await?;
        log.note(|seen| seen.flooded += chunk.len());
    }
    Ok(())
}

fn scrape_steps(metrics: Metrics) -> Vec<Step> {
    let head = |length: usize| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: ";
        Step::Write(format!("{head}{length}\r\n\r\n").into())
    };
    match metrics {
        Metrics::Page(page) => vec![head(page.len()), Step::Write(page.into())],
        Metrics::Raw(bytes) => vec![Step::Write(bytes), Step::Close],
        Metrics::Hang => vec![Step::Hang],
        Metrics::HangAfterHead => vec![head(1000), Step::Hang],
        Metrics::Trickle(page) => {
            let bytes = page.bytes().flat_map(|byte| {
                [Step::Write(Bytes::copy_from_slice(&[byte])), Step::Pause(Duration::from_secs(1))]
            });
            [head(page.len())].into_iter().chain(bytes).collect()
        }
        Metrics::Huge(size) => {
            let line = Bytes::from_static(b"filler{label=\"a line of about sixty-four bytes, no more\"} 1\n");
            let (times, page) = (size / line.len(), Load::IDLE.page());
            let length = times * line.len() + page.len();
            vec![head(length), Step::Flood(line, times), Step::Write(page.into())]
        }
        Metrics::Close => vec![Step::Close],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, exchange, get, post};
    use crate::script::{Signal, chunk, last_chunk, write};

    #[tokio::test]
    async fn it_logs_what_it_got() {
        let stub = Stub::start().await;
        let response = exchange(stub.address(), post("/v1/x", "{}")).await;
        assert_eq!(response.status(), 200);
        let request = stub.request(0).await;
        assert_eq!((request.head.target(), &request.body[..]), ("/v1/x", b"{}".as_slice()));
        assert!(request.head_raw.ends_with(b"\r\n\r\n"));
    }

    #[tokio::test]
    async fn it_sees_a_peer_leave_while_silent() {
        for reset in [false, true] {
            let stub = Stub::answering(Answer::stream([chunk("data: 1\n\n"), Step::Hang])).await;
            let mut client = Client::connect(stub.address()).await;
            client.send(get("/")).await;
            let mut framing = client.head().await.response_framing("GET");
            client.body_until(&mut framing, b"\n\n").await;
            if reset {
                client.reset()
            } else {
                client.close()
            }
            stub.abandoned(0, Duration::from_secs(1)).await;
        }
    }

    #[tokio::test]
    async fn it_waits_for_its_signals() {
        let go = Signal::default();
        let stub = Stub::answering(Answer::stream([Step::Wait(go.clone()), chunk("x"), last_chunk()])).await;
        let mut client = Client::connect(stub.address()).await;
        client.send(get("/")).await;
        let mut framing = client.head().await.response_framing("GET");
        assert!(stub.seen(|seen| seen.requests[0].served.is_none()));
        go.fire();
        assert_eq!(client.body_until(&mut framing, b"x").await, b"x");
    }

    #[tokio::test]
    async fn it_refuses_and_comes_back() {
        let stub = Stub::start().await;
        let mut client = Client::connect(stub.address()).await;
        stub.refuse().await;
        client.closed(Duration::from_secs(1)).await;
        assert!(Client::try_connect(stub.address()).await.is_err());
        stub.accept_again().await;
        assert_eq!(exchange(stub.address(), get("/")).await.status(), 200);
    }

    #[tokio::test]
    async fn it_breaks_off_where_told() {
        let half = write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf");
        for end in [Step::Close, Step::Reset] {
            let stub = Stub::answering(Answer::steps([half.clone(), end])).await;
            let response = exchange(stub.address(), get("/")).await;
            assert!(response.broken.is_some(), "{response:?}");
        }
    }

    #[tokio::test]
    async fn it_shows_its_load() {
        let stub = Stub::start().await;
        stub.load(Load::waiting(30.0));
        let page = exchange(stub.address(), get("/metrics")).await.text();
        assert!(page.contains("vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 30\n"), "{page}");
        assert_eq!((stub.count(), stub.seen(|seen| seen.scrapes)), (0, 1));
    }
}
