//! A histogram of an engine's page: how many, how long together, and between which bounds.
//!
//! Buckets bound a percentile from above and no better, so that is what is said of one: never a value in between.

use crate::prometheus::{Page, Sample};

/// A histogram, its series added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Values counted.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// Upper bounds, ascending, each with the count of values up to it.
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// Reads `NAME_count`, `NAME_sum` and `NAME_bucket`; `None` where count or sum is missing.
    pub(super) fn read(page: &Page<'_>, name: &str) -> Option<Self> {
        let (count, sum) = (page.sum(&format!("{name}_count"))?, page.sum(&format!("{name}_sum"))?);
        let mut histogram = Self { count, sum, buckets: Vec::new() };
        page.of(&format!("{name}_bucket")).filter_map(bucket).for_each(|bucket| histogram.add_bucket(bucket));
        histogram.buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        Some(histogram)
    }

    fn add_bucket(&mut self, (bound, count): (f64, f64)) {
        match self.buckets.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, known)) => *known += count,
            None => self.buckets.push((bound, count)),
        }
    }

    /// Both together. Where their bounds differ, no percentile can be told.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        self.combine(other, |one, other| one + other);
        self
    }

    /// What was counted since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        since.combine(before, |now, before| now - before);
        since
    }

    fn combine(&mut self, other: &Self, with: fn(f64, f64) -> f64) {
        self.count = with(self.count, other.count);
        self.sum = with(self.sum, other.sum);
        let bounds = |histogram: &Self| histogram.buckets.iter().map(|(bound, _)| *bound).collect::<Vec<_>>();
        if bounds(self) != bounds(other) {
            return self.buckets.clear();
        }
        for ((_, count), (_, other)) in self.buckets.iter_mut().zip(&other.buckets) {
            *count = with(*count, *other);
        }
    }

    /// The mean; `None` of nothing.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// The bound below which a share of the values lies, infinite beyond the last bucket; `None` of nothing.
    pub fn at_most(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count;
        let bound = || self.buckets.iter().find(|(_, count)| *count >= wanted).map(|(bound, _)| *bound);
        if self.count > 0.0 { bound() } else { None }
    }
}

fn bucket(sample: &Sample<'_>) -> Option<(f64, f64)> {
    let bound: f64 = sample.label("le")?.parse().ok()?;
    (sample.value.is_finite() && !bound.is_nan()).then_some((bound, sample.value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PAGE: &str =
        "t_count 4\nt_sum 8\nt_bucket{le=\"+Inf\"} 4\nt_bucket{le=\"1\"} 2\nt_bucket{le=\"2.0\"} 3\n";

    fn read(page: &str) -> Histogram {
        Histogram::read(&Page::parse(page), "t").unwrap()
    }

    #[test]
    fn a_percentile_is_a_bound_of_a_bucket() {
        let histogram = read(PAGE);
        for (share, want) in [(0.1, 1.0), (0.5, 1.0), (0.6, 2.0), (0.75, 2.0), (0.9, f64::INFINITY)] {
            assert_eq!(histogram.at_most(share), Some(want), "{share}");
        }
        assert_eq!(histogram.mean(), Some(2.0));
        let nothing = histogram.since(&histogram);
        assert_eq!((nothing.mean(), nothing.at_most(0.5)), (None, None));
        assert_eq!(Histogram::read(&Page::parse("t_count 4"), "t"), None);
    }

    #[test]
    fn series_servers_and_times_add_up_where_bounds_agree() {
        let twice =
            read(&PAGE.replace(['{'], "{e=\"0\",").replace("t_count 4", "t_count 4\nt_count{e=\"1\"} 0"));
        let sum = twice.clone().plus(&read(PAGE));
        assert_eq!((sum.count, sum.sum, sum.at_most(0.75)), (8.0, 16.0, Some(2.0)));
        assert_eq!(sum.since(&twice), read(PAGE));
        let other = read("t_count 1\nt_sum 1\nt_bucket{le=\"9\"} 1");
        assert_eq!((twice.clone().plus(&other).count, twice.plus(&other).at_most(0.5)), (5.0, None));
    }
}
