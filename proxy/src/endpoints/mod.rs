//! The fleet: endpoints, whether they can be used, what their engines last said, and what is in flight there.

pub(crate) mod adapters;
pub(crate) mod booking;
pub(crate) mod health;
pub(crate) mod load;
pub(crate) mod model_list;
mod pace;
mod page;
pub(crate) mod poll;
pub(crate) mod poll_health;
pub(crate) mod poll_models;
pub(crate) mod prometheus;
mod trust;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use parking_lot::Mutex;
use picker::belief::EndpointId;
use picker::ledger::{InFlight, Ledger, Micros};
use picker::load::Load;
use tokio_util::sync::CancellationToken;

use crate::bounded::Bounded;
use crate::clock::Clock;
use crate::edge::keys::Credentials;
use crate::metrics::EndpointCounters;
use crate::pool::Seat;
use crate::tls::client::EndpointTls;
use crate::upstream::Transport;
use booking::Making;
use health::Health;
use load::{Ours, Sample};
use model_list::ModelList;
use pace::LearnedPace;
use trust::Trust;

/// One engine that requests may go to.
pub(crate) struct Endpoint {
    seat: Seat,
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
    /// The models that it last listed.
    models: ArcSwapOption<ModelList>,
    pub(crate) counters: EndpointCounters,
    /// What is in flight there from this router.
    pub(crate) ledger: Ledger,
    /// How fast it computes.
    pub(crate) pace: LearnedPace,
    /// How far the belief in it has proved right.
    pub(crate) trust: Trust,
    /// How it has answered lately.
    pub(crate) health: Health,
    making: Making,
    /// Requests that hold a place there.
    held: Bounded,
    unreachable: AtomicBool,
    /// When it was last sent a request, in milliseconds of the router's clock.
    last_request_ms: AtomicU64,
    scrapes_ok: AtomicU64,
    scrapes_failed: AtomicU64,
    last_error: Mutex<Option<String>>,
    /// Set when the configuration has it no more.
    retired: CancellationToken,
}

/// A request's place at an endpoint, given back when dropped.
pub(crate) struct Held(Arc<Endpoint>);

impl Held {
    /// `None` if so many are held there.
    pub(crate) fn take(endpoint: &Arc<Endpoint>, limit: Option<NonZeroU32>) -> Option<Self> {
        endpoint.held.take(limit).then(|| Self(endpoint.clone()))
    }

    /// Where it is.
    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.give_back();
        self.0.seat.known().gate.call();
    }
}

