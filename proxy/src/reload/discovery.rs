//! Endpoints that a name stands for: each address that it has is one, for as long as it has it.
//!
//! Looked up again and again; what is found is put into the pool as if it were written there, so it comes, stays and drains as
//! by a reload. A name that does not resolve, or resolves to nothing, changes nothing: an outage of the name service is none of
//! the engines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::defaults::ENDPOINTS_MAX;
use config::{Config, Dns, Endpoint, EndpointName, EndpointUrl, Pool};
use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use super::Reloader;

/// From one look at which names are due to the next.
const LOOK: Duration = Duration::from_millis(100);
/// Time for a name to be resolved.
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);

/// What names stand for, by pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found(BTreeMap<String, BTreeSet<SocketAddr>>);

impl Found {
    /// A configuration with what was found in its pools. What is written goes before: its address is not found again.
    pub(super) fn complete(&self, config: &Config) -> Config {
        let mut complete = config.clone();
        let mut names: BTreeSet<String> =
            config.pools.iter().flat_map(|pool| &pool.endpoints).map(|it| it.name.to_string()).collect();
        for pool in complete.pools.iter_mut().filter(|pool| pool.dns.is_some()) {
            for address in self.0.get(&pool.name).into_iter().flatten() {
                add(pool, *address, &mut names);
            }
        }
        complete
    }

    /// Whether that is news.
    fn take(&mut self, pool: &str, addresses: BTreeSet<SocketAddr>) -> bool {
        let before = self.0.insert(pool.to_owned(), addresses);
        before.as_ref() != self.0.get(pool)
    }
}

fn add(pool: &mut Pool, address: SocketAddr, names: &mut BTreeSet<String>) {
    let Ok(url) = EndpointUrl::new(&format!("http://{address}")) else { return };
    let is_written = pool.endpoints.iter().any(|endpoint| endpoint.url == url);
    if is_written || pool.endpoints.len() >= ENDPOINTS_MAX {
        return;
    }
    let Ok(plain) = EndpointName::of_url(&url) else { return };
    // Two pools may stand for one address.
    let named = |name: &EndpointName| EndpointName::new(&format!("{}.{name}", pool.name)).ok();
    let name = if names.contains(plain.as_str()) { named(&plain) } else { Some(plain) };
    if let Some(name) = name.filter(|name| names.insert(name.to_string())) {
        pool.endpoints.push(Endpoint::new(name, url));
    }
}

/// The addresses of a name now; `None` where it does not resolve.
async fn look_up(dns: &Dns) -> Option<BTreeSet<SocketAddr>> {
    let found = timeout(RESOLVED_WITHIN, lookup_host((dns.host.as_str(), dns.port))).await.ok()?.ok()?;
    // An address with a scope means another host on every machine.
    let is_global = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let addresses: BTreeSet<_> = found.filter(is_global).take(ENDPOINTS_MAX).collect();
    (!addresses.is_empty()).then_some(addresses)
}

