//! Values of configurations as tests write them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use config::{
    ClientTls, Endpoint, EndpointName, EndpointUrl, Engine, Health, Index, Listener, Load, Pool, PoolLimits,
    Protocol, Queue, Retry, Timeouts, Tokenizer,
};
use picker::Tuning;
use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::prefix::MatchLength;

pub(crate) fn endpoint(name: &str, url: &str) -> Endpoint {
    Endpoint::new(EndpointName::new(name).unwrap(), EndpointUrl::new(url).unwrap())
}

pub(crate) fn listener(address: &str, protocol: Protocol) -> Listener {
    Listener { address: address.parse().unwrap(), protocol, tls: None }
}

pub(crate) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn default_pool() -> Pool {
    Pool {
        name: "default".to_owned(),
        models: vec![],
        aliases: BTreeMap::new(),
        models_interval: Some(10 * SECOND),
        engine: Engine::default(),
        policy: Policy::ExpectedTtft,
        weights: None,
        match_length: MatchLength::default(),
        tuning: Tuning::DEFAULT,
        seed: 0,
        endpoints: vec![],
        dns: None,
        tls: ClientTls::default(),
        index: Index {
            tokenizer: Tokenizer::Bytes,
            block: BlockSize::new(64).unwrap(),
            capacity_blocks: 31_250,
        },
        load: Load {
            scrape_interval: Duration::from_millis(100),
            scrape_timeout: SECOND,
            stale_after: 2 * SECOND,
            page_bytes_max: 4 << 20,
        },
        retry: Retry { attempts_max: NonZeroU32::new(3).unwrap(), budget_percent: 20, unanswered: false },
        health: Health {
            failures: NonZeroU32::new(5).unwrap(),
            stall: Some(30 * SECOND),
            cooldown: 5 * SECOND,
            cooldown_max: 30 * SECOND,
            path: None,
            interval: 5 * SECOND,
        },
        limits: PoolLimits::default(),
        queue: Queue { requests_max: 0, timeout: 30 * SECOND, priority_header: None },
        timeouts: Timeouts {
            connect: SECOND,
            first_byte: 1800 * SECOND,
            idle: 600 * SECOND,
            upstream_idle: 3 * SECOND,
        },
    }
}