impl Endpoint {
    /// An endpoint that nothing is known of yet.
    pub(crate) fn new(seat: Seat, endpoint: &config::Endpoint) -> Self {
        let name = endpoint.name.as_str().to_owned();
        let header = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("endpoint"));
        Self {
            seat,
            label: header(&name),
            host: header(endpoint.url.authority()),
            name,
            url: endpoint.url.clone(),
            address: ArcSwapOption::empty(),
            sample: ArcSwapOption::empty(),
            models: ArcSwapOption::empty(),
            counters: EndpointCounters::default(),
            ledger: Ledger::default(),
            pace: LearnedPace::default(),
            trust: Trust::default(),
            health: Health::default(),
            making: Making::default(),
            held: Bounded::default(),
            unreachable: AtomicBool::new(true),
            last_request_ms: AtomicU64::new(0),
            scrapes_ok: AtomicU64::new(0),
            scrapes_failed: AtomicU64::new(0),
            last_error: Mutex::new(None),
            retired: CancellationToken::new(),
        }
    }

    /// One of a pool of its own.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        let name = config::EndpointName::new("a").expect("a name");
        let url = config::EndpointUrl::new("http://a").expect("a URL");
        Self::new(Seat::for_test(), &config::Endpoint::new(name, url))
    }

    /// Which it is in the index of its pool.
    pub(crate) fn id(&self) -> EndpointId {
        self.seat.id()
    }

    /// The configuration has it no more: its belief and its pollers end, its requests go on to their end.
    pub(crate) fn retire(&self) {
        self.retired.cancel();
        self.seat.leave();
    }

    /// Resolves when it is retired.
    pub(crate) async fn retired(&self) {
        self.retired.cancelled().await;
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

    /// An answer came whole, or a token: the engine works.
    pub(crate) fn note_answer(&self) {
        if self.health.answered() {
            tracing::info!(endpoint = self.name, "endpoint is back");
        }
    }

    /// Where to connect, and how. Resolves the name when that is not known; `None` when it does not resolve.
    pub(crate) async fn transport(&self, tls: Option<&Arc<EndpointTls>>) -> Option<Transport> {
        Some(Transport { address: self.address().await?, tls: tls.cloned() })
    }

    async fn address(&self) -> Option<SocketAddr> {
        if let Some(address) = self.address.load().as_deref() {
            return Some(*address);
        }
        let address = tokio::net::lookup_host((self.url.host(), self.url.port())).await.ok()?.next()?;
        self.address.store(Some(Arc::new(address)));
        Some(address)
    }

    /// The head of a GET by the router itself, which shows the endpoint's own key.
    fn get(&self, path: &str, credentials: &Credentials) -> Vec<u8> {
        let host = self.host.as_bytes();
        let mut head =
            [b"GET ", path.as_bytes(), b" HTTP/1.1\r\nHost: ", host, b"\r\nAccept: */*\r\n"].concat();
        for (name, value) in &credentials.add {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    /// Requests that hold a place there.
    pub(crate) fn held(&self) -> u32 {
        self.held.count()
    }

    /// What this router has in flight there.
    pub(crate) fn in_flight(&self, now: Micros) -> InFlight {
        self.ledger.in_flight(now)
    }

    /// What this router has sent there by now.
    pub(crate) fn ours(&self, now: Micros) -> Ours {
        Ours { sent: self.ledger.sent(), in_flight: self.in_flight(now).requests }
    }

    /// The load as the picker sees it: figures older than `stale_after` are unknown. HOT: `bench/cost.py`.
    pub(crate) fn load(&self, now: Instant, clock: Clock, stale_after: Duration) -> Load {
        let in_flight = self.in_flight(clock.at(now));
        let sample = self.sample.load();
        let sample = sample.as_deref();
        let since = self.ledger.sent().saturating_sub(sample.map_or(0, |sample| sample.ours.sent));
        let told = sample.map_or_else(Load::default, |sample| sample.load(now, stale_after));
        Load {
            unseen: since.min(in_flight.requests.into()) as u32,
            in_flight,
            pace: self.pace.load(),
            ..told
        }
    }

    /// What the engine says of its adapters, as the `lora` scorer compares them.
    pub(crate) fn adapters(&self) -> Option<Arc<picker::score::Adapters>> {
        Some(self.sample.load().as_deref()?.adapters.as_ref()?.scored.clone())
    }

    /// The models that it lists, as far as that is still known.
    #[allow(dead_code, reason = "to be asked for each request")]
    pub(crate) fn models(&self, now: Instant) -> Option<Arc<ModelList>> {
        self.models.load_full().filter(|list| list.is_fresh(now))
    }

    /// Whether a request may go there: the last connect succeeded and the engine does not sleep.
    pub(crate) fn usable(&self, now: Instant, stale_after: Duration) -> bool {
        self.reachable() && !self.asleep(now, stale_after)
    }

    /// Whether the engine says that it sleeps, and said so lately: it would leave a request unanswered.
    pub(crate) fn asleep(&self, now: Instant, stale_after: Duration) -> bool {
        let sample = self.sample.load();
        sample.as_deref().and_then(|sample| sample.awake?.fresh(now, stale_after)) == Some(0.0)
    }

    /// Tokens in a block of the engine's cache, if it said so.
    pub(crate) fn block_tokens(&self) -> Option<u32> {
        self.sample.load().as_deref()?.block_size
    }

    /// A request is sent there.
    fn note_request(&self, now: Micros) {
        self.last_request_ms.store(now.millis().max(1), Ordering::Relaxed);
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
