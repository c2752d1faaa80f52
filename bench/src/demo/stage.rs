//! Replicas, the router before them, and one play of the trace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::table::Row;
use super::{DemoError, REPLICAS, Router, RunningRouter};
use crate::fake_server::{FakeServer, FakeServerOptions, RunningFakeServer};
use crate::prompt::{Api, token_ids};
use crate::replay::body::Edits;
use crate::replay::counters::Counters;
use crate::replay::servers::{Server, Watch};
use crate::replay::{self, Pace, Plan, Record, Target, report};
use crate::trace::TraceRequest;

/// How long the replicas' counters may trail what was sent.
const COUNTERS_WAIT_MAX: Duration = Duration::from_secs(5);

/// Everything that one policy is played on.
pub(super) struct Stage {
    pub(super) policy: &'static str,
    replicas: Vec<RunningFakeServer>,
    router: RunningRouter,
}

impl Stage {
    /// Fresh replicas and a router.
    pub(super) async fn set_up<R: Router>(policy: &'static str, router: &R) -> Result<Self, DemoError> {
        let mut replicas = Vec::new();
        for name in REPLICAS {
            replicas.push(FakeServer::start(replica_options(name)).await?);
        }
        let endpoints = named(&replicas);
        let router = router.start(policy, &endpoints).await;
        let router = router.map_err(|source| DemoError::Router { policy, source })?;
        Ok(Self { policy, replicas, router })
    }

    /// Ends the router first, so that it never meets a dead replica.
    pub(super) async fn tear_down(self) {
        self.router.stop().await;
        for replica in self.replicas {
            replica.stop().await;
        }
    }

    pub(super) fn router_url(&self) -> &str {
        &self.router.url
    }

    /// Names and URLs of the replicas.
    pub(super) fn replicas(&self) -> Vec<(String, String)> {
        named(&self.replicas)
    }

    /// Sends the trace through the router and reads what the replicas counted.
    pub(super) async fn play(
        &self,
        trace: &[TraceRequest],
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Row, DemoError> {
        let client = replay::client().map_err(replay::ReplayError::from)?;
        let servers: Vec<Server> =
            self.replicas().into_iter().map(|(name, url)| Server { name, url }).collect();
        let watch = Watch::begin(&client, &servers).await;
        let plan = Plan::of_bodies(trace.to_vec(), Edits { stream: true, ..Edits::default() });
        let pace = Pace::Open { speed: 1.0, in_flight_max: usize::MAX };
        let target = Target::of(&self.router.url);
        let records = replay::collect(&Arc::new(plan), &Arc::new(target), pace, progress).await?;
        self.all_answered(&records)?;
        let sent = prompt_tokens(trace) as f64;
        let counted = watch.end(Some(sent), COUNTERS_WAIT_MAX).await.every()?;
        Ok(self.row(&records, &counted))
    }

    fn all_answered(&self, records: &[Record]) -> Result<(), DemoError> {
        let Some((failed, first)) = report::failures(records) else { return Ok(()) };
        let (policy, sent) = (self.policy, records.len());
        Err(DemoError::Failed { policy, failed, sent, first: first.to_owned() })
    }

    fn row(&self, records: &[Record], counted: &[Counters]) -> Row {
        let ttfts = report::ttfts(records);
        let per_endpoint = report::per_endpoint(records);
        Row {
            policy: self.policy,
            hit_rate: Counters::sum(counted).hit_rate(),
            ttft_p50: report::percentile(&ttfts, 0.5).unwrap_or_default(),
            ttft_p95: report::percentile(&ttfts, 0.95).unwrap_or_default(),
            requests: REPLICAS.map(|name| per_endpoint.get(name).copied().unwrap_or(0)),
            groups: report::groups_on_one(records),
        }
    }
}

fn replica_options(name: &str) -> FakeServerOptions {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    FakeServerOptions { name: name.to_owned(), address, ..FakeServerOptions::default() }
}

fn named(replicas: &[RunningFakeServer]) -> Vec<(String, String)> {
    REPLICAS.iter().zip(replicas).map(|(name, replica)| ((*name).to_owned(), replica.url())).collect()
}

/// Prompt tokens of a generated trace, whose bodies are all chats.
fn prompt_tokens(trace: &[TraceRequest]) -> usize {
    let tokens = |request: &TraceRequest| {
        let body = serde_json::from_str(&request.body).ok()?;
        token_ids(Api::Chat, &body).ok().map(|prompts| prompts.iter().map(Vec::len).sum::<usize>())
    };
    trace.iter().filter_map(tokens).sum()
}
