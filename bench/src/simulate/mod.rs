//! The command `simulate`: what each policy makes of a trace, on a virtual clock, in seconds.
//!
//! The decision is the picker's own and the replicas are the fake server's: nothing of either is written again here, so
//! a figure of this command is a figure of the proxy before such servers. What it leaves out: the network, the age of
//! scraped metrics (every figure is of the instant of arrival), and the time an answer takes after its first token.

mod args;
mod asks;
mod fleet;
mod report;

use std::panic::resume_unwind;
use std::thread;

use picker::belief::{ENDPOINTS_MAX, JoinError};
use picker::policy::Policy;

pub use args::{SimulateArgs, SimulateError, run};
pub use report::{Report, decision_line, table};

use crate::engine::{CacheFigures, EvictionOrder, ReplicaOptions, Seconds};
use crate::prompt::PromptError;
use crate::trace::TraceRequest;
use asks::Asks;
use fleet::Fleet;

/// What a trace is played on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulateOptions {
    /// How many replicas: 1 to [`ENDPOINTS_MAX`].
    pub replicas: usize,
    /// Each of them. Its block size is also the router's.
    pub replica: ReplicaOptions,
    /// Blocks that the router can believe of each replica; `None` for what its cache holds, as the proxy reads it from the
    /// engine's metrics.
    pub belief_blocks: Option<usize>,
    /// Of ties and of the policy `random`.
    pub seed: u64,
    /// How many of the first decisions are kept to be shown.
    pub decisions_shown: usize,
}

impl Default for SimulateOptions {
    /// The published table's: three replicas that evict the head of a prefix first (vLLM and the fake server evict its
    /// tail), seed 0.
    fn default() -> Self {
        let replica = ReplicaOptions { eviction: EvictionOrder::HeadFirst, ..ReplicaOptions::default() };
        Self { replicas: 3, replica, belief_blocks: None, seed: 0, decisions_shown: 0 }
    }
}

/// What one policy came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Which.
    pub policy: Policy,
    /// Counters of all replicas together.
    pub cache: CacheFigures,
    /// From arrival to first token, one for each request.
    pub ttfts: Vec<Seconds>,
    /// Of that, the wait for a lane.
    pub waits: Vec<Seconds>,
    /// The replica of each request, in the order of the trace.
    pub routed: Vec<usize>,
    /// Requests of each replica.
    pub requests: Vec<usize>,
    /// Groups that one replica served alone, of all.
    pub groups_on_one: (usize, usize),
    /// The first decisions, as many as were asked for.
    pub decisions: Vec<ShownDecision>,
}

/// One decision, as it is told.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownDecision {
    /// From 1.
    pub number: usize,
    /// The request's group.
    pub group: String,
    /// The winner, from 0.
    pub replica: usize,
    /// Leading blocks that the winner is believed to hold, of `total`.
    pub matched: u32,
    /// Blocks of the prompt.
    pub total: usize,
    /// Nobody is believed to hold any.
    pub cold: bool,
    /// What ranked the winner: its weighted sum; for `least-queue` minus its requests in flight.
    pub score: f64,
    /// The next best and its sum; none of one replica.
    pub next: Option<(usize, f64)>,
}

/// Why a trace cannot be played. Requests are numbered from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlayError {
    /// Nobody to play on, or more than the router's index knows.
    #[error("replicas: found {0}, wanted 1 to {ENDPOINTS_MAX}")]
    Replicas(usize),
    /// A body that an engine would refuse.
    #[error("request {number}: {reason}")]
    Body {
        /// Which request.
        number: usize,
        /// What was found.
        reason: BodyError,
    },
    /// The router's index.
    #[error(transparent)]
    Index(#[from] JoinError),
}

/// What is wrong with a body.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BodyError {
    /// Its prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// It has no member that could hold one.
    #[error("found none of messages, prompt and input")]
    NoPrompt,
    /// It is no JSON.
    #[error("{0}")]
    Json(String),
    /// The router itself refuses it.
    #[error(transparent)]
    Refused(#[from] picker::Refusal),
}

/// Plays a trace under one policy. O(requests · (body + replicas)).
///
/// Requests arrive in the order of the trace, whose times must not go back. Each is decided on the replicas' figures at
/// its arrival and is believed to be cached at its winner from then on. Same arguments, same run.
pub fn simulate(trace: &[TraceRequest], options: &SimulateOptions, policy: Policy) -> Result<Run, PlayError> {
    simulate_all(trace, options, &[policy]).map(|mut runs| runs.remove(0))
}

/// Plays a trace under each of these policies, each on fresh replicas, with an empty belief and in its own thread.
pub fn simulate_all(
    trace: &[TraceRequest],
    options: &SimulateOptions,
    policies: &[Policy],
) -> Result<Vec<Run>, PlayError> {
    let asks = &Asks::of(trace, options.replica.block_size)?;
    thread::scope(|scope| {
        let play = |&policy| scope.spawn(move || Fleet::new(options, policy)?.play(asks));
        let playing: Vec<_> = policies.iter().map(play).collect();
        playing.into_iter().map(|run| run.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
