//! One task per endpoint that reads the engine's `/metrics`, so that a slow page never delays another's.
//!
//! Each task has one scrape in flight at most, bounded in time and size. It also resolves the endpoint's name and
//! decides whether it can be reached: any HTTP answer counts, a refused or unanswered connect does not. A scrape that
//! fails over a good connection only lets the figures go stale; the endpoint stays in use, unscored.
//!
//! Here the router also learns that a cache is gone: the engine restarted, sleeps, or is no more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use picker::chance::Draw;

use super::load::{Ours, Sample};
use super::page::{self, Bounds, PageError};
use super::{Endpoint, prometheus};
use crate::pool::{Knowledge, Pool};
use crate::router::Router;
use crate::upstream::ConnectError;

/// A scrape comes up to this share of the interval early or late, so that pollers do not march in step.
const JITTER: f64 = 0.1;
/// Scrapes in a row that are refused before the engine is taken to be no more, and its cache with it. One may be a backlog
/// that ran over for a moment.
const REFUSALS_MAX: u32 = 2;

/// Why a scrape gave nothing.
#[derive(Debug, thiserror::Error)]
enum ScrapeError {
    #[error("{0}")]
    Unreachable(PageError),
    #[error("/metrics: {0}")]
    Page(PageError),
    #[error("/metrics: none of the figures that are read, wanted {0}")]
    Unknown(String),
}

impl From<PageError> for ScrapeError {
    fn from(error: PageError) -> Self {
        if error.is_unreachable() { Self::Unreachable(error) } else { Self::Page(error) }
    }
}

/// Polls until the endpoint is retired. Each turn goes by the pool's configuration of that moment.
pub(crate) async fn poll(router: Arc<Router>, known: Arc<Knowledge>, endpoint: Arc<Endpoint>) {
    let poller = Poller::new(&router, endpoint.clone());
    in_turns(&router, &known, &endpoint, poller).await;
}

/// What a task of an endpoint's does again and again.
pub(super) trait Turns {
    /// Does it once, by the pool's configuration of that moment. Gives the time from the beginning of this turn to that of the
    /// next; none where nothing is to be done until the settings change.
    fn turn(&mut self, pool: &Pool) -> impl Future<Output = Option<Duration>> + Send;
}

/// Takes turns until the endpoint is retired.
pub(super) async fn in_turns(
    router: &Router,
    known: &Arc<Knowledge>,
    endpoint: &Endpoint,
    mut turns: impl Turns,
) {
    let mut turn = 0;
    let polling = async {
        while let Some(pool) = router.pool_of(known) {
            let started = Instant::now();
            let Some(interval) = turns.turn(&pool).await else {
                known.changed.notified().await;
                continue;
            };
            turn += 1;
            let next = jittered(interval, endpoint.id().0, turn);
            known.changed_within(next.saturating_sub(started.elapsed())).await;
        }
    };
    tokio::select! {
        biased;
        () = endpoint.retired() => {}
        () = polling => {}
    }
}

fn jittered(interval: Duration, seed: u32, turn: u64) -> Duration {
    let number = Draw { seed: u64::from(seed), turn }.number(0) as f64 / u64::MAX as f64;
    interval.mul_f64(1.0 - JITTER + 2.0 * JITTER * number)
}

/// What a poller keeps from one scrape to the next.
struct Poller<'a> {
    router: &'a Router,
    endpoint: Arc<Endpoint>,
    /// Which of the paths at which the page may be has it, as far as is known.
    at: usize,
    page: Vec<u8>,
    /// Scrapes refused in a row.
    refusals: u32,
    /// What this router had sent there when the page was asked for.
    ours: Ours,
}

impl Turns for Poller<'_> {
    async fn turn(&mut self, pool: &Pool) -> Option<Duration> {
        self.scrape(pool).await;
        Some(pool.config.load.scrape_interval)
    }
}

impl<'a> Poller<'a> {
    fn new(router: &'a Router, endpoint: Arc<Endpoint>) -> Self {
        Self { router, endpoint, at: 0, page: Vec::new(), refusals: 0, ours: Ours::default() }
    }

