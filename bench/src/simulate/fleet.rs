//! A router before replicas on a virtual clock, and one play of a workload.

use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Choice, Decision, Rules, choose, choose_matched};
use picker::pace::Pace;
use picker::policy::Policy;
use picker::sessions::Sessions;

use super::figures::stalls;
use super::member::{Elsewhere, Member, Scrapes, Sending, micros};
use super::run::{Run, Served, ShownDecision, reasons};
use super::workload::{Arrival, Workload, rules};
use super::{PlayError, SimulateOptions, Split};
use crate::engine::{Admitted, PrefillPool, ReplicaOptions, Seconds};

/// Time between two fits of what first tokens teach, as in the proxy.
const FIT_INTERVAL: Seconds = Seconds(0.25);
/// Requests from one word on the progress to the next.
const PROGRESS_STEP: usize = 500;

/// A router and what it routes to.
pub(super) struct Fleet<'a> {
    workload: &'a Workload,
    options: &'a SimulateOptions,
    rules: Rules,
    /// Where each request goes, whatever the policy says, and what that is called.
    assigned: Option<(&'static str, &'a [Option<usize>])>,
    index: Index,
    sessions: Sessions,
    /// Blocks that are believed of each replica at most.
    belief_blocks: usize,
    /// All that there ever were.
    members: Vec<Member>,
    /// Those that are there now.
    present: Vec<usize>,
    /// What is still to befall the fleet, the next one last.
    changes: Vec<(Seconds, Change)>,
    pool: Option<(Split, PrefillPool)>,
    /// When paces are fitted next.
    next_fit: Seconds,
    /// Decisions so far.
    turn: u64,
    served: Vec<Served>,
    lost: usize,
    decisions: Vec<ShownDecision>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Add,
    Lose,
}

impl<'a> Fleet<'a> {
    /// Fresh replicas, and a belief with room for what they hold.
    pub(super) fn new(
        workload: &'a Workload,
        options: &'a SimulateOptions,
        policy: Policy,
    ) -> Result<Self, PlayError> {
        options.check(workload.len())?;
        let belief_blocks = options.belief_blocks.unwrap_or(options.replica.cache_blocks);
        let mut fleet = Self {
            workload,
            options,
            rules: Rules { policy, weights: options.weights, ..rules(workload.block_size()) },
            assigned: None,
            index: Index::for_fleet(options.replicas_ever(), belief_blocks)?,
            sessions: Sessions::default(),
            belief_blocks,
            members: Vec::with_capacity(options.replicas_ever()),
            present: Vec::with_capacity(options.replicas_ever()),
            changes: changes(options),
            pool: pool(options),
            next_fit: Seconds(0.0),
            turn: 0,
            served: vec![Served::default(); workload.len()],
            lost: 0,
            decisions: Vec::new(),
        };
        (0..options.replicas).try_for_each(|_| fleet.add(Seconds(0.0)))?;
        Ok(fleet)
    }

    /// Sends each request to its replica; those without one, and those whose replica is not there, as the policy decides.
    pub(super) fn assigning(self, name: &'static str, to: &'a [Option<usize>]) -> Self {
        Self { assigned: Some((name, to)), ..self }
    }

    /// Plays the workload to the end of its last request. `best` has for each request what could be cached of it.
    pub(super) fn play(mut self, best: &[usize], progress: &(dyn Fn(u64) + Sync)) -> Result<Run, PlayError> {
        for place in 0..self.workload.len() {
            let now = self.arrival(place);
            self.change_until(now)?;
            self.catch_up(now);
            self.send(place, now);
            if (place + 1) % PROGRESS_STEP == 0 {
                progress(PROGRESS_STEP as u64);
            }
        }
        self.change_until(Seconds(f64::INFINITY))?;
        progress((self.workload.len() % PROGRESS_STEP) as u64);
        Ok(self.finish(best))
    }

    /// When a request arrives, on the virtual clock.
    fn arrival(&self, place: usize) -> Seconds {
        let pacing = self.options.pacing;
        pacing.on_clock(self.workload.arrivals[pacing.leader(place)].at)
    }

