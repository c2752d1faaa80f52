//! An endpoint's name and URL, checked once: past here the name is safe in a header, a metric's label and a
//! log, and the URL is a host and a port and nothing else.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use url::{Host, Url};

use crate::Secret;
use crate::defaults::{ENDPOINT_NAME_BYTES_MAX, ENDPOINT_PORT, ENDPOINT_TLS_PORT};
use crate::faults::Reason;

/// What a fault of a URL asks for.
pub(crate) const WANTED_URL: &str = "http[s]://HOST[:PORT]";

/// One server that requests may go to.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Unique over all pools.
    pub name: EndpointName,
    /// Unique in its pool, however it is spelled.
    pub url: EndpointUrl,
    /// The key that the engine wants, sent as `Authorization: Bearer` in place of the client's.
    pub key: Option<Secret>,
    /// Further headers for the engine, in place of the client's of those names. Values may be secrets.
    pub headers: Vec<(String, Secret)>,
    /// Its share of the load beside others; 1 for an ordinary one, 0 for one that gets nothing new.
    pub weight: f64,
}

impl Endpoint {
    /// An endpoint as a name and a URL describe it.
    pub fn new(name: EndpointName, url: EndpointUrl) -> Self {
        Self { name, url, key: None, headers: Vec::new(), weight: 1.0 }
    }
}

/// 1 to 63 characters of `[A-Za-z0-9._-]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointName(String);

/// `http://HOST[:PORT]` or `https://HOST[:PORT]`: no user, path, query or fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointUrl {
    tls: bool,
    host: String,
    port: u16,
    authority: String,
}

