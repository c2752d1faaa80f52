//! Oracles for what only the proxy itself sees; its library includes this folder where it is fuzzed or tested.
#![allow(missing_docs, clippy::panic, reason = "a panic is what an oracle says no with")]

#[cfg(test)]
#[path = "../corpus.rs"]
mod corpus;
pub mod edge;
pub mod edits;
#[path = "../json.rs"]
mod json;
pub mod models;
pub mod prometheus;
pub mod usage;

/// Every input of the corpora and every one that once found something.
#[cfg(test)]
#[test]
fn the_corpora_hold() {
    corpus::replay("edge", edge::run);
    corpus::replay("edits", edits::run);
    corpus::replay("models", models::run);
    corpus::replay("prometheus", prometheus::run);
    corpus::replay("usage", usage::run);
}
