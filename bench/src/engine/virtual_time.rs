//! A replica on a clock that only the caller moves: the simulator's half of the engine model.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::cache::Prompt;
use super::lanes::{Seconds, Ticket};
use super::replica::{Admission, Admitted, Figures, Replica, ReplicaOptions};

/// Something came to pass at a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Happened {
    /// The request, as its arrival named it.
    pub ticket: Ticket,
    /// When.
    pub at: Seconds,
    /// What.
    pub what: What,
}

/// What can come to pass with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// Its prompt is computed. The time to it is `wait + prefill`.
    FirstToken {
        /// How long it waited for a lane.
        wait: Seconds,
        /// How long it computed after that.
        prefill: Seconds,
    },
    /// Its answer is whole.
    End,
}

/// A moment in order; no moment here is NaN, and `total_cmp` would still order it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment(Seconds);

impl Eq for Moment {}
impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.0.total_cmp(&other.0.0)
    }
}

/// A replica whose requests end by themselves as its clock is moved.
///
/// A request holds a lane until its first token. Its answer then runs beside the lanes for as long as its arrival said:
/// it counts as running and holds its blocks, but slows nobody down.
#[derive(Debug)]
pub struct VirtualReplica {
    replica: Replica,
    flights: HashMap<Ticket, Flight>,
    due: BinaryHeap<Reverse<(Moment, Ticket)>>,
    /// Requests that run without a lane, and their blocks.
    beside: (usize, usize),
    happened: Vec<Happened>,
}

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
struct Flight {
    arrived: Seconds,
    prefill: Seconds,
    answer: Seconds,
    blocks: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// For a lane, or in one since then.
    Prefill(Option<Seconds>),
    /// Its prompt is being computed elsewhere.
    Remote,
    Answer,
}

impl VirtualReplica {
    /// A fresh replica at time 0.
    pub fn new(options: ReplicaOptions) -> Self {
        let (flights, due, beside, happened) = Default::default();
        Self { replica: Replica::new(options), flights, due, beside, happened }
    }

    /// Does all that is due by `now`, each at its own moment.
    pub fn advance(&mut self, now: Seconds) {
        while let Some(&Reverse((at, ticket))) = self.due.peek()
            && at <= Moment(now)
        {
            self.due.pop();
            self.step(ticket, at.0);
        }
    }

    /// A request arrives at `now`, never before an earlier arrival; its answer ends with its first token.
    pub fn arrive(&mut self, now: Seconds, prompts: &[Prompt]) -> Admission {
        self.advance(now);
        let admitted = self.admit(prompts);
        self.join(now, admitted, Seconds(0.0))
    }

    /// Looks prompts up and caches them, as the replica does when they arrive.
    pub fn admit(&mut self, prompts: &[Prompt]) -> Admitted {
        self.replica.admit(prompts)
    }

    /// Tokens of the prompts that are cached now. Changes nothing.
    pub fn cached_tokens(&self, prompts: &[Prompt]) -> usize {
        self.replica.cached_tokens(prompts)
    }

    /// How long prompts are, with nothing cached. Changes nothing.
    pub fn measure(&self, prompts: &[Prompt]) -> Admitted {
        self.replica.measure(prompts)
    }

    /// A request that was looked up takes its place at `now`; after its first token its answer takes `answer` more.
    pub fn join(&mut self, now: Seconds, admitted: Admitted, answer: Seconds) -> Admission {
        let admission = self.replica.join(admitted);
        let Admission { ticket, prefill, blocks, runs, .. } = admission;
        let stage = Stage::Prefill(None);
        self.flights.insert(ticket, Flight { arrived: now, prefill, answer, blocks, stage });
        if runs {
            self.start(ticket, now);
        }
        admission
    }

    /// A request arrives whose prompt others compute: its first token comes `prefill` after `now`.
    pub fn join_remote(
        &mut self,
        now: Seconds,
        admitted: Admitted,
        prefill: Seconds,
        answer: Seconds,
    ) -> Ticket {
        let ticket = self.replica.pass();
        let Admitted { blocks, .. } = admitted;
        let flight = Flight { arrived: now, prefill, answer, blocks, stage: Stage::Remote };
        self.flights.insert(ticket, flight);
        self.beside.0 += 1;
        self.beside.1 += blocks;
        self.due.push(Reverse((Moment(now + prefill), ticket)));
        ticket
    }

    /// What came to pass since the last call, in order.
    pub fn take_happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    /// What the replica exports at the moment to which it was advanced.
    pub fn figures(&self) -> Figures {
        let figures = self.replica.figures();
        let (beside, blocks) = self.beside;
        let held = blocks as f64 / self.replica.capacity_blocks().max(1) as f64;
        let kv_usage = (figures.kv_usage + held).min(1.0);
        Figures { running: figures.running + beside, kv_usage, ..figures }
    }

    /// A request has its lane.
    fn start(&mut self, ticket: Ticket, at: Seconds) {
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        flight.stage = Stage::Prefill(Some(at));
        self.due.push(Reverse((Moment(at + flight.prefill), ticket)));
    }

    /// The next thing of a request, which is due `at` this moment.
    fn step(&mut self, ticket: Ticket, at: Seconds) {
        let Some(&flight) = self.flights.get(&ticket) else { return };
        match flight.stage {
            Stage::Prefill(started) => {
                let next = self.replica.leave(ticket);
                self.beside.0 += 1;
                self.beside.1 += flight.blocks;
                self.answer(ticket, at, started.unwrap_or(at) - flight.arrived);
                next.into_iter().for_each(|next| self.start(next, at));
            }
            Stage::Remote => self.answer(ticket, at, Seconds(0.0)),
            Stage::Answer => self.end(ticket, at),
        }
    }