    fn catch_up(&mut self, now: Seconds) {
        for &place in &self.present {
            self.members[place].catch_up(now, &mut self.served);
        }
        if now >= self.next_fit {
            self.next_fit = now + FIT_INTERVAL;
            self.fit_paces();
        }
    }

    fn fit_paces(&mut self) {
        let prior = self.usual_pace();
        self.present.iter().for_each(|&place| self.members[place].fit(&prior));
        let usual = self.usual_pace();
        self.present.iter().for_each(|&place| self.members[place].settle(&usual));
    }

    fn usual_pace(&self) -> Pace {
        let learned = self.present.iter().filter_map(|&place| self.members[place].learned());
        Pace::median(learned).unwrap_or_default()
    }

    fn change_until(&mut self, now: Seconds) -> Result<(), PlayError> {
        while let Some((at, change)) = self.changes.pop_if(|(at, _)| *at <= now) {
            self.catch_up(at);
            match change {
                Change::Add => self.add(at)?,
                Change::Lose => self.lose(at),
            }
        }
        Ok(())
    }

    fn add(&mut self, now: Seconds) -> Result<(), PlayError> {
        let place = self.members.len();
        let id = EndpointId(place as u32);
        self.index.join(id, self.belief_blocks)?;
        let scrapes = Scrapes::new(self.options.metrics_age, place, self.options.replicas_ever(), now);
        let mut replica = self.options.replica(place);
        replica.block_size = self.workload.block_size();
        let capacity_tokens = replica.cache_blocks.saturating_mul(replica.block_size.tokens());
        let entries = self.workload.entry_cache(capacity_tokens as u64);
        self.members.push(Member::new(id, replica, entries, scrapes));
        self.present.push(place);
        Ok(())
    }

    /// The last of the first replicas is gone; what it had in flight arrives at the router once more.
    fn lose(&mut self, now: Seconds) {
        let gone = self.options.replicas - 1;
        self.present.retain(|&place| place != gone);
        self.index.leave(EndpointId(gone as u32));
        let left = self.members[gone].abandon();
        self.lost += left.len();
        for place in left {
            self.send(place, now);
            self.catch_up(now);
        }
    }

    /// Decides on a request and gives it to the winner. The members are where the clock is.
    fn send(&mut self, place: usize, now: Seconds) {
        let workload = self.workload;
        let arrival = &workload.arrivals[place];
        let mut decision = self.decide(place, arrival, now);
        if let Some(replica) = self.assigned.and_then(|(_, to)| to[place]) {
            decision.prefer(EndpointId(replica as u32));
        }
        // There is a candidate: the fleet has at least one.
        let Some(best) = decision.take_best() else { return };
        decision.commit(&self.index, best.id);
        let work =
            self.members[self.present[best.candidate]].work(self.uncached_tokens(arrival, best.matched));
        decision.learn(&self.index, &best, work);
        decision.remember(&self.sessions, best.id, micros(now));
        self.give(place, arrival, best, now);
        if self.decisions.len() < self.options.decisions_shown {
            self.decisions.push(self.shown(arrival, &mut decision, best));
        }
    }

    /// The picker's decision on what a router knows now.
    fn decide(&mut self, place: usize, arrival: &Arrival, now: Seconds) -> Decision {
        let candidates: Vec<_> =
            self.present.iter().map(|&place| self.members[place].candidate(now)).collect();
        let draw = Draw { seed: self.options.seed, turn: self.turn };
        self.turn += 1;
        let asked = arrival.asked.clone().with_session_at(&self.sessions, micros(now));
        if !self.options.exact {
            return choose(asked, &candidates, &self.index, &self.rules, draw);
        }
        let size = self.workload.block_size().tokens();
        let cached = |&member: &usize| self.members[member].cached_tokens(place, &arrival.prompts);
        let matched: Vec<_> = self.present.iter().map(|member| (cached(member) / size) as u32).collect();
        choose_matched(asked, &matched, &candidates, &self.index, &self.rules, draw)
    }

