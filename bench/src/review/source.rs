//! Where pages come from: replicas that answer, or texts that somebody saved.
//!
//! All replicas are asked at once, so that their loads are of one moment, and again after the interval. What cannot be
//! read becomes a line among the faults; the others are reviewed all the same.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::future::join_all;
use reqwest::Client;
use tokio::time::Instant;

use super::Basis;
use super::counts::Counts;
use super::replica::{Load, Snapshot};
use crate::address;

/// How long one page may take.
const PAGE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Bytes of a page at most; vLLM's have about 70 KiB.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// A replica to be reviewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What the review calls it.
    pub name: String,
    /// Where its page is.
    pub place: Place,
}

/// Where a page is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Address of the page, path included.
    Url(String),
    /// A saved text.
    File(PathBuf),
}

/// A replica that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// What the review calls it.
    pub name: String,
    /// Its last page; loads are the mean of the first and the last.
    pub snapshot: Snapshot,
    /// Counted from the first page to the last.
    pub over: Option<Counts>,
    /// How long its process has run; `None` of a saved text, which does not say when it was saved.
    pub up: Option<Duration>,
}

/// All that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gathered {
    /// In the order in which they were given.
    pub replicas: Vec<Replica>,
    /// One line for each thing that could not be read.
    pub faults: Vec<String>,
    /// Between the two readings, where there were two.
    pub interval: Option<Duration>,
}

impl Replica {
    /// Its counts on a basis of the review; those since its start where it has no others.
    pub(super) fn counts(&self, basis: Basis) -> &Counts {
        match basis {
            Basis::Over(_) => self.over.as_ref().unwrap_or(&self.snapshot.counts),
            Basis::SinceStart => &self.snapshot.counts,
        }
    }
}

impl std::str::FromStr for Source {
    type Err = String;

    /// `[NAME=]URL` or a file. A URL without a path gets `/metrics`. No URL is refused here: the command line would repeat
    /// it whole, with its password.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_url = |text: &str| text.starts_with("http://") || text.starts_with("https://");
        let named = text.split_once('=').filter(|(name, url)| is_url(url) && !is_url(name));
        let (name, place) = named.unwrap_or(("", text));
        if place.is_empty() {
            return Err(format!("found {text:?}, wanted a URL, NAME=URL or a file"));
        }
        if !is_url(place) {
            let path = PathBuf::from(place);
            let stem = path.file_stem().map_or(place.to_owned(), |stem| stem.to_string_lossy().into_owned());
            return Ok(Self { name: stem, place: Place::File(path) });
        }
        let shown = address::shown(place);
        let (_, rest) = shown.split_once("://").unwrap_or_default();
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let url = if path.is_empty() {
            format!("{}/metrics", place.trim_end_matches('/'))
        } else {
            place.to_owned()
        };
        let name = if name.is_empty() { host } else { name };
        Ok(Self { name: name.to_owned(), place: Place::Url(url) })
    }
}

/// Reads all sources, those with an address a second time after `interval` unless it is 0. Equal names get numbers.
pub async fn gather(sources: &[Source], interval: Duration, client: &Client) -> Gathered {
    let began = Instant::now();
    let first = join_all(sources.iter().map(|source| read(source, client))).await;
    let again = !interval.is_zero()
        && sources.iter().zip(&first).any(|(source, read)| source.is_live() && read.is_ok());
    let mut second = Vec::new();
    let mut gathered = Gathered::default();
    if again {
        tokio::time::sleep_until(began + interval).await;
        let second_began = Instant::now();
        let live = |(source, first): (&Source, &Result<_, _>)| source.is_live() && first.is_ok();
        let reads = sources
            .iter()
            .zip(&first)
            .map(|pair| async move { if live(pair) { Some(read(pair.0, client).await) } else { None } });
        second = join_all(reads).await;
        gathered.interval = Some(second_began - began);
    }
    let seconds = second.into_iter().chain(std::iter::repeat_with(|| None));
    for ((source, first), second) in sources.iter().zip(first).zip(seconds) {
        gathered.keep(source, first, second);
    }
    gathered.tell_names_apart();
    gathered
}

