//! Starting and stopping: binds every listener before anything runs, then serves until told to drain.
//!
//! All of it is our own rather than pingora's `Server`: a port in use is an error before anything has started, port
//! 0 tells the port it got, several routers can run in one process (the demo does), and a drain ends when the last
//! connection does instead of after a fixed sleep.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use config::{Pool, Protocol};
use picker::belief::Memory;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::interval;
#[cfg(feature = "lab")]
use tokio::time::sleep;

use crate::accept::{Gate, Spoken, accept};
use crate::admin::Admin;
use crate::descriptors::SHARES;
use crate::drain::signalled;
pub use crate::live::BuildError;
use crate::memory;
use crate::reload::{Read, Reloader};
use crate::request::{Entrance, Front};
use crate::router::Router;
pub use crate::tls::TlsError;

/// Connections that may wait to be accepted; the system caps it at its own limit.
const BACKLOG: u32 = 65_535;
/// How often recorded samples are folded into histograms, idle connections are swept and paces are fitted.
const UPKEEP: Duration = Duration::from_secs(1);
/// Time for the last spans to be taken.
const SPANS_WITHIN: Duration = Duration::from_secs(2);
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
        "pools[{pool}].index.capacity_blocks: found {capacity_blocks} for each of {endpoints} endpoints; all pools together may take {wanted} bytes of memory, wanted at most the {available} that there are"
    )]
    IndexTooLarge {
        /// The place of the pool that takes most.
        pool: usize,
        /// Blocks of each endpoint.
        capacity_blocks: usize,
        /// Its endpoints.
        endpoints: usize,
        /// Bytes that all indexes may come to.
        wanted: usize,
        /// Bytes that the machine, or the container's group, has.
        available: usize,
    },
    /// No handler for signals.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// What cannot be had of a configuration that is right by itself.
    #[error(transparent)]
    Build(#[from] BuildError),
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

/// Binds all listeners, then starts serving, polling, watching the configuration, and the admin pages.
///
/// Requests run on `data`; pollers and admin pages on `control`, so that they answer when requests keep `data` busy.
/// Errors: a listener that cannot be bound, an index that cannot be had; nothing has started then.
pub fn start(read: Read, data: &Handle, control: &Handle) -> Result<Running, StartError> {
    let hangups = hangups(control)?;
    let config = read.config();
    fits(&config.pools)?;
    let mut sockets = Vec::new();
    for listener in &config.listeners {
        sockets.push((bind(listener.address, data)?, listener.protocol));
    }
    let (admin_socket, admin) = bind(config.admin, control)?;
    let router = Router::new(config.clone())?;
    let (shutdown, down) = watch::channel(false);
    let (ended, end) = watch::channel(false);
    let until = Until(end.clone());
    let reloader = Reloader::new(router.clone(), read, control.clone(), until.clone());
    let mut listeners = Vec::new();
    for (place, ((socket, address), protocol)) in sockets.into_iter().enumerate() {
        listeners.push(address);
        let tls = router.live().tls.get(place).is_some_and(Option::is_some).then_some(place);
        let spoken = Spoken { protocol, tls };
        let of = router.clone();
        let front = move |peer: SocketAddr| {
            let entrance = Entrance { listener: address, peer: peer.ip(), tls: tls.is_some() };
            Arc::new(Front::new(of.clone(), entrance, protocol == Protocol::H2c))
        };
        data.spawn(accept(socket, front, Gate::Clients(router.clone()), spoken, down.clone()));
    }
    let admin_app = Arc::new(Admin::new(router.clone(), reloader.clone()));
    let gate = Gate::Admin(router.clone());
    control.spawn(accept(admin_socket, move |_| admin_app.clone(), gate, Spoken::default(), end.clone()));
    control.spawn(until.clone().run(upkeep(router.clone())));
    control.spawn(until.clone().run(learning(router.clone())));
    control.spawn(until.clone().run(reloader.clone().at_hangups(hangups)));
    control.spawn(until.clone().run(reloader.clone().at_names()));
    control.spawn(until.run(reloader.at_changes()));
    announce(&router, &listeners, admin);
    Ok(Running { router, shutdown, ended, listeners, admin })
}

impl Running {
    /// Waits until every endpoint has answered a scrape.
    #[cfg(feature = "lab")]
    pub(crate) async fn all_answer(&self) {
        const LOOK_AGAIN: Duration = Duration::from_millis(5);
        while !self.router.live().endpoints().all(|(_, endpoint)| endpoint.reachable()) {
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
        let limit = self.router.live().config.drain;
        self.router.draining.store(true, Ordering::Relaxed);
        tracing::info!(connections = self.router.connections.open(), ?limit, "draining");
        let _ = self.shutdown.send(true);
        let whole = self.router.connections.none_left(limit).await;
        let _ = self.ended.send(true);
        if let Some(traces) = &self.router.traces {
            traces.stop(SPANS_WITHIN);
        }
        tracing::info!(cut = self.router.connections.open(), "stopped");
        whole
    }
}

/// Refuses an index that could outgrow the machine.
pub(crate) fn fits(pools: &[Pool]) -> Result<(), StartError> {
    let needed = |pool: &Pool| Memory::needed(pool.endpoints.len(), pool.index.capacity_blocks);
    let wanted = pools.iter().map(needed).sum();
    let Some((pool, most)) = pools.iter().enumerate().max_by_key(|(_, pool)| needed(pool)) else {
        return Ok(());
    };
    let (endpoints, capacity_blocks) = (most.endpoints.len(), most.index.capacity_blocks);
    match memory::bytes_max() {
        Some(available) if wanted > available => {
            Err(StartError::IndexTooLarge { pool, capacity_blocks, endpoints, wanted, available })
        }
        _ => Ok(()),
    }
}

fn announce(router: &Router, listeners: &[SocketAddr], admin: SocketAddr) {
    let live = router.live();
    let (pools, endpoints) = (live.pools.len(), live.endpoints().count());
    let index_bytes_max: usize = live.pools.iter().map(|pool| pool.known.index.memory().bytes_max).sum();
    let policies: Vec<_> = live.pools.iter().map(|pool| pool.rules.policy.name()).collect();
    let policy = policies.join(", ");
    let descriptors = SHARES.limit;
    tracing::info!(?listeners, %admin, pools, endpoints, policy, index_bytes_max, descriptors, "serving");
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

/// From here on a SIGHUP asks for a reload, and no longer ends the process.
fn hangups(control: &Handle) -> Result<Signal, StartError> {
    let _entered = control.enter();
    signal(SignalKind::hangup()).map_err(StartError::Signals)
}

/// For as long as the router runs.
#[derive(Clone)]
pub(crate) struct Until(pub(crate) watch::Receiver<bool>);

impl Until {
    /// Runs a task, which ends with the router at the latest.
    pub(crate) async fn run(mut self, task: impl Future<Output = ()>) {
        tokio::select! {
            () = task => {}
            _ = self.0.wait_for(|down| *down) => {}
        }
    }
}

async fn upkeep(router: Arc<Router>) {
    let mut ticks = interval(UPKEEP);
    loop {
        ticks.tick().await;
        router.metrics.upkeep();
        router.live().pools.iter().for_each(|pool| pool.sweep());
    }
}

/// First tokens teach within a quarter of a second: the first requests of a fleet are routed by a pace that nobody measured.
async fn learning(router: Arc<Router>) {
    let mut ticks = interval(FIT_INTERVAL);
    loop {
        ticks.tick().await;
        router.live().pools.iter().for_each(|pool| {
            pool.fit_paces();
            pool.look_after(router.clock);
        });
    }
}
