//! Whose key a request carries, and what engines see of it.
//!
//! Keys are known by their SHA-256 alone. The look-up tells nothing about them by its time: where a hash lies in the map
//! is drawn by SipHash under a key of this process, which no client knows or can choose collisions for, and two hashes are
//! compared in a time that does not depend on where they differ. A client's own key is hashed before either, so a key
//! that shares its beginning with a right one is as far from it as any other.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use config::{ClientKey, KeyHash, Secret};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use subtle::ConstantTimeEq;

/// The other header that keys come in (Anthropic's clients).
pub(crate) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// What a 401 asks for in `WWW-Authenticate` (RFC 9110, 11.6.1).
pub(crate) const CHALLENGE: &str = "Bearer";
const SCHEME: &[u8] = b"bearer";
/// Headers that frame a request or belong to one connection. A second one of them would be a second request to somebody.
const RESERVED: [HeaderName; 9] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
];

/// The key of a request, as its headers give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given<'a> {
    /// None, or an empty one.
    Nothing,
    /// One, however often.
    Key(&'a [u8]),
    /// Keys that differ: router and engine could take different ones.
    Several,
}

/// Who owns which key.
#[derive(Debug)]
pub(crate) struct Keys<T>(HashMap<Digest, T>);

/// SHA-256 of a key, compared in constant time.
#[derive(Clone, Copy)]
struct Digest([u8; SHA256_OUTPUT_LEN]);

/// What becomes of the client's headers on the way to one endpoint. Made once for an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Headers of the client's that stay here.
    pub(crate) leave_out: Vec<HeaderName>,
    /// Headers that the engine gets in addition; values are marked as sensitive.
    pub(crate) add: Vec<(HeaderName, HeaderValue)>,
}

/// A configured header that cannot be sent. The value is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    /// No header's name or value.
    #[error("header {0:?} of an endpoint: found bytes that a header cannot hold")]
    Bytes(String),
    /// One of [`RESERVED`].
    #[error("header {0:?} of an endpoint: found one that frames the request, which the router sets itself")]
    Reserved(String),
}

/// The key that a request carries in `Authorization: Bearer` or `x-api-key`. Other schemes carry none.
pub(crate) fn given(headers: &HeaderMap) -> Given<'_> {
    let bearer = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| bearer(value.as_bytes()));
    let plain = headers.get_all(X_API_KEY).iter().map(|value| value.as_bytes().trim_ascii());
    let mut keys = bearer.chain(plain).filter(|key| !key.is_empty());
    match keys.next() {
        None => Given::Nothing,
        Some(first) if keys.all(|key| key == first) => Given::Key(first),
        Some(_) => Given::Several,
    }
}

/// What follows the scheme, whose case does not matter (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    let apart = rest.first().is_none_or(|&byte| matches!(byte, b' ' | b'\t'));
    (scheme.eq_ignore_ascii_case(SCHEME) && apart).then(|| rest.trim_ascii())
}

impl<T> Keys<T> {
    /// Keys and their owners; of a key that stands twice the last owner counts.
    pub(crate) fn new(owners: impl Iterator<Item = (KeyHash, T)>) -> Self {
        Self(owners.map(|(KeyHash(hash), owner)| (Digest(hash), owner)).collect())
    }

    /// The owner of a key.
    pub(crate) fn owner(&self, key: &[u8]) -> Option<&T> {
        let hash = <[u8; SHA256_OUTPUT_LEN]>::try_from(digest(&SHA256, key).as_ref()).ok()?;
        self.0.get(&Digest(hash))
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Digest(..)")
    }
}

