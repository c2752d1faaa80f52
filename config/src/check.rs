//! From a tree and flags to checked values, collecting every fault on the way.
//!
//! Each key is named in one place, here or in the files below: where it is read.

mod decision_log;
mod discovery;
mod edge;
mod ending;
mod endpoints;
mod headers;
mod listeners;
mod names;
mod network;
mod pools;
mod scoring;
mod tenants;
mod tls;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::defaults::{
    self, BYTES_MAX, CONNECTIONS_LIMIT, DURATION_MAX, HEADERS_BYTES_LIMIT, HEADERS_BYTES_MIN,
};
use crate::endpoint::{is_mended, secret_part};
use crate::faults::{Faults, Reason};
use crate::read::form::{Durations, Integers, Sizes, Switch, Text};
use crate::read::{Described, Key, Placed, Reader, Section, Shape, is_one_line, live, restart};
use crate::scheduler::{self, Scheduler};
use crate::tree::{self, At, Node, Value};
use crate::{AccessLog, ClientTimeouts, Config, Flags, Limits, Loaded, Outside, WithoutSecrets};

/// A time that may be none at all.
const TIME: Durations = Durations { min: Duration::ZERO, max: DURATION_MAX };
/// What most time-outs may be: none is zero.
pub(crate) const TIMEOUT: Durations = Durations { min: Duration::from_millis(1), max: DURATION_MAX };
const SIZE: Sizes = Sizes { min: 1, max: BYTES_MAX };

/// See [`crate::load`].
pub(crate) fn check(
    file: Option<(&str, &str)>,
    flags: &Flags,
    outside: &dyn Outside,
) -> Result<Loaded, Faults> {
    reading(file, flags, Reader::new(file.unwrap_or_default().0, outside, known)).map(|(loaded, _)| loaded)
}

/// See [`crate::check_without_secrets`].
pub(crate) fn check_without_secrets(
    (name, text): (&str, &str),
    flags: &Flags,
    outside: &dyn Outside,
) -> Result<WithoutSecrets, Faults> {
    let reader = Reader::new(name, outside, known).without_secrets();
    let (Loaded { settings, .. }, unread) = reading(Some((name, text)), flags, reader)?;
    Ok(WithoutSecrets { settings, unread })
}

/// What was read, and how many secrets and certificates were not.
fn reading(file: Option<(&str, &str)>, flags: &Flags, reader: Reader<'_>) -> Result<(Loaded, usize), Faults> {
    let (name, text) = file.unwrap_or_default();
    let (node, mut faults) = if file.is_some() { written(name, text) } else { Default::default() };
    // A file of llm-d's is a pool's choice of policy, with defaults for all else.
    let itself = node.as_ref().filter(|node| scheduler::is_scheduler(node));
    let said = itself.and_then(|node| scheduler::read_document(name, node, &mut faults));
    let node = if itself.is_some() { None } else { node.as_ref() };
    // Of the lifetime of the tree.
    let mut reader = reader;
    reader.faults = faults;
    let config = reader.root(node, |top| config(top, flags, said.as_ref()));
    let unread = reader.unread();
    let Reader { faults, settings, files, .. } = reader;
    if faults.is_empty() { Ok((Loaded { config, settings, files }, unread)) } else { Err(faults) }
}

/// The file's tree. One that ended the reading is told and lacks nothing.
fn written(name: &str, text: &str) -> (Option<Node>, Faults) {
    let told = Node { at: At { line: 1, column: 1 }, value: Value::Told };
    let (node, faults) = tree::document(name, text).unwrap_or_else(|faults| (None, faults));
    (Some(node.unwrap_or(told)), faults)
}

/// Every key, as the reading names and describes it.
pub(crate) fn described() -> Shape {
    let mut reader = Reader::new("", &Nothing, HashSet::new).describing();
    reader.root(None, |top| config(top, &Flags::default(), None));
    Shape::Section(reader.into_described())
}

/// The path of every key, with `[]` for each item of a list.
fn known() -> HashSet<String> {
    let mut paths = HashSet::new();
    described().visit("", &mut |path: &str, _: &Described| {
        paths.insert(path.to_owned());
    });
    paths
}

/// A description asks for nothing outside.
struct Nothing;

impl Outside for Nothing {
    fn variable(&self, _: &str) -> Result<String, String> {
        Err(String::new())
    }

    fn file(&self, _: &Path) -> Result<Vec<u8>, String> {
        Err(String::new())
    }
}

fn config(top: &mut Section<'_, '_>, flags: &Flags, said: Option<&Scheduler>) -> Config {
    const RESPONSE_HEADERS: Key =
        live("response_headers", "Whether answers carry the `x-prefixroute-*` headers");
    const WATCH: Key = live("watch", "Whether the file is looked at for changes, and reloaded");
    let (listeners, admin) = listeners::read(top, flags);
    let pools = pools::read(top, flags, said);
    let edge = edge::read(top);
    let limits = top.section(LIMITS, limits);
    let timeouts = top.section(TIMEOUTS, timeouts);
    let response_headers = top.value(RESPONSE_HEADERS, &Switch, defaults::RESPONSE_HEADERS).value;
    let access_log = access_log(top);
    let decision_log = decision_log::read(top);
    let traces = top.optional(TRACES, &TRACES_FORM).map(|url| url.value);
    let watch = top.value(WATCH, &Switch, defaults::WATCH).value;
    let ending = ending::read(top);
    Config {
        listeners,
        admin,
        pools,
        edge,
        limits,
        timeouts,
        response_headers,
        access_log,
        decision_log,
        traces,
        watch,
        ending,
    }
}

