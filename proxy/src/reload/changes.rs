//! What differs between two configurations, in words; and which of it only a restart can change.

use std::collections::BTreeMap;

use config::{Config, Endpoint, Loaded, Pool};

/// What the running router cannot change, each with its key. Empty: a reload will do.
pub(super) fn needing_restart(old: &Config, new: &Config) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |differs: bool, path: &str| {
        if differs {
            found.push(format!("{path}: found another value, wanted the old one until a restart"));
        }
    };
    let bound = |config: &Config| -> Vec<_> {
        config.listeners.iter().map(|it| (it.address, it.protocol, it.tls.is_some())).collect()
    };
    check(bound(old) != bound(new), "listeners");
    check(old.admin != new.admin, "admin");
    check(old.limits.bodies_bytes_max != new.limits.bodies_bytes_max, "limits.bodies_bytes_max");
    check(old.traces != new.traces, "traces");
    found
}

/// Every difference, a line each. Secrets are only said to differ.
pub(super) fn in_words(old: &Loaded, new: &Loaded) -> Vec<String> {
    let mut words = Vec::new();
    pools(&old.config, &new.config, &mut words);
    tenants(&old.config, &new.config, &mut words);
    settings(old, new, &mut words);
    hidden(&old.config, &new.config, &mut words);
    words
}

fn pools(old: &Config, new: &Config, words: &mut Vec<String>) {
    let of = |config: &'_ Config, name: &str| config.pools.iter().position(|pool| pool.name == name);
    for pool in &new.pools {
        match of(old, &pool.name) {
            None => words.push(format!("pool {} added, {} endpoints", pool.name, pool.endpoints.len())),
            Some(place) => endpoints(&old.pools[place], pool, words),
        }
    }
    let gone = old.pools.iter().filter(|pool| of(new, &pool.name).is_none());
    words.extend(gone.map(|pool| format!("pool {} removed", pool.name)));
}

fn endpoints(old: &Pool, new: &Pool, words: &mut Vec<String>) {
    let pool = &new.name;
    for endpoint in &new.endpoints {
        let (name, url) = (&endpoint.name, &endpoint.url);
        match old.endpoints.iter().find(|other| other.name == *name) {
            None => words.push(format!("pool {pool}: endpoint {name} added, {url}")),
            Some(before) if before.url != *url => {
                words.push(format!("pool {pool}: endpoint {name} moved, {} -> {url}", before.url));
            }
            Some(before) => changed(pool, before, endpoint, words),
        }
    }
    let gone = old.endpoints.iter().filter(|before| new.endpoints.iter().all(|it| it.name != before.name));
    words.extend(gone.map(|endpoint| format!("pool {pool}: endpoint {} removed", endpoint.name)));
}

fn changed(pool: &str, before: &Endpoint, now: &Endpoint, words: &mut Vec<String>) {
    let name = &now.name;
    if before.weight != now.weight {
        words.push(format!("pool {pool}: endpoint {name}: weight {} -> {}", before.weight, now.weight));
    }
    if before.key != now.key {
        words.push(format!("pool {pool}: endpoint {name}: another key"));
    }
    if before.headers != now.headers {
        words.push(format!("pool {pool}: endpoint {name}: other headers"));
    }
}

fn tenants(old: &Config, new: &Config, words: &mut Vec<String>) {
    let find = |config: &'_ Config, name: &str| config.edge.tenants.iter().position(|it| it.name == name);
    for tenant in &new.edge.tenants {
        let name = &tenant.name;
        let Some(place) = find(old, name) else {
            words.push(format!("tenant {name} added"));
            continue;
        };
        let before = &old.edge.tenants[place];
        if before.keys != tenant.keys {
            words.push(format!("tenant {name}: other keys"));
        }
        if before.limits != tenant.limits {
            words.push(format!("tenant {name}: other limits"));
        }
        if before.isolate != tenant.isolate {
            words.push(format!("tenant {name}: isolate {} -> {}", before.isolate, tenant.isolate));
        }
    }
    let gone = old.edge.tenants.iter().filter(|tenant| find(new, &tenant.name).is_none());
    words.extend(gone.map(|tenant| format!("tenant {} removed", tenant.name)));
}

/// Every other key, by the values that hold.
fn settings(old: &Loaded, new: &Loaded, words: &mut Vec<String>) {
    let (before, now) = (by_name(old), by_name(new));
    for (key, value) in &now {
        let differs = before.get(key).filter(|other| *other != value);
        words.extend(differs.map(|other| format!("{key}: {other} -> {value}")));
    }
    let lone = |one: &BTreeMap<String, String>, other: &BTreeMap<String, String>, what: &str| -> Vec<_> {
        one.keys().filter(|key| !other.contains_key(*key)).map(|key| format!("{key} {what}")).collect()
    };
    let pool_is_kept = |line: &String| {
        let name = line.strip_prefix("pool ").and_then(|rest| rest.split(':').next());
        name.is_none_or(|name| {
            let has = |config: &Config| config.pools.iter().any(|pool| pool.name == name);
            has(&old.config) && has(&new.config)
        })
    };
    words.extend(lone(&now, &before, "set").into_iter().filter(pool_is_kept));
    words.extend(lone(&before, &now, "unset").into_iter().filter(pool_is_kept));
}

/// Values by their keys; a pool's by its name, so that a pool may change its place. Endpoints and tenants are told apart
/// by name elsewhere.
fn by_name(loaded: &Loaded) -> BTreeMap<String, String> {
    let named = |path: &str| -> Option<String> {
        if path.starts_with("tenants[") || path.contains("].endpoints[") {
            return None;
        }
        let Some((place, key)) = path.strip_prefix("pools[").and_then(|rest| rest.split_once("].")) else {
            return Some(path.to_owned());
        };
        let pool = loaded.config.pools.get(place.parse::<usize>().ok()?)?;
        Some(format!("pool {}: {key}", pool.name))
    };
    let settings = loaded.settings.iter();
    settings.filter_map(|setting| Some((named(&setting.path)?, setting.value.clone()))).collect()
}

/// What is not told by its value: certificates and secrets.
fn hidden(old: &Config, new: &Config, words: &mut Vec<String>) {
    for (place, (before, now)) in old.listeners.iter().zip(&new.listeners).enumerate() {
        if before.tls != now.tls {
            words.push(format!("listeners[{place}]: other certificates"));
        }
    }
    for now in &new.pools {
        let before = old.pools.iter().find(|pool| pool.name == now.name);
        if before.is_some_and(|before| before.tls != now.tls) {
            words.push(format!("pool {}: other certificates or TLS settings", now.name));
        }
    }
    if old.edge.cache_salt_secret != new.edge.cache_salt_secret {
        words.push(
            "cache_salt_secret: another secret, so isolated tenants begin with empty caches".to_owned(),
        );
    }
}
