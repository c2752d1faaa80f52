//! Whether prefill apart from decode would pay, as far as an engine's own histograms tell.
//!
//! The bound used: a replica is busy with some prompt for at most the sum of its requests' prefill times. It holds
//! however requests were batched, which a comparison of prefill's seconds with decode's does not: many decodes share one step.
//! Source of both times: vLLM 0.32, `v1/metrics/stats.py`: prefill is from being scheduled to the first token, decode from
//! there to the last; both are counted when a request ends.

use std::time::Duration;

use super::counts::{Counter, Counts, Times};

/// What can be said.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Requests that ended.
    pub requests: f64,
    /// Seconds of requests in prefill.
    pub prefill_seconds: f64,
    /// Seconds of requests in decode.
    pub decode_seconds: f64,
    /// Time over which they were counted, of one replica; `None` where nobody knows.
    pub elapsed: Option<Duration>,
    /// Replicas.
    pub replicas: usize,
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
    /// It is more: measure.
    Perhaps,
    /// The time over which it was counted is not known.
    Unknown,
}

impl Estimate {
    /// From counts over `elapsed`. `reachable` is the hit rate that routing can have. Errors: the metrics that are missing,
    /// or that nothing ended.
    pub(super) fn of(
        counts: &Counts,
        elapsed: Option<Duration>,
        replicas: usize,
        reachable: Option<f64>,
    ) -> Result<Self, String> {
        let (prefill, decode) = (counts.times(Times::Prefill), counts.times(Times::Decode));
        let (Some(prefill), Some(decode)) = (prefill, decode) else {
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
            elapsed: elapsed.filter(|elapsed| !elapsed.is_zero()),
            replicas,
            hit_rates: counts.hit_rate().zip(reachable).filter(|(now, reachable)| reachable > now),
            inter_token: bounds.and_then(|bounds| bounds.at_most(0.5).zip(bounds.at_most(0.99))),
            external_tokens: counts.counter(Counter::ExternalHits).unwrap_or(0.0),
        })
    }

    /// Prefill over prefill and decode, in seconds of requests.
    pub fn share(&self) -> f64 {
        let all = self.prefill_seconds + self.decode_seconds;
        if all > 0.0 { self.prefill_seconds / all } else { 0.0 }
    }

    /// Requests in prefill at a moment, over all replicas: replicas that prefill keeps busy at most.
    pub fn busy(&self) -> Option<f64> {
        Some(self.prefill_seconds / self.elapsed?.as_secs_f64())
    }

    /// The same once prompts are routed by prefix.
    pub fn busy_after(&self) -> Option<f64> {
        Some(self.busy()? * self.left().unwrap_or(1.0))
    }

    /// Share of the prefill that is left when the hit rate is what routing can reach: `(1 - reachable) / (1 - now)`.
    pub fn left(&self) -> Option<f64> {
        self.hit_rates.map(|(now, reachable)| (1.0 - reachable) / (1.0 - now))
    }

    /// What follows from them.
    pub fn verdict(&self) -> Verdict {
        match self.busy_after() {
            _ if self.replicas < 2 => Verdict::OneReplica,
            None => Verdict::Unknown,
            Some(busy) if busy < 1.0 => Verdict::No,
            Some(_) => Verdict::Perhaps,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::prometheus::Page;

    fn counts(prefill: f64, decode: f64) -> Counts {
        let page = format!(
            "vllm:request_prefill_time_seconds_count 5\nvllm:request_prefill_time_seconds_sum {prefill}\n\
             vllm:request_decode_time_seconds_count 5\nvllm:request_decode_time_seconds_sum {decode}\n\
             vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 20\n"
        );
        Counts::read(&Page::parse(&page))
    }

    #[test]
    fn less_prefill_than_one_replica_can_do_needs_no_replica_of_its_own() {
        let of = |prefill, seconds: Option<u64>, replicas, reachable| {
            let elapsed = seconds.map(Duration::from_secs);
            let estimate = Estimate::of(&counts(prefill, 30.0), elapsed, replicas, reachable).unwrap();
            (estimate.busy_after(), estimate.verdict())
        };
        assert_eq!(of(10.0, Some(20), 4, None), (Some(0.5), Verdict::No));
        assert_eq!(of(30.0, Some(20), 4, None), (Some(1.5), Verdict::Perhaps));
        // (1 - 0.6) / (1 - 0.2) of it is left.
        assert_eq!(of(30.0, Some(20), 4, Some(0.6)), (Some(0.75), Verdict::No));
        assert_eq!(of(30.0, Some(20), 4, Some(0.1)), (Some(1.5), Verdict::Perhaps));
        assert_eq!(of(30.0, None, 4, None), (None, Verdict::Unknown));
        assert_eq!(of(30.0, Some(20), 1, None), (Some(1.5), Verdict::OneReplica));
    }

    #[test]
    fn what_is_missing_is_named() {
        let estimate = Estimate::of(&counts(10.0, 30.0), None, 2, None).unwrap();
        assert_eq!((estimate.share(), estimate.inter_token), (0.25, None));
        let error = Estimate::of(&Counts::default(), None, 2, None).unwrap_err();
        assert!(error.contains("vllm:request_prefill_time_seconds"), "{error}");
        let nothing = Counts::read(&Page::parse(
            "vllm:request_prefill_time_seconds_count 0\nvllm:request_prefill_time_seconds_sum 0\n\
             vllm:request_decode_time_seconds_count 0\nvllm:request_decode_time_seconds_sum 0\n",
        ));
        assert!(Estimate::of(&nothing, None, 2, None).unwrap_err().contains("counted no request"));
    }
}
