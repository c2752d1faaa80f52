//! Starting and stopping: binds every listener before anything runs, then serves until told to drain.
//!
//! The accept loop is our own rather than pingora's `Server`: a port in use is an error before anything has started, port
//! 0 tells the port it got, several routers can run in one process (the demo does), and a drain ends when the last
//! connection does instead of after a fixed sleep.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use config::{Config, Pool, Protocol};
use picker::belief::{JoinError, Memory};
use pingora_core::apps::ServerApp;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{interval, sleep, timeout};

use crate::admin::Admin;
use crate::client::Client;
use crate::drain::{Connected, signalled};
use crate::endpoints::poll::poll;
use crate::memory;
use crate::request::Front;
use crate::router::Router;
pub use crate::tls::TlsError;
use crate::tls::server;

/// Connections that may wait to be accepted; the system caps it at its own limit.
const BACKLOG: u32 = 65_535;
/// Rest after an accept that failed, for want of descriptors mostly.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Time for a client of an h2c listener to send the preface.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of HTTP/2's client preface (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How often recorded samples are folded into histograms, idle connections are swept and paces are fitted.
const UPKEEP: Duration = Duration::from_secs(1);
/// Time between two fits of what first tokens teach.
const FIT_INTERVAL: Duration = Duration::from_millis(250);

/// A listener that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}")]
pub struct BindError {
    /// The address that was wanted.
    pub address: SocketAddr,
    /// What the system said.
    pub cause: io::Error,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener's address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The belief that the configuration asks for.
    #[error(
        "index.capacity_blocks: found {capacity_blocks} for each of {endpoints} endpoints, which may take {wanted} bytes of memory; wanted at most the {available} that there are"
    )]
    IndexTooLarge {
        /// Blocks of each endpoint.
        capacity_blocks: usize,
        /// Endpoints of the pool.
        endpoints: usize,
        /// Bytes that the index may come to.
        wanted: usize,
        /// Bytes that the machine, or the container's group, has.
        available: usize,
    },
    /// The system refused the memory, or the fleet is larger than the index.
    #[error("index: {0}")]
    Index(#[from] JoinError),
    /// A certificate or a key that cannot be used.
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
}

/// A router that runs.
pub struct Running {
    router: Arc<Router>,
    /// Stops what serves clients.
    shutdown: watch::Sender<bool>,
    /// Stops the rest: pollers and admin pages live through a drain.
    ended: watch::Sender<bool>,
    /// Where clients are served, in the order of the configuration; ports as the system gave them.
    pub listeners: Vec<SocketAddr>,
    /// Where the admin pages are served.
    pub admin: SocketAddr,
}

/// Binds all listeners, then starts serving, polling and the admin pages.
///
/// Requests run on `data`; pollers and admin pages on `control`, so that they answer when requests keep `data` busy.
/// Errors: a listener that cannot be bound, an index or TLS that cannot be had; nothing has started then.
pub fn start(config: Config, data: &Handle, control: &Handle) -> Result<Running, StartError> {
    fits(&config.pools[0])?;
    let mut sockets = Vec::new();
    for listener in &config.listeners {
        let tls = listener.tls.as_ref().map(server::config).transpose()?;
        let tls = tls.map(|tls| Arc::new(ArcSwap::new(tls)));
        sockets.push((bind(listener.address, data)?, Spoken { protocol: listener.protocol, tls }));
    }
    let (admin_socket, admin) = bind(config.admin, control)?;
    let router = Router::new(config)?;
    let (shutdown, down) = watch::channel(false);
    let (ended, end) = watch::channel(false);
    let mut listeners = Vec::new();
    for ((socket, address), spoken) in sockets {
        listeners.push(address);
        let front = Front::new(router.clone(), spoken.protocol == Protocol::H2c, address.ip().is_loopback());
        data.spawn(accept(socket, Arc::new(front), Some(router.clone()), spoken, down.clone()));
    }
    let admin_app = Arc::new(Admin::new(router.clone()));
    control.spawn(accept(admin_socket, admin_app, None, Spoken::default(), end.clone()));
    for endpoint in router.fleet.load().iter() {
        control.spawn(until(end.clone(), poll(router.clone(), endpoint.clone())));
    }
    control.spawn(until(end.clone(), upkeep(router.clone())));
    control.spawn(until(end, learning(router.clone())));
    announce(&router, &listeners, admin);
    Ok(Running { router, shutdown, ended, listeners, admin })
}

