//! Who plays the trace when: one lane at a time, in rounds, each play on caches that are cold to it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use super::args::{Lane, Via};
use super::exchange::Target;
use super::plan::Plan;
use super::send::{Pace, send};
use super::servers::{Counted, Server, Watch};
use super::tally::{Slo, Tally};
use super::{ReplayError, client};
use crate::demo::{Router, RunningRouter};

/// Everything that all plays have in common.
pub(super) struct Stage<'a, R> {
    pub(super) plan: Plan,
    /// The address is each lane's own.
    pub(super) target: Target,
    pub(super) pace: Pace,
    pub(super) servers: Vec<Server>,
    pub(super) server_wait: Duration,
    pub(super) slo: Slo,
    pub(super) router: &'a R,
    /// Once it is true, what is under way is left, and nothing more is sent.
    pub(super) interrupt: watch::Receiver<bool>,
}

/// What one lane came to in one round, or in all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    pub(super) counted: Counted,
}

impl Outcome {
    /// All rounds of a lane.
    pub(super) fn of_all(rounds: &[Self]) -> Self {
        let mut all = Self::default();
        for round in rounds {
            all.tally.merge(&round.tally);
            all.counted.merge(round.counted.clone());
        }
        all
    }
}

/// The lanes in the order in which they play: every second round goes backwards.
pub(super) fn order(lanes: usize, rounds: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| {
        (0..lanes).map(move |place| (round, if round % 2 == 0 { place } else { lanes - 1 - place }))
    })
}

impl<R: Router> Stage<'_, R> {
    /// One lane plays the whole trace. `play` tells this one from others, in salt and ids; `progress` is called after each
    /// request.
    pub(super) async fn play(
        &self,
        lane: &Lane,
        salt: Option<&str>,
        play: Option<&str>,
        progress: &(dyn Fn() + Sync),
    ) -> Result<Outcome, ReplayError> {
        let own = |name: &str| play.map_or_else(|| name.to_owned(), |play| format!("{name}-{play}"));
        let plan = salt.map_or_else(|| self.plan.clone(), |salt| self.plan.salted(own(salt)));
        let (url, running) = self.open(lane).await?;
        let target = Target { url, ids: self.target.ids.as_deref().map(own), ..self.target.clone() };
        let outcome = self.measure(&client()?, Arc::new(plan), Arc::new(target), progress).await;
        if let Some(running) = running {
            running.stop().await;
        }
        outcome
    }

    /// Where a lane's requests go; a policy's router is started for the play, so that it has learned nothing.
    async fn open(&self, lane: &Lane) -> Result<(String, Option<RunningRouter>), ReplayError> {
        if let Via::Url(url) = &lane.via {
            return Ok((url.clone(), None));
        }
        let endpoints: Vec<_> = self.servers.iter().map(|one| (one.name.clone(), one.url.clone())).collect();
        let started = self.router.start(&lane.name, &endpoints).await;
        let running = started.map_err(|source| ReplayError::Router { policy: lane.name.clone(), source })?;
        Ok((running.url.clone(), Some(running)))
    }

    async fn measure(
        &self,
        client: &Client,
        plan: Arc<Plan>,
        target: Arc<Target>,
        progress: &(dyn Fn() + Sync),
    ) -> Result<Outcome, ReplayError> {
        let watch = Watch::begin(client, &self.servers).await;
        let (mut tally, slo) = (Tally::default(), self.slo);
        let mut sink = |_, record| {
            tally.add(&record, &slo);
            progress();
        };
        let (began, mut interrupt) = (Instant::now(), self.interrupt.clone());
        let took = tokio::select! {
            took = send(&plan, &target, self.pace, &mut sink) => took?,
            Ok(_) = interrupt.wait_for(|told| *told) => began.elapsed(),
        };
        tally.end_play(took);
        let answered = tally.requests - tally.failed();
        // Who fails has no usage: then nobody knows how much was sent.
        let wanted = (tally.with_usage >= answered && answered > 0).then_some(tally.prompt_tokens as f64);
        let counted = watch.end(wanted, self.server_wait).await;
        Ok(Outcome { tally, counted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_goes_backwards() {
        let all: Vec<_> = order(3, 3).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]);
    }
}
