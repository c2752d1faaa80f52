//! Figures of pools, endpoints and tenants for the metrics page.

use std::time::Instant;

use crate::clock::Clock;
use crate::edge::tenants::Tenant;
use crate::endpoints::Endpoint;
use crate::metrics::{Figures, PoolFigures, Row, TenantFigures};
use crate::pool::Pool;

/// The endpoint as it is now.
pub(super) fn row(pool: &Pool, endpoint: &Endpoint, clock: Clock) -> Row<Figures> {
    let labels = format!("endpoint=\"{}\",pool=\"{}\"", endpoint.name, pool.config.name);
    Row { labels, figures: figures(pool, endpoint, clock) }
}

/// The pool as it is now.
pub(super) fn pool(pool: &Pool) -> Row<PoolFigures> {
    let (gate, retries_denied) = (&pool.known.gate, pool.known.retries_denied.read());
    let figures = PoolFigures {
        in_flight: gate.in_flight(),
        waiting: gate.length(),
        waited: gate.waited.read(),
        saturated: [gate.refused.read(), gate.expired.read()],
        retries_denied,
        resent: pool.upstream.resent.read(),
    };
    Row { labels: format!("pool=\"{}\"", pool.config.name), figures }
}

/// The tenant as it is now.
pub(super) fn tenant(tenant: &Tenant) -> Row<TenantFigures> {
    let labels = format!("tenant=\"{}\"", tenant.name);
    Row { labels, figures: tenant.counters.figures(tenant.limits.in_flight()) }
}

fn figures(pool: &Pool, endpoint: &Endpoint, clock: Clock) -> Figures {
    let now = Instant::now();
    let in_flight = endpoint.in_flight(clock.at(now));
    let pace = endpoint.pace.load();
    let size = pool.known.index.size(endpoint.id());
    let (scraped, failed, _) = endpoint.scrapes();
    let (counters, health) = (&endpoint.counters, &endpoint.health);
    Figures {
        is_out: health.is_out(),
        is_busy: health.is_busy(clock.at(now).millis()),
        ejections: health.ejections.read(),
        failures: std::array::from_fn(|place| health.failures[place].read()),
        usable: endpoint.usable(now, pool.config.load.stale_after),
        answers: std::array::from_fn(|place| counters.answers[place].read()),
        connect_failures: counters.connect_failures.read(),
        scrapes: [scraped, failed],
        in_flight: in_flight.requests,
        prefilling: in_flight.prefilling,
        uncached_tokens: in_flight.uncached_tokens,
        backlog_seconds: in_flight.backlog,
        overhead_seconds: pace.overhead,
        tokens_per_second: pace.tokens_per_second,
        queueing: pace.queueing,
        matched_blocks: counters.matched_blocks.read(),
        total_blocks: counters.total_blocks.read(),
        index_blocks: size.map_or(0, |size| size.blocks),
        index_capacity_blocks: size.map_or(0, |size| size.capacity),
        index_evictions: size.map_or(0, |size| size.evicted),
        predicted_tokens: counters.predicted_tokens.read(),
        cached_tokens: counters.cached_tokens.read(),
        prompt_tokens: counters.prompt_tokens.read(),
        truncations: endpoint.trust.truncations(),
        drops: endpoint.trust.drops(),
    }
}
