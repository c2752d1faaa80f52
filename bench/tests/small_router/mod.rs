//! A router of a few lines, for what only needs one behind an address: `demo` and `replay --compare`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bench::demo::{Router, RouterError, RunningRouter};
use bench::replay;
use serde_json::Value;
use tokio::task::JoinHandle;

/// Routes in turn, or, as `prefix`, a system prompt to where it first went; or fails.
#[derive(Default)]
pub(crate) struct SmallRouter {
    pub(crate) broken: bool,
}

struct Route {
    policy: String,
    endpoints: Vec<(String, String)>,
    broken: bool,
    turn: AtomicUsize,
    homes: Mutex<HashMap<String, usize>>,
    client: reqwest::Client,
}

impl Router for SmallRouter {
    async fn start(
        &self,
        policy: &str,
        endpoints: &[(String, String)],
    ) -> Result<RunningRouter, RouterError> {
        let route = Arc::new(Route {
            policy: policy.to_owned(),
            endpoints: endpoints.to_vec(),
            broken: self.broken,
            turn: AtomicUsize::new(0),
            homes: Mutex::default(),
            client: replay::client()?,
        });
        let (url, task) = serve(axum::Router::new().fallback(forward).with_state(route)).await;
        Ok(RunningRouter::new(url, async move { task.abort() }))
    }
}

impl Route {
    fn pick(&self, body: &[u8]) -> usize {
        let turn = || self.turn.fetch_add(1, Ordering::Relaxed) % self.endpoints.len();
        if self.policy != "prefix" {
            return turn();
        }
        let body: Value = serde_json::from_slice(body).unwrap();
        let system = body["messages"][0]["content"].as_str().unwrap().to_owned();
        *self.homes.lock().unwrap().entry(system).or_insert_with(turn)
    }
}

async fn forward(State(route): State<Arc<Route>>, body: Bytes) -> Response {
    if route.broken {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let (name, url) = &route.endpoints[route.pick(&body)];
    let request = route.client.post(format!("{url}/v1/chat/completions"));
    let upstream = request.header("content-type", "application/json").body(body).send().await.unwrap();
    let kind = upstream.headers()["content-type"].to_str().unwrap().to_owned();
    let head = [("x-prefixroute-endpoint", name.clone()), ("content-type", kind)];
    (upstream.status(), head, Body::from_stream(upstream.bytes_stream())).into_response()
}

/// Serves `app` on a free port of loopback: its URL, and the task to end.
pub(crate) async fn serve(app: axum::Router) -> (String, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (url, tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }))
}
