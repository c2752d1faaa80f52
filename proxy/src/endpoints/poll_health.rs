//! One task per endpoint that asks the engine how it is, where the pool names a path for it.
//!
//! What answers tell goes before it: "well" brings no endpoint back that fails its requests. Two looks in a row that are
//! not answered 200 leave an endpoint out, and the next 200 brings it back.

use std::sync::Arc;
use std::time::Instant;

use super::Endpoint;
use super::page::{self, Bounds};
use super::poll::jittered;
use crate::pool::{Knowledge, Pool};
use crate::router::Router;

/// Bytes of an answer that are read: it is its status that counts.
const PAGE_BYTES_MAX: usize = 64 * 1024;

/// Asks until the endpoint is retired; waits where the pool's configuration of the moment names no path.
pub(crate) async fn poll_health(router: Arc<Router>, known: Arc<Knowledge>, endpoint: Arc<Endpoint>) {
    let mut turn = 0;
    let polling = async {
        while let Some(pool) = router.pool_of(&known) {
            let Some(path) = &pool.config.health.path else {
                // Nobody looks any more, so nothing is held against it.
                endpoint.health.looked(true);
                known.changed.notified().await;
                continue;
            };
            let started = Instant::now();
            look(&pool, &endpoint, path).await;
            turn += 1;
            let next = jittered(pool.config.health.interval, endpoint.id().0, turn);
            known.changed_within(next.saturating_sub(started.elapsed())).await;
        }
    };
    tokio::select! {
        biased;
        () = endpoint.retired() => {}
        () = polling => {}
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
