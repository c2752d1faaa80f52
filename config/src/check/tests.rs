//! What a file and flags become, and the exact text of every kind of fault.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Scorer, Weights};
use proptest::prelude::*;

use crate::{
    Config, Endpoint, EndpointName, EndpointUrl, Flags, Index, Limits, Listener, Load, Pool, Protocol,
};
use crate::{Timeouts, Tokenizer, defaults, load};

const EVERY_KEY: &str = include_str!("../../tests/fixtures/every_key.yaml");

fn file(text: &str) -> Result<Config, String> {
    load(Some(("f", text)), &Flags::default(), &System).map_err(|faults| faults.to_string())
}

fn flags(flags: &Flags) -> Result<Config, String> {
    load(None, flags, &System).map_err(|faults| faults.to_string())
}

fn endpoint(name: &str, url: &str) -> Endpoint {
    Endpoint { name: EndpointName::new(name).unwrap(), url: EndpointUrl::new(url).unwrap() }
}

fn listener(address: &str, protocol: Protocol) -> Listener {
    Listener { address: address.parse().unwrap(), protocol }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Those of the fixture: of the scorer at place n of the list, n + 1.
fn every_weight() -> Weights {
    let weights: Vec<_> = (1..).zip(Scorer::ALL).map(|(place, scorer)| (scorer, f64::from(place))).collect();
    Weights::new(&weights).unwrap()
}

#[test]
fn nothing_written_is_all_defaults() {
    let defaults = Config {
        listeners: vec![listener("127.0.0.1:8080", Protocol::Http1)],
        admin: "127.0.0.1:9090".parse().unwrap(),
        pool: Pool {
            policy: Policy::ExpectedTtft,
            weights: None,
            match_length: MatchLength::default(),
            seed: 0,
            endpoints: vec![],
            index: Index {
                tokenizer: Tokenizer::Bytes,
                block: BlockSize::new(64).unwrap(),
                capacity_blocks: 31_250,
            },
            load: Load {
                scrape_interval: Duration::from_millis(100),
                scrape_timeout: Duration::from_secs(1),
                stale_after: Duration::from_secs(2),
                page_bytes_max: 4 << 20,
            },
            timeouts: Timeouts {
                request_body: Duration::from_secs(60),
                connect: Duration::from_secs(1),
                first_byte: Duration::from_secs(1800),
                idle: Duration::from_secs(600),
                client_write: Duration::from_secs(60),
                upstream_idle: Duration::from_secs(3),
                keep_alive: Duration::from_secs(60),
            },
        },
        limits: Limits { body_bytes_max: 32 << 20, bodies_bytes_max: 1 << 30 },
        response_headers: true,
        drain: Duration::from_secs(30),
    };
    assert_eq!(flags(&Flags::default()).unwrap(), defaults);
    for text in ["", "\n", "# nothing\n", "---\n", "{}", "null", "\u{feff}", "load:\nseed:\nendpoints: ~\n"] {
        assert_eq!(file(text).unwrap(), defaults, "{text:?}");
    }
}

#[test]
fn every_key_is_read() {
    let wanted = Config {
        listeners: vec![listener("0.0.0.0:8000", Protocol::Http1), listener("[::1]:8443", Protocol::H2c)],
        admin: "127.0.0.1:9191".parse().unwrap(),
        pool: Pool {
            policy: Policy::PrefixOnly,
            weights: Some(every_weight()),
            match_length: MatchLength::new(0.25, 8192).unwrap(),
            seed: 7,
            endpoints: vec![
                endpoint("vllm-0", "http://127.0.0.1:8001"),
                endpoint("vllm-1", "http://[2001:db8::1]"),
            ],
            index: Index {
                tokenizer: Tokenizer::Words,
                block: BlockSize::new(32).unwrap(),
                capacity_blocks: 1000,
            },
            load: Load {
                scrape_interval: Duration::from_millis(250),
                scrape_timeout: Duration::from_secs(3),
                stale_after: Duration::from_secs(5),
                page_bytes_max: 64 << 10,
            },
            timeouts: Timeouts {
                request_body: Duration::from_secs(11),
                connect: Duration::from_millis(12),
                first_byte: Duration::from_secs(13 * 60),
                idle: Duration::from_secs(14 * 60),
                client_write: Duration::from_secs(15),
                upstream_idle: Duration::from_secs(4),
                keep_alive: Duration::from_secs(17),
            },
        },
        limits: Limits { body_bytes_max: 1 << 20, bodies_bytes_max: 2 << 30 },
        response_headers: false,
        drain: Duration::from_secs(3600),
    };
    assert_eq!(file(EVERY_KEY).unwrap(), wanted);
}

#[test]
fn the_words_tokenizer_brings_its_own_block() {
    assert_eq!(file("index: {tokenizer: words}").unwrap().pool.index.block, BlockSize::new(16).unwrap());
}

#[test]
fn flags_override_the_file() {
    let given = Flags {
        endpoints: strings(&["c=http://10.0.0.3:8000"]),
        policy: Some("affinity".to_owned()),
        listen: Some("0.0.0.0:80".to_owned()),
        admin: Some("[::1]:8443".to_owned()),
        port: None,
    };
    let config = load(Some(("f", EVERY_KEY)), &given, &System).unwrap();
    assert_eq!(config.pool.endpoints, [endpoint("c", "http://10.0.0.3:8000")]);
    assert_eq!(config.pool.policy, Policy::Affinity);
    assert_eq!(config.listeners, [listener("0.0.0.0:80", Protocol::Http1)]);
    assert_eq!(config.admin, "[::1]:8443".parse().unwrap(), "free, as the file's listeners are not bound");
    assert_eq!(config.pool.seed, 7, "the rest is the file's");
    let config = load(Some(("f", EVERY_KEY)), &Flags { port: Some(0), ..Flags::default() }, &System).unwrap();
    assert_eq!(config.listeners, [listener("127.0.0.1:0", Protocol::Http1)]);
}

#[test]
fn broken_structure_is_told_with_its_place() {
    const TOP: &str = "listeners, admin, policy, weights, match_length_weight, seed, response_headers, endpoints, index, load, limits, timeouts or drain";
    for (text, fault) in [
        ("a: 1\n", format!("f:1:1: a: found an unknown key, wanted {TOP}").as_str()),
        ("\"a\\nb\": 1\n", &format!("f:1:1: a\\nb: found an unknown key, wanted {TOP}")),
        (
            "index: {blok: 3}\n",
            "f:1:9: index.blok: found an unknown key, wanted tokenizer, block_tokens or capacity_blocks",
        ),
        (
            "listeners:\n - prot: x\n",
            "f:2:4: listeners[0].prot: found an unknown key, wanted address or protocol",
        ),
        ("seed: 1\nseed: 2\n", "f:2:1: found \"seed\", wanted each key once"),
        (
            "load:\n  stale_after: 2s\n  stale_after: 2s\n",
            "f:3:3: load: found \"stale_after\", wanted each key once",
        ),
        ("[]", "f:1:1: found another kind of value, wanted keys and values"),
        ("policy: [a]\n", "f:1:9: policy: found another kind of value, wanted a single value"),
        ("endpoints: a\n", "f:1:12: endpoints: found another kind of value, wanted a list"),
        ("endpoints: [3]\n", "f:1:13: endpoints[0]: found another kind of value, wanted keys and values"),
        ("seed: 1\n---\nseed: 2\n", "f:3:1: found a second document, wanted one"),
        ("<<: {seed: 1}\n", "f:1:1: merge key not allowed here"),
        ("seed: !x 3\n", "f:1:10: unsupported tag `!x`"),
        ("seed: *x\n", "f:1:7: reference to unknown value"),
        ("seed: 'x\n", "f:1:7: unclosed quote"),
    ] {
        assert_eq!(file(text).unwrap_err(), fault, "{text}");
    }
}

#[test]
fn wrong_values_are_told_with_their_place() {
    const DURATION: &str = "wanted a duration from 1ms to 24h, such as 100ms, 2s, 5m or 1h";
    const SIZE: &str = "wanted a size from 1B to 1024GiB, such as 4096, 64KiB or 4MiB";
    for (text, fault) in [
        (
            "policy: fastest\n",
            "f:1:9: policy: found \"fastest\", wanted prefix, prefix-only, least-queue, round-robin, random, sticky, guarded, affinity or expected-ttft",
        ),
        ("seed: -1\n", "f:1:7: seed: found \"-1\", wanted an integer from 0 to 18446744073709551615"),
        ("response_headers: yes\n", "f:1:19: response_headers: found \"yes\", wanted true or false"),
        ("admin: localhost:9090\n", "f:1:8: admin: found \"localhost:9090\", wanted IP:PORT"),
        (
            "drain: 25h\n",
            "f:1:8: drain: found \"25h\", wanted a duration from 0ms to 24h, such as 100ms, 2s, 5m or 1h",
        ),
        ("timeouts: {connect: 0s}\n", &format!("f:1:21: timeouts.connect: found \"0s\", {DURATION}")),
        ("timeouts: {idle: soon}\n", &format!("f:1:18: timeouts.idle: found \"soon\", {DURATION}")),
        ("limits: {body_bytes_max: 0}\n", &format!("f:1:26: limits.body_bytes_max: found \"0\", {SIZE}")),
        (
            "limits: {bodies_bytes_max: 1MiB}\n",
            "f:1:28: limits.bodies_bytes_max: found 1048576 bytes, wanted at least limits.body_bytes_max, 33554432 bytes",
        ),
        ("load: {page_bytes_max: 4MB}\n", &format!("f:1:24: load.page_bytes_max: found \"4MB\", {SIZE}")),
        (
            "load: {scrape_interval: 1ms}\n",
            "f:1:25: load.scrape_interval: found \"1ms\", wanted a duration from 10ms to 24h, such as 100ms, 2s, 5m or 1h",
        ),
        (
            "load: {scrape_interval: 15s, stale_after: 200ms}\n",
            "f:1:43: load.stale_after: found 200ms, wanted at least 30s, twice load.scrape_interval",
        ),
        (
            "load: {scrape_interval: 1001ms}\n",
            "f:1:25: load.stale_after: found 2s, wanted at least 2002ms, twice load.scrape_interval",
        ),
        ("index: {tokenizer: model}\n", "f:1:20: index.tokenizer: found \"model\", wanted bytes or words"),
        (
            "index: {block_tokens: 0}\n",
            "f:1:23: index.block_tokens: found \"0\", wanted an integer from 1 to 65536",
        ),
        (
            "index: {capacity_blocks: 0}\n",
            "f:1:26: index.capacity_blocks: found \"0\", wanted an integer from 1 to 67108863",
        ),
    ] {
        assert_eq!(file(text).unwrap_err(), fault, "{text}");
    }
}

#[test]
fn wrong_endpoints_are_told_with_their_place() {
    for (text, fault) in [
        ("endpoints: [{name: a}]\n", "f:1:13: endpoints[0].url: found nothing, wanted http://HOST[:PORT]"),
        ("endpoints: [{url: http://a}]\n", "f:1:13: endpoints[0].name: found nothing, wanted a name"),
        (
            "endpoints: [{name: a b, url: http://a}]\n",
            "f:1:20: endpoints[0].name: found \"a b\", wanted 1 to 63 characters of A-Z a-z 0-9 . _ -",
        ),
        (
            "endpoints: [{name: a, url: https://a}]\n",
            "f:1:28: endpoints[0].url: found \"https://a\", wanted http://HOST[:PORT]",
        ),
        (
            "endpoints:\n- {name: a, url: http://a}\n- {name: a, url: http://b}\n",
            "f:3:10: endpoints[1].name: found \"a\", wanted each name once",
        ),
        (
            "endpoints:\n- {name: a, url: http://a}\n- {name: b, url: \"http://A:80/\"}\n",
            "f:3:18: endpoints[1].url: found http://a of endpoint b, which is endpoint a's, wanted each address once",
        ),
    ] {
        assert_eq!(file(text).unwrap_err(), fault, "{text}");
    }
    let many: String = (0..=defaults::ENDPOINTS_MAX)
        .map(|number| format!("- {{name: a{number}, url: http://a{number}}}\n"))
        .collect();
    let faults = file(&format!("endpoints:\n{many}")).unwrap_err();
    assert_eq!(faults, "f:2:3: endpoints: found 1025, wanted at most 1024 of them");
}

#[test]
fn wrong_listeners_are_told_with_their_place() {
    for (text, fault) in [
        ("listeners: []\n", "f:1:12: listeners: found 0, wanted 1 to 16 of them"),
        ("listeners: [{protocol: h2c}]\n", "f:1:13: listeners[0].address: found nothing, wanted IP:PORT"),
        ("listeners: [{address: 80}]\n", "f:1:23: listeners[0].address: found \"80\", wanted IP:PORT"),
        (
            "listeners: [{address: '0.0.0.0:1', protocol: h3}]\n",
            "f:1:46: listeners[0].protocol: found \"h3\", wanted http1 or h2c",
        ),
        (
            "listeners: [{address: '127.0.0.1:1'}, {address: '127.0.0.1:1', protocol: h2c}]\n",
            "f:1:49: listeners[1].address: found 127.0.0.1:1, which listeners[0].address takes, wanted an address of its own",
        ),
        (
            "listeners: [{address: '127.0.0.1:1'}, {address: '0.0.0.0:1'}]\n",
            "f:1:49: listeners[1].address: found 0.0.0.0:1, which listeners[0].address takes, wanted an address of its own",
        ),
        (
            "listeners: [{address: '0.0.0.0:9090'}]\n",
            "f:1:23: listeners[0].address: found 0.0.0.0:9090, which the default admin takes, wanted an address of its own",
        ),
        (
            "admin: 127.0.0.1:8080\n",
            "f:1:8: admin: found 127.0.0.1:8080, which the default listener takes, wanted an address of its own",
        ),
    ] {
        assert_eq!(file(text).unwrap_err(), fault, "{text}");
    }
    for text in [
        "{listeners: [{address: '127.0.0.1:0'}], admin: '127.0.0.1:0'}",
        "{listeners: [{address: '[::1]:9090'}]}",
        "{listeners: [{address: '0.0.0.0:9091'}], admin: '[::1]:9091'}",
        "{listeners: [{address: '127.0.0.2:9090'}]}",
    ] {
        assert!(file(text).is_ok(), "{text}");
    }
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
        (endpoints(&["a=http:///v1"]), "--endpoint: a: found \"http:///v1\", wanted http://HOST[:PORT]"),
        (
            endpoints(&["a=http://u:secret@b"]),
            "--endpoint: a: found a URL with a user, wanted http://HOST[:PORT]",
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
    ] {
        assert_eq!(flags(&given).unwrap_err(), fault, "{given:?}");
    }
}

#[test]
fn all_faults_come_at_once_and_a_broken_file_does_not_hide_those_of_flags() {
    let given = Flags { policy: Some("best".to_owned()), ..Flags::default() };
    let text = "seed: x\ndrain: x\nendpoints: [{name: '', url: x}]\nload: {stale_after: 0s}\n";
    let faults = load(Some(("f", text)), &given, &System).unwrap_err();
    assert_eq!(faults.iter().count(), 6, "{faults}");
    assert_eq!(faults.to_string().lines().count(), 6, "{faults}");
    let faults = load(Some(("f", "x")), &given, &System).unwrap_err();
    assert_eq!(faults.iter().count(), 2, "{faults}");
}

#[test]
fn hostile_files_are_faults_and_cheap() {
    let aliases =
        |level: usize| format!("a{level}: &a{level} [{}]\n", format!("*a{}, ", level - 1).repeat(10));
    let bomb: String = (1..9).map(aliases).collect();
    let replayed = format!("endpoints: [&e {{name: a, url: u}}{}]\n", ", *e".repeat(20_000));
    for text in [
        "[".repeat(500_000),
        "{a: ".repeat(200_000),
        "- ".repeat(500_000),
        "? ".repeat(500_000),
        format!("seed: {}", "[".repeat(500_000)),
        format!("seed: &a0 [x]\n{bomb}"),
        replayed,
        "---\n".repeat(200_000),
        " ".repeat(defaults::FILE_BYTES_MAX + 1),
        "\0".to_owned(),
    ] {
        let start: String = text.chars().take(20).collect();
        let faults = file(&text).map(|_| ()).expect_err(&start);
        assert!(faults.len() < 1000, "{start}: {faults}");
    }
}

/// Text that is often YAML: fragments of it, joined at random.
fn yaml_like() -> impl Strategy<Value = String> {
    let lines: Vec<&str> = EVERY_KEY.lines().collect();
    let odd = vec![
        "- ", ": ", "{", "}", "[", "]", "&a ", "*a", "'", "\"", "|\n", "---\n", "\t", "!!int ", "<<: ", "é",
        "0", "~",
    ];
    let piece = prop_oneof![
        4 => prop::sample::select(lines).prop_map(|line| format!("{line}\n")),
        1 => prop::sample::select(odd).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// Any text and any flags are a configuration or faults, each on a line of its own.
    #[test]
    fn no_text_panics(text in prop_oneof![yaml_like(), any::<String>()], flag in any::<String>()) {
        let given = Flags {
            endpoints: vec![flag.clone()],
            policy: Some(flag.clone()),
            listen: Some(flag.clone()),
            admin: Some(flag),
            port: None,
        };
        if let Err(faults) = load(Some(("f", &text)), &given, &System) {
            prop_assert_eq!(faults.to_string().lines().count(), faults.iter().count());
        }
    }
}