impl Reloader {
    /// Looks names up, each in its interval, for as long as the router runs.
    pub(crate) async fn at_names(self: Arc<Self>) {
        let mut looked: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            let live = self.router.hold_live();
            let named =
                live.pools.iter().filter_map(|pool| Some((&pool.config.name, pool.config.dns.as_ref()?)));
            for (pool, dns) in named {
                if looked.get(pool).is_some_and(|at| at.elapsed() < dns.interval) {
                    continue;
                }
                looked.insert(pool.clone(), Instant::now());
                match look_up(dns).await {
                    Some(addresses) => self.found(pool, addresses).await,
                    None => tracing::debug!(pool, host = dns.host, "name does not resolve"),
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Puts to work what a name stands for now.
    async fn found(&self, pool: &str, addresses: BTreeSet<SocketAddr>) {
        let mut running = self.running.lock().await;
        if !running.found.take(pool, addresses) {
            return;
        }
        let next = running.found.complete(&running.loaded.config);
        let before = self.router.hold_live();
        if next == before.config {
            return;
        }
        match before.after(next) {
            Ok(live) => {
                for change in super::changes::of_endpoints(&before.config, &live.config) {
                    tracing::info!(
                        version = live.version,
                        change,
                        why = "its name's addresses",
                        "configuration"
                    );
                }
                self.router.metrics.configured(live.version, self.status.lock().faults.is_empty());
                self.swap(Arc::new(live));
            }
            Err(error) => tracing::error!(pool, %error, "what its name stands for cannot be used"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use config::{Flags, System};

    use super::*;

    fn found(pools: &[(&str, &[&str])]) -> Found {
        let addresses = |list: &[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        Found(pools.iter().map(|(pool, list)| ((*pool).to_owned(), addresses(list))).collect())
    }

    fn named(text: &str, dns: &[usize]) -> Config {
        let mut config = config::load(Some(("f", text)), &Flags::default(), &System).unwrap().config;
        for place in dns {
            let interval = Duration::from_secs(1);
            config.pools[*place].dns = Some(Dns { host: "engines".to_owned(), port: 80, interval });
        }
        config
    }

    fn shown(config: &Config) -> Vec<String> {
        let endpoint = |endpoint: &Endpoint| format!("{} {}", endpoint.name, endpoint.url);
        config.pools.iter().flat_map(|pool| pool.endpoints.iter().map(endpoint)).collect()
    }

    #[test]
    fn addresses_are_endpoints_beside_those_that_are_written() {
        let one = "pools: [{endpoints: [{name: a, url: \"http://10.0.0.1:8000\"}]}]";
        let two = "pools: [{name: one, models: [x]}, {name: two}]";
        for (shows, config, found, wanted) in [
            ("none found", named(one, &[0]), found(&[]), vec!["a http://10.0.0.1:8000"]),
            (
                "two, one of them written",
                named(one, &[0]),
                found(&[("default", &["10.0.0.1:8000", "10.0.0.2:8000"])]),
                vec!["a http://10.0.0.1:8000", "10.0.0.2-8000 http://10.0.0.2:8000"],
            ),
            (
                "of a pool that has no name any more",
                named(one, &[]),
                found(&[("default", &["10.0.0.2:8000"])]),
                vec!["a http://10.0.0.1:8000"],
            ),
            (
                "one address of two pools",
                named(two, &[0, 1]),
                found(&[("one", &["10.0.0.2:80"]), ("two", &["10.0.0.2:80"])]),
                vec!["10.0.0.2-80 http://10.0.0.2", "two.10.0.0.2-80 http://10.0.0.2"],
            ),
        ] {
            assert_eq!(shown(&found.complete(&config)), wanted, "{shows}");
        }
    }

    #[tokio::test]
    async fn a_name_resolves_to_its_addresses_or_to_nothing() {
        let dns = |host: &str| Dns { host: host.to_owned(), port: 8000, interval: Duration::from_secs(1) };
        let found = look_up(&dns("127.0.0.1")).await;
        assert_eq!(found, Some(["127.0.0.1:8000".parse().unwrap()].into()));
        assert_eq!(look_up(&dns("no-such-name.invalid")).await, None);
    }

    #[tokio::test]
    async fn an_address_that_stays_is_the_same_endpoint() {
        let config = named("pools: [{endpoints: []}]", &[0]);
        let mut loaded = config::load(Some(("f", "{}")), &Flags::default(), &System).unwrap();
        loaded.config = config.clone();
        let router = crate::router::Router::new(config).unwrap();
        let (_end, until) = tokio::sync::watch::channel(false);
        let (read, until) = (crate::reload::Read::once(loaded), crate::serve::Until(until));
        let reloader = Reloader::new(router.clone(), read, tokio::runtime::Handle::current(), until);
        let becomes = async |list: &[&str]| {
            reloader.found("default", list.iter().map(|address| address.parse().unwrap()).collect()).await;
            let live = router.hold_live();
            let endpoints: Vec<_> = live.endpoints().map(|(_, endpoint)| endpoint.clone()).collect();
            (live.version, endpoints)
        };
        let (version, first) = becomes(&["127.0.0.1:1", "127.0.0.2:1"]).await;
        assert_eq!((version, first.len()), (2, 2));
        let (version, same) = becomes(&["127.0.0.2:1", "127.0.0.1:1"]).await;
        assert_eq!((version, same.len()), (2, 2), "no news");
        let (version, second) = becomes(&["127.0.0.2:1", "127.0.0.3:1"]).await;
        assert_eq!((version, second.len()), (3, 2));
        assert!(Arc::ptr_eq(&first[1], &second[0]), "it stays itself");
        let gone = timeout(Duration::from_secs(5), first[0].retired()).await;
        assert!(gone.is_ok(), "and the other is retired");
        assert_eq!(
            shown(&router.live().config),
            ["127.0.0.2-1 http://127.0.0.2:1", "127.0.0.3-1 http://127.0.0.3:1"]
        );
    }
}
