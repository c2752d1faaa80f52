//! A configuration is checked where its secrets and certificates are not: nothing of them is asked for, all else is told.
#![allow(clippy::unwrap_used, clippy::panic)]

mod given;

use std::path::Path;

use config::{Flags, Outside, WithoutSecrets, check_without_secrets};
use given::{EVERY_KEY, Given, LISTED};

const EDGE: &str = include_str!("../../deploy/examples/edge.yaml");

/// A machine that may not be asked, but for a list of endpoints.
struct Forbidden;

impl Outside for Forbidden {
    fn variable(&self, name: &str) -> Result<String, String> {
        panic!("asked for the variable {name}")
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        assert_eq!(path, Path::new("endpoints.yaml"), "asked for another file");
        Ok(LISTED.into())
    }
}

fn checked(text: &str, outside: &dyn Outside) -> Result<WithoutSecrets, String> {
    check_without_secrets(("f", text), &Flags::default(), outside).map_err(|faults| faults.to_string())
}

#[test]
fn nothing_is_asked_for_and_all_is_counted() {
    for (shows, text, unread) in [
        ("four of two certificates, two of engines, three of tenants, one of salts", EDGE, 10),
        ("a file without any", "drain: 1s", 0),
        ("a hash is none", &hashed(), 0),
        ("nor is a header in plain text", &header("X-Team: chat"), 0),
        ("a header that is", &header("X-Team: \"${TEAM}\""), 1),
        ("authorities", "pools: [{tls: {ca: a.crt}}]", 1),
    ] {
        assert_eq!(checked(text, &Forbidden).map(|checked| checked.unread), Ok(unread), "{shows}");
    }
}

fn hashed() -> String {
    format!("tenants: [{{name: a, keys: [\"sha256:{}\"]}}]", "0".repeat(64))
}

fn header(line: &str) -> String {
    format!("pools: [{{endpoints: [{{url: http://h, headers: {{{line}}}}}]}}]")
}

#[test]
fn what_holds_is_the_same_as_with_them() {
    for text in [EDGE, EVERY_KEY] {
        let loaded = given::with_flags(text, &Flags::default()).unwrap();
        assert_eq!(checked(text, &Forbidden).unwrap().settings, loaded.settings);
    }
}

#[test]
fn all_else_is_told() {
    for (shows, text, fault) in [
        ("an unknown key", "cache_salt_secret: ${A}\nsped: 1", "f:2:1: sped: "),
        ("a secret in plain text", "cache_salt_secret: hunter2", "f:1:20: cache_salt_secret: "),
        ("a certificate without its key", "pools: [{tls: {cert: a.crt}}]", "pools[0].tls.key: found nothing"),
        ("no key", "tenants: [{name: a}]", "tenants[0].keys: "),
        ("isolation without a secret", "tenants: [{name: a, keys: [\"${A}\"], isolate: true}]", "isolate: "),
        (
            "a key in two ways",
            "pools: [{endpoints: [{url: http://h, key: \"${A}\", headers: {authorization: \"${B}\"}}]}]",
            "headers.authorization: found it beside key",
        ),
        (
            "h2c beside TLS",
            "listeners: [{address: \"1.1.1.1:1\", protocol: h2c, tls: {certificates: [{cert: a, key: \"${A}\"}]}}]",
            "found h2c beside tls",
        ),
        ("a header that cannot be", &header("X-Team: \"a\\nb\""), "no header can carry"),
    ] {
        let faults = checked(text, &Forbidden).unwrap_err();
        assert!(faults.contains(fault) && faults.lines().count() == 1, "{shows}: {faults}");
    }
}

#[test]
fn a_schedulers_file_is_no_secret() {
    let text = "pools: [{scheduler: epp.yaml}]";
    let given = Given::default().file("epp.yaml", include_str!("../../deploy/examples/llm-d/default.yaml"));
    assert_eq!(checked(text, &given).map(|checked| checked.unread), Ok(0));
    assert!(checked(text, &Given::default()).unwrap_err().contains("pools[0].scheduler: found No such file"));
}
