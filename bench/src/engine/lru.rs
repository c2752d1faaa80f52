//! A bounded set of blocks in the order in which they were last used: the block pool of an engine.
//!
//! Recording a prompt refreshes the blocks it knows and adds the others; beyond the capacity the least recently used go.
//! [`EvictionOrder`] says which end of a prompt counts as used first, and with it which end an eviction takes. The
//! router's own belief is built otherwise (`picker::belief`); this one is a node per block, plain and easy to trust.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use picker::hash::BlockHash;

/// Which end of a prefix is evicted first, of blocks that were last used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EvictionOrder {
    /// The end: what is left of a prefix is still a prefix. vLLM's order.
    #[default]
    TailFirst,
    /// The beginning: blocks are touched in order, and losing block 0 loses the prefix.
    HeadFirst,
}

/// Blocks by recency, at most `capacity` of them. All operations are O(1) a block.
#[derive(Debug)]
pub(super) struct Lru {
    slots: HashMap<BlockHash, u32, Keyed>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Most and least recently used; `NONE` when empty.
    newest: u32,
    oldest: u32,
    capacity: usize,
    order: EvictionOrder,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    hash: BlockHash,
    newer: u32,
    older: u32,
}

const NONE: u32 = u32::MAX;

impl Lru {
    /// An empty list of at most `capacity` blocks. Grows with use; nothing is allocated yet.
    pub(super) fn new(capacity: usize, order: EvictionOrder) -> Self {
        let (slots, nodes, free) = (HashMap::default(), Vec::new(), Vec::new());
        Self { slots, nodes, free, newest: NONE, oldest: NONE, capacity, order }
    }

    /// Blocks held.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Blocks that may be held.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether a block is held. Does not count as use.
    pub(super) fn holds(&self, hash: BlockHash) -> bool {
        self.slots.contains_key(&hash)
    }

    /// Length of the leading run of `hashes` that is held. Does not count as use.
    ///
    /// With tail-first eviction holding block `i` implies holding all before it, so the end of the run is found by
    /// galloping: O(log run).
    pub(super) fn matched(&self, hashes: &[BlockHash]) -> usize {
        match self.order {
            EvictionOrder::TailFirst => gallop(hashes, |&hash| self.holds(hash)),
            EvictionOrder::HeadFirst => hashes.iter().take_while(|&&hash| self.holds(hash)).count(),
        }
    }

