//! One configuration at work. A reload builds the next one beside it and swaps it in as a whole.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use config::Config;
use picker::belief::JoinError;
use rustls::ServerConfig;

use crate::decision_log;
use crate::edge::Edge;
use crate::edge::access_log;
use crate::endpoints::Endpoint;
use crate::lines::{Lines, Sink};
use crate::pool::Pool;
use crate::pools::Routes;
use crate::tls::{TlsError, server};

/// A configuration and what was built from it. Never changed, only replaced.
pub(crate) struct Live {
    /// 1 for the one that the router started with.
    pub(crate) version: u64,
    pub(crate) config: Config,
    /// In the order of the configuration.
    pub(crate) pools: Vec<Arc<Pool>>,
    pub(crate) edge: Edge,
    /// Of each listener; none for clear text. A handshake takes what is there.
    pub(crate) tls: Vec<Option<Arc<ServerConfig>>>,
    pub(crate) access_log: Option<Arc<Lines>>,
    pub(crate) decision_log: Option<Arc<Lines>>,
    /// Which pool serves a model; with the adapters that engines list.
    pub(crate) routes: ArcSwap<Routes>,
}

/// What cannot be had of a configuration that is right by itself.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The system refused the memory, or a fleet is larger than an index.
    #[error("index: {0}")]
    Index(#[from] JoinError),
    /// A certificate or a key that cannot be used.
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    /// A file that cannot be appended to, or no thread to write it.
    #[error("{key}: {path}: {cause}")]
    Log {
        /// The key of the log.
        key: &'static str,
        /// Where lines were to go.
        path: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Spans without the means for them.
    #[error("{0}")]
    Traces(String),
}

impl Live {
    /// What a router starts with. Errors: what cannot be had.
    pub(crate) fn first(config: Config) -> Result<Self, BuildError> {
        Self::build(config, 1, None)
    }

    /// The next one. Pools of the same name keep what they know, and their endpoints; tenants what they have used up. Nothing
    /// is changed that requests see. Errors: what cannot be had.
    pub(crate) fn after(&self, config: Config) -> Result<Self, BuildError> {
        Self::build(config, self.version + 1, Some(self))
    }

    fn build(config: Config, version: u64, before: Option<&Self>) -> Result<Self, BuildError> {
        let pool = |pool: &config::Pool| {
            let before = before.and_then(|before| before.pool(&pool.name));
            Pool::build(pool.clone(), config.edge.client_key, before.map(Arc::as_ref)).map(Arc::new)
        };
        let pools = config.pools.iter().map(pool).collect::<Result<_, _>>()?;
        let tls = listeners(&config, before)?;
        let edge = Edge::after(before.map(|before| &before.edge), &config.edge);
        // Last: a file that is opened anew is taken at once.
        let (access_log, decision_log) = (access_log(&config, before)?, decision_log(&config, before)?);
        let routes = ArcSwap::from_pointee(Routes::new(&config.pools));
        let live = Self { version, config, pools, edge, tls, access_log, decision_log, routes };
        live.refresh_routes();
        Ok(live)
    }

    /// Takes into the routes what engines list now.
    pub(crate) fn refresh_routes(&self) {
        let now = Instant::now();
        self.pools.iter().for_each(|pool| pool.refresh_lists(now));
        let of = |(place, pool): (usize, &Arc<Pool>)| {
            pool.endpoints()
                .filter_map(|endpoint| endpoint.models(now))
                .map(|list| (place, list))
                .collect::<Vec<_>>()
        };
        let lists: Vec<_> = self.pools.iter().enumerate().flat_map(of).collect();
        let routes =
            self.routes.load().with_adapters(lists.iter().map(|(place, list)| (*place, list.as_ref())));
        self.routes.store(Arc::new(routes));
    }

    /// The pool of that name.
    pub(crate) fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.config.name == name)
    }

    /// All endpoints with their pools, in the order of the configuration.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (&Arc<Pool>, &Arc<Endpoint>)> {
        self.pools.iter().flat_map(|pool| pool.endpoints().map(move |endpoint| (pool, endpoint)))
    }

    /// Opens the logs anew: their files may have been renamed. Errors: one cannot be opened; the old one goes on.
    pub(crate) fn reopen_logs(&self) -> Result<(), BuildError> {
        access_log(&self.config, Some(self))?;
        decision_log(&self.config, Some(self))?;
        Ok(())
    }
}

/// TLS of each listener; what is as it was stays, so that clients can resume.
fn listeners(config: &Config, before: Option<&Live>) -> Result<Vec<Option<Arc<ServerConfig>>>, TlsError> {
    let made = |(place, listener): (usize, &config::Listener)| {
        let was = before.and_then(|before| before.config.listeners.get(place));
        if let Some(before) = before.filter(|_| was.is_some_and(|was| was.tls == listener.tls)) {
            return Ok(before.tls.get(place).cloned().flatten());
        }
        listener.tls.as_ref().map(server::config).transpose()
    };
    config.listeners.iter().enumerate().map(made).collect()
}

fn access_log(config: &Config, before: Option<&Live>) -> Result<Option<Arc<Lines>>, BuildError> {
    let Some(to) = &config.access_log else { return Ok(None) };
    let path = match to {
        config::AccessLog::Stdout => PathBuf::from("stdout"),
        config::AccessLog::File(path) => path.clone(),
    };
    let running = before.and_then(|before| before.access_log.clone());
    log(("access_log", "access log"), path, access_log::open(to), running).map(Some)
}

fn decision_log(config: &Config, before: Option<&Live>) -> Result<Option<Arc<Lines>>, BuildError> {
    let Some(to) = &config.decision_log else { return Ok(None) };
    let running = before.and_then(|before| before.decision_log.clone());
    log(("decision_log", "decision log"), to.path.clone(), decision_log::open(to), running).map(Some)
}

/// The running log with another sink, or a new one.
fn log(
    (key, name): (&'static str, &'static str),
    path: PathBuf,
    sink: io::Result<Sink>,
    running: Option<Arc<Lines>>,
) -> Result<Arc<Lines>, BuildError> {
    let failed = |cause| BuildError::Log { key, path: path.display().to_string(), cause };
    let sink = sink.map_err(failed)?;
    match running {
        Some(log) => {
            log.switch(sink);
            Ok(log)
        }
        None => Lines::start(name, sink).map(Arc::new).map_err(failed),
    }
}
