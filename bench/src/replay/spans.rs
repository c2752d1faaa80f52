//! Spans of time in a histogram: percentiles at a known error, in bounded memory, that add up over runs.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest span that is told apart; longer ones count as it.
const MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// Digits that hold: a value is off by 0.1 % at most.
const DIGITS: u8 = 3;

/// Spans of 1 µs to a day; 0 counts as 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Spans(Option<Histogram<u64>>);

impl Default for Spans {
    fn default() -> Self {
        // The bounds are constants that the crate takes; a test makes one.
        Self(Histogram::new_with_max(MOST.as_micros() as u64, DIGITS).ok())
    }
}

impl Spans {
    /// Adds one.
    pub fn add(&mut self, span: Duration) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        if let (Some(histogram), Some(other)) = (&mut self.0, &other.0) {
            // Both have the same bounds: it cannot fail.
            let _ = histogram.add(other);
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// The value below which a share of all lies, 0 to 1. None of nothing.
    pub fn at(&self, share: f64) -> Option<Duration> {
        let histogram = self.0.as_ref().filter(|histogram| !histogram.is_empty())?;
        Some(Duration::from_micros(histogram.value_at_quantile(share).min(histogram.max())))
    }

    /// The mean. None of nothing.
    pub fn mean(&self) -> Option<Duration> {
        let histogram = self.0.as_ref().filter(|histogram| !histogram.is_empty())?;
        Some(Duration::from_secs_f64(histogram.mean() / 1e6))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn spans(millis: &[u64]) -> Spans {
        let mut spans = Spans::default();
        millis.iter().for_each(|millis| spans.add(Duration::from_millis(*millis)));
        spans
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let all: Vec<u64> = (1..=1000).collect();
        let spans = spans(&all);
        for (share, want) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = spans.at(share).unwrap().as_secs_f64() * 1e3;
            assert!((found / want - 1.0).abs() < 1e-3, "{share}: {found}");
        }
        let mean = spans.mean().unwrap().as_secs_f64() * 1e3;
        assert!((mean / 500.5 - 1.0).abs() < 1e-3, "{mean}");
    }

    #[test]
    fn nothing_has_no_percentile_and_a_week_is_a_day() {
        assert_eq!(
            (Spans::default().at(0.5), Spans::default().mean(), Spans::default().count()),
            (None, None, 0)
        );
        let mut week = Spans::default();
        week.add(7 * MOST);
        week.add(Duration::ZERO);
        assert!(week.at(1.0).unwrap() >= MOST);
        assert_eq!(week.at(0.0), Some(Duration::ZERO));
    }

    #[test]
    fn they_add_up() {
        let mut one = spans(&[1, 2]);
        one.merge(&spans(&[100]));
        assert_eq!(one.count(), 3);
        assert!(one.at(1.0).unwrap() >= Duration::from_millis(99));
    }
}
