//! Another configuration for a router that runs.
//!
//! Read, check all, compare, build, then swap in one step; if anything is wrong the old one serves on, and log, state and
//! metrics say why. A reload is asked for by the file itself (`watch.rs`), by SIGHUP or by `POST /prefixroute/reload`; one
//! runs at a time. What did not change keeps its belief, its load, what was learned, and its connections.

mod changes;
mod discovery;
mod marks;
mod watch;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::{Config, Faults, Flags, Loaded};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::signal::unix::Signal;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::endpoints::Endpoint;
use crate::endpoints::poll::poll;
use crate::endpoints::poll_health::poll_health;
use crate::endpoints::poll_models::poll_models;
use crate::live::Live;
use crate::pool::Pool;
use crate::router::Router;
use crate::serve::{Until, fits};
use discovery::Found;
use marks::{Marking, Marks};

/// Time for the files of a configuration to be read.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Where a configuration comes from, again and again.
#[derive(Clone, Debug)]
pub struct Source {
    file: String,
    flags: Flags,
}

/// A configuration as it was read, and what tells that its files have changed since.
#[derive(Debug)]
pub struct Read {
    loaded: Loaded,
    source: Option<Source>,
    marks: Marks,
}

/// What came of a reload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The new configuration serves; what changed, in words.
    Applied { changes: Vec<String> },
    /// It says what the old one says.
    Unchanged,
    /// The old one serves on, because of these.
    Refused { faults: Vec<String> },
}

/// Reloads the configuration of one router.
pub(crate) struct Reloader {
    router: Arc<Router>,
    source: Option<Source>,
    control: Handle,
    /// What runs for endpoints ends with it.
    until: Until,
    /// One permit: readings that do not answer are not to pile up.
    reading: Arc<Semaphore>,
    /// Held through a reload.
    running: tokio::sync::Mutex<Running>,
    status: Mutex<Status>,
}

/// What the router runs with.
struct Running {
    loaded: Loaded,
    /// Of the files as they were last read, well or badly.
    marks: Marks,
    /// What names stand for, beside what is written.
    found: Found,
}

/// How the last reload went.
struct Status {
    at: SystemTime,
    faults: Vec<String>,
}

impl Source {
    /// A file and what the command line says over it.
    pub fn new(file: String, flags: Flags) -> Self {
        Self { file, flags }
    }

    /// Reads and checks it. Error: every fault; the marks of what was read are there all the same.
    fn read(&self) -> (Result<Loaded, Faults>, Marks) {
        let outside = Marking::new();
        outside.mark(self.file.as_ref());
        let read = config::read_file(self.file.as_ref());
        let loaded = read.and_then(|text| config::load(Some((&self.file, &text)), &self.flags, &outside));
        (loaded, outside.into_marks())
    }
}

impl Read {
    /// What a file says, which is watched from the moment before it is read. Errors: every fault.
    pub fn from_file(source: Source) -> Result<Self, Faults> {
        let (loaded, marks) = source.read();
        Ok(Self { loaded: loaded?, source: Some(source), marks })
    }

    /// What was read by other means: it cannot be read again.
    pub fn once(loaded: Loaded) -> Self {
        Self { loaded, source: None, marks: Marks::default() }
    }

    /// Where another process hands its listeners over.
    pub fn upgrade_socket(&self) -> Option<&Path> {
        self.loaded.config.ending.upgrade_socket.as_deref()
    }

    /// What holds.
    pub(crate) fn config(&self) -> &Config {
        &self.loaded.config
    }
}

impl Reloader {
    /// For a router that was made of `read`. Pollers run on `control`.
    pub(crate) fn new(router: Arc<Router>, read: Read, control: Handle, until: Until) -> Arc<Self> {
        let Read { loaded, source, marks } = read;
        let status = Mutex::new(Status { at: SystemTime::now(), faults: Vec::new() });
        let running = tokio::sync::Mutex::new(Running { loaded, marks, found: Found::default() });
        let reading = Arc::new(Semaphore::new(1));
        let reloader = Self { router, source, control, until, reading, running, status };
        reloader.router.metrics.configured(1, true);
        for (pool, endpoint) in reloader.router.live().endpoints() {
            reloader.poll(pool, endpoint);
        }
        Arc::new(reloader)
    }

    /// Reads the file again and puts what it says to work. `None`: there is no file.
    pub(crate) async fn reload(&self, why: &'static str) -> Option<Outcome> {
        let source = self.source.as_ref()?;
        let mut running = self.running.lock().await;
        let loaded = match self.read(source).await {
            Ok((loaded, marks)) => {
                running.marks.update(marks);
                loaded.map_err(|faults| faults.iter().map(ToString::to_string).collect())
            }
            Err(fault) => Err(vec![fault]),
        };
        let outcome = match loaded {
            Ok(loaded) => self.apply(&mut running, loaded),
            Err(faults) => Outcome::Refused { faults },
        };
        self.tell(&outcome, why);
        Some(outcome)
    }

