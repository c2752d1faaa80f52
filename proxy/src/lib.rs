//! The proxy: sockets, clocks and metrics around the picker.
//!
//! The folders read as the path of a request: [`mod@serve`] binds the listeners, `accept` takes connections, `request` reads a body whole, decides,
//! forwards the original bytes and streams the answer back; `endpoints` is the fleet and what its engines last said;
//! `upstream` is one HTTP/1.1 exchange with an engine; `tls` is what both sides' TLS needs; `learn` is what answers teach; `admin` is what operators see.

mod accept;
mod admin;
mod bounded;
mod carrier;
mod client;
mod clock;
mod decision_log;
mod descriptors;
mod drain;
mod edge;
mod endpoints;
/// What `tests/fuzz` feeds with hostile bytes; in nothing that serves.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[path = "../../tests/fuzz/oracles/inside/mod.rs"]
pub mod fuzz;
mod learn;
mod lines;
mod listen;
mod live;
mod memory;
mod metrics;
mod notify;
mod pool;
mod pools;
pub mod reload;
mod request;
mod room;
mod router;
pub mod serve;
mod tls;
pub mod upgrade;
mod upstream;

#[cfg(feature = "lab")]
pub mod lab;
