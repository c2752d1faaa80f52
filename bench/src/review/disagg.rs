//! Whether prefill apart from decode would pay, as far as an engine's own histograms tell.
//!
//! The bound used: a replica is busy with some prompt for at most the sum of its requests' prefill times. It holds
//! however requests were batched, which a comparison of prefill's seconds with decode's does not: many decodes share one step.
//! It is one from above: requests that are in prefill at once count each, so a high sum shows nothing.
//! Source of both times: vLLM 0.32, `v1/metrics/stats.py`: prefill is from being scheduled to the first token, decode from
//! there to the last; both are counted when a request ends.

use super::Basis;
use super::counts::{Counter, Counts, Times};
use super::histogram::Histogram;

/// What the counts are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Of {
    pub(super) basis: Basis,
    /// Replicas that the counts are of.
    pub(super) measured: usize,
    /// Replicas that were given.
    pub(super) fleet: usize,
    /// Hit rates now and as routing can have it.
    pub(super) hit_rates: Option<(f64, f64)>,
}

/// What can be said.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Requests that ended.
    pub requests: f64,
    /// Seconds of requests in prefill.
    pub prefill_seconds: f64,
    /// Seconds of requests in decode.
    pub decode_seconds: f64,
    /// Since when they were counted.
    pub basis: Basis,
    /// Replicas that they were counted of.
    pub measured: usize,
    /// Replicas that were given.
    pub fleet: usize,
    /// Hit rates now and as routing can reach it, where that is more.
    pub hit_rates: Option<(f64, f64)>,
    /// Bounds of the time between two tokens: half of all, 99 of 100.
    pub inter_token: Option<(f64, f64)>,
    /// Tokens that came from other caches: there is a connector already.
    pub external_tokens: f64,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// One replica has nobody to hand over to.
    OneReplica,
    /// Prefill is less than one replica's work.
    No,
    /// It can be more: measure.
    Perhaps,
    /// An average since the start tells nothing of the load of now.
    Average,
    /// Prefill is less than one replica's work at those that were measured, and others were not.
    Part,
}

/// Both times, of prefill first.
pub(super) fn times(counts: &Counts) -> Option<(&Histogram, &Histogram)> {
    counts.times(Times::Prefill).zip(counts.times(Times::Decode))
}

impl Estimate {
    /// Errors: the metrics that are missing, or that nothing ended.
    pub(super) fn of(counts: &Counts, of: Of) -> Result<Self, String> {
        let Some((prefill, decode)) = times(counts) else {
            return Err("vllm:request_prefill_time_seconds or vllm:request_decode_time_seconds is missing: \
                        prefill's share of the time is not known, so nothing can be said"
                .to_owned());
        };
        if prefill.count <= 0.0 {
            return Err(
                "vllm:request_prefill_time_seconds has counted no request: nothing can be said".to_owned()
            );
        }
        let bounds = counts.times(Times::InterToken);
        Ok(Self {
            requests: prefill.count,
            prefill_seconds: prefill.sum,
            decode_seconds: decode.sum,
            basis: of.basis,
            measured: of.measured,
            fleet: of.fleet,
            hit_rates: of.hit_rates.filter(|(now, reachable)| reachable > now),
            inter_token: bounds.and_then(|bounds| bounds.at_most(0.5).zip(bounds.at_most(0.99))),
            external_tokens: counts.counter(Counter::ExternalHits).unwrap_or(0.0),
        })
    }

    /// Prefill over prefill and decode, in seconds of requests; `None` of no time at all.
    pub fn share(&self) -> Option<f64> {
        let all = self.prefill_seconds + self.decode_seconds;
        (all > 0.0).then(|| self.prefill_seconds / all)
    }

    /// Requests in prefill at a moment, in the mean; `None` since the start, which is of no moment.
    pub fn in_prefill(&self) -> Option<f64> {
        match self.basis {
            Basis::Over(elapsed) if !elapsed.is_zero() => Some(self.prefill_seconds / elapsed.as_secs_f64()),
            _ => None,
        }
    }

    /// Replicas that prefill keeps busy, at most.
    pub fn busy(&self) -> Option<f64> {
        self.in_prefill().map(|requests| requests.min(self.measured as f64))
    }

