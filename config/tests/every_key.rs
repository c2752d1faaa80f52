//! The file with every key, beside what it comes to.
#![allow(clippy::unwrap_used, clippy::panic)]

mod given;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use config::{
    AccessLog, Certificate, ClientKey, ClientTimeouts, ClientTls, Config, Cors, DecisionLog, Dns, Edge,
    Ending, Endpoint, Engine, EngineKind, Flags, Health, Index, KeyHash, Limits, Listener, Load, Network,
    PathPattern, Pool, PoolLimits, Protocol, Queue, Retry, Secret, ServerTls, Tenant, TenantLimits, Timeouts,
    Tokenizer, load,
};
use given::values::{SECOND, default_pool, endpoint, listener, strings};
use given::{EVERY_KEY, Given};
use picker::Tuning;
use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Scorer, Weights};

fn some(number: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(number)
}

fn certificate(name: &str, given: &Given) -> Certificate {
    let key = String::from_utf8(given.files[&format!("tls/{name}.key")].clone()).unwrap();
    Certificate {
        chain: given.files[&format!("tls/{name}.crt")].clone(),
        key: Secret::new(key.trim_end_matches('\n')),
    }
}

/// The fixture's pool `chat`.
fn chat(given: &Given) -> Pool {
    // Of the scorer at place n of the list, n + 1.
    let weights: Vec<_> = (1..).zip(Scorer::ALL).map(|(place, scorer)| (scorer, f64::from(place))).collect();
    let authority = given.files["tls/authority.crt"].clone();
    let header = |name: &str, value: &str| (name.to_owned(), Secret::new(value));
    Pool {
        name: "chat".to_owned(),
        models: strings(&["llama", "qwen"]),
        aliases: [("gpt-4o", "llama"), ("gpt-4o-mini", "qwen")]
            .map(|(alias, model)| (alias.to_owned(), model.to_owned()))
            .into(),
        models_interval: Some(60 * SECOND),
        engine: Engine {
            kind: EngineKind::Sglang,
            waiting: Some("my:waiting".to_owned()),
            running: Some("running{engine=0}".to_owned()),
            kv_usage: Some("kv{engine=\"0\",node=a}".to_owned()),
        },
        policy: Policy::PrefixOnly,
        weights: Some(Weights::new(&weights).unwrap()),
        match_length: MatchLength::new(0.25, 8192).unwrap(),
        tuning: Tuning::DEFAULT,
        seed: 7,
        endpoints: vec![
            Endpoint {
                key: Some(Secret::new("sk-engine")),
                headers: vec![
                    header("x-team", "chat"),
                    header("x-token", "sk-chat-1"),
                    header("x-api-key", "sk-from-a-file"),
                ],
                weight: 0.5,
                ..endpoint("vllm-0", "https://127.0.0.1:8001")
            },
            endpoint("2001-db8--1-80", "http://[2001:db8::1]"),
            endpoint("listed-0", "http://10.0.0.5:8000"),
            endpoint("listed-1", "http://[2001:db8::2]:8001"),
        ],
        dns: None,
        tls: ClientTls {
            ca: Some(authority),
            certificate: Some(certificate("router", given)),
            server_name: Some("engines.example".to_owned()),
            insecure: false,
        },
        index: Index {
            tokenizer: Tokenizer::Words,
            block: BlockSize::new(32).unwrap(),
            capacity_blocks: 1000,
        },
        load: Load {
            scrape_interval: Duration::from_millis(250),
            scrape_timeout: 3 * SECOND,
            stale_after: 5 * SECOND,
            page_bytes_max: 64 << 10,
        },
        retry: Retry { attempts_max: NonZeroU32::new(5).unwrap(), budget_percent: 7, unanswered: true },
        health: Health {
            failures: NonZeroU32::new(9).unwrap(),
            stall: None,
            cooldown: 8 * SECOND,
            cooldown_max: 80 * SECOND,
            path: Some("/health".to_owned()),
            interval: 16 * SECOND,
        },
        limits: PoolLimits { requests_max: some(500), endpoint_requests_max: some(64) },
        queue: Queue {
            requests_max: 250,
            timeout: 18 * SECOND,
            priority_header: Some("x-priority".to_owned()),
        },
        timeouts: Timeouts {
            connect: Duration::from_millis(12),
            first_byte: 13 * 60 * SECOND,
            idle: 14 * 60 * SECOND,
            upstream_idle: 4 * SECOND,
        },
    }
}

