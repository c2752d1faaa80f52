//! A replica's block cache, as vLLM's automatic prefix caching keeps it.
//!
//! Only full blocks are cached. A look-up walks from the first block and stops at the first that is missing,
//! and it never reaches the last token, which has to be computed for there to be an answer. Source: vLLM 0.32
//! `v1/core/kv_cache_manager.py`, `get_computed_blocks`; `tests/fixtures/SOURCES.md`.

use picker::hash::{BlockHash, BlockSize};

use super::lru::{EvictionOrder, Lru};

/// A prompt as the cache sees it: its length and the chained hashes of its full blocks, first block first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Length in tokens, the partial last block included.
    pub tokens: usize,
    /// `tokens / block size` hashes.
    pub blocks: Vec<BlockHash>,
}

/// What a cache has counted since it began, in tokens: vLLM's two `prefix_cache` counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFigures {
    /// Tokens of all prompts looked up.
    pub query_tokens: u64,
    /// Tokens of them that were cached.
    pub hit_tokens: u64,
}

/// The block cache of one replica.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Lru,
    block_size: BlockSize,
    figures: CacheFigures,
}

impl BlockCache {
    /// An empty cache of `capacity_blocks` blocks. 0 caches nothing.
    pub fn new(capacity_blocks: usize, block_size: BlockSize, eviction: EvictionOrder) -> Self {
        let blocks = Lru::new(capacity_blocks, eviction);
        Self { blocks, block_size, figures: CacheFigures::default() }
    }

    /// Looks a prompt up, then caches it. Returns its cached tokens. O(1) a block.
    ///
    /// It is filled on arrival, so the second of two equal prompts in flight hits already, as in vLLM.
    pub fn admit(&mut self, prompt: &Prompt) -> usize {
        let cached = self.cached_tokens(prompt);
        self.blocks.record(&prompt.blocks);
        self.figures.query_tokens += prompt.tokens as u64;
        self.figures.hit_tokens += cached as u64;
        cached
    }

    /// Tokens of a prompt that are cached now. Changes nothing.
    pub fn cached_tokens(&self, prompt: &Prompt) -> usize {
        let looked_up = prompt.tokens.saturating_sub(1) / self.block_size.tokens();
        let looked_up = &prompt.blocks[..looked_up.min(prompt.blocks.len())];
        self.blocks.matched(looked_up) * self.block_size.tokens()
    }

    /// The counters.
    pub fn figures(&self) -> CacheFigures {
        self.figures
    }

    /// Blocks held now.
    pub fn blocks_held(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks held at most.
    pub fn capacity_blocks(&self) -> usize {
        self.blocks.capacity()
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use picker::hash::{Tail, model_root, token_block_hashes};
    use serde::Deserialize;

    use super::*;

    const CASES: &str = include_str!("../../tests/fixtures/seed/block_cache.json");

    #[derive(Deserialize)]
    struct Fixture {
        cases: Vec<Case>,
    }
    #[derive(Deserialize)]
    struct Case {
        name: String,
        capacity_blocks: usize,
        block_size: i64,
        steps: Vec<Step>,
    }
    #[derive(Deserialize)]
    struct Step {
        tokens: Vec<u32>,
        cached_tokens: usize,
        hit_tokens: u64,
        query_tokens: u64,
        blocks_held: usize,
    }

    fn prompt(tokens: &[u32], size: BlockSize) -> Prompt {
        let blocks = token_block_hashes(model_root("m", ""), tokens, size, Tail::Drop);
        Prompt { tokens: tokens.len(), blocks }
    }

    #[test]
    fn every_step_of_the_fixture() {
        let fixture: Fixture = serde_json::from_str(CASES).unwrap();
        assert_eq!(fixture.cases.len(), 9);
        for case in fixture.cases {
            let size = BlockSize::new(case.block_size).unwrap();
            let mut cache = BlockCache::new(case.capacity_blocks, size, EvictionOrder::HeadFirst);
            for (number, step) in case.steps.iter().enumerate() {
                let shows = format!("{}, step {number}", case.name);
                assert_eq!(cache.admit(&prompt(&step.tokens, size)), step.cached_tokens, "{shows}");
                let figures = CacheFigures { query_tokens: step.query_tokens, hit_tokens: step.hit_tokens };
                assert_eq!(cache.figures(), figures, "{shows}");
                assert_eq!(cache.blocks_held(), step.blocks_held, "{shows}");
            }
        }
    }

    #[test]
    fn the_order_of_eviction_decides_what_is_left_of_a_long_prompt() {
        let size = BlockSize::new(4).unwrap();
        let long = prompt(&(0..13).collect::<Vec<_>>(), size);
        for (eviction, cached) in [(EvictionOrder::TailFirst, 8), (EvictionOrder::HeadFirst, 0)] {
            let mut cache = BlockCache::new(2, size, eviction);
            cache.admit(&long);
            assert_eq!(cache.cached_tokens(&long), cached, "{eviction:?}");
        }
    }
}
