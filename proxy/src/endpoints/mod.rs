//! The fleet: endpoints, whether they can be used, what their engines last said, and what is in flight there.

pub(crate) mod load;
pub(crate) mod poll;
pub(crate) mod prometheus;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use parking_lot::Mutex;
use picker::belief::EndpointId;
use picker::ledger::InFlight;
use picker::load::Load;

use crate::metrics::EndpointMetrics;
use load::Sample;

/// One engine that requests may go to.
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) name: String,
    /// The name as `x-prefixroute-endpoint` says it.
    pub(crate) label: HeaderValue,
    /// The `Host` of requests that go there.
    pub(crate) host: HeaderValue,
    pub(crate) url: config::EndpointUrl,
    /// Where to connect; none until the name has been resolved.
    address: ArcSwapOption<SocketAddr>,
    /// What the engine last said.
    pub(crate) sample: ArcSwapOption<Sample>,
    pub(crate) metrics: EndpointMetrics,
    in_flight: AtomicU32,
    unreachable: AtomicBool,
    /// When it was last sent a request, in milliseconds of the router's clock.
    last_request_ms: AtomicU64,
    scrapes_ok: AtomicU64,
    scrapes_failed: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Endpoint {
    /// An endpoint that nothing is known of yet.
    pub(crate) fn new(id: EndpointId, endpoint: &config::Endpoint, metrics: EndpointMetrics) -> Self {
        let name = endpoint.name.as_str().to_owned();
        let header = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("endpoint"));
        Self {
            id,
            label: header(&name),
            host: header(endpoint.url.authority()),
            name,
            url: endpoint.url.clone(),
            address: ArcSwapOption::empty(),
            sample: ArcSwapOption::empty(),
            metrics,
            in_flight: AtomicU32::new(0),
            unreachable: AtomicBool::new(true),
            last_request_ms: AtomicU64::new(0),
            scrapes_ok: AtomicU64::new(0),
            scrapes_failed: AtomicU64::new(0),
            last_error: Mutex::new(None),
        }
    }

    /// Whether the last attempt to connect, by a scrape or by a request, succeeded.
    pub(crate) fn reachable(&self) -> bool {
        !self.unreachable.load(Ordering::Relaxed)
    }

    /// Notes how the last attempt to connect ended.
    pub(crate) fn set_reachable(&self, reachable: bool) {
        if self.unreachable.swap(!reachable, Ordering::Relaxed) == reachable {
            tracing::info!(endpoint = self.name, reachable, "endpoint");
        }
        if !reachable {
            // A name may have moved to another address.
            self.address.store(None);
        }
    }

    /// Where to connect. Resolves the name when that is not known; `None` when it does not resolve.
    pub(crate) async fn address(&self) -> Option<SocketAddr> {
        if let Some(address) = self.address.load().as_deref() {
            return Some(*address);
        }
        let address = tokio::net::lookup_host((self.url.host(), self.url.port())).await.ok()?.next()?;
        self.address.store(Some(Arc::new(address)));
        Some(address)
    }

    /// Requests that this router has in flight there.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The load as the picker sees it: figures older than `stale_after` are unknown.
    pub(crate) fn load(&self, now: Instant, stale_after: std::time::Duration) -> Load {
        let in_flight = InFlight { requests: self.in_flight(), ..InFlight::default() };
        match self.sample.load().as_deref() {
            Some(sample) => sample.load(now, stale_after, in_flight),
            None => Load { in_flight, ..Load::default() },
        }
    }

    /// When it was last sent a request, in milliseconds of the router's clock; 0 for never.
    pub(crate) fn last_request_ms(&self) -> u64 {
        self.last_request_ms.load(Ordering::Relaxed)
    }

    /// Counts a scrape; gives whether the outcome differs from the last one's.
    pub(crate) fn scraped(&self, outcome: Result<(), String>) -> bool {
        let counter = if outcome.is_ok() { &self.scrapes_ok } else { &self.scrapes_failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let mut last_error = self.last_error.lock();
        let changed = *last_error != outcome.as_ref().err().cloned();
        *last_error = outcome.err();
        changed
    }

    /// Scrapes that succeeded and failed, and what the last one failed of, if it did.
    pub(crate) fn scrapes(&self) -> (u64, u64, Option<String>) {
        let [ok, failed] =
            [&self.scrapes_ok, &self.scrapes_failed].map(|count| count.load(Ordering::Relaxed));
        (ok, failed, self.last_error.lock().clone())
    }
}

/// Load booked on an endpoint at the decision, released once: when this is dropped, however the request ends.
pub(crate) struct Booking(Arc<Endpoint>);

impl Booking {
    /// Books one request.
    pub(crate) fn new(endpoint: Arc<Endpoint>, now_ms: u64) -> Self {
        endpoint.in_flight.fetch_add(1, Ordering::Relaxed);
        endpoint.last_request_ms.store(now_ms.max(1), Ordering::Relaxed);
        Self(endpoint)
    }

    /// Where it is booked.
    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
