//! From texts to checked values, collecting every fault on the way.
//!
//! A value at fault is replaced by its default so that the checks go on; a configuration with a fault never
//! gets out. Each struct of `raw` is taken apart without `..`: a new key does not compile until it is handled
//! here.

mod addresses;
mod endpoints;
mod scoring;

use std::time::Duration;

use picker::hash::BlockSize;
use picker::policy::Policy;
use serde_saphyr::{Location, Spanned};

use crate::defaults::{self, BYTES_MAX, CAPACITY_BLOCKS_MAX, DURATION_MAX};
use crate::faults::{Fault, Faults, Reason};
use crate::quantity::{boolean, bytes, duration, integer, show_duration};
use crate::raw::{self, RawConfig, RawIndex, RawLimits, RawLoad, RawTimeouts, Text, one_of};
use crate::{
    ClientTimeouts, ClientTls, Config, Edge, Engine, Flags, Index, Limits, Load, Loaded, Outside, Pool,
    Timeouts, Tokenizer,
};

/// The shortest time-out: none is zero.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// See [`crate::load`].
pub(crate) fn check(
    file: Option<(&str, &str)>,
    flags: &Flags,
    _outside: &dyn Outside,
) -> Result<Loaded, Faults> {
    let (name, text) = file.unwrap_or_default();
    let mut checker = Checker { file: name, faults: Faults::default() };
    let raw = raw::parse(name, text).unwrap_or_else(|fault| {
        checker.faults.add(fault);
        RawConfig::default()
    });
    let config = checker.config(raw, flags);
    if checker.faults.is_empty() {
        Ok(Loaded { config, settings: Vec::new(), files: Vec::new() })
    } else {
        Err(checker.faults)
    }
}

/// Where a value was written.
#[derive(Clone, Debug)]
enum Place {
    File(Location),
    Flag(&'static str),
}

/// The faults so far, and the name of the file for their places.
struct Checker<'a> {
    file: &'a str,
    faults: Faults,
}

