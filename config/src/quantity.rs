//! Durations, sizes and counts as operators write them: an integer and a unit, no fractions, no guessing.

use std::time::Duration;

use crate::faults::Reason;

const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const DURATION_UNITS_MS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A duration such as `100ms`, between `min` and `max`, both included.
pub(crate) fn duration(text: &str, min: Duration, max: Duration) -> Result<Duration, Reason> {
    let wanted = || {
        format!(
            "a duration from {} to {}, such as 100ms, 2s, 5m or 1h",
            show_duration(min),
            show_duration(max)
        )
    };
    let parsed = scaled(text, &DURATION_UNITS_MS, None).map(Duration::from_millis);
    parsed.filter(|value| (min..=max).contains(value)).ok_or_else(|| Reason::text(text, wanted()))
}

/// A size such as `4MiB`, or plain bytes, between `min` and `max`, both included.
pub(crate) fn bytes(text: &str, min: usize, max: usize) -> Result<usize, Reason> {
    let wanted =
        || format!("a size from {} to {}, such as 4096, 64KiB or 4MiB", show_bytes(min), show_bytes(max));
    let parsed = scaled(text, &SIZE_UNITS, Some(1)).and_then(|value| usize::try_from(value).ok());
    parsed.filter(|value| (min..=max).contains(value)).ok_or_else(|| Reason::text(text, wanted()))
}

/// An integer between `min` and `max`, both included.
pub(crate) fn integer(text: &str, min: u64, max: u64) -> Result<u64, Reason> {
    let parsed = digits(text).filter(|value| (min..=max).contains(value));
    parsed.ok_or_else(|| Reason::text(text, format_args!("an integer from {min} to {max}")))
}

/// A number such as `2` or `0.5`, without sign or exponent, between 0 and `max`, both included.
pub(crate) fn number(text: &str, max: f64) -> Result<f64, Reason> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let parsed = plain.then(|| text.parse().ok()).flatten().filter(|value| (0.0..=max).contains(value));
    parsed.ok_or_else(|| Reason::text(text, format_args!("a number from 0 to {max}, such as 1 or 0.5")))
}

/// `true` or `false`; YAML 1.1's other spellings (`yes`, `on`) mean different things to different readers.
pub(crate) fn boolean(text: &str) -> Result<bool, Reason> {
    text.parse().map_err(|_| Reason::text(text, "true or false"))
}

/// In the largest unit that needs no fraction.
pub(crate) fn show_duration(value: Duration) -> String {
    show(u64::try_from(value.as_millis()).unwrap_or(u64::MAX), &DURATION_UNITS_MS)
}

pub(crate) fn show_bytes(value: usize) -> String {
    show(u64::try_from(value).unwrap_or(u64::MAX), &SIZE_UNITS)
}

fn show(value: u64, units: &[(&str, u64)]) -> String {
    let whole = units.iter().find(|(_, scale)| value >= *scale && value.is_multiple_of(*scale));
    whole.or(units.last()).map_or_else(String::new, |(unit, scale)| format!("{}{unit}", value / scale))
}

/// `text` in the smallest of `units`; `bare` is the scale of a number without a unit.
fn scaled(text: &str, units: &[(&str, u64)], bare: Option<u64>) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let named = units.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    let scale = if unit.is_empty() { bare } else { named };
    digits(number)?.checked_mul(scale?)
}

/// Stricter than `parse`, which takes a sign.
fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn durations_take_an_integer_and_a_unit() {
        for (text, wanted_ms) in
            [("100ms", 100), ("2s", 2_000), ("5m", 300_000), ("1h", 3_600_000), ("007s", 7_000)]
        {
            assert_eq!(duration(text, Duration::ZERO, HOUR), Ok(Duration::from_millis(wanted_ms)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "1.5s",
            "-1s",
            "+1s",
            "1 s",
            "1S",
            "1us",
            "1d",
            "1s1",
            "99999999999999999999s",
            "18446744073709551615h",
            "61m",
        ] {
            assert!(duration(text, Duration::ZERO, HOUR).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_take_an_integer_and_perhaps_a_unit() {
        for (text, wanted) in
            [("0", 0), ("4096", 4096), ("7B", 7), ("64KiB", 65_536), ("4MiB", 4 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(bytes(text, 0, 1 << 30), Ok(wanted), "{text}");
        }
        for text in ["", "KiB", "1KB", "1kib", "1.5MiB", "-1", "1 MiB", "2GiB", "99999999999GiB"] {
            assert!(bytes(text, 0, 1 << 30).is_err(), "{text}");
        }
    }

    #[test]
    fn reasons_say_the_bounds_in_round_units() {
        let reason = duration("0s", Duration::from_millis(10), HOUR).unwrap_err();
        let wanted = r#"found "0s", wanted a duration from 10ms to 1h, such as 100ms, 2s, 5m or 1h"#;
        assert_eq!(reason.to_string(), wanted);
        let reason = bytes("1TB", 0, 3 << 20).unwrap_err();
        assert_eq!(
            reason.to_string(),
            r#"found "1TB", wanted a size from 0B to 3MiB, such as 4096, 64KiB or 4MiB"#
        );
    }

    #[test]
    fn numbers_are_plain() {
        for (text, wanted) in [("0", 0.0), ("2", 2.0), ("0.5", 0.5), ("007.25", 7.25), ("8", 8.0)] {
            assert_eq!(number(text, 8.0), Ok(wanted), "{text}");
        }
        for text in ["", ".", "-1", "+1", "1e1", "nan", "inf", "8.1", "1.2.3", "1,5", " 1", "½"] {
            assert!(number(text, 8.0).is_err(), "{text}");
        }
    }

    #[test]
    fn integers_and_booleans_are_strict() {
        assert_eq!(integer("18446744073709551615", 0, u64::MAX), Ok(u64::MAX));
        for text in ["", "-1", "+1", "1e3", "0x10", "1_000", "18446744073709551616"] {
            assert!(integer(text, 0, u64::MAX).is_err(), "{text}");
        }
        assert_eq!((boolean("true"), boolean("false")), (Ok(true), Ok(false)));
        for text in ["yes", "on", "True", "1", ""] {
            assert!(boolean(text).is_err(), "{text}");
        }
    }
}
