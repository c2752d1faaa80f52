//! The servers' own prefix-cache counters: what was cached, by those who know.

use std::time::Duration;

use reqwest::Client;
use tokio::time::Instant;

use crate::prometheus::Page;

/// Time between two looks at the counters.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long one `/metrics` page may take.
const PAGE_WAIT_MAX: Duration = Duration::from_secs(5);

/// vLLM's two counters of a server, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// `vllm:prefix_cache_queries_total`
    pub query_tokens: f64,
    /// `vllm:prefix_cache_hits_total`
    pub hit_tokens: f64,
}

/// Why counters are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum CountersError {
    /// A page could not be read.
    #[error("{url}: {source}")]
    Page {
        /// Its address.
        url: String,
        /// Why not.
        source: reqwest::Error,
    },
    /// Some of what was sent never showed.
    #[error("after {waited:?} the servers have counted {found} prompt tokens, wanted {wanted}")]
    Behind {
        /// How long was waited.
        waited: Duration,
        /// What they have counted.
        found: f64,
        /// What was sent.
        wanted: f64,
    },
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

/// The counters of each server now. `urls` are base addresses; `/metrics` is added.
pub async fn read(client: &Client, urls: &[String]) -> Result<Vec<Counters>, CountersError> {
    let mut counters = Vec::with_capacity(urls.len());
    for url in urls {
        let url = format!("{url}/metrics");
        let failed = |source| CountersError::Page { url: url.clone(), source };
        let response = client.get(&url).timeout(PAGE_WAIT_MAX).send().await.map_err(failed)?;
        let page = response.error_for_status().map_err(failed)?.text().await.map_err(failed)?;
        counters.push(Counters::parse(&page));
    }
    Ok(counters)
}

/// Polls until the servers together have counted `wanted` prompt tokens more than `before`.
///
/// Returns what each counted since. Errors: a page that cannot be read; the time is up.
pub async fn wait_for(
    client: &Client,
    urls: &[String],
    before: &[Counters],
    wanted: f64,
    wait: Duration,
) -> Result<Vec<Counters>, CountersError> {
    let deadline = Instant::now() + wait;
    loop {
        let now = read(client, urls).await?;
        let since: Vec<_> = now.iter().zip(before).map(|(now, before)| now.since(before)).collect();
        let found = Counters::sum(&since).query_tokens;
        if found >= wanted {
            return Ok(since);
        }
        if Instant::now() >= deadline {
            return Err(CountersError::Behind { waited: wait, found, wanted });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
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
