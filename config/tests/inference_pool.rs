//! InferencePools and Pods: the fixtures with their messages, the ways to bundle them, and what `serve` makes of the result.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use config::inference_pool::{InferencePool, resolve};
use config::{Flags, System, load};
use serde_json::Value;

fn fixture(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pool").join(name)).unwrap()
}

/// Addresses of a pool's endpoints, in order.
fn addresses(pool: &InferencePool) -> Vec<String> {
    pool.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
}

/// The endpoints as flags, or the faults, one a line.
fn shown(text: &str) -> Result<String, String> {
    let pool = resolve("f", text).map_err(|faults| faults.to_string())?;
    Ok(pool.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

/// A pool whose spec is this text, in flow style.
fn pool(spec: &str) -> String {
    let version = "apiVersion: inference.networking.k8s.io/v1";
    format!("{version}\nkind: InferencePool\nmetadata: {{name: p}}\nspec: {spec}\n")
}

const SPEC: &str = "{selector: {matchLabels: {app: a}}, targetPorts: [{number: 80}]}";

/// A ready pod of that pool, with these members more in its metadata and its status.
fn pod(name: &str, metadata: &str, status: &str) -> String {
    let ready = "conditions: [{type: Ready, status: 'True'}]";
    format!(
        "---\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: a}}{metadata}}}\nstatus: {{{ready}{status}}}\n"
    )
}

#[test]
fn every_fixture_comes_to_what_is_expected() {
    let expected: Value = serde_json::from_str(&fixture("expected.json")).unwrap();
    let cases = expected["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 29);
    for case in cases {
        let file = case["file"].as_str().unwrap();
        match resolve(file, &fixture(file)) {
            Ok(pool) => {
                assert_eq!(case["valid"], true, "{file}");
                assert_eq!(Value::from(addresses(&pool)), case["endpoints"], "{file}");
            }
            Err(faults) => {
                assert_eq!(case["valid"], false, "{file}: {faults}");
                let messages = case["message_contains"].as_array().unwrap();
                let has = |message: &Value| faults.to_string().contains(message.as_str().unwrap());
                assert!(messages.iter().all(has), "{file}: {faults}");
            }
        }
    }
}

#[test]
fn all_problems_are_told_with_their_place() {
    let faults = resolve("f", &fixture("several_problems.json")).unwrap_err().to_string();
    assert_eq!(
        faults,
        "f:18:20: spec.targetPorts: Invalid value: \"array\": port number must be unique\n\
         f:26:26: spec.endpointPickerRef: Invalid value: \"object\": port is required when kind is 'Service' or \
         unspecified (defaults to 'Service')\n\
         f:29:20: spec.appProtocol: Unsupported value: \"grpc\": supported values: \"http\", \"kubernetes.io/h2c\""
    );
}

#[test]
fn the_messages_are_the_clusters() {
    let pool = |spec: &str| pool(spec);
    let selector = "selector: {matchLabels: {app: a}}";
    for (text, faults) in [
        ("", "f: found no InferencePool, wanted one".to_owned()),
        ("3\n", "f: found no InferencePool, wanted one\nf:1:1: Invalid value: \"integer\": a document in body must be of type \
             object: \"integer\"".to_owned()),
        ("{a: 1}\n", "f: found no InferencePool, wanted one\nf:1:1: kind: Required value".to_owned()),
        (&pool(""), "f:1:1: spec: Required value".to_owned()),
        (
            &pool("{}"),
            "f:4:7: spec.selector: Required value\nf:4:7: spec.targetPorts: Required value".to_owned(),
        ),
        (
            &pool("{selector: {matchLabels: {}}, targetPorts: []}"),
            "f:4:32: spec.selector.matchLabels: Invalid value: 0: spec.selector.matchLabels in body should have at \
             least 1 properties\nf:4:50: spec.targetPorts: Invalid value: 0: spec.targetPorts in body should have at \
             least 1 items".to_owned(),
        ),
        (
            &pool("{selector: {matchLabels: {a b: 8}}, targetPorts: [{number: x}, {number: 0}, {number: 65536}]}"),
            "f:4:38: spec.selector.matchLabels.a b: Invalid value: \"a b\": a label's key is [DOMAIN/]NAME, the name 1 to \
             63 characters of A-Z a-z 0-9 . _ -\nf:4:38: spec.selector.matchLabels.a b: Invalid value: \"integer\": \
             spec.selector.matchLabels.a b in body must be of type string: \"integer\"\nf:4:66: \
             spec.targetPorts[0].number: Invalid value: \"string\": spec.targetPorts[0].number in body must be of type \
             integer: \"string\"\nf:4:79: spec.targetPorts[1].number: Invalid value: 0: spec.targetPorts[1].number in \
             body should be greater than or equal to 1\nf:4:92: spec.targetPorts[2].number: Invalid value: 65536: \
             spec.targetPorts[2].number in body should be less than or equal to 65535".to_owned(),
        ),
        (
            &pool(&format!("{{{selector}, targetPorts: [{{number: 80, name: x}}], targetPort: 80}}")),
            "f:4:70: spec.targetPorts[0].name: unknown field\nf:4:81: spec.targetPort: unknown field".to_owned(),
        ),
        (
            &pool(&format!(
                "{{{selector}, targetPorts: [{{number: 80}}], endpointPickerRef: {{name: '', failureMode: Open}}}}"
            )),
            "f:4:91: spec.endpointPickerRef: Invalid value: \"object\": port is required when kind is 'Service' or \
             unspecified (defaults to 'Service')\nf:4:98: spec.endpointPickerRef.name: Invalid value: \"\": \
             spec.endpointPickerRef.name in body should be at least 1 chars long\nf:4:115: \
             spec.endpointPickerRef.failureMode: Unsupported value: \"Open\": supported values: \"FailOpen\", \
             \"FailClose\"".to_owned(),
        ),
        (
            &pool(SPEC).replace("k8s.io/v1", "x-k8s.io/v1alpha2"),
            "f:1:13: apiVersion: Unsupported value: \"inference.networking.x-k8s.io/v1alpha2\": supported values: \
             \"inference.networking.k8s.io/v1\"".to_owned(),
        ),
        (
            &format!("{}---\n{}", pool(SPEC), pool(SPEC)),
            "f:6:1: kind: found \"p\", wanted one InferencePool".to_owned(),
        ),
        (
            &format!("{}a: 1\na: 2\n", pool(SPEC)),
            "f:5:1: a: unknown field\nf:6:1: found \"a\", wanted each key once".to_owned(),
        ),
        (
            &format!("{}{}", pool(SPEC), pod("a", "", ", podIP: 10.0.0")),
            "f:8:62: status.podIP: Invalid value: \"10.0.0\": must be a valid IP address".to_owned(),
        ),
    ] {
        assert_eq!(shown(text).unwrap_err(), faults, "{text}");
    }
}

#[test]
fn a_pod_is_an_endpoint_while_it_is_ready_and_reachable() {
    for (shows, pods, wanted) in [
        ("ready", pod("a", "", ", podIP: 10.0.0.1"), "a=http://10.0.0.1:80"),
        ("about to go", pod("a", ", deletionTimestamp: 2026-08-01T00:00:00Z", ", podIP: 10.0.0.1"), ""),
        ("no address yet", pod("a", "", ""), ""),
        ("an empty one", pod("a", "", ", podIP: ''"), ""),
        ("IPv6", pod("a", "", ", podIP: 'fd00::A'"), "a=http://[fd00::a]:80"),
        (
            "dual-stack: the first, as in llm-d",
            pod("a", "", ", podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]"),
            "a=http://10.0.0.1:80",
        ),
        ("another label's value", pod("a", "", ", podIP: 10.0.0.1").replace("app: a", "app: b"), ""),
        ("another namespace", pod("a", ", namespace: other", ", podIP: 10.0.0.1"), ""),
        (
            "the default namespace by name",
            pod("a", ", namespace: default", ", podIP: 10.0.0.1"),
            "a=http://10.0.0.1:80",
        ),
        (
            "only some ports",
            pod("a", ", annotations: {llm-d.ai/active-ports: '81'}", ", podIP: 10.0.0.1"),
            "",
        ),
        ("ready, in other words", pod("a", "", ", podIP: 10.0.0.1").replace("'True'", "true"), ""),
    ] {
        assert_eq!(shown(&format!("{}{pods}", pool(SPEC))), Ok(wanted.to_owned()), "{shows}");
    }
}

#[test]
fn no_pod_and_no_address_stands_twice() {
    let one = pod("a", "", ", podIP: 10.0.0.1");
    let text = format!("{}{one}{one}", pool(SPEC));
    assert_eq!(shown(&text).unwrap_err(), "f:11:11: metadata.name: Duplicate value: \"default/a\"");
    let text = format!("{}{one}{}", pool(SPEC), pod("b", "", ", podIP: 10.0.0.1"));
    assert_eq!(shown(&text).unwrap_err(), "f:12:62: status.podIP: Duplicate value: \"10.0.0.1\"");
    let gone = pod("b", ", deletionTimestamp: 2026-08-01T00:00:00Z", ", podIP: 10.0.0.1");
    assert!(shown(&format!("{}{one}{gone}", pool(SPEC))).is_ok(), "its address may have been given on");
}

#[test]
fn every_way_to_bundle_objects_is_read() {
    let list = |kind: &str, of: &str| {
        let objects: Value = serde_json::from_str(&fixture("ok.json")).unwrap();
        let items = objects["items"].as_array().unwrap().iter();
        let strip = |mut item: Value| {
            item.as_object_mut().unwrap().remove("kind");
            item
        };
        let items: Vec<_> = items.filter(|item| item["kind"] == of).cloned().map(strip).collect();
        serde_json::json!({"kind": kind, "items": items}).to_string()
    };
    let wanted = "sim-0=http://10.0.0.1:8000 sim-1=http://10.0.0.2:8000 sim-2=http://10.0.0.3:8000";
    let (pools, pods) = (list("InferencePoolList", "InferencePool"), list("PodList", "Pod"));
    for (shows, text) in [
        ("a List", fixture("ok.json")),
        ("typed lists in a stream", format!("{pools}\n---\n{pods}\n")),
        ("empty documents between", format!("---\n---\n{pods}\n---\n\n---\n{pools}\n...\n")),
        ("a List in a List", format!("{{kind: List, items: [{}, {{kind: Service}}]}}", fixture("ok.json"))),
    ] {
        assert_eq!(shown(&text), Ok(wanted.to_owned()), "{shows}");
    }
}

#[test]
fn serve_takes_the_flags_as_they_are_printed() {
    let long = format!("{}-7d9c5b8f6d-abcde", "a-very-long-deployment-name.".repeat(5));
    let ports = "{selector: {matchLabels: {app: a}}, targetPorts: [{number: 80}, {number: 8001}]}";
    let pods = [
        pod("a", "", ", podIP: 10.0.0.1"),
        pod("b", ", annotations: {llm-d.ai/active-ports: ' 8001, x'}", ", podIP: 'fd00::2'"),
        pod(&long, "", ", podIP: 'fd00::3'"),
        pod(&long.replace("abcde", "abcdf"), "", ", podIP: 'fd00::4'"),
    ];
    let found = resolve("f", &format!("{}{}", pool(ports), pods.concat())).unwrap();
    let endpoints: Vec<_> = found.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(
        endpoints[..3],
        ["a-rank-0=http://10.0.0.1:80", "a-rank-1=http://10.0.0.1:8001", "b-rank-1=http://[fd00::2]:8001"]
    );
    assert!(endpoints[3].starts_with("a-very-long-deployment-name.a-very-long-"), "{endpoints:?}");
    let loaded = load(None, &Flags { endpoints, ..Flags::default() }, &System).unwrap();
    let served = &loaded.config.pools[0].endpoints;
    assert_eq!(served.len(), 7);
    for (served, found) in served.iter().zip(&found.endpoints) {
        assert_eq!(served.name, found.name);
        let address = format!("{}:{}", served.url.host(), served.url.port());
        assert_eq!(address, format!("{}:{}", found.address.ip(), found.address.port()));
    }
}
