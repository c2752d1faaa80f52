//! The endpoints of a pool, from the file, from a further one or from flags: each well-formed, no name and no address twice.

use std::collections::HashMap;

use super::discovery::{self, Found};
use super::headers;
use super::names::{NAME, refuse_repeated};
use crate::defaults::{ENDPOINT_WEIGHT_MAX, ENDPOINTS_MAX};
use crate::endpoint::WANTED_URL;
use crate::faults::Reason;
use crate::read::form::{Numbers, Text};
use crate::read::{Key, Place, Placed, Reader, Section, live};
use crate::{Dns, Endpoint, EndpointName, EndpointUrl, Flags};

const WANTED_FLAG: &str = "NAME=URL, such as a=http://127.0.0.1:8001";

const ENDPOINTS: Key = live("endpoints", "The engines, in no order");
const NAME_KEY: Key =
    live("name", "Unique over all pools; in headers, labels and logs").default_is("`HOST-PORT` of the URL");
const URL: Key = live("url", "Where the engine listens; port 80, with `https` 443, where there is none");
const KEY: Key =
    live("key", "The engine's API key, sent as `Authorization: Bearer` in place of the client's");
const WEIGHT: Key = live(
    "weight",
    "How much load it is to have beside others: its load counts as so much less; 0 for one that gets nothing new",
);
const URLS: Text<EndpointUrl> = Text {
    wanted: WANTED_URL,
    pattern: "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@]+/?$",
    read: EndpointUrl::new,
    show: EndpointUrl::to_string,
};

/// A checked endpoint and where its two parts were written.
pub(super) struct Written {
    pub(super) endpoint: Endpoint,
    pub(super) name: Placed<EndpointName>,
    pub(super) url: Placed<EndpointUrl>,
}

/// The endpoints of one pool and where it finds more; their addresses are compared, their names not yet. Flags replace
/// both.
pub(super) fn read(pool: &mut Section<'_, '_>, flags: &Flags) -> (Vec<Written>, Option<Dns>) {
    let settings = pool.reader.settings.len();
    let from_file = pool.sections(ENDPOINTS, 0..=ENDPOINTS_MAX, item).map(|list| list.value);
    let discovery = discovery::read(pool);
    let (written, dns) = if flags.endpoints.is_empty() {
        let mut written = from_file.unwrap_or_default();
        if let Some(found) = discovery.file {
            append(pool, &mut written, found);
        }
        (written, discovery.dns)
    } else {
        pool.reader.settings.truncate(settings);
        (flagged(pool, &flags.endpoints), None)
    };
    refuse_repeated_addresses(pool.reader, &written);
    (written, dns)
}

/// Appends what a discovery file lists.
fn append(pool: &mut Section<'_, '_>, written: &mut Vec<Written>, found: Placed<Vec<Found>>) {
    let count = written.len() + found.value.len();
    if count > ENDPOINTS_MAX {
        let reason = Reason::thing(
            format_args!("{count} endpoints with those above"),
            format_args!("at most {ENDPOINTS_MAX} of them"),
        );
        pool.reader.fault_of(&found, reason);
        return;
    }
    let list = pool.path(ENDPOINTS.name);
    if !pool.has(ENDPOINTS.name) && !found.value.is_empty() {
        pool.reader.forget_setting(&list);
    }
    for Found { name, url } in found.value {
        let path = format!("{list}[{}]", written.len());
        pool.reader.setting(&format!("{path}.name"), name.value.to_string(), name.place);
        pool.reader.setting(&format!("{path}.url"), url.value.to_string(), url.place);
        let endpoint = Endpoint::new(name.value.clone(), url.value.clone());
        written.push(Written { endpoint, name, url });
    }
}