    /// The same once prompts are routed by prefix.
    pub fn busy_after(&self) -> Option<f64> {
        let left = self.left().unwrap_or(1.0);
        self.in_prefill().map(|requests| (requests * left).min(self.measured as f64))
    }

    /// Share of the prefill that is left when the hit rate is what routing can reach: `(1 - reachable) / (1 - now)`.
    pub fn left(&self) -> Option<f64> {
        self.hit_rates.map(|(now, reachable)| (1.0 - reachable) / (1.0 - now))
    }

    /// What follows from them.
    pub fn verdict(&self) -> Verdict {
        match self.busy_after() {
            _ if self.fleet < 2 => Verdict::OneReplica,
            None => Verdict::Average,
            Some(busy) if busy >= 1.0 => Verdict::Perhaps,
            Some(_) if self.measured < self.fleet => Verdict::Part,
            Some(_) => Verdict::No,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;
    use crate::prometheus::Page;

    const SINCE_START: Of = Of { basis: Basis::SinceStart, measured: 2, fleet: 2, hit_rates: None };

    fn counts(prefill: f64, decode: f64) -> Counts {
        let page = format!(
            "vllm:request_prefill_time_seconds_count 5\nvllm:request_prefill_time_seconds_sum {prefill}\n\
             vllm:request_decode_time_seconds_count 5\nvllm:request_decode_time_seconds_sum {decode}\n"
        );
        Counts::read(&Page::parse(&page))
    }

    #[test]
    fn less_prefill_than_one_replica_can_do_needs_no_replica_of_its_own() {
        let over = Basis::Over(Duration::from_secs(20));
        for (shows, prefill, basis, [measured, fleet], reachable, want) in [
            ("half of one", 10.0, over, [4, 4], None, (Some(0.5), Verdict::No)),
            ("more than one", 30.0, over, [4, 4], None, (Some(1.5), Verdict::Perhaps)),
            ("(1 - 0.6) / (1 - 0.2) of it is left", 30.0, over, [4, 4], Some(0.6), (Some(0.75), Verdict::No)),
            ("nothing to reach", 30.0, over, [4, 4], Some(0.1), (Some(1.5), Verdict::Perhaps)),
            ("no more than there are", 120.0, over, [2, 2], None, (Some(2.0), Verdict::Perhaps)),
            (
                "as many requests at once after routing",
                120.0,
                over,
                [2, 2],
                Some(0.6),
                (Some(2.0), Verdict::Perhaps),
            ),
            ("an average", 10.0, Basis::SinceStart, [4, 4], None, (None, Verdict::Average)),
            (
                "an interval without a length",
                10.0,
                Basis::Over(Duration::ZERO),
                [4, 4],
                None,
                (None, Verdict::Average),
            ),
            ("one did not answer", 10.0, over, [1, 2], None, (Some(0.5), Verdict::Part)),
            ("one alone", 30.0, over, [1, 1], None, (Some(1.0), Verdict::OneReplica)),
        ] {
            let of = Of { basis, measured, fleet, hit_rates: reachable.map(|reachable| (0.2, reachable)) };
            let estimate = Estimate::of(&counts(prefill, 30.0), of).unwrap();
            assert_eq!((estimate.busy_after(), estimate.verdict()), want, "{shows}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let estimate = Estimate::of(&counts(10.0, 30.0), SINCE_START).unwrap();
        assert_eq!((estimate.share(), estimate.inter_token), (Some(0.25), None));
        assert_eq!(Estimate::of(&counts(0.0, 0.0), SINCE_START).unwrap().share(), None);
        let error = Estimate::of(&Counts::default(), SINCE_START).unwrap_err();
        assert!(error.contains("vllm:request_prefill_time_seconds"), "{error}");
        let nothing = Counts::read(&Page::parse(
            "vllm:request_prefill_time_seconds_count 0\nvllm:request_prefill_time_seconds_sum 0\n\
             vllm:request_decode_time_seconds_count 0\nvllm:request_decode_time_seconds_sum 0\n",
        ));
        assert!(Estimate::of(&nothing, SINCE_START).unwrap_err().contains("counted no request"));
    }
}
