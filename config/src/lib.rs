//! What the operator writes, checked: text and flags in, a [`Config`] or every fault out.
//!
//! The edge where values are checked once; past it a value cannot be wrong. `raw` is the file as written,
//! `check` turns it into these types and collects the faults. Never here: sockets, clocks, tasks.

mod check;
pub mod defaults;
mod endpoint;
mod faults;
mod quantity;
mod raw;

use std::net::SocketAddr;
use std::time::Duration;

use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::Weights;
use picker::score::prefix::MatchLength;

pub use endpoint::{Endpoint, EndpointName, EndpointUrl};
pub use faults::{Fault, Faults, Reason};
pub use picker::tokens::Kind as Tokenizer;
pub use raw::read_file;

/// Everything that `serve` needs to know, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where clients are served: at least one, no two on one address.
    pub listeners: Vec<Listener>,
    /// Where metrics, health and state are served; not the address of a listener.
    pub admin: SocketAddr,
    /// The endpoints and how one is chosen.
    pub pool: Pool,
    /// What clients may send.
    pub limits: Limits,
    /// Whether answers carry the `x-prefixroute-*` headers.
    pub response_headers: bool,
    /// Time that running requests get after SIGTERM; zero stops at once.
    pub drain: Duration,
}

/// An address that clients connect to and what is spoken there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Port 0 lets the system choose a free one.
    pub address: SocketAddr,
    /// One protocol per listener: HTTP/2 in clear text is not told apart from HTTP/1 by its first bytes.
    pub protocol: Protocol,
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

/// The endpoints that share one model, and how one is chosen among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What ranks the endpoints.
    pub policy: Policy,
    /// In place of the preset of a policy that sums; always absent for one that does not.
    pub weights: Option<Weights>,
    /// How much a long match counts beyond its share, in the scorer `prefix`.
    pub match_length: MatchLength,
    /// The seed of the tie-break and of the policy `random`.
    pub seed: u64,
    /// Unique in name and in address. May be empty: the router starts and is not ready.
    pub endpoints: Vec<Endpoint>,
    /// What the router believes of the caches.
    pub index: Index,
    /// How the load of the endpoints is read.
    pub load: Load,
    /// How long each step of a request may take.
    pub timeouts: Timeouts,
}

/// How prompts become blocks, and how many blocks are remembered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Index {
    /// How a prompt is cut into tokens.
    pub tokenizer: Tokenizer,
    /// Tokens of that tokenizer in one block.
    pub block: BlockSize,
    /// Blocks remembered per endpoint until its engine tells its own cache size; at least 1.
    pub capacity_blocks: usize,
}

/// How the load of the endpoints is read from their `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// From one reading to the next.
    pub scrape_interval: Duration,
    /// A reading that takes longer has failed.
    pub scrape_timeout: Duration,
    /// A figure older than this is unknown; at least 2 × `scrape_interval`.
    pub stale_after: Duration,
    /// A longer page is a failed reading.
    pub page_bytes_max: usize,
}

/// What clients may send. One body always fits into the room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one request's body.
    pub body_bytes_max: usize,
    /// Bytes of all bodies held in memory at once.
    pub bodies_bytes_max: usize,
}

/// How long each step of a request may take. None is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a whole request body to arrive.
    pub request_body: Duration,
    /// For a connection to an endpoint to stand.
    pub connect: Duration,
    /// To the first byte of an answer.
    pub first_byte: Duration,
    /// Between two chunks of an answer.
    pub idle: Duration,
    /// That a client may leave an answer unread.
    pub client_write: Duration,
    /// Life of an unused connection to an endpoint.
    pub upstream_idle: Duration,
    /// Life of an unused connection of a client.
    pub keep_alive: Duration,
}

/// What the command line says; it overrides the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `NAME=URL` of each `--endpoint`; one or more replace the file's list.
    pub endpoints: Vec<String>,
    /// `--policy`.
    pub policy: Option<String>,
    /// `--port N`: short for `--listen 127.0.0.1:N`.
    pub port: Option<u16>,
    /// `--listen`: one HTTP/1 listener in place of the file's.
    pub listen: Option<String>,
    /// `--admin`.
    pub admin: Option<String>,
}

/// Checks a file's name and text, if there is one, and the flags. Without a file or with an empty one every
/// default holds.
///
/// Errors: all faults of values at once; of a file whose structure is broken (not YAML, an unknown or
/// repeated key), the first such fault and those of the flags.
pub fn load(file: Option<(&str, &str)>, flags: &Flags) -> Result<Config, Faults> {
    check::check(file, flags)
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
}