    /// Reads the page once, where it was last; where it is not there, at the other places. The error is that of the first.
    async fn scrape(&mut self, pool: &Pool) {
        let mut outcome = self.attempt(pool).await;
        let first = self.at;
        for at in (0..pool.names.paths().len()).filter(|at| *at != first) {
            if !matches!(outcome, Err(ScrapeError::Page(PageError::Status(_)) | ScrapeError::Unknown(_))) {
                break;
            }
            self.at = at;
            match self.attempt(pool).await {
                Ok(()) => outcome = Ok(()),
                Err(_) => self.at = first,
            }
        }
        let error = outcome.map_err(|error| error.to_string());
        let message = error.as_ref().err().cloned();
        if self.endpoint.scraped(error)
            && let Some(error) = message
        {
            tracing::warn!(endpoint = self.endpoint.name, error, "scrape failed");
        }
    }

    /// Reads the page at one place, and learns from it.
    async fn attempt(&mut self, pool: &Pool) -> Result<(), ScrapeError> {
        let outcome = self.read(pool).await;
        let error = outcome.err();
        self.endpoint.set_reachable(!error.is_some_and(PageError::is_unreachable));
        self.count_refusals(pool, matches!(error, Some(PageError::Connect(ConnectError::Refused))));
        outcome?;
        self.learn(pool)
    }

    /// An address that nobody listens at has no process behind it.
    fn count_refusals(&mut self, pool: &Pool, refused: bool) {
        self.refusals = if refused { self.refusals.saturating_add(1) } else { 0 };
        if self.refusals == REFUSALS_MAX {
            pool.forget(&self.endpoint, "nobody listens there");
        }
    }

    /// Reads a page into `self.page`.
    async fn read(&mut self, pool: &Pool) -> Result<(), PageError> {
        let config::Load { scrape_timeout: limit, page_bytes_max: bytes_max, .. } = pool.config.load;
        let member = pool.member(&self.endpoint).ok_or(PageError::Resolve)?;
        let Self { router, endpoint, ours, page, .. } = self;
        let paths = pool.names.paths();
        let path = paths[self.at % paths.len()];
        let asked = || *ours = endpoint.ours(router.clock.now());
        page::read(pool, member, path, page, Bounds { bytes_max, limit }, asked).await
    }

    /// Takes what the page says: load, cache size, signs of a restart. Error: it says nothing of load.
    fn learn(&self, pool: &Pool) -> Result<(), ScrapeError> {
        let report = prometheus::read(&self.page, &pool.names);
        let before = self.endpoint.sample.load_full();
        let sample = Sample::after(before.as_deref(), &report, Instant::now(), self.ours);
        if before.as_ref().is_some_and(|before| sample.restarted_since(before)) {
            pool.forget(&self.endpoint, "engine restarted");
            self.endpoint.health.begin_anew();
        }
        let asleep = sample.fell_asleep_since(before.as_deref());
        self.resize(pool, self.endpoint.trust.of(pool.capacity_blocks(&sample)));
        self.endpoint.sample.store(Some(Arc::new(sample)));
        // Once no new request goes there.
        if asleep {
            pool.forget(&self.endpoint, "engine sleeps");
        }
        if report.tells_load() { Ok(()) } else { Err(ScrapeError::Unknown(pool.names.wanted())) }
    }

    /// Believes as much as the engine's cache holds.
    fn resize(&self, pool: &Pool, capacity_blocks: usize) {
        let (index, endpoint) = (&pool.known.index, &self.endpoint.name);
        match index.resize(self.endpoint.id(), capacity_blocks) {
            Ok(true) => {
                let index_bytes_max = index.memory().bytes_max;
                tracing::info!(
                    endpoint,
                    capacity_blocks,
                    index_bytes_max,
                    "belief has the engine's capacity"
                );
            }
            Ok(false) => {}
            Err(error) => tracing::debug!(endpoint, %error, "belief keeps its capacity"),
        }
    }
}
