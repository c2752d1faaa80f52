//! What files and flags become.
#![allow(clippy::unwrap_used, clippy::panic)]

mod given;

use std::path::PathBuf;
use std::time::Duration;

use config::{
    AccessLog, ClientKey, ClientTimeouts, Config, Edge, Ending, Flags, Limits, Pool, Protocol, load,
};
use given::values::{SECOND, default_pool, endpoint, listener, strings};
use given::{EVERY_KEY, Given, file, with_flags};
use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::{Scorer, Weights};

#[test]
fn nothing_written_is_all_defaults() {
    let defaults = Config {
        listeners: vec![listener("127.0.0.1:8080", Protocol::Http1)],
        admin: "127.0.0.1:9090".parse().unwrap(),
        pools: vec![default_pool()],
        edge: Edge {
            tenants: vec![],
            client_key: ClientKey::Forward,
            cache_salt_secret: None,
            cors: None,
            paths: vec![],
            trusted_proxies: vec![],
            forwarded_headers: false,
        },
        limits: Limits {
            body_bytes_max: 32 << 20,
            bodies_bytes_max: 1 << 30,
            headers_bytes_max: 64 << 10,
            connections_max: None,
        },
        timeouts: ClientTimeouts {
            request_head: 10 * SECOND,
            request_body: 60 * SECOND,
            client_write: 60 * SECOND,
            keep_alive: 60 * SECOND,
        },
        response_headers: true,
        access_log: None,
        decision_log: None,
        traces: None,
        watch: true,
        ending: Ending { drain: 30 * SECOND, delay: Duration::ZERO, idle: SECOND, upgrade_socket: None },
    };
    assert_eq!(load(None, &Flags::default(), &Given::default()).unwrap().config, defaults);
    for text in ["{}", "\u{feff}{}", "pools: [{}]", "limits: {}\n", "{\n\t\"timeouts\": {}\n}\n"] {
        assert_eq!(file(text).unwrap(), defaults, "{text:?}");
    }
}

#[test]
fn every_key_of_the_table_stands_in_the_fixture() {
    let settings = with_flags(EVERY_KEY, &Flags::default()).unwrap().settings;
    let written: Vec<String> = settings
        .iter()
        .filter(|setting| setting.origin != "default")
        .map(|setting| setting.path.split(['[', ']']).step_by(2).collect::<Vec<_>>().join("[]"))
        .collect();
    let table = config::key_table();
    let keys = table.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    // A section has no value of its own, a table's and a list's values have further keys; no file has a scheduler and
    // weights.
    for key in keys.filter(|key| !key.ends_with(".scheduler")) {
        let stands = written.iter().any(|path| {
            path == key || path.starts_with(&format!("{key}.")) || path.starts_with(&format!("{key}["))
        });
        assert!(stands, "{key}");
    }
}

#[test]
fn defaults_follow_other_keys() {
    let pool = |text: &str| file(text).unwrap().pools.remove(0);
    assert_eq!(pool("pools: [{index: {tokenizer: words}}]").index.block, BlockSize::new(16).unwrap());
    assert_eq!(pool("pools: [{weights: {kv: 1}}]").policy, Policy::Prefix);
    let kv = Weights::new(&[(Scorer::Kv, 3.0)]).unwrap();
    assert_eq!(pool("pools: [{policy: affinity, weights: {kv: 3, lora: 0}}]").weights, Some(kv));
    let tenants = "tenants: [{name: a, keys: ['${CHAT_KEY}']}]";
    assert_eq!(file(tenants).unwrap().edge.client_key, ClientKey::Drop);
    let tls = |rest: &str| {
        let text = format!(
            "listeners: [{{address: 0.0.0.0:1, tls: {{certificates: [{{cert: tls/edge.crt, key: file:tls/edge.key}}]{rest}}}}}]"
        );
        file(&text).unwrap().listeners.remove(0).tls.unwrap().client_certificate_required
    };
    assert!(!tls(""), "without an authority nobody could show one");
    assert!(tls(", client_ca: tls/authority.crt"), "with one everybody must");
}

