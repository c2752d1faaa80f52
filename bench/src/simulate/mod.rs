//! The command `simulate`: what each policy makes of a trace, on a virtual clock, in seconds.
//!
//! The decision is the picker's own and the replicas are the fake server's: nothing of either is written again here, so
//! a figure of this command is a figure of the proxy before such servers. The router sees what a router would see: figures
//! of the last scrape, and its own ledger of what is in flight. What is left out: the network, and what answers cost each
//! other.

mod args;
mod builtin;
mod command;
mod figures;
mod fleet;
mod hindsight;
mod member;
mod options;
mod report;
mod run;
mod workload;

use std::panic::resume_unwind;
use std::thread;

use picker::belief::{ENDPOINTS_MAX, JoinError};
use picker::policy::Policy;

pub use args::{PlayArgs, SimulateArgs};
pub use builtin::Demo3Args;
pub(crate) use command::read_workload;
pub use command::{SimulateError, run};
pub use hindsight::{oracle, play_assigned};
pub use options::{Changes, Pacing, SimulateOptions, Split};
pub use report::{Columns, Report, decision_line, table};
pub use run::{Run, Served, ShownDecision};
pub(crate) use workload::usable;
pub use workload::{Workload, block_size_of};

use crate::prompt::PromptError;
use crate::trace::TraceRequest;
use crate::trace::lines::LEAVE_OUT;
use fleet::Fleet;

/// Why a trace cannot be played. Requests are numbered from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlayError {
    /// Nobody to play on, or more than the router's index knows.
    #[error("replicas: found {0}, wanted 1 to {ENDPOINTS_MAX}")]
    Replicas(usize),
    /// The only replica would be lost.
    #[error("lose-replica-at: found a fleet of 1, wanted at least 2")]
    NobodyLeft,
    /// A body that an engine would refuse.
    #[error("request {number}: {reason}")]
    Body {
        /// Which request.
        number: usize,
        /// What was found.
        reason: BodyError,
    },
    /// No power of two explains how many blocks the prompts have.
    #[error("hash_ids: found counts that no block size explains, wanted one for each block of input_length")]
    NoBlockSize,
    /// A prompt has another number of blocks than its length makes.
    #[error(
        "request {number}: found {found} hash ids, wanted {wanted} for {tokens} tokens in blocks of {size}"
    )]
    BlockCount {
        /// Which request.
        number: usize,
        /// Hash ids that it has.
        found: usize,
        /// Hash ids that it should have.
        wanted: usize,
        /// Its length.
        tokens: u32,
        /// Tokens in a block.
        size: usize,
    },
    /// Nothing is left to be measured.
    #[error("warm: found {warm}, wanted fewer than the {requests} requests")]
    Warm {
        /// Requests left out.
        warm: usize,
        /// Requests of the trace.
        requests: usize,
    },
    /// The router's index.
    #[error(transparent)]
    Index(#[from] JoinError),
}

impl PlayError {
    /// What helps against it, to be put behind it; nothing where nothing does.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Body { .. } | Self::BlockCount { .. } => LEAVE_OUT,
            Self::Replicas(_) | Self::NobodyLeft | Self::NoBlockSize | Self::Warm { .. } | Self::Index(_) => {
                ""
            }
        }
    }
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
    /// It has one, and nothing in it.
    #[error("found a prompt without text")]
    NoText,
    /// It is no JSON.
    #[error("{0}")]
    Json(String),
    /// The router itself refuses it.
    #[error(transparent)]
    Refused(#[from] picker::Refusal),
}

/// Plays a trace of bodies under one policy. O(requests · (body + replicas)).
///
/// Requests arrive in the order of the trace, whose times must not go back. Each is decided on what a router knows at its
/// arrival and is believed to be cached at its winner from then on. Same arguments, same run.
pub fn simulate(trace: &[TraceRequest], options: &SimulateOptions, policy: Policy) -> Result<Run, PlayError> {
    simulate_all(trace, options, &[policy]).map(|mut runs| runs.remove(0))
}

/// Plays a trace of bodies under each of these policies.
pub fn simulate_all(
    trace: &[TraceRequest],
    options: &SimulateOptions,
    policies: &[Policy],
) -> Result<Vec<Run>, PlayError> {
    let workload = Workload::of_bodies(trace, options.replica.block_size)?;
    play_all(&workload, options, policies, &|_| ())
}

/// Plays a workload under each of these policies, each on fresh replicas, with an empty belief and in its own thread.
///
/// The workload's block size counts, not that of the options. `progress` is told how many requests were played since it was
/// told last, from all threads.
pub fn play_all(
    workload: &Workload,
    options: &SimulateOptions,
    policies: &[Policy],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Run>, PlayError> {
    let best = &workload.cached_at_best();
    thread::scope(|scope| {
        let play = |&policy| scope.spawn(move || Fleet::new(workload, options, policy)?.play(best, progress));
        let playing: Vec<_> = policies.iter().map(play).collect();
        playing.into_iter().map(|run| run.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