    /// The first token is there.
    fn answer(&mut self, ticket: Ticket, at: Seconds, wait: Seconds) {
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        flight.stage = Stage::Answer;
        let Flight { prefill, answer, .. } = *flight;
        self.happened.push(Happened { ticket, at, what: What::FirstToken { wait, prefill } });
        match answer > Seconds(0.0) {
            true => self.due.push(Reverse((Moment(at + answer), ticket))),
            false => self.end(ticket, at),
        }
    }

    fn end(&mut self, ticket: Ticket, at: Seconds) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        self.beside.0 -= 1;
        self.beside.1 -= flight.blocks;
        self.happened.push(Happened { ticket, at, what: What::End });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use picker::hash::{BlockSize, Tail, model_root, token_block_hashes};
    use serde::Deserialize;

    use super::super::lanes::Timing;
    use super::*;

    const CASES: &str = include_str!("../../tests/fixtures/seed/replica_sim.json");

    #[derive(Deserialize)]
    struct Fixture {
        cases: Vec<Case>,
    }
    #[derive(Deserialize)]
    struct Case {
        name: String,
        slots: usize,
        prefill_overhead_ms: f64,
        prefill_tokens_per_s: f64,
        requests: Vec<Request>,
    }
    #[derive(Deserialize)]
    struct Request {
        at_s: f64,
        prompt_tokens: u32,
        first_token_id: u32,
        cached_tokens: usize,
        wait_ms: f64,
        ttft_ms: f64,
    }

    fn prompt(request: &Request) -> Prompt {
        let tokens: Vec<u32> = (request.first_token_id..).take(request.prompt_tokens as usize).collect();
        let blocks = token_block_hashes(model_root("m", ""), &tokens, BlockSize::ENGINE, Tail::Drop);
        Prompt { tokens: tokens.len(), blocks }
    }

    fn replica(case: &Case) -> VirtualReplica {
        let timing = Timing {
            prefill_overhead: Seconds::from_millis(case.prefill_overhead_ms),
            prefill_tokens_per_second: case.prefill_tokens_per_s,
        };
        VirtualReplica::new(ReplicaOptions {
            cache_blocks: 1024,
            slots: case.slots,
            timing,
            ..ReplicaOptions::default()
        })
    }

    #[test]
    fn every_request_of_the_fixture() {
        let fixture: Fixture = serde_json::from_str(CASES).unwrap();
        assert_eq!(fixture.cases.len(), 5);
        for case in fixture.cases {
            let mut replica = replica(&case);
            for request in &case.requests {
                let admission = replica.arrive(Seconds(request.at_s), &[prompt(request)]);
                assert_eq!(admission.cached_tokens, request.cached_tokens, "{}", case.name);
            }
            replica.advance(Seconds(1e6));
            let first_token = |happened: Happened| match happened.what {
                What::FirstToken { wait, prefill } => Some((happened.ticket, wait, prefill)),
                What::End => None,
            };
            let mut answered: Vec<_> = replica.take_happened().into_iter().filter_map(first_token).collect();
            answered.sort_by_key(|(ticket, ..)| *ticket);
            assert_eq!(answered.len(), case.requests.len(), "{}", case.name);
            for (&(_, wait, prefill), request) in answered.iter().zip(&case.requests) {
                let close = |got: Seconds, want: f64| (got.millis() - want).abs() < 1e-5;
                assert!(close(wait, request.wait_ms), "{}: {wait:?}", case.name);
                assert!(close(wait + prefill, request.ttft_ms), "{}: {prefill:?}", case.name);
            }
            assert_eq!((replica.figures().running, replica.figures().waiting), (0, 0), "{}", case.name);
        }
    }

    /// A request of so many uncached tokens at 1,000 a second.
    fn tokens(count: usize) -> Admitted {
        Admitted { prompt_tokens: count, cached_tokens: 0, blocks: count.div_ceil(16) }
    }

    #[test]
    fn an_answer_runs_beside_the_lane() {
        let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 1000.0 };
        let options = ReplicaOptions { slots: 1, timing, ..ReplicaOptions::default() };
        let mut replica = VirtualReplica::new(options);
        let first = replica.join(Seconds(0.0), tokens(1000), Seconds(5.0)).ticket;
        let second = replica.join(Seconds(0.0), tokens(1000), Seconds(0.0)).ticket;
        let remote = replica.join_remote(Seconds(0.0), tokens(160), Seconds(1.5), Seconds(0.0));
        for (at, waiting, running, blocks) in
            [(0.5, 1, 2, 73.0), (1.25, 0, 3, 136.0), (1.75, 0, 2, 126.0), (2.5, 0, 1, 63.0), (6.0, 0, 0, 0.0)]
        {
            replica.advance(Seconds(at));
            let figures = replica.figures();
            assert_eq!((figures.waiting, figures.running), (waiting, running), "at {at}");
            assert_eq!(figures.kv_usage, (blocks / 64.0f64).min(1.0), "at {at}");
        }
        let order: Vec<_> =
            replica.take_happened().iter().map(|it| (it.ticket, it.at.0, it.what == What::End)).collect();
        let want = [
            (first, 1.0, false),
            (remote, 1.5, false),
            (remote, 1.5, true),
            (second, 2.0, false),
            (second, 2.0, true),
            (first, 6.0, true),
        ];
        assert_eq!(order, want);
    }
}
