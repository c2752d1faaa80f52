//! A JSON scanner that finds spans and copies nothing.
//!
//! It walks members and elements, skips what it is not asked for, and never recurses: a body nested 10,000 deep
//! costs a counter. It accepts all valid JSON; of invalid JSON it accepts some, which is harmless, since the engine
//! refuses such a body and nobody's cache changes. Callers validate UTF-8 before (`read::Body`).

use memchr::memchr;
use wide::u8x32;

pub use super::escape::unescape;

/// The text is not the JSON that was wanted. Holds no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not JSON: wanted {wanted}")]
pub struct Broken {
    /// What should have stood there.
    pub wanted: &'static str,
}

const UNENDED: Broken = Broken { wanted: "the string's end" };

pub(super) const fn broken<T>(wanted: &'static str) -> Result<T, Broken> {
    Err(Broken { wanted })
}

/// Calls `member` with each raw key (quotes and escapes as written) and raw value of the object that begins at
/// `text[0]`; gives where the object ends. O(object). Duplicates are all reported.
pub fn each_member<'a>(
    text: &'a [u8],
    mut member: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Broken>,
) -> Result<usize, Broken> {
    walk_members(text, |key, rest| {
        let end = value_end(rest, 0)?;
        member(key, &rest[..end]).map(|()| end)
    })
}

/// The same, but `member` is given the text from the value on, and says how long the value is.
pub fn walk_members<'a>(
    text: &'a [u8],
    mut member: impl FnMut(&'a [u8], &'a [u8]) -> Result<usize, Broken>,
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
        at += member(&text[key], &text[at..])?;
        at = space(text, at);
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
    walk_elements(text, |rest| {
        let end = value_end(rest, 0)?;
        element(&rest[..end]).map(|()| end)
    })
}

/// The same, but `element` is given the text from the element on, and says how long the element is.
pub fn walk_elements<'a>(
    text: &'a [u8],
    mut element: impl FnMut(&'a [u8]) -> Result<usize, Broken>,
) -> Result<(), Broken> {
    let at = open(text, b'[', "an array")?;
    if text.get(at) == Some(&b']') {
        return Ok(());
    }
    let end = at + element(&text[at..])?;
    walk_more_elements(text, end, element)
}

/// Goes on behind the element that ends at `at`.
pub fn walk_more_elements<'a>(
    text: &'a [u8],
    mut at: usize,
    mut element: impl FnMut(&'a [u8]) -> Result<usize, Broken>,
) -> Result<(), Broken> {
    loop {
        at = space(text, at);
        match text.get(at) {
            Some(b',') => at = space(text, at + 1),
            Some(b']') => return Ok(()),
            _ => return broken("a comma or the array's end"),
        }
        at += element(&text[at..])?;
    }
}

