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
    PlayArgs, PlayError, Run, SimulateError, SimulateOptions, Workload, play_all, read_workload,
};
use verdict::{Verdict, in_words, json};

/// Weights of the policy prefix for a traffic, and their gain on the part that they were not chosen on
///
/// Reads what simulate reads: a trace, or the router's decision log. The fleet's flags are those of simulate.
///
/// Example: prefixroute tune decisions.jsonl --replicas 8 --cache-tokens 400000 --slots 16
#[derive(Clone, Debug, clap::Args)]
pub struct TuneArgs {
    /// What is played, and on what.
    #[command(flatten)]
    pub play: PlayArgs,
    /// Share of the requests, from the first on, that weights are looked for on
    #[arg(long, value_name = "F", default_value_t = 0.6, help_heading = "Search")]
    pub train: f64,
    /// Weights that are tried
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "Search")]
    pub tries: usize,
    /// Print JSON in place of a table
    #[arg(long, help_heading = "Figures")]
    pub json: bool,
}

/// Runs it and writes the verdict to `out`. Errors: as `simulate`; a part without requests.
pub fn run(args: &TuneArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    if args.tries == 0 {
        return Err(wrong("--tries: found 0, wanted at least 1"));
    }
    let (workload, options, skipped) = read_workload(&args.play)?;
    let trained = trained_on(args, workload.len())?;
    let start = Policy::Prefix.weights().ok_or_else(|| wrong("policy prefix: found no weights"))?;
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
    let text = match args.json {
        true => json(&verdict, &skipped),
        false => skipped.text() + &in_words(&verdict),
    };
    out.write_all(text.as_bytes())?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use clap::Parser;
    use serde_json::Value;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: TuneArgs,
    }

    fn printed(flags: &str) -> Result<String, String> {
        let path = "tests/fixtures/traces/taubench_airline_bs64.jsonl";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let words = ["tune", path.to_str().unwrap()].into_iter().chain(flags.split_whitespace());
        let args = Command::try_parse_from(words).map_err(|error| error.to_string())?.args;
        let mut out = Vec::new();
        run(&args, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn json_has_what_the_table_has() {
        const FLAGS: &str = "--tries 3 --replicas 2 --slots 1 --prefill-tps 12000 --cache-tokens 6000";
        let text = printed(FLAGS).unwrap();
        let json: Value = serde_json::from_str(&printed(&format!("{FLAGS} --json")).unwrap()).unwrap();
        assert_eq!(
            (&json["trained"], &json["held_out"], &json["skipped_lines"]),
            (&150.into(), &100.into(), &0.into())
        );
        let runs = json["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 3);
        for run in runs {
            for (figure, unit) in
                [("ttft_mean_ms", " ms"), ("hit_rate", " %"), ("gain_ms", " ms"), ("spread_ms", " ms")]
            {
                let Some(value) = run[figure].as_f64() else {
                    assert!(run["name"] == "prefix, its preset" && run["gain_ms"].is_null(), "{run}");
                    continue;
                };
                let value = if unit == " %" { value * 100.0 } else { value };
                assert!(text.contains(&format!("{value:.1}{unit}")), "{figure} of {run}: {text}");
            }
        }
        assert!(text.contains(json["advice"].as_str().unwrap()), "{text}");
        assert!(json["weights"]["prefix"].is_number(), "{json}");
        assert!(text.contains("+- is two standard errors"), "{text}");
    }

    #[test]
    fn what_means_nothing_here_is_refused() {
        for flag in ["--policy sticky", "--oracle", "--full", "--show-decisions 3", "--window 9"] {
            let error = printed(flag).unwrap_err();
            assert!(error.contains("unexpected argument"), "{flag}: {error}");
        }
        assert_eq!(printed("--tries 0").unwrap_err(), "--tries: found 0, wanted at least 1");
    }
}
