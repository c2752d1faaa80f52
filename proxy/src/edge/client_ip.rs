//! Where a request comes from, behind proxies that are known, and what engines are told of it.
//!
//! `X-Forwarded-For` grows at its right end: each proxy appends who spoke to it. What a known proxy appended is believed,
//! so the client is the rightmost address that is no known proxy's. All that stands to the left of it, the client may have
//! written itself.

use std::net::{IpAddr, SocketAddr};

use config::Network;
use http::{HeaderMap, HeaderName, HeaderValue, header};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Further headers in which a client could say who it is.
const ALSO: [HeaderName; 4] = [
    header::FORWARDED,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-port"),
];
/// Addresses of one request that are looked at; who needs more has no client.
const HOPS_MAX: usize = 64;

/// The proxies that are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies(Vec<Network>);

/// What becomes of the client's headers on the way to an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// Headers of the client's that stay here.
    pub(crate) leave_out: Vec<HeaderName>,
    /// Headers that the engine gets in addition.
    pub(crate) add: Vec<(HeaderName, HeaderValue)>,
}

impl Proxies {
    /// Those of the configuration.
    pub(crate) fn new(networks: &[Network]) -> Self {
        Self(networks.to_vec())
    }

    /// Who the client is: the peer, or whom it speaks for if it is a known proxy. An address that cannot be read ends the
    /// search at the last that could; where all are known, the client is the leftmost.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let values = headers.get_all(FORWARDED_FOR).iter().rev();
        let hops = values.flat_map(|value| value.as_bytes().rsplit(|&byte| byte == b','));
        let mut hops = hops.map(<[u8]>::trim_ascii).filter(|hop| !hop.is_empty()).take(HOPS_MAX);
        while self.know(client) {
            let Some(before) = hops.next().and_then(address) else { break };
            client = before;
        }
        client
    }

    /// What an engine is told: the client's address behind those that a known proxy gave, and how the client came in. Of a
    /// peer that is no known proxy, everything that it says about itself stays here.
    pub(crate) fn forwarded(&self, peer: IpAddr, tls: bool, headers: &HeaderMap) -> Forwarded {
        let peer = peer.to_canonical();
        let known = self.know(peer);
        let said = |name: &HeaderName| headers.get_all(name).iter().filter(|_| known);
        let mut chain: Vec<u8> = Vec::new();
        for hop in said(&FORWARDED_FOR).filter(|hop| !hop.is_empty()) {
            chain.extend_from_slice(hop.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(peer.to_string().as_bytes());
        let ours = HeaderValue::from_static(if tls { "https" } else { "http" });
        let proto = said(&FORWARDED_PROTO).next().cloned().unwrap_or(ours);
        let mut leave_out = vec![FORWARDED_FOR, FORWARDED_PROTO];
        if !known {
            leave_out.extend(ALSO);
        }
        let chain = HeaderValue::from_bytes(&chain).ok();
        let add = chain.map(|chain| (FORWARDED_FOR, chain)).into_iter().chain([(FORWARDED_PROTO, proto)]);
        Forwarded { leave_out, add: add.collect() }
    }

    fn know(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

/// An address as proxies write it: bare, with a port, or in brackets with or without one.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let with_port = || text.parse::<SocketAddr>().map(|address| address.ip());
    bare.parse().or_else(|_| with_port()).ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// 10.0.0.0/8 and fd00::/8.
    fn proxies() -> Proxies {
        let network = |(address, prefix)| Network { address: ip(address), prefix };
        Proxies([("10.0.0.0", 8), ("fd00::", 8)].map(network).to_vec())
    }

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        headers
    }

    fn chain(values: &[&str]) -> HeaderMap {
        let list: Vec<_> = values.iter().map(|value| ("x-forwarded-for", *value)).collect();
        headers(&list)
    }

    #[test]
    fn the_client_is_the_rightmost_that_is_no_proxy() {
        for (shows, peer, values, wanted) in [
            ("no header", "10.0.0.1", vec![], "10.0.0.1"),
            ("a stranger is not believed", "192.0.2.1", vec!["198.51.100.7"], "192.0.2.1"),
            ("a proxy is", "10.0.0.1", vec!["198.51.100.7"], "198.51.100.7"),
            ("what the client wrote is not", "10.0.0.1", vec!["1.1.1.1, 198.51.100.7"], "198.51.100.7"),
            ("through two proxies", "10.0.0.1", vec!["1.1.1.1, 198.51.100.7,10.0.0.2"], "198.51.100.7"),
            ("in several headers", "10.0.0.1", vec!["1.1.1.1", "198.51.100.7", "10.0.0.2"], "198.51.100.7"),
            ("all are proxies", "10.0.0.1", vec!["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("spaces", "10.0.0.1", vec!["  198.51.100.7\t"], "198.51.100.7"),
            ("empty places", "10.0.0.1", vec!["198.51.100.7, ,", ""], "198.51.100.7"),
            ("a port", "10.0.0.1", vec!["198.51.100.7:4711"], "198.51.100.7"),
            ("IPv6", "fd00::1", vec!["2001:db8::7"], "2001:db8::7"),
            ("in brackets", "fd00::1", vec!["[2001:db8::7]"], "2001:db8::7"),
            ("with a port", "fd00::1", vec!["[2001:db8::7]:4711"], "2001:db8::7"),
            ("a peer as IPv6 sees it", "::ffff:10.0.0.1", vec!["198.51.100.7"], "198.51.100.7"),
            ("a hop as IPv6 sees it", "10.0.0.1", vec!["198.51.100.7, ::ffff:10.0.0.2"], "198.51.100.7"),
            ("a word ends the search", "10.0.0.1", vec!["198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2"),
            ("a word alone", "10.0.0.1", vec!["unknown"], "10.0.0.1"),
            ("a bracket too many", "10.0.0.1", vec!["[198.51.100.7"], "10.0.0.1"),
            ("a port that is none", "10.0.0.1", vec!["198.51.100.7:99999"], "10.0.0.1"),
            ("an address with a zone", "10.0.0.1", vec!["fe80::1%eth0"], "10.0.0.1"),
            ("in quotes", "10.0.0.1", vec!["\"198.51.100.7\""], "10.0.0.1"),
            ("no text", "10.0.0.1", vec!["\u{e9}"], "10.0.0.1"),
        ] {
            assert_eq!(proxies().client(ip(peer), &chain(&values)), ip(wanted), "{shows}");
        }
        let long = ["10.0.0.9,"; HOPS_MAX].concat();
        let far = proxies().client(ip("10.0.0.1"), &chain(&["198.51.100.7", &long]));
        assert_eq!(far, ip("10.0.0.9"), "no endless walk");
    }

    #[test]
    fn engines_are_told_what_is_known() {
        let (of, proto, real) = ("x-forwarded-for", "x-forwarded-proto", "x-real-ip");
        for (shows, peer, tls, list, left_out, wanted) in [
            ("a first hop", "192.0.2.1", false, vec![], 6, [(of, "192.0.2.1"), (proto, "http")]),
            ("over TLS", "192.0.2.1", true, vec![], 6, [(of, "192.0.2.1"), (proto, "https")]),
            (
                "a stranger's own words are dropped",
                "192.0.2.1",
                false,
                vec![(of, "1.1.1.1"), (proto, "https"), (real, "1.1.1.1")],
                6,
                [(of, "192.0.2.1"), (proto, "http")],
            ),
            (
                "a proxy's are kept",
                "10.0.0.1",
                false,
                vec![(of, "1.1.1.1, 192.0.2.1"), (of, "10.0.0.2"), (proto, "https")],
                2,
                [(of, "1.1.1.1, 192.0.2.1, 10.0.0.2, 10.0.0.1"), (proto, "https")],
            ),
            (
                "a proxy that says nothing",
                "10.0.0.1",
                true,
                vec![(of, "")],
                2,
                [(of, "10.0.0.1"), (proto, "https")],
            ),
            ("IPv4 in IPv6", "::ffff:192.0.2.1", false, vec![], 6, [(of, "192.0.2.1"), (proto, "http")]),
            ("IPv6", "2001:db8::7", false, vec![], 6, [(of, "2001:db8::7"), (proto, "http")]),
        ] {
            let Forwarded { leave_out, add } = proxies().forwarded(ip(peer), tls, &headers(&list));
            let told: Vec<_> =
                add.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
            assert_eq!(told, wanted, "{shows}");
            assert_eq!(leave_out.len(), left_out, "{shows}");
            assert!(leave_out.contains(&FORWARDED_FOR) && leave_out.contains(&FORWARDED_PROTO), "{shows}");
            assert_eq!(leave_out.contains(&HeaderName::from_static(real)), left_out == 6, "{shows}");
        }
    }
}
