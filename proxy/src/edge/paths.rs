//! Which paths are served, where there is a list.
//!
//! A list keeps `/metrics`, `/v1/load_lora_adapter` or `/reset_prefix_cache` of an engine from its clients, so a path
//! must not mean one thing here and another there. Engines and proxies differ on dot segments, repeated slashes, encoded
//! separators, path parameters, backslashes and escapes of escapes. A path with any of them is not served at all: no client
//! of such an API writes one. What is left means the same to everybody who decodes it once.

use std::borrow::Cow;

use config::PathPattern;

/// Bytes that somebody takes for a separator, an end or a further escape, once they are decoded.
const AMBIGUOUS: [u8; 5] = [b'%', b'\\', b';', b'?', b'#'];

/// The paths that are served.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths(Vec<PathPattern>);

impl Paths {
    /// Those of a list; an empty one serves all.
    pub(crate) fn new(patterns: &[PathPattern]) -> Self {
        Self(patterns.to_vec())
    }

    /// Whether there is no list.
    pub(crate) fn serve_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request's target is served, as it will stand in the request to the engine: in origin form, with its query.
    /// Any other form is not, where there is a list.
    pub(crate) fn serves(&self, target: &[u8]) -> bool {
        if self.serve_all() {
            return true;
        }
        let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
        plain(path).is_some_and(|path| self.0.iter().any(|pattern| pattern.matches(&path)))
    }
}

/// A path decoded once, if it means the same to everybody.
fn plain(path: &[u8]) -> Option<String> {
    let segments = path.strip_prefix(b"/")?;
    let mut segments = segments.split(|&byte| byte == b'/').map(decoded).peekable();
    let mut plain = String::with_capacity(path.len());
    while let Some(segment) = segments.next() {
        let (segment, last) = (segment?, segments.peek().is_none());
        let text = std::str::from_utf8(&segment).ok()?;
        let dots = text.bytes().all(|byte| byte == b'.');
        // Empty text is all dots too: an empty segment is only the one behind a final slash.
        if (dots && !(last && text.is_empty())) || text.bytes().any(ambiguous) {
            return None;
        }
        plain.push('/');
        plain.push_str(text);
    }
    Some(plain)
}

fn ambiguous(byte: u8) -> bool {
    byte.is_ascii_control() || byte == b'/' || AMBIGUOUS.contains(&byte)
}

