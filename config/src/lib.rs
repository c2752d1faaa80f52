//! What the operator writes, checked: text and flags in, a [`Config`] or every fault out.
//!
//! The edge where values are checked once; past it a value cannot be wrong. `tree` is the file as written, `read` asks it
//! for keys, `check` names and describes each key, turns it into these types and collects the faults. Never here:
//! sockets, clocks, tasks.

mod check;
pub mod defaults;
mod describe;
mod edge;
mod endpoint;
mod failure;
mod faults;
mod file;
pub mod inference_pool;
mod pool;
mod quantity;
mod read;
pub mod scheduler;
mod secret;
mod tls;
pub mod tree;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use describe::{explain, key_table, restart_keys, schema};
pub use edge::{
    AccessLog, ClientKey, Cors, DecisionLog, Edge, KeyHash, Network, PathPattern, Tenant, TenantLimits,
};
pub use endpoint::{Endpoint, EndpointName, EndpointUrl};
pub use failure::{Health, PoolLimits, Queue, Retry};
pub use faults::{Fault, Faults, Reason};
pub use file::read_file;
pub use picker::tokens::Kind as Tokenizer;
pub use pool::{Dns, Engine, EngineKind, Index, Load, Pool, Timeouts};
pub use secret::{Outside, Secret, System};
pub use tls::{Certificate, ClientTls, ServerTls};

/// Everything that `serve` needs to know, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where clients are served: at least one, no two on one address.
    pub listeners: Vec<Listener>,
    /// Where metrics, health and state are served; not the address of a listener.
    pub admin: SocketAddr,
    /// At least one; unique in name, no model or alias in two of them, at most one that names no models.
    pub pools: Vec<Pool>,
    /// Who may send what.
    pub edge: Edge,
    /// What clients may send.
    pub limits: Limits,
    /// How long clients may take.
    pub timeouts: ClientTimeouts,
    /// Whether answers carry the `x-prefixroute-*` headers.
    pub response_headers: bool,
    /// A line for each request; none where absent.
    pub access_log: Option<AccessLog>,
    /// A line for each decision; none where absent.
    pub decision_log: Option<DecisionLog>,
    /// Where spans go (OTLP over HTTP), such as `http://127.0.0.1:4318/v1/traces`; none where absent.
    pub traces: Option<String>,
    /// Whether the file is looked at for changes.
    pub watch: bool,
    /// How it ends.
    pub ending: Ending,
}

/// What a drain gives to clients, and where listeners are handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Time that running requests get after SIGTERM; zero stops at once.
    pub drain: Duration,
    /// Time before it, in which the router is not ready and takes connections all the same.
    pub delay: Duration,
    /// Time that an unused connection of a client stays in a drain.
    pub idle: Duration,
    /// Where another process takes the listeners over; nowhere where absent.
    pub upgrade_socket: Option<PathBuf>,
}

/// An address that clients connect to and what is spoken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Port 0 lets the system choose a free one.
    pub address: SocketAddr,
    /// One protocol per listener in clear text: HTTP/2 is not told apart from HTTP/1 by its first bytes. With TLS always
    /// [`Protocol::Http1`]; ALPN chooses between HTTP/1.1 and HTTP/2.
    pub protocol: Protocol,
    /// TLS, where it is spoken.
    pub tls: Option<ServerTls>,
}

/// What is spoken on a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 and HTTP/1.1, `http1` in the file.
    #[default]
    Http1,
    /// HTTP/2 in clear text with prior knowledge, `h2c` in the file.
    H2c,
}

/// What clients may send. One body always fits into the room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one request's body.
    pub body_bytes_max: usize,
    /// Bytes of all bodies held in memory at once.
    pub bodies_bytes_max: usize,
    /// Bytes of a request's head: its first line and its headers.
    pub headers_bytes_max: usize,
    /// Connections at once, over all listeners for clients; where absent, [`defaults::CONNECTIONS_MAX`]. Fewer where the
    /// process may not open as many.
    pub connections_max: Option<usize>,
}

/// How long clients may take. None is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// For a request's head to arrive, from its first byte on; on a new connection from the start.
    pub request_head: Duration,
    /// For a whole request body to arrive.
    pub request_body: Duration,
    /// That a client may leave an answer unread.
    pub client_write: Duration,
    /// Life of an unused connection of a client.
    pub keep_alive: Duration,
}

/// What the command line says; it overrides the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `NAME=URL` of each `--endpoint`; one or more replace the list and the discovery of the file's only pool.
    pub endpoints: Vec<String>,
    /// `--policy`, for the file's only pool.
    pub policy: Option<String>,
    /// `--port N`: short for `--listen 127.0.0.1:N`.
    pub port: Option<u16>,
    /// `--listen`: one HTTP/1 listener in place of the file's.
    pub listen: Option<String>,
    /// `--admin`.
    pub admin: Option<String>,
}

/// A configuration and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// What holds.
    pub config: Config,
    /// Each value of the effective configuration, in the order of the documentation, for `check --explain`.
    pub settings: Vec<Setting>,
    /// Every further file that was read: certificates, keys, secrets, scheduler configurations, lists of endpoints. Absolute, or relative to
    /// the working directory.
    pub files: Vec<PathBuf>,
}

/// What is known of a configuration whose secrets and certificates nobody has read: nothing to serve with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithoutSecrets {
    /// As in [`Loaded`].
    pub settings: Vec<Setting>,
    /// Secrets and certificates that were not read.
    pub unread: usize,
}

/// One value of the effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key, such as `pools[0].load.scrape_interval`.
    pub path: String,
    /// The value as the file would have it; for a secret only where it came from, such as `${KEY}`.
    pub value: String,
    /// `default`, `file:line:column` or the flag's name.
    pub origin: String,
}

/// Checks a file's name and text, if there is one, and the flags. Without a file every default holds.
///
/// `outside` gives environment variables and further files; paths in the file are taken from the file's own folder.
/// Errors: all faults at once. A file that is no YAML has one, and those of the flags.
pub fn load(file: Option<(&str, &str)>, flags: &Flags, outside: &dyn Outside) -> Result<Loaded, Faults> {
    check::check(file, flags, outside)
}

/// Checks a file as [`load`] does, but for what stands in environment variables and in files of keys and certificates:
/// these need not be there. For a place that has no secrets, such as a repository of configurations.
///
/// A scheduler's file and a list of endpoints are read all the same. Errors: all faults at once.
pub fn check_without_secrets(
    file: (&str, &str),
    flags: &Flags,
    outside: &dyn Outside,
) -> Result<WithoutSecrets, Faults> {
    check::check_without_secrets(file, flags, outside)
}

impl Protocol {
    /// Every name, in the order of the documentation.
    pub const NAMES: &[&str] = &["http1", "h2c"];

    /// The protocol of that name in the file.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "http1" => Some(Self::Http1),
            "h2c" => Some(Self::H2c),
            _ => None,
        }
    }

    /// The name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::H2c => "h2c",
        }
    }
}