const LIMITS: Key = live("limits", "What clients may send");
const BODY: Key = live("body_bytes_max", "Bytes of one request's body; a longer one is answered 413");
const BODIES: Key = restart("bodies_bytes_max", "Bytes of all bodies held in memory at once");
const HEADERS: Key = live(
    "headers_bytes_max",
    "Bytes of a request's head, first line and headers; a longer one is answered 431, so is one of more than 256 headers",
);
const HEADERS_SIZE: Sizes = Sizes { min: HEADERS_BYTES_MIN, max: HEADERS_BYTES_LIMIT };
const CONNECTIONS: Key = live(
    "connections_max",
    "Connections of clients at once; further ones wait to be accepted, and silent ones are closed for them",
)
.default_is("65536, or what the limit of descriptors allows");
const CONNECTIONS_COUNT: Integers = Integers { min: 1, max: CONNECTIONS_LIMIT };

fn limits(section: &mut Section<'_, '_>) -> Limits {
    let body = section.value(BODY, &SIZE, defaults::BODY_BYTES_MAX);
    let bodies = section.value(BODIES, &SIZE, defaults::BODIES_BYTES_MAX);
    let headers = section.value(HEADERS, &HEADERS_SIZE, defaults::HEADERS_BYTES_MAX);
    let connections = section.optional(CONNECTIONS, &CONNECTIONS_COUNT);
    let limits = Limits {
        body_bytes_max: body.value,
        bodies_bytes_max: bodies.value,
        headers_bytes_max: headers.value,
        connections_max: connections.and_then(|connections| usize::try_from(connections.value).ok()),
    };
    if bodies.value < body.value
        && let Some(place) = first_written(&[&bodies, &body])
    {
        let wanted = format!("at least limits.body_bytes_max, {} bytes", body.value);
        let reason = Reason::thing(format_args!("{} bytes", bodies.value), wanted);
        section.reader.fault(place, &bodies.path, reason);
    }
    limits
}

/// Where two values that do not go together are told: at the first of them that was written. Values at fault are
/// defaults already.
fn first_written<T>(values: &[&Placed<T>]) -> Option<crate::read::Place> {
    values.iter().find(|value| value.is_written()).map(|value| value.place)
}

const TIMEOUTS: Key = live("timeouts", "How long clients may take");

fn timeouts(section: &mut Section<'_, '_>) -> ClientTimeouts {
    const REQUEST_HEAD: Key = live(
        "request_head",
        "Time for a request's head to arrive, from its first byte on; on a new connection from its start",
    );
    const REQUEST_BODY: Key = live("request_body", "Time for a whole request body to arrive");
    const CLIENT_WRITE: Key = live("client_write", "Time that a client may leave an answer unread");
    const KEEP_ALIVE: Key = live("keep_alive", "Life of an unused connection of a client");
    ClientTimeouts {
        request_head: section.value(REQUEST_HEAD, &TIMEOUT, defaults::REQUEST_HEAD_TIMEOUT).value,
        request_body: section.value(REQUEST_BODY, &TIMEOUT, defaults::REQUEST_BODY_TIMEOUT).value,
        client_write: section.value(CLIENT_WRITE, &TIMEOUT, defaults::CLIENT_WRITE_TIMEOUT).value,
        keep_alive: section.value(KEEP_ALIVE, &TIMEOUT, defaults::KEEP_ALIVE_TIMEOUT).value,
    }
}

/// A path in the configuration is from the file's own folder.
fn access_log(top: &mut Section<'_, '_>) -> Option<AccessLog> {
    const ACCESS_LOG: Key = live(
        "access_log",
        "Where a line of JSON for each request goes; a file is opened to append, and anew at each reload",
    );
    const FORM: Text<PathBuf> = Text {
        wanted: "stdout or a path",
        pattern: "^.+$",
        read: |text| {
            let path = !text.is_empty() && is_one_line(text);
            if path { Ok(PathBuf::from(text)) } else { Err(Reason::text(text, "stdout or a path")) }
        },
        show: |path| path.display().to_string(),
    };
    let written = top.optional(ACCESS_LOG, &FORM)?.value;
    if written == Path::new("stdout") {
        return Some(AccessLog::Stdout);
    }
    Some(AccessLog::File(top.reader.in_folder(&written)))
}

const TRACES: Key =
    restart("traces", "Where spans go by OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`");
const WANTED_URL: &str = "http[s]://HOST[:PORT][/PATH]";
const TRACES_FORM: Text<String> = Text {
    wanted: WANTED_URL,
    pattern: "^https?://[^/?#@]+(/[^?#]*)?$",
    read: traces_url,
    show: String::clone,
};

fn traces_url(text: &str) -> Result<String, Reason> {
    if let Some(part) = secret_part(text) {
        return Err(Reason::thing(part, WANTED_URL));
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let plain = rest.is_some_and(|rest| !rest.starts_with('/')) && !text.contains(is_mended);
    match url::Url::parse(text) {
        Ok(url) if plain && url.port() != Some(0) => Ok(text.to_owned()),
        _ => Err(Reason::text(text, WANTED_URL)),
    }
}
