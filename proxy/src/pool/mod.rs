//! A pool at work: its settings and its fleet, replaced as one by a reload, and what it has learned, which stays.

mod budget;
mod gate;
mod knowledge;
mod lacking;
mod standing;

use std::sync::Arc;
use std::time::Instant;

use config::ClientKey;
use picker::belief::EndpointId;
use picker::chance::Draw;
use picker::decide::{Ask, Asked, Choice, Decision, Refusal, Rules, choose};
use picker::read::Api;
use picker::score::Candidate;

use crate::clock::Clock;
use crate::edge::keys::Credentials;
use crate::endpoints::health::Failure;
use crate::endpoints::load::Sample;
use crate::endpoints::prometheus::Names;
use crate::endpoints::{Endpoint, Held};
use crate::live::BuildError;
use crate::tls::TlsError;
use crate::tls::client::{EndpointTls, PoolTls};
use crate::upstream::{Transport, Upstream};
pub(crate) use gate::Saturated;
pub(crate) use knowledge::{Knowledge, Seat};
use lacking::Lacking;

/// Endpoints that serve the same models, as one configuration has them. Never changed, only replaced.
pub(crate) struct Pool {
    pub(crate) config: config::Pool,
    pub(crate) rules: Rules,
    /// What its engines call their figures.
    pub(crate) names: Names,
    /// In the order of the configuration.
    pub(crate) fleet: Vec<Member>,
    /// Connections for requests.
    pub(crate) upstream: Arc<Upstream>,
    /// Connections for scrapes: they live on another runtime.
    pub(crate) scraper: Arc<Upstream>,
    pub(crate) known: Arc<Knowledge>,
}

/// An endpoint, and what the configuration says of it that may change while it stays itself.
pub(crate) struct Member {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Its share of the load; 0 for nothing new.
    pub(crate) weight: f64,
    /// How it is spoken to; none for clear text.
    tls: Option<Arc<EndpointTls>>,
    /// What becomes of the client's key and headers on the way there.
    pub(crate) credentials: Credentials,
}

/// The endpoints of one decision: the pool that it was made in, and which of it were candidates.
pub(crate) struct Candidates {
    pub(crate) pool: Arc<Pool>,
    pub(crate) list: Vec<Candidate>,
}

/// A choice of a decision, and the request's place at that endpoint.
pub(crate) struct Taken {
    pub(crate) choice: Choice,
    pub(crate) held: Held,
}

impl Candidates {
    /// The best endpoint that was not tried yet and has room, with a place there.
    pub(crate) fn take_next(&self, decision: &mut Decision) -> Option<Taken> {
        let limit = self.pool.config.limits.endpoint_requests_max;
        loop {
            let choice = decision.take_best()?;
            let held = self.member(choice.id).and_then(|member| Held::take(&member.endpoint, limit));
            if let Some(held) = held {
                return Some(Taken { choice, held });
            }
        }
    }

    /// The member that a candidate is.
    pub(crate) fn member(&self, id: EndpointId) -> Option<&Member> {
        self.pool.fleet.iter().find(|member| member.endpoint.id() == id)
    }
}

impl Member {
    /// Where to connect, and how; `None` when the name does not resolve.
    pub(crate) async fn transport(&self) -> Option<Transport> {
        self.endpoint.transport(self.tls.as_ref()).await
    }
}

impl Pool {
    /// A pool as configured. What was known of `before`, the pool of that name, goes on; so do its endpoints of the same
    /// name and URL. Nothing is changed that requests see. Errors: an index or TLS that cannot be had.
    pub(crate) fn build(
        config: config::Pool,
        client_key: ClientKey,
        before: Option<&Self>,
    ) -> Result<Self, BuildError> {
        let known = match before {
            Some(before) => before.known.clone(),
            None => Arc::new(Knowledge::new(config.endpoints.len(), config.index.capacity_blocks)?),
        };
        let mut tls = Tls { config: &config.tls, pool: None };
        let mut fleet = Vec::with_capacity(config.endpoints.len());
        for endpoint in &config.endpoints {
            let kept = before.and_then(|before| before.same(endpoint));
            let kept_tls = before.filter(|before| before.config.tls == config.tls).and(kept);
            let tls = match kept_tls {
                Some(kept) => kept.tls.clone(),
                None => tls.of(endpoint)?,
            };
            let seat = || Seat::take(&known, config.index.capacity_blocks);
            let credentials = Credentials::new(client_key, endpoint).unwrap_or_default();
            let weight = endpoint.weight;
            let endpoint = match kept {
                Some(kept) => kept.endpoint.clone(),
                None => Arc::new(Endpoint::new(seat()?, endpoint)),
            };
            fleet.push(Member { endpoint, weight, tls, credentials });
        }
        let like = before.filter(|before| {
            before.config.tls == config.tls
                && before.config.timeouts.connect == config.timeouts.connect
                && before.config.timeouts.upstream_idle == config.timeouts.upstream_idle
        });
        let anew = || Arc::new(Upstream::new(config.timeouts.connect, config.timeouts.upstream_idle));
        Ok(Self {
            rules: rules(&config),
            names: Names::new(&config.engine),
            fleet,
            upstream: like.map_or_else(anew, |like| like.upstream.clone()),
            scraper: like.map_or_else(anew, |like| like.scraper.clone()),
            known,
            config,
        })
    }

