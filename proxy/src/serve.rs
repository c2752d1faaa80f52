//! Starting and stopping: has every listener before anything runs, then serves until told to drain or replaced.
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
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{interval, sleep, timeout};

use crate::accept::{Gate, Spoken, accept};
use crate::admin::Admin;
use crate::descriptors::SHARES;
pub use crate::drain::Signals;
use crate::drain::Wanted;
pub use crate::listen::BindError;
use crate::listen::{Listening, Role, Shared, listen};
pub use crate::live::BuildError;
use crate::memory;
use crate::notify;
use crate::reload::{Read, Reloader};
use crate::request::{Entrance, Front};
use crate::router::Router;
pub use crate::tls::TlsError;
use crate::upgrade::{Inherited, UpgradeError, give};

/// How often recorded samples are folded into histograms, idle connections are swept and paces are fitted.
const UPKEEP: Duration = Duration::from_secs(1);
/// Time for the last spans to be taken.
const SPANS_WITHIN: Duration = Duration::from_secs(2);
/// Time between two fits of what first tokens teach.
const FIT_INTERVAL: Duration = Duration::from_millis(250);
/// Time for every engine's load to be known, before another process is replaced.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
    /// The process whose place it was to have.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
}

/// A router that has all it needs, and takes no connections yet.
pub struct Prepared {
    router: Arc<Router>,
    reloader: Arc<Reloader>,
    /// Where clients are served, in the order of the configuration.
    listening: Vec<(Listening, Spoken)>,
    admin: Listening,
    inherited: Inherited,
    data: Handle,
    control: Handle,
    ended: watch::Sender<bool>,
}

/// A router that runs.
pub struct Running {
    router: Arc<Router>,
    /// Stops what serves clients.
    shutdown: watch::Sender<bool>,
    /// Stops the admin pages, which live through a drain.
    closed: watch::Sender<bool>,
    /// Stops the rest: pollers live through a drain.
    ended: watch::Sender<bool>,
    /// What accepts clients.
    accepting: Vec<JoinHandle<()>>,
    /// For a process that takes over.
    shared: Arc<[Shared]>,
    /// Where clients are served, in the order of the configuration; ports as the system gave them.
    pub listeners: Vec<SocketAddr>,
    /// Where the admin pages are served.
    pub admin: SocketAddr,
}

/// Has all listeners, then starts polling and watching the configuration.
///
/// Requests will run on `data`; pollers and admin pages on `control`, so that they answer when requests keep `data` busy.
/// Errors: a listener that cannot be bound, an index that cannot be had; nothing has started then.
pub fn prepare(
    read: Read,
    mut inherited: Inherited,
    data: &Handle,
    control: &Handle,
) -> Result<Prepared, StartError> {
    let hangups = hangups(control)?;
    let config = read.config();
    fits(&config.pools)?;
    let mut listening = Vec::new();
    for (place, listener) in config.listeners.iter().enumerate() {
        let tls = listener.tls.is_some().then_some(place);
        let spoken = Spoken { protocol: listener.protocol, tls };
        listening.push((listen(Role::Data, listener.address, &mut inherited, data)?, spoken));
    }
    let admin = listen(Role::Admin, config.admin, &mut inherited, control)?;
    let router = Router::new(config.clone())?;
    let (ended, end) = watch::channel(false);
    let until = Until(end);
    let reloader = Reloader::new(router.clone(), read, control.clone(), until.clone());
    control.spawn(until.clone().run(upkeep(router.clone())));
    control.spawn(until.clone().run(learning(router.clone())));
    control.spawn(until.clone().run(reloader.clone().at_hangups(hangups)));
    control.spawn(until.clone().run(reloader.clone().at_names()));
    control.spawn(until.run(reloader.clone().at_changes()));
    let (data, control) = (data.clone(), control.clone());
    Ok(Prepared { router, reloader, listening, admin, inherited, data, control, ended })
}

/// A router that serves at once, as the only one at its addresses. Errors: as of [`prepare`].
#[cfg(feature = "lab")]
pub(crate) fn start(read: Read, data: &Handle, control: &Handle) -> Result<Running, StartError> {
    Ok(prepare(read, Inherited::default(), data, control)?.serve()?)
}

impl Prepared {
    /// Where another process is to be replaced: waits until every engine has been asked for its load, for a moment at most. The first
    /// request is not to be routed blindly.
    pub async fn looks_around(&self) {
        let router = &self.router;
        let all = async {
            while router.live().endpoints().any(|(_, endpoint)| matches!(endpoint.scrapes(), (0, 0, _))) {
                sleep(LOOK_AGAIN).await;
            }
        };
        if self.inherited.takes_over() && timeout(FIRST_LOOK_WITHIN, all).await.is_err() {
            tracing::warn!(within = ?FIRST_LOOK_WITHIN, "not every endpoint has answered or failed");
        }
    }

