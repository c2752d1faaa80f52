//! A JSON scanner that finds spans and copies nothing.
//!
//! It walks members and elements, skips what it is not asked for, and never recurses: a body nested 10,000 deep
//! costs a counter. It accepts all valid JSON; of invalid JSON it accepts some, which is harmless, since the engine
//! refuses such a body and nobody's cache changes. Callers validate UTF-8 before (`read::Body`).

use memchr::{memchr, memchr2};

/// The text is not the JSON that was wanted. Holds no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not JSON: wanted {wanted}")]
pub struct Broken {
    /// What should have stood there.
    pub wanted: &'static str,
}

const fn broken<T>(wanted: &'static str) -> Result<T, Broken> {
    Err(Broken { wanted })
}

/// Calls `member` with each raw key (quotes and escapes as written) and raw value of the object that begins at
/// `text[0]`; gives where the object ends. O(object). Duplicates are all reported.
pub fn each_member<'a>(
    text: &'a [u8],
    mut member: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Broken>,
) -> Result<usize, Broken> {
    let mut at = open(text, b'{', "an object")?;
    if text.get(at) == Some(&b'}') {
        return Ok(at + 1);
    }
    loop {
        let key = at..string_end(text, at)?;
        at = space(text, key.end);
        if text.get(at) != Some(&b':') {
            return broken("a colon");
        }
        at = space(text, at + 1);
        let value = at..value_end(text, at)?;
        member(&text[key], &text[value.clone()])?;
        at = space(text, value.end);
        match text.get(at) {
            Some(b',') => at = space(text, at + 1),
            Some(b'}') => return Ok(at + 1),
            _ => return broken("a comma or the object's end"),
        }
    }
}

/// Calls `element` with each raw value of the array that begins at `text[0]`. O(array).
pub fn each_element<'a>(
    text: &'a [u8],
    mut element: impl FnMut(&'a [u8]) -> Result<(), Broken>,
) -> Result<(), Broken> {
    let mut at = open(text, b'[', "an array")?;
    if text.get(at) == Some(&b']') {
        return Ok(());
    }
    loop {
        let value = at..value_end(text, at)?;
        element(&text[value.clone()])?;
        at = space(text, value.end);
        match text.get(at) {
            Some(b',') => at = space(text, at + 1),
            Some(b']') => return Ok(()),
            _ => return broken("a comma or the array's end"),
        }
    }
}

/// Calls `text` with the pieces of a raw string (quotes included), escapes resolved. A lone surrogate becomes
/// its three bytes as if it were a character: Python accepts it, so it has to have a name here.
pub fn unescape(raw: &[u8], mut text: impl FnMut(&[u8])) -> Result<(), Broken> {
    let [b'"', inner @ .., b'"'] = raw else { return broken("a string") };
    let mut rest = inner;
    while let Some(run) = memchr(b'\\', rest) {
        text(&rest[..run]);
        rest = escape(&rest[run + 1..], &mut text)?;
    }
    text(rest);
    Ok(())
}

/// Calls `text` with the pieces of a raw value that are not insignificant white space.
pub fn compact(raw: &[u8], mut text: impl FnMut(&[u8])) {
    let mut from = 0;
    let mut at = 0;
    while at < raw.len() {
        match raw[at] {
            b'"' => at = string_end(raw, at).unwrap_or(raw.len()),
            b' ' | b'\t' | b'\n' | b'\r' => {
                text(&raw[from..at]);
                at = space(raw, at);
                from = at;
            }
            _ => at += 1,
        }
    }
    text(&raw[from..]);
}

/// The longest way to write one byte of a string: `\u0061`.
pub const ESCAPE_BYTES: usize = 6;

/// Whether a raw string, unescaped, is `name`. No allocation; O(name), however long the string.
pub fn is_name(raw: &[u8], name: &str) -> bool {
    if raw.len() < name.len() + 2 || raw.len() > name.len() * ESCAPE_BYTES + 2 {
        return false;
    }
    if memchr(b'\\', raw).is_none() {
        return raw.len() == name.len() + 2 && &raw[1..raw.len() - 1] == name.as_bytes();
    }
    let mut rest = Some(name.as_bytes());
    let whole = unescape(raw, |piece| rest = rest.and_then(|rest| rest.strip_prefix(piece)));
    whole.is_ok() && rest == Some(b"")
}

/// The first place at or after `at` that is not white space.
pub fn space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

fn open(text: &[u8], bracket: u8, wanted: &'static str) -> Result<usize, Broken> {
    if text.first() == Some(&bracket) { Ok(space(text, 1)) } else { broken(wanted) }
}

/// Where the value that begins at `at` ends.
fn value_end(text: &[u8], at: usize) -> Result<usize, Broken> {
    match text.get(at) {
        Some(b'"') => string_end(text, at),
        Some(b'{' | b'[') => container_end(text, at),
        Some(b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
            let scalar = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
            Ok(text[at..].iter().position(|byte| !scalar(byte)).map_or(text.len(), |length| at + length))
        }
        _ => broken("a value"),
    }
}

fn string_end(text: &[u8], at: usize) -> Result<usize, Broken> {
    if text.get(at) != Some(&b'"') {
        return broken("a string");
    }
    let mut from = at + 1;
    while let Some(found) = text.get(from..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        if text[from + found] == b'"' {
            return Ok(from + found + 1);
        }
        from += found + 2;
    }
    broken("the string's end")
}