    /// Reads the source on a thread of its own: a file may not answer, a pipe or a file system that has gone. Error: it has not
    /// come in time, or an earlier reading still waits.
    async fn read(&self, source: &Source) -> Result<(Result<Loaded, Faults>, Marks), String> {
        let late = || format!("{}: not read within {READ_WITHIN:?}, nor what it names", source.file);
        let turn = self.reading.clone().try_acquire_owned().map_err(|_| late())?;
        let reading = source.clone();
        let read = spawn_blocking(move || {
            let _turn = turn;
            reading.read()
        });
        timeout(READ_WITHIN, read).await.map_err(|_| late())?.map_err(|error| error.to_string())
    }

    /// Swaps `next` in, or says what stands against it.
    fn apply(&self, running: &mut Running, next: Loaded) -> Outcome {
        let (loaded, found) = (&mut running.loaded, &running.found);
        if loaded.config == next.config {
            *loaded = next;
            return match self.router.live().reopen_logs() {
                Ok(()) => Outcome::Unchanged,
                Err(error) => Outcome::Refused { faults: vec![error.to_string()] },
            };
        }
        let faults = changes::needing_restart(&loaded.config, &next.config);
        if !faults.is_empty() {
            return Outcome::Refused { faults };
        }
        let built = fits(&next.config.pools)
            .and_then(|()| Ok(self.router.live().after(found.complete(&next.config))?));
        match built {
            Ok(live) => {
                let changes = changes::in_words(loaded, &next);
                self.swap(Arc::new(live));
                *loaded = next;
                Outcome::Applied { changes }
            }
            Err(error) => Outcome::Refused { faults: vec![error.to_string()] },
        }
    }

    /// From here on nothing can fail.
    fn swap(&self, live: Arc<Live>) {
        let before = self.router.replace_live(live.clone());
        let endpoints_of =
            |of: &Live| of.endpoints().map(|(_, endpoint)| Arc::as_ptr(endpoint)).collect::<HashSet<_>>();
        let (were, are) = (endpoints_of(&before), endpoints_of(&live));
        for (_, gone) in before.endpoints().filter(|(_, endpoint)| !are.contains(&Arc::as_ptr(endpoint))) {
            gone.retire();
        }
        for pool in &live.pools {
            let was = before.pool(&pool.config.name);
            if was.is_some_and(|was| {
                was.rules.block != pool.rules.block || was.rules.tokenizer != pool.rules.tokenizer
            }) {
                pool.endpoints().for_each(|endpoint| pool.forget(endpoint, "prompts are cut another way"));
            }
            pool.known.changed.notify_waiters();
        }
        for (pool, new) in live.endpoints().filter(|(_, endpoint)| !were.contains(&Arc::as_ptr(endpoint))) {
            self.poll(pool, new);
        }
    }

    fn poll(&self, pool: &Pool, endpoint: &Arc<Endpoint>) {
        let of = || (self.router.clone(), pool.known.clone(), endpoint.clone());
        let (router, known, polled) = of();
        self.control.spawn(self.until.clone().run(poll(router, known, polled)));
        let (router, known, polled) = of();
        self.control.spawn(self.until.clone().run(poll_models(router, known, polled)));
        let (router, known, polled) = of();
        self.control.spawn(self.until.clone().run(poll_health(router, known, polled)));
    }

    /// Log, state and metrics.
    fn tell(&self, outcome: &Outcome, why: &'static str) {
        let version = self.router.live().version;
        let faults = match outcome {
            Outcome::Applied { changes } => {
                for change in changes {
                    tracing::info!(version, change, "configuration");
                }
                tracing::info!(version, why, changes = changes.len(), "configuration applied");
                Vec::new()
            }
            Outcome::Unchanged => {
                tracing::info!(version, why, "configuration unchanged");
                Vec::new()
            }
            Outcome::Refused { faults } => {
                for fault in faults {
                    tracing::error!(version, fault, "configuration");
                }
                tracing::error!(
                    version,
                    why,
                    faults = faults.len(),
                    "configuration refused, the old one serves on"
                );
                faults.clone()
            }
        };
        self.router.metrics.reloaded(outcome);
        self.router.metrics.configured(version, faults.is_empty());
        *self.status.lock() = Status { at: SystemTime::now(), faults };
    }

    /// What the state page says of the configuration.
    pub(crate) fn show(&self) -> Value {
        let status = self.status.lock();
        let since = |at: SystemTime| {
            at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
        };
        json!({
            "version": self.router.live().version,
            "file": self.source.as_ref().map(|source| &source.file),
            "in_sync": status.faults.is_empty(),
            "faults": status.faults,
            "read_at_unix_ms": since(status.at),
        })
    }

    /// Reloads at each SIGHUP.
    pub(crate) async fn at_hangups(self: Arc<Self>, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            self.reload("SIGHUP").await;
        }
    }
}
