//! What all requests share: the configuration, the fleet, the belief, and the count of decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use config::Config;
use picker::belief::{EndpointId, Index, JoinError};
use picker::chance::Draw;
use picker::decide::{Ask, Asked, Decision, Refusal, Rules, choose};
use picker::memo::Memo;
use picker::read::Api;
use picker::score::Candidate;
use picker::sessions::Sessions;
use tokio::sync::Semaphore;

use crate::admin::recent::Recent;
use crate::clock::Clock;
use crate::drain::Connections;
use crate::endpoints::Endpoint;
use crate::endpoints::load::Sample;
use crate::learn::tokens::Ratios;
use crate::metrics::Metrics;
use crate::upstream::Upstream;

/// Bytes of request bodies that one permit of the budget stands for.
pub(crate) const PERMIT_BYTES: usize = 16 * 1024;
/// At most one request in this time goes to an endpoint whose figures are unknown, so that it is never left out for good.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The endpoints of a pool, in the order of the configuration.
pub(crate) type Fleet = Vec<Arc<Endpoint>>;

/// Shared by all listeners, requests and pollers.
pub(crate) struct Router {
    pub(crate) config: Config,
    pub(crate) rules: Rules,
    pub(crate) fleet: ArcSwap<Fleet>,
    pub(crate) index: Index,
    /// Beginnings of prompts that came before: makes decisions sooner, never other ones.
    pub(crate) memo: Memo,
    /// Connections for requests.
    pub(crate) upstream: Upstream,
    /// Connections for scrapes: they live on another runtime.
    pub(crate) scraper: Upstream,
    pub(crate) metrics: Metrics,
    pub(crate) recent: Recent,
    /// Budget of request bodies in memory, in permits.
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) draining: AtomicBool,
    /// Connections of clients, over all listeners.
    pub(crate) connections: Connections,
    /// Prompt text to a token, by model.
    pub(crate) ratios: Ratios,
    /// Where each session was sent last.
    pub(crate) sessions: Sessions,
    pub(crate) clock: Clock,
    turns: AtomicU64,
    next_probe_ms: AtomicU64,
}

/// The endpoints of one decision: the fleet it was made on, and which of it were candidates.
pub(crate) struct Candidates {
    fleet: Arc<Fleet>,
    pub(crate) list: Vec<Candidate>,
}

impl Candidates {
    /// The endpoint of a candidate.
    pub(crate) fn endpoint(&self, id: EndpointId) -> Option<&Arc<Endpoint>> {
        self.fleet.iter().find(|endpoint| endpoint.id == id)
    }
}

impl Router {
    /// A router for a checked configuration; nothing runs yet. Errors: an index that cannot be had.
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, JoinError> {
        let metrics = Metrics::new();
        let index = Index::for_fleet(config.pools[0].endpoints.len(), config.pools[0].index.capacity_blocks)?;
        let endpoint = |(number, endpoint): (u32, &config::Endpoint)| {
            let id = EndpointId(number);
            index.join(id, config.pools[0].index.capacity_blocks)?;
            Ok(Arc::new(Endpoint::new(id, endpoint, metrics.endpoint(endpoint.name.as_str()))))
        };
        let fleet = (0..).zip(&config.pools[0].endpoints).map(endpoint).collect::<Result<_, _>>()?;
        let timeouts = &config.pools[0].timeouts;
        let pool = &config.pools[0];
        Ok(Arc::new(Self {
            rules: Rules {
                policy: pool.policy,
                weights: pool.weights,
                match_length: pool.match_length,
                tuning: pool.tuning,
                tokenizer: pool.index.tokenizer,
                block: pool.index.block,
            },
            fleet: ArcSwap::from_pointee(fleet),
            index,
            memo: Memo::default(),
            upstream: Upstream::new(timeouts.connect, timeouts.upstream_idle),
            scraper: Upstream::new(timeouts.connect, timeouts.upstream_idle),
            metrics,
            recent: Recent::default(),
            bodies: Arc::new(Semaphore::new(config.limits.bodies_bytes_max / PERMIT_BYTES)),
            draining: AtomicBool::new(false),
            connections: Connections::default(),
            ratios: Ratios::default(),
            sessions: Sessions::default(),
            clock: Clock::start(),
            turns: AtomicU64::new(0),
            next_probe_ms: AtomicU64::new(0),
            config,
        }))
    }

