//! One task per endpoint that asks the engine how it is, where the pool names a path for it.
//!
//! What answers tell goes before it: "well" brings no endpoint back that fails its requests. Two looks in a row that are
//! not answered 200 leave an endpoint out, and the next 200 brings it back.

use std::sync::Arc;
use std::time::Duration;

use super::Endpoint;
use super::page::{self, Bounds};
use super::poll::{Turns, in_turns};
use crate::pool::{Knowledge, Pool};
use crate::router::Router;

/// Bytes of an answer that are read: it is its status that counts.
const PAGE_BYTES_MAX: usize = 64 * 1024;

/// Asks until the endpoint is retired; waits where the pool's configuration of the moment names no path.
pub(crate) async fn poll_health(router: Arc<Router>, known: Arc<Knowledge>, endpoint: Arc<Endpoint>) {
    in_turns(&router, &known, &endpoint, Poller(&endpoint)).await;
}

struct Poller<'a>(&'a Arc<Endpoint>);

impl Turns for Poller<'_> {
    async fn turn(&mut self, pool: &Pool) -> Option<Duration> {
        let Some(path) = &pool.config.health.path else {
            // Nobody looks any more, so nothing is held against it.
            self.0.health.looked(true);
            return None;
        };
        look(pool, self.0, path).await;
        Some(pool.config.health.interval)
    }
}

async fn look(pool: &Pool, endpoint: &Arc<Endpoint>, path: &str) {
    let Some(member) = pool.member(endpoint) else { return };
    let bounds = Bounds { bytes_max: PAGE_BYTES_MAX, limit: pool.config.load.scrape_timeout };
    let outcome = page::read(pool, member, path, &mut Vec::new(), bounds, || ()).await;
    let is_well = outcome.is_ok();
    if endpoint.health.looked(is_well) {
        let error = outcome.err().map(|error| error.to_string());
        tracing::warn!(endpoint = endpoint.name, is_well, error, "health path");
    }
}
