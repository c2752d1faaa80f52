//! How figures are written, everywhere in a review alike.

/// `45.7 %`
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 1e2)
}

/// `30.3 points`
pub(super) fn points(share: f64) -> String {
    format!("{:.1} points", share * 1e2)
}

/// A fraction of something counted: `0.05`.
pub(super) fn times(fraction: f64) -> String {
    format!("{fraction:.2}")
}

/// In the unit that reads best: `250 us`, `36.0 ms`, `1.50 s`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

/// A bound of a bucket.
pub(super) fn at_most(bound: f64) -> String {
    if bound.is_finite() { format!("<= {}", seconds(bound)) } else { "beyond the last bucket".to_owned() }
}

/// `1 replica`, `3 replicas`.
pub(super) fn count(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// A whole number in threes: `14,144`.
pub(super) fn whole(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number <= -0.5 { format!("-{text}") } else { text }
}

/// `3 h 20 min`, `12.0 s`.
pub(super) fn span(span: f64) -> String {
    match span {
        span if span >= 3600.0 => {
            format!("{:.0} h {:.0} min", (span / 3600.0).floor(), (span % 3600.0 / 60.0).floor())
        }
        span if span >= 120.0 => format!("{:.0} min", (span / 60.0).floor()),
        span => format!("{span:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_alike() {
        assert_eq!([0.0000015, 0.0005, 0.036, 1.5].map(seconds), ["2 us", "500 us", "36.0 ms", "1.50 s"]);
        assert_eq!(
            [0.0, 999.0, 14144.0, 1234567.4, -1000.0].map(whole),
            ["0", "999", "14,144", "1,234,567", "-1,000"]
        );
        assert_eq!(
            [12.0, 119.94, 7259.0, 12000.0].map(span),
            ["12.0 s", "119.9 s", "2 h 0 min", "3 h 20 min"]
        );
        assert_eq!([0.04, f64::INFINITY].map(at_most), ["<= 40.0 ms", "beyond the last bucket"]);
        assert_eq!([count(1, "replica"), count(0, "replica")], ["1 replica", "0 replicas"]);
        assert_eq!(
            (percent(0.4567), points(0.3), times(0.05)),
            ("45.7 %".into(), "30.0 points".into(), "0.05".into())
        );
    }
}
