//! Strings without their escapes, in pieces large enough to hash.
//!
//! Code and tool calls have an escape every ten bytes, and JSON written in ASCII is nothing but escapes. So what stands
//! between them is not searched and handed on run by run, but looked at a window at a time and gathered.

use memchr::memchr;

use super::json::{Broken, WINDOW, broken, places};

/// Bytes of unescaped text that are handed on together: a few blocks.
const GATHERED: usize = 1_024;

/// Calls `text` with the pieces of a raw string (quotes included), escapes resolved. A lone surrogate becomes
/// its three bytes as if it were a character: Python accepts it, so it has to have a name here.
pub fn unescape(raw: &[u8], mut text: impl FnMut(&[u8])) -> Result<(), Broken> {
    let [b'"', inner @ .., b'"'] = raw else { return broken("a string") };
    let clean = memchr(b'\\', inner).unwrap_or(inner.len());
    text(&inner[..clean]);
    if clean == inner.len() { Ok(()) } else { resolve(&inner[clean..], text) }
}

/// What stands between escapes is short: it is gathered, so that `text` is called about once for [`GATHERED`] bytes.
fn resolve(mut rest: &[u8], mut text: impl FnMut(&[u8])) -> Result<(), Broken> {
    let mut gathered = [0; GATHERED];
    let mut filled = 0;
    while !rest.is_empty() {
        if filled + 2 * WINDOW > GATHERED {
            text(&gathered[..filled]);
            filled = 0;
        }
        let step;
        (step, filled) = match rest.first_chunk() {
            Some(windows) => resolve_window(windows, &mut gathered, filled)?,
            None => resolve_last(rest, &mut gathered, filled)?,
        };
        rest = &rest[step..];
    }
    text(&gathered[..filled]);
    Ok(())
}

/// Resolves a window, and of the next what an escape at the window's end reaches. Gives how much of `text` that was,
/// and how far `out` is filled.
///
/// Runs are copied a window at a time whatever their length: a copy of fixed size is two moves.
#[inline(always)]
fn resolve_window(
    text: &[u8; 2 * WINDOW],
    out: &mut [u8; GATHERED],
    mut filled: usize,
) -> Result<(usize, usize), Broken> {
    out[filled..][..WINDOW].copy_from_slice(&text[..WINDOW]);
    let mut backslashes = u64::from(places(window(text, 0), b'\\'));
    if backslashes == 0 {
        return Ok((WINDOW, filled + WINDOW));
    }
    let mut from = 0;
    while backslashes != 0 {
        let at = backslashes.trailing_zeros() as usize;
        filled += at - from;
        let character;
        (character, from) = escape(text, at + 1)?;
        out[filled..][..4].copy_from_slice(&character.bytes);
        filled += character.length;
        backslashes &= u64::MAX << from;
        if from < WINDOW {
            out[filled..][..WINDOW].copy_from_slice(window(text, from));
        }
    }
    Ok((from.max(WINDOW), filled + WINDOW.saturating_sub(from)))
}

/// Resolves what is left, or as far as its first escape; gives what [`resolve_window`] gives.
#[cold]
fn resolve_last(text: &[u8], out: &mut [u8; GATHERED], filled: usize) -> Result<(usize, usize), Broken> {
    let run = memchr(b'\\', text).unwrap_or(text.len()).min(WINDOW);
    out[filled..][..run].copy_from_slice(&text[..run]);
    if text.get(run) != Some(&b'\\') {
        return Ok((run, filled + run));
    }
    let (character, end) = escape(text, run + 1)?;
    out[filled + run..][..4].copy_from_slice(&character.bytes);
    Ok((end, filled + run + character.length))
}

/// A window of two, `from` at most at the second.
#[inline]
fn window(text: &[u8; 2 * WINDOW], from: usize) -> &[u8; WINDOW] {
    text[from..].first_chunk().expect("from is at most one window")
}

/// What an escape stands for: up to four bytes, zeros after them.
struct Character {
    bytes: [u8; 4],
    length: usize,
}

/// Resolves the escape whose backslash stands before `at`; gives where it ends.
#[inline]
fn escape(text: &[u8], at: usize) -> Result<(Character, usize), Broken> {
    match PLAIN[usize::from(*text.get(at).ok_or(Broken { wanted: "an escape" })?)] {
        0 => unicode(text, at),
        plain => Ok((Character { bytes: [plain, 0, 0, 0], length: 1 }, at + 1)),
    }
}

/// What the letter after a backslash stands for; 0 for none. A table, because a jump would be guessed wrong.
const PLAIN: [u8; 256] = {
    let mut plain = [0; 256];
    let pairs = [
        (b'"', b'"'),
        (b'\\', b'\\'),
        (b'/', b'/'),
        (b'n', b'\n'),
        (b't', b'\t'),
        (b'r', b'\r'),
        (b'b', 8),
        (b'f', 12),
    ];
    let mut place = 0;
    while place < pairs.len() {
        plain[pairs[place].0 as usize] = pairs[place].1;
        place += 1;
    }
    plain
};

/// More than four digits can be, however many follow.
const NO_DIGIT: u32 = 1 << 16;