#[test]
fn anchors_save_repetition() {
    let text = "pools:\n- name: a\n  models: [x]\n  load: &load {scrape_interval: 1s, stale_after: 5s}\n\
                - name: b\n  models: [y]\n  load: *load\n";
    let pools = file(text).unwrap().pools;
    assert_eq!(pools[0].load, pools[1].load);
    assert_eq!(pools[1].load.stale_after, 5 * SECOND);
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
    let text = "listeners: [{address: '[::1]:8443'}]\nadmin: 127.0.0.1:1\n\
                pools: [{seed: 7, endpoints: [{url: http://a}]}]\n";
    let config::Loaded { config, settings, .. } = with_flags(text, &given).unwrap();
    assert_eq!(config.pools[0].endpoints, [endpoint("c", "http://10.0.0.3:8000")]);
    assert_eq!(config.pools[0].policy, Policy::Affinity);
    assert_eq!(config.listeners, [listener("0.0.0.0:80", Protocol::Http1)]);
    assert_eq!(config.admin, "[::1]:8443".parse().unwrap(), "free, as the file's listeners are not bound");
    assert_eq!(config.pools[0].seed, 7, "the rest is the file's");
    let flagged: Vec<_> = settings.iter().filter(|setting| setting.origin.starts_with("--")).collect();
    let lines: Vec<_> =
        flagged.iter().map(|one| format!("{} {} {}", one.path, one.value, one.origin)).collect();
    assert_eq!(
        lines,
        [
            "listeners[0].address 0.0.0.0:80 --listen",
            "admin [::1]:8443 --admin",
            "pools[0].policy affinity --policy",
            "pools[0].endpoints[0].name c --endpoint",
            "pools[0].endpoints[0].url http://10.0.0.3:8000 --endpoint",
        ]
    );
    for path in ["admin", "listeners[0].address", "pools[0].endpoints[0].url"] {
        assert_eq!(settings.iter().filter(|setting| setting.path == path).count(), 1, "{path}");
    }
    let port = Flags { port: Some(0), ..Flags::default() };
    assert_eq!(with_flags("{}", &port).unwrap().config.listeners, [listener("127.0.0.1:0", Protocol::Http1)]);
}

/// llm-d's preset, with a block and a capacity.
const SCHEDULER: &str = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n\
    - type: prefix-cache-scorer\n- {type: approx-prefix-cache-producer, parameters: {autoTune: false, blockSizeTokens: 128, lruCapacityPerServer: 500}}\n\
    schedulingProfiles:\n- name: default\n  plugins:\n  - {pluginRef: queue-scorer, weight: 2}\n  \
    - {pluginRef: prefix-cache-scorer, weight: 3}\n";

/// What a configuration comes to, and each line of `weights`, `policy` and `index` of its explanation.
fn with_scheduler(name: &str, text: &str, flags: &Flags) -> (Pool, Vec<String>) {
    let given = Given::all().file("etc/epp.yaml", SCHEDULER);
    let config::Loaded { mut config, settings, .. } =
        load(Some((name, text)), flags, &given).map_err(|faults| faults.to_string()).unwrap();
    let shown = settings.iter().filter(|one| {
        ["pools[0].weights", "pools[0].policy", "pools[0].index"]
            .iter()
            .any(|path| one.path.starts_with(path))
    });
    let shown = shown.map(|one| format!("{} {} {}", &one.path["pools[0].".len()..], one.value, one.origin));
    (config.pools.remove(0), shown.collect())
}

#[test]
fn a_scheduler_configuration_stands_for_policy_and_weights() {
    let weights = Weights::new(&[(Scorer::Queue, 2.0), (Scorer::Prefix, 3.0)]).ok();
    let none = Flags::default();
    let (pool, shown) =
        with_scheduler("etc/f", "pools: [{scheduler: epp.yaml, index: {capacity_blocks: 9}}]", &none);
    assert_eq!((pool.policy, &pool.weights), (Policy::Prefix, &weights));
    assert_eq!(pool.index.capacity_blocks, 9, "the file's own key goes before");
    assert_eq!(
        shown,
        [
            "policy prefix etc/epp.yaml",
            "weights.prefix 3 etc/epp.yaml",
            "weights.queue 2 etc/epp.yaml",
            "index.tokenizer bytes default",
            "index.block_tokens 128 etc/epp.yaml",
            "index.capacity_blocks 9 etc/f:1:56",
        ]
    );
    let (itself, shown) = with_scheduler("etc/epp.yaml", SCHEDULER, &none);
    assert_eq!((itself.policy, &itself.weights), (Policy::Prefix, &weights), "the file itself");
    assert_eq!((itself.index.block.tokens(), itself.index.capacity_blocks), (128, 500));
    assert_eq!(shown[0], "policy prefix etc/epp.yaml");
    let flags =
        Flags { endpoints: strings(&["a=http://a"]), policy: Some("random".to_owned()), ..Flags::default() };
    let (pool, shown) = with_scheduler("etc/epp.yaml", SCHEDULER, &flags);
    assert_eq!(
        (pool.policy, pool.weights, pool.endpoints.len()),
        (Policy::Random, None, 1),
        "flags go before"
    );
    assert_eq!(shown[..2], ["policy random --policy", "weights (the policy's own) default"]);
}

