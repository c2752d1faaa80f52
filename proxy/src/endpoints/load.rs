//! What an engine last said of its load, each figure with the time at which it was said.
//!
//! A page that lacks a figure leaves the older one in place with its older time: it goes stale by itself, and
//! the others stay fresh.

use std::time::{Duration, Instant};

use picker::ledger::InFlight;

use super::prometheus::Report;

/// A figure and when the engine said it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    value: f64,
    at: Instant,
}

/// The latest of each figure.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) waiting: Option<Figure>,
    pub(crate) running: Option<Figure>,
    pub(crate) kv_usage: Option<Figure>,
    pub(crate) block_size: Option<u32>,
    pub(crate) num_gpu_blocks: Option<u32>,
    /// Marks of the engine's process: when it started, and prompt tokens it has looked up.
    pub(crate) started: Option<f64>,
    pub(crate) queries: Option<f64>,
}

impl Figure {
    /// The value, unless it is older than `stale_after`.
    pub(crate) fn fresh(self, now: Instant, stale_after: Duration) -> Option<f64> {
        (now.saturating_duration_since(self.at) <= stale_after).then_some(self.value)
    }
}

impl Sample {
    /// What is known after a page: its figures, and older ones where it has none.
    pub(crate) fn after(before: Option<&Self>, report: &Report, at: Instant) -> Self {
        let before = before.copied().unwrap_or_default();
        let figure =
            |value: Option<f64>, old: Option<Figure>| value.map(|value| Figure { value, at }).or(old);
        let cache = report.cache.as_ref();
        Self {
            waiting: figure(report.waiting, before.waiting),
            running: figure(report.running, before.running),
            kv_usage: figure(report.kv_usage, before.kv_usage),
            block_size: cache.map_or(before.block_size, |cache| cache.block_size),
            num_gpu_blocks: cache.map_or(before.num_gpu_blocks, |cache| cache.num_gpu_blocks),
            started: report.process_start_seconds.or(before.started),
            queries: report.prefix_queries.or(before.queries),
        }
    }

    /// The load as the picker sees it.
    pub(crate) fn load(
        &self,
        now: Instant,
        stale_after: Duration,
        in_flight: InFlight,
    ) -> picker::load::Load {
        let fresh = |figure: Option<Figure>| figure.and_then(|figure| figure.fresh(now, stale_after));
        picker::load::Load {
            waiting: fresh(self.waiting),
            running: fresh(self.running),
            kv_usage: fresh(self.kv_usage),
            in_flight,
            ..picker::load::Load::default()
        }
    }

    /// Age of the newest figure.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        let figures = [self.waiting, self.running, self.kv_usage];
        figures.iter().flatten().map(|figure| now.saturating_duration_since(figure.at)).min()
    }

    /// Tokens that the engine's KV cache holds, if it said so.
    pub(crate) fn capacity_tokens(&self) -> Option<u64> {
        Some(u64::from(self.block_size?) * u64::from(self.num_gpu_blocks?))
    }

    /// Whether the engine behind `self` is another process than the one behind `before`: its cache is empty.
    pub(crate) fn restarted_since(&self, before: &Self) -> bool {
        let later = matches!((before.started, self.started), (Some(old), Some(new)) if new > old + 1.0);
        let fewer = matches!((before.queries, self.queries), (Some(old), Some(new)) if new < old);
        later || fewer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(waiting: Option<f64>, kv_usage: Option<f64>) -> Report {
        Report { waiting, kv_usage, ..Report::default() }
    }

    #[test]
    fn each_figure_keeps_its_own_age() {
        let start = Instant::now();
        let stale_after = Duration::from_secs(2);
        let first = Sample::after(None, &report(Some(3.0), Some(0.5)), start);
        let later = start + Duration::from_secs(3);
        let second = Sample::after(Some(&first), &report(None, Some(0.7)), later);
        let load = second.load(later, stale_after, InFlight { requests: 1, ..InFlight::default() });
        assert_eq!((load.waiting, load.kv_usage, load.in_flight.requests), (None, Some(0.7), 1));
        assert_eq!(second.load(start + stale_after, stale_after, InFlight::default()).waiting, Some(3.0));
        assert_eq!(second.age(later), Some(Duration::ZERO));
    }

    #[test]
    fn a_restart_shows_in_either_mark() {
        let sample = |started, queries| Sample { started, queries, ..Sample::default() };
        let old = sample(Some(100.0), Some(90_000.0));
        for (restarted, new) in [
            (false, sample(Some(100.0), Some(90_001.0))),
            (true, sample(Some(200.0), Some(90_001.0))),
            (true, sample(Some(100.0), Some(0.0))),
            (false, sample(None, None)),
        ] {
            assert_eq!(new.restarted_since(&old), restarted, "{new:?}");
        }
    }
}
