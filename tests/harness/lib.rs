//! What the suites stand on: the real binary between a raw client and scripted replicas.
//!
//! A test owns every byte on both sides of the router, and every wait has a deadline. Nothing here knows
//! how the router works inside: it is started as a process, configured by a file, and looked at through its
//! sockets, its state page and `/proc`.
//!
//! `Stub` is a replica that follows a script, `Router` the binary under test, `Client` an HTTP/1.1 client that
//! sends exactly what it is given, `H2Client` the same for HTTP/2. `prompts` makes bodies, `wait` holds the
//! only polling loop.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

pub mod client;
pub mod descriptors;
pub mod fixtures;
pub mod h2_client;
pub mod log;
pub mod metrics_page;
pub mod prompts;
pub mod router;
pub mod script;
pub mod setup;
pub mod stub;
pub mod tls;
pub mod upload;
pub mod wait;
pub mod wire;

pub use client::{Client, Response, exchange, get, post, post_with};
pub use h2_client::H2Client;
pub use metrics_page::{Load, Metrics};
pub use router::Router;
pub use script::{Answer, Reading, Signal, Step};
pub use setup::Setup;
pub use stub::Stub;
pub use wait::{DEADLINE, until, within};