#[test]
fn an_address_may_be_shared_where_binding_allows_it() {
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
fn names_and_addresses_may_meet_across_pools() {
    let text = "pools:\n- {name: a, models: [x], endpoints: [{name: a, url: http://h}]}\n\
                - {name: b, endpoints: [{name: b, url: http://h}]}\n";
    assert!(file(text).is_ok(), "one engine may serve two pools");
}

#[test]
fn a_secret_of_a_file_ends_before_its_line_feed() {
    for (content, key) in [("k", "k"), ("k\n", "k"), ("k\r\n", "k"), (" k ", " k ")] {
        let given = Given::all().file("key", content);
        let text = "pools: [{endpoints: [{url: http://a, key: 'file:key'}]}]";
        let pool = load(Some(("f", text)), &Flags::default(), &given).unwrap().config.pools.remove(0);
        assert_eq!(pool.endpoints[0].key, Some(config::Secret::new(key)), "{content:?}");
    }
}

#[test]
fn paths_are_from_the_folder_of_the_file() {
    let mut given = Given::all();
    given.files = given.files.into_iter().map(|(name, bytes)| (format!("etc/{name}"), bytes)).collect();
    let loaded = load(Some(("etc/f.yaml", EVERY_KEY)), &Flags::default(), &given).unwrap();
    let files: Vec<&str> = loaded.files.iter().map(|path| path.to_str().unwrap()).collect();
    let each_once = [
        "etc/tls/edge.crt",
        "etc/tls/edge.key",
        "etc/tls/api.crt",
        "etc/tls/api.key",
        "etc/tls/authority.crt",
        "etc/secrets/key",
        "etc/endpoints.yaml",
        "etc/tls/router.crt",
        "etc/tls/router.key",
    ];
    assert_eq!(files, each_once);
    assert_eq!(loaded.config.access_log, Some(AccessLog::File(PathBuf::from("etc/logs/access.jsonl"))));
    assert_eq!(loaded.config.ending.upgrade_socket, Some(PathBuf::from("etc/run/upgrade.sock")));
    let stdout = file("access_log: stdout").unwrap().access_log;
    assert_eq!(stdout, Some(AccessLog::Stdout));
}

#[test]
fn what_holds_is_explained_and_secrets_are_not() {
    let loaded = with_flags(EVERY_KEY, &Flags::default()).unwrap();
    let text = config::explain(&loaded.settings);
    for line in [
        "listeners[0].address: 0.0.0.0:8000  # f:3:14",
        "listeners[0].tls: (none, clear text)  # default",
        "listeners[2].tls.certificates[0].key: file:tls/edge.key  # f:11:16",
        "pools[0].name: chat  # f:17:11",
        "pools[0].models[1]: qwen  # f:18:21",
        "pools[0].aliases.gpt-4o: llama  # f:19:23",
        "pools[0].endpoints[0].key: ${ENGINE_KEY}  # f:42:14",
        "pools[0].endpoints[0].headers.X-Team: …  # f:44:19",
        "pools[0].endpoints[1].name: 2001-db8--1-80  # default",
        "pools[0].discovery.file: endpoints.yaml  # f:50:13",
        "pools[0].endpoints[2].name: listed-0  # endpoints.yaml:2:9",
        "pools[0].endpoints[3].url: http://[2001:db8::2]:8001  # endpoints.yaml:7:29",
        "pools[1].endpoints: (none)  # default",
        "pools[1].discovery.interval: 7s  # f:93:17",
        "pools[1].models_interval: off  # f:90:22",
        "pools[1].load.scrape_interval: 100ms  # default",
        "tenants[0].keys[0]: ${CHAT_KEY}  # f:96:12",
        "tenants[1].keys[0]: sha256:…  # f:107:9",
        "drain: 1h  # f:135:8",
    ] {
        let (value, origin) = line.split_once("  # ").unwrap();
        let found = text.lines().filter_map(|line| line.split_once("  # "));
        let found =
            found.map(|(value, origin)| (value.trim_end(), origin)).find(|(found, _)| *found == value);
        assert_eq!(found, Some((value, origin)), "{text}");
    }
    let all = format!("{text}{loaded:?}");
    for secret in
        ["sk-chat-1", "sk-engine", "sk-from-a-file", "sixteen bytes or more", "PRIVATE KEY", "0d0e0f"]
    {
        assert!(!all.contains(secret), "{secret}");
    }
}
