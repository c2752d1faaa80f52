//! Replicas on a virtual clock, with the router's belief about them, and one play of a trace.

use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Choice, Decision, Rules, decide};
use picker::ledger::InFlight;
use picker::load::Load;
use picker::policy::Policy;
use picker::score::Candidate;
use picker::tokens::Kind;

use super::asks::{Asks, Ready};
use super::{BodyError, PlayError, Run, ShownDecision, SimulateOptions};
use crate::engine::{CacheFigures, Seconds, VirtualReplica};

/// A router and what it routes to.
pub(super) struct Fleet {
    options: SimulateOptions,
    rules: Rules,
    index: Index,
    replicas: Vec<VirtualReplica>,
}

impl Fleet {
    /// Fresh replicas, and a belief with room for what they hold.
    pub(super) fn new(options: &SimulateOptions, policy: Policy) -> Result<Self, PlayError> {
        let SimulateOptions { replicas, replica, belief_blocks, .. } = *options;
        if !(1..=picker::belief::ENDPOINTS_MAX).contains(&replicas) {
            return Err(PlayError::Replicas(replicas));
        }
        let belief_blocks = belief_blocks.unwrap_or(replica.cache_blocks);
        let index = Index::for_fleet(replicas, belief_blocks)?;
        for id in (0..).map(EndpointId).take(replicas) {
            index.join(id, belief_blocks)?;
        }
        let rules = Rules { policy, tokenizer: Kind::Words, block: replica.block_size, ..Rules::default() };
        let replicas = (0..replicas).map(|_| VirtualReplica::new(replica)).collect();
        Ok(Self { options: *options, rules, index, replicas })
    }

    /// Plays a trace to the end of its last request.
    pub(super) fn play(mut self, asks: &Asks<'_>) -> Result<Run, PlayError> {
        let (mut routed, mut decisions) = (Vec::with_capacity(asks.ready.len()), Vec::new());
        for (turn, ready) in asks.ready.iter().enumerate() {
            let number = turn + 1;
            let refused = |refusal| PlayError::Body { number, reason: BodyError::Refused(refusal) };
            let mut decision = self.decide(ready, turn as u64).map_err(refused)?;
            // There is a candidate: the fleet has at least one.
            let Some(best) = decision.take_best() else { continue };
            decision.commit(&self.index, best.id);
            self.replicas[best.candidate].arrive(ready.at, &ready.prompts);
            routed.push(best.candidate);
            if number <= self.options.decisions_shown {
                decisions.push(shown(number, asks.groups[ready.group], &mut decision, best));
            }
        }
        Ok(self.sum_up(asks, routed, decisions))
    }

    /// The picker's decision on the replicas as they are when the request arrives.
    fn decide(&mut self, ready: &Ready<'_>, turn: u64) -> Result<Decision, picker::Refusal> {
        self.replicas.iter_mut().for_each(|replica| replica.advance(ready.at));
        let candidate = |(id, replica)| Candidate::new(EndpointId(id), load(replica));
        let candidates: Vec<_> = (0..).zip(&self.replicas).map(candidate).collect();
        let draw = Draw { seed: self.options.seed, turn };
        decide(&ready.ask, &candidates, &self.index, &self.rules, draw)
    }

    fn sum_up(mut self, asks: &Asks<'_>, routed: Vec<usize>, decisions: Vec<ShownDecision>) -> Run {
        let (mut ttfts, mut waits) = (Vec::with_capacity(routed.len()), Vec::with_capacity(routed.len()));
        let mut cache = CacheFigures::default();
        for replica in &mut self.replicas {
            replica.advance(Seconds(f64::INFINITY));
            let started = replica.take_started();
            ttfts.extend(started.iter().map(|started| started.ttft));
            waits.extend(started.iter().map(|started| started.wait));
            let figures = replica.figures().cache;
            cache.query_tokens += figures.query_tokens;
            cache.hit_tokens += figures.hit_tokens;
        }
        let mut requests = vec![0; self.replicas.len()];
        routed.iter().for_each(|&replica| requests[replica] += 1);
        let groups_on_one = groups_on_one(asks, &routed);
        Run { policy: self.rules.policy, cache, ttfts, waits, routed, requests, groups_on_one, decisions }
    }
}

/// What a scrape at this instant would read, and what the router has in flight: the same requests, as an answer ends with
/// its first token.
fn load(replica: &VirtualReplica) -> Load {
    let figures = replica.figures();
    Load {
        waiting: Some(figures.waiting as f64),
        running: Some(figures.running as f64),
        kv_usage: Some(figures.kv_usage),
        in_flight: InFlight {
            requests: u32::try_from(figures.waiting + figures.running).unwrap_or(u32::MAX),
            ..InFlight::default()
        },
        ..Load::default()
    }
}

fn shown(number: usize, group: &str, decision: &mut Decision, best: Choice) -> ShownDecision {
    ShownDecision {
        number,
        group: group.to_owned(),
        replica: best.candidate,
        matched: best.matched,
        total: decision.blocks.total(),
        cold: decision.cold,
        score: best.total,
        next: decision.take_best().map(|next| (next.candidate, next.total)),
    }
}

fn groups_on_one(asks: &Asks<'_>, routed: &[usize]) -> (usize, usize) {
    let mut homes: Vec<Option<usize>> = vec![None; asks.groups.len()];
    let mut alone = vec![true; asks.groups.len()];
    for (ready, &replica) in asks.ready.iter().zip(routed) {
        let home = homes[ready.group].get_or_insert(replica);
        alone[ready.group] &= *home == replica;
    }
    (alone.iter().filter(|alone| **alone).count(), alone.len())
}