/// A segment with its escapes decoded; `None` for one that is cut short or has no hexadecimal digits.
fn decoded(segment: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !segment.contains(&b'%') {
        return Some(Cow::Borrowed(segment));
    }
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    let mut bytes = segment.iter().copied();
    let mut decoded = Vec::with_capacity(segment.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => u8::try_from(digit(bytes.next())? * 16 + digit(bytes.next())?).ok()?,
            byte => byte,
        };
        decoded.push(byte);
    }
    Some(Cow::Owned(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(patterns: &[&str]) -> Paths {
        Paths(patterns.iter().map(|pattern| PathPattern((*pattern).to_owned())).collect())
    }

    /// Everything below `/v1/`, and one path exactly.
    fn listed() -> Paths {
        paths(&["/v1/*", "/tokenize"])
    }

    #[test]
    fn what_the_list_names_is_served() {
        for (shows, target) in [
            ("an exact path", "/tokenize"),
            ("its query does not count", "/tokenize?verbose=../metrics"),
            ("below a beginning", "/v1/chat/completions"),
            ("the beginning itself", "/v1/"),
            ("a final slash", "/v1/models/"),
            ("an escape that means the same", "/%74okenize"),
            ("an escape in the beginning", "/%76%31/models"),
            ("letters of any alphabet", "/v1/models/%C3%A9"),
            ("a space", "/v1/models/my%20model"),
            ("dots within a name", "/v1/models/Qwen2.5..7B."),
            ("other marks within a name", "/v1/models/a:b@c,d=e&f+g~h'(i)!$*"),
        ] {
            assert!(listed().serves(target.as_bytes()), "{shows}: {target}");
        }
    }

    #[test]
    fn attacks_find_no_hole() {
        for (shows, target) in [
            ("not listed", "/metrics"),
            ("nothing listed of it", "/"),
            ("an exact path is no beginning", "/tokenize/x"),
            ("case counts", "/V1/models"),
            ("the beginning without its slash", "/v1"),
            ("a dot segment", "/v1/../metrics"),
            ("at the end", "/v1/.."),
            ("a single dot", "/v1/./models"),
            ("at the end", "/v1/."),
            ("encoded dots", "/v1/%2e%2e/metrics"),
            ("in capitals", "/v1/%2E%2E/metrics"),
            ("one of them encoded", "/v1/.%2e/metrics"),
            ("encoded twice", "/v1/%252e%252e/metrics"),
            ("an encoded slash", "/v1/..%2fmetrics"),
            ("and no dots", "/v1%2f..%2fmetrics"),
            ("behind a name", "/v1/chat%2f..%2f..%2fmetrics"),
            ("within a name", "/v1/models/a%2Fb"),
            ("encoded twice", "/v1/..%252fmetrics"),
            ("a backslash", "/v1/..\\metrics"),
            ("encoded", "/v1/..%5cmetrics"),
            ("alone", "/v1/a%5c..%5cmetrics"),
            ("two slashes first", "//metrics"),
            ("an authority", "//v1/models"),
            ("two slashes within", "/v1//metrics"),
            ("two at the end", "/v1/models//"),
            ("another spelling of an unlisted path", "/%6detrics"),
            ("a parameter", "/metrics;x"),
            ("of a listed path", "/v1/models;x=/metrics"),
            ("dots with a parameter", "/v1/..;/metrics"),
            ("encoded", "/v1/..%3b/metrics"),
            ("dots of any number", "/v1/.../metrics"),
            ("a final dot", "/tokenize."),
            ("a final space", "/tokenize%20"),
            ("NUL", "/tokenize%00"),
            ("NUL below", "/v1/models%00/../metrics"),
            ("NUL as it is", "/v1/models\0"),
            ("a line end", "/v1/models%0d%0ax: y"),
            ("a tab", "/v1/%09"),
            ("DEL", "/v1/%7f"),
            ("an encoded query", "/v1/models%3fx"),
            ("an encoded fragment", "/v1/models%23x"),
            ("a fragment", "/v1/models#/metrics"),
            ("an escape cut short", "/v1/%2"),
            ("an escape of nothing", "/v1/%"),
            ("no hexadecimal", "/v1/%zz"),
            ("a sign for a digit", "/v1/%+2"),
            ("another escape", "/v1/%u002e%u002e/metrics"),
            ("invalid UTF-8", "/v1/%ff"),
            ("a dot in too many bytes", "/v1/%c0%ae%c0%ae/metrics"),
            ("a slash in too many bytes", "/v1/..%c0%afmetrics"),
            ("half a surrogate", "/v1/%ed%a0%80"),
            ("absolute form", "http://engine/v1/models"),
            ("with dots", "http://engine/v1/../metrics"),
            ("a scheme alone", "http:/v1/models"),
            ("no slash", "v1/models"),
            ("the star of OPTIONS", "*"),
            ("an authority form", "engine:80"),
            ("nothing", ""),
            ("only a query", "?/v1/models"),
        ] {
            assert!(!listed().serves(target.as_bytes()), "{shows}: {target}");
        }
        assert!(!listed().serves(b"/v1/\xff"), "invalid UTF-8 as it is");
    }

    #[test]
    fn without_a_list_all_pass_as_they_came() {
        for target in ["/v1/../metrics", "//", "*", "", "/%zz"] {
            assert!(Paths::default().serves(target.as_bytes()), "{target}");
        }
    }

    #[test]
    fn a_star_alone_serves_every_plain_path() {
        let all = paths(&["/*"]);
        assert!(all.serves(b"/metrics"));
        assert!(!all.serves(b"/v1/../metrics"), "but no other");
    }

    proptest::proptest! {
        /// Whatever is served begins as the list wants, also for who decodes and resolves it anew.
        #[test]
        fn a_served_path_stays_where_it_is(target in "/v1/[a./%25Ff;\\\\]{0,12}") {
            if paths(&["/v1/*"]).serves(target.as_bytes()) {
                let plain = plain(target.as_bytes()).expect("served");
                proptest::prop_assert!(!plain.split('/').any(|segment| segment == "..") && !plain.contains("//"));
                proptest::prop_assert_eq!(self::plain(plain.as_bytes()), Some(plain), "decoding is done");
            }
        }
    }
}