impl Running {
    /// Waits until every endpoint has answered a scrape.
    #[cfg(feature = "lab")]
    pub(crate) async fn all_answer(&self) {
        const LOOK_AGAIN: Duration = Duration::from_millis(5);
        while !self.router.fleet.load().iter().all(|endpoint| endpoint.reachable()) {
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Serves until SIGTERM or SIGINT, then drains. True if every connection ended by itself.
    pub async fn until_signalled(self) -> io::Result<bool> {
        signalled().await?;
        Ok(self.drain().await)
    }

    /// Stops accepting, tells clients to close, and waits for running requests as long as the configuration allows.
    /// True if every connection ended by itself.
    pub async fn drain(self) -> bool {
        let limit = self.router.config.drain;
        self.router.draining.store(true, Ordering::Relaxed);
        tracing::info!(connections = self.router.connections.open(), ?limit, "draining");
        let _ = self.shutdown.send(true);
        let whole = self.router.connections.none_left(limit).await;
        let _ = self.ended.send(true);
        tracing::info!(cut = self.router.connections.open(), "stopped");
        whole
    }
}

/// Refuses an index that could outgrow the machine.
fn fits(pool: &Pool) -> Result<(), StartError> {
    let (endpoints, capacity_blocks) = (pool.endpoints.len(), pool.index.capacity_blocks);
    let wanted = Memory::needed(endpoints, capacity_blocks);
    match memory::bytes_max() {
        Some(available) if wanted > available => {
            Err(StartError::IndexTooLarge { capacity_blocks, endpoints, wanted, available })
        }
        _ => Ok(()),
    }
}

fn announce(router: &Router, listeners: &[SocketAddr], admin: SocketAddr) {
    let endpoints = router.config.pools[0].endpoints.len();
    let index_bytes_max = router.index.memory().bytes_max;
    let policy = router.rules.policy.name();
    tracing::info!(?listeners, %admin, endpoints, policy, index_bytes_max, "serving");
}

fn bind(address: SocketAddr, runtime: &Handle) -> Result<(TcpListener, SocketAddr), BindError> {
    let _entered = runtime.enter();
    let listen = || {
        let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().map_err(|cause| BindError { address, cause })
}

/// Runs `task` until the router shuts down.
async fn until(mut down: watch::Receiver<bool>, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        _ = down.wait_for(|down| *down) => {}
    }
}

async fn upkeep(router: Arc<Router>) {
    let mut ticks = interval(UPKEEP);
    loop {
        ticks.tick().await;
        router.metrics.upkeep();
        router.upstream.sweep();
        router.scraper.sweep();
    }
}

/// First tokens teach within a quarter of a second: the first requests of a fleet are routed by a pace that nobody measured.
async fn learning(router: Arc<Router>) {
    let mut ticks = interval(FIT_INTERVAL);
    loop {
        ticks.tick().await;
        router.fit_paces();
    }
}

/// What is spoken on a listener.
#[derive(Clone, Default)]
struct Spoken {
    protocol: Protocol,
    /// As it is for the next connection; none for clear text.
    tls: Option<server::Current>,
}

/// Accepts until told to stop. With a router, connections are counted for its drain.
async fn accept<A: ServerApp + Send + Sync + 'static>(
    listener: TcpListener,
    app: Arc<A>,
    counted: Option<Arc<Router>>,
    spoken: Spoken,
    down: watch::Receiver<bool>,
) {
    let mut stop = down.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|down| *down) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (app, down, connected) =
                    (app.clone(), down.clone(), counted.as_ref().map(Connected::new));
                let spoken = spoken.clone();
                tokio::spawn(async move {
                    let _connected = connected;
                    connection(stream, app, spoken, &down).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// One connection of a client, to its end.
async fn connection<A: ServerApp>(
    stream: TcpStream,
    app: Arc<A>,
    spoken: Spoken,
    down: &watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
    let Some(client) = greet(stream, spoken).await else { return };
    let mut next = app.process_new(Box::new(client), down).await;
    while let Some(stream) = next {
        next = app.process_new(stream, down).await;
    }
}

/// What comes before the first request: a handshake, or HTTP/2's preface. `None` when it failed or took too long.
async fn greet(stream: TcpStream, Spoken { protocol, tls }: Spoken) -> Option<Client> {
    if let Some(tls) = tls {
        let accepted = server::accept(stream, tls.load_full()).await;
        return accepted.inspect_err(|error| tracing::debug!(%error, "TLS handshake failed")).ok();
    }
    if protocol == Protocol::H2c && timeout(PREFACE_WITHIN, speaks_http2(&stream)).await != Ok(true) {
        return None;
    }
    Some(Client::new(stream))
}

/// Notices a client whose host has vanished without a word.
fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(3)
}

/// Waits for HTTP/2's preface, and leaves it in the stream. Done here, under a deadline: pingora's own look has none.
async fn speaks_http2(stream: &TcpStream) -> bool {
    const LOOK_AGAIN: Duration = Duration::from_millis(10);
    let mut seen = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut seen).await {
            Ok(length @ 1..) if seen[..length] == PREFACE[..length] => {
                if length == PREFACE.len() {
                    return true;
                }
                // What is there already does not wake us again.
                sleep(LOOK_AGAIN).await;
            }
            _ => return false,
        }
    }
}
