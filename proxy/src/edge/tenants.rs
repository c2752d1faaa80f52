//! Who a request is, and the tenants of one configuration with what they have used up.

use std::sync::Arc;

use http::HeaderMap;

use super::keys::{Given, Keys, given};
use super::limits::Limits;
use super::salt::Isolation;
use crate::metrics::TenantCounters;

/// The tenants of a configuration. Without any, everybody passes as nobody.
pub(crate) struct Tenants {
    list: Vec<Arc<Tenant>>,
    keys: Keys<Arc<Tenant>>,
}

/// Somebody with keys.
pub(crate) struct Tenant {
    /// Unique; safe in a label.
    pub(crate) name: String,
    /// What it may send.
    pub(crate) limits: Limits,
    /// Goes before lower ones where requests wait.
    pub(crate) priority: u8,
    /// What keeps its prompts apart, if something does.
    pub(crate) isolation: Option<Isolation>,
    pub(crate) counters: Arc<TenantCounters>,
}

/// A request that nobody is answerable for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// 401: there is no key.
    MissingKey,
    /// 401: nobody has this key.
    WrongKey,
    /// 400: there are keys that differ.
    SeveralKeys,
}

impl Tenants {
    /// Tenants as configured. Of those that were there before, by name, it keeps what is in flight, and what is used up of
    /// each limit that is as it was.
    pub(crate) fn after(previous: Option<&Self>, edge: &config::Edge) -> Self {
        let tenant = |tenant: &config::Tenant| {
            let before = previous.and_then(|tenants| tenants.named(&tenant.name));
            let secret = edge.cache_salt_secret.as_ref().filter(|_| tenant.isolate);
            Arc::new(Tenant {
                name: tenant.name.clone(),
                limits: Limits::after(before.map(|tenant| &tenant.limits), &tenant.limits),
                priority: tenant.priority,
                isolation: secret.map(|secret| Isolation::new(secret, &tenant.name)),
                counters: before.map(|tenant| tenant.counters.clone()).unwrap_or_default(),
            })
        };
        let list: Vec<_> = edge.tenants.iter().map(tenant).collect();
        let owned = edge.tenants.iter().zip(&list);
        let owners = owned.flat_map(|(tenant, owner)| tenant.keys.iter().map(|key| (*key, owner.clone())));
        Self { keys: Keys::new(owners), list }
    }

    /// Who a request is, by its headers; `None` for nobody, where nobody is known. Errors: why it must be refused.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<Option<&Arc<Tenant>>, Stranger> {
        if self.list.is_empty() {
            return Ok(None);
        }
        match given(headers) {
            Given::Nothing => Err(Stranger::MissingKey),
            Given::Several => Err(Stranger::SeveralKeys),
            Given::Key(key) => self.keys.owner(key).map(Some).ok_or(Stranger::WrongKey),
        }
    }

    /// All, in the order of the configuration.
    pub(crate) fn list(&self) -> &[Arc<Tenant>] {
        &self.list
    }

    fn named(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.list.iter().find(|tenant| tenant.name == name)
    }
}

impl Tenant {
    /// For [`picker::decide::Ask::tenant`]: empty where prompts are shared.
    pub(crate) fn seed(&self) -> &[u8] {
        self.isolation.as_ref().map_or(b"", Isolation::seed)
    }
}

impl Stranger {
    /// The status of the answer. A 401 carries `WWW-Authenticate:` [`super::keys::CHALLENGE`].
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::MissingKey | Self::WrongKey => 401,
            Self::SeveralKeys => 400,
        }
    }

    /// What the client is told.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::MissingKey => "no API key, wanted in Authorization: Bearer KEY or x-api-key",
            Self::WrongKey => "the API key is not known here",
            Self::SeveralKeys => "several API keys that differ, wanted one",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{ClientKey, Edge, KeyHash, Secret, TenantLimits};
    use http::HeaderValue;
    use picker::ledger::Micros;
    use ring::digest::{SHA256, digest};
    use std::num::NonZeroU32;

    const NOW: Micros = Micros(1);

    fn tenant(name: &str, keys: &[&str], isolate: bool, concurrent: u32) -> config::Tenant {
        let hash =
            |key: &&str| KeyHash(digest(&SHA256, key.as_bytes()).as_ref().try_into().expect("32 bytes"));
        config::Tenant {
            priority: 0,
            name: name.to_owned(),
            keys: keys.iter().map(hash).collect(),
            isolate,
            limits: TenantLimits {
                concurrent_requests: NonZeroU32::new(concurrent),
                ..TenantLimits::default()
            },
        }
    }

    fn edge(tenants: Vec<config::Tenant>) -> Edge {
        Edge {
            tenants,
            client_key: ClientKey::Drop,
            cache_salt_secret: Some(Secret::new("secret")),
            cors: None,
            paths: Vec::new(),
            trusted_proxies: Vec::new(),
            forwarded_headers: false,
        }
    }

    fn who(tenants: &Tenants, keys: &[&'static str]) -> Result<Option<String>, Stranger> {
        let mut headers = HeaderMap::new();
        for key in keys {
            headers.append("x-api-key", HeaderValue::from_static(key));
        }
        tenants.identify(&headers).map(|tenant| tenant.map(|tenant| tenant.name.clone()))
    }

    #[test]
    fn a_key_says_who_a_request_is() {
        let known = Tenants::after(
            None,
            &edge(vec![tenant("a", &["k1", "k2"], true, 0), tenant("b", &["k3"], false, 0)]),
        );
        let open = Tenants::after(None, &edge(vec![]));
        let named = |name: &str| Ok(Some(name.to_owned()));
        for (shows, tenants, keys, wanted) in [
            ("a first key", &known, &["k1"][..], named("a")),
            ("a second key", &known, &["k2"], named("a")),
            ("another tenant", &known, &["k3"], named("b")),
            ("no key", &known, &[], Err(Stranger::MissingKey)),
            ("a wrong key", &known, &["k"], Err(Stranger::WrongKey)),
            ("two keys of one tenant", &known, &["k1", "k2"], Err(Stranger::SeveralKeys)),
            ("without tenants no key is needed", &open, &[], Ok(None)),
            ("nor looked at", &open, &["k1", "k2"], Ok(None)),
        ] {
            assert_eq!(who(tenants, keys), wanted, "{shows}");
        }
        let seeds: Vec<_> = known.list().iter().map(|tenant| tenant.seed().len()).collect();
        assert_eq!(seeds, [32, 0], "only the isolated one is apart");
    }

    #[test]
    fn a_reload_knows_tenants_by_name() {
        let before =
            Tenants::after(None, &edge(vec![tenant("a", &["k1"], false, 1), tenant("b", &["k2"], false, 1)]));
        let held = before.list()[0].limits.admit(NOW).expect("the first");
        let after = Tenants::after(
            Some(&before),
            &edge(vec![tenant("c", &["k2"], false, 1), tenant("a", &["k9"], false, 1)]),
        );
        assert_eq!(who(&after, &["k9"]), Ok(Some("a".to_owned())), "a new key");
        assert_eq!(who(&after, &["k1"]), Err(Stranger::WrongKey), "the old key is gone");
        assert!(after.list()[1].limits.admit(NOW).is_err(), "the same tenant at another place is still busy");
        assert!(after.list()[0].limits.admit(NOW).is_ok(), "another tenant with another's key is not");
        drop(held);
        assert!(after.list()[1].limits.admit(NOW).is_ok(), "what ends after a reload is released in it");
    }
}
