//! The command line of `simulate`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use picker::hash::BlockSize;
use picker::policy::Policy;
use serde::Serialize;

use super::{PlayError, Report, Run, SimulateOptions, simulate_all, table};
use crate::engine::{EvictionOrder, ReplicaOptions, Seconds, Timing};
use crate::trace::file::{self, TraceFileError};

/// What each policy makes of a trace: hit rate, first-token times, balance
///
/// Example: prefixroute simulate trace.jsonl --policy prefix --show-decisions 5
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// A trace, as the command trace writes it
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Play one policy only
    #[arg(long, value_name = "NAME", value_parser = policy_parser())]
    pub policy: Option<Policy>,
    /// Replicas
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub replicas: usize,
    /// Blocks that each replica's cache holds
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub cache_blocks: usize,
    /// Blocks that the router can believe of each replica [default: as many as its cache holds]
    #[arg(long, value_name = "N")]
    pub belief_blocks: Option<usize>,
    /// Tokens in a block
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true)]
    pub block_size: i64,
    /// Requests that a replica runs at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub slots: usize,
    /// What every prefill costs, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5.0, allow_negative_numbers = true)]
    pub prefill_overhead: f64,
    /// Uncached prompt tokens computed per second
    #[arg(long, value_name = "N", default_value_t = 1000.0, allow_negative_numbers = true)]
    pub prefill_tps: f64,
    /// Which end of a prefix a replica evicts first; vLLM and fake-server: tail-first
    #[arg(long, value_enum, default_value_t = EvictionOrder::HeadFirst)]
    pub eviction: EvictionOrder,
    /// Seed of ties and of the policy random
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Print the first N decisions of each policy, with their reasons
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub show_decisions: usize,
    /// Print JSON in place of a table
    #[arg(long)]
    pub json: bool,
}

fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::NAMES).try_map(|name| Policy::from_name(&name).ok_or("no such policy"))
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// An option has no meaning. The text says which.
    #[error("{0}")]
    Option(String),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceFileError),
    /// The trace cannot be played.
    #[error("{}: {reason}", path.display())]
    Play {
        /// The trace's file.
        path: PathBuf,
        /// What stands in the way.
        reason: PlayError,
    },
    /// The result could not be written.
    #[error("simulate: {0}")]
    Io(#[from] io::Error),
}

impl SimulateError {
    /// Whether the operator gave something wrong; else the command failed while it ran.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Option(_) | Self::Trace(_) | Self::Play { .. } => true,
            Self::Io(_) => false,
        }
    }
}

impl SimulateArgs {
    /// Checks what clap cannot. Errors: [`SimulateError::Option`], naming the flag.
    pub fn options(&self) -> Result<SimulateOptions, SimulateError> {
        let wrong = |text: String| Err(SimulateError::Option(text));
        let (overhead, rate) = (self.prefill_overhead, self.prefill_tps);
        if !(overhead >= 0.0 && overhead.is_finite()) {
            return wrong(format!("--prefill-overhead: found {overhead}, wanted 0 or more"));
        }
        if rate.is_nan() || rate <= 0.0 {
            return wrong(format!("--prefill-tps: found {rate}, wanted more than 0"));
        }
        if self.slots == 0 {
            return wrong("--slots: found 0, wanted at least 1".to_owned());
        }
        let block_size = BlockSize::new(self.block_size)
            .map_err(|error| SimulateError::Option(format!("--block-size: {error}")))?;
        let timing =
            Timing { prefill_overhead: Seconds::from_millis(overhead), prefill_tokens_per_second: rate };
        let (cache_blocks, eviction, slots) = (self.cache_blocks, self.eviction, self.slots);
        Ok(SimulateOptions {
            replicas: self.replicas,
            replica: ReplicaOptions { cache_blocks, block_size, eviction, slots, timing },
            belief_blocks: self.belief_blocks,
            seed: self.seed,
            decisions_shown: self.show_decisions,
        })
    }
}

/// Reads the trace, plays it and writes decisions and table, or JSON, to `out`; nothing before all is played.
pub fn run(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    let options = args.options()?;
    let trace = file::read(&args.trace)?;
    let policies = args.policy.as_ref().map_or(&Policy::ALL[..], std::slice::from_ref);
    let play = |reason| SimulateError::Play { path: args.trace.clone(), reason };
    let runs = simulate_all(&trace, &options, policies).map_err(play)?;
    let text = if args.json { json(trace.len(), &options, &runs) } else { text(&runs) };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn text(runs: &[Run]) -> String {
    let reports: Vec<Report> = runs.iter().map(Report::of).collect();
    let lines = reports.iter().filter(|report| !report.decisions.is_empty());
    let decisions: String = lines.map(|report| report.decisions.join("\n") + "\n\n").collect();
    decisions + &table(&reports)
}

#[derive(Serialize)]
struct Json {
    requests: usize,
    replicas: usize,
    seed: u64,
    runs: Vec<Report>,
}

fn json(requests: usize, options: &SimulateOptions, runs: &[Run]) -> String {
    let SimulateOptions { replicas, seed, .. } = *options;
    let json = Json { requests, replicas, seed, runs: runs.iter().map(Report::of).collect() };
    // String keys and finite numbers only: it cannot fail.
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: SimulateArgs,
    }

    fn options(flags: &[&str]) -> Result<SimulateOptions, String> {
        let command = Command::try_parse_from([&["simulate", "trace.jsonl"], flags].concat());
        command.map_err(|error| error.to_string())?.args.options().map_err(|error| error.to_string())
    }

    /// Behaviour 45.
    #[test]
    fn no_flags_are_the_published_fleet() {
        assert_eq!(options(&[]), Ok(SimulateOptions::default()));
    }

    #[test]
    fn every_flag_reaches_the_fleet() {
        let flags = "--replicas 5 --cache-blocks 7 --belief-blocks 9 --block-size 4 --slots 2 --prefill-overhead 1 \
                     --prefill-tps 50 --eviction tail-first --seed 3 --show-decisions 6";
        let timing = Timing { prefill_overhead: Seconds(0.001), prefill_tokens_per_second: 50.0 };
        let replica = ReplicaOptions {
            cache_blocks: 7,
            block_size: BlockSize::new(4).unwrap(),
            eviction: EvictionOrder::TailFirst,
            slots: 2,
            timing,
        };
        let want =
            SimulateOptions { replicas: 5, replica, belief_blocks: Some(9), seed: 3, decisions_shown: 6 };
        assert_eq!(options(&flags.split_whitespace().collect::<Vec<_>>()), Ok(want));
    }

    #[test]
    fn flags_without_meaning_are_refused() {
        for (flags, reason) in [
            (["--block-size", "0"], "--block-size: block size must be positive, got 0"),
            (["--slots", "0"], "--slots: found 0, wanted at least 1"),
            (["--prefill-tps", "-1"], "--prefill-tps: found -1, wanted more than 0"),
            (["--prefill-tps", "NaN"], "--prefill-tps: found NaN, wanted more than 0"),
            (["--prefill-overhead", "inf"], "--prefill-overhead: found inf, wanted 0 or more"),
        ] {
            assert_eq!(options(&flags), Err(reason.to_owned()));
        }
        let unknown = options(&["--policy", "best"]).unwrap_err();
        assert!(Policy::NAMES.iter().all(|name| unknown.contains(name)), "{unknown}");
    }
}
