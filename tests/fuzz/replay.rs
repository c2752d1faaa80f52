//! The corpora against what crates of the workspace show to all; what only the proxy sees, its own tests replay.
#![allow(clippy::panic, reason = "a panic is what an oracle says no with")]

#[path = "oracles/body.rs"]
mod body;
#[path = "oracles/config.rs"]
mod configurations;
#[path = "oracles/corpus.rs"]
mod corpus;
#[path = "oracles/documents.rs"]
mod documents;
#[path = "oracles/json.rs"]
mod json;
#[path = "oracles/memo.rs"]
mod memo;
#[path = "oracles/yaml.rs"]
mod yaml;

#[test]
fn bodies_hold() {
    corpus::replay("body", body::run);
}

#[test]
fn known_beginnings_hold() {
    corpus::replay("memo", memo::run);
}

#[test]
fn configurations_hold() {
    corpus::replay("config", configurations::run);
}

#[test]
fn documents_hold() {
    corpus::replay("documents", documents::run);
}

#[test]
fn trees_hold() {
    corpus::replay("yaml", yaml::run);
}
