//! What clients write into heads: addresses, keys, origins, paths, traces, and what is logged of it.
//!
//! The first byte chooses what is read, `1` to `6`; the rest is the values, one a line.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use config::{Network, PathPattern};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use pingora_http::{RequestHeader, ResponseHeader};

use crate::edge::access_log::{Line, Text};
use crate::edge::client_ip::Proxies;
use crate::edge::cors::Cors;
use crate::edge::keys::{Given, X_API_KEY, given};
use crate::edge::paths::Paths;
use crate::edge::trace_context::trace_parent;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const LISTED: &str = "https://app.example";

static PROXIES: LazyLock<Proxies> = LazyLock::new(|| {
    let network =
        |(address, prefix): (&str, u8)| Network { address: address.parse().expect("an address"), prefix };
    Proxies::new(&[("10.0.0.0", 8), ("fd00::", 8)].map(network))
});
static PATHS: LazyLock<Paths> =
    LazyLock::new(|| Paths::new(&["/v1/*", "/tokenize"].map(|path| PathPattern(path.to_owned()))));
static CORS: LazyLock<[Cors; 2]> = LazyLock::new(|| {
    let cors = |origin: &str, headers: &[&str]| {
        let headers = headers.iter().map(|name| (*name).to_owned()).collect();
        Cors::new(&config::Cors {
            origins: vec![origin.to_owned()],
            headers,
            max_age: Duration::from_secs(9),
        })
    };
    [cors(LISTED, &["x-a", "x-b"]), cors("*", &[])]
});

/// Runs the oracle. Panics where it does not hold.
pub fn run(data: &[u8]) {
    let Some((&first, text)) = data.split_first() else { return };
    match first.wrapping_sub(b'1') % 6 {
        0 => addresses(text),
        1 => keys(text),
        2 => path(text),
        3 => origins(text),
        4 => trace(text),
        _ => logged(text),
    }
}

/// A head with a value a line, each under one of the names in turn; lines that are no value are left out.
fn headers(names: &[HeaderName], text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (value, name) in text.split(|byte| *byte == b'\n').zip(names.iter().cycle()) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(name, value);
        }
    }
    headers
}

/// The client is the peer or one of the addresses; all to the right of it are known proxies.
fn addresses(text: &[u8]) {
    let (of, proto) =
        (HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-forwarded-proto"));
    let mut headers = headers(std::slice::from_ref(&of), text);
    let client = PROXIES.client(PEER, &headers);
    let values = headers.get_all(&of).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let hops: Vec<_> = values.map(<[u8]>::trim_ascii).filter(|hop| !hop.is_empty()).collect();
    let mut wanted = PEER;
    for hop in hops.iter().rev().take(64) {
        let is_proxy = match wanted {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.octets()[0] == 0xfd,
        };
        let Some(address) = std::str::from_utf8(hop).ok().and_then(address).filter(|_| is_proxy) else {
            break;
        };
        wanted = address;
    }
    assert_eq!(client, wanted);
    headers.append(&proto, HeaderValue::from_static("https"));
    for (peer, told) in [(PEER, true), (IpAddr::from([192, 0, 2, 1]), false)] {
        let forwarded = PROXIES.forwarded(peer, false, &headers);
        let [(chain_name, chain), (_, scheme)] = &forwarded.add[..] else { panic!("two headers") };
        assert_eq!((chain_name, scheme == "https"), (&of, told));
        let chain = chain.as_bytes();
        let end = peer.to_string();
        assert!(chain.ends_with(end.as_bytes()) && (told || chain.len() == end.len()), "{chain:?}");
    }
}

/// With a port or without, in brackets or not.
fn address(text: &str) -> Option<IpAddr> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let address = inside.unwrap_or(text).parse::<IpAddr>().ok();
    let address = address.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))?;
    Some(address.to_canonical())
}

/// A key is one word of one header, and all headers that have one say the same.
fn keys(text: &[u8]) {
    let headers = headers(&[header::AUTHORIZATION, X_API_KEY], text);
    let mut found: Vec<&[u8]> = Vec::new();
    for value in headers.get_all(header::AUTHORIZATION) {
        let value = value.as_bytes().trim_ascii();
        let end = value.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(value.len());
        if value[..end].eq_ignore_ascii_case(b"bearer") {
            found.push(value[end..].trim_ascii());
        }
    }
    found.extend(headers.get_all(X_API_KEY).iter().map(|value| value.as_bytes().trim_ascii()));
    found.retain(|key| !key.is_empty());
    found.sort_unstable();
    found.dedup();
    let wanted = match found[..] {
        [] => Given::Nothing,
        [key] => Given::Key(key),
        _ => Given::Several,
    };
    assert_eq!(given(&headers), wanted);
}