fn item(section: &mut Section<'_, '_>) -> Option<Written> {
    let name = section.optional(NAME_KEY, &NAME);
    let url = section.required(URL, &URLS);
    let key = section.secret(KEY).and_then(|key| headers::line(section.reader, key));
    let headers = headers::read(section, section.has(KEY.name));
    let weight = section.value(WEIGHT, &Numbers { max: ENDPOINT_WEIGHT_MAX }, 1.0).value;
    let (given, url) = (section.has(NAME_KEY.name), url?);
    let name = match name {
        None if !given => of_url(section, &url),
        name => name,
    }?;
    let endpoint = Endpoint {
        key: key.map(|key| key.value),
        headers,
        weight,
        ..Endpoint::new(name.value.clone(), url.value.clone())
    };
    Some(Written { endpoint, name, url })
}

/// The name of an endpoint that has none, placed at its URL.
fn of_url(section: &mut Section<'_, '_>, url: &Placed<EndpointUrl>) -> Option<Placed<EndpointName>> {
    let (place, path) = (url.place, section.path(NAME_KEY.name));
    let name = EndpointName::of_url(&url.value).map_err(|reason| section.reader.fault(place, &path, reason));
    let value = name.ok()?;
    section.reader.amend_setting(&path, value.as_str());
    Some(Placed { value, place, path })
}

fn flagged(pool: &mut Section<'_, '_>, flags: &[String]) -> Vec<Written> {
    if flags.len() > ENDPOINTS_MAX {
        let reason = Reason::thing(flags.len(), format_args!("at most {ENDPOINTS_MAX} of them"));
        pool.reader.fault(FLAG, "", reason);
    }
    let flags = flags.iter().take(ENDPOINTS_MAX);
    let written: Vec<Written> = flags.filter_map(|flag| flagged_one(pool.reader, flag)).collect();
    for (index, Written { endpoint, .. }) in written.iter().enumerate() {
        let path = format!("{}[{index}]", pool.path(ENDPOINTS.name));
        pool.reader.setting(&format!("{path}.name"), endpoint.name.to_string(), FLAG);
        pool.reader.setting(&format!("{path}.url"), endpoint.url.to_string(), FLAG);
    }
    written
}

const FLAG: Place = Place::Flag("--endpoint");

fn flagged_one(reader: &mut Reader<'_>, flag: &str) -> Option<Written> {
    // A URL without a name may hold a secret and an equals sign: it is not repeated.
    let parts = flag.split_once('=').filter(|(name, _)| !name.contains('/'));
    let Some((name, url)) = parts else {
        reader.fault(FLAG, "", Reason::thing("no name", WANTED_FLAG));
        return None;
    };
    let name = EndpointName::new(name).map_err(|reason| reader.fault(FLAG, "", reason)).ok();
    let path = name.as_ref().map_or_else(String::new, EndpointName::to_string);
    let url = EndpointUrl::new(url).map_err(|reason| reader.fault(FLAG, &path, reason)).ok();
    let (name, url) = (name?, url?);
    let endpoint = Endpoint::new(name.clone(), url.clone());
    let name = Placed { value: name, place: FLAG, path: path.clone() };
    Some(Written { endpoint, name, url: Placed { value: url, place: FLAG, path } })
}

/// Each name once over all pools.
pub(super) fn refuse_repeated_names<'w>(reader: &mut Reader<'_>, written: impl Iterator<Item = &'w Written>) {
    let names = written.map(|written| written.name.clone());
    refuse_repeated(reader, names, EndpointName::clone, |name, _| {
        Reason::text(name.as_str(), "each name once")
    });
}

fn refuse_repeated_addresses(reader: &mut Reader<'_>, written: &[Written]) {
    let mut addresses = HashMap::new();
    for Written { endpoint, url, .. } in written {
        let earlier = addresses.entry(endpoint.url.address()).or_insert(&endpoint.name);
        if *earlier != &endpoint.name {
            let found =
                format!("{} of endpoint {}, which is endpoint {earlier}'s", endpoint.url, endpoint.name);
            reader.fault_of(url, Reason::thing(found, "each address once"));
        }
    }
}