    /// Who can be used: those that the last connect reached and that are awake, or all when there is none (fail open).
    pub(crate) fn candidates(&self) -> Candidates {
        let fleet = self.fleet.load_full();
        let now = Instant::now();
        let stale_after = self.config.pools[0].load.stale_after;
        let candidate = |endpoint: &Arc<Endpoint>| Candidate {
            id: endpoint.id,
            load: endpoint.load(now, self.clock, stale_after),
            adapters: endpoint.adapters(),
        };
        let usable = fleet.iter().filter(|endpoint| endpoint.usable(now, stale_after));
        let mut list: Vec<_> = usable.map(candidate).collect();
        if list.is_empty() {
            list = fleet.iter().map(candidate).collect();
        }
        Candidates { fleet, list }
    }

    /// The next decision's number.
    pub(crate) fn take_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    /// Decisions so far.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Decides on the fleet as it is. Changes nothing.
    pub(crate) fn decide(
        &self,
        ask: &Ask<'_>,
        candidates: &Candidates,
        turn: u64,
    ) -> Result<Decision, Refusal> {
        let draw = Draw { seed: self.config.pools[0].seed, turn };
        let asked = Asked::read(ask, Some(&self.memo), &self.rules)?;
        let asked = asked.with_session_at(&self.sessions, self.clock.now());
        Ok(choose(asked, &candidates.list, &self.index, &self.rules, draw))
    }

    /// Remembers how a request began that is on its way. Mostly next to nothing; now and then its body is read once more.
    pub(crate) fn learn(&self, api: Api, body: &[u8], decision: &Decision) {
        self.memo.learn(&Ask { api, body, tenant: b"", session: b"" }, &self.rules, &decision.recall);
    }

    /// An endpoint that can be reached, whose figures are all unknown while others' are known, and that has nothing in
    /// flight: about one request a second goes to such a one. Scores alone would never send it any, and stale metrics
    /// are no outage.
    pub(crate) fn due_for_probe(&self, candidates: &Candidates) -> Option<EndpointId> {
        let (now, next) = (self.clock.millis(), self.next_probe_ms.load(Ordering::Relaxed));
        let unknown = |to: &&Candidate| to.load.waiting.or(to.load.running).or(to.load.kv_usage).is_none();
        if now < next || candidates.list.iter().all(|to| unknown(&to)) {
            return None;
        }
        let last =
            |to: &&Candidate| candidates.endpoint(to.id).map_or(0, |endpoint| endpoint.last_request_ms());
        let probe = candidates
            .list
            .iter()
            .filter(unknown)
            .filter(|to| to.load.in_flight.requests == 0)
            .min_by_key(last)?;
        let later = now + PROBE_INTERVAL.as_millis() as u64;
        let taken = self.next_probe_ms.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then_some(probe.id)
    }

    /// Blocks of belief for an endpoint: what its engine's cache holds, in tokens of ours as far as answers tell what those
    /// are, else what is configured.
    pub(crate) fn capacity_blocks(&self, sample: &Sample) -> usize {
        let block = self.rules.block.tokens() as f64 / self.ratios.usual();
        let told = sample.capacity_tokens.map(|tokens| ((tokens as f64 / block) as usize).max(1));
        told.map_or(self.config.pools[0].index.capacity_blocks, |blocks| {
            blocks.min(config::defaults::ENGINE_BLOCKS_MAX)
        })
    }

    /// Whether a new request would find an endpoint.
    pub(crate) fn ready(&self) -> bool {
        let stale_after = self.config.pools[0].load.stale_after;
        !self.draining.load(Ordering::Relaxed)
            && self.fleet.load().iter().any(|endpoint| endpoint.usable(Instant::now(), stale_after))
    }
}
