//! What an engine last said of its load, each figure with the time at which it was said.
//!
//! A page that lacks a figure leaves the older one in place with its older time: it goes stale by itself, and
//! the others stay fresh.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adapters::Adapters;
use super::prometheus::Report;

/// A figure and when the engine said it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    value: f64,
    at: Instant,
}

/// The latest of each figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) waiting: Option<Figure>,
    pub(crate) running: Option<Figure>,
    pub(crate) kv_usage: Option<Figure>,
    pub(crate) block_size: Option<u32>,
    pub(crate) num_gpu_blocks: Option<u32>,
    /// Tokens that the engine's KV cache holds, if it said so.
    pub(crate) capacity_tokens: Option<u64>,
    /// Marks of the engine's process: when it started, and what it has counted since, prompt tokens mostly.
    pub(crate) started: Option<f64>,
    pub(crate) counted: Option<f64>,
    /// 1 when every engine is awake, 0 when one sleeps.
    pub(crate) awake: Option<Figure>,
    /// Adapters that the engine runs and queues, if it has any.
    pub(crate) adapters: Option<Arc<Adapters>>,
    /// What this router had sent there when the page was asked for.
    pub(crate) ours: Ours,
}

/// What a router had sent to an endpoint at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ours {
    /// Requests so far.
    pub(crate) sent: u64,
    /// Of those, the ones that had not ended.
    pub(crate) in_flight: u32,
}

impl Figure {
    /// The value, unless it is older than `stale_after`.
    pub(crate) fn fresh(self, now: Instant, stale_after: Duration) -> Option<f64> {
        (now.saturating_duration_since(self.at) <= stale_after).then_some(self.value)
    }
}

impl Sample {
    /// What is known after a page: its figures, and older ones where it has none.
    pub(crate) fn after(before: Option<&Self>, report: &Report<'_>, at: Instant, ours: Ours) -> Self {
        let before = before.cloned().unwrap_or_default();
        let figure =
            |value: Option<f64>, old: Option<Figure>| value.map(|value| Figure { value, at }).or(old);
        let cache = report.cache.as_ref();
        Self {
            waiting: figure(report.waiting, before.waiting),
            running: figure(report.running, before.running),
            kv_usage: figure(report.kv_usage, before.kv_usage),
            block_size: cache.map_or(before.block_size, |cache| cache.block_size),
            num_gpu_blocks: cache.map_or(before.num_gpu_blocks, |cache| cache.num_gpu_blocks),
            capacity_tokens: cache.map_or(before.capacity_tokens, |cache| cache.tokens),
            started: report.process_start_seconds.or(before.started),
            counted: report.counted.or(before.counted),
            awake: figure(report.awake.map(f64::from), before.awake),
            adapters: Adapters::after(before.adapters, report.lora),
            ours,
        }
    }

    /// The load as the picker sees it, as far as the engine told it.
    pub(crate) fn load(&self, now: Instant, stale_after: Duration) -> picker::load::Load {
        let fresh = |figure: Option<Figure>| figure.and_then(|figure| figure.fresh(now, stale_after));
        let (waiting, running) = (fresh(self.waiting), fresh(self.running));
        picker::load::Load {
            waiting,
            running,
            kv_usage: fresh(self.kv_usage),
            foreign: waiting.map(|waiting| self.foreign(waiting, running.unwrap_or(0.0))),
            ..picker::load::Load::default()
        }
    }

    /// Of the requests that wait, those that are not this router's: no more than all are beyond its own.
    fn foreign(&self, waiting: f64, running: f64) -> f64 {
        (waiting + running - f64::from(self.ours.in_flight)).clamp(0.0, waiting.max(0.0))
    }

    /// Age of the newest figure.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        let figures = [self.waiting, self.running, self.kv_usage];
        figures.iter().flatten().map(|figure| now.saturating_duration_since(figure.at)).min()
    }

    /// Whether the engine behind `self` is another process than the one behind `before`: its cache is empty.
    pub(crate) fn restarted_since(&self, before: &Self) -> bool {
        let later = matches!((before.started, self.started), (Some(old), Some(new)) if new > old + 1.0);
        let fewer = matches!((before.counted, self.counted), (Some(old), Some(new)) if new < old);
        later || fewer
    }

    /// Whether an engine behind it has gone to sleep since `before`: its cache is empty.
    pub(crate) fn fell_asleep_since(&self, before: Option<&Self>) -> bool {
        let asleep = |sample: &Self| sample.awake.is_some_and(|awake| awake.value == 0.0);
        asleep(self) && !before.is_some_and(asleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(waiting: Option<f64>, kv_usage: Option<f64>) -> Report<'static> {
        Report { waiting, kv_usage, ..Report::default() }
    }

    #[test]
    fn each_figure_keeps_its_own_age() {
        let start = Instant::now();
        let stale_after = Duration::from_secs(2);
        let first = Sample::after(None, &report(Some(3.0), Some(0.5)), start, Ours::default());
        let later = start + Duration::from_secs(3);
        let second =
            Sample::after(Some(&first), &report(None, Some(0.7)), later, Ours { sent: 4, in_flight: 1 });
        let load = second.load(later, stale_after);
        assert_eq!((load.waiting, load.kv_usage, second.ours.sent), (None, Some(0.7), 4));
        assert_eq!(second.load(start + stale_after, stale_after).waiting, Some(3.0));
        assert_eq!(second.age(later), Some(Duration::ZERO));
    }

    #[test]
    fn what_waits_beyond_our_own_is_others() {
        for (waiting, running, in_flight, foreign) in [
            (5.0, 3.0, 0, 5.0),
            (5.0, 3.0, 6, 2.0),
            (5.0, 3.0, 9, 0.0),
            (0.0, 40.0, 0, 0.0),
            (-1.0, 0.0, 0, 0.0),
        ] {
            let sample = Sample { ours: Ours { sent: 9, in_flight }, ..Sample::default() };
            assert_eq!(sample.foreign(waiting, running), foreign, "{waiting} {running} {in_flight}");
        }
    }

    #[test]
    fn a_restart_shows_in_either_mark() {
        let sample = |started, counted| Sample { started, counted, ..Sample::default() };
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

    #[test]
    fn falling_asleep_shows_once() {
        let now = Instant::now();
        let after = |before: Option<&Sample>, awake| {
            Sample::after(before, &Report { awake, ..Report::default() }, now, Ours::default())
        };
        let awake = after(None, Some(true));
        let asleep = after(Some(&awake), Some(false));
        let silent = after(Some(&asleep), None);
        assert!(!awake.fell_asleep_since(None) && asleep.fell_asleep_since(Some(&awake)));
        assert!(asleep.fell_asleep_since(None), "asleep from the start");
        assert!(!silent.fell_asleep_since(Some(&asleep)), "it sleeps on");
        assert!(!after(Some(&silent), Some(true)).fell_asleep_since(Some(&silent)));
    }
}
