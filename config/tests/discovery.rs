//! Endpoints of a further file, as llm-d's `file-discovery` has them, and of a name.
#![allow(clippy::unwrap_used, clippy::panic)]

mod given;

use std::path::PathBuf;
use std::time::Duration;

use config::{Dns, Flags, Loaded, load};
use given::Given;
use given::values::endpoint;

const FILE: &str = "pools: [{discovery: {file: e.yaml}}]";

fn listed(text: &str) -> Result<Loaded, String> {
    with_flags(text, &Flags::default())
}

fn with_flags(listed: &str, flags: &Flags) -> Result<Loaded, String> {
    let given = Given::default().file("e.yaml", listed);
    load(Some(("f", FILE)), flags, &given).map_err(|faults| faults.to_string())
}

#[test]
fn a_file_lists_endpoints() {
    for (shows, text, expected) in [
        ("nothing", "{}", vec![]),
        ("no list", "endpoints:\n", vec![]),
        ("an empty list", "endpoints: []", vec![]),
        (
            "a text for a port",
            "endpoints: [{name: a, address: 1.1.1.1, port: '80'}]",
            vec![("a", "http://1.1.1.1")],
        ),
        (
            "a number",
            "endpoints: [{name: a, address: 1.1.1.1, port: 8000}]",
            vec![("a", "http://1.1.1.1:8000")],
        ),
        (
            "a host",
            "endpoints: [{name: a, address: Vllm-0.vllm, port: 1}]",
            vec![("a", "http://vllm-0.vllm:1")],
        ),
        ("brackets", "endpoints: [{name: a, address: '[::1]', port: 1}]", vec![("a", "http://[::1]:1")]),
        (
            "JSON, in order",
            r#"{"endpoints": [{"name": "b", "namespace": "n", "address": "::1", "port": "8000", "labels": {"x": "y"}},
                {"name": "a", "address": "::2", "port": "8000", "labels": {}}]}"#,
            vec![("b", "http://[::1]:8000"), ("a", "http://[::2]:8000")],
        ),
    ] {
        let loaded = listed(text).unwrap_or_else(|faults| panic!("{shows}: {faults}"));
        let expected: Vec<_> = expected.into_iter().map(|(name, url)| endpoint(name, url)).collect();
        assert_eq!(loaded.config.pools[0].endpoints, expected, "{shows}");
        assert_eq!(loaded.config.pools[0].dns, None, "{shows}");
        assert_eq!(loaded.files, [PathBuf::from("e.yaml")], "{shows}");
    }
}

#[test]
fn what_is_wrong_in_it_is_told_with_its_name() {
    for (text, faults) in [
        ("", "e.yaml: found an empty file, wanted a configuration"),
        ("[]", "e.yaml:1:1: found a list, wanted keys and values"),
        ("endpoints: 'x", "e.yaml:1:12: found no YAML (unclosed quote), wanted YAML"),
        ("endpoints: {}", "e.yaml:1:12: endpoints: found keys and values, wanted a list"),
        ("endpoint: []", "e.yaml:1:1: endpoint: found an unknown key, wanted endpoints"),
        (
            "endpoints: [{port: 1, weight: 2}]",
            "e.yaml:1:13: endpoints[0].name: found nothing, wanted 1 to 63 characters of A-Z a-z 0-9 . _ -\n\
             e.yaml:1:13: endpoints[0].address: found nothing, wanted an address or a host\n\
             e.yaml:1:23: endpoints[0].weight: found an unknown key, wanted name, namespace, address, port or labels",
        ),
        (
            "endpoints:\n- {name: a/b, address: 'a:1', port: 0}\n- {name: c, address: u:secret@a}\n",
            "e.yaml:2:10: endpoints[0].name: found \"a/b\", wanted 1 to 63 characters of A-Z a-z 0-9 . _ -\n\
             e.yaml:2:24: endpoints[0].address: found \"a:1\", wanted an address or a host\n\
             e.yaml:2:37: endpoints[0].port: found \"0\", wanted an integer from 1 to 65535\n\
             e.yaml:3:3: endpoints[1].port: found nothing, wanted an integer from 1 to 65535\n\
             e.yaml:3:22: endpoints[1].address: found a part of a URL, wanted an address or a host",
        ),
        (
            "endpoints:\n- {name: a, address: a, port: 1, labels: [x]}\n- {name: b, address: A, port: 1}\n",
            "e.yaml:2:42: endpoints[0].labels: found a list, wanted keys and values\n\
             e.yaml:3:22: endpoints[1].address: found http://a:1 of endpoint b, which is endpoint a's, wanted each address once",
        ),
    ] {
        assert_eq!(listed(text).unwrap_err(), faults, "{text}");
    }
}

#[test]
fn a_list_is_bounded_alone_and_with_the_written() {
    let many = |count: usize| {
        let row = |number| format!("- {{name: a{number}, address: a{number}, port: 1}}\n");
        format!("endpoints:\n{}", (0..count).map(row).collect::<String>())
    };
    let fault = "e.yaml:2:3: endpoints: found 1025, wanted at most 1024 of them";
    assert_eq!(listed(&many(1025)).unwrap_err(), fault);
    let text = "pools: [{endpoints: [{url: http://b}], discovery: {file: e.yaml}}]";
    let told =
        |count| load(Some(("f", text)), &Flags::default(), &Given::default().file("e.yaml", &many(count)));
    assert_eq!(told(1023).unwrap().config.pools[0].endpoints.len(), 1024);
    let fault =
        "f:1:58: pools[0].discovery.file: found 1025 endpoints with those above, wanted at most 1024 of them";
    assert_eq!(told(1024).unwrap_err().to_string(), fault);
}

#[test]
fn a_name_is_looked_up_by_others() {
    for (written, host, port, seconds) in [
        ("dns: Vllm-Headless.default.svc:8000", "vllm-headless.default.svc", 8000, 5),
        ("dns: 'vllm.:80', interval: 24h", "vllm.", 80, 86_400),
        ("dns: '[2001:DB8::1]:8000', interval: 1s", "2001:db8::1", 8000, 1),
    ] {
        let text = format!("pools: [{{endpoints: [{{url: http://a}}], discovery: {{{written}}}}}]");
        let pool = given::file(&text).unwrap().pools.remove(0);
        let dns = Dns { host: host.to_owned(), port, interval: Duration::from_secs(seconds) };
        assert_eq!((pool.dns, pool.endpoints.len()), (Some(dns), 1), "{written}");
    }
}

#[test]
fn flags_replace_what_is_found() {
    let flags = Flags { endpoints: vec!["b=http://b".to_owned()], ..Flags::default() };
    let loaded = with_flags("endpoints: [{name: a, address: a, port: 1}]", &flags).unwrap();
    assert_eq!(loaded.config.pools[0].endpoints, [endpoint("b", "http://b")]);
    assert!(
        loaded.settings.iter().all(|setting| !setting.path.contains("discovery")),
        "{:?}",
        loaded.settings
    );
    let dns = given::with_flags("pools: [{discovery: {dns: 'a:1'}}]", &flags).unwrap().config.pools.remove(0);
    assert_eq!((dns.dns, dns.endpoints.len()), (None, 1));
}
