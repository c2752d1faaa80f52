//! The `traceparent` of a request (W3C Trace Context, Recommendation of 2021, section 3.2), for the access log and spans.
//!
//! Read strictly: what is not valid names no trace. The header itself goes on to the engine as it came, valid or not.

use http::HeaderMap;

const TRACEPARENT: &str = "traceparent";
/// Bytes of version 00, and the least of any later one: `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const BYTES: usize = 55;

/// Whose part a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent<'a> {
    /// 32 hexadecimal digits, not all 0.
    pub(crate) trace_id: &'a str,
    /// The caller's span: 16 hexadecimal digits, not all 0.
    pub(crate) parent_id: &'a str,
    /// Whether the caller records its part.
    pub(crate) sampled: bool,
}

/// The trace that the headers name, if they name one and validly so.
pub(crate) fn trace_parent(headers: &HeaderMap) -> Option<TraceParent<'_>> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let first = values.next()?;
    if values.next().is_some() {
        return None;
    }
    parse(first.to_str().ok()?)
}

fn parse(text: &str) -> Option<TraceParent<'_>> {
    let (known, rest) = text.split_at_checked(BYTES)?;
    let mut parts = known.split('-');
    let (version, trace_id) = (digits(parts.next()?, 2)?, digits(parts.next()?, 32)?);
    let (parent_id, flags) = (digits(parts.next()?, 16)?, digits(parts.next()?, 2)?);
    // A later version may go on behind another dash; `ff` is none.
    let ends = if version == "00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
    let named = |id: &str| id.bytes().any(|digit| digit != b'0');
    if parts.next().is_some() || version == "ff" || !ends || !named(trace_id) || !named(parent_id) {
        return None;
    }
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    Some(TraceParent { trace_id, parent_id, sampled })
}

/// So many hexadecimal digits, small ones.
fn digits(text: &str, count: usize) -> Option<&str> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == count && text.bytes().all(digit)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    #[test]
    fn only_what_the_standard_allows_names_a_trace() {
        for (shows, text, sampled) in [
            ("sampled", format!("00-{TRACE}-{PARENT}-01"), Some(true)),
            ("not sampled", format!("00-{TRACE}-{PARENT}-00"), Some(false)),
            ("further flags", format!("00-{TRACE}-{PARENT}-ff"), Some(true)),
            ("only further flags", format!("00-{TRACE}-{PARENT}-02"), Some(false)),
            ("a later version", format!("cc-{TRACE}-{PARENT}-01"), Some(true)),
            ("that goes on", format!("cc-{TRACE}-{PARENT}-01-what-the-future-brings"), Some(true)),
            ("without a dash", format!("cc-{TRACE}-{PARENT}-01.what"), None),
            ("version 00 does not go on", format!("00-{TRACE}-{PARENT}-01-x"), None),
            ("nor end in a dash", format!("00-{TRACE}-{PARENT}-01-"), None),
            ("version ff", format!("ff-{TRACE}-{PARENT}-01"), None),
            ("a version of one digit", format!("0-{TRACE}-{PARENT}-01"), None),
            ("capitals", format!("00-{}-{PARENT}-01", TRACE.to_uppercase()), None),
            ("capitals in the version", format!("CC-{TRACE}-{PARENT}-01"), None),
            ("no trace", format!("00-{}-{PARENT}-01", "0".repeat(32)), None),
            ("no parent", format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            ("no digits", format!("00-{}-{PARENT}-01", "g".repeat(32)), None),
            ("a trace too short", format!("00-{}-{PARENT}a-01", &TRACE[1..]), None),
            ("another separator", format!("00_{TRACE}_{PARENT}_01"), None),
            ("flags too short", format!("00-{TRACE}-{PARENT}-1"), None),
            ("a space first", format!(" 00-{TRACE}-{PARENT}-01"), None),
            ("letters of two bytes", format!("00-{TRACE}-{PARENT}-é"), None),
            ("nothing", String::new(), None),
        ] {
            let wanted = sampled.map(|sampled| TraceParent { trace_id: TRACE, parent_id: PARENT, sampled });
            assert_eq!(parse(&text), wanted, "{shows}");
        }
    }

    #[test]
    fn two_headers_name_none() {
        let value = HeaderValue::try_from(format!("00-{TRACE}-{PARENT}-01")).expect("a value");
        let mut headers = HeaderMap::new();
        assert_eq!(trace_parent(&headers), None);
        headers.append(TRACEPARENT, value.clone());
        assert_eq!(trace_parent(&headers).map(|trace| trace.trace_id), Some(TRACE));
        headers.append(TRACEPARENT, value);
        assert_eq!(trace_parent(&headers), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,60}", tail in "[0-9a-f-]{55}") {
            let _ = (parse(&text), parse(&tail));
        }
    }
}
