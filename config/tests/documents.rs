//! What operators are given is what the loader reads: the schema, the table of keys, the examples.
//!
//! `UPDATE=1 cargo test -p prefixroute-config --test documents` writes the schema and the table anew.
#![allow(clippy::unwrap_used, clippy::panic)]

mod given;

use std::path::{Path, PathBuf};

use config::tree::{Node, Scalar, Value, document};
use config::{Flags, load};
use given::{EVERY_KEY, Given};
use jsonschema::Validator;
use serde_json::json;

const TABLE_BEGINS: &str = "<!-- keys: written by a test, see config/tests/documents.rs -->\n";
const TABLE_ENDS: &str = "<!-- end of keys -->\n";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy")
}

/// Holds a file against what it should be, or makes it so.
fn same(path: &Path, wanted: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == wanted, "{} is old: run with UPDATE=1", path.display());
}

#[test]
fn the_schema_is_the_loaders() {
    same(&deploy().join("prefixroute.schema.json"), &config::schema());
}

#[test]
fn the_table_of_keys_is_the_loaders() {
    let path = deploy().join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(TABLE_BEGINS).unwrap();
    let (_, after) = rest.split_once(TABLE_ENDS).unwrap();
    same(&path, &format!("{before}{TABLE_BEGINS}\n{}\n{TABLE_ENDS}{after}", config::key_table()));
}

#[test]
fn few_keys_need_a_restart() {
    let keys = [
        "listeners",
        "listeners[].address",
        "listeners[].protocol",
        "listeners[].tls",
        "admin",
        "limits.bodies_bytes_max",
        "traces",
        "upgrade_socket",
    ];
    assert_eq!(config::restart_keys(), keys);
}

/// Name and text of each example.
fn examples() -> Vec<(String, String)> {
    files(&deploy().join("examples"))
}

fn files(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    entries.filter(|path| path.is_file()).map(read).collect()
}

#[test]
fn every_example_loads_and_says_what_it_is_for() {
    let mut names = Vec::new();
    for (name, text) in examples() {
        let loaded = load(Some((&name, &text)), &Flags::default(), &Given::all());
        let config = loaded.map_err(|faults| panic!("{faults}")).unwrap().config;
        assert!(config.pools.iter().all(|pool| !pool.endpoints.is_empty()), "{name}");
        assert!(text.starts_with("# "), "{name}");
        assert!(text.contains("# yaml-language-server: $schema=../prefixroute.schema.json\n"), "{name}");
        assert!(text.lines().count() < 60, "{name} is no longer short");
        names.push(name);
    }
    names.sort();
    let all = [
        "benchmarking.yaml",
        "edge.yaml",
        "engines-with-tls.yaml",
        "production.yaml",
        "replace-a-service.yaml",
        "several-models.yaml",
    ];
    assert_eq!(names, all);
}

#[test]
fn every_example_of_llm_d_loads_as_it_is() {
    let files = files(&deploy().join("examples/llm-d"));
    assert!(files.len() > 1);
    for (name, text) in files {
        let loaded = load(Some((&name, &text)), &Flags::default(), &Given::all());
        assert!(loaded.is_ok(), "{name}: {loaded:?}");
    }
}

/// As a reader of YAML 1.2 that knows no configuration would have it.
fn plain(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Scalar(Scalar { text, plain: true }) => match serde_json::from_str(text) {
            Ok(value @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_))) => value,
            _ if node.is_nothing() => serde_json::Value::Null,
            _ => text.as_str().into(),
        },
        Value::Scalar(Scalar { text, .. }) => text.as_str().into(),
        Value::List(items) => items.iter().map(plain).collect(),
        Value::Map(map) => map.0.iter().map(|entry| (entry.key.clone(), plain(&entry.node))).collect(),
        Value::Told => panic!("a fault"),
    }
}

fn validator() -> Validator {
    let schema: serde_json::Value = serde_json::from_str(&config::schema()).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

fn tree(text: &str) -> serde_json::Value {
    plain(&document("f", text).unwrap().0.unwrap())
}

#[test]
fn the_schema_takes_what_the_loader_takes() {
    let validator = validator();
    let examples = examples().into_iter().chain([("every key".to_owned(), EVERY_KEY.to_owned())]);
    for (name, text) in examples {
        let faults: Vec<String> = validator
            .iter_errors(&tree(&text))
            .map(|error| format!("{} {error}", error.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{name}: {faults:?}");
    }
}

#[test]
fn the_schema_refuses_what_editors_can_see() {
    let validator = validator();
    for (shows, text) in [
        ("an unknown key", "seed: 1"),
        ("an unknown key below", "pools: [{load: {interval: 1s}}]"),
        ("a missing key", "listeners: [{protocol: h2c}]"),
        ("no name of a few", "pools: [{policy: fastest}]"),
        ("no duration", "drain: 5"),
        ("no size", "limits: {body_bytes_max: 4MB}"),
        ("out of range", "pools: [{retry: {attempts_max: 11}}]"),
        ("no truth", "watch: yes"),
        ("no list", "paths: /v1/*"),
        ("too short a list", "listeners: []"),
        ("a secret in plain text", "cache_salt_secret: hunter2"),
        ("a key in plain text", "tenants: [{name: a, keys: [hunter2]}]"),
        ("no word and no duration", "pools: [{models_interval: never}]"),
        ("no weight", "pools: [{weights: {kv: -1}}]"),
        ("no address", "admin: localhost:9090"),
        ("no origin", "cors: {origins: [app.example]}"),
        ("no port", "pools: [{discovery: {dns: vllm.default.svc}}]"),
    ] {
        assert!(!validator.is_valid(&tree(text)), "{shows}");
        assert!(given::file(text).is_err(), "{shows}");
    }
    assert!(validator.is_valid(&json!({})));
}
