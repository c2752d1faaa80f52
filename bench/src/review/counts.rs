//! What a replica has counted: of its page what a review speaks of, each figure present or not.
//!
//! Names and units: vLLM 0.32, `tests/fixtures/vllm/*.txt`. A figure that is missing stays missing: it never counts
//! as 0, because every sentence of the review follows from figures that were there.

use super::histogram::Histogram;
use crate::prometheus::Page;

/// A counter of the page, and what cannot be said without it.
pub(super) struct Known {
    pub(super) metric: &'static str,
    pub(super) without: &'static str,
}

/// Counters since the process began, or over an interval; of one replica, or of several together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    counters: [Option<f64>; COUNTERS.len()],
    histograms: [Option<Histogram>; HISTOGRAMS.len()],
}

/// The counters, by their place in `COUNTERS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Prompt tokens that were looked up in the prefix cache.
    Queries,
    /// Of them, found.
    Hits,
    /// Requests that were preempted; they are computed again.
    Preemptions,
    /// Requests that ended.
    Finished,
    /// Tokens found in another replica's or a remote cache.
    ExternalHits,
}

/// The histograms, by their place in `HISTOGRAMS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Seconds from arrival to the first token.
    FirstToken,
    /// Seconds in the queue.
    Queue,
    /// Seconds from being scheduled to the first token.
    Prefill,
    /// Seconds from the first token to the last.
    Decode,
    /// Seconds between two tokens of an answer.
    InterToken,
    /// Tokens of a prompt.
    PromptTokens,
    /// Tokens of a prompt that were computed.
    ComputedTokens,
}

const COUNTERS: [Known; 5] = [
    Known {
        metric: "vllm:prefix_cache_queries_total",
        without: "no hit rate, and nothing that follows from it",
    },
    Known {
        metric: "vllm:prefix_cache_hits_total",
        without: "no hit rate, and nothing that follows from it",
    },
    Known { metric: "vllm:num_preemptions_total", without: "whether KV memory is too short for what runs" },
    Known { metric: "vllm:request_success_total", without: "how many of the requests were preempted" },
    Known { metric: "vllm:external_prefix_cache_hits_total", without: "" },
];

const HISTOGRAMS: [Known; 7] = [
    Known { metric: "vllm:time_to_first_token_seconds", without: "the time to the first token" },
    Known { metric: "vllm:request_queue_time_seconds", without: "how much of it is queueing" },
    Known {
        metric: "vllm:request_prefill_time_seconds",
        without: "prefill's share of the time, so whether disaggregation pays",
    },
    Known {
        metric: "vllm:request_decode_time_seconds",
        without: "prefill's share of the time, so whether disaggregation pays",
    },
    Known {
        metric: "vllm:inter_token_latency_seconds",
        without: "how far answers stand still for other prompts",
    },
    Known {
        metric: "vllm:request_prompt_tokens",
        without: "how long prompts are, so whether the trace is alike",
    },
    Known { metric: "vllm:request_prefill_kv_computed_tokens", without: "the pace of prefill" },
];

impl Counts {
    /// Reads a page.
    pub(super) fn read(page: &Page<'_>) -> Self {
        Self {
            counters: COUNTERS.map(|known| page.sum(known.metric)),
            histograms: HISTOGRAMS.map(|known| Histogram::read(page, known.metric)),
        }
    }

    /// A counter; `None` where the page had none.
    pub fn counter(&self, counter: Counter) -> Option<f64> {
        self.counters[counter as usize]
    }

    /// A histogram; `None` where the page had none.
    pub fn times(&self, times: Times) -> Option<&Histogram> {
        self.histograms[times as usize].as_ref()
    }

    /// Prompt tokens found over those looked up; `None` where a counter is missing, nothing was looked up, or more was found
    /// than that.
    pub fn hit_rate(&self) -> Option<f64> {
        let (queries, hits) = self.looked_up().filter(|(queries, _)| *queries > 0.0)?;
        Some(hits / queries)
    }

    /// Prompt tokens looked up and found, where both are there and can be true.
    fn looked_up(&self) -> Option<(f64, f64)> {
        let both = self.counter(Counter::Queries).zip(self.counter(Counter::Hits));
        both.filter(|(queries, hits)| hits <= queries)
    }

