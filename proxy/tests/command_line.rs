//! The command line as it is built. That this file exists also makes `cargo test` build the binary that the suites in
//! `tests/` drive.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prefixroute")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn it_tells_its_version() {
    let output = run(&["--version"]);
    assert_eq!(text(&output.stdout).trim(), concat!("prefixroute ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_has_an_example() {
    for command in ["serve", "check", "demo", "fake-server"] {
        let output = run(&[command, "--help"]);
        assert!(text(&output.stdout).contains(&format!("prefixroute {command} ")), "{command}");
    }
}

#[test]
fn a_good_file_passes_and_a_bad_one_is_named_with_its_line() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let example = format!("{folder}/../deploy/examples/replace-a-service.yaml");
    assert!(run(&["check", &example]).status.success());
    let bad = format!("{folder}/tests/fixtures/typo.yaml");
    let output = run(&["check", &bad]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("typo.yaml:2:1"), "{}", text(&output.stderr));
}

#[test]
fn what_holds_is_explained_with_origins() {
    let example = format!("{}/../deploy/examples/replace-a-service.yaml", env!("CARGO_MANIFEST_DIR"));
    let output = run(&["check", "--explain", &example]);
    assert!(output.status.success());
    let told = text(&output.stdout);
    for (value, origin) in [("drain: 30s", "yaml:16:8"), ("pools[0].policy: expected-ttft", "# default")] {
        let line = told.lines().find(|line| line.starts_with(value));
        assert!(line.is_some_and(|line| line.ends_with(origin)), "{value} {origin}: {told}");
    }
}

#[test]
fn the_schema_is_printed() {
    let output = run(&["check", "--schema"]);
    assert_eq!(text(&output.stdout), include_str!("../../deploy/prefixroute.schema.json"));
    assert_eq!(run(&["check"]).status.code(), Some(2), "nothing to check");
}

#[test]
fn an_unknown_command_is_a_usage_error() {
    assert_eq!(run(&["serv"]).status.code(), Some(2));
}