    fn give(&mut self, place: usize, arrival: &Arrival, best: Choice, now: Seconds) {
        let replica = self.present[best.candidate];
        let uncached_tokens = self.uncached_tokens(arrival, best.matched);
        let answer = self.options.answer(arrival.output_tokens);
        let late = now - self.arrival(place);
        let sending = Sending { place, now, late, uncached_tokens, answer };
        let member = &mut self.members[replica];
        let admitted = member.admit(place, &arrival.prompts);
        let elsewhere = elsewhere(self.pool.as_mut(), sending, admitted);
        member.take(sending, admitted, elsewhere);
        let Admitted { prompt_tokens, cached_tokens, .. } = admitted;
        let computed_tokens = if elsewhere.is_some() { 0 } else { prompt_tokens - cached_tokens };
        let served = &mut self.served[place];
        let group = arrival.group;
        let apart = elsewhere.is_some();
        *served = Served { group, replica, prompt_tokens, cached_tokens, computed_tokens, apart, ..*served };
    }

    /// Prompt tokens that a replica is not believed to hold; the last one is always computed.
    fn uncached_tokens(&self, arrival: &Arrival, matched: u32) -> usize {
        let (tokens, size) = (arrival.prompt_tokens(), self.workload.block_size().tokens());
        let looked_up = tokens.saturating_sub(1) / size;
        tokens - looked_up.min(matched as usize) * size
    }

    fn shown(&self, arrival: &Arrival, decision: &mut Decision, best: Choice) -> ShownDecision {
        ShownDecision {
            number: self.turn as usize,
            group: arrival.group.map_or(String::new(), |group| self.workload.groups[group].clone()),
            replica: self.present[best.candidate],
            matched: best.matched,
            total: decision.blocks.total(),
            cold: decision.cold,
            score: best.total,
            reasons: reasons(decision, &best),
            next: decision.take_best().map(|next| (self.present[next.candidate], next.total)),
        }
    }

    fn finish(mut self, best: &[usize]) -> Run {
        for &place in &self.present {
            self.members[place].run_out(&mut self.served);
        }
        self.served.iter_mut().zip(best).for_each(|(served, &best)| served.cached_at_best = best);
        let replicas = self.members.len();
        let prefills = self.members.into_iter().map(Member::into_prefills).collect();
        stalls(&mut self.served, prefills);
        Run {
            name: self.assigned.map_or(self.rules.policy.name(), |(name, _)| name),
            served: self.served,
            warm: self.options.warm,
            window: self.options.window,
            replicas,
            lost: self.lost,
            decisions: self.decisions,
        }
    }
}

/// The next one last.
fn changes(options: &SimulateOptions) -> Vec<(Seconds, Change)> {
    let add = options.changes.add_at.map(|at| (at, Change::Add));
    let lose = options.changes.lose_at.map(|at| (at, Change::Lose));
    let mut changes: Vec<_> = add.into_iter().chain(lose).collect();
    changes.sort_by(|(one, _), (other, _)| other.0.total_cmp(&one.0));
    changes
}

/// Replicas that only compute prompts, where any prompt is long enough for them.
fn pool(options: &SimulateOptions) -> Option<(Split, PrefillPool)> {
    let split = options.split.filter(|split| split.threshold_tokens > 0)?;
    let Split { prefill_replicas, link, .. } = split;
    let ReplicaOptions { slots, timing, .. } = options.replica;
    Some((split, PrefillPool::new(prefill_replicas, slots, timing, link)))
}

/// A prompt of which enough is not believed to be cached is computed elsewhere: as much of it as is not.
fn elsewhere(
    pool: Option<&mut (Split, PrefillPool)>,
    sending: Sending,
    admitted: Admitted,
) -> Option<Elsewhere> {
    let (split, pool) = pool?;
    if sending.uncached_tokens < split.threshold_tokens {
        return None;
    }
    let uncached_tokens = admitted.prompt_tokens - admitted.cached_tokens;
    let bytes = uncached_tokens as f64 * split.kv_bytes_per_token;
    let remote = pool.compute(sending.now, uncached_tokens, bytes);
    Some(Elsewhere { wait: remote.wait, whole: remote.whole() })
}
