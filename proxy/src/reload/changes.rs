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
    check(old.listeners.len() != new.listeners.len(), "listeners");
    for (place, (old, new)) in old.listeners.iter().zip(&new.listeners).enumerate() {
        check(old.address != new.address, &format!("listeners[{place}].address"));
        check(old.protocol != new.protocol, &format!("listeners[{place}].protocol"));
        check(old.tls.is_some() != new.tls.is_some(), &format!("listeners[{place}].tls"));
    }
    check(old.admin != new.admin, "admin");
    check(old.limits.bodies_bytes_max != new.limits.bodies_bytes_max, "limits.bodies_bytes_max");
    check(old.traces != new.traces, "traces");
    check(old.ending.upgrade_socket != new.ending.upgrade_socket, "upgrade_socket");
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

/// What differs in endpoints alone.
pub(super) fn of_endpoints(old: &Config, new: &Config) -> Vec<String> {
    let mut words = Vec::new();
    pools(old, new, &mut words);
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
    let (before, now) = (by_name(old, &new.config), by_name(new, &old.config));
    for (key, value) in &now {
        let differs = before.get(key).filter(|other| *other != value);
        words.extend(differs.map(|other| format!("{key}: {other} -> {value}")));
    }
    words.extend(now.keys().filter(|key| !before.contains_key(*key)).map(|key| format!("{key} set")));
    words.extend(before.keys().filter(|key| !now.contains_key(*key)).map(|key| format!("{key} unset")));
}

