//! Sends a trace to a URL and records what came back; the command `replay`.
//!
//! Open loop: a request goes out at its time whether or not earlier ones were answered, so a slow server
//! meets the queue that it made, and times count from when a request was due ([`exchange`]). A [`plan`] makes bodies as they go out,
//! of a trace of either form; [`tally`] adds up what came of them, and [`servers`] what the servers themselves counted.
//! The demo reads records one by one instead ([`report`], [`counters`]).

mod answer;
mod args;
pub mod body;
mod command;
pub mod counters;
pub mod exchange;
mod failure;
mod json;
pub mod plan;
mod plays;
pub mod report;
pub mod send;
pub mod servers;
mod show;
pub mod spans;
pub mod tally;

use std::io;
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::Client;
use rustls::{ClientConfig, RootCertStore};

pub use args::{Cut, HashedApi, ReplayArgs};
pub use command::{run, run_until};
pub use exchange::{Record, Target};
pub use failure::{Failure, Kind};
pub use plan::Plan;
pub use send::{Pace, collect, send};

use crate::demo::RouterError;
use crate::simulate::PlayError;
use crate::trace::lines::TraceFileError;

/// How long a connection may take to open.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a request may take in all, unless its [`Target`] says it.
pub const REQUEST_WAIT_MAX: Duration = Duration::from_secs(600);

/// Why a trace cannot be sent at all. What befalls single requests is in their records.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// An option has no meaning. The text says which.
    #[error("{0}")]
    Option(String),
    /// The trace cannot be read.
    #[error("{}{}", .0, .0.hint())]
    Trace(#[from] TraceFileError),
    /// The trace cannot be told in words.
    #[error("{trace}: {reason}{}", reason.hint())]
    Words {
        /// Its file.
        trace: String,
        /// What stands in the way.
        reason: PlayError,
    },
    /// A router of one of the policies.
    #[error("router with policy {policy}: {source}")]
    Router {
        /// Its policy.
        policy: String,
        /// Its own words.
        source: RouterError,
    },
    /// The client.
    #[error("cannot make an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// A request's task died.
    #[error("a request was lost: {0}")]
    Lost(#[from] tokio::task::JoinError),
    /// The result could not be written.
    #[error("replay: {0}")]
    Io(#[from] io::Error),
    /// Everything was told, but of one lane no request was answered.
    #[error("none of the {sent} requests to {lane} was answered")]
    Unanswered {
        /// Who should have.
        lane: String,
        /// Requests that it was sent.
        sent: usize,
    },
    /// It was told to end; what had come by then was told.
    #[error("interrupted before all requests were answered")]
    Interrupted,
}

impl ReplayError {
    /// Whether the operator gave something wrong; else the command failed while it ran.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Option(_) | Self::Trace(_) | Self::Words { .. } => true,
            Self::Router { .. } | Self::Client(_) | Self::Lost(_) | Self::Io(_) => false,
            Self::Unanswered { .. } | Self::Interrupted => false,
        }
    }
}

/// Believes the system's authorities, or those of the file that `SSL_CERT_FILE` names.
static TLS: LazyLock<ClientConfig> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    // Where there are none, every certificate is refused, and each request says so.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().unwrap_or_default());
    ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
});

/// A client that goes straight to the address it is given, whatever proxy the environment names.
pub fn client() -> Result<Client, reqwest::Error> {
    let tls = TLS.clone();
    Client::builder().no_proxy().connect_timeout(CONNECT_WAIT_MAX).tls_backend_preconfigured(tls).build()
}
