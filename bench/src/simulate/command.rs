//! The command `simulate`: reads a trace, plays it and prints what came of it.

use std::io::{self, Write};

use indicatif::ProgressBar;
use picker::hash::BlockSize;
use picker::policy::Policy;
use serde::Serialize;

use super::{
    Columns, PlayArgs, PlayError, Report, Run, SimulateArgs, SimulateOptions, Workload, oracle, play_all,
    play_assigned, table,
};
use crate::decisions::{self, Record};
use crate::demo3::OptionsError;
use crate::trace::form::{self, AnyTrace, Form};
use crate::trace::lines::{self, BadLines, Loaded, Skipped, TraceFileError};

/// Fewer requests than that, over all policies, are played before anybody looks.
const REQUESTS_WITH_PROGRESS: u64 = 20_000;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// An option has no meaning. The text says which.
    #[error("{0}")]
    Option(String),
    /// The trace cannot be read.
    #[error("{}{}", .0, .0.hint())]
    Trace(#[from] TraceFileError),
    /// The built-in workload cannot be had.
    #[error("--demo3-{0}")]
    Demo3(#[from] OptionsError),
    /// The trace cannot be played.
    #[error("{trace}: {reason}{}", reason.hint())]
    Play {
        /// The trace's file, or the built-in workload.
        trace: String,
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
            Self::Option(_) | Self::Trace(_) | Self::Demo3(_) | Self::Play { .. } => true,
            Self::Io(_) => false,
        }
    }
}

/// A trace of either form, ready to be played.
struct Read {
    workload: Workload,
    skipped: Skipped,
    /// It came as hashes or from the built-in workload, not as bodies.
    hashed: bool,
    /// Blocks that the router can believe of each replica, unless a flag says it; `None` for what the cache holds.
    believed: Option<usize>,
    /// Where a decision log has each request; nothing of a trace.
    routed: Option<(usize, Vec<Option<usize>>)>,
}

/// What the published tables were made with (behaviour 15): their router knows nothing of its replicas' caches.
const PUBLISHED_BELIEF_BLOCKS: usize = 31_250;