impl Credentials {
    /// What an endpoint gets: its own key and headers in place of the client's, or the client's key as configured.
    ///
    /// The two headers of a key go together: beside a key of the endpoint's in one of them, the client's stays out of both.
    /// Errors: a configured name or value that is no header, or none that may be chosen.
    pub(crate) fn new(client_key: ClientKey, endpoint: &config::Endpoint) -> Result<Self, HeaderError> {
        let mut add = Vec::new();
        if let Some(key) = &endpoint.key {
            let value = Secret::new([b"Bearer ", key.expose()].concat());
            add.push(checked(header::AUTHORIZATION.as_str(), &value)?);
        }
        for (name, value) in &endpoint.headers {
            let (name, value) = checked(name, value)?;
            add.retain(|(earlier, _)| *earlier != name);
            add.push((name, value));
        }
        let mut leave_out: Vec<_> = add.iter().map(|(name, _)| name.clone()).collect();
        let keys = [header::AUTHORIZATION, X_API_KEY];
        if client_key == ClientKey::Drop || leave_out.iter().any(|name| keys.contains(name)) {
            leave_out.retain(|name| !keys.contains(name));
            leave_out.extend(keys);
        }
        Ok(Self { leave_out, add })
    }
}

fn checked(name: &str, value: &Secret) -> Result<(HeaderName, HeaderValue), HeaderError> {
    let invalid = || HeaderError::Bytes(name.to_owned());
    let checked_name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
    if RESERVED.contains(&checked_name) {
        return Err(HeaderError::Reserved(name.to_owned()));
    }
    let mut value = HeaderValue::from_bytes(value.expose()).map_err(|_| invalid())?;
    value.set_sensitive(true);
    Ok((checked_name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Endpoint, EndpointName, EndpointUrl};

    fn headers(list: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_bytes(value).expect("a value"));
        }
        headers
    }

    #[test]
    fn a_key_is_found_in_either_header() {
        let (auth, plain) = ("authorization", "x-api-key");
        for (shows, list, wanted) in [
            ("nothing", vec![], Given::Nothing),
            ("bearer", vec![(auth, &b"Bearer sk-1"[..])], Given::Key(b"sk-1")),
            ("the scheme in any case", vec![(auth, b"bEARER sk-1")], Given::Key(b"sk-1")),
            ("more room than one space", vec![(auth, b" Bearer \t sk-1 ")], Given::Key(b"sk-1")),
            ("case of the key counts", vec![(auth, b"Bearer SK-1")], Given::Key(b"SK-1")),
            ("x-api-key", vec![(plain, b"sk-1")], Given::Key(b"sk-1")),
            ("no scheme in x-api-key", vec![(plain, b"Bearer sk-1")], Given::Key(b"Bearer sk-1")),
            ("another scheme", vec![(auth, b"Basic c2stMQ==")], Given::Nothing),
            ("another scheme beside a key", vec![(auth, b"Basic x"), (plain, b"sk-1")], Given::Key(b"sk-1")),
            ("a scheme that begins so", vec![(auth, b"Bearersk-1")], Given::Nothing),
            ("the scheme alone", vec![(auth, b"Bearer")], Given::Nothing),
            ("an empty key", vec![(auth, b"Bearer ")], Given::Nothing),
            ("an empty header", vec![(auth, b""), (plain, b"")], Given::Nothing),
            ("an empty one beside a key", vec![(auth, b"Bearer "), (plain, b"sk-1")], Given::Key(b"sk-1")),
            ("one key twice", vec![(auth, b"Bearer sk-1"), (plain, b"sk-1")], Given::Key(b"sk-1")),
            ("two keys", vec![(auth, b"Bearer sk-1"), (plain, b"sk-2")], Given::Several),
            ("two in one header", vec![(auth, b"Bearer sk-1"), (auth, b"Bearer sk-2")], Given::Several),
            ("no text", vec![(plain, b"\xff\x80")], Given::Key(b"\xff\x80")),
        ] {
            assert_eq!(given(&headers(&list)), wanted, "{shows}");
        }
    }

    #[test]
    fn keys_are_known_by_their_hash() {
        let hash = |key: &[u8]| KeyHash(digest(&SHA256, key).as_ref().try_into().expect("32 bytes"));
        let keys = Keys::new([(hash(b"sk-1"), "a"), (hash(b"sk-2"), "a"), (hash(b"sk-3"), "b")].into_iter());
        for (shows, key, owner) in [
            ("a key", &b"sk-1"[..], Some("a")),
            ("another of the same owner", b"sk-2", Some("a")),
            ("another owner's", b"sk-3", Some("b")),
            ("unknown", b"sk-4", None),
            ("a beginning", b"sk-", None),
            ("longer", b"sk-1 ", None),
            ("empty", b"", None),
            ("the hash itself is no key", &hash(b"sk-1").0, None),
        ] {
            assert_eq!(keys.owner(key).copied(), owner, "{shows}");
        }
        assert!(!format!("{keys:?}").contains(char::is_numeric), "hashes are not shown");
    }

    #[test]
    fn engines_see_what_is_configured() {
        let (auth, plain) = ("authorization", "x-api-key");
        for (shows, client_key, key, own, left, added) in [
            ("as it came", ClientKey::Forward, None, vec![], vec![], vec![]),
            ("dropped in both headers", ClientKey::Drop, None, vec![], vec![auth, plain], vec![]),
            (
                "the endpoint's key for the client's",
                ClientKey::Forward,
                Some("k"),
                vec![],
                vec![auth, plain],
                vec![(auth, "Bearer k")],
            ),
            (
                "a header of that name",
                ClientKey::Forward,
                None,
                vec![("X-Team", "t")],
                vec!["x-team"],
                vec![("x-team", "t")],
            ),
            (
                "a key in a header drops both",
                ClientKey::Forward,
                None,
                vec![("X-API-Key", "k")],
                vec![auth, plain],
                vec![(plain, "k")],
            ),
            (
                "a header goes before the key",
                ClientKey::Drop,
                Some("k"),
                vec![("Authorization", "Basic b")],
                vec![auth, plain],
                vec![(auth, "Basic b")],
            ),
            (
                "both kinds",
                ClientKey::Drop,
                Some("k"),
                vec![("x-team", "t")],
                vec!["x-team", auth, plain],
                vec![(auth, "Bearer k"), ("x-team", "t")],
            ),
        ] {
            let got = Credentials::new(client_key, &endpoint(key, &own)).expect("headers");
            let names: Vec<_> = got.leave_out.iter().map(HeaderName::as_str).collect();
            assert_eq!(names, left, "{shows}");
            let values: Vec<_> =
                got.add.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
            assert_eq!(values, added, "{shows}");
            assert!(got.add.iter().all(|(_, value)| value.is_sensitive()), "{shows}");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_and_not_repeated() {
        for (shows, key, own) in [
            ("a line end in the key", Some("secret\r\nx: y"), vec![]),
            ("a line end in a value", None, vec![("x-team", "secret\n")]),
            ("a name with a space", None, vec![("x team", "secret")]),
            ("a second length", None, vec![("Content-Length", "secret")]),
            ("a second host", None, vec![("host", "secret")]),
        ] {
            let error = Credentials::new(ClientKey::Forward, &endpoint(key, &own)).expect_err(shows);
            assert!(!error.to_string().contains("secret"), "{shows}");
        }
    }

    fn endpoint(key: Option<&str>, own: &[(&str, &str)]) -> Endpoint {
        let name = EndpointName::new("a").expect("a name");
        let url = EndpointUrl::new("http://127.0.0.1:1").expect("a url");
        let headers = own.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value))).collect();
        Endpoint { key: key.map(Secret::new), headers, ..Endpoint::new(name, url) }
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_read_without_a_panic(value in proptest::collection::vec(0u8.., 0..40), twice: bool) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let mut headers = HeaderMap::new();
                headers.append(header::AUTHORIZATION, value.clone());
                if twice {
                    headers.append(header::AUTHORIZATION, value);
                }
                proptest::prop_assert_ne!(given(&headers), Given::Several);
            }
        }
    }
}
