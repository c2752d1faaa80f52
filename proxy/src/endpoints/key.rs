//! The operator's own headers for an engine, as lines of a head: for what the router asks on its own behalf.

use http::{HeaderName, HeaderValue, header};

/// What the router itself says of a request that it makes.
const FRAMING: [HeaderName; 4] =
    [header::HOST, header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

/// The lines of a head, each with its line end: `Authorization` with the endpoint's key, and the further headers. One that
/// is no header is left out, so that none can end the head; the configuration has refused it before.
pub(super) fn lines(endpoint: &config::Endpoint) -> Vec<u8> {
    let key = endpoint.key.as_ref().map(|key| [b"Bearer ", key.expose()].concat());
    let key = key.map(|value| (header::AUTHORIZATION.as_str(), value));
    let further = endpoint.headers.iter().map(|(name, value)| (name.as_str(), value.expose().to_vec()));
    let lines = key.into_iter().chain(further).filter_map(|(name, value)| line(name, &value));
    lines.flatten().collect()
}

fn line(name: &str, value: &[u8]) -> Option<Vec<u8>> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok().filter(|name| !FRAMING.contains(name))?;
    let value = HeaderValue::from_bytes(value).ok()?;
    Some([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use config::{EndpointName, EndpointUrl, Secret};

    use super::*;

    #[test]
    fn a_key_and_headers_are_lines_and_nothing_else() {
        for (name, key, headers, wanted) in [
            ("none", None, vec![], ""),
            ("a key", Some("k"), vec![], "authorization: Bearer k\r\n"),
            (
                "both",
                Some("k"),
                vec![("X-Team", "a b"), ("x-other", "c")],
                "authorization: Bearer k\r\nx-team: a b\r\nx-other: c\r\n",
            ),
            ("a line end in a value", Some("k\r\nx: y"), vec![("a", "b\nc"), ("d", "e")], "d: e\r\n"),
            ("framing", None, vec![("Host", "b"), ("content-length", "9")], ""),
            ("no name", None, vec![("a b", "c"), ("", "c"), ("a:", "c")], ""),
        ] {
            let url = EndpointUrl::new("http://a").unwrap();
            let mut endpoint = config::Endpoint::new(EndpointName::new("a").unwrap(), url);
            endpoint.key = key.map(|key| Secret::new(key.as_bytes()));
            let header = |(name, value): (&str, &str)| (name.to_owned(), Secret::new(value.as_bytes()));
            endpoint.headers = headers.into_iter().map(header).collect();
            assert_eq!(String::from_utf8(lines(&endpoint)).unwrap(), wanted, "{name}");
        }
    }
}