/// A page, with what of it could not be read.
type Read = Result<(Snapshot, Option<String>), String>;

impl Source {
    fn is_live(&self) -> bool {
        matches!(self.place, Place::Url(_))
    }

    /// To be shown; a misspelt address is taken as a file.
    fn place(&self) -> String {
        match &self.place {
            Place::Url(url) => address::shown(url),
            Place::File(path) => address::shown(&path.display().to_string()),
        }
    }
}

impl Gathered {
    fn keep(&mut self, source: &Source, first: Read, second: Option<Read>) {
        let place = source.place();
        let mut replica = match first {
            Err(fault) => return self.faults.push(format!("{place}: {fault}")),
            Ok((snapshot, bad)) => {
                self.faults.extend(bad.map(|bad| format!("{place}: {bad}; the rest was read")));
                Replica { name: source.name.clone(), snapshot, over: None, up: None }
            }
        };
        match second {
            None => (),
            Some(Err(fault)) => self.faults.push(format!(
                "{place}: the second reading failed: {fault}; only what it counted since its start is shown"
            )),
            Some(Ok((now, _))) => match since(&now, &replica.snapshot) {
                Ok(over) => {
                    replica = Replica {
                        snapshot: with_mean_load(now, &replica.snapshot),
                        over: Some(over),
                        ..replica
                    }
                }
                Err(fell) => {
                    self.faults.push(format!(
                        "{place}: restarted between the readings ({fell}): nothing over the interval, and its cache was emptied"
                    ));
                    replica.snapshot = now;
                }
            },
        }
        self.faults.extend(contradiction(&replica).map(|why| format!("{place}: {why}")));
        replica.up = if source.is_live() { replica.snapshot.started_at.and_then(ago) } else { None };
        self.replicas.push(replica);
    }

    /// Files of one name in several folders, an address given twice.
    fn tell_names_apart(&mut self) {
        for place in 1..self.replicas.len() {
            let (before, rest) = self.replicas.split_at_mut(place);
            let Some(replica) = rest.first_mut() else { return };
            let is_taken = |name: &str| before.iter().any(|other| other.name == name);
            let numbered = (2..).map(|number| format!("{}-{number}", replica.name));
            if is_taken(&replica.name) {
                replica.name = numbered.into_iter().find(|name| !is_taken(name)).unwrap_or_default();
            }
        }
    }
}

/// What was counted between two pages. Errors: it was not one process, and why that is known.
fn since(now: &Snapshot, before: &Snapshot) -> Result<Counts, String> {
    if let (Some(now), Some(before)) = (now.started_at, before.started_at)
        && now != before
    {
        return Err(format!("process_start_time_seconds went from {before} to {now}"));
    }
    let fell = |(metric, before, now)| format!("{metric} fell from {before} to {now}");
    now.counts.since(&before.counts).map_err(fell)
}

/// Of the counters of its hit rate: what is left out, and why.
fn contradiction(replica: &Replica) -> Option<String> {
    let since_start = replica.snapshot.counts.contradiction().map(|why| (why, "since the start"));
    let over = || Some((replica.over.as_ref()?.contradiction()?, "between the readings"));
    let (why, when) = since_start.or_else(over)?;
    Some(format!("{why} {when}: they contradict each other, and its hit rate is left out"))
}

fn with_mean_load(now: Snapshot, before: &Snapshot) -> Snapshot {
    let mean = |now: Option<f64>, before: Option<f64>| Some((now? + before?) / 2.0);
    let load = Load {
        running: mean(now.load.running, before.load.running),
        waiting: mean(now.load.waiting, before.load.waiting),
        waiting_for_capacity: mean(now.load.waiting_for_capacity, before.load.waiting_for_capacity),
        waiting_deferred: mean(now.load.waiting_deferred, before.load.waiting_deferred),
        kv_usage: mean(now.load.kv_usage, before.load.kv_usage),
        asleep: now.load.asleep,
    };
    Snapshot { load, ..now }
}

