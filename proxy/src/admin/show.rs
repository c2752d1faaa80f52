//! Fleet, belief and decisions as JSON. Never a prompt, a key, a salt or a body's text.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use picker::belief::Size;
use picker::decide::{Choice, Decision, Reading};
use picker::load::Load;
use picker::read::Api;
use serde_json::{Value, json};

use super::recent::Entry;
use crate::endpoints::Endpoint;
use crate::live::Live;
use crate::pool::{Candidates, Pool};
use crate::router::Router;

/// The state page.
pub(super) fn state(router: &Router) -> Value {
    let live = router.live();
    let ratios = live.pools.iter().flat_map(|pool| {
        pool.known.ratios.map(|model, ratio| {
            json!({
                "model": model,
                "pool": pool.config.name,
                "router_tokens_per_token": ratio.ratio,
                "answers": ratio.answers,
            })
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "config": {"version": live.version},
        "draining": router.draining.load(Ordering::Relaxed),
        "ready": router.ready(),
        "connections": router.connections.open(),
        "turns": router.turns(),
        "pools": live.pools.iter().map(|it| pool(it)).collect::<Vec<_>>(),
        "endpoints": live.endpoints().map(|(pool, it)| endpoint(router, pool, it)).collect::<Vec<_>>(),
        "index": index(&live),
        "memo": {
            "hits": sum(&live, |pool| pool.known.memo.hits()),
            "misses": sum(&live, |pool| pool.known.memo.misses()),
            "bytes": sum(&live, |pool| pool.known.memo.bytes() as u64),
            "bytes_max": picker::memo::BYTES_MAX * live.pools.len(),
        },
        "models": ratios.collect::<Vec<_>>(),
        "decisions": router.recent.map(recent),
    })
}

fn sum(live: &Live, figure: impl Fn(&Pool) -> u64) -> u64 {
    live.pools.iter().map(|pool| figure(pool)).sum()
}

fn pool(pool: &Pool) -> Value {
    json!({
        "name": pool.config.name,
        "policy": pool.rules.policy.name(),
        "tokenizer": pool.rules.tokenizer.name(),
        "block_tokens": pool.rules.block.tokens(),
        "models": pool.config.models,
        "ready": pool.ready(),
        "in_flight": pool.known.gate.in_flight(),
        "waiting": pool.known.gate.length(),
    })
}

/// The belief of all pools together.
fn index(live: &Live) -> Value {
    let size = |figure: fn(Size) -> u64| {
        let of = |(pool, endpoint): (&Arc<Pool>, &Arc<Endpoint>)| pool.known.index.size(endpoint.id());
        live.endpoints().filter_map(of).map(figure).sum::<u64>()
    };
    json!({
        "blocks": size(|size| size.blocks as u64),
        "capacity_blocks": size(|size| size.capacity as u64),
        "evictions": size(|size| size.evicted),
        "bytes": sum(live, |pool| pool.known.index.memory().bytes as u64),
        "bytes_max": sum(live, |pool| pool.known.index.memory().bytes_max as u64),
    })
}

fn endpoint(router: &Router, pool: &Pool, endpoint: &Arc<Endpoint>) -> Value {
    let now = Instant::now();
    let stale_after = pool.config.load.stale_after;
    let load = endpoint.load(now, router.clock, stale_after);
    let sample = endpoint.sample.load();
    let sample = sample.as_deref();
    let size = pool.known.index.size(endpoint.id());
    let (ok, failed, last_error) = endpoint.scrapes();
    let mut shown = json!({
        "name": endpoint.name,
        "pool": pool.config.name,
        "weight": pool.member(endpoint).map(|member| member.weight),
        "url": endpoint.url.to_string(),
        "usable": endpoint.usable(now, stale_after),
        "standing": pool.standing(endpoint, now, router.clock).name(),
        "failures_in_a_row": endpoint.health.in_a_row(),
        "asleep": endpoint.asleep(now, stale_after),
        "waiting": load.waiting,
        "running": load.running,
        "kv_usage": load.kv_usage,
        "age_ms": sample.and_then(|sample| sample.age(now)).map(|age| age.as_millis() as u64),
        "in_flight": load.in_flight.requests,
        "index_blocks": size.map_or(0, |size| size.blocks),
        "index_capacity_blocks": size.map_or(0, |size| size.capacity),
        "index_evictions": size.map_or(0, |size| size.evicted),
        "block_size": sample.and_then(|sample| sample.block_size),
        "num_gpu_blocks": sample.and_then(|sample| sample.num_gpu_blocks),
        "scrapes": {"ok": ok, "failed": failed},
        "last_error": last_error,
    });
    if let Value::Object(shown) = &mut shown {
        shown.extend(learned(endpoint, &load));
    }
    shown
}

/// What is in flight and what was learned.
fn learned(endpoint: &Endpoint, load: &Load) -> serde_json::Map<String, Value> {
    let Load { in_flight, pace, unseen, .. } = load;
    let members = json!({
        "unseen": unseen,
        "prefilling": in_flight.prefilling,
        "uncached_tokens": in_flight.uncached_tokens,
        "backlog_seconds": in_flight.backlog,
        "recent_seconds": in_flight.recent,
        "pace": {
            "learned": endpoint.pace.learned().is_some(),
            "overhead_seconds": pace.overhead,
            "tokens_per_second": pace.tokens_per_second,
            "queueing": pace.queueing,
        },
        "belief": {"truncations": endpoint.trust.truncations(), "drops": endpoint.trust.drops()},
    });
    if let Value::Object(members) = members { members } else { serde_json::Map::new() }
}

fn recent(entry: &Entry) -> Value {
    let named = |choice: &Choice| name(&entry.pool, choice);
    let mut shown = decision(&entry.decision, &entry.choice, entry.blocks, named);
    shown["at_ms"] = json!(entry.at_ms);
    shown["api"] = json!(entry.api.name());
    shown["pool"] = json!(entry.pool.config.name);
    shown["endpoint"] = json!(entry.endpoint.name);
    shown["status"] = json!(entry.status);
    shown["trouble"] = json!(entry.trouble);
    shown["decision_us"] = json!(entry.took.as_nanos() as f64 / 1e3);
    shown
}

/// What a request would get that finds no room.
pub(super) fn saturated(api: Api, pool: &Pool) -> Value {
    json!({"api": api.name(), "pool": pool.config.name, "endpoint": null, "order": [], "saturated": true})
}

/// A decision that was not carried out.
pub(super) fn explained(
    api: Api,
    mut made: Decision,
    candidates: &Candidates,
    took: std::time::Duration,
) -> Value {
    let named = |choice: &Choice| name(&candidates.pool, choice);
    let mut order = Vec::new();
    let best = made.best();
    while let Some(choice) = made.take_best() {
        order.push(named(&choice));
    }
    let Some(best) = best else { return json!({"api": api.name(), "endpoint": null, "order": order}) };
    let mut shown = decision(&made, &best, made.blocks.total(), named);
    shown["api"] = json!(api.name());
    shown["pool"] = json!(candidates.pool.config.name);
    shown["policy"] = json!(candidates.pool.rules.policy.name());
    shown["endpoint"] = json!(order.first());
    shown["order"] = json!(order);
    shown["decision_us"] = json!(took.as_nanos() as f64 / 1e3);
    shown
}

fn decision(
    made: &Decision,
    chosen: &Choice,
    blocks: usize,
    named: impl Fn(&Choice) -> Option<String>,
) -> Value {
    let reading = match &made.reading {
        Reading::Prompt => "prompt".to_owned(),
        Reading::NoPrompt => "no prompt".to_owned(),
        Reading::Unreadable(why) => format!("unreadable: {why}"),
    };
    let scores = made.choices.iter().map(|choice| {
        json!({
            "endpoint": named(choice),
            "matched": choice.matched,
            "total": choice.total,
            "scores": scores(made, choice),
        })
    });
    json!({
        "reading": reading,
        "stream": made.stream,
        "match": format!("{}/{blocks}", chosen.matched),
        "cold": made.cold,
        "probe": chosen.preferred,
        "scores": scores.collect::<Vec<_>>(),
    })
}

/// Each column's figure and weight; null where the endpoint was left out. Weighted and summed they are the total.
fn scores(made: &Decision, choice: &Choice) -> Value {
    let named =
        made.columns().iter().zip(made.figures(choice)).map(|(column, figure)| {
            (column.name.to_owned(), json!({"score": figure, "weight": column.weight}))
        });
    Value::Object(named.collect())
}

fn name(pool: &Pool, choice: &Choice) -> Option<String> {
    pool.endpoints().find(|endpoint| endpoint.id() == choice.id).map(|endpoint| endpoint.name.clone())
}
