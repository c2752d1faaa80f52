//! What the servers themselves counted during a play: by those who hold the caches, not by those who ask.
//!
//! A server that cannot be read, has no such counters or was restarted midway is told in a line and left out; the others
//! still count. Counters trail the answers, so they are waited for until they cover all prompt tokens that were sent.

use std::time::Duration;

use reqwest::Client;
use tokio::time::Instant;

use super::counters::Counters;
use super::failure::with_causes;
use crate::prometheus::Page;

/// Time between two looks at the counters.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Looks without a change after which counters have settled, where nobody knows what they should come to.
const SETTLED_LOOKS: usize = 20;
/// How long one page may take.
const PAGE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Counters may exceed what was sent by this share before it is said: failed requests are counted by them only.
const EXCESS_MAX: f64 = 0.02;

/// A server whose counters are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As it is told.
    pub name: String,
    /// Base address.
    pub url: String,
}

/// Why a server's counters say nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServerFault {
    /// Its page.
    #[error("{0}")]
    Page(String),
    /// Another kind of server, or prefix caching is off.
    #[error(
        "found no vllm:prefix_cache_queries_total on its /metrics, wanted an engine that counts its prefix cache"
    )]
    NoCounters,
    /// It counts from 0 again.
    #[error("restarted midway: its counters began anew, so what it counted is left out")]
    Restarted,
}

/// A look at a server.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    counters: Counters,
    /// `process_start_time_seconds`, where it says so.
    started: Option<f64>,
}

/// That not all was counted, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Uncounted(String);

type Looks = Vec<Result<Look, ServerFault>>;

/// What the servers counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// By server, in their order; what of several plays can be had, added up.
    pub servers: Vec<(String, Result<Counters, ServerFault>)>,
    /// Remarks on all of them, a line each.
    pub remarks: Vec<String>,
}

impl Counted {
    /// The counters of every server, in their order. Errors: the first that has none, or the first remark.
    pub fn every(self) -> Result<Vec<Counters>, Uncounted> {
        if let Some(remark) = self.remarks.into_iter().next() {
            return Err(Uncounted(remark));
        }
        let each = self.servers.into_iter();
        each.map(|(name, one)| one.map_err(|fault| Uncounted(format!("{name}: {fault}")))).collect()
    }

    /// Counters of all servers that have some; none where nobody has.
    pub fn sum(&self) -> Option<Counters> {
        let counted: Vec<Counters> = self.servers.iter().filter_map(|(_, one)| one.clone().ok()).collect();
        (!counted.is_empty()).then(|| Counters::sum(&counted))
    }

    /// Adds another play of the same servers. A server that failed in one has no figure: it would be one of other plays
    /// than the rest's.
    pub fn merge(&mut self, other: Self) {
        if self.servers.is_empty() {
            return *self = other;
        }
        for ((_, sum), (_, one)) in self.servers.iter_mut().zip(other.servers) {
            match (&mut *sum, one) {
                (Ok(sum), Ok(one)) => *sum = Counters::sum(&[*sum, one]),
                (Ok(_), Err(fault)) => *sum = Err(fault),
                (Err(_), _) => {}
            }
        }
        self.remarks.extend(other.remarks);
    }
}

/// Servers that are being watched since before a play.
pub struct Watch<'a> {
    client: &'a Client,
    servers: &'a [Server],
    before: Looks,
}

impl<'a> Watch<'a> {
    /// Reads them all.
    pub async fn begin(client: &'a Client, servers: &'a [Server]) -> Self {
        Self { client, servers, before: look(client, servers).await }
    }

