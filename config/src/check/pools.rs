//! Pools, each by itself and beside the others.

mod failure;
mod models;
mod traffic;

use models::Models;

use super::endpoints::{self, Written};
use super::names::{NAME, refuse_repeated};
use super::scoring::{self, Scheduled};
use super::tls;
use crate::defaults::{POOL_NAME, POOLS_MAX};
use crate::faults::Reason;
use crate::read::form::{Choice, Text};
use crate::read::{Key, Place, Placed, Section, live};
use crate::scheduler::Scheduler;
use crate::{ClientTls, EndpointName, Engine, EngineKind, Flags, Pool};

const POOLS: Key = live("pools", "Endpoints that serve the same models, and how one is chosen among them")
    .default_is("one, named `default`, without endpoints");
const NAME_KEY: Key = live("name", "Unique; in labels of metrics and in logs")
    .default_is("`default`; required where there are several pools");

/// A pool, and what has to be compared with other pools.
struct Read {
    pool: Pool,
    place: Place,
    name: Option<Placed<EndpointName>>,
    models: Models,
    endpoints: Vec<Written>,
}

/// Reads all pools: at least one.
pub(super) fn read(top: &mut Section<'_, '_>, flags: &Flags, itself: Option<&Scheduler>) -> Vec<Pool> {
    let count = top.count(POOLS.name).unwrap_or(1);
    let none = Flags::default();
    if count > 1 {
        refuse_flags(top, flags, count);
    }
    let flags = if count > 1 { &none } else { flags };
    let written = top.sections(POOLS, 1..=POOLS_MAX, |section| Some(pool(section, flags, count <= 1, None)));
    let pools = match written {
        Some(written) if !written.value.is_empty() => written.value,
        _ => vec![top.absent_item(POOLS, |section| pool(section, flags, true, itself))],
    };
    let names = pools.iter().filter_map(|read| read.name.clone());
    refuse_repeated(top.reader, names, EndpointName::clone, |name, _| {
        Reason::text(name.as_str(), "each name once")
    });
    models::compare(top.reader, pools.iter().map(|read| (&read.models, read.place)));
    endpoints::refuse_repeated_names(top.reader, pools.iter().flat_map(|read| &read.endpoints));
    pools.into_iter().map(|read| read.pool).collect()
}

/// Flags that are for the only pool.
fn refuse_flags(top: &mut Section<'_, '_>, flags: &Flags, count: usize) {
    let given = [("--endpoint", !flags.endpoints.is_empty()), ("--policy", flags.policy.is_some())];
    for (flag, _) in given.into_iter().filter(|(_, given)| *given) {
        top.reader.fault(Place::Flag(flag), "", Reason::thing(format_args!("{count} pools"), "one"));
    }
}

fn pool(section: &mut Section<'_, '_>, flags: &Flags, is_only: bool, itself: Option<&Scheduler>) -> Read {
    let default = EndpointName::new(POOL_NAME).ok();
    let name = match default {
        Some(default) if is_only => Some(section.value(NAME_KEY, &NAME, default)),
        _ => section.required(NAME_KEY, &NAME),
    };
    let models = models::read(section);
    let scheduled = scoring::scheduled(section, itself);
    let engine = engine(section, scheduled.as_ref());
    let scoring = scoring::read(section, flags, scheduled.as_ref());
    let (endpoints, dns) = endpoints::read(section, flags);
    let tls = tls(section, &endpoints, dns.is_some());
    let pool = Pool {
        name: name.as_ref().map_or(POOL_NAME, |name| name.value.as_str()).to_owned(),
        models: models.names(),
        aliases: models.aliases(),
        models_interval: models.interval,
        engine,
        policy: scoring.policy,
        weights: scoring.weights,
        match_length: scoring.match_length,
        tuning: scoring.tuning,
        seed: scoring.seed,
        endpoints: endpoints.iter().map(|written| written.endpoint.clone()).collect(),
        dns,
        tls,
        index: section.section(traffic::INDEX, |index| traffic::index(index, scheduled.as_ref())),
        load: section.section(traffic::LOAD, traffic::load),
        retry: section.section(failure::RETRY, failure::retry),
        health: section.section(failure::HEALTH, failure::health),
        limits: section.section(failure::LIMITS, failure::limits),
        queue: section.section(failure::QUEUE, failure::queue),
        timeouts: section.section(traffic::TIMEOUTS, traffic::timeouts),
    };
    Read { pool, place: section.place(), name, models, endpoints }
}

