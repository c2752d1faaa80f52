//! The admin listener: metrics, health, state, and what a request would be decided.
//!
//! It runs apart from the data path, so that it answers when the data path is busy.

mod figures;
pub(crate) mod recent;
mod show;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, header};
use picker::belief::Memory;
use picker::decide::Ask;
use picker::read::Api;
use pingora_core::apps::{HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_http::{RequestHeader, ResponseHeader};
use serde_json::{Value, json};

use crate::descriptors::SHARES;
use crate::lines::Lines;
use crate::reload::{Outcome, Reloader};
use crate::request::place::place;
use crate::request::{NoHead, head, read, reply, reusable, session_id};
use crate::router::Router;

const STATE: &str = "/prefixroute/state";
const EXPLAIN: &str = "/prefixroute/explain";
const RELOAD: &str = "/prefixroute/reload";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Time that an operator's client may take to read a page or send a body.
const WITHIN: Duration = Duration::from_secs(10);

/// The app of the admin listener.
pub(crate) struct Admin {
    router: Arc<Router>,
    reloader: Arc<Reloader>,
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
    pub(crate) fn new(router: Arc<Router>, reloader: Arc<Reloader>) -> Self {
        Self { router, reloader }
    }

    async fn page(&self, session: &mut ServerSession) -> Page {
        let request = session.req_header();
        let (get, post) =
            (matches!(request.method, Method::GET | Method::HEAD), request.method == Method::POST);
        match request.uri.path() {
            "/metrics" if get => self.metrics(),
            "/healthz" if get => Page::text(200, "ok\n"),
            "/readyz" if get => self.readiness(),
            STATE if get => Page::json(200, &self.state()),
            EXPLAIN if post => self.explain(session).await,
            RELOAD if post => self.reload().await,
            "/metrics" | "/healthz" | "/readyz" | STATE => Page::text(405, "wanted GET\n"),
            EXPLAIN => Page::text(405, "wanted POST with a request body\n"),
            RELOAD => Page::text(405, "wanted POST\n"),
            _ => Page::text(
                404,
                "wanted /metrics, /healthz, /readyz, /prefixroute/state, /prefixroute/explain or /prefixroute/reload\n",
            ),
        }
    }

    /// With what came of the last reload, which only this listener shows: faults name files.
    fn state(&self) -> Value {
        let mut state = show::state(&self.router);
        state["config"] = self.reloader.show();
        state
    }

    /// Reads the configuration again, now.
    async fn reload(&self) -> Page {
        match self.reloader.reload("POST").await {
            Some(Outcome::Applied { changes }) => {
                let version = self.router.live().version;
                Page::json(200, &json!({"outcome": "applied", "version": version, "changes": changes}))
            }
            Some(Outcome::Unchanged) => {
                let version = self.router.live().version;
                Page::json(200, &json!({"outcome": "unchanged", "version": version}))
            }
            Some(Outcome::Refused { faults }) => {
                Page::json(422, &json!({"outcome": "refused", "faults": faults}))
            }
            None => Page::json(409, &json!({"outcome": "refused", "faults": ["started without --config"]})),
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
        let (router, live) = (&self.router, self.router.live());
        let memory = live.pools.iter().map(|pool| pool.known.index.memory());
        let sum = |sum: Memory, one: Memory| Memory {
            bytes: sum.bytes + one.bytes,
            bytes_max: sum.bytes_max + one.bytes_max,
        };
        router.metrics.index(memory.fold(Memory::default(), sum));
        router.metrics.memos(live.pools.iter().map(|pool| &pool.known.memo));
        let pools: Vec<_> = live.pools.iter().map(|pool| figures::pool(pool)).collect();
        let rows: Vec<_> =
            live.endpoints().map(|(pool, endpoint)| figures::row(pool, endpoint, router.clock)).collect();
        let tenants: Vec<_> = live.edge.tenants.list().iter().map(|tenant| figures::tenant(tenant)).collect();
        let dropped = |log: &Option<Arc<Lines>>| log.as_ref().map_or(0, |log| log.dropped());
        router.metrics.log_lines_dropped(dropped(&live.access_log), dropped(&live.decision_log));
        let (room, limits) = (&router.clients_room, &live.config.limits);
        let connections_max = SHARES.connections_max(limits.connections_max);
        router.metrics.connections(room.open(), connections_max, room.times_full());
        let body = router.metrics.render(&pools, &rows, &tenants);
        Page { status: 200, content_type: "text/plain; version=0.0.4", body }
    }

    /// The decision that a body would get now. `?path=` names the API, chat completions by default.
    async fn explain(&self, session: &mut ServerSession) -> Page {
        let query = session.req_header().uri.query().unwrap_or_default();
        let path = query.split('&').find_map(|pair| pair.strip_prefix("path="));
        let api = Api::of(&path.unwrap_or("/v1/chat/completions").replace("%2F", "/"));
        let live = self.router.hold_live();
        let bytes_max = live.config.limits.body_bytes_max;
        let bounds = read::Bounds { bytes_max, within: WITHIN, budget: &self.router.bodies };
        let Ok(body) = read::whole(session, bounds).await else {
            return Page::json(400, &json!({"error": "the body is too large or did not arrive in time"}));
        };
        let placed = match place(&live, (api, ""), body.bytes, None) {
            Ok(placed) => placed,
            Err(_) => return Page::json(404, &json!({"error": "no pool serves the model"})),
        };
        let Ok(candidates) = placed.pool.candidates(placed.model.as_deref(), self.router.clock) else {
            return Page::json(200, &show::saturated(api, &placed.pool));
        };
        let started = Instant::now();
        let ask = Ask { api, body: &placed.body, tenant: b"", session: session_id(session.req_header()) };
        match candidates.pool.decide(&ask, &candidates.list, self.router.clock, self.router.turns()) {
            Ok(made) => {
                let took = started.elapsed();
                Page::json(200, &show::explained(api, made, &candidates, took))
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
        if let Err(none) = head(&mut session, &self.router, shutdown).await {
            if let NoHead::Refused(_) = none {
                read::hang_up(session).await;
            }
            return None;
        }
        if self.router.admin_room.is_full() {
            session.set_keepalive(None);
        }
        let page = self.page(&mut session).await;
        if !session.is_body_done() {
            session.set_keepalive(None);
        }
        page.send(&mut session).await.ok()?;
        reusable(session).await
    }
}