    /// Serves. Blocks while another process is asked for its place. Errors: that one keeps it.
    pub fn serve(self) -> Result<Running, UpgradeError> {
        self.inherited.ask()?;
        let Self { router, reloader, listening, admin, inherited, data, control, ended } = self;
        let (shutdown, down) = watch::channel(false);
        let (closed, close) = watch::channel(false);
        let (mut listeners, mut accepting, mut shared) = (Vec::new(), Vec::new(), Vec::new());
        for (Listening { socket, address, shared: for_another }, spoken) in listening {
            listeners.push(address);
            shared.push(for_another);
            let of = router.clone();
            let front = move |peer: SocketAddr| {
                let entrance = Entrance { listener: address, peer: peer.ip(), tls: spoken.tls.is_some() };
                Arc::new(Front::new(of.clone(), entrance, spoken.protocol == Protocol::H2c))
            };
            accepting.push(data.spawn(accept(
                socket,
                front,
                Gate::Clients(router.clone()),
                spoken,
                down.clone(),
            )));
        }
        shared.push(admin.shared);
        let app = Arc::new(Admin::new(router.clone(), reloader));
        let gate = Gate::Admin(router.clone());
        control.spawn(accept(admin.socket, move |_| app.clone(), gate, Spoken::default(), close));
        let (shared, admin) = (shared.into(), admin.address);
        announce(&router, &listeners, admin);
        notify::ready();
        inherited.serving();
        Ok(Running { router, shutdown, closed, ended, accepting, shared, listeners, admin })
    }
}

impl Running {
    /// Waits until every endpoint has answered a scrape.
    #[cfg(feature = "lab")]
    pub(crate) async fn all_answer(&self) {
        while !self.router.live().endpoints().all(|(_, endpoint)| endpoint.reachable()) {
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether an endpoint takes connections.
    #[cfg(feature = "lab")]
    pub(crate) fn any_answers(&self) -> bool {
        self.router.live().endpoints().any(|(_, endpoint)| endpoint.reachable())
    }

    /// Serves until SIGTERM or SIGINT, or until a process has taken over after SIGQUIT; then drains. A second SIGTERM or SIGINT ends
    /// it at once. True if every connection ended by itself.
    pub async fn until_signalled(mut self, mut signals: Signals) -> bool {
        let handed_over = self.until_told(&mut signals).await;
        let insisted = async {
            if handed_over {
                // Draining is what the first one asks for.
                signals.end().await;
            }
            signals.end().await;
        };
        tokio::select! {
            () = self.close(handed_over) => {}
            () = insisted => tracing::warn!("told to end at once"),
        }
        self.finish()
    }

    /// Stops accepting, tells clients to close, and waits for running requests as long as the configuration allows.
    #[cfg(feature = "lab")]
    pub(crate) async fn drain(mut self) {
        self.close(false).await;
        self.finish();
    }

    /// Whether another process serves now; if not, this one is to end.
    async fn until_told(&self, signals: &mut Signals) -> bool {
        while signals.next().await == Wanted::Upgrade {
            let given = tokio::select! {
                given = self.hand_over() => given,
                () = signals.end() => break,
            };
            match given {
                Ok(()) => return true,
                Err(error) => tracing::error!(%error, "no upgrade: this process serves on"),
            }
        }
        false
    }

    /// Hands the listeners over to a process that waits for them. Errors: why none has them.
    async fn hand_over(&self) -> Result<(), UpgradeError> {
        let path = self.router.live().config.ending.upgrade_socket.clone().ok_or(UpgradeError::NoSocket)?;
        tracing::info!(upgrade_socket = %path.display(), "handing the listening sockets over");
        let shared = Arc::downgrade(&self.shared);
        let given = spawn_blocking(move || give(&path, &shared)).await;
        given.unwrap_or(Err(UpgradeError::Draining))
    }

    /// Not ready at once; then no new connections, and the end of those that there are.
    async fn close(&mut self, handed_over: bool) {
        let ending = self.router.live().config.ending.clone();
        let delay = if handed_over { Duration::ZERO } else { ending.delay };
        self.router.handed_over.store(handed_over, Ordering::Relaxed);
        self.router.draining.store(true, Ordering::Relaxed);
        let connections = self.router.connections.open();
        tracing::info!(connections, ?delay, limit = ?ending.drain, handed_over, "draining");
        // Who is told to leave comes again at once. Without a delay that would be while the listeners close, and Linux resets
        // who comes between the last look at their queues and their end.
        self.router.leaving.store(!delay.is_zero(), Ordering::Relaxed);
        sleep(delay).await;
        // Nobody may connect to what nobody accepts.
        self.shared = Arc::new([]);
        let _ = self.shutdown.send(true);
        if handed_over {
            let _ = self.closed.send(true);
        }
        // What waited to be accepted counts from then on.
        for accepting in self.accepting.drain(..) {
            let _ = accepting.await;
        }
        self.router.leaving.store(true, Ordering::Relaxed);
        self.router.connections.none_left(ending.drain).await;
    }

    /// True if every connection had ended by itself.
    fn finish(&self) -> bool {
        // Before they are told: what is open now is cut, however soon it closes.
        let cut = self.router.connections.open();
        for stop in [&self.shutdown, &self.closed, &self.ended] {
            let _ = stop.send(true);
        }
        if let Some(traces) = &self.router.traces {
            traces.stop(SPANS_WITHIN);
        }
        match cut {
            0 => tracing::info!(cut, "stopped"),
            _ => tracing::warn!(cut, "stopped"),
        }
        cut == 0
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
