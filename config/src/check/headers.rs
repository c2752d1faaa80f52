//! Headers for engines and from browsers: well-formed, and none that carries the message itself.

use http::{HeaderName, HeaderValue};

use super::names::refuse_repeated;
use crate::Secret;
use crate::defaults::HEADERS_MAX;
use crate::faults::Reason;
use crate::read::form::Text;
use crate::read::{Key, Placed, Reader, SecretForm, Section, Source, live};

const HEADERS: Key =
    live("headers", "Further headers for the engine, in place of the client's of those names");
/// A header's name, lower case.
pub(super) const NAME: Text<String> = Text {
    wanted: "a header's name",
    pattern: "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
    read: name,
    show: String::clone,
};
/// Headers that frame a message or belong to one connection (RFC 9110, 7.6.1): they are the router's own.
const OWN: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers whose values are secrets, whatever they are.
const SECRET: [&str; 4] = ["api-key", "authorization", "cookie", "x-api-key"];

fn name(text: &str) -> Result<String, Reason> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| Reason::text(text, NAME_WANTED))?;
    if OWN.contains(&name.as_str()) {
        return Err(Reason::text(text, "a header that is not the router's own"));
    }
    Ok(name.as_str().to_owned())
}

const NAME_WANTED: &str = "a header's name";

/// The headers of an endpoint. `has_key` if its `authorization` is spoken for.
pub(super) fn read(section: &mut Section<'_, '_>, has_key: bool) -> Vec<(String, Secret)> {
    let written = section.table(HEADERS, HEADERS_MAX, ("names of headers", &NAME), &SecretForm::Header);
    let names = written.iter().map(|(name, _)| name.clone());
    refuse_repeated(section.reader, names, String::clone, |name, _| Reason::text(name, "each header once"));
    let headers = written.into_iter().filter_map(|(name, source)| {
        if has_key && name.value == "authorization" {
            section.reader.fault_of(&name, Reason::thing("it beside key", "one of the two"));
        }
        value(section.reader, &name.value, source).map(|value| (name.value, value.value))
    });
    headers.collect()
}

fn value(reader: &mut Reader<'_>, name: &str, source: Placed<Source>) -> Option<Placed<Secret>> {
    if matches!(source.value, Source::Plain(_)) && SECRET.contains(&name) {
        reader.fault_of(&source, Reason::thing("a secret in plain text", "${NAME} or file:PATH"));
        return None;
    }
    let value = reader.secret(source)?;
    line(reader, value)
}

/// A secret that a header can carry.
pub(super) fn line(reader: &mut Reader<'_>, secret: Placed<Secret>) -> Option<Placed<Secret>> {
    if HeaderValue::from_bytes(secret.value.expose()).is_ok() {
        return Some(secret);
    }
    reader.fault_of(&secret, Reason::thing("a secret that no header can carry", "one line of text"));
    None
}