impl EndpointName {
    /// Checks a name. Error: what was found and what is wanted.
    pub fn new(text: &str) -> Result<Self, Reason> {
        if (1..=ENDPOINT_NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(is_allowed) {
            return Ok(Self(text.to_owned()));
        }
        Err(Reason::text(
            text,
            format_args!("1 to {ENDPOINT_NAME_BYTES_MAX} characters of A-Z a-z 0-9 . _ -"),
        ))
    }

    /// The name of an endpoint that was given none: `HOST-PORT`, so that it stays when a list's order changes. Error:
    /// the host is too long for a name.
    pub fn of_url(url: &EndpointUrl) -> Result<Self, Reason> {
        let name = format!("{}-{}", url.host.replace(|letter| !is_allowed(letter), "-"), url.port);
        Self::new(&name).map_err(|_| Reason::thing("a host too long for a name", "a name"))
    }

    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl EndpointUrl {
    /// Checks a URL. Error: what was found and what is wanted; a part that may hold a secret is not repeated.
    pub fn new(text: &str) -> Result<Self, Reason> {
        refuse_unwanted_parts(text)?;
        let url =
            Url::parse(text).map_err(|error| Reason::text(text, format_args!("{WANTED_URL} ({error})")))?;
        let tls = url.scheme() == "https";
        let port = url.port().unwrap_or(default_port(tls));
        if port == 0 {
            return Err(Reason::text(text, "a port from 1 to 65535"));
        }
        match url.host() {
            Some(host) if url.path() == "/" => Ok(Self::from_parts(tls, &host, port)),
            Some(_) => Err(Reason::text(text, format_args!("{WANTED_URL} without a path"))),
            None => Err(Reason::text(text, format_args!("{WANTED_URL} with a host"))),
        }
    }

    /// `http` at a host, an IPv6 address with its brackets or without, and a port. Nothing where the host is none.
    pub(crate) fn at(host: &str, port: u16) -> Option<Self> {
        let is_bare = host.parse::<Ipv6Addr>().is_ok();
        let host = if is_bare { format!("[{host}]") } else { host.to_owned() };
        Self::new(&format!("http://{host}:{port}")).ok()
    }

    fn from_parts(tls: bool, host: &Host<&str>, port: u16) -> Self {
        let authority = if port == default_port(tls) { host.to_string() } else { format!("{host}:{port}") };
        let host = match host {
            Host::Ipv6(address) => address.to_string(),
            Host::Ipv4(_) | Host::Domain(_) => host.to_string(),
        };
        Self { tls, host, port, authority }
    }

    /// Whether the engine speaks TLS.
    pub const fn tls(&self) -> bool {
        self.tls
    }

    /// The host to connect to: a name or an address, lower case, IPv6 without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port to connect to: never 0; 80 where the URL has none, with TLS 443.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The value of a Host header: `host:port`, IPv6 in brackets, the default port left out.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Equal for two spellings of one address: an IPv4 address inside an IPv6 one, a name with a final dot.
    pub(crate) fn address(&self) -> (String, u16) {
        let address = self.host.parse().map(|address: IpAddr| address.to_canonical().to_string());
        (address.unwrap_or_else(|_| self.host.trim_end_matches('.').to_owned()), self.port)
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

/// What a browser's URL parser would mend, drop or accept without a word.
fn refuse_unwanted_parts(text: &str) -> Result<(), Reason> {
    let scope = || is_scoped(text).then_some("an address with a scope");
    match secret_part(text).or_else(scope) {
        Some(part) => Err(Reason::thing(part, WANTED_URL)),
        None if is_plain(text) => Ok(()),
        None => Err(Reason::text(text, WANTED_URL)),
    }
}

/// What a URL has that may hold a secret, so that none of it is to be repeated.
pub(crate) fn secret_part(text: &str) -> Option<&'static str> {
    let parts = [('@', "a URL with a user"), ('?', "a URL with a query"), ('#', "a URL with a fragment")];
    parts.into_iter().find_map(|(mark, part)| text.contains(mark).then_some(part))
}

/// Whether a browser's URL parser would drop it or take it for another.
pub(crate) fn is_mended(letter: char) -> bool {
    letter.is_whitespace() || letter.is_control() || letter == '\\'
}

/// The scheme and then the host, with nothing between that would be dropped: `http:///v1` has no host `v1`.
fn is_plain(text: &str) -> bool {
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let known = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    known && !rest.starts_with('/') && !text.contains(is_mended)
}

fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-')
}

const fn default_port(tls: bool) -> u16 {
    if tls { ENDPOINT_TLS_PORT } else { ENDPOINT_PORT }
}

/// `[fe80::1%eth0]` means another host on every machine.
fn is_scoped(text: &str) -> bool {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let scoped = inside.and_then(|(address, _)| address.split_once('%'));
    scoped.is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_name_is_safe_wherever_it_goes() {
        let longest = "a".repeat(ENDPOINT_NAME_BYTES_MAX);
        for name in ["a", "vllm-0", "10.0.0.1", "A_b.C-9", longest.as_str()] {
            assert_eq!(EndpointName::new(name).unwrap().as_str(), name);
        }
        let too_long = "a".repeat(ENDPOINT_NAME_BYTES_MAX + 1);
        for name in ["", " ", "a b", "a\n", "a:1", "a/b", "a=b", "ä", "a\"", "a,b", too_long.as_str()] {
            assert!(EndpointName::new(name).is_err(), "{name:?}");
        }
        let reason = EndpointName::new("a b").unwrap_err().to_string();
        assert_eq!(reason, r#"found "a b", wanted 1 to 63 characters of A-Z a-z 0-9 . _ -"#);
    }

    #[test]
    fn a_url_is_a_host_and_a_port() {
        for (text, host, port, authority) in [
            ("http://127.0.0.1:8001", "127.0.0.1", 8001, "127.0.0.1:8001"),
            ("http://vllm-0.vllm", "vllm-0.vllm", 80, "vllm-0.vllm"),
            ("http://vllm:80/", "vllm", 80, "vllm"),
            ("HTTP://VLLM:8000", "vllm", 8000, "vllm:8000"),
            ("http://[::1]:8000", "::1", 8000, "[::1]:8000"),
            ("http://[2001:DB8::1]", "2001:db8::1", 80, "[2001:db8::1]"),
        ] {
            let url = EndpointUrl::new(text).unwrap();
            assert_eq!((url.host(), url.port(), url.authority()), (host, port, authority), "{text}");
            assert_eq!(url.to_string(), format!("http://{authority}"), "{text}");
            assert!(!url.tls(), "{text}");
        }
    }

    #[test]
    fn a_url_may_ask_for_tls() {
        for (text, port, shown) in [
            ("https://a", 443, "https://a"),
            ("HTTPS://a:443", 443, "https://a"),
            ("https://a:80", 80, "https://a:80"),
            ("http://a:443", 443, "http://a:443"),
        ] {
            let url = EndpointUrl::new(text).unwrap();
            assert_eq!((url.tls(), url.port()), (text.to_lowercase().starts_with("https"), port), "{text}");
            assert_eq!(url.to_string(), shown, "{text}");
        }
    }

    #[test]
    fn an_endpoint_without_a_name_has_its_address_for_one() {
        for (text, name) in [
            ("http://10.0.0.1:8000", "10.0.0.1-8000"),
            ("https://vllm-0.vllm", "vllm-0.vllm-443"),
            ("http://[2001:db8::1]", "2001-db8--1-80"),
        ] {
            let url = EndpointUrl::new(text).unwrap();
            assert_eq!(EndpointName::of_url(&url).unwrap().as_str(), name, "{text}");
        }
        let long = EndpointUrl::new(&format!("http://{}.example", "a".repeat(60))).unwrap();
        assert!(EndpointName::of_url(&long).is_err());
    }

    #[test]
    fn a_url_with_anything_else_is_refused() {
        for (text, reason) in [
            ("", r#"found "", wanted http[s]://HOST[:PORT]"#),
            ("127.0.0.1:8001", r#"found "127.0.0.1:8001", wanted http[s]://HOST[:PORT]"#),
            ("ftp://a", r#"found "ftp://a", wanted http[s]://HOST[:PORT]"#),
            ("https:///a", r#"found "https:///a", wanted http[s]://HOST[:PORT]"#),
            ("http:/a", r#"found "http:/a", wanted http[s]://HOST[:PORT]"#),
            ("http://a\\b", r#"found "http://a\\b", wanted http[s]://HOST[:PORT]"#),
            ("http:///a", r#"found "http:///a", wanted http[s]://HOST[:PORT]"#),
            (" http://a", r#"found " http://a", wanted http[s]://HOST[:PORT]"#),
            ("http://a\n", r#"found "http://a\n", wanted http[s]://HOST[:PORT]"#),
            ("http://", r#"found "http://", wanted http[s]://HOST[:PORT] (empty host)"#),
            ("http://:8000", r#"found "http://:8000", wanted http[s]://HOST[:PORT] (empty host)"#),
            ("http://a:0", r#"found "http://a:0", wanted a port from 1 to 65535"#),
            (
                "http://a:65536",
                r#"found "http://a:65536", wanted http[s]://HOST[:PORT] (invalid port number)"#,
            ),
            ("http://[::1", r#"found "http://[::1", wanted http[s]://HOST[:PORT] (invalid IPv6 address)"#),
            ("http://a/v1", r#"found "http://a/v1", wanted http[s]://HOST[:PORT] without a path"#),
            ("http://user:secret@a", "found a URL with a user, wanted http[s]://HOST[:PORT]"),
            ("http://@a", "found a URL with a user, wanted http[s]://HOST[:PORT]"),
            ("http://a/?key=secret", "found a URL with a query, wanted http[s]://HOST[:PORT]"),
            ("http://a#", "found a URL with a fragment, wanted http[s]://HOST[:PORT]"),
            ("http://[fe80::1%eth0]:8000", "found an address with a scope, wanted http[s]://HOST[:PORT]"),
            ("http://[fe80::1%25eth0]", "found an address with a scope, wanted http[s]://HOST[:PORT]"),
        ] {
            assert_eq!(EndpointUrl::new(text).unwrap_err().to_string(), reason, "{text}");
        }
    }

    #[test]
    fn two_spellings_of_one_address_are_one() {
        for (one, other) in [
            ("http://a", "http://A:80/"),
            ("http://a", "http://a."),
            ("http://127.0.0.1:8000", "http://[::ffff:127.0.0.1]:8000"),
            ("http://127.0.0.1", "http://127.1"),
            ("http://[::1]", "http://[0:0:0:0:0:0:0:1]:80"),
        ] {
            assert_eq!(
                EndpointUrl::new(one).unwrap().address(),
                EndpointUrl::new(other).unwrap().address(),
                "{one} {other}"
            );
        }
    }
}
