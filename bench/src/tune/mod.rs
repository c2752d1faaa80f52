//! The command `tune`: weights of the policy `prefix` for a given traffic, and what they gain where they were not chosen.
//!
//! Weights are looked for on the first part of a trace or decision log, and judged on the rest, which the search has never
//! seen: a gain that is only the search's luck shows there as none. The spread is that of parts of the rest, because
//! requests that follow each other are not independent.

mod search;
mod verdict;

use std::io::Write;

use indicatif::ProgressBar;
use picker::policy::Policy;
use picker::score::Weights;

use crate::simulate::{
    PlayError, Run, SimulateArgs, SimulateError, SimulateOptions, Workload, play_all, read_workload,
};
use verdict::{Verdict, in_words};

/// Weights of the policy prefix for a traffic, and their gain on the part that they were not chosen on
///
/// Reads what simulate reads: a trace, or the router's decision log. The fleet's flags are those of simulate.
///
/// Example: prefixroute tune decisions.jsonl --replicas 8 --cache-tokens 400000 --slots 16
#[derive(Clone, Debug, clap::Args)]
pub struct TuneArgs {
    /// What is played, and on what.
    #[command(flatten)]
    pub play: SimulateArgs,
    /// Share of the requests, from the first on, that weights are looked for on
    #[arg(long, value_name = "F", default_value_t = 0.6, help_heading = "Search")]
    pub train: f64,
    /// Weights that are tried
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "Search")]
    pub tries: usize,
}

/// Runs it and writes the verdict to `out`. Errors: as `simulate`; a part without requests.
pub fn run(args: &TuneArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    let (workload, options, note) = read_workload(&args.play)?;
    let trained = trained_on(args, workload.len())?;
    let start = Policy::Prefix.weights().ok_or_else(|| wrong("--policy: found one without weights"))?;
    let bar = ProgressBar::new(args.tries as u64);
    let unplayable = |reason: PlayError| wrong(&reason.to_string());
    let first = workload.first(trained);
    let options = SimulateOptions { warm: args.play.warm.min(trained - 1), decisions_shown: 0, ..options };
    let mut cost = |weights| {
        bar.inc(1);
        play(&first, &options, Policy::Prefix, Some(weights)).map(|run| run.ttft_mean())
    };
    let tuned = search::best(start, args.tries, options.seed, &mut cost).map_err(unplayable)?;
    bar.finish_and_clear();
    let judged = SimulateOptions { warm: trained, ..options };
    let on = |policy, weights| play(&workload, &judged, policy, weights).map_err(unplayable);
    let verdict = Verdict {
        trained,
        preset: on(Policy::Prefix, None)?,
        tuned: on(Policy::Prefix, Some(tuned))?,
        default: on(Policy::default(), None)?,
        weights: tuned,
    };
    out.write_all((note + &in_words(&verdict)).as_bytes())?;
    Ok(out.flush()?)
}

fn play(
    workload: &Workload,
    options: &SimulateOptions,
    policy: Policy,
    weights: Option<Weights>,
) -> Result<Run, PlayError> {
    let options = SimulateOptions { weights, ..*options };
    play_all(workload, &options, &[policy], &|_| ()).map(|mut runs| runs.remove(0))
}

/// How many requests are trained on. Errors: it leaves one of the parts empty.
fn trained_on(args: &TuneArgs, requests: usize) -> Result<usize, SimulateError> {
    if !(args.train > 0.0 && args.train < 1.0) {
        return Err(wrong(&format!("--train: found {}, wanted more than 0 and less than 1", args.train)));
    }
    let trained = (requests as f64 * args.train) as usize;
    if trained == 0 || requests - trained < verdict::PARTS {
        let wanted = format!("some to train on and {} held out", verdict::PARTS);
        return Err(wrong(&format!("--train: found {trained} of {requests} requests, wanted {wanted}")));
    }
    Ok(trained)
}

fn wrong(text: &str) -> SimulateError {
    SimulateError::Option(text.to_owned())
}
