//! The shape of the repository, held by a test: arrows between crates, the top level, file heads and sizes.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything that may lie at the top of the repository; `.git`, `.github` and other dot files aside.
const TOP_LEVEL: [&str; 13] = [
    "Cargo.toml",
    "Cargo.lock",
    "proxy",
    "picker",
    "config",
    "bench",
    "deploy",
    "tests",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LICENSE",
    "target",
];
/// Tool configuration that has to lie at the top.
const TOP_LEVEL_TOOLS: [&str; 3] = ["rustfmt.toml", "deny.toml", "clippy.toml"];

/// Dependencies on our own crates, normal ones; tests may use all.
const ARROWS: [(&str, &[&str]); 5] = [
    ("prefixroute-picker", &[]),
    ("prefixroute-config", &["prefixroute-picker"]),
    ("prefixroute-bench", &["prefixroute-picker"]),
    ("prefixroute", &["prefixroute-picker", "prefixroute-config", "prefixroute-bench"]),
    ("prefixroute-tests", &["prefixroute", "prefixroute-picker", "prefixroute-config", "prefixroute-bench"]),
];
/// What pure crates must not know.
const FORBIDDEN: [(&str, &[&str]); 2] = [
    ("prefixroute-picker", &["tokio", "pingora", "tracing", "log", "metrics", "hyper", "reqwest", "axum"]),
    ("prefixroute-config", &["tokio", "pingora"]),
];

const CODE_LINES_MAX: usize = 400;
/// Files over the limit, each with the reason why it is one idea.
const LONG_FILES: [(&str, &str); 0] = [];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn packages() -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Names of a package's dependencies that end up in what it builds; dev-dependencies aside.
fn dependencies(packages: &[Value], name: &str) -> BTreeSet<String> {
    let package =
        packages.iter().find(|package| package["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    let built_in = package["dependencies"].as_array().unwrap().iter().filter(|one| one["kind"] != "dev");
    built_in.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// Rust sources of the workspace, by their path from its root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for member in ["proxy", "picker", "config", "bench", "tests"] {
        collect(&root().join(member), &mut found);
    }
    assert!(found.len() > 10, "only {} sources", found.len());
    found.sort();
    found
}

fn collect(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("target") {
            continue; // what a build left
        }
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn dependencies_between_crates_go_one_way() {
    let packages = packages();
    for (name, allowed) in ARROWS {
        let ours = dependencies(&packages, name).into_iter().filter(|one| one.starts_with("prefixroute"));
        let stray: Vec<_> = ours.filter(|one| !allowed.contains(&one.as_str())).collect();
        assert!(stray.is_empty(), "{name} depends on {stray:?}");
    }
}

#[test]
fn pure_crates_know_no_sockets_and_no_logs() {
    let packages = packages();
    for (name, forbidden) in FORBIDDEN {
        let found: Vec<_> = dependencies(&packages, name)
            .into_iter()
            .filter(|one| forbidden.iter().any(|word| one == word || one.starts_with(&format!("{word}-"))))
            .collect();
        assert!(found.is_empty(), "{name} depends on {found:?}");
    }
}

#[test]
fn the_laboratory_is_optional_in_the_proxy() {
    let packages = packages();
    let proxy = packages.iter().find(|package| package["name"] == "prefixroute").unwrap();
    let bench =
        proxy["dependencies"].as_array().unwrap().iter().find(|one| one["name"] == "prefixroute-bench");
    assert_eq!(bench.unwrap()["optional"], true);
}

#[test]
fn the_top_level_is_the_fixed_list() {
    let entries = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.to_string_lossy().into_owned()).filter(|name| !name.starts_with('.'));
    let known =
        |name: &String| TOP_LEVEL.contains(&name.as_str()) || TOP_LEVEL_TOOLS.contains(&name.as_str());
    let stray: Vec<_> = names.filter(|name| !known(name)).collect();
    assert!(stray.is_empty(), "{stray:?}");
    for needed in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "deploy", ".ci"] {
        assert!(root().join(needed).exists(), "{needed} is missing");
    }
}

#[test]
fn every_file_opens_with_why_it_exists() {
    let silent: Vec<_> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//! ")).map(|(name, _)| name).collect();
    assert!(silent.is_empty(), "{silent:?}");
}

/// Code lines: neither blank nor comment, and unit tests (last in a file) aside.
fn code_lines(text: &str) -> usize {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[test]
fn files_are_short_or_listed_with_a_reason() {
    let listed = |name: &str| LONG_FILES.iter().any(|(file, reason)| *file == name && !reason.is_empty());
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(name, text)| (code_lines(&text), name))
        .filter(|(lines, name)| *lines > CODE_LINES_MAX && !listed(name))
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn metric_names_are_in_one_file() {
    // In two halves, lest this file be found.
    let literal = concat!("\"prefix", "route_");
    let strays: Vec<_> = sources()
        .into_iter()
        .filter(|(name, text)| {
            text.contains(literal) && !name.starts_with("proxy/src/metrics/") && !name.starts_with("tests/")
        })
        .map(|(name, _)| name)
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
}

#[test]
fn tests_never_wait_by_the_clock() {
    let literal = concat!("sle", "ep(");
    let allowed = ["tests/harness/wait.rs", "tests/harness/stub.rs"];
    let strays: Vec<_> = sources()
        .into_iter()
        .filter(|(name, text)| {
            name.starts_with("tests/") && text.contains(literal) && !allowed.contains(&name.as_str())
        })
        .map(|(name, _)| name)
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
}

#[test]
fn lints_of_the_workspace_hold_everywhere() {
    for member in ["proxy", "picker", "config", "bench", "tests"] {
        let manifest = std::fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{member}");
    }
}
