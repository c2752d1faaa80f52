//! A request before its body is read: the configuration that serves it, who it is from, and whether it may come in.

use std::net::IpAddr;
use std::sync::Arc;

use picker::decide::Decision;
use pingora_http::{RequestHeader, ResponseHeader};

use super::Entrance;
use super::headers::target;
use super::read::Body;
use super::reply::Refusal;
use crate::clock::Clock;
use crate::edge::client_ip::Forwarded;
use crate::edge::cors::is_preflight;
use crate::edge::limits::InFlight;
use crate::edge::salt::Isolation;
use crate::edge::tenants::Tenant;
use crate::live::Live;
use crate::metrics::Kind;
use crate::pool::Pool;

/// One request, from its head to its end under one configuration.
pub(crate) struct Visit {
    pub(crate) live: Arc<Live>,
    pub(super) entrance: Entrance,
    /// Who the client is, seen through known proxies.
    pub(super) client: IpAddr,
    pub(super) tenant: Option<Arc<Tenant>>,
    /// Its place among the tenant's requests, given back with it at the latest.
    in_flight: Option<InFlight>,
}

impl Visit {
    /// A request that has just come in at `entrance`.
    pub(super) fn new(live: Arc<Live>, entrance: Entrance, head: &RequestHeader) -> Self {
        let client = live.edge.proxies.client(entrance.peer, &head.headers);
        Self { live, entrance, client, tenant: None, in_flight: None }
    }

    /// Lets it in: its path is served, its key is known, and its tenant may send another. Errors: why not.
    pub(super) fn enter(&mut self, head: &RequestHeader, clock: Clock) -> Result<(), Refusal> {
        let edge = &self.live.edge;
        if !edge.paths.serves(target(head)) {
            return Err(Kind::PathNotServed.into());
        }
        // Browsers send theirs without a key (Fetch, 4.8).
        if is_preflight(head) {
            return Ok(());
        }
        let Some(tenant) = edge.tenants.identify(&head.headers)?.cloned() else { return Ok(()) };
        tenant.counters.requests.add(1);
        let admitted = tenant.limits.admit(clock.now());
        let in_flight = admitted.inspect_err(|refused| tenant.counters.refuse(refused.limit));
        self.tenant = Some(tenant.clone());
        self.in_flight = Some(in_flight?);
        Ok(())
    }

    /// Gives back its place among the tenant's requests. To be called before the end of the answer goes out: a client that
    /// has it may ask again, and is alone then.
    pub(super) fn leave(&mut self) {
        self.in_flight = None;
    }

    /// The answer to a browser's question whether it may ask, if the router is to give it.
    pub(super) fn preflight(&self, head: &RequestHeader) -> Option<ResponseHeader> {
        let cors = self.live.edge.cors.as_ref().filter(|_| is_preflight(head))?;
        cors.preflight(head).ok()
    }

    /// Lets its prompt in. Errors: the tenant's limit that it would break.
    pub(super) fn admit_prompt(
        &self,
        body: &Body,
        decision: &Decision,
        pool: &Pool,
        clock: Clock,
    ) -> Result<(), Refusal> {
        let Some(tenant) = &self.tenant else { return Ok(()) };
        let tokens = if tenant.limits.counts_tokens() { estimate(decision, pool) } else { 0 };
        let admitted = tenant.limits.admit_prompt(body.bytes.len(), tokens, clock.now());
        Ok(admitted.inspect_err(|refused| tenant.counters.refuse(refused.limit))?)
    }

    /// Who goes first where requests wait: by the pool's header if the client sent it, else by tenant.
    pub(super) fn priority(&self, head: &RequestHeader, queue: &config::Queue) -> u8 {
        let said = queue.priority_header.as_ref().and_then(|name| head.headers.get(name.as_str()));
        let said = said.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
        let said = said.and_then(|said| u8::try_from(said.min(config::defaults::PRIORITY_MAX)).ok());
        said.unwrap_or_else(|| self.tenant.as_ref().map_or(0, |tenant| tenant.priority))
    }

    /// What keeps the tenant's prompts apart, if something does.
    pub(super) fn isolation(&self) -> Option<&Isolation> {
        self.tenant.as_ref()?.isolation.as_ref()
    }

    /// For [`picker::decide::Ask::tenant`].
    pub(super) fn seed(&self) -> &[u8] {
        self.tenant.as_ref().map_or(b"", |tenant| tenant.seed())
    }

    /// What engines are told of the client's address, where they are.
    pub(super) fn forwarded(&self, head: &RequestHeader) -> Option<Forwarded> {
        let edge = &self.live.edge;
        let Entrance { peer, tls, .. } = self.entrance;
        edge.forwarded_headers.then(|| edge.proxies.forwarded(peer, tls, &head.headers))
    }

    /// Adds to an answer what browsers and limited tenants are told. Errors: pingora's, for a header that cannot be set.
    pub(super) fn dress(
        &self,
        request: &RequestHeader,
        answer: &mut ResponseHeader,
        clock: Clock,
    ) -> pingora_core::Result<()> {
        if let Some(cors) = &self.live.edge.cors {
            cors.amend(&request.headers, answer)?;
        }
        let Some(tenant) = &self.tenant else { return Ok(()) };
        for (name, value) in tenant.limits.headers(clock.now()) {
            answer.insert_header(name, value)?;
        }
        Ok(())
    }
}

/// Tokens of a prompt, as far as answers of the pool have told what text comes to.
fn estimate(decision: &Decision, pool: &Pool) -> u32 {
    let tokens = (decision.blocks.total() * pool.rules.block.tokens()) as f64;
    (tokens / pool.known.ratios.usual()).ceil() as u32
}
