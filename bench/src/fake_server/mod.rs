//! A vLLM-like server with a real block cache and no GPU.
//!
//! What a router can see of an engine is here as vLLM 0.32 shows it: paths, answers, event streams, errors
//! and metrics; behind them stands the engine model of [`crate::engine`] on the real clock. `demo` and tests
//! start it in their own process with [`FakeServer::start`]; the command is [`run`].

mod args;
mod check;
mod fault;
mod metrics;
mod routes;
mod seat;
mod stream;
mod wording;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use args::{FakeServerArgs, run};

use crate::engine::{Figures, ReplicaOptions};
use seat::Engine;

/// How long a stopped server waits for its connections to end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

/// Why a server does not start or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum FakeServerError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// An option has no meaning. The text says which.
    #[error("{0}")]
    Option(String),
    /// The address could not be printed, or the signal to stop could not be awaited.
    #[error("fake-server: {0}")]
    Io(#[from] io::Error),
}

/// What a server is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeServerOptions {
    /// Tells its answers from other servers': the end of `system_fingerprint`.
    pub name: String,
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Names of the models served, the default first.
    pub models: Vec<String>,
    /// The engine behind it.
    pub replica: ReplicaOptions,
    /// Blocks that it says its cache holds; `None` for the truth. For routers that must find out.
    pub told_cache_blocks: Option<usize>,
    /// Time between two tokens of an answer. The request keeps its lane until the last.
    pub inter_token: Duration,
}

impl Default for FakeServerOptions {
    /// `sim` on a free port of loopback, serving `cc-sim`.
    fn default() -> Self {
        Self {
            name: "sim".to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            models: vec!["cc-sim".to_owned()],
            replica: ReplicaOptions::default(),
            told_cache_blocks: None,
            inter_token: Duration::ZERO,
        }
    }
}

/// A server that is not running yet.
#[derive(Clone, Copy, Debug)]
pub struct FakeServer;

impl FakeServer {
    /// Listens and serves on the current tokio runtime until stopped or dropped.
    pub async fn start(options: FakeServerOptions) -> Result<RunningFakeServer, FakeServerError> {
        let asked = options.address;
        let listen = |source| FakeServerError::Listen { address: asked, source };
        let listener = TcpListener::bind(asked).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (stop, stopping) = watch::channel(false);
        let engine = Arc::new(Engine::new(options, stopping.clone()));
        let task = tokio::spawn(serve(listener, Arc::clone(&engine), stopping));
        Ok(RunningFakeServer { address, engine, stop, task })
    }
}

async fn serve(listener: TcpListener, engine: Arc<Engine>, mut stopping: watch::Receiver<bool>) {
    // Words go out as they are said. A socket that refuses the option still serves.
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    let stopped = async move { drop(stopping.wait_for(|stop| *stop).await) };
    // `axum::serve` never ends with an error.
    let _ = axum::serve(listener, routes::router(engine)).with_graceful_shutdown(stopped).await;
}

/// A server that runs. Dropping it stops it without waiting.
pub struct RunningFakeServer {
    address: SocketAddr,
    engine: Arc<Engine>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RunningFakeServer {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// `http://` and the address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What its engine exports now, without the way over HTTP.
    pub fn figures(&self) -> Figures {
        self.engine.figures()
    }

    /// Stops as a killed engine does: the port closes, streams break, requests that wait get a 500.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if tokio::time::timeout(STOP_WAIT_MAX, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Drop for RunningFakeServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