    /// Why there is no hit rate; `None` where there is one.
    pub(super) fn unrated(&self) -> Option<String> {
        let [queries, hits] =
            [Counter::Queries, Counter::Hits].map(|counter| COUNTERS[counter as usize].metric);
        match (self.counter(Counter::Queries), self.counter(Counter::Hits)) {
            (None, None) => Some(format!("{queries} and {hits} are missing")),
            (None, _) => Some(format!("{queries} is missing")),
            (_, None) => Some(format!("{hits} is missing")),
            (Some(found), Some(more)) if more > found => {
                Some(format!("{hits} is {more} and {queries} {found}"))
            }
            (Some(found), _) => {
                (found <= 0.0).then(|| format!("no prompt token was looked up ({queries} is 0)"))
            }
        }
    }

    /// More found than looked up, in figures.
    pub(super) fn contradiction(&self) -> Option<String> {
        let both = self.counter(Counter::Queries).zip(self.counter(Counter::Hits));
        both.filter(|(queries, hits)| hits > queries).and_then(|_| self.unrated())
    }

    /// What can be added to others': without the half of a hit rate, which would make theirs another.
    pub(super) fn addable(&self) -> Self {
        let mut addable = self.clone();
        if self.looked_up().is_none() {
            addable.counters[Counter::Queries as usize] = None;
            addable.counters[Counter::Hits as usize] = None;
        }
        addable
    }

    /// Preemptions of a request that ended; can exceed 1.
    pub fn preempted(&self) -> Option<f64> {
        let finished = self.counter(Counter::Finished).filter(|finished| *finished > 0.0)?;
        Some(self.counter(Counter::Preemptions)? / finished)
    }

    /// Metrics that are missing, by what cannot be said without them.
    pub(super) fn missing(&self) -> Vec<&'static Known> {
        let counters = COUNTERS.iter().zip(&self.counters).filter(|(_, value)| value.is_none());
        let histograms = HISTOGRAMS.iter().zip(&self.histograms).filter(|(_, value)| value.is_none());
        let missing = counters.map(|(known, _)| known).chain(histograms.map(|(known, _)| known));
        missing.filter(|known| !known.without.is_empty()).collect()
    }

    /// Both together; what one of them has not is the other's.
    pub(super) fn plus(self, other: &Self) -> Self {
        let mut sum = self;
        for (one, other) in sum.counters.iter_mut().zip(&other.counters) {
            *one = one.map_or(*other, |one| Some(one + other.unwrap_or(0.0)));
        }
        for (one, other) in sum.histograms.iter_mut().zip(&other.histograms) {
            *one = match (one.take(), other) {
                (Some(one), Some(other)) => Some(one.plus(other)),
                (one, other) => one.or_else(|| other.clone()),
            };
        }
        sum
    }

    /// What was counted since `before`. Errors: the first metric that fell, which no counter does within one life of a
    /// process, with its two values.
    pub(super) fn since(&self, before: &Self) -> Result<Self, (&'static str, f64, f64)> {
        let mut since = Self::default();
        for (place, known) in COUNTERS.iter().enumerate() {
            if let (Some(now), Some(before)) = (self.counters[place], before.counters[place]) {
                since.counters[place] = Some(risen(known.metric, now, before)?);
            }
        }
        for (place, known) in HISTOGRAMS.iter().enumerate() {
            if let (Some(now), Some(before)) = (&self.histograms[place], &before.histograms[place]) {
                risen(known.metric, now.count, before.count)?;
                since.histograms[place] = Some(now.since(before));
            }
        }
        Ok(since)
    }
}

