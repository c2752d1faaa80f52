//! Replicas that only compute prompts, and the link that carries what they computed to those that answer.
//!
//! Nobody leaves their queue, so when a prompt will be done is known the moment it comes: no clock is needed.

use super::lanes::{Seconds, Timing};

/// What the KV cache of one token takes: Llama 3.1 8B, 2 x 32 layers x 8 heads x 128 values x 2 bytes.
pub const KV_BYTES_PER_TOKEN: f64 = 131_072.0;

/// A network between replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Gigabits (10^9) in a second.
    pub gigabits_per_second: f64,
}

impl Link {
    /// Before the first byte arrives.
    pub const LATENCY: Seconds = Seconds(0.0005);

    /// Time to move the KV cache of so many tokens.
    pub fn transfer(self, tokens: usize) -> Seconds {
        let bits = tokens as f64 * KV_BYTES_PER_TOKEN * 8.0;
        Self::LATENCY + Seconds(bits / (self.gigabits_per_second * 1e9))
    }
}

/// The lanes of all prefill replicas, with one queue before them.
#[derive(Clone, Debug)]
pub struct PrefillPool {
    /// When each lane is free.
    free_at: Vec<Seconds>,
    timing: Timing,
}

/// A prompt that goes through the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RemotePrefill {
    /// For a lane.
    pub wait: Seconds,
    /// In it.
    pub prefill: Seconds,
}

impl PrefillPool {
    /// So many lanes, at least one, all free.
    pub fn new(lanes: usize, timing: Timing) -> Self {
        Self { free_at: vec![Seconds(0.0); lanes.max(1)], timing }
    }

    /// Gives a prompt that comes at `now` to the lane that is free first. O(lanes). Prompts come in the order of time.
    pub fn compute(&mut self, now: Seconds, uncached_tokens: usize) -> RemotePrefill {
        let prefill = self.timing.prefill(uncached_tokens);
        let soonest = self.free_at.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0));
        let wait = soonest.map_or(Seconds(0.0), |free_at| {
            let begin = Seconds(free_at.0.max(now.0));
            *free_at = begin + prefill;
            begin - now
        });
        RemotePrefill { wait, prefill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Behaviours 52 and 56: the published table for 4,000 tokens at 12,000 a second.
    #[test]
    fn a_remote_prompt_takes_its_computing_and_its_way() {
        for (gigabits_per_second, transfer_ms, ttft_ms) in
            [(10.0, 419.9, 753.3), (25.0, 168.3, 501.6), (100.0, 42.4, 375.8), (400.0, 11.0, 344.3)]
        {
            let transfer = Link { gigabits_per_second }.transfer(4000);
            assert_eq!(format!("{:.1}", transfer.millis()), format!("{transfer_ms:.1}"));
            let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 12_000.0 };
            let RemotePrefill { wait, prefill } = PrefillPool::new(1, timing).compute(Seconds(3.0), 4000);
            let ttft = wait + prefill + transfer;
            assert_eq!(format!("{:.1}", ttft.millis()), format!("{ttft_ms:.1}"));
        }
    }

    #[test]
    fn the_lane_that_is_free_first_takes_the_next() {
        let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 1.0 };
        let mut pool = PrefillPool::new(2, timing);
        let waits = [(0.0, 4), (0.0, 1), (0.5, 2), (0.5, 1), (9.0, 1)]
            .map(|(at, tokens)| pool.compute(Seconds(at), tokens).wait.0);
        assert_eq!(waits, [0.0, 0.0, 0.5, 2.5, 0.0]);
    }
}