impl Checker<'_> {
    fn config(&mut self, raw: RawConfig, flags: &Flags) -> Config {
        let RawConfig {
            listeners,
            admin,
            policy,
            weights,
            match_length_weight,
            seed,
            response_headers,
            endpoints,
            index,
            load,
            limits,
            timeouts,
            drain,
        } = raw;
        let (listeners, admin) = self.addresses(listeners, admin, flags);
        let policy = self.policy(policy, weights.is_some(), flags);
        let (client_timeouts, timeouts) = self.timeouts(timeouts.unwrap_or_default());
        let pool = Pool {
            name: "default".to_owned(),
            models: Vec::new(),
            aliases: Default::default(),
            models_interval: Some(defaults::MODELS_INTERVAL),
            engine: Engine::default(),
            tls: ClientTls::default(),
            attempts_max: defaults::ATTEMPTS_MAX,
            policy,
            weights: weights.and_then(|weights| self.weights(weights, policy)),
            match_length: self.match_length(match_length_weight),
            tuning: Default::default(),
            seed: self.value("seed", seed, defaults::SEED, |text| integer(text, 0, u64::MAX)),
            endpoints: self.endpoints(endpoints, flags),
            index: self.index(index.unwrap_or_default()),
            load: self.load(load.unwrap_or_default()),
            timeouts,
        };
        let limits = self.limits(limits.unwrap_or_default());
        let response_headers =
            self.value("response_headers", response_headers, defaults::RESPONSE_HEADERS, boolean);
        let drain =
            self.value("drain", drain, defaults::DRAIN, |text| duration(text, Duration::ZERO, DURATION_MAX));
        let edge = Edge {
            tenants: Vec::new(),
            client_key: Default::default(),
            cache_salt_secret: None,
            cors: None,
            paths: Vec::new(),
            trusted_proxies: Vec::new(),
            forwarded_headers: false,
        };
        Config {
            listeners,
            admin,
            pools: vec![pool],
            edge,
            limits,
            timeouts: client_timeouts,
            response_headers,
            access_log: None,
            traces: None,
            watch: true,
            drain,
        }
    }

    /// Weights alone mean the policy that they are known for.
    fn policy(&mut self, raw: Text, has_weights: bool, flags: &Flags) -> Policy {
        let parse =
            |text: &str| Policy::from_name(text).ok_or_else(|| Reason::text(text, one_of(&Policy::NAMES)));
        let default = if has_weights { Policy::Prefix } else { defaults::POLICY };
        let from_file = self.value("policy", raw, default, parse);
        self.flag("--policy", flags.policy.as_deref(), parse).unwrap_or(from_file)
    }

    fn index(&mut self, raw: RawIndex) -> Index {
        let RawIndex { tokenizer, block_tokens, capacity_blocks } = raw;
        let tokenizer = self.value("index.tokenizer", tokenizer, defaults::TOKENIZER, |text| {
            Tokenizer::from_name(text).ok_or_else(|| Reason::text(text, one_of(&Tokenizer::NAMES)))
        });
        let block = self.value("index.block_tokens", block_tokens, default_block(tokenizer), block_size);
        let capacity_blocks =
            self.value("index.capacity_blocks", capacity_blocks, defaults::CAPACITY_BLOCKS, capacity);
        Index { tokenizer, block, capacity_blocks }
    }

    fn load(&mut self, raw: RawLoad) -> Load {
        let RawLoad { scrape_interval, scrape_timeout, stale_after, page_bytes_max } = raw;
        let written =
            [&stale_after, &scrape_interval].into_iter().flatten().next().map(|text| text.referenced);
        let load = Load {
            scrape_interval: self.value(
                "load.scrape_interval",
                scrape_interval,
                defaults::SCRAPE_INTERVAL,
                |text| duration(text, defaults::SCRAPE_INTERVAL_MIN, DURATION_MAX),
            ),
            scrape_timeout: self.timeout("load.scrape_timeout", scrape_timeout, defaults::SCRAPE_TIMEOUT),
            stale_after: self.timeout("load.stale_after", stale_after, defaults::STALE_AFTER),
            page_bytes_max: self.size("load.page_bytes_max", page_bytes_max, defaults::PAGE_BYTES_MAX),
        };
        self.check_stale_after(load, written);
        load
    }

    /// With less, one late page would make every figure unknown, for ever. The values at fault already are
    /// defaults.
    fn check_stale_after(&mut self, load: Load, written: Option<Location>) {
        let min = load.scrape_interval.saturating_mul(defaults::STALE_AFTER_INTERVALS_MIN);
        if let Some(location) = written.filter(|_| load.stale_after < min) {
            let wanted = format!("at least {}, twice load.scrape_interval", show_duration(min));
            let reason = Reason::thing(show_duration(load.stale_after), wanted);
            self.add(&Place::File(location), "load.stale_after", reason);
        }
    }

    fn limits(&mut self, raw: RawLimits) -> Limits {
        let RawLimits { body_bytes_max, bodies_bytes_max } = raw;
        let written =
            [&bodies_bytes_max, &body_bytes_max].into_iter().flatten().next().map(|text| text.referenced);
        let limits = Limits {
            body_bytes_max: self.size("limits.body_bytes_max", body_bytes_max, defaults::BODY_BYTES_MAX),
            bodies_bytes_max: self.size(
                "limits.bodies_bytes_max",
                bodies_bytes_max,
                defaults::BODIES_BYTES_MAX,
            ),
        };
        if let Some(location) = written.filter(|_| limits.bodies_bytes_max < limits.body_bytes_max) {
            let wanted = format!("at least limits.body_bytes_max, {} bytes", limits.body_bytes_max);
            let reason = Reason::thing(format_args!("{} bytes", limits.bodies_bytes_max), wanted);
            self.add(&Place::File(location), "limits.bodies_bytes_max", reason);
        }
        limits
    }

    fn timeouts(&mut self, raw: RawTimeouts) -> (ClientTimeouts, Timeouts) {
        let RawTimeouts { request_body, connect, first_byte, idle, client_write, upstream_idle, keep_alive } =
            raw;
        let clients = ClientTimeouts {
            request_body: self.timeout("timeouts.request_body", request_body, defaults::REQUEST_BODY_TIMEOUT),
            client_write: self.timeout("timeouts.client_write", client_write, defaults::CLIENT_WRITE_TIMEOUT),
            keep_alive: self.timeout("timeouts.keep_alive", keep_alive, defaults::KEEP_ALIVE_TIMEOUT),
        };
        let timeouts = Timeouts {
            connect: self.timeout("timeouts.connect", connect, defaults::CONNECT_TIMEOUT),
            first_byte: self.timeout("timeouts.first_byte", first_byte, defaults::FIRST_BYTE_TIMEOUT),
            idle: self.timeout("timeouts.idle", idle, defaults::IDLE_TIMEOUT),
            upstream_idle: self.timeout(
                "timeouts.upstream_idle",
                upstream_idle,
                defaults::UPSTREAM_IDLE_TIMEOUT,
            ),
        };
        (clients, timeouts)
    }

    fn timeout(&mut self, path: &str, raw: Text, default: Duration) -> Duration {
        self.value(path, raw, default, |text| duration(text, TIMEOUT_MIN, DURATION_MAX))
    }

    fn size(&mut self, path: &str, raw: Text, default: usize) -> usize {
        self.value(path, raw, default, |text| bytes(text, 1, BYTES_MAX))
    }

    /// The value of a key of the file: `default` where it is absent or at fault.
    fn value<T>(
        &mut self,
        path: &str,
        raw: Text,
        default: T,
        parse: impl FnOnce(&str) -> Result<T, Reason>,
    ) -> T {
        let Some(Spanned { value, referenced, .. }) = raw else { return default };
        self.ok(&Place::File(referenced), path, parse(&value)).unwrap_or(default)
    }

    /// The value of a flag: none where it is absent or at fault.
    fn flag<T>(
        &mut self,
        name: &'static str,
        raw: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, Reason>,
    ) -> Option<T> {
        self.ok(&Place::Flag(name), "", parse(raw?))
    }

    fn ok<T>(&mut self, place: &Place, path: &str, result: Result<T, Reason>) -> Option<T> {
        result.map_err(|reason| self.add(place, path, reason)).ok()
    }

    fn add(&mut self, place: &Place, path: &str, reason: Reason) {
        let place = match place {
            Place::File(at) => format!("{}:{}:{}", self.file, at.line(), at.column()),
            Place::Flag(name) => (*name).to_owned(),
        };
        self.faults.add(Fault { place, path: path.to_owned(), reason });
    }
}

fn default_block(tokenizer: Tokenizer) -> BlockSize {
    match tokenizer {
        Tokenizer::Bytes => defaults::BLOCK_OF_BYTES,
        Tokenizer::Words => defaults::BLOCK_OF_WORDS,
    }
}

fn block_size(text: &str) -> Result<BlockSize, Reason> {
    let tokens = integer(text, 1, defaults::BLOCK_TOKENS_MAX.into())?;
    let wanted = |error| Reason::text(text, error);
    BlockSize::new(i64::try_from(tokens).unwrap_or(i64::MAX)).map_err(wanted)
}

fn capacity(text: &str) -> Result<usize, Reason> {
    let max = u64::try_from(CAPACITY_BLOCKS_MAX).unwrap_or(u64::MAX);
    integer(text, 1, max).map(|blocks| usize::try_from(blocks).unwrap_or(CAPACITY_BLOCKS_MAX))
}
