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
use tokio::time::timeout;

use super::load::{Ours, Sample};
use super::{Endpoint, prometheus};
use crate::pool::{Knowledge, Pool};
use crate::router::Router;
use crate::upstream::{ConnectError, ExchangeError, Request};

/// A scrape comes up to this share of the interval early or late, so that pollers do not march in step.
const JITTER: f64 = 0.1;
/// Scrapes in a row that are refused before the engine is taken to be no more, and its cache with it. One may be a backlog
/// that ran over for a moment.
const REFUSALS_MAX: u32 = 2;

/// Why a scrape gave nothing.
#[derive(Debug, thiserror::Error)]
enum ScrapeError {
    #[error("host name does not resolve")]
    Resolve,
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("/metrics: {0}")]
    Exchange(#[from] ExchangeError),
    #[error("/metrics: status {0}, wanted 200")]
    Status(u16),
    #[error("/metrics: page over {0} bytes")]
    TooLong(usize),
    #[error("/metrics: page broke off")]
    Broken,
    #[error("/metrics: none of the figures that are read, wanted vLLM's")]
    Unknown,
    #[error("/metrics: not whole after {0:?}")]
    Timeout(Duration),
}

impl ScrapeError {
    /// Whether no request would get through either.
    const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Resolve | Self::Connect(_) | Self::Exchange(ExchangeError::Tls(_)))
    }
}

/// Polls until the endpoint is retired. Each turn goes by the pool's configuration of that moment.
pub(crate) async fn poll(router: Arc<Router>, known: Arc<Knowledge>, endpoint: Arc<Endpoint>) {
    let mut poller = Poller::new(&router, endpoint.clone());
    let mut turn = 0;
    let polling = async {
        while let Some(pool) = router.pool_of(&known) {
            let started = Instant::now();
            poller.scrape(&pool).await;
            turn += 1;
            let next = jittered(pool.config.load.scrape_interval, endpoint.id().0, turn);
            let rest = next.saturating_sub(started.elapsed());
            // A wait of the old configuration may be a long one.
            let _ = timeout(rest, known.changed.notified()).await;
        }
    };
    tokio::select! {
        () = polling => {}
        () = endpoint.retired() => {}
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
    head: Vec<u8>,
    page: Vec<u8>,
    /// Scrapes refused in a row.
    refusals: u32,
    /// What this router had sent there when the page was asked for.
    ours: Ours,
}

impl<'a> Poller<'a> {
    fn new(router: &'a Router, endpoint: Arc<Endpoint>) -> Self {
        let head = scrape_head(&endpoint);
        Self { router, endpoint, head, page: Vec::new(), refusals: 0, ours: Ours::default() }
    }

    async fn scrape(&mut self, pool: &Pool) {
        let config::Load { scrape_timeout: limit, page_bytes_max, .. } = pool.config.load;
        let read = self.read(pool, page_bytes_max, limit);
        let outcome = timeout(limit, read).await.unwrap_or(Err(ScrapeError::Timeout(limit)));
        self.endpoint.set_reachable(!outcome.as_ref().is_err_and(ScrapeError::is_unreachable));
        self.count_refusals(pool, matches!(outcome, Err(ScrapeError::Connect(ConnectError::Refused))));
        let outcome = outcome.and_then(|()| self.learn(pool));
        let error = outcome.map_err(|error| error.to_string());
        let message = error.as_ref().err().cloned();
        if self.endpoint.scraped(error)
            && let Some(error) = message
        {
            tracing::warn!(endpoint = self.endpoint.name, error, "scrape failed");
        }
    }

    /// An address that nobody listens at has no process behind it.
    fn count_refusals(&mut self, pool: &Pool, refused: bool) {
        self.refusals = if refused { self.refusals.saturating_add(1) } else { 0 };
        if self.refusals == REFUSALS_MAX {
            pool.forget(&self.endpoint, "nobody listens there");
        }
    }

    /// Reads a page into `self.page`.
    async fn read(&mut self, pool: &Pool, bytes_max: usize, limit: Duration) -> Result<(), ScrapeError> {
        let scraper = &pool.scraper;
        let tls = pool.tls_of(&self.endpoint);
        let transport = self.endpoint.transport(tls).await.ok_or(ScrapeError::Resolve)?;
        let connection = scraper.connect(transport).await?;
        self.ours = self.endpoint.ours(self.router.clock.now());
        let request = Request { head: &self.head, body: b"", bodiless: false };
        let mut answer = scraper.exchange(connection, request, limit).await?;
        let status = answer.session.get_status().map_or(0, |status| status.as_u16());
        self.page.clear();
        while let Some(chunk) = answer.session.read_body_ref().await.map_err(|_| ScrapeError::Broken)? {
            if self.page.len() + chunk.len() > bytes_max {
                return Err(ScrapeError::TooLong(bytes_max));
            }
            self.page.extend_from_slice(chunk);
        }
        scraper.release(answer).await;
        if status == 200 { Ok(()) } else { Err(ScrapeError::Status(status)) }
    }

    /// Takes what the page says: load, cache size, signs of a restart. Error: it says nothing of load.
    fn learn(&self, pool: &Pool) -> Result<(), ScrapeError> {
        let report = prometheus::read(&self.page);
        let before = self.endpoint.sample.load_full();
        let sample = Sample::after(before.as_deref(), &report, Instant::now(), self.ours);
        if before.as_ref().is_some_and(|before| sample.restarted_since(before)) {
            pool.forget(&self.endpoint, "engine restarted");
        }
        let asleep = sample.fell_asleep_since(before.as_deref());
        self.resize(pool, self.endpoint.trust.of(pool.capacity_blocks(&sample)));
        self.endpoint.sample.store(Some(Arc::new(sample)));
        // Once no new request goes there.
        if asleep {
            pool.forget(&self.endpoint, "engine sleeps");
        }
        let known = report.waiting.or(report.running).or(report.kv_usage);
        known.map(|_| ()).ok_or(ScrapeError::Unknown)
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

fn scrape_head(endpoint: &Endpoint) -> Vec<u8> {
    let host = endpoint.host.as_bytes();
    [b"GET /metrics HTTP/1.1\r\nHost: ", host, b"\r\nAccept: text/plain\r\n\r\n"].concat()
}
