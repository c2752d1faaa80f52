//! The servers' own prefix-cache counters: what was cached, by those who know.

use crate::prometheus::Page;

/// vLLM's two counters of a server, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// `vllm:prefix_cache_queries_total`
    pub query_tokens: f64,
    /// `vllm:prefix_cache_hits_total`
    pub hit_tokens: f64,
}

impl Counters {
    /// Reads a page of Prometheus text. Several series of one name are added; absent ones are 0.
    pub fn parse(page: &str) -> Self {
        Self::of(&Page::parse(page))
    }

    /// Of a page that was read.
    pub fn of(page: &Page<'_>) -> Self {
        let sum = |name| page.sum(name).unwrap_or(0.0);
        Self {
            query_tokens: sum("vllm:prefix_cache_queries_total"),
            hit_tokens: sum("vllm:prefix_cache_hits_total"),
        }
    }

    /// Both counters of all servers.
    pub fn sum(all: &[Self]) -> Self {
        let add = |sum: Self, one: &Self| Self {
            query_tokens: sum.query_tokens + one.query_tokens,
            hit_tokens: sum.hit_tokens + one.hit_tokens,
        };
        all.iter().fold(Self::default(), add)
    }

    /// What was counted since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            query_tokens: self.query_tokens - before.query_tokens,
            hit_tokens: self.hit_tokens - before.hit_tokens,
        }
    }

    /// Hits over queries, 0 to 1; nothing asked is 0.
    pub fn hit_rate(&self) -> f64 {
        if self.query_tokens > 0.0 { self.hit_tokens / self.query_tokens } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read() {
        for (shows, page, queries, hits) in [
            ("nothing", "", 0.0, 0.0),
            (
                "exponents",
                "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m\"} 1.4144e+04\n\
                 vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"} 10752.0\n",
                14144.0,
                10752.0,
            ),
            (
                "several series",
                "vllm:prefix_cache_queries_total{engine=\"0\"} 100\nvllm:prefix_cache_queries_total{engine=\"1\"} 50\n",
                150.0,
                0.0,
            ),
            (
                "braces in quotes, a timestamp, a longer name, no number",
                "vllm:prefix_cache_hits_total{a=\"} 9\"} 4 1700000000\nvllm:prefix_cache_hits_total_x 99\n\
                 vllm:prefix_cache_hits_total NaN\nvllm:prefix_cache_queries_total 5\n",
                5.0,
                4.0,
            ),
        ] {
            let want = Counters { query_tokens: queries, hit_tokens: hits };
            assert_eq!(Counters::parse(page), want, "{shows}");
        }
    }

    #[test]
    fn a_rate_of_nothing_is_0() {
        assert_eq!(Counters::default().hit_rate(), 0.0);
        assert_eq!(Counters { query_tokens: 200.0, hit_tokens: 50.0 }.hit_rate(), 0.25);
    }
}
