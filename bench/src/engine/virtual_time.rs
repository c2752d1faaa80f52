//! A replica on a clock that only the caller moves: the simulator's half of the engine model.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::cache::Prompt;
use super::lanes::{Seconds, Ticket};
use super::replica::{Admission, Figures, Replica, ReplicaOptions};

/// A request got its lane; all about it is known from here on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Started {
    /// The request, as [`VirtualReplica::arrive`] named it.
    pub ticket: Ticket,
    /// How long it waited for the lane.
    pub wait: Seconds,
    /// From its arrival to its first token.
    pub ttft: Seconds,
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
#[derive(Debug)]
pub struct VirtualReplica {
    replica: Replica,
    waiting: HashMap<Ticket, (Seconds, Admission)>,
    ends: BinaryHeap<Reverse<(Moment, Ticket)>>,
    started: Vec<Started>,
}

impl VirtualReplica {
    /// A fresh replica at time 0.
    pub fn new(options: ReplicaOptions) -> Self {
        let replica = Replica::new(options);
        Self { replica, waiting: HashMap::new(), ends: BinaryHeap::new(), started: Vec::new() }
    }

    /// Ends every request that is due by `now`, each giving its lane on at its own moment.
    pub fn advance(&mut self, now: Seconds) {
        while let Some(&Reverse((end, ticket))) = self.ends.peek()
            && end <= Moment(now)
        {
            self.ends.pop();
            if let Some(next) = self.replica.leave(ticket) {
                self.start(next, end.0);
            }
        }
    }

    /// A request arrives at `now`, never before an earlier arrival.
    pub fn arrive(&mut self, now: Seconds, prompts: &[Prompt]) -> Admission {
        self.advance(now);
        let admission = self.replica.arrive(prompts);
        self.waiting.insert(admission.ticket, (now, admission));
        if admission.runs {
            self.start(admission.ticket, now);
        }
        admission
    }

    /// Requests that got their lane since the last call, in the order in which they did.
    pub fn take_started(&mut self) -> Vec<Started> {
        std::mem::take(&mut self.started)
    }

    /// What the replica exports at the moment to which it was advanced.
    pub fn figures(&self) -> Figures {
        self.replica.figures()
    }

    fn start(&mut self, ticket: Ticket, at: Seconds) {
        let Some((arrived, admission)) = self.waiting.remove(&ticket) else { return };
        let wait = at - arrived;
        self.ends.push(Reverse((Moment(at + admission.prefill), ticket)));
        self.started.push(Started { ticket, wait, ttft: wait + admission.prefill });
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
            let mut started = replica.take_started();
            started.sort_by_key(|started| started.ticket);
            assert_eq!(started.len(), case.requests.len(), "{}", case.name);
            for (started, request) in started.iter().zip(&case.requests) {
                let close = |got: Seconds, want: f64| (got.millis() - want).abs() < 1e-5;
                assert!(close(started.wait, request.wait_ms), "{}: {started:?}", case.name);
                assert!(close(started.ttft, request.ttft_ms), "{}: {started:?}", case.name);
            }
            assert_eq!((replica.figures().running, replica.figures().waiting), (0, 0), "{}", case.name);
        }
    }
}