/// Of a path that is served every reading means the same: decoded once or often, dots resolved or not.
fn path(target: &[u8]) {
    if !PATHS.serves(target) {
        return;
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let once = decoded(path);
    assert_eq!(decoded(&once), once, "nothing is left to decode");
    let text = std::str::from_utf8(&once).expect("UTF-8");
    assert!(text == "/tokenize" || text.starts_with("/v1/"), "{text}");
    assert!(
        !text.contains("//")
            && !text.contains(['\\', ';', '#', '?', '%'])
            && !text.chars().any(|c| c.is_ascii_control())
    );
    assert!(text.split('/').all(|segment| segment.is_empty() || segment.contains(|c| c != '.')), "{text}");
    let slashes = |text: &[u8]| text.iter().filter(|byte| **byte == b'/').count();
    assert_eq!(slashes(&once), slashes(path), "no slash is hidden");
}

fn decoded(path: &[u8]) -> Vec<u8> {
    let digit = |at: usize| path.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut out, mut at) = (Vec::new(), 0);
    while at < path.len() {
        match (path[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// An origin that is not listed is told nothing; no answer has two permissions.
fn origins(text: &[u8]) {
    let asked =
        [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS];
    let headers = headers(&asked, text);
    let mut request = RequestHeader::build("OPTIONS", b"/v1/models", None).expect("a head");
    for (name, value) in &headers {
        request.append_header(name.clone(), value.clone()).expect("a header");
    }
    let is_listed = headers
        .get(header::ORIGIN)
        .is_some_and(|origin| origin.as_bytes().eq_ignore_ascii_case(LISTED.as_bytes()));
    for (cors, may) in CORS.iter().zip([is_listed, headers.contains_key(header::ORIGIN)]) {
        let preflight = cors.preflight(&request).expect("a head");
        let mut answer = ResponseHeader::build(200, None).expect("a status");
        let own = headers.get(header::ORIGIN).cloned().unwrap_or(HeaderValue::from_static("*"));
        answer.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, own).expect("a header");
        cors.amend(&headers, &mut answer).expect("a head");
        for answer in [&preflight, &answer] {
            let allowed = answer.headers.get_all(header::ACCESS_CONTROL_ALLOW_ORIGIN).iter().count();
            assert_eq!(allowed, usize::from(may), "{answer:?}");
        }
    }
}

/// What names a trace is fit for a log and a span.
fn trace(text: &[u8]) {
    let headers = headers(&[HeaderName::from_static("traceparent")], text);
    let Some(trace) = trace_parent(&headers) else { return };
    let is_id = |id: &str, length| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        id.len() == length && id.bytes().all(is_digit) && id.bytes().any(|digit| digit != b'0')
    };
    assert!(is_id(trace.trace_id, 32) && is_id(trace.parent_id, 16), "{trace:?}");
}

/// A line is one line of JSON, and says of each text no more than its first 256 bytes.
fn logged(text: &[u8]) {
    let mut parts = text.split(|byte| *byte == b'\n');
    let mut next = || Text(parts.next().unwrap_or_default());
    let (id, method, path, model) = (next(), next(), next(), next());
    let user_agent = Some(Text(text));
    let line = Line { request_id: Some(id), method, path, model: Some(model), user_agent, ..Line::default() };
    let json = line.json();
    let inner = json.strip_suffix(b"\n").expect("a line");
    assert!(!inner.contains(&b'\n'), "one line");
    let read: serde_json::Value = serde_json::from_slice(inner).expect("JSON");
    for (name, wanted) in
        [("request_id", id), ("method", method), ("model", model), ("user_agent", Text(text))]
    {
        let said = read[name].as_str().expect("a text");
        assert_eq!(said, wanted.shown(), "{name}");
        assert!(said.chars().count() <= 256 && String::from_utf8_lossy(wanted.0).starts_with(said), "{name}");
    }
    assert!(!read["path"].as_str().expect("a text").contains('?'));
}
