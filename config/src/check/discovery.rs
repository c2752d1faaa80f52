//! Endpoints that a pool does not write itself: those of a file of llm-d's, read here, and the name whose addresses are
//! endpoints, which is looked up while the router runs.

use std::collections::HashSet;

use super::names::NAME;
use crate::defaults::{DNS_INTERVAL, DNS_INTERVAL_MIN, DURATION_MAX, ENDPOINTS_MAX, LABELS_MAX};
use crate::faults::Reason;
use crate::quantity::integer;
use crate::read::form::{Durations, Integers, Text};
use crate::read::{FilePath, Key, Placed, Reader, Section, live};
use crate::tree::{self, Map, Node, Value};
use crate::{Dns, EndpointName, EndpointUrl};

const DISCOVERY: Key = live(
    "discovery",
    "Further endpoints that are not written here: of `dns` or of `file`; `--endpoint` replaces them too",
);
const DNS: Key = live("dns", "A name such as a headless Service's: each of its addresses is an endpoint");
const INTERVAL: Key = live("interval", "Time from one look at the addresses of `dns` to the next");
const FILE: Key = live(
    "file",
    "A file of endpoints as of llm-d's `file-discovery`, each `http://ADDRESS:PORT`; watched as this file is",
);
const INTERVALS: Durations = Durations { min: DNS_INTERVAL_MIN, max: DURATION_MAX };
const PORTS: Integers = Integers { min: 1, max: 65_535 };
const WANTED_DNS: &str = "HOST:PORT";
const HOST_PORT: Text<EndpointUrl> = Text {
    wanted: WANTED_DNS,
    pattern: "^[^/?#@]+:[0-9]{1,5}$",
    read: host_port,
    show: |url| {
        let host = url.host();
        if host.contains(':') { format!("[{host}]:{}", url.port()) } else { format!("{host}:{}", url.port()) }
    },
};

/// What a pool says of its further endpoints.
#[derive(Default)]
pub(super) struct Discovery {
    pub(super) dns: Option<Dns>,
    /// Those of a file: its key and what it lists.
    pub(super) file: Option<Placed<Vec<Found>>>,
}

/// An endpoint of a file.
pub(super) struct Found {
    pub(super) name: Placed<EndpointName>,
    pub(super) url: Placed<EndpointUrl>,
}

/// Reads it: nothing of both where it is absent.
pub(super) fn read(pool: &mut Section<'_, '_>) -> Discovery {
    let path = pool.path(DISCOVERY.name);
    let read = pool.optional_section(DISCOVERY, |section| {
        refuse_both(section, &path);
        discovery(section)
    });
    read.map(|read| read.value).unwrap_or_default()
}

/// Tells both of `dns` and `file`, and neither.
fn refuse_both(section: &mut Section<'_, '_>, path: &str) {
    match (section.has(DNS.name), section.has(FILE.name)) {
        (true, true) => {
            let place = section.place();
            section.reader.fault(place, path, Reason::thing("dns and file", "one of the two"));
        }
        (false, false) => section.lacks(path, "dns or file"),
        _ => {}
    }
}

fn discovery(section: &mut Section<'_, '_>) -> Discovery {
    let dns = section.optional(DNS, &HOST_PORT);
    let interval = section.value(INTERVAL, &INTERVALS, DNS_INTERVAL);
    let file = section.optional(FILE, &FilePath);
    if !section.has(DNS.name) {
        section.reader.forget_setting(&interval.path);
        if interval.is_written() {
            section.reader.fault_of(&interval, Reason::thing("it without dns", "both"));
        }
    }
    let dns = dns.map(|Placed { value: url, .. }| Dns {
        host: url.host().to_owned(),
        port: url.port(),
        interval: interval.value,
    });
    Discovery { dns, file: file.and_then(|file| listed(section.reader, file)) }
}