/// Reads the trace, plays it and writes decisions and table, or JSON, to `out`; nothing before all is played.
pub fn run(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    let SimulateOptions { window, decisions_shown, .. } = args.options(BlockSize::ENGINE)?;
    let (read, options) = read_checked(&args.play)?;
    let options = SimulateOptions { window, decisions_shown, ..options };
    let Read { workload, skipped, hashed, routed, .. } = read;
    let bar = progress_bar(workload.len() * args.policies().len());
    let runs = play_all(&workload, &options, args.policies(), &|played| bar.inc(played));
    let mut runs = runs.map_err(|reason| unplayable(&args.play, reason))?;
    let mut note = String::new();
    match &routed {
        Some((endpoints, _)) if *endpoints > options.replicas => {
            note = format!(
                "the log is of {endpoints} endpoints: --replicas {endpoints} also plays where each request went\n\n"
            );
        }
        Some((_, assigned)) => {
            let run = play_assigned(&workload, &options, "as routed", assigned);
            runs.push(run.map_err(|reason| unplayable(&args.play, reason))?);
        }
        None => {}
    }
    if let Some(plays) = args.oracle {
        bar.inc_length(((plays + Policy::ALL.len()) * workload.len()) as u64);
        let run = oracle(&workload, &options, plays, &runs, &|played| bar.inc(played));
        runs.push(run.map_err(|reason| unplayable(&args.play, reason))?);
    }
    bar.finish_and_clear();
    let reports = reports(&runs, args.oracle.is_some());
    let text = match args.json {
        true => json(&workload, &skipped, &options, reports),
        false => skipped.text() + &note + &text(&reports, args.columns(hashed)),
    };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The workload, what it is played on, and what was left out of it.
pub(crate) fn read_workload(args: &PlayArgs) -> Result<(Workload, SimulateOptions, Skipped), SimulateError> {
    let (read, options) = read_checked(args)?;
    Ok((read.workload, options, read.skipped))
}

fn read_checked(args: &PlayArgs) -> Result<(Read, SimulateOptions), SimulateError> {
    args.options(args.block_size()?.unwrap_or(BlockSize::ENGINE))?; // before a large file is read for nothing
    let read = read(args)?;
    let options = args.options(read.workload.block_size())?;
    let belief_blocks = options.belief_blocks.or(read.believed);
    Ok((read, SimulateOptions { belief_blocks, ..options }))
}

/// Each run in figures; with an oracle, which is the last, what each is behind it.
fn reports(runs: &[Run], with_oracle: bool) -> Vec<Report> {
    let mut reports: Vec<Report> = runs.iter().map(Report::of).collect();
    let best = reports.last().map(|oracle| oracle.ttft_mean_ms).filter(|_| with_oracle);
    for report in &mut reports {
        report.regret_ms = best.map(|best| report.ttft_mean_ms - best);
    }
    reports
}

/// Reads the trace, whose first line tells its form, or makes the built-in one.
fn read(args: &PlayArgs) -> Result<Read, SimulateError> {
    let size = args.block_size()?;
    let Some(path) = &args.trace else { return built_in(args) };
    let bytes = lines::bytes(path)?;
    if form::form(&bytes) == Form::Decisions {
        return of_log(args, lines::parse(&bytes, path, args.bad_lines())?);
    }
    let Loaded { requests, mut skipped } = form::parse(&bytes, path, args.bad_lines())?;
    let hashed = matches!(requests, AnyTrace::Hashed(..));
    let loaded = playable(&requests, size, args.bad_lines());
    let (workload, unusable) = loaded.map_err(|reason| unplayable(args, reason))?;
    skipped.add_unusable(&unusable);
    if workload.is_empty() {
        let (lines, first) = (skipped.lines, skipped.reasons.into_iter().next().unwrap_or_default());
        return Err(TraceFileError::AllBad { path: path.clone(), lines, first }.into());
    }
    let believed = (!hashed).then_some(PUBLISHED_BELIEF_BLOCKS);
    Ok(Read { workload, skipped, hashed, believed, routed: None })
}

/// The requests that can be played, and what is wrong with those that were left out. Errors: the first of them, unless they are
/// to be skipped.
fn playable(
    trace: &AnyTrace,
    size: Option<BlockSize>,
    bad: BadLines,
) -> Result<(Workload, Vec<PlayError>), PlayError> {
    let all = |workload: Workload| (workload, Vec::new());
    match (trace, bad) {
        (AnyTrace::Bodies(trace), BadLines::Skip) => {
            Ok(Workload::of_good_bodies(trace, size.unwrap_or(BlockSize::ENGINE)))
        }
        (AnyTrace::Bodies(trace), BadLines::Refuse) => {
            Workload::of_bodies(trace, size.unwrap_or(BlockSize::ENGINE)).map(all)
        }
        (AnyTrace::Hashed(trace, told), BadLines::Skip) => Workload::of_good_hashes(trace, size.or(*told)),
        (AnyTrace::Hashed(trace, told), BadLines::Refuse) => {
            Workload::of_hashes(trace, size.or(*told)).map(all)
        }
    }
}

fn of_log(args: &PlayArgs, log: Loaded<Vec<Record>>) -> Result<Read, SimulateError> {
    let Loaded { requests: log, skipped } = log;
    let (trace, size) = decisions::to_trace(&log);
    let workload = Workload::of_hashes(&trace, args.block_size()?.or(Some(size)));
    let workload = workload.map_err(|reason| unplayable(args, reason))?;
    let (endpoints, routed) = decisions::routed(&log);
    let routed = Some((endpoints.len(), routed));
    Ok(Read { workload, skipped, hashed: true, believed: None, routed })
}

fn built_in(args: &PlayArgs) -> Result<Read, SimulateError> {
    let Some(demo3) = args.demo3.workload()? else {
        return Err(SimulateError::Option("TRACE: found none, wanted a file or --demo3".to_owned()));
    };
    let workload = Workload::of_demo3(&demo3).map_err(|reason| unplayable(args, reason))?;
    Ok(Read { workload, skipped: Skipped::default(), hashed: true, believed: None, routed: None })
}

fn unplayable(args: &PlayArgs, reason: PlayError) -> SimulateError {
    let trace = args.trace.as_ref().map_or("--demo3".to_owned(), |path| path.display().to_string());
    SimulateError::Play { trace, reason }
}

/// On a terminal's stderr, and only for what takes a while.
fn progress_bar(requests: usize) -> ProgressBar {
    let requests = requests as u64;
    if requests < REQUESTS_WITH_PROGRESS { ProgressBar::hidden() } else { ProgressBar::new(requests) }
}

fn text(reports: &[Report], columns: Columns) -> String {
    let lines = reports.iter().filter(|report| !report.decisions.is_empty());
    let decisions: String = lines.map(|report| report.decisions.join("\n") + "\n\n").collect();
    decisions + &table(reports, columns)
}

#[derive(Serialize)]
struct Json<'a> {
    requests: usize,
    skipped_lines: usize,
    skipped_reasons: &'a [String],
    replicas: usize,
    block_size: usize,
    seed: u64,
    runs: Vec<Report>,
}

fn json(workload: &Workload, skipped: &Skipped, options: &SimulateOptions, runs: Vec<Report>) -> String {
    let json = Json {
        requests: workload.len(),
        skipped_lines: skipped.lines,
        skipped_reasons: &skipped.reasons,
        replicas: options.replicas,
        block_size: workload.block_size().tokens(),
        seed: options.seed,
        runs,
    };
    // String keys and finite numbers only: it cannot fail.
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
}
