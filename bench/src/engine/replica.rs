//! A replica: its cache, its lanes, and the figures that it exports about them.

use std::collections::HashMap;

use picker::hash::BlockSize;

use super::cache::{BlockCache, CacheFigures, Prompt};
use super::lanes::{Lanes, Seconds, Ticket, Timing};
use super::lru::EvictionOrder;

/// What a replica is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaOptions {
    /// Blocks the cache holds.
    pub cache_blocks: usize,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// What is evicted first.
    pub eviction: EvictionOrder,
    /// Requests that run at once.
    pub slots: usize,
    /// How fast they run.
    pub timing: Timing,
}

impl Default for ReplicaOptions {
    /// The replica of the published figures: 64 blocks of 16 tokens, 8 lanes, 5 ms and 1,000 tokens/s.
    fn default() -> Self {
        let timing =
            Timing { prefill_overhead: Seconds::from_millis(5.0), prefill_tokens_per_second: 1000.0 };
        let block_size = BlockSize::ENGINE;
        Self { cache_blocks: 64, block_size, eviction: EvictionOrder::TailFirst, slots: 8, timing }
    }
}

/// What became of a request on arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// Its place; give it back with [`Replica::leave`].
    pub ticket: Ticket,
    /// Whether it has a lane already.
    pub runs: bool,
    /// Prompt tokens, of all prompts.
    pub prompt_tokens: usize,
    /// Of them, cached.
    pub cached_tokens: usize,
    /// Blocks that they take, partial last ones included.
    pub blocks: usize,
    /// From getting a lane to the first token.
    pub prefill: Seconds,
}

/// What of a request the engine's cache had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Prompt tokens, of all prompts.
    pub prompt_tokens: usize,
    /// Of them, cached.
    pub cached_tokens: usize,
    /// Blocks that they take, partial last ones included.
    pub blocks: usize,
}

/// What a replica exports, as vLLM does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests in a lane.
    pub running: usize,
    /// Blocks of running requests over all blocks, 0 to 1. Cached blocks that nobody uses do not count.
    pub kv_usage: f64,
    /// The prefix cache's counters.
    pub cache: CacheFigures,
}

/// One replica of an engine.
#[derive(Debug)]
pub struct Replica {
    cache: BlockCache,
    lanes: Lanes,
    timing: Timing,
    /// Blocks that each request takes, the partial last one included.
    blocks: HashMap<Ticket, usize>,
    /// Of them, those of requests in a lane.
    running_blocks: usize,
}

impl Replica {
    /// A fresh replica with an empty cache.
    pub fn new(options: ReplicaOptions) -> Self {
        let ReplicaOptions { cache_blocks, block_size, eviction, slots, timing } = options;
        let cache = BlockCache::new(cache_blocks, block_size, eviction);
        Self { cache, lanes: Lanes::new(slots), timing, blocks: HashMap::new(), running_blocks: 0 }
    }

    /// A request arrives. Several prompts (a batch of completions) share one lane, one after another.
    pub fn arrive(&mut self, prompts: &[Prompt]) -> Admission {
        let admitted = self.admit(prompts);
        self.join(admitted)
    }

    /// Looks prompts up and caches them; who asked takes no lane yet.
    pub fn admit(&mut self, prompts: &[Prompt]) -> Admitted {
        let cached_tokens = prompts.iter().map(|prompt| self.cache.admit(prompt)).sum();
        Admitted { cached_tokens, ..self.measure(prompts) }
    }

    /// Tokens of the prompts that are cached now. Changes nothing.
    pub fn cached_tokens(&self, prompts: &[Prompt]) -> usize {
        prompts.iter().map(|prompt| self.cache.cached_tokens(prompt)).sum()
    }

    /// How long prompts are, with nothing cached. Changes nothing.
    pub fn measure(&self, prompts: &[Prompt]) -> Admitted {
        let size = self.cache.block_size().tokens();
        Admitted {
            prompt_tokens: prompts.iter().map(|prompt| prompt.tokens).sum(),
            cached_tokens: 0,
            blocks: prompts.iter().map(|prompt| prompt.tokens.div_ceil(size)).sum(),
        }
    }

    /// Takes a lane, or a place in the queue, for a request that was looked up.
    pub fn join(&mut self, admitted: Admitted) -> Admission {
        let Admitted { prompt_tokens, cached_tokens, blocks } = admitted;
        let (ticket, runs) = self.lanes.join();
        self.blocks.insert(ticket, blocks);
        self.running_blocks += if runs { blocks } else { 0 };
        let prefill = self.timing.prefill(prompt_tokens.saturating_sub(cached_tokens));
        Admission { ticket, runs, prompt_tokens, cached_tokens, blocks, prefill }
    }

    /// A name for a request whose prompt is computed elsewhere: it takes no lane.
    pub fn pass(&mut self) -> Ticket {
        self.lanes.pass()
    }

    /// A request has its answer, or its client went away. Returns who runs now in its stead.
    pub fn leave(&mut self, ticket: Ticket) -> Option<Ticket> {
        let ran = self.lanes.runs(ticket);
        let left = self.blocks.remove(&ticket).unwrap_or(0);
        self.running_blocks -= if ran { left } else { 0 };
        let next = self.lanes.leave(ticket)?;
        self.running_blocks += self.blocks.get(&next).copied().unwrap_or(0);
        Some(next)
    }

    /// Blocks that its cache holds at most.
    pub fn capacity_blocks(&self) -> usize {
        self.cache.capacity_blocks()
    }

    /// What it exports now. O(1).
    pub fn figures(&self) -> Figures {
        let used = self.running_blocks;
        Figures {
            waiting: self.lanes.waiting(),
            running: self.lanes.running(),
            kv_usage: (used as f64 / self.cache.capacity_blocks().max(1) as f64).min(1.0),
            cache: self.cache.figures(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_usage_is_what_running_requests_hold() {
        let mut replica = Replica::new(ReplicaOptions { slots: 1, ..ReplicaOptions::default() });
        let prompt = [Prompt { tokens: 221, blocks: Vec::new() }];
        let first = replica.arrive(&prompt);
        let second = replica.arrive(&prompt);
        assert_eq!(
            replica.figures().kv_usage,
            14.0 / 64.0,
            "221 tokens are 14 blocks, the waiting one has none"
        );
        assert_eq!((replica.figures().running, replica.figures().waiting), (1, 1));
        let third = replica.arrive(&prompt);
        assert_eq!(replica.leave(third.ticket), None, "who leaves the queue held nothing");
        assert_eq!(replica.leave(first.ticket), Some(second.ticket));
        assert_eq!(replica.figures().kv_usage, 14.0 / 64.0, "the second has the lane now");
        assert_eq!(replica.leave(second.ticket), None);
        assert_eq!(replica.figures().kv_usage, 0.0);
        assert_eq!(replica.figures().cache.query_tokens, 663);
    }
}