/// The fixture's edge.
fn edge() -> Edge {
    let hash: [u8; 32] =
        std::array::from_fn(|place| if place == 31 { 0xff } else { u8::try_from(place).unwrap() });
    let network = |address: &str, prefix| Network { address: address.parse().unwrap(), prefix };
    Edge {
        tenants: vec![
            Tenant {
                name: "acme".to_owned(),
                keys: vec![KeyHash::of(b"sk-chat-1"), KeyHash::of(b"sk-from-a-file")],
                isolate: true,
                priority: 60,
                limits: TenantLimits {
                    requests_per_second: some(10),
                    burst: some(20),
                    concurrent_requests: some(30),
                    prompt_tokens_per_minute: some(40),
                    prompt_bytes_per_minute: some(50 << 10),
                },
            },
            Tenant {
                name: "batch".to_owned(),
                keys: vec![KeyHash(hash)],
                isolate: false,
                priority: 0,
                limits: TenantLimits::default(),
            },
        ],
        client_key: ClientKey::Forward,
        cache_salt_secret: Some(Secret::new("sixteen bytes or more")),
        cors: Some(Cors {
            origins: strings(&["https://app.example", "http://localhost:3000"]),
            headers: strings(&["authorization", "content-type"]),
            max_age: 3600 * SECOND,
        }),
        paths: vec![PathPattern("/v1/*".to_owned()), PathPattern("/tokenize".to_owned())],
        trusted_proxies: vec![network("10.0.0.0", 8), network("2001:db8::", 32), network("192.0.2.1", 32)],
        forwarded_headers: true,
    }
}

#[test]
fn every_key_is_read() {
    let given = Given::all();
    let loaded = load(Some(("f", EVERY_KEY)), &Flags::default(), &given).map_err(|faults| faults.to_string());
    let config = loaded.unwrap().config;
    assert_eq!(config.pools[0], chat(&given));
    let dns = Dns { host: "vllm-headless.default.svc".to_owned(), port: 8000, interval: 7 * SECOND };
    let rest = Pool { name: "rest".to_owned(), models_interval: None, dns: Some(dns), ..default_pool() };
    assert_eq!(config.pools[1..], [rest]);
    assert_eq!(config.edge, edge());
    let tls = ServerTls {
        certificates: vec![certificate("edge", &given), certificate("api", &given)],
        client_ca: Some(given.files["tls/authority.crt"].clone()),
        client_certificate_required: false,
    };
    let tls = Listener { tls: Some(tls), ..listener("0.0.0.0:443", Protocol::Http1) };
    let rest = Config {
        listeners: vec![
            listener("0.0.0.0:8000", Protocol::Http1),
            listener("[::1]:8443", Protocol::H2c),
            tls,
        ],
        admin: "127.0.0.1:9191".parse().unwrap(),
        limits: Limits {
            body_bytes_max: 1 << 20,
            bodies_bytes_max: 2 << 30,
            headers_bytes_max: 16 << 10,
            connections_max: Some(5000),
        },
        timeouts: ClientTimeouts {
            request_head: 9 * SECOND,
            request_body: 11 * SECOND,
            client_write: 15 * SECOND,
            keep_alive: 17 * SECOND,
        },
        response_headers: false,
        access_log: Some(AccessLog::File(PathBuf::from("logs/access.jsonl"))),
        decision_log: Some(DecisionLog {
            path: PathBuf::from("logs/decisions.jsonl"),
            file_bytes_max: 8 << 20,
            files: 3,
        }),
        traces: Some("http://127.0.0.1:4318/v1/traces".to_owned()),
        watch: false,
        ending: Ending {
            drain: 3600 * SECOND,
            delay: 5 * SECOND,
            idle: 3 * SECOND,
            upgrade_socket: Some(PathBuf::from("run/upgrade.sock")),
        },
        pools: config.pools.clone(),
        edge: config.edge.clone(),
    };
    assert_eq!(config, rest);
}
