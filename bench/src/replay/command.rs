//! The command `replay`: reads a trace, lets every lane play it, and tells what came of it.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

use super::args::{Lane, ReplayArgs};
use super::exchange::Target;
use super::plan::Plan;
use super::plays::{Outcome, Stage, order};
use super::send::Pace;
use super::tally::{Slo, Tally};
use super::{ReplayError, json, show};
use crate::demo::Router;
use crate::simulate::usable;
use crate::trace::form::{self, AnyTrace};
use crate::trace::lines::{BadLines, Loaded, Skipped};

/// As a shell has it of a command that SIGINT has ended.
const INTERRUPTED_AGAIN: i32 = 130;

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
    /// What the `x-request-id` of every request begins with.
    pub(super) ids: String,
    /// It was told to end before all was sent and answered.
    pub(super) interrupted: bool,
    pub(super) played: &'a [Played],
}

/// Reads the trace, sends it and writes what came of it to `out`; progress goes to stderr if that is a terminal. `router` is
/// asked for those of `--compare`. SIGINT ends the sending, and what was measured until then is told; a second one ends all.
pub async fn run<R: Router>(args: &ReplayArgs, router: &R, out: &mut dyn Write) -> Result<(), ReplayError> {
    let (interrupt, interrupted) = watch::channel(false);
    let watching = tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _ = interrupt.send(true);
            let _ = tokio::signal::ctrl_c().await;
            std::process::exit(INTERRUPTED_AGAIN);
        }
    });
    let ended = run_until(args, router, out, interrupted).await;
    watching.abort();
    ended
}

/// As [`run`], for who says otherwise than by a signal when it is to end: once the value is true.
pub async fn run_until<R: Router>(
    args: &ReplayArgs,
    router: &R,
    out: &mut dyn Write,
    interrupt: watch::Receiver<bool>,
) -> Result<(), ReplayError> {
    let (lanes, pace) = (args.lanes()?, args.pace()?);
    let rounds = args.rounds(lanes.len())?;
    let ids = fresh_name();
    let target = Target {
        url: String::new(),
        authorization: args.authorization()?,
        timeout: args.timeout,
        ids: Some(ids.clone()),
    };
    let (servers, slo) = (args.servers()?, args.slo());
    let (plan, skipped) = read(args)?;
    let requests = plan.len();
    let stage = Stage { plan, target, pace, servers, server_wait: args.server_wait, slo, router, interrupt };
    let salt = (lanes.len() * rounds > 1).then(|| args.salt.clone().unwrap_or_else(fresh_name));
    let played = play_all(&stage, lanes, rounds, salt.as_deref()).await?;
    let interrupted = *stage.interrupt.borrow();
    let trace = args.trace.display().to_string();
    let told = Told { trace, requests, skipped, pace, slo, salt, ids, interrupted, played: &played };
    let text = if args.json { json::text(&told) } else { show::text(&told) };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    if interrupted { Err(ReplayError::Interrupted) } else { answered(&played) }
}

/// Reads the trace, whose first line tells its form. A form that comes to lengths and ids of blocks needs nothing here.
fn read(args: &ReplayArgs) -> Result<(Plan, Skipped), ReplayError> {
    let (mut hashed, edits) = (args.hashed()?, args.edits()?);
    let bad = if args.skip_bad { BadLines::Skip } else { BadLines::Refuse };
    let Loaded { mut requests, mut skipped } = form::read(&args.trace, bad)?;
    if let Some(limit) = args.limit {
        requests.truncate(limit);
    }
    let unsayable = |reason| ReplayError::Words { trace: args.trace.display().to_string(), reason };
    if let (AnyTrace::Hashed(all, told), BadLines::Skip) = (&mut requests, bad) {
        let (good, size, unusable) = usable(all, hashed.block.or(*told)).map_err(unsayable)?;
        (*all, hashed.block) = (good, Some(size));
        skipped.add_unusable(&unusable);
    }
    let plan = Plan::new(requests, &hashed, edits).map_err(unsayable)?;
    Ok((plan, skipped))
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
        if *stage.interrupt.borrow() {
            break;
        }
        bar.set_message(format!("{} {}/{rounds}", lane.name, round + 1));
        // Where there are several plays there is a salt.
        let play = salt.map(|_| format!("{round}-{place}"));
        outcomes.push(stage.play(lane, salt, play.as_deref(), &|| bar.inc(1)).await?);
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

/// What no earlier run has used: servers may still hold what that sent, and logs have its requests.
fn fresh_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("replay-{:x}-{:x}", now.as_micros(), std::process::id())
}

/// Errors: the first lane of which nothing was answered.
fn answered(played: &[Played]) -> Result<(), ReplayError> {
    for Played { lane, rounds } in played {
        let of = |count: fn(&Tally) -> usize| rounds.iter().map(|round| count(&round.tally)).sum::<usize>();
        let (sent, failed) = (of(|tally| tally.requests), of(Tally::failed));
        if failed == sent {
            return Err(ReplayError::Unanswered { lane: lane.name.clone(), sent });
        }
    }
    Ok(())
}
