//! The admin listener: metrics, health, state, and what a request would be decided.
//!
//! It runs apart from the data path, so that it answers when the data path is busy.

pub(crate) mod recent;
mod show;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, header};
use picker::decide::Ask;
use picker::read::Api;
use pingora_core::apps::{HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_http::{RequestHeader, ResponseHeader};
use serde_json::{Value, json};

use crate::endpoints::Endpoint;
use crate::request::{head, read, reply, reusable, session_id};
use crate::router::Router;

const STATE: &str = "/prefixroute/state";
const EXPLAIN: &str = "/prefixroute/explain";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Time that an operator's client may take to read a page or send a body.
const WITHIN: Duration = Duration::from_secs(10);

/// The app of the admin listener.
pub(crate) struct Admin {
    router: Arc<Router>,
}

/// A page, ready to be sent.
struct Page {
    status: u16,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: TEXT, body: body.into() }
    }

    fn json(status: u16, body: &Value) -> Self {
        Self { status, content_type: JSON, body: body.to_string() }
    }

    async fn send(self, session: &mut ServerSession) -> pingora_core::Result<()> {
        let mut head = ResponseHeader::build(self.status, Some(3))?;
        head.insert_header(header::CONTENT_TYPE, self.content_type)?;
        reply::send(session, head, Bytes::from(self.body)).await
    }
}

/// Whether a request asks for the state page.
pub(crate) fn is_state(request: &RequestHeader) -> bool {
    request.method == Method::GET && request.uri.path() == STATE
}

/// Answers with the state page.
pub(crate) async fn answer_state(session: &mut ServerSession, router: &Router) -> pingora_core::Result<()> {
    Page::json(200, &show::state(router)).send(session).await
}

impl Admin {
    /// An admin listener's app.
    pub(crate) fn new(router: Arc<Router>) -> Self {
        Self { router }
    }

    async fn page(&self, session: &mut ServerSession) -> Page {
        let request = session.req_header();
        let (get, post) =
            (matches!(request.method, Method::GET | Method::HEAD), request.method == Method::POST);
        match request.uri.path() {
            "/metrics" if get => self.metrics(),
            "/healthz" if get => Page::text(200, "ok\n"),
            "/readyz" if get => self.readiness(),
            STATE if get => Page::json(200, &show::state(&self.router)),
            EXPLAIN if post => self.explain(session).await,
            "/metrics" | "/healthz" | "/readyz" | STATE => Page::text(405, "wanted GET\n"),
            EXPLAIN => Page::text(405, "wanted POST with a request body\n"),
            _ => Page::text(
                404,
                "wanted /metrics, /healthz, /readyz, /prefixroute/state or /prefixroute/explain\n",
            ),
        }
    }

    fn readiness(&self) -> Page {
        if self.router.ready() {
            return Page::text(200, "ready\n");
        }
        let draining = self.router.draining.load(Ordering::Relaxed);
        Page::text(503, if draining { "draining\n" } else { "no endpoint answers\n" })
    }

    fn metrics(&self) -> Page {
        for endpoint in self.router.fleet.load().iter() {
            self.measure(endpoint);
        }
        self.router.metrics.index(self.router.index.memory());
        self.router.metrics.memo(&self.router.memo);
        Page { status: 200, content_type: "text/plain; version=0.0.4", body: self.router.metrics.render() }
    }

    /// Sets an endpoint's figures that are not counted as they happen.
    fn measure(&self, endpoint: &Endpoint) {
        let (metrics, now) = (&endpoint.metrics, Instant::now());
        let usable = endpoint.usable(now, self.router.config.pools[0].load.stale_after);
        metrics.usable.set(f64::from(u8::from(usable)));
        let in_flight = endpoint.in_flight(self.router.clock.at(now));
        metrics.in_flight.set(f64::from(in_flight.requests));
        metrics.prefilling.set(f64::from(in_flight.prefilling));
        metrics.uncached_tokens.set(in_flight.uncached_tokens as f64);
        metrics.backlog_seconds.set(in_flight.backlog);
        let pace = endpoint.pace.load();
        metrics.overhead_seconds.set(pace.overhead);
        metrics.tokens_per_second.set(pace.tokens_per_second);
        metrics.queueing.set(pace.queueing);
        metrics.truncations.absolute(endpoint.trust.truncations());
        metrics.drops.absolute(endpoint.trust.drops());
        let (ok, failed, _) = endpoint.scrapes();
        metrics.scrapes[0].absolute(ok);
        metrics.scrapes[1].absolute(failed);
        if let Some(size) = self.router.index.size(endpoint.id) {
            metrics.index_blocks.set(size.blocks as f64);
            metrics.index_capacity_blocks.set(size.capacity as f64);
            metrics.index_evictions.absolute(size.evicted);
        }
    }

    /// The decision that a body would get now. `?path=` names the API, chat completions by default.
    async fn explain(&self, session: &mut ServerSession) -> Page {
        let query = session.req_header().uri.query().unwrap_or_default();
        let path = query.split('&').find_map(|pair| pair.strip_prefix("path="));
        let api = Api::of(&path.unwrap_or("/v1/chat/completions").replace("%2F", "/"));
        let bytes_max = self.router.config.limits.body_bytes_max;
        let bounds = read::Bounds { bytes_max, within: WITHIN, budget: &self.router.bodies };
        let Ok(body) = read::whole(session, bounds).await else {
            return Page::json(400, &json!({"error": "the body is too large or did not arrive in time"}));
        };
        let candidates = self.router.candidates();
        let started = Instant::now();
        let ask = Ask { api, body: &body.bytes, tenant: b"", session: session_id(session.req_header()) };
        match self.router.decide(&ask, &candidates, self.router.turns()) {
            Ok(made) => {
                let took = started.elapsed();
                Page::json(200, &show::explained(&self.router, api, made, &candidates, took))
            }
            Err(refusal) => Page::json(400, &json!({"error": refusal.to_string()})),
        }
    }
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        session.set_write_timeout(Some(WITHIN));
        head(&mut session, &self.router, shutdown).await?;
        let page = self.page(&mut session).await;
        if !session.is_body_done() {
            session.set_keepalive(None);
        }
        page.send(&mut session).await.ok()?;
        reusable(session).await
    }
}
