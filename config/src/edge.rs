//! What stands between clients and the pools: keys, tenants and their limits, CORS, paths, who a client is.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::Secret;

/// Who may send what.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// With any, a request needs a key of one of them. Unique in name; no key twice.
    pub tenants: Vec<Tenant>,
    /// What engines see of a client's key; an endpoint's own key goes before.
    pub client_key: ClientKey,
    /// What the `cache_salt` of isolated tenants is made of; present where one is isolated.
    pub cache_salt_secret: Option<Secret>,
    /// What browsers are told; where absent, their preflights go to an engine.
    pub cors: Option<Cors>,
    /// Paths that are served; empty for all.
    pub paths: Vec<PathPattern>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<Network>,
    /// Whether engines are told the client's address, in `X-Forwarded-For` and `X-Forwarded-Proto`.
    pub forwarded_headers: bool,
}

/// Somebody with keys, limits, and perhaps a cache of his own.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Unique; safe in a label, like an endpoint's.
    pub name: String,
    /// SHA-256 of each key; at least one.
    pub keys: Vec<KeyHash>,
    /// Whether nobody else's prompts are shared with this tenant's, in belief and in the engines.
    pub isolate: bool,
    /// Goes before lower ones where requests wait for an endpoint; 100 at most.
    pub priority: u8,
    /// What it may send.
    pub limits: TenantLimits,
}

/// SHA-256 of an API key. Neither the key nor this is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

/// What a tenant may send; absent is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Requests a second, in the mean.
    pub requests_per_second: Option<NonZeroU32>,
    /// Requests at once, beyond the mean; what `requests_per_second` says where absent.
    pub burst: Option<NonZeroU32>,
    /// Requests in flight.
    pub concurrent_requests: Option<NonZeroU32>,
    /// Estimated tokens of prompts a minute.
    pub prompt_tokens_per_minute: Option<NonZeroU32>,
    /// Bytes of bodies a minute.
    pub prompt_bytes_per_minute: Option<NonZeroU32>,
}

/// Where each decision's reasons go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionLog {
    /// The newest file; older ones are beside it, with `.1`, `.2` and so on behind the name.
    pub path: PathBuf,
    /// A file of so many bytes is full.
    pub file_bytes_max: u64,
    /// Files that are kept, the newest included; at least 1.
    pub files: u32,
}

/// What engines see of a client's `Authorization` and `x-api-key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientKey {
    /// As it came. The default without tenants.
    #[default]
    Forward,
    /// Nothing. The default with tenants.
    Drop,
}

/// What browsers are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// Origins that may ask, such as `https://app.example`; `*` for all. At least one.
    pub origins: Vec<String>,
    /// Request headers that they may send; empty for those that they ask for.
    pub headers: Vec<String>,
    /// How long they may remember the answer.
    pub max_age: Duration,
}

/// A path, or with a final `*` all paths that begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern(pub String);

/// Addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The first of them.
    pub address: IpAddr,
    /// Bits that they share.
    pub prefix: u8,
}

/// Where a line for each request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Standard output.
    Stdout,
    /// A file, opened to append, and anew at each reload.
    File(PathBuf),
}

impl std::fmt::Debug for KeyHash {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("KeyHash(..)")
    }
}

impl KeyHash {
    /// The hash of a key.
    pub fn of(key: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, key).as_ref());
        Self(hash)
    }
}

impl ClientKey {
    /// Both names, in the order of the documentation.
    pub const NAMES: &[&str] = &["forward", "drop"];

    /// What that name means in the file.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "forward" => Some(Self::Forward),
            "drop" => Some(Self::Drop),
            _ => None,
        }
    }

    /// The name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Drop => "drop",
        }
    }
}

impl PathPattern {
    /// Whether a path is one of these. `path` is decoded and has no dots for segments.
    pub fn matches(&self, path: &str) -> bool {
        self.0.strip_suffix('*').map_or(self.0 == path, |beginning| path.starts_with(beginning))
    }
}

impl Network {
    /// Whether an address is one of these; an IPv4 address in an IPv6 one is the IPv4 one.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let differ = u32::from(ours) ^ u32::from(theirs);
                differ.checked_shr(32 - u32::from(self.prefix.min(32))).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let differ = u128::from(ours) ^ u128::from(theirs);
                differ.checked_shr(128 - u32::from(self.prefix.min(128))).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}
