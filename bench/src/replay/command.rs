//! The command `replay`: reads a trace, lets every lane play it, and tells what came of it.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};

use super::args::{Lane, ReplayArgs};
use super::exchange::Target;
use super::plan::Plan;
use super::plays::{Outcome, Stage, order};
use super::send::Pace;
use super::tally::Slo;
use super::{ReplayError, json, show};
use crate::demo::Router;
use crate::trace::form;
use crate::trace::lines::{BadLines, Loaded, Skipped};

/// A lane and what it came to, round by round.
pub(super) struct Played {
    pub(super) lane: Lane,
    pub(super) rounds: Vec<Outcome>,
}

/// What was done, for those who tell it.
pub(super) struct Told<'a> {
    pub(super) trace: String,
    /// Requests of one play.
    pub(super) requests: usize,
    pub(super) skipped: Skipped,
    pub(super) pace: Pace,
    pub(super) slo: Slo,
    /// Of the plays, where there are several.
    pub(super) salt: Option<String>,
    pub(super) played: &'a [Played],
}

/// Reads the trace, sends it and writes what came of it to `out`; progress goes to stderr if that is a terminal. `router` is
/// asked for those of `--compare`.
pub async fn run<R: Router>(args: &ReplayArgs, router: &R, out: &mut dyn Write) -> Result<(), ReplayError> {
    let (lanes, pace) = (args.lanes()?, args.pace()?);
    let rounds = args.rounds(lanes.len())?;
    let target = Target { url: String::new(), authorization: args.authorization()?, timeout: args.timeout };
    let (servers, slo) = (args.servers()?, args.slo());
    let (plan, skipped) = read(args)?;
    let requests = plan.len();
    let stage = Stage { plan, target, pace, servers, server_wait: args.server_wait, slo, router };
    let salt = (lanes.len() * rounds > 1).then(|| args.salt.clone().unwrap_or_else(fresh_salt));
    let played = play_all(&stage, lanes, rounds, salt.as_deref()).await?;
    let trace = args.trace.display().to_string();
    let told = Told { trace, requests, skipped, pace, slo, salt, played: &played };
    let text = if args.json { json::text(&told) } else { show::text(&told) };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    answered(&played)
}

/// Reads the trace, whose first line tells its form. A form that comes to lengths and ids of blocks needs nothing here.
fn read(args: &ReplayArgs) -> Result<(Plan, Skipped), ReplayError> {
    let (hashed, edits) = (args.hashed()?, args.edits()?);
    let bad = if args.skip_bad { BadLines::Skip } else { BadLines::Refuse };
    let Loaded { mut requests, skipped } = form::read(&args.trace, bad)?;
    if let Some(limit) = args.limit {
        requests.truncate(limit);
    }
    let trace = || args.trace.display().to_string();
    let plan = Plan::new(requests, &hashed, edits);
    Ok((plan.map_err(|reason| ReplayError::Words { trace: trace(), reason })?, skipped))
}

async fn play_all<R: Router>(
    stage: &Stage<'_, R>,
    lanes: Vec<Lane>,
    rounds: usize,
    salt: Option<&str>,
) -> Result<Vec<Played>, ReplayError> {
    let mut played: Vec<Played> = lanes.into_iter().map(|lane| Played { lane, rounds: Vec::new() }).collect();
    let bar = progress_bar(stage.plan.len() * played.len() * rounds);
    for (round, place) in order(played.len(), rounds) {
        let Some(Played { lane, rounds: outcomes }) = played.get_mut(place) else { continue };
        bar.set_message(format!("{} {}/{rounds}", lane.name, round + 1));
        let salt = salt.map(|salt| format!("{salt}-{round}-{place}"));
        outcomes.push(stage.play(lane, salt, &|| bar.inc(1)).await?);
    }
    bar.finish_and_clear();
    Ok(played)
}

/// On a terminal's stderr only.
fn progress_bar(requests: usize) -> ProgressBar {
    let bar = ProgressBar::new(requests as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar
}

/// What no earlier run has used: servers may still hold what that sent.
fn fresh_salt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("replay-{:x}-{:x}", now.as_micros(), std::process::id())
}

fn answered(played: &[Played]) -> Result<(), ReplayError> {
    let tallies = || played.iter().flat_map(|one| one.rounds.iter().map(|round| &round.tally));
    let (sent, failed) = tallies().fold((0, 0), |sum, one| (sum.0 + one.requests, sum.1 + one.failed()));
    if failed == sent { Err(ReplayError::Unanswered(sent)) } else { Ok(()) }
}