    /// Touches or adds each of a prompt's blocks, then evicts beyond the capacity. Of a prompt longer than the
    /// capacity, tail-first keeps the head, head-first keeps the tail.
    pub(super) fn record(&mut self, hashes: &[BlockHash]) {
        match self.order {
            EvictionOrder::TailFirst => {
                hashes[..hashes.len().min(self.capacity)].iter().rev().for_each(|&hash| self.touch(hash));
            }
            EvictionOrder::HeadFirst => hashes.iter().for_each(|&hash| self.touch(hash)),
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.slots.len() > self.capacity {
            self.remove(self.oldest);
        }
    }

    fn touch(&mut self, hash: BlockHash) {
        let slot = match self.slots.get(&hash) {
            Some(&slot) => {
                self.unlink(slot);
                slot
            }
            None => self.add(hash),
        };
        self.link_newest(slot);
    }

    fn add(&mut self, hash: BlockHash) -> u32 {
        let node = Node { hash, newer: NONE, older: NONE };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.slots.insert(hash, slot);
        slot
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        self.slots.remove(&self.nodes[slot as usize].hash);
        self.free.push(slot);
    }

    fn unlink(&mut self, slot: u32) {
        let Node { newer, older, .. } = self.nodes[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        (node.newer, node.older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.nodes[newest as usize].newer = slot,
        }
        self.newest = slot;
    }
}

/// Length of the run of leading `true` of a predicate that never turns true again: doubles, then bisects.
fn gallop(hashes: &[BlockHash], mut held: impl FnMut(&BlockHash) -> bool) -> usize {
    let mut probe = 1;
    while probe <= hashes.len() && held(&hashes[probe - 1]) {
        probe *= 2;
    }
    let known = probe / 2;
    let unknown = &hashes[known..hashes.len().min(probe.saturating_sub(1))];
    known + unknown.partition_point(held)
}

/// Places block hashes in the map under a key of its own: block hashes are unkeyed, so a client could otherwise search for
/// prompts whose blocks all fall into one place.
#[derive(Clone, Debug)]
struct Keyed(u64);

impl Default for Keyed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Keyed {
    type Hasher = Placement;

    fn build_hasher(&self) -> Placement {
        Placement { key: self.0, place: 0 }
    }
}

/// One folded multiplication: the hash is a good one already.
struct Placement {
    key: u64,
    place: u64,
}

impl Hasher for Placement {
    fn finish(&self) -> u64 {
        self.place
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.place ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(value ^ self.key) * 0x9E37_79B9_7F4A_7C15;
        self.place = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> Vec<BlockHash> {
        range.map(BlockHash).collect()
    }

    #[test]
    fn eviction_takes_the_tail_of_the_oldest_prompt() {
        let mut lru = Lru::new(4, EvictionOrder::TailFirst);
        lru.record(&hashes(0..3));
        lru.record(&hashes(10..12));
        assert_eq!(lru.matched(&hashes(0..3)), 2);
        assert_eq!(lru.matched(&hashes(10..12)), 2);
    }

    /// D10: a prompt longer than the capacity keeps its head, and one unrelated block costs one block.
    #[test]
    fn the_head_of_a_prefix_outlives_its_tail() {
        let mut lru = Lru::new(64, EvictionOrder::TailFirst);
        lru.record(&hashes(0..64));
        lru.record(&hashes(100..101));
        assert_eq!(lru.matched(&hashes(0..64)), 63);
        lru.record(&hashes(200..400));
        assert_eq!(lru.matched(&hashes(200..400)), 64);
    }

    #[test]
    fn no_capacity_holds_nothing() {
        let mut lru = Lru::new(0, EvictionOrder::TailFirst);
        lru.record(&hashes(0..3));
        assert_eq!(lru.len(), 0);
    }

    /// A tree of chains: block hashes of a prompt are determined by the path, as chained hashes are.
    fn chain(path: &[u8]) -> Vec<BlockHash> {
        let mut parent = 1u64;
        let link = |&step: &u8| {
            parent = parent * 5 + u64::from(step) + 1;
            BlockHash(parent)
        };
        path.iter().map(link).collect()
    }

    /// Behaviours 13 to 17 and 80, on vectors from an independent model that evicts the root first.
    #[test]
    fn vectors_of_the_first_seed() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/fixtures/seed/index.json")).unwrap();
        let listed = |hashes: &serde_json::Value| -> Vec<BlockHash> {
            hashes.as_array().unwrap().iter().map(|hash| BlockHash(hash.as_u64().unwrap())).collect()
        };
        for case in vectors["cases"].as_array().unwrap() {
            let mut known = HashMap::new();
            for step in case["ops"].as_array().unwrap() {
                let capacity = case["capacity"].as_u64().unwrap() as usize;
                let lru = known
                    .entry(step["endpoint"].as_str().unwrap())
                    .or_insert_with(|| Lru::new(capacity, EvictionOrder::HeadFirst));
                match step.get("record") {
                    Some(hashes) => lru.record(&listed(hashes)),
                    None => drop(lru.matched(&listed(&step["match_only"]))),
                }
            }
            for wanted in case["match"].as_array().unwrap() {
                let lru = known.get(wanted["endpoint"].as_str().unwrap());
                let matched = lru.map_or(0, |lru| lru.matched(&listed(&wanted["hashes"])));
                assert_eq!(matched as u64, wanted["want"].as_u64().unwrap(), "{}: {wanted}", case["name"]);
            }
        }
    }

    proptest! {
        /// Against a naive twin: a vector of hashes, newest last.
        #[test]
        fn behaves_like_a_naive_list(
            paths in prop::collection::vec(prop::collection::vec(0u8..3, 0..9), 0..60),
            queries in prop::collection::vec(prop::collection::vec(0u8..3, 0..9), 8),
        ) {
            let (mut lru, mut naive) = (Lru::new(12, EvictionOrder::TailFirst), Vec::new());
            for prompt in paths.iter().map(|path| chain(path)) {
                lru.record(&prompt);
                naive.retain(|hash| !prompt.contains(hash));
                naive.extend(prompt.iter().rev());
                naive.drain(..naive.len().saturating_sub(12));
                prop_assert_eq!(lru.len(), naive.len());
                for query in &queries {
                    let query = chain(query);
                    let run = query.iter().take_while(|hash| naive.contains(hash)).count();
                    prop_assert_eq!(lru.matched(&query), run);
                    prop_assert_eq!(query.iter().filter(|&&hash| lru.holds(hash)).count(), run, "no holes");
                }
            }
        }
    }
}