/// Calls `text` with the pieces of a raw value that are not insignificant white space.
pub fn compact(raw: &[u8], mut text: impl FnMut(&[u8])) {
    let mut from = 0;
    let mut walk = Walk::new(raw, 0);
    while let Some(view) = walk.view() {
        let mut white = view.white();
        while white != 0 {
            let place = walk.at + white.trailing_zeros() as usize;
            if from < place {
                text(&raw[from..place]);
            }
            from = place + 1;
            white &= white - 1;
        }
        if walk.pass(&view).is_err() {
            return text(&raw[from..]);
        }
    }
    let mut at = walk.outside().unwrap_or(raw.len());
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

/// Bytes that are looked at in one step.
pub(super) const WINDOW: usize = 32;
/// Windows that are searched one by one.
const NEAR_WINDOWS: usize = 4;
/// Where in the window `byte` stands: bit `i` for place `i`.
#[inline]
pub(super) fn places(window: &[u8; WINDOW], byte: u8) -> u32 {
    u8x32::new(*window).simd_eq(u8x32::splat(byte)).to_bitmask()
}

/// The longest way to write one byte of a string: `\u0061`.
pub const ESCAPE_BYTES: usize = 6;

/// Whether a raw string, unescaped, is `name`. No allocation; O(name), however long the string.
pub fn is_name(raw: &[u8], name: &str) -> bool {
    if raw.len() <= name.len() + 2 {
        return raw.len() == name.len() + 2 && &raw[1..raw.len() - 1] == name.as_bytes();
    }
    raw.len() <= name.len() * ESCAPE_BYTES + 2 && memchr(b'\\', raw).is_some() && is_escaped_name(raw, name)
}

#[cold]
fn is_escaped_name(raw: &[u8], name: &str) -> bool {
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
pub fn value_end(text: &[u8], at: usize) -> Result<usize, Broken> {
    match text.get(at) {
        Some(b'"') => string_end(text, at),
        Some(b'{' | b'[') => container_end(text, at, 0),
        Some(b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
            let scalar = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
            Ok(text[at..].iter().position(|byte| !scalar(byte)).map_or(text.len(), |length| at + length))
        }
        _ => broken("a value"),
    }
}

/// Where the string that begins at `start` ends: after the first quote that no backslash makes text.
///
/// Keys and code have a quote within a few windows; through long text a wider search is worth its call.
fn string_end(text: &[u8], start: usize) -> Result<usize, Broken> {
    if text.get(start) != Some(&b'"') {
        return broken("a string");
    }
    string_rest_end(text, start + 1)
}

/// The same from a place inside of the string on, before which no backslash stands.
fn string_rest_end(text: &[u8], start: usize) -> Result<usize, Broken> {
    let mut from = start;
    let mut without = 0;
    while let Some(window) = text[from..].first_chunk() {
        let mut quotes = places(window, b'"');
        while quotes != 0 {
            let quote = from + quotes.trailing_zeros() as usize;
            if closes(&text[start..quote]) {
                return Ok(quote + 1);
            }
            quotes &= quotes - 1;
            without = 0;
        }
        from += WINDOW;
        without += 1;
        if without > NEAR_WINDOWS {
            from += memchr(b'"', &text[from..]).ok_or(UNENDED)?;
        }
    }
    let quotes = memchr::memchr_iter(b'"', &text[from..]).map(|at| from + at);
    quotes.into_iter().find(|&quote| closes(&text[start..quote])).map(|quote| quote + 1).ok_or(UNENDED)
}

/// Whether a quote after this much of a string closes it: an odd number of backslashes before it makes it text. Each
/// run of backslashes is counted once.
#[inline]
fn closes(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count().is_multiple_of(2)
}

/// Where the array or object ends of which `depth` brackets are open at `at`, outside of strings.
///
/// Brackets are counted, not matched: `[}` passes here and fails at the engine.
pub fn container_end(text: &[u8], mut at: usize, mut depth: usize) -> Result<usize, Broken> {
    let mut walk = Walk::new(text, at);
    while let Some(view) = walk.view() {
        let (opened, closed) = (view.opened(), view.closed());
        if closed.count_ones() as usize >= depth {
            let mut brackets = opened | closed;
            while brackets != 0 {
                let place = brackets.trailing_zeros();
                if opened >> place & 1 == 1 {
                    depth += 1;
                } else if depth <= 1 {
                    return Ok(walk.at + place as usize + 1);
                } else {
                    depth -= 1;
                }
                brackets &= brackets - 1;
            }
        } else {
            depth = depth + opened.count_ones() as usize - closed.count_ones() as usize;
        }
        walk.pass(&view)?;
    }
    at = walk.outside()?;
    container_end_near(text, at, depth)
}

/// The same for the last bytes of a text.
fn container_end_near(text: &[u8], mut at: usize, mut depth: usize) -> Result<usize, Broken> {
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => {
                at = string_end(text, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return Ok(at + 1),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    broken("the end of an array or object")
}

/// Goes through a text window by window and keeps in mind whether it is in a string.
struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    inside: bool,
    /// Windows since the last quote.
    without: usize,
}

impl<'a> Walk<'a> {
    /// `at` lies outside of strings.
    fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at, inside: false, without: 0 }
    }

    #[inline]
    fn view(&self) -> Option<View> {
        self.text[self.at..].first_chunk().map(|window| View::of(window, self.inside))
    }

    /// Goes on behind a view; a string with a backslash, or a long one, is passed at once.
    #[inline]
    fn pass(&mut self, view: &View) -> Result<(), Broken> {
        self.without = if view.has_quotes { 0 } else { self.without + 1 };
        self.at += view.known.min(WINDOW);
        self.inside = view.inside_after;
        if view.known < WINDOW && !self.inside {
            // No JSON: passed over.
            self.at += 1;
        } else if self.inside && (view.known < WINDOW || self.without > 2) {
            self.at = self.outside()?;
            self.inside = false;
        }
        Ok(())
    }

    /// Where it is, or where the string ends in which it is.
    fn outside(&self) -> Result<usize, Broken> {
        if self.inside { string_rest_end(self.text, self.at) } else { Ok(self.at) }
    }
}

/// Which bytes of a window lie outside of strings, as far as its first backslash.
struct View {
    window: u8x32,
    outside: u32,
    known: usize,
    inside_after: bool,
    has_quotes: bool,
}

impl View {
    #[inline]
    fn of(window: &[u8; WINDOW], inside: bool) -> Self {
        let known = places(window, b'\\').trailing_zeros();
        let quotes = places(window, b'"') & below(known);
        // Each quote turns all bits from its own on: between an odd one and the next lies a string.
        let inside = [1, 2, 4, 8, 16].into_iter().fold(quotes, |bits, step| bits ^ bits << step)
            ^ if inside { u32::MAX } else { 0 };
        Self {
            window: u8x32::new(*window),
            outside: !inside & below(known),
            known: known as usize,
            inside_after: inside >> (WINDOW - 1) == 1,
            has_quotes: quotes != 0,
        }
    }

    fn is(&self, window: u8x32, byte: u8) -> u32 {
        window.simd_eq(u8x32::splat(byte)).to_bitmask() & self.outside
    }

    /// `[` and `{` differ by one bit, as `]` and `}` do.
    fn opened(&self) -> u32 {
        self.is(self.window | u8x32::splat(b'[' ^ b'{'), b'{')
    }

    fn closed(&self) -> u32 {
        self.is(self.window | u8x32::splat(b']' ^ b'}'), b'}')
    }

    fn white(&self) -> u32 {
        [b' ', b'\n', b'\t', b'\r'].into_iter().fold(0, |white, byte| white | self.is(self.window, byte))
    }
}

/// Ones below this place.
#[inline]
fn below(place: u32) -> u32 {
    1u32.checked_shl(place).map_or(u32::MAX, |bit| bit - 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

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

    /// The rule, as plain as can be. A string that does not end reaches to the end.
    fn compacted_by_bytes(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let end = if text[at] == b'"' { string_end(text, at).unwrap_or(text.len()) } else { at + 1 };
            if !matches!(text[at], b' ' | b'\t' | b'\n' | b'\r') {
                out.extend_from_slice(&text[at..end]);
            }
            at = end;
        }
        out
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

        /// Every way that a string can end, at every place of a window.
        #[test]
        fn strings_end_at_their_first_free_quote(
            pieces in proptest::collection::vec(
                proptest::prop_oneof!["x{0,70}", "x{300}", r#"(\\\\|\\"){0,20}"#, r#"\\n"#, "é"],
                0..12,
            ),
            after in r#"["\\x]{0,80}"#,
        ) {
            let string = format!("\"{}\"", pieces.concat());
            let text = format!("{string}{after}");
            proptest::prop_assert_eq!(value_end(text.as_bytes(), 0), Ok(string.len()));
            let open = &string[..string.len() - 1];
            proptest::prop_assert!(value_end(open.as_bytes(), 0).is_err());
        }

        /// What lies outside of strings is found window by window as it is byte by byte.
        #[test]
        fn windows_see_what_bytes_show(
            pieces in proptest::collection::vec(
                proptest::prop_oneof![
                    4 => r#"[\[\]{}:, \n1a]{1,9}"#, 2 => r#""([a\[\]{} ]|\\\\|\\"){0,9}""#, 1 => r#""[a {]{60}""#, 1 => r#"["\\]"#,
                ],
                0..30,
            ),
        ) {
            let text = format!("[{}", pieces.concat());
            proptest::prop_assert_eq!(container_end(text.as_bytes(), 0, 0), container_end_near(text.as_bytes(), 0, 0));
            let mut compacted = Vec::new();
            compact(text.as_bytes(), |piece| compacted.extend_from_slice(piece));
            proptest::prop_assert_eq!(compacted, compacted_by_bytes(text.as_bytes()));
        }

        #[test]
        fn never_panics(text in proptest::collection::vec(proptest::sample::select(&b"{}[]\":,\\u0dn \xff1"[..]), 0..60)) {
            let _ = each_member(&text, |key, value| { is_name(key, "a"); compact(value, |_| ()); unescape(value, |_| ()) });
            let _ = each_element(&text, |value| { compact(value, |_| ()); Ok(()) });
            let _ = unescape(&text, |_| ());
        }
    }
}
