//! Fleet, belief and decisions as JSON. Never a prompt, a key, a salt or a body's text.

use std::sync::atomic::Ordering;
use std::time::Instant;

use picker::belief::Size;
use picker::decide::{Choice, Decision, Reading};
use picker::load::Load;
use picker::read::Api;
use serde_json::{Value, json};

use super::recent::Entry;
use crate::endpoints::Endpoint;
use crate::router::{Candidates, Router};

/// The state page.
pub(super) fn state(router: &Router) -> Value {
    let fleet = router.fleet.load();
    let sizes = fleet.iter().filter_map(|endpoint| router.index.size(endpoint.id));
    let none = Size { blocks: 0, capacity: 0, evicted: 0 };
    let all = sizes.fold(none, |sum, size| Size {
        blocks: sum.blocks + size.blocks,
        capacity: sum.capacity + size.capacity,
        evicted: sum.evicted + size.evicted,
    });
    let memory = router.index.memory();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "policy": router.rules.policy.name(),
        "tokenizer": router.rules.tokenizer.name(),
        "draining": router.draining.load(Ordering::Relaxed),
        "ready": router.ready(),
        "connections": router.connections.open(),
        "turns": router.turns(),
        "endpoints": fleet.iter().map(|it| endpoint(router, it)).collect::<Vec<_>>(),
        "index": {
            "blocks": all.blocks,
            "capacity_blocks": all.capacity,
            "evictions": all.evicted,
            "bytes": memory.bytes,
            "bytes_max": memory.bytes_max,
        },
        "memo": {
            "hits": router.memo.hits(),
            "misses": router.memo.misses(),
            "bytes": router.memo.bytes(),
            "bytes_max": picker::memo::BYTES_MAX,
        },
        "models": router.ratios.map(|model, ratio| json!({
            "model": model,
            "router_tokens_per_token": ratio.ratio,
            "answers": ratio.answers,
        })),
        "decisions": router.recent.map(|entry| recent(router, entry)),
    })
}

fn endpoint(router: &Router, endpoint: &Endpoint) -> Value {
    let now = Instant::now();
    let stale_after = router.config.pools[0].load.stale_after;
    let load = endpoint.load(now, router.clock, stale_after);
    let sample = endpoint.sample.load();
    let sample = sample.as_deref();
    let size = router.index.size(endpoint.id);
    let (ok, failed, last_error) = endpoint.scrapes();
    let mut shown = json!({
        "name": endpoint.name,
        "url": endpoint.url.to_string(),
        "usable": endpoint.usable(now, stale_after),
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

fn recent(router: &Router, entry: &Entry) -> Value {
    let mut shown = decision(&entry.decision, &entry.choice, entry.blocks, |choice| name(router, choice));
    shown["at_ms"] = json!(entry.at_ms);
    shown["api"] = json!(entry.api.name());
    shown["endpoint"] = json!(entry.endpoint.name);
    shown["status"] = json!(entry.status);
    shown["trouble"] = json!(entry.trouble);
    shown["decision_us"] = json!(entry.took.as_nanos() as f64 / 1e3);
    shown
}

/// A decision that was not carried out.
pub(super) fn explained(
    router: &Router,
    api: Api,
    mut made: Decision,
    candidates: &Candidates,
    took: std::time::Duration,
) -> Value {
    let named = |choice: &Choice| candidates.endpoint(choice.id).map(|endpoint| endpoint.name.clone());
    let mut order = Vec::new();
    let best = made.best();
    while let Some(choice) = made.take_best() {
        order.push(named(&choice));
    }
    let Some(best) = best else { return json!({"api": api.name(), "endpoint": null, "order": order}) };
    let mut shown = decision(&made, &best, made.blocks.total(), named);
    shown["api"] = json!(api.name());
    shown["policy"] = json!(router.rules.policy.name());
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

fn name(router: &Router, choice: &Choice) -> Option<String> {
    router.fleet.load().iter().find(|endpoint| endpoint.id == choice.id).map(|endpoint| endpoint.name.clone())
}
