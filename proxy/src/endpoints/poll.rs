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
use tokio::time::sleep;

use super::load::{Ours, Sample};
use super::page::{self, Bounds, PageError};
use super::{Endpoint, prometheus};
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

/// Polls until the router is dropped by its other owners; never returns before.
pub(crate) async fn poll(router: Arc<Router>, endpoint: Arc<Endpoint>) {
    let mut poller = Poller::new(&router, endpoint);
    let mut turn = 0;
    loop {
        let started = Instant::now();
        poller.scrape().await;
        turn += 1;
        let next = jittered(router.config.pools[0].load.scrape_interval, poller.endpoint.id.0, turn);
        sleep(next.saturating_sub(started.elapsed())).await;
    }
}

pub(super) fn jittered(interval: Duration, seed: u32, turn: u64) -> Duration {
    let number = Draw { seed: u64::from(seed), turn }.number(0) as f64 / u64::MAX as f64;
    interval.mul_f64(1.0 - JITTER + 2.0 * JITTER * number)
}

/// What a poller keeps from one scrape to the next.
struct Poller<'a> {
    router: &'a Router,
    endpoint: Arc<Endpoint>,
    /// A request for each path at which the page may be, and which of them has it as far as is known.
    heads: Vec<Vec<u8>>,
    at: usize,
    page: Vec<u8>,
    /// Scrapes refused in a row.
    refusals: u32,
    /// What this router had sent there when the page was asked for.
    ours: Ours,
}

impl<'a> Poller<'a> {
    fn new(router: &'a Router, endpoint: Arc<Endpoint>) -> Self {
        let heads = endpoint.names.paths().iter().map(|path| endpoint.get(path)).collect();
        Self { router, endpoint, heads, at: 0, page: Vec::new(), refusals: 0, ours: Ours::default() }
    }

    /// Reads the page once, where it was last; where it is not there, at the other places. The error is that of the first.
    async fn scrape(&mut self) {
        let mut outcome = self.attempt().await;
        let first = self.at;
        for at in (0..self.heads.len()).filter(|at| *at != first) {
            if !matches!(outcome, Err(ScrapeError::Page(PageError::Status(_)) | ScrapeError::Unknown(_))) {
                break;
            }
            self.at = at;
            match self.attempt().await {
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
    async fn attempt(&mut self) -> Result<(), ScrapeError> {
        let outcome = self.read().await;
        let error = outcome.err();
        self.endpoint.set_reachable(!error.is_some_and(PageError::is_unreachable));
        self.count_refusals(matches!(error, Some(PageError::Connect(ConnectError::Refused))));
        outcome?;
        self.learn()
    }

    /// An address that nobody listens at has no process behind it.
    fn count_refusals(&mut self, refused: bool) {
        self.refusals = if refused { self.refusals.saturating_add(1) } else { 0 };
        if self.refusals == REFUSALS_MAX {
            self.router.forget(&self.endpoint, "nobody listens there");
        }
    }

    /// Reads a page into `self.page`.
    async fn read(&mut self) -> Result<(), PageError> {
        let config::Load { scrape_timeout: limit, page_bytes_max: bytes_max, .. } =
            self.router.config.pools[0].load;
        let Self { router, endpoint, ours, page, .. } = self;
        let head = self.heads.get(self.at).map_or(&b""[..], Vec::as_slice);
        let asked = || *ours = endpoint.ours(router.clock.now());
        page::read(&router.scraper, endpoint, head, page, Bounds { bytes_max, limit }, asked).await
    }

    /// Takes what the page says: load, cache size, signs of a restart. Error: it says nothing of load.
    fn learn(&self) -> Result<(), ScrapeError> {
        let router = self.router;
        let report = prometheus::read(&self.page, &self.endpoint.names);
        let before = self.endpoint.sample.load_full();
        let sample = Sample::after(before.as_deref(), &report, Instant::now(), self.ours);
        if before.as_ref().is_some_and(|before| sample.restarted_since(before)) {
            router.forget(&self.endpoint, "engine restarted");
        }
        let asleep = sample.fell_asleep_since(before.as_deref());
        self.resize(self.endpoint.trust.of(router.capacity_blocks(&sample)));
        self.endpoint.sample.store(Some(Arc::new(sample)));
        // Once no new request goes there.
        if asleep {
            router.forget(&self.endpoint, "engine sleeps");
        }
        if report.tells_load() { Ok(()) } else { Err(ScrapeError::Unknown(self.endpoint.names.wanted())) }
    }

    /// Believes as much as the engine's cache holds.
    fn resize(&self, capacity_blocks: usize) {
        let (index, endpoint) = (&self.router.index, &self.endpoint.name);
        match index.resize(self.endpoint.id, capacity_blocks) {
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