/// The value of a hex digit.
const HEX: [u32; 256] = {
    let mut hex = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value];
        hex[digit as usize] = value as u32;
        hex[digit.to_ascii_uppercase() as usize] = value as u32;
        value += 1;
    }
    hex
};

fn unicode(text: &[u8], at: usize) -> Result<(Character, usize), Broken> {
    if text[at] != b'u' {
        return broken("an escape");
    }
    let first = hex4(text, at + 1)?;
    if let 0xD800..0xDC00 = first
        && text[at + 5..].starts_with(b"\\u")
        && let Ok(second @ 0xDC00..0xE000) = hex4(text, at + 7)
    {
        return Ok((wtf8(0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00)), at + 11));
    }
    Ok((wtf8(first), at + 5))
}

fn hex4(text: &[u8], at: usize) -> Result<u32, Broken> {
    const WANTED: Broken = Broken { wanted: "four hex digits" };
    let digits = text.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(WANTED)?;
    let value = digits.iter().fold(0, |value, &digit| value << 4 | HEX[usize::from(digit)]);
    if value < NO_DIGIT { Ok(value) } else { Err(WANTED) }
}

/// UTF-8, and for a lone surrogate what UTF-8's rule would give.
fn wtf8(code: u32) -> Character {
    let last = |shift: u32| 0x80 | (code >> shift & 0x3F) as u8;
    match code {
        0..0x80 => Character { bytes: [code as u8, 0, 0, 0], length: 1 },
        0x80..0x800 => Character { bytes: [0xC0 | (code >> 6) as u8, last(0), 0, 0], length: 2 },
        0x800..0x1_0000 => Character { bytes: [0xE0 | (code >> 12) as u8, last(6), last(0), 0], length: 3 },
        _ => Character { bytes: [0xF0 | (code >> 18) as u8, last(12), last(6), last(0)], length: 4 },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

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
            (r#""\ud800\udc00\udbff\udfff""#, "\u{10000}\u{10FFFF}".as_bytes()),
            (r#""\ud800\ue000\ud7ff\udc00""#, b"\xED\xA0\x80\xEE\x80\x80\xED\x9F\xBF\xED\xB0\x80"),
            (r#""\u007f\u0080\u07ff\u0800\uffff""#, "\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}".as_bytes()),
        ] {
            assert_eq!(unescaped(raw).unwrap(), text, "{raw}");
        }
        for raw in [r#""\x""#, r#""\u12""#, r#""\u12g4""#, r#""\"#, "plain", ""] {
            assert!(unescaped(raw).is_err(), "{raw}");
        }
    }

    /// However much was gathered before, and however much is left for the last escape.
    #[test]
    fn what_is_gathered_fits() {
        for (escapes, letters) in
            (1..=33).flat_map(|escapes| (850..1_100).map(move |letters| (escapes, letters)))
        {
            let raw = format!("\"{}{}\\n\"", r"\n".repeat(escapes), "a".repeat(letters));
            let text = format!("{}{}\n", "\n".repeat(escapes), "a".repeat(letters));
            assert!(unescaped(&raw).unwrap() == text.as_bytes(), "{escapes} escapes, {letters} letters");
        }
    }

    /// A piece of a string: as it is written, and what it says.
    fn piece() -> impl Strategy<Value = (String, Vec<u8>)> {
        let same = |text: String| (text.clone(), text.into_bytes());
        let escape = |(raw, text): &(&str, &[u8])| (String::from(*raw), text.to_vec());
        let escapes: Vec<(&str, &[u8])> = vec![
            (r"\n", b"\n"),
            (r"\\", b"\\"),
            (r#"\""#, b"\""),
            (r"\u0041", b"A"),
            (r"\u00Fc", b"\xC3\xBC"),
            (r"\ud83d\ude00", "\u{1F600}".as_bytes()),
            (r"\udc00", b"\xED\xB0\x80"),
            (r"\u20ac", "\u{20ac}".as_bytes()),
        ];
        prop_oneof![
            2 => "[a-z]{0,40}".prop_map(same),
            1 => "[a-z]{500}".prop_map(same),
            1 => "é{1,9}".prop_map(same),
            6 => prop::sample::select(escapes).prop_map(move |pair| escape(&pair)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Wherever the escapes stand in a window, and whether or not the pieces that come out are full.
        #[test]
        fn text_is_what_the_pieces_say(pieces in proptest::collection::vec(piece(), 0..80)) {
            let raw: String = pieces.iter().map(|(raw, _)| raw.as_str()).collect();
            let text: Vec<u8> = pieces.iter().flat_map(|(_, text)| text.clone()).collect();
            prop_assert_eq!(unescaped(&format!("\"{raw}\"")), Ok(text));
        }

        /// A broken escape is found wherever it stands.
        #[test]
        fn no_broken_escape_is_passed_over(
            before in "[a-z]{0,70}", bad in prop::sample::select(vec![r"\x", r"\u00g0", r"\u000g", r"\ug000", r"\u12", "\\"]),
            after in "([ -!#-.]{40})?",
        ) {
            let raw = format!("\"{before}{bad}{after}\"");
            prop_assert!(unescaped(&raw).is_err());
        }
    }
}