const ENGINE: Key = live("engine", "What the engines are, and so what their load metrics are called");
const METRICS: Key = live("metrics", "Names of other series, where an engine's are called otherwise");
const WAITING: Key = live("waiting", "The series of requests that wait").default_is("the engine's");
const RUNNING: Key = live("running", "The series of requests that run").default_is("the engine's");
const KV_USAGE: Key =
    live("kv_usage", "The series of the KV cache's share in use").default_is("the engine's");
const KINDS: Choice<EngineKind> =
    Choice { names: &EngineKind::NAMES, from_name: EngineKind::from_name, name: |kind| kind.name() };
const WANTED_SERIES: &str = "NAME or NAME{LABEL=VALUE}";
const SERIES: Text<String> = Text {
    wanted: WANTED_SERIES,
    pattern: "^[A-Za-z_:][A-Za-z0-9_:]*(\\{.*\\})?$",
    read: series,
    show: String::clone,
};

fn engine(section: &mut Section<'_, '_>, scheduled: Option<&Scheduled>) -> Engine {
    let said = scheduled.and_then(|scheduled| Some((scheduled.says.engine?, &scheduled.file)));
    let kind = section.value(ENGINE, &KINDS, said.map_or(EngineKind::default(), |(kind, _)| kind));
    if let Some((_, file)) = said {
        section.reader.says(&kind, file);
    }
    let kind = kind.value;
    section.section(METRICS, |metrics| {
        let mut name = |key| metrics.optional(key, &SERIES).map(|name| name.value);
        Engine { kind, waiting: name(WAITING), running: name(RUNNING), kv_usage: name(KV_USAGE) }
    })
}

/// A name as Prometheus has it, and labels that may have quotes.
fn series(text: &str) -> Result<String, Reason> {
    let word = |word: &str, colons: bool| {
        let plain =
            |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || (colons && letter == ':');
        !word.is_empty()
            && word.chars().all(plain)
            && !word.starts_with(|letter: char| letter.is_ascii_digit())
    };
    let value = |value: &str| {
        let inside = value.strip_prefix('"').map_or(Some(value), |rest| rest.strip_suffix('"'));
        inside.is_some_and(|inside| {
            !inside.contains(['"', '{', '}', '\\']) && !inside.contains(char::is_control)
        })
    };
    let pair = |pair: &str| pair.split_once('=').is_some_and(|(label, of)| word(label, false) && value(of));
    let (name, labels) = match text.split_once('{') {
        None => (text, None),
        Some((name, rest)) => (name, Some(rest.strip_suffix('}').unwrap_or(""))),
    };
    let holds = word(name, true) && labels.is_none_or(|labels| labels.split(',').all(pair));
    if holds { Ok(text.to_owned()) } else { Err(Reason::text(text, WANTED_SERIES)) }
}

const TLS: Key = live("tls", "How engines are spoken to whose URL says `https`")
    .default_is("the system's authorities, no certificate of the router's own");

/// TLS to engines; beside `http` URLs alone, and what is found is one, it would only seem to hold.
fn tls(section: &mut Section<'_, '_>, endpoints: &[Written], finds: bool) -> ClientTls {
    let Some(Placed { value, place, path }) = section.optional_section(TLS, tls::client) else {
        return ClientTls::default();
    };
    let in_file = |written: &Written| matches!(written.url.place, Place::File(_) | Place::Further(..));
    let clear = |written: &Written| in_file(written) && !written.endpoint.url.tls();
    if (finds || !endpoints.is_empty()) && endpoints.iter().all(clear) {
        let reason = Reason::thing("it beside http:// endpoints alone", "an https:// endpoint");
        section.reader.fault(place, &path, reason);
    }
    value
}
