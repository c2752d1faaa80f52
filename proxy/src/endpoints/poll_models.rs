//! One task per endpoint that reads the engine's `/v1/models`, slower than its metrics.
//!
//! A reading that fails changes nothing: the last list holds until it is older than three intervals. An engine that
//! was slow once has not unloaded its adapters, and one that has no such page never had a list.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Endpoint;
use super::model_list::{LIST_BYTES_MAX, ModelList, NoList};
use super::page::{self, Bounds, PageError};
use super::poll::jittered;
use crate::upstream::Upstream;

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

/// How the lists of a pool are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// From one reading to the next.
    pub(crate) interval: Duration,
    /// A reading that takes longer has failed.
    pub(crate) limit: Duration,
}

impl Reading {
    /// As a pool has it; `None` where lists are not read.
    pub(crate) fn of(pool: &config::Pool) -> Option<Self> {
        Some(Self { interval: pool.models_interval?, limit: pool.load.scrape_timeout })
    }
}

/// Reads on and on; never returns. Cancel by dropping.
pub(crate) async fn poll_models(scraper: &Upstream, endpoint: Arc<Endpoint>, reading: Reading) {
    let mut failure = None;
    let mut turn = 0;
    loop {
        let started = Instant::now();
        let error = read(scraper, &endpoint, reading).await.err();
        if error != failure {
            match error {
                Some(error) => tracing::info!(endpoint = endpoint.name, %error, "no list of models"),
                None => tracing::info!(endpoint = endpoint.name, "lists its models"),
            }
        }
        failure = error;
        turn += 1;
        let next = jittered(reading.interval, endpoint.id.0, turn);
        sleep(next.saturating_sub(started.elapsed())).await;
    }
}

/// Reads the list once. Error: none came; the endpoint keeps what it has.
async fn read(scraper: &Upstream, endpoint: &Endpoint, reading: Reading) -> Result<(), ReadError> {
    let mut page = Vec::new();
    let bounds = Bounds { bytes_max: LIST_BYTES_MAX, limit: reading.limit };
    page::read(scraper, endpoint, &endpoint.get("/v1/models"), &mut page, bounds, || ()).await?;
    let fresh_until = Instant::now() + reading.interval * INTERVALS_FRESH;
    endpoint.models.store(Some(Arc::new(ModelList::read(page.into(), fresh_until)?)));
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use config::{EndpointName, EndpointUrl, Secret};
    use picker::belief::EndpointId;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::metrics::Metrics;
    use crate::upstream::ExchangeError;

    const SECOND: Duration = Duration::from_secs(1);
    const READING: Reading = Reading { interval: SECOND, limit: SECOND };

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

    fn endpoint(address: &str, key: Option<&str>) -> Endpoint {
        let url = EndpointUrl::new(&format!("http://{address}")).unwrap();
        let mut endpoint = config::Endpoint::new(EndpointName::new("a").unwrap(), url);
        endpoint.key = key.map(|key| Secret::new(key.as_bytes()));
        Endpoint::new(EndpointId(0), &endpoint, &config::Engine::default(), Metrics::new().endpoint("a"))
    }

    #[tokio::test]
    async fn a_failed_reading_keeps_the_list_until_it_is_old() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = endpoint(&listener.local_addr().unwrap().to_string(), Some("the-key"));
        let list = |id: &str| answer("200 OK", &format!(r#"{{"data":[{{"id":"{id}"}}]}}"#));
        let answers = [
            answer("404 Not Found", "{}"),
            answer("200 OK", "<html>"),
            list("a"),
            answer("401 Unauthorized", "{}"),
            answer("200 OK", &" ".repeat(LIST_BYTES_MAX + 1)),
            list("b"),
        ];
        let upstream = Upstream::new(SECOND, SECOND);
        let asks = async {
            let mut seen = Vec::new();
            for _ in 0..answers.len() {
                let outcome = read(&upstream, &endpoint, READING).await;
                let now = Instant::now();
                seen.push((outcome, endpoint.lists("a", now), endpoint.lists("b", now)));
            }
            seen
        };
        let both = async { tokio::join!(engine(listener, &answers), asks) };
        let (asked, seen) = tokio::time::timeout(10 * SECOND, both).await.unwrap();
        let known_a = (Some(true), Some(false));
        for ((outcome, a, b), (wanted, known)) in seen.into_iter().zip([
            (Err(PageError::Status(404).into()), (None, None)),
            (Err(NoList::Json.into()), (None, None)),
            (Ok(()), known_a),
            (Err(PageError::Status(401).into()), known_a),
            (Err(PageError::TooLong(LIST_BYTES_MAX).into()), known_a),
            (Ok(()), (Some(false), Some(true))),
        ]) {
            assert_eq!((outcome, (a, b)), (wanted, known), "{wanted:?}");
        }
        let later = Instant::now() + SECOND * INTERVALS_FRESH;
        assert_eq!((endpoint.lists("b", later), endpoint.models(later).is_some()), (None, false), "too old");
        assert!(asked[0].starts_with("GET /v1/models HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(asked[0].contains("\r\nauthorization: Bearer the-key\r\n"), "{}", asked[0]);
    }

    #[tokio::test]
    async fn an_engine_that_does_not_answer_has_no_list() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = endpoint(&listener.local_addr().unwrap().to_string(), None);
        let upstream = Upstream::new(SECOND, SECOND);
        let reading = Reading { interval: SECOND, limit: Duration::from_millis(20) };
        let outcome = read(&upstream, &endpoint, reading).await;
        let wanted = [PageError::Exchange(ExchangeError::Timeout), PageError::Timeout(reading.limit)];
        assert!(wanted.into_iter().any(|error| outcome == Err(error.into())), "{outcome:?}");
        assert!(endpoint.models(Instant::now()).is_none());
    }
}