/// Values by their keys; a pool's by its name, so that a pool may change its place, where `other` has it too. Endpoints and
/// tenants are told apart by name elsewhere.
fn by_name(loaded: &Loaded, other: &Config) -> BTreeMap<String, String> {
    let named = |path: &str| -> Option<String> {
        let of_named = path.starts_with("tenants") || path.contains("].endpoints") || path.contains("].name");
        if of_named {
            return None;
        }
        let Some((place, key)) = path.strip_prefix("pools[").and_then(|rest| rest.split_once("].")) else {
            return Some(path.to_owned());
        };
        let pool = loaded.config.pools.get(place.parse::<usize>().ok()?)?;
        let is_kept = other.pools.iter().any(|it| it.name == pool.name);
        is_kept.then(|| format!("pool {}: {key}", pool.name))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::path::Path;

    use config::{Flags, Outside};

    use super::*;

    /// Secrets that are what they are called.
    struct Named;

    impl Outside for Named {
        fn variable(&self, name: &str) -> Result<String, String> {
            Ok(format!("secret of {name}, long enough"))
        }

        fn file(&self, _: &Path) -> Result<Vec<u8>, String> {
            Err("no file".to_owned())
        }
    }

    fn loaded(text: &str) -> Loaded {
        config::load(Some(("f", text)), &Flags::default(), &Named).unwrap_or_else(|faults| panic!("{faults}"))
    }

    const ENDPOINTS: &str = "endpoints: [{name: a, url: \"http://a\"}, {name: b, url: \"http://b\"}]";

    fn pool(rest: &str) -> String {
        format!("pools:\n  - {ENDPOINTS}\n{rest}")
    }

    #[test]
    fn every_change_is_said_in_words() {
        let two = |rest: &str| {
            format!(
                "pools:\n  - {{name: one, models: [x], {ENDPOINTS}}}\n  - {{name: two, endpoints: [{{url: \"http://c\"}}]{rest}}}\n"
            )
        };
        let tenant = |rest: &str| pool(&format!("tenants: [{{name: t, keys: [\"${{A}}\"]{rest}}}]\n"));
        for (shows, before, after, words) in [
            ("nothing", pool(""), pool(""), vec![]),
            (
                "endpoints come, go, move and weigh",
                pool(""),
                "pools: [{endpoints: [{name: a, url: \"http://z\"}, {name: c, url: \"http://c\"}]}]\n"
                    .to_owned(),
                vec![
                    "pool default: endpoint a moved, http://a -> http://z",
                    "pool default: endpoint c added, http://c",
                    "pool default: endpoint b removed",
                ],
            ),
            (
                "a weight",
                pool(""),
                pool("").replace("url: \"http://b\"", "url: \"http://b\", weight: 0.5"),
                vec!["pool default: endpoint b: weight 1 -> 0.5"],
            ),
            (
                "an endpoint's key",
                pool("").replace("url: \"http://b\"", "url: \"http://b\", key: \"${ONE}\""),
                pool("").replace("url: \"http://b\"", "url: \"http://b\", key: \"${TWO}\""),
                vec!["pool default: endpoint b: another key"],
            ),
            (
                "settings, by the pool's name though its place is another",
                two(""),
                {
                    let text = two(", policy: sticky, timeouts: {idle: 3s}");
                    let lines: Vec<_> = text.lines().collect();
                    [lines[0], lines[2], lines[1], ""].join("\n")
                },
                vec!["pool two: policy: expected-ttft -> sticky", "pool two: timeouts.idle: 10m -> 3s"],
            ),
            (
                "a pool",
                pool(""),
                two(""),
                vec!["pool one added, 2 endpoints", "pool two added, 1 endpoints", "pool default removed"],
            ),
            ("a top-level setting", pool(""), pool("drain: 5s\n"), vec!["drain: 30s -> 5s"]),
            ("a tenant", pool(""), tenant(""), vec!["tenant t added", "client_key: forward -> drop"]),
            ("a tenant's key", tenant(""), tenant("").replace("${A}", "${B}"), vec!["tenant t: other keys"]),
            (
                "a tenant's limits",
                tenant(""),
                tenant(", limits: {requests_per_second: 5}"),
                vec!["tenant t: other limits"],
            ),
            (
                "isolation",
                tenant("") + "cache_salt_secret: ${S}\n",
                tenant(", isolate: true") + "cache_salt_secret: ${S}\n",
                vec!["tenant t: isolate false -> true"],
            ),
        ] {
            let (before, after) = (loaded(&before), loaded(&after));
            let said = in_words(&before, &after);
            assert_eq!(said, words, "{shows}");
            assert_eq!(needing_restart(&before.config, &after.config), Vec::<String>::new(), "{shows}");
            assert!(!said.iter().any(|line| line.contains("secret of")), "{shows}: {said:?}");
        }
    }

    /// What the documentation calls a restart is refused, and nothing else is.
    #[test]
    fn what_needs_a_restart_is_what_the_keys_say() {
        let variants = [
            ("listeners[].address", "listeners: [{address: \"127.0.0.1:8081\"}]\n", "listeners[0].address"),
            (
                "listeners[].protocol",
                "listeners: [{address: \"127.0.0.1:8080\", protocol: h2c}]\n",
                "listeners[0].protocol",
            ),
            ("admin", "admin: 127.0.0.1:9091\n", "admin"),
            ("limits.bodies_bytes_max", "limits: {bodies_bytes_max: 2GiB}\n", "limits.bodies_bytes_max"),
            ("traces", "traces: \"http://127.0.0.1:4318/v1/traces\"\n", "traces"),
            ("upgrade_socket", "upgrade_socket: upgrade.sock\n", "upgrade_socket"),
        ];
        let old = loaded(&pool(""));
        for (key, text, named) in variants {
            let faults = needing_restart(&old.config, &loaded(&pool(text)).config);
            let wanted = format!("{named}: found another value, wanted the old one until a restart");
            assert_eq!(faults, [wanted], "{key}");
        }
        let known = variants.map(|(key, ..)| key);
        let listed = config::restart_keys();
        let unknown: Vec<_> = listed.iter().filter(|key| !known.contains(&key.as_str())).collect();
        assert_eq!(unknown, ["listeners", "listeners[].tls"], "sections, whose own keys say more");
    }
}
