//! What stands between clients and the pools: who asks, from where, for which path, and how much of it.
//!
//! The files are parts that know nothing of sessions and pools; [`Edge`] is the set of them that one configuration comes
//! to, and is swapped whole. In the order of a request's life: [`client_ip`], [`cors`], [`paths`], [`keys`], [`tenants`]
//! with [`limits`] and [`salt`], and when it has ended [`access_log`] with [`trace_context`].

pub(crate) mod access_log;
pub(crate) mod client_ip;
pub(crate) mod cors;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod paths;
pub(crate) mod rate;
pub(crate) mod salt;
pub(crate) mod tenants;
pub(crate) mod trace_context;
pub(crate) mod traces;

use client_ip::Proxies;
use cors::Cors;
use paths::Paths;
use tenants::Tenants;

/// The edge of one configuration.
pub(crate) struct Edge {
    /// Who may ask.
    pub(crate) tenants: Tenants,
    /// Which paths are served.
    pub(crate) paths: Paths,
    /// What browsers are told; where absent, preflights go to an engine.
    pub(crate) cors: Option<Cors>,
    /// Whose `X-Forwarded-For` is believed.
    pub(crate) proxies: Proxies,
    /// Whether engines are told the client's address.
    pub(crate) forwarded_headers: bool,
}

impl Edge {
    /// Whether everybody may ask for everything. Where not, a proxy on the same host may bring in strangers.
    pub(crate) fn is_open(&self) -> bool {
        self.tenants.list().is_empty() && self.paths.serve_all()
    }

    /// The edge as configured. What tenants of the previous one have in flight and have used up is kept.
    pub(crate) fn after(previous: Option<&Self>, edge: &config::Edge) -> Self {
        Self {
            tenants: Tenants::after(previous.map(|edge| &edge.tenants), edge),
            paths: Paths::new(&edge.paths),
            cors: edge.cors.as_ref().map(Cors::new),
            proxies: Proxies::new(&edge.trusted_proxies),
            forwarded_headers: edge.forwarded_headers,
        }
    }
}