fn risen(metric: &'static str, now: f64, before: f64) -> Result<f64, (&'static str, f64, f64)> {
    if now >= before { Ok(now - before) } else { Err((metric, before, now)) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn counts(page: &str) -> Counts {
        Counts::read(&Page::parse(page))
    }

    /// Each name stands at the place that its enum says.
    #[test]
    fn names_and_places_agree() {
        for (counter, end) in [
            (Counter::Queries, "prefix_cache_queries_total"),
            (Counter::Hits, ":prefix_cache_hits_total"),
            (Counter::Preemptions, "preemptions_total"),
            (Counter::Finished, "success_total"),
            (Counter::ExternalHits, "external_prefix_cache_hits_total"),
        ] {
            assert!(COUNTERS[counter as usize].metric.ends_with(end), "{counter:?}");
        }
        for (times, end) in [
            (Times::FirstToken, "first_token_seconds"),
            (Times::Queue, "queue_time_seconds"),
            (Times::Prefill, "prefill_time_seconds"),
            (Times::Decode, "decode_time_seconds"),
            (Times::InterToken, "inter_token_latency_seconds"),
            (Times::PromptTokens, "request_prompt_tokens"),
            (Times::ComputedTokens, "kv_computed_tokens"),
        ] {
            assert!(HISTOGRAMS[times as usize].metric.ends_with(end), "{times:?}");
        }
    }

    #[test]
    fn what_is_missing_is_not_0() {
        let page =
            "vllm:prefix_cache_queries_total 10\nvllm:num_preemptions_total 3\nvllm:request_success_total 0";
        let one = counts(page);
        assert_eq!((one.hit_rate(), one.preempted()), (None, None));
        let missing: Vec<_> = one.missing().iter().map(|known| known.metric).collect();
        assert_eq!((missing[0], missing.len()), ("vllm:prefix_cache_hits_total", 8));

        let hits = counts("vllm:prefix_cache_hits_total 5\nvllm:request_success_total 6");
        let both = one.plus(&hits);
        assert_eq!((both.hit_rate(), both.preempted()), (Some(0.5), Some(0.5)));
    }

    #[test]
    fn why_there_is_no_hit_rate_is_known_and_spoils_no_sum() {
        let page = |queries: &str, hits: &str| {
            let line = |name, value: &str| {
                if value.is_empty() {
                    String::new()
                } else {
                    format!("vllm:prefix_cache_{name}_total {value}\n")
                }
            };
            counts(&(line("queries", queries) + &line("hits", hits)))
        };
        for (queries, hits, want, added) in [
            ("10", "5", None, Some(0.25)),
            (
                "",
                "",
                Some("vllm:prefix_cache_queries_total and vllm:prefix_cache_hits_total are missing"),
                Some(0.2),
            ),
            ("", "5", Some("vllm:prefix_cache_queries_total is missing"), Some(0.2)),
            ("10", "", Some("vllm:prefix_cache_hits_total is missing"), Some(0.2)),
            (
                "0",
                "0",
                Some("no prompt token was looked up (vllm:prefix_cache_queries_total is 0)"),
                Some(0.2),
            ),
            (
                "10",
                "20",
                Some("vllm:prefix_cache_hits_total is 20 and vllm:prefix_cache_queries_total 10"),
                Some(0.2),
            ),
        ] {
            let one = page(queries, hits);
            assert_eq!(one.unrated().as_deref(), want);
            assert_eq!(one.hit_rate().is_some(), want.is_none(), "{queries} {hits}");
            assert_eq!(one.contradiction().is_some(), hits == "20");
            assert_eq!(page("50", "10").plus(&one.addable()).hit_rate(), added, "{queries} {hits}");
        }
    }

    #[test]
    fn a_counter_that_falls_is_a_restart() {
        let early = counts(
            "vllm:prefix_cache_queries_total 10\nvllm:time_to_first_token_seconds_count 4\nvllm:time_to_first_token_seconds_sum 1",
        );
        let late = counts(
            "vllm:prefix_cache_queries_total 30\nvllm:time_to_first_token_seconds_count 4\nvllm:time_to_first_token_seconds_sum 1",
        );
        let since = late.since(&early).unwrap();
        assert_eq!((since.counter(Counter::Queries), since.counter(Counter::Hits)), (Some(20.0), None));
        assert_eq!(early.since(&late), Err(("vllm:prefix_cache_queries_total", 30.0, 10.0)));
        let fewer =
            counts("vllm:time_to_first_token_seconds_count 3\nvllm:time_to_first_token_seconds_sum 1");
        assert_eq!(fewer.since(&late), Err(("vllm:time_to_first_token_seconds", 4.0, 3.0)));
    }
}