/// Brackets are counted, not matched: `[}` passes here and fails at the engine.
fn container_end(text: &[u8], mut at: usize) -> Result<usize, Broken> {
    let mut depth = 0usize;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => {
                at = string_end(text, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Ok(at);
        }
    }
    broken("the end of an array or object")
}

/// Resolves the escape whose backslash has been read; gives what follows it.
fn escape<'a>(after: &'a [u8], text: &mut impl FnMut(&[u8])) -> Result<&'a [u8], Broken> {
    let Some((&kind, rest)) = after.split_first() else { return broken("an escape") };
    let plain = match kind {
        b'"' | b'\\' | b'/' => kind,
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 8,
        b'f' => 12,
        b'u' => return unicode(rest, text),
        _ => return broken("an escape"),
    };
    text(&[plain]);
    Ok(rest)
}

fn unicode<'a>(digits: &'a [u8], text: &mut impl FnMut(&[u8])) -> Result<&'a [u8], Broken> {
    let (first, rest) = hex4(digits)?;
    if let 0xD800..0xDC00 = first
        && let Some(after) = rest.strip_prefix(b"\\u")
        && let Ok((second @ 0xDC00..0xE000, rest)) = hex4(after)
    {
        wtf8(0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00), text);
        return Ok(rest);
    }
    wtf8(first, text);
    Ok(rest)
}

fn hex4(digits: &[u8]) -> Result<(u32, &[u8]), Broken> {
    let Some((digits, rest)) = digits.split_first_chunk::<4>() else { return broken("four hex digits") };
    let digit = |byte: u8| (byte as char).to_digit(16).ok_or(Broken { wanted: "four hex digits" });
    let value = digits.iter().try_fold(0, |value, &byte| Ok(value << 4 | digit(byte)?))?;
    Ok((value, rest))
}

/// UTF-8, and for a lone surrogate what UTF-8's rule would give.
fn wtf8(code: u32, text: &mut impl FnMut(&[u8])) {
    match char::from_u32(code) {
        Some(c) => text(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            text(&[0xE0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3F) as u8, 0x80 | (code & 0x3F) as u8])
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn unescaped(raw: &str) -> Result<Vec<u8>, Broken> {
        let mut text = Vec::new();
        unescape(raw.as_bytes(), |piece| text.extend_from_slice(piece)).map(|()| text)
    }

    #[test]
    fn strings_lose_their_escapes() {
        for (raw, text) in [
            (r#""""#, &b""[..]),
            (r#""plain""#, b"plain"),
            (r#""a\/b\\\"\n\t\r\b\f""#, b"a/b\\\"\n\t\r\x08\x0c"),
            (r#""\u00e9\u20AC""#, "é€".as_bytes()),
            (r#""\ud83d\ude00""#, "😀".as_bytes()),
            (r#""\u0000""#, b"\0"),
            (r#""\ud83d""#, b"\xED\xA0\xBD"),
            (r#""\udc00\ud800""#, b"\xED\xB0\x80\xED\xA0\x80"),
            (r#""\ud83d\u0041""#, b"\xED\xA0\xBDA"),
        ] {
            assert_eq!(unescaped(raw).unwrap(), text, "{raw}");
        }
        for raw in [r#""\x""#, r#""\u12""#, r#""\u12g4""#, r#""\"#, "plain", ""] {
            assert!(unescaped(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn compact_keeps_what_is_inside_strings() {
        let mut text = Vec::new();
        compact(b"{ \"a b\" : [ 1 ,\t2 , \"c \\\" d\" ] }\n", |piece| text.extend_from_slice(piece));
        assert_eq!(text, br#"{"a b":[1,2,"c \" d"]}"#);
    }

    #[test]
    fn names_match_through_escapes() {
        assert!(is_name(br#""model""#, "model"));
        assert!(is_name(br#""mod\u0065l""#, "model"));
        assert!(!is_name(br#""models""#, "model"));
        assert!(!is_name(br#""mod\u0065""#, "model"));
        assert!(!is_name(br#""\ud800""#, "model"));
    }

    #[test]
    fn depth_costs_a_counter_not_a_stack() {
        let deep = "[".repeat(5_000_000) + &"]".repeat(5_000_000);
        assert_eq!(value_end(deep.as_bytes(), 0), Ok(deep.len()));
        assert!(value_end(&deep.as_bytes()[..deep.len() - 1], 0).is_err());
    }

    proptest::proptest! {
        /// Where serde_json reads an object, the scanner finds the same members.
        #[test]
        fn agrees_with_serde_json_where_valid(text in r#"\{("a":("[x\\"n]*"|[0-9]{1,3}|\[[1,]{0,4}\]|null| ),?){0,3}\}"#) {
            if let Ok(serde_json::Value::Object(wanted)) = serde_json::from_str(&text) {
                let mut last = None;
                let end = each_member(text.as_bytes(), |_, value| { last = Some(value); Ok(()) });
                proptest::prop_assert_eq!(end, Ok(text.len()));
                let last = last.map(|raw| serde_json::from_slice::<serde_json::Value>(raw).unwrap());
                proptest::prop_assert_eq!(last.as_ref(), wanted.get("a"));
            }
        }

        #[test]
        fn never_panics(text in proptest::collection::vec(proptest::sample::select(&b"{}[]\":,\\u0dn \xff1"[..]), 0..60)) {
            let _ = each_member(&text, |key, value| { is_name(key, "a"); compact(value, |_| ()); unescape(value, |_| ()) });
            let _ = each_element(&text, |value| { compact(value, |_| ()); Ok(()) });
            let _ = unescape(&text, |_| ());
        }
    }
}
