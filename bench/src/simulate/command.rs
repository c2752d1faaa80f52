//! The command `simulate`: reads a trace, plays it and prints what came of it.

use std::io::{self, Write};

use indicatif::ProgressBar;
use picker::hash::BlockSize;
use serde::Serialize;

use super::{Columns, PlayError, Report, Run, SimulateArgs, SimulateOptions, Workload, play_all, table};
use crate::demo3::OptionsError;
use crate::trace::form::{self, AnyTrace};
use crate::trace::lines::{Loaded, Skipped, TraceFileError};

/// Fewer requests than that, over all policies, are played before anybody looks.
const REQUESTS_WITH_PROGRESS: u64 = 20_000;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// An option has no meaning. The text says which.
    #[error("{0}")]
    Option(String),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceFileError),
    /// The built-in workload cannot be had.
    #[error("--demo3-{0}")]
    Demo3(#[from] OptionsError),
    /// The trace cannot be played.
    #[error("{trace}: {reason}")]
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
    columns: Columns,
    /// Blocks that the router can believe of each replica, unless a flag says it; `None` for what the cache holds.
    believed: Option<usize>,
}

/// What the published tables were made with (behaviour 15): their router knows nothing of its replicas' caches.
const PUBLISHED_BELIEF_BLOCKS: usize = 31_250;

/// Reads the trace, plays it and writes decisions and table, or JSON, to `out`; nothing before all is played.
pub fn run(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    args.options(args.block_size()?.unwrap_or(BlockSize::ENGINE))?; // before a large file is read for nothing
    let Read { workload, skipped, columns, believed } = read(args)?;
    let options = args.options(workload.block_size())?;
    let options = SimulateOptions { belief_blocks: options.belief_blocks.or(believed), ..options };
    let bar = progress_bar(workload.len() * args.policies().len());
    let runs = play_all(&workload, &options, args.policies(), &|played| bar.inc(played));
    bar.finish_and_clear();
    let runs = runs.map_err(|reason| unplayable(args, reason))?;
    let text = match args.json {
        true => json(&workload, &skipped, &options, &runs),
        false => skipped.text() + &text(&runs, columns),
    };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Reads the trace, whose first line tells its form, or makes the built-in one.
fn read(args: &SimulateArgs) -> Result<Read, SimulateError> {
    let size = args.block_size()?;
    let Some(path) = &args.trace else { return built_in(args) };
    let Loaded { requests, skipped } = form::read(path, args.bad_lines())?;
    let (workload, columns, believed) = match requests {
        AnyTrace::Bodies(trace) => {
            let workload = Workload::of_bodies(&trace, size.unwrap_or(BlockSize::ENGINE));
            (workload, args.columns(false), Some(PUBLISHED_BELIEF_BLOCKS))
        }
        AnyTrace::Hashed(trace) => (Workload::of_hashes(&trace, size), args.columns(true), None),
    };
    let workload = workload.map_err(|reason| unplayable(args, reason))?;
    Ok(Read { workload, skipped, columns, believed })
}

fn built_in(args: &SimulateArgs) -> Result<Read, SimulateError> {
    let Some(demo3) = args.demo3.workload()? else {
        return Err(SimulateError::Option("TRACE: found none, wanted a file or --demo3".to_owned()));
    };
    let workload = Workload::of_demo3(&demo3).map_err(|reason| unplayable(args, reason))?;
    Ok(Read { workload, skipped: Skipped::default(), columns: args.columns(true), believed: None })
}

fn unplayable(args: &SimulateArgs, reason: PlayError) -> SimulateError {
    let trace = args.trace.as_ref().map_or("--demo3".to_owned(), |path| path.display().to_string());
    SimulateError::Play { trace, reason }
}

/// On a terminal's stderr, and only for what takes a while.
fn progress_bar(requests: usize) -> ProgressBar {
    let requests = requests as u64;
    if requests < REQUESTS_WITH_PROGRESS { ProgressBar::hidden() } else { ProgressBar::new(requests) }
}

fn text(runs: &[Run], columns: Columns) -> String {
    let reports: Vec<Report> = runs.iter().map(Report::of).collect();
    let lines = reports.iter().filter(|report| !report.decisions.is_empty());
    let decisions: String = lines.map(|report| report.decisions.join("\n") + "\n\n").collect();
    decisions + &table(&reports, columns)
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

fn json(workload: &Workload, skipped: &Skipped, options: &SimulateOptions, runs: &[Run]) -> String {
    let json = Json {
        requests: workload.len(),
        skipped_lines: skipped.lines,
        skipped_reasons: &skipped.reasons,
        replicas: options.replicas,
        block_size: workload.block_size().tokens(),
        seed: options.seed,
        runs: runs.iter().map(Report::of).collect(),
    };
    // String keys and finite numbers only: it cannot fail.
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
}
