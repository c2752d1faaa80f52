//! Wrong configurations, each beside the exact text of all its faults.
//!
//! `fixtures/wrong/*.txt`: a file, `----`, its faults; the next file after `====`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod given;

use config::Flags;
use given::{Given, file, with_flags};

const TABLES: [(&str, &str); 9] = [
    ("structure", include_str!("fixtures/wrong/structure.txt")),
    ("values", include_str!("fixtures/wrong/values.txt")),
    ("weights", include_str!("fixtures/wrong/weights.txt")),
    ("endpoints", include_str!("fixtures/wrong/endpoints.txt")),
    ("pools", include_str!("fixtures/wrong/pools.txt")),
    ("discovery", include_str!("fixtures/wrong/discovery.txt")),
    ("listeners", include_str!("fixtures/wrong/listeners.txt")),
    ("edge", include_str!("fixtures/wrong/edge.txt")),
    ("several", include_str!("fixtures/wrong/several.txt")),
];
/// What no fault may repeat: the secrets of the tables and of what lies beside them.
const SECRETS: [&str; 6] = ["secret@", "key=secret", "sk-", "plain-text-key", "sixteen bytes", "PRIVATE"];

#[test]
fn wrong_files_are_told_with_every_fault_and_its_place() {
    let mut rows = 0;
    for (table, text) in TABLES {
        for row in text.split("====\n") {
            let (written, faults) = row.split_once("----\n").unwrap_or_else(|| panic!("{table}: {row}"));
            assert_eq!(
                file(written).expect_err(written),
                faults.trim_end_matches('\n'),
                "{table}: {written}"
            );
            let told = SECRETS.iter().find(|secret| faults.contains(**secret));
            assert_eq!(told, None, "{table}: {written}");
            rows += 1;
        }
    }
    assert!(rows > 200, "{rows}");
}

#[test]
fn faults_of_a_scheduler_configuration_come_with_the_others() {
    let given = Given::all().file("epp.yaml", "kind: EndpointPickerConfig\nplugins: 3\n");
    let text = "pools: [{scheduler: epp.yaml, policy: prefix}]\nwatch: maybe\n";
    let faults = config::load(Some(("f", text)), &Flags::default(), &given).unwrap_err().to_string();
    let lines: Vec<&str> = faults.lines().collect();
    assert_eq!(lines[0], "f:1:21: pools[0].scheduler: found it beside policy, wanted one of the two");
    assert_eq!(lines[1], "f:2:8: watch: found \"maybe\", wanted true or false");
    assert!(lines[2..].iter().all(|line| line.starts_with("epp.yaml:")) && lines.len() > 2, "{faults}");
}

#[test]
fn an_empty_file_is_a_fault() {
    assert_eq!(file("").unwrap_err(), "f: found an empty file, wanted a configuration");
}

#[test]
fn lists_are_bounded() {
    let many = |count: usize, row: fn(usize) -> String| (0..count).map(row).collect::<String>();
    for (shows, text, fault) in [
        (
            "endpoints",
            format!(
                "pools:\n- endpoints:\n{}",
                many(1025, |number| format!(
                    "  - url: {}\n",
                    if number < 1024 { format!("http://a{number}") } else { "not read".to_owned() }
                ))
            ),
            "f:3:5: pools[0].endpoints: found 1025, wanted at most 1024 of them",
        ),
        (
            "pools",
            format!("pools:\n{}", many(65, |number| format!("- {{name: a{number}, models: [m{number}]}}\n"))),
            "f:2:3: pools: found 65, wanted 1 to 64 of them",
        ),
        (
            "aliases",
            format!("pools:\n- aliases:\n{}", many(257, |number| format!("    a{number}: m\n"))),
            "f:3:5: pools[0].aliases: found 257, wanted at most 256 of them",
        ),
        (
            "tenants",
            format!(
                "tenants:\n{}",
                many(1025, |number| format!("- {{name: a{number}, keys: ['sha256:{number:064}']}}\n"))
            ),
            "f:2:3: tenants: found 1025, wanted at most 1024 of them",
        ),
    ] {
        assert_eq!(file(&text).unwrap_err(), fault, "{shows}");
    }
}