fn ago(since_epoch: f64) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Duration::try_from_secs_f64(now.as_secs_f64() - since_epoch).ok()
}

async fn read(source: &Source, client: &Client) -> Read {
    let text = match &source.place {
        Place::Url(url) => page(client, url).await?,
        Place::File(path) => {
            let text = tokio::fs::read(path).await.map_err(|error| error.to_string())?;
            String::from_utf8_lossy(&text).into_owned()
        }
    };
    Snapshot::read(&text).map_err(|error| error.to_string())
}

async fn page(client: &Client, url: &str) -> Result<String, String> {
    let response = client.get(url).timeout(PAGE_WAIT_MAX).send().await.map_err(deepest)?;
    if !response.status().is_success() {
        return Err(format!("found status {}, wanted 200", response.status().as_u16()));
    }
    let mut bytes = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        bytes.extend_from_slice(&chunk.map_err(deepest)?);
        if bytes.len() > PAGE_BYTES_MAX {
            return Err(format!("found more than {PAGE_BYTES_MAX} bytes, wanted a page"));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What is behind an error, without the layers above it, which name only the address; nor does the last one name it.
fn deepest(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sources_are_addresses_or_files() {
        let url = |name: &str, url: &str| Source { name: name.to_owned(), place: Place::Url(url.to_owned()) };
        let file = |name: &str, path: &str| Source { name: name.to_owned(), place: Place::File(path.into()) };
        for (text, want) in [
            ("http://h:1", url("h:1", "http://h:1/metrics")),
            ("http://h:1/", url("h:1", "http://h:1/metrics")),
            ("a=http://h:1/x/metrics", url("a", "http://h:1/x/metrics")),
            ("http://h:1/m?a=http://b", url("h:1", "http://h:1/m?a=http://b")),
            ("=http://h:1", url("h:1", "http://h:1/metrics")),
            ("http://user:SECRET@h:1", url("h:1", "http://user:SECRET@h:1/metrics")),
            ("saved/a.txt", file("a", "saved/a.txt")),
            ("a=b.txt", file("a=b", "a=b.txt")),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
        assert!("".parse::<Source>().unwrap_err().starts_with("found "));
    }

    fn snapshot(page: &str) -> Snapshot {
        Snapshot::read(page).unwrap().0
    }

    #[test]
    fn two_pages_are_of_one_process_or_nothing_is_said_of_the_time_between() {
        let page = |started: u32, queries: u32| {
            format!("process_start_time_seconds {started}\nvllm:prefix_cache_queries_total {queries}\n")
        };
        for (first, second, want) in [
            ((1, 10), (1, 30), Ok(20.0)),
            ((1, 10), (1, 9), Err("vllm:prefix_cache_queries_total fell from 10 to 9")),
            ((1, 10), (2, 30), Err("process_start_time_seconds went from 1 to 2")),
        ] {
            let [first, second] = [first, second].map(|(started, queries)| snapshot(&page(started, queries)));
            let since = since(&second, &first);
            let queries = since.as_ref().map(|since| since.counter(super::super::Counter::Queries).unwrap());
            assert_eq!(queries.map_err(String::as_str), want);
        }
    }

    #[test]
    fn equal_names_are_told_apart() {
        let replica = |name: &str| Replica {
            name: name.to_owned(),
            snapshot: Snapshot::default(),
            over: None,
            up: None,
        };
        let mut gathered =
            Gathered { replicas: ["a", "a", "a-2", "a"].map(replica).to_vec(), ..Gathered::default() };
        gathered.tell_names_apart();
        let names: Vec<_> = gathered.replicas.iter().map(|replica| replica.name.as_str()).collect();
        assert_eq!(names, ["a", "a-2", "a-2-2", "a-3"]);
    }
}
