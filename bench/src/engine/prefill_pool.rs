//! Replicas that only compute prompts, and the links that carry what they computed to those that answer.
//!
//! Nobody leaves their queue, so when a prompt will be done is known the moment it comes: no clock is needed.

use super::lanes::{Seconds, Timing};

/// A network between replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Gigabits (10^9) in a second.
    pub gigabits_per_second: f64,
    /// Before the first byte arrives.
    pub latency: Seconds,
}

impl Link {
    /// The latency that the published table was made with.
    pub const LATENCY: Seconds = Seconds(0.0005);

    /// With that latency.
    pub fn of(gigabits_per_second: f64) -> Self {
        Self { gigabits_per_second, latency: Self::LATENCY }
    }

    /// Time to move so many bytes, with nothing else on the way.
    pub fn transfer(self, bytes: f64) -> Seconds {
        self.latency + self.wire(bytes)
    }

    /// Of that, how long they keep the link.
    pub fn wire(self, bytes: f64) -> Seconds {
        Seconds(bytes * 8.0 / (self.gigabits_per_second * 1e9))
    }
}

/// Prefill replicas with one queue before all of their lanes, and a link behind each replica.
#[derive(Clone, Debug)]
pub struct PrefillPool {
    replicas: Vec<PrefillReplica>,
    timing: Timing,
    link: Link,
}

/// When each lane of a replica is free, and its link.
#[derive(Clone, Debug)]
struct PrefillReplica {
    lanes: Vec<Seconds>,
    link: Seconds,
}

/// A prompt that goes through the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RemotePrefill {
    /// For a lane.
    pub wait: Seconds,
    /// In it.
    pub prefill: Seconds,
    /// On the way, the wait for the link included.
    pub transfer: Seconds,
}

impl RemotePrefill {
    /// From when the prompt came until its KV cache has arrived.
    pub fn whole(&self) -> Seconds {
        self.wait + self.prefill + self.transfer
    }
}

impl PrefillPool {
    /// So many replicas of so many lanes, at least one of each, all free.
    pub fn new(replicas: usize, lanes: usize, timing: Timing, link: Link) -> Self {
        let free = PrefillReplica { lanes: vec![Seconds(0.0); lanes.max(1)], link: Seconds(0.0) };
        Self { replicas: vec![free; replicas.max(1)], timing, link }
    }

    /// Gives a prompt that comes at `now` to the lane that is free first. O(lanes). Prompts come in the order of time.
    ///
    /// What is computed leaves a replica over its link in the order in which its prompts began: a link that is too slow for what
    /// its lanes make is seen to be, by a wait that grows.
    pub fn compute(&mut self, now: Seconds, uncached_tokens: usize, bytes: f64) -> RemotePrefill {
        let prefill = self.timing.prefill(uncached_tokens);
        let (wire, latency) = (self.link.wire(bytes), self.link.latency);
        let Some((lane, link)) = self.soonest() else {
            return RemotePrefill { wait: Seconds(0.0), prefill, transfer: latency + wire };
        };
        let begin = Seconds(lane.0.max(now.0));
        let done = begin + prefill;
        let sent = Seconds(link.0.max(done.0)) + wire;
        (*lane, *link) = (done, sent);
        RemotePrefill { wait: begin - now, prefill, transfer: sent - done + latency }
    }

    /// The lane that is free first, and its replica's link.
    fn soonest(&mut self) -> Option<(&mut Seconds, &mut Seconds)> {
        let firsts = self.replicas.iter_mut().filter_map(|PrefillReplica { lanes, link }| {
            lanes.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0)).map(|lane| (lane, link))
        });
        firsts.min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 1.0 };

    /// Behaviours 52 and 56: the published table for 4,000 tokens at 12,000 a second.
    #[test]
    fn a_remote_prompt_takes_its_computing_and_its_way() {
        for (gigabits_per_second, transfer_ms, ttft_ms) in
            [(10.0, 419.9, 753.3), (25.0, 168.3, 501.6), (100.0, 42.4, 375.8), (400.0, 11.0, 344.3)]
        {
            let link = Link::of(gigabits_per_second);
            let bytes = 4000.0 * 131_072.0;
            assert_eq!(format!("{:.1}", link.transfer(bytes).millis()), format!("{transfer_ms:.1}"));
            let timing = Timing { prefill_tokens_per_second: 12_000.0, ..FREE };
            let remote = PrefillPool::new(1, 1, timing, link).compute(Seconds(3.0), 4000, bytes);
            assert_eq!(format!("{:.1}", remote.whole().millis()), format!("{ttft_ms:.1}"));
        }
    }

    #[test]
    fn the_lane_that_is_free_first_takes_the_next() {
        for (replicas, lanes) in [(2, 1), (1, 2)] {
            let mut pool = PrefillPool::new(replicas, lanes, FREE, Link::of(1.0));
            let waits = [(0.0, 4), (0.0, 1), (0.5, 2), (0.5, 1), (9.0, 1)]
                .map(|(at, tokens)| pool.compute(Seconds(at), tokens, 0.0).wait.0);
            assert_eq!(waits, [0.0, 0.0, 0.5, 2.5, 0.0], "{replicas} of {lanes}");
        }
    }

    /// A second of computing makes two seconds on the wire.
    #[test]
    fn a_link_that_does_not_keep_up_is_waited_for() {
        let link = Link { gigabits_per_second: 4.0, latency: Seconds(0.25) };
        let transfers = |replicas| {
            let mut pool = PrefillPool::new(replicas, 1, FREE, link);
            [0.0, 1.0, 2.0, 3.0].map(|at| pool.compute(Seconds(at), 1, 1e9).transfer.0)
        };
        assert_eq!(transfers(1), [2.25, 3.25, 4.25, 5.25]);
        assert_eq!(transfers(2), [2.25; 4], "each replica has a link of its own");
    }
}
