//! The command `demo`: what prefix routing is worth, in a minute, with nothing installed.
//!
//! Three fake replicas in this process, one generated trace, and a real router that the caller hands in as a
//! [`Router`]: this crate does not know the proxy. The trace is played once for each policy, on fresh
//! replicas; hit rates are the replicas' own counters.

mod stage;
mod table;

use std::error::Error;
use std::io::{self, Write};
use std::pin::Pin;

use indicatif::{ProgressBar, ProgressStyle};

use crate::fake_server::FakeServerError;
use crate::replay::ReplayError;
use crate::replay::servers::Uncounted;
use crate::trace::{TraceOptions, TraceOptionsError, TraceRequest, generate};
use stage::Stage;
use table::Row;

/// Played in this order; the last stays up with `--hold`.
const POLICIES: [&str; 2] = ["round-robin", "prefix"];
const REPLICAS: [&str; 3] = ["sim-a", "sim-b", "sim-c"];

/// Round-robin against prefix routing on three fake replicas, nothing to install
///
/// Example: prefixroute demo --hold
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Keep the replicas and the prefix router up afterwards, for curl
    #[arg(long)]
    pub hold: bool,
    /// Requests of the trace
    #[arg(long, default_value_t = 64)]
    pub requests: usize,
    /// Requests per second
    #[arg(long, default_value_t = 20.0, allow_negative_numbers = true)]
    pub rate: f64,
    /// Seed of the trace
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Any error of a router; the demo only tells it.
pub type RouterError = Box<dyn Error + Send + Sync>;

/// Starts a router in front of endpoints, as the proxy can.
pub trait Router {
    /// Starts on a free port of loopback, ready to route by `policy` over `endpoints`, which are names and
    /// URLs.
    fn start(
        &self,
        policy: &str,
        endpoints: &[(String, String)],
    ) -> impl Future<Output = Result<RunningRouter, RouterError>> + Send;
}

/// A router that runs.
pub struct RunningRouter {
    /// Its base address, such as `http://127.0.0.1:8080`.
    pub url: String,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl RunningRouter {
    /// `stop` is awaited to end it, or dropped with it.
    pub fn new(url: String, stop: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { url, stop: Box::pin(stop) }
    }

    /// Ends it.
    pub async fn stop(self) {
        self.stop.await;
    }
}

/// Why the demo has no table to show.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The trace's options.
    #[error(transparent)]
    Trace(#[from] TraceOptionsError),
    /// A replica.
    #[error(transparent)]
    Replica(#[from] FakeServerError),
    /// The router.
    #[error("router with policy {policy}: {source}")]
    Router {
        /// Its policy.
        policy: &'static str,
        /// Its own words.
        source: RouterError,
    },
    /// The load.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The replicas' counters.
    #[error(transparent)]
    Counters(#[from] Uncounted),
    /// Requests that should have been answered.
    #[error("policy {policy}: {failed} of {sent} requests failed, the first: {first}")]
    Failed {
        /// The router's policy.
        policy: &'static str,
        /// How many.
        failed: usize,
        /// Of how many.
        sent: usize,
        /// Why.
        first: String,
    },
    /// The story could not be written, or Ctrl-C not be awaited.
    #[error("demo: {0}")]
    Io(#[from] io::Error),
}

/// Plays the trace under each policy and tells the story to `out`; progress goes to stderr if that is a
/// terminal.
pub async fn run<R: Router>(args: DemoArgs, router: &R, out: &mut dyn Write) -> Result<(), DemoError> {
    let options =
        TraceOptions { requests: args.requests, rate: args.rate, seed: args.seed, ..TraceOptions::default() };
    let trace = generate(&options)?;
    tell_premise(&options, out)?;
    let mut rows = Vec::new();
    for policy in POLICIES {
        writeln!(out, "\nNow with policy {policy}, on replicas with empty caches.")?;
        let stage = Stage::set_up(policy, router).await?;
        rows.push(play(&stage, &trace).await?);
        if rows.len() == POLICIES.len() {
            writeln!(out, "\n{}", table::table(&rows))?;
            hold(&stage, args.hold, out).await?;
        }
        stage.tear_down().await;
    }
    Ok(())
}

fn tell_premise(options: &TraceOptions, out: &mut dyn Write) -> io::Result<()> {
    let TraceOptions { requests, rate, groups, .. } = options;
    writeln!(
        out,
        "Three replicas, each with room for the system prompts of a few tenants (64 blocks of 16 tokens)."
    )?;
    writeln!(
        out,
        "{groups} tenants send {requests} requests, {rate} a second; 195 of a prompt's 221 tokens are its tenant's."
    )?;
    writeln!(out, "A cached prefix is not computed again: 34 ms to the first token in place of 226.")
}

async fn play(stage: &Stage, trace: &[TraceRequest]) -> Result<Row, DemoError> {
    let bar = ProgressBar::new(trace.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg:>12} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar.set_message(stage.policy);
    let row = stage.play(trace, &|ended| bar.set_position(ended as u64)).await;
    bar.finish_and_clear();
    row
}

/// If asked to, shows what can be tried and waits for Ctrl-C.
async fn hold(stage: &Stage, hold: bool, out: &mut dyn Write) -> Result<(), DemoError> {
    if !hold {
        return Ok(());
    }
    let url = stage.router_url();
    let body = r#"{"model":"cc-sim","messages":[{"role":"user","content":"Where is my refund, please?"}]}"#;
    let streamed = body.replacen('{', r#"{"stream":true,"#, 1);
    let post = format!("{url}/v1/chat/completions -H 'content-type: application/json'");
    writeln!(
        out,
        "The router and its replicas stay up. Send this twice and see the x-prefixroute headers:\n"
    )?;
    writeln!(out, "  curl -si {post} -d '{body}'")?;
    writeln!(out, "\nA stream, and what the router knows and has decided:\n")?;
    writeln!(out, "  curl -sN {post} -d '{streamed}'")?;
    writeln!(out, "  curl -s {url}/prefixroute/state")?;
    writeln!(out, "\nA replica's own counters:\n")?;
    for (name, url) in stage.replicas() {
        writeln!(out, "  curl -s {url}/metrics | grep prefix_cache   # {name}")?;
    }
    writeln!(out, "\nCtrl-C ends it.")?;
    out.flush()?;
    Ok(tokio::signal::ctrl_c().await?)
}
