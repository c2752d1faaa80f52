//! One task per endpoint that reads the engine's `/v1/models`, slower than its metrics.
//!
//! A reading that fails changes nothing: the last list holds until it is older than three intervals. An engine that
//! was slow once has not unloaded its adapters, and one that has no such page never had a list.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Endpoint;
use super::model_list::{LIST_BYTES_MAX, ModelList, NoList};
use super::page::{self, Bounds, PageError};
use super::poll::{Turns, in_turns};
use crate::pool::{Knowledge, Member, Pool};
use crate::router::Router;

/// Intervals for which a list holds.
const INTERVALS_FRESH: u32 = 3;

/// Why a reading gave no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum ReadError {
    #[error("{0}")]
    Page(#[from] PageError),
    #[error("{0}")]
    List(#[from] NoList),
}

/// Reads until the endpoint is retired; waits where the pool's configuration of the moment wants no lists. What it lists
/// goes into the router's routes.
pub(crate) async fn poll_models(router: Arc<Router>, known: Arc<Knowledge>, endpoint: Arc<Endpoint>) {
    let poller = Poller { router: &router, endpoint: endpoint.clone(), failure: None };
    in_turns(&router, &known, &endpoint, poller).await;
}

/// What a poller keeps from one reading to the next.
struct Poller<'a> {
    router: &'a Router,
    endpoint: Arc<Endpoint>,
    /// Why the last reading gave no list.
    failure: Option<ReadError>,
}

impl Turns for Poller<'_> {
    async fn turn(&mut self, pool: &Pool) -> Option<Duration> {
        let interval = pool.config.models_interval?;
        if self.read(pool, interval).await {
            self.router.live().refresh_routes();
        }
        Some(interval)
    }
}

impl Poller<'_> {
    /// Reads once; whether routes may have changed. Another outcome than the last one is logged.
    async fn read(&mut self, pool: &Pool, interval: Duration) -> bool {
        let Some(member) = pool.member(&self.endpoint) else { return false };
        let outcome = read(pool, member, interval).await;
        let (is_news, error) = (outcome.unwrap_or(true), outcome.err());
        if error != self.failure {
            match error {
                Some(error) => tracing::info!(endpoint = self.endpoint.name, %error, "no list of models"),
                None => tracing::info!(endpoint = self.endpoint.name, "lists its models"),
            }
        }
        self.failure = error;
        is_news
    }
}

/// Reads the list once; whether it is another than before. Error: none came; the endpoint keeps what it has.
async fn read(pool: &Pool, member: &Member, interval: Duration) -> Result<bool, ReadError> {
    let mut page = Vec::new();
    let bounds = Bounds { bytes_max: LIST_BYTES_MAX, limit: pool.config.load.scrape_timeout };
    page::read(pool, member, "/v1/models", &mut page, bounds, || ()).await?;
    let fresh_until = Instant::now() + interval * INTERVALS_FRESH;
    let list = ModelList::read(page.into(), fresh_until)?;
    let before = member.endpoint.models.swap(Some(Arc::new(list.clone())));
    Ok(before.is_none_or(|before| before.entries() != list.entries()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use config::{ClientKey, Flags, Secret, System};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::ExchangeError;

    const SECOND: Duration = Duration::from_secs(1);

    /// An engine that answers each request with the next of `answers`, whole heads and bodies; gives what it was asked.
    async fn engine(listener: TcpListener, answers: &[String]) -> Vec<String> {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0, "a whole head");
            }
            asked.push(String::from_utf8(head).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        asked
    }

    fn answer(status: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    /// A pool of one engine, which may take so long for a page.
    fn pool(listener: &TcpListener, key: Option<&str>, limit: Duration) -> Pool {
        let url = format!("a=http://{}", listener.local_addr().unwrap());
        let flags = Flags { endpoints: vec![url], ..Flags::default() };
        let mut pool = config::load(None, &flags, &System).unwrap().config.pools.remove(0);
        pool.load.scrape_timeout = limit;
        pool.endpoints[0].key = key.map(|key| Secret::new(key.as_bytes()));
        Pool::build(pool, ClientKey::Forward, None).unwrap()
    }

    /// Whether the engine is known to list a model.
    fn lists(pool: &Pool, model: &str, now: Instant) -> Option<bool> {
        pool.fleet[0].endpoint.models(now).map(|list| list.entry(model).is_some())
    }

    #[tokio::test]
    async fn a_failed_reading_keeps_the_list_until_it_is_old() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pool = pool(&listener, Some("the-key"), SECOND);
        let list = |id: &str| answer("200 OK", &format!(r#"{{"data":[{{"id":"{id}"}}]}}"#));
        let answers = [
            answer("404 Not Found", "{}"),
            answer("200 OK", "<html>"),
            list("a"),
            answer("401 Unauthorized", "{}"),
            answer("200 OK", &" ".repeat(LIST_BYTES_MAX + 1)),
            list("b"),
            list("b"),
        ];
        let asks = async {
            let mut seen = Vec::new();
            for _ in 0..answers.len() {
                let outcome = read(&pool, &pool.fleet[0], SECOND).await;
                let now = Instant::now();
                seen.push((outcome, lists(&pool, "a", now), lists(&pool, "b", now)));
            }
            seen
        };
        let both = async { tokio::join!(engine(listener, &answers), asks) };
        let (asked, seen) = tokio::time::timeout(10 * SECOND, both).await.unwrap();
        let known_a = (Some(true), Some(false));
        for ((outcome, a, b), (wanted, known)) in seen.into_iter().zip([
            (Err(PageError::Status(404).into()), (None, None)),
            (Err(NoList::Json.into()), (None, None)),
            (Ok(true), known_a),
            (Err(PageError::Status(401).into()), known_a),
            (Err(PageError::TooLong(LIST_BYTES_MAX).into()), known_a),
            (Ok(true), (Some(false), Some(true))),
            (Ok(false), (Some(false), Some(true))),
        ]) {
            assert_eq!((outcome, (a, b)), (wanted, known), "{wanted:?}");
        }
        let later = Instant::now() + SECOND * INTERVALS_FRESH;
        assert_eq!(lists(&pool, "b", later), None, "too old");
        assert!(asked[0].starts_with("GET /v1/models HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(asked[0].contains("\r\nauthorization: Bearer the-key\r\n"), "{}", asked[0]);
    }

    #[tokio::test]
    async fn an_engine_that_does_not_answer_has_no_list() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = Duration::from_millis(20);
        let pool = pool(&listener, None, limit);
        let outcome = read(&pool, &pool.fleet[0], SECOND).await;
        let wanted = [PageError::Exchange(ExchangeError::Timeout), PageError::Timeout(limit)];
        assert!(wanted.into_iter().any(|error| outcome == Err(error.into())), "{outcome:?}");
        assert_eq!(lists(&pool, "a", Instant::now()), None);
    }
}