/// A host as a URL has it, and a port that is written.
fn host_port(text: &str) -> Result<EndpointUrl, Reason> {
    if text.contains(['/', '@']) {
        // What stands before an @ may be a secret.
        return Err(Reason::thing("a URL or a part of one", WANTED_DNS));
    }
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let port = u16::try_from(integer(port, PORTS.min, PORTS.max).ok()?).ok()?;
        // Without brackets nobody knows where the port begins.
        let bracketed = host.starts_with('[') || !host.contains(':');
        EndpointUrl::at(host, port).filter(|_| bracketed)
    });
    parts.ok_or_else(|| Reason::text(text, format_args!("{WANTED_DNS}, such as vllm.default.svc:8000")))
}

const ENDPOINTS: Key = live("endpoints", "The engines, in no order");
const NAME_KEY: Key = live("name", "Unique over all pools");
const NAMESPACE: Key = live("namespace", "Changes nothing here");
const ADDRESS: Key = live("address", "Where the engine listens");
const PORT: Key = live("port", "And at which port");
const LABELS: Key = live("labels", "Change nothing here");
const WANTED_ADDRESS: &str = "an address or a host";
/// A host, as text: its port is another key's.
const ADDRESSES: Text<String> = Text {
    wanted: WANTED_ADDRESS,
    pattern: "^[^/?#@]+$",
    read: |text| match EndpointUrl::at(text, PORT_ANY) {
        Some(_) => Ok(text.to_owned()),
        None if text.contains('@') => Err(Reason::thing("a part of a URL", WANTED_ADDRESS)),
        None => Err(Reason::text(text, WANTED_ADDRESS)),
    },
    show: String::clone,
};
/// Any, to see whether a host is one.
const PORT_ANY: u16 = 1;
const ANY: Text<String> =
    Text { wanted: "a text", pattern: "", read: |text| Ok(text.to_owned()), show: String::clone };

/// What a file lists. As strict as the configuration itself: a key that nobody knows is a fault, in that file.
fn listed(reader: &mut Reader<'_>, file: Placed<String>) -> Option<Placed<Vec<Found>>> {
    let bytes = reader.file(&file.value, file.place, &file.path)?;
    let name = reader.in_folder(&file.value);
    let further = reader.files.iter().position(|read| *read == name)?;
    let name = name.display().to_string();
    let Ok(text) = String::from_utf8(bytes) else {
        reader.fault_of(&file, Reason::thing("a file that is not UTF-8", "UTF-8"));
        return None;
    };
    let (node, faults) = match tree::document(&name, &text) {
        Ok((node, faults)) => (node.map(without_nothing), faults),
        Err(faults) => (None, faults),
    };
    reader.faults.append(faults);
    let mut own = Reader::new(&name, reader.outside, HashSet::new);
    let found = node.as_ref().map(|node| own.root(Some(node), |top| items(top, further)));
    let faults = own.faults;
    reader.faults.append(faults);
    Some(file.map(|_| found.unwrap_or_default()))
}

/// llm-d takes `endpoints:` with nothing behind it for an empty list.
fn without_nothing(mut node: Node) -> Node {
    if let Value::Map(Map(entries)) = &mut node.value {
        entries.retain(|entry| entry.key != ENDPOINTS.name || !entry.node.is_nothing());
    }
    node
}

fn items(top: &mut Section<'_, '_>, further: usize) -> Vec<Found> {
    let list = top.sections(ENDPOINTS, 0..=ENDPOINTS_MAX, |section| item(section, further));
    list.map(|list| list.value).unwrap_or_default()
}

fn item(section: &mut Section<'_, '_>, further: usize) -> Option<Found> {
    let name = section.required(NAME_KEY, &NAME);
    section.optional(NAMESPACE, &ANY);
    let address = section.required(ADDRESS, &ADDRESSES);
    let port = section.required(PORT, &PORTS);
    section.table(LABELS, LABELS_MAX, ("labels", &ANY), &ANY);
    let (name, address) = (name?, address?);
    let url = EndpointUrl::at(&address.value, u16::try_from(port?.value).ok()?)?;
    Some(Found { name: name.in_file(further), url: address.map(|_| url).in_file(further) })
}