#[test]
fn a_file_of_faults_tells_the_first_of_them() {
    let text: String = (0..10_000).map(|number| format!("key{number}: 1\n")).collect();
    let faults = file(&text).unwrap_err();
    assert_eq!(faults.lines().count(), 256);
    assert!(faults.starts_with("f:1:1: key0: found an unknown key"), "{faults}");
    assert!(faults.ends_with("f:256:1: found 256 faults or more, wanted none"), "{faults}");
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn wrong_flags_are_told_with_their_name() {
    let endpoints = |texts: &[&str]| Flags { endpoints: strings(texts), ..Flags::default() };
    for (given, fault) in [
        (
            endpoints(&["http://user:secret=@a"]),
            "--endpoint: found no name, wanted NAME=URL, such as a=http://127.0.0.1:8001",
        ),
        (endpoints(&["a"]), "--endpoint: found no name, wanted NAME=URL, such as a=http://127.0.0.1:8001"),
        (endpoints(&["=http://a"]), "--endpoint: found \"\", wanted 1 to 63 characters of A-Z a-z 0-9 . _ -"),
        (endpoints(&["a=http:///v1"]), "--endpoint: a: found \"http:///v1\", wanted http[s]://HOST[:PORT]"),
        (
            endpoints(&["a=http://u:secret@b"]),
            "--endpoint: a: found a URL with a user, wanted http[s]://HOST[:PORT]",
        ),
        (endpoints(&["a=http://a", "a=http://b"]), "--endpoint: a: found \"a\", wanted each name once"),
        (
            endpoints(&["a=http://a", "b=http://a"]),
            "--endpoint: b: found http://a of endpoint b, which is endpoint a's, wanted each address once",
        ),
        (
            Flags { policy: Some("best".to_owned()), ..Flags::default() },
            "--policy: found \"best\", wanted prefix, prefix-only, least-queue, round-robin, random, sticky, guarded, affinity or expected-ttft",
        ),
        (Flags { listen: Some("x".to_owned()), ..Flags::default() }, "--listen: found \"x\", wanted IP:PORT"),
        (Flags { admin: Some("x".to_owned()), ..Flags::default() }, "--admin: found \"x\", wanted IP:PORT"),
        (
            Flags { listen: Some("0.0.0.0:1".to_owned()), port: Some(1), ..Flags::default() },
            "--port: found --listen too, wanted one of the two",
        ),
        (
            Flags { port: Some(9090), ..Flags::default() },
            "--port: found 127.0.0.1:9090, which the default admin takes, wanted an address of its own",
        ),
        (
            Flags {
                listen: Some("127.0.0.1:1".to_owned()),
                admin: Some("0.0.0.0:1".to_owned()),
                ..Flags::default()
            },
            "--admin: found 0.0.0.0:1, which --listen takes, wanted an address of its own",
        ),
    ] {
        let told = config::load(None, &given, &Given::default()).unwrap_err().to_string();
        assert_eq!(told, fault, "{given:?}");
    }
}

#[test]
fn wrong_files_under_flags_are_told() {
    let policy = |name: &str| Flags { policy: Some(name.to_owned()), ..Flags::default() };
    let two = "pools:\n- {name: a, models: [x]}\n- {name: b}\n";
    for (shows, text, given, faults) in [
        (
            "the flag's policy has no weights",
            "pools: [{weights: {kv: 1}}]",
            policy("random"),
            "f:1:19: pools[0].weights: found weights for random, wanted them for prefix, prefix-only or affinity",
        ),
        (
            "flags are for the only pool",
            two,
            Flags { endpoints: strings(&["a=http://a"]), ..policy("random") },
            "--endpoint: found 2 pools, wanted one\n--policy: found 2 pools, wanted one",
        ),
        (
            "text that is no YAML does not hide a flag",
            "drain: 'x",
            policy("best"),
            "f:1:8: found no YAML (unclosed quote), wanted YAML\n--policy: found \"best\", wanted prefix, prefix-only, \
             least-queue, round-robin, random, sticky, guarded, affinity or expected-ttft",
        ),
    ] {
        assert_eq!(with_flags(text, &given).unwrap_err(), faults, "{shows}");
    }
}