    /// The member here that is the configured endpoint.
    fn same(&self, wanted: &config::Endpoint) -> Option<&Member> {
        let is_wanted = |it: &Endpoint| it.name == wanted.name.as_str() && it.url == wanted.url;
        self.fleet.iter().find(|member| is_wanted(&member.endpoint))
    }

    /// The member that an endpoint is; none for one that is no longer of the pool.
    pub(crate) fn member(&self, endpoint: &Arc<Endpoint>) -> Option<&Member> {
        self.fleet.iter().find(|member| Arc::ptr_eq(&member.endpoint, endpoint))
    }

    /// The endpoints, in the order of the configuration.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Arc<Endpoint>> + Clone {
        self.fleet.iter().map(|member| &member.endpoint)
    }

    /// Takes in what the engines list now.
    pub(crate) fn refresh_lists(&self, now: Instant) {
        let lists = self.endpoints().map(|endpoint| (endpoint.id(), endpoint.models(now)));
        self.known.lacking.store(Arc::new(Lacking::of(&lists.collect::<Vec<_>>())));
    }

    /// Decides on the endpoints as they are. Changes nothing.
    pub(crate) fn decide(
        &self,
        ask: &Ask<'_>,
        candidates: &[Candidate],
        clock: Clock,
        turn: u64,
    ) -> Result<Decision, Refusal> {
        let draw = Draw { seed: self.config.seed, turn };
        let asked = Asked::read(ask, Some(&self.known.memo), &self.rules)?;
        let asked = asked.with_session_at(&self.known.sessions, clock.now());
        Ok(choose(asked, candidates, &self.known.index, &self.rules, draw))
    }

    /// Remembers how a request began that is on its way. Mostly next to nothing; now and then its body is read once more.
    pub(crate) fn learn(&self, api: Api, body: &[u8], decision: &Decision) {
        let ask = Ask { api, body, tenant: b"", session: b"" };
        self.known.memo.learn(&ask, &self.rules, &decision.recall);
    }

    /// Blocks of belief for an endpoint: what its engine's cache holds, in tokens of ours as far as answers tell what those
    /// are, else what is configured.
    pub(crate) fn capacity_blocks(&self, sample: &Sample) -> usize {
        let block = self.rules.block.tokens() as f64 / self.known.ratios.usual();
        let told = sample.capacity_tokens.map(|tokens| ((tokens as f64 / block) as usize).max(1));
        told.map_or(self.config.index.capacity_blocks, |blocks| {
            blocks.min(config::defaults::ENGINE_BLOCKS_MAX)
        })
    }

    /// Whether a new request would find an endpoint.
    pub(crate) fn ready(&self) -> bool {
        let (now, stale_after) = (Instant::now(), self.config.load.stale_after);
        self.fleet.iter().any(|member| member.weight > 0.0 && member.endpoint.usable(now, stale_after))
    }

    /// Closes connections that have waited too long, and renews what may be sent again. To be called once a second.
    pub(crate) fn sweep(&self) {
        self.upstream.sweep();
        self.scraper.sweep();
        self.known.budget.renew();
    }

    /// Leaves out endpoints that give no first tokens, and calls who waits: what passes by itself makes room, too.
    pub(crate) fn look_after(&self, clock: Clock) {
        let now = clock.millis();
        for endpoint in self.endpoints() {
            let stall = self.config.health.stall.filter(|_| !endpoint.health.is_out());
            if stall.is_some_and(|after| endpoint.health.is_stalled(after, now)) {
                self.failed(endpoint, Failure::Stall, 0, now);
            }
        }
        self.known.gate.call();
    }

    /// Notes that a request failed at an endpoint; `prompt` names its prompt, 0 for none.
    pub(crate) fn failed(&self, endpoint: &Endpoint, failure: Failure, prompt: u64, now: u64) {
        if let Some(cooldown) = endpoint.health.failed(failure, prompt, &self.config.health, now) {
            tracing::warn!(endpoint = endpoint.name, ?failure, ?cooldown, "endpoint is left out");
        }
    }
}

/// TLS of a pool, made when the first endpoint needs it: it reads the system's authorities.
struct Tls<'a> {
    config: &'a config::ClientTls,
    pool: Option<PoolTls>,
}

impl Tls<'_> {
    fn of(&mut self, endpoint: &config::Endpoint) -> Result<Option<Arc<EndpointTls>>, TlsError> {
        if !endpoint.url.tls() {
            return Ok(None);
        }
        let pool = match self.pool.take() {
            Some(pool) => pool,
            None => PoolTls::new(self.config)?,
        };
        self.pool.insert(pool).endpoint(endpoint.url.host()).map(Some)
    }
}

fn rules(config: &config::Pool) -> Rules {
    Rules {
        policy: config.policy,
        weights: config.weights,
        match_length: config.match_length,
        tuning: config.tuning,
        tokenizer: config.index.tokenizer,
        block: config.index.block,
    }
}
