//! What all requests share: the configuration at work, and what outlives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use config::Config;
use tokio::sync::Semaphore;

use crate::admin::recent::Recent;
use crate::clock::Clock;
use crate::drain::Connections;
use crate::edge::traces::Traces;
use crate::live::{BuildError, Live};
use crate::metrics::Metrics;
use crate::pool::{Knowledge, Pool};
use crate::room::Room;

/// Bytes of request bodies that one permit of the budget stands for.
pub(crate) const PERMIT_BYTES: usize = 16 * 1024;

/// Shared by all listeners, requests and pollers.
pub(crate) struct Router {
    live: ArcSwap<Live>,
    pub(crate) metrics: Metrics,
    pub(crate) recent: Recent,
    /// Budget of request bodies in memory, in permits.
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) draining: AtomicBool,
    /// Clients are told to leave, and find another listener or none that is about to close.
    pub(crate) leaving: AtomicBool,
    /// Another process serves at the same addresses.
    pub(crate) handed_over: AtomicBool,
    /// Connections of clients, over all listeners.
    pub(crate) connections: Connections,
    /// Where clients' connections have their places, and where the admin listener's have theirs.
    pub(crate) clients_room: Arc<Room>,
    pub(crate) admin_room: Arc<Room>,
    pub(crate) clock: Clock,
    /// Where spans go.
    pub(crate) traces: Option<Traces>,
    turns: AtomicU64,
}

impl Router {
    /// A router for a checked configuration; nothing runs yet. Errors: what cannot be had of it.
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, BuildError> {
        let traces = Traces::start(config.traces.as_deref());
        let traces = traces.map_err(|error| BuildError::Traces(error.to_string()))?;
        let bodies = Arc::new(Semaphore::new(config.limits.bodies_bytes_max / PERMIT_BYTES));
        Ok(Arc::new(Self {
            live: ArcSwap::from_pointee(Live::first(config)?),
            metrics: Metrics::new(),
            recent: Recent::default(),
            bodies,
            draining: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            connections: Connections::default(),
            clients_room: Arc::default(),
            admin_room: Arc::default(),
            clock: Clock::start(),
            traces,
            turns: AtomicU64::new(0),
        }))
    }

    /// The configuration at work, for a moment's look.
    pub(crate) fn live(&self) -> Guard<Arc<Live>> {
        self.live.load()
    }

    /// The configuration at work, to hold on to: a request is served by one from its head to its end.
    pub(crate) fn hold_live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Puts another configuration to work; gives the one before.
    pub(crate) fn replace_live(&self, live: Arc<Live>) -> Arc<Live> {
        self.live.swap(live)
    }

    /// The pool that goes on from this knowledge; none once the configuration has it no more.
    pub(crate) fn pool_of(&self, known: &Arc<Knowledge>) -> Option<Arc<Pool>> {
        self.live().pools.iter().find(|pool| Arc::ptr_eq(&pool.known, known)).cloned()
    }

    /// The next decision's number.
    pub(crate) fn take_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    /// Decisions so far.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Whether clients are to leave their connections after this answer: for another process, or for others who wait.
    pub(crate) fn lets_go(&self) -> bool {
        self.leaving.load(Ordering::Relaxed) || self.clients_room.is_full()
    }

    /// Whether a new request would find an endpoint here, or in the process that has taken over.
    pub(crate) fn ready(&self) -> bool {
        let takes_more = !self.draining.load(Ordering::Relaxed) || self.handed_over.load(Ordering::Relaxed);
        takes_more && self.live().pools.iter().any(|pool| pool.ready())
    }
}
