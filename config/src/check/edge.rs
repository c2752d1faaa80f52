//! What stands between clients and the pools.

use super::{TIME, headers, tenants};
use crate::defaults::{
    self, CACHE_SALT_SECRET_BYTES_MIN, HEADERS_MAX, ORIGINS_MAX, PATHS_MAX, TRUSTED_PROXIES_MAX,
};
use crate::faults::Reason;
use crate::read::form::{Choice, Form, Switch, Text};
use crate::read::{Key, Placed, REQUIRED, Section, live};
use crate::{ClientKey, Cors, Edge, Secret};

use super::network::{ORIGIN, PATH, PROXY};

const CLIENT_KEY: Key = live(
    "client_key",
    "What engines see of a client's `Authorization` and `x-api-key`, where an endpoint has no key of its own",
)
.default_is("forward; with tenants drop");
const SALT: Key =
    live("cache_salt_secret", "What the `cache_salt` of isolated tenants is made of; at least 16 bytes");
const CORS: Key = live("cors", "What browsers are told").default_is("none: preflights go to an engine");
const ORIGINS: Key = live("origins", "Origins that may ask; `*` for all").default_is(REQUIRED);
const CORS_HEADERS: Key =
    live("headers", "Request headers that they may send").default_is("those that they ask for");
const MAX_AGE: Key = live("max_age", "How long they may remember the answer");
const PATHS: Key =
    live("paths", "Paths that are served, with a final `*` all that begin so; others are answered 403")
        .default_is("all");
const PROXIES: Key = live("trusted_proxies", "Proxies whose `X-Forwarded-For` is believed");
const FORWARDED: Key = live(
    "forwarded_headers",
    "Whether engines are told the client's address, in `X-Forwarded-For` and `X-Forwarded-Proto`",
);
const CLIENT_KEYS: Choice<ClientKey> =
    Choice { names: ClientKey::NAMES, from_name: ClientKey::from_name, name: |key| key.name() };

pub(super) fn read(top: &mut Section<'_, '_>) -> Edge {
    let tenants = tenants::read(top, top.has(SALT.name));
    let default = if tenants.is_empty() { ClientKey::Forward } else { ClientKey::Drop };
    let client_key = top.value(CLIENT_KEY, &CLIENT_KEYS, default).value;
    let cache_salt_secret = salt_secret(top);
    let cors = top.optional_section(CORS, cors).and_then(|cors| cors.value);
    let paths = listed(top, PATHS, PATHS_MAX, &PATH);
    let trusted_proxies = listed(top, PROXIES, TRUSTED_PROXIES_MAX, &PROXY);
    let forwarded_headers = top.value(FORWARDED, &Switch, defaults::FORWARDED_HEADERS).value;
    Edge { tenants, client_key, cache_salt_secret, cors, paths, trusted_proxies, forwarded_headers }
}

fn salt_secret(top: &mut Section<'_, '_>) -> Option<Secret> {
    let secret = top.secret(SALT)?;
    if secret.value.expose().len() < CACHE_SALT_SECRET_BYTES_MIN {
        let wanted = format_args!("at least {CACHE_SALT_SECRET_BYTES_MIN} bytes");
        top.reader.fault_of(&secret, Reason::thing("a shorter secret", wanted));
        return None;
    }
    Some(secret.value)
}

fn cors(section: &mut Section<'_, '_>) -> Option<Cors> {
    section.require_list(ORIGINS.name);
    let origins = section.list(ORIGINS, 1..=ORIGINS_MAX, &ORIGIN);
    let headers = listed(section, CORS_HEADERS, HEADERS_MAX, &headers::NAME);
    let max_age = section.value(MAX_AGE, &TIME, defaults::CORS_MAX_AGE).value;
    let origins = origins?.value;
    if origins.len() > 1
        && let Some(all) = origins.iter().find(|origin| origin.value == "*")
    {
        section.reader.fault_of(all, Reason::thing("* beside other origins", "it alone"));
    }
    Some(Cors { origins: origins.into_iter().map(|origin| origin.value).collect(), headers, max_age })
}

/// A list that may be absent, which is an empty one.
fn listed<T>(section: &mut Section<'_, '_>, key: Key, max: usize, form: &Text<T>) -> Vec<T>
where
    Text<T>: Form<Value = T>,
{
    let list = section.list(key, 1..=max, form);
    list.map(|list| list.value).unwrap_or_default().into_iter().map(|Placed { value, .. }| value).collect()
}