    /// Reads them until they have counted `wanted` prompt tokens more, or for so long. None wanted: until they settle.
    pub async fn end(self, wanted: Option<f64>, wait: Duration) -> Counted {
        let deadline = Instant::now() + wait;
        let every_one = self.before.iter().all(Result::is_ok);
        let wanted = wanted.filter(|_| every_one);
        let (mut still, mut last) = (0, None);
        loop {
            let since = self.since(look(self.client, self.servers).await);
            let found = since.sum().map_or(0.0, |sum| sum.query_tokens);
            still = if last.replace(found) == Some(found) { still + 1 } else { 0 };
            let known = wanted.filter(|_| since.servers.iter().all(|(_, one)| one.is_ok()));
            if self.servers.is_empty() || since.sum().is_none() {
                return since;
            }
            if known.is_some_and(|wanted| found >= wanted) || (known.is_none() && still >= SETTLED_LOOKS) {
                return since.with_remark(excess(found, known));
            }
            if Instant::now() >= deadline {
                return since.with_remark(known.map(|wanted| behind(found, wanted, wait)));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn since(&self, now: Looks) -> Counted {
        let each = self.servers.iter().zip(self.before.iter().zip(now));
        let servers = each.map(|(server, (before, now))| (server.name.clone(), since(before, now))).collect();
        Counted { servers, remarks: Vec::new() }
    }
}

impl Counted {
    fn with_remark(mut self, remark: Option<String>) -> Self {
        self.remarks.extend(remark);
        self
    }
}

fn since(
    before: &Result<Look, ServerFault>,
    now: Result<Look, ServerFault>,
) -> Result<Counters, ServerFault> {
    let (before, now) = (before.as_ref().map_err(ServerFault::clone)?, now?);
    let counters = now.counters.since(&before.counters);
    let fell = counters.query_tokens < 0.0 || counters.hit_tokens < 0.0;
    if fell || before.started.zip(now.started).is_some_and(|(before, now)| before != now) {
        return Err(ServerFault::Restarted);
    }
    Ok(counters)
}

fn behind(found: f64, wanted: f64, wait: Duration) -> String {
    format!(
        "after {wait:?} the servers have counted {found} prompt tokens, wanted the {wanted} of the answers: \
         not every server is listed, or one counts otherwise"
    )
}

fn excess(found: f64, wanted: Option<f64>) -> Option<String> {
    let wanted = wanted.filter(|wanted| found > wanted * (1.0 + EXCESS_MAX))?;
    Some(format!(
        "the servers have counted {found} prompt tokens, the answers account for {wanted}: \
         others sent too, or requests failed after they were counted"
    ))
}

/// All pages at once.
async fn look(client: &Client, servers: &[Server]) -> Looks {
    futures_util::future::join_all(servers.iter().map(|server| look_at(client, server))).await
}

async fn look_at(client: &Client, server: &Server) -> Result<Look, ServerFault> {
    let failed = |error: reqwest::Error| ServerFault::Page(with_causes(&error));
    let url = format!("{}/metrics", server.url);
    let response = client.get(url).timeout(PAGE_WAIT_MAX).send().await.map_err(failed)?;
    let text = response.error_for_status().map_err(failed)?.text().await.map_err(failed)?;
    let page = Page::parse(&text);
    let look = Look { counters: Counters::of(&page), started: page.sum("process_start_time_seconds") };
    let counts = page.sum("vllm:prefix_cache_queries_total").is_some();
    if counts { Ok(look) } else { Err(ServerFault::NoCounters) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn look(query_tokens: f64, hit_tokens: f64, started: Option<f64>) -> Look {
        Look { counters: Counters { query_tokens, hit_tokens }, started }
    }

    #[test]
    fn what_was_counted_since() {
        let before = Ok(look(100.0, 40.0, Some(5.0)));
        let counters = |query_tokens, hit_tokens| Counters { query_tokens, hit_tokens };
        for (shows, now, want) in [
            ("more", Ok(look(160.0, 70.0, Some(5.0))), Ok(counters(60.0, 30.0))),
            ("nothing", Ok(look(100.0, 40.0, Some(5.0))), Ok(counters(0.0, 0.0))),
            ("fell", Ok(look(90.0, 40.0, None)), Err(ServerFault::Restarted)),
            ("hits fell", Ok(look(110.0, 4.0, None)), Err(ServerFault::Restarted)),
            (
                "another process that has counted more",
                Ok(look(160.0, 70.0, Some(6.0))),
                Err(ServerFault::Restarted),
            ),
            ("gone", Err(ServerFault::Page("x".to_owned())), Err(ServerFault::Page("x".to_owned()))),
        ] {
            assert_eq!(since(&before, now), want, "{shows}");
        }
        let never = Err(ServerFault::NoCounters);
        assert_eq!(since(&never, Ok(look(1.0, 1.0, None))), Err(ServerFault::NoCounters));
    }

    #[test]
    fn plays_add_up_unless_one_failed() {
        let counted = |one: Result<Counters, ServerFault>, two| Counted {
            servers: vec![("a".to_owned(), one), ("b".to_owned(), two)],
            remarks: vec!["r".to_owned()],
        };
        let five = Counters { query_tokens: 5.0, hit_tokens: 1.0 };
        let mut sum = Counted::default();
        sum.merge(counted(Ok(five), Ok(five)));
        sum.merge(counted(Ok(five), Err(ServerFault::Restarted)));
        sum.merge(counted(Ok(five), Ok(five)));
        assert_eq!(sum.servers[0].1, Ok(Counters { query_tokens: 15.0, hit_tokens: 3.0 }));
        assert_eq!(sum.servers[1].1, Err(ServerFault::Restarted));
        assert_eq!(sum.sum(), sum.servers[0].1.clone().ok());
        assert_eq!((sum.remarks.len(), Counted::default().sum()), (3, None));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        assert_eq!(excess(102.0, Some(100.0)), None);
        assert!(
            excess(103.0, Some(100.0)).unwrap().starts_with("the servers have counted 103 prompt tokens")
        );
        assert_eq!(excess(103.0, None), None);
        let wait = Duration::from_secs(1);
        assert!(
            behind(1.0, 2.0, wait)
                .starts_with("after 1s the servers have counted 1 prompt tokens, wanted the 2")
        );
    }
}
