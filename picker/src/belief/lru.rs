//! A bounded set of blocks in the order in which they were last used.
//!
//! One list serves the router's belief and, in the fake engine, the engine's own cache. Recording a prompt refreshes
//! the blocks it knows and adds the others; beyond the capacity the least recently used go. [`Order`] says which end
//! of a prompt counts as used first, and with it which end an eviction takes.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::hash::BlockHash;

/// Which end of a prompt is evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The last block is touched first and the root last, so eviction takes the tail and whoever holds a block holds
    /// all before it. What vLLM does, and the default.
    #[default]
    TailFirst,
    /// The root is touched first and evicted first, as the first seed's simulator has it. Leaves holes.
    HeadFirst,
}

/// A recording, for as long as it may have to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Blocks touched by this recording and by none since carry this stamp.
    stamp: u64,
}

/// Blocks by recency, at most `capacity` of them. All operations are O(1) a block.
#[derive(Debug)]
pub struct Lru {
    slots: HashMap<BlockHash, u32, Keyed>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Most and least recently used; `NONE` when empty.
    newest: u32,
    oldest: u32,
    capacity: usize,
    order: Order,
    stamp: u64,
    evicted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    hash: BlockHash,
    newer: u32,
    older: u32,
    /// Stamp of the recording that added the block, and of the last that touched it.
    added: u64,
    touched: u64,
}

const NONE: u32 = u32::MAX;

/// Bytes that a block costs: its node, and its map entry at the map's lowest load (7/16 after it grew).
pub const BYTES_PER_BLOCK: usize = size_of::<Node>() + (size_of::<(BlockHash, u32)>() + 1) * 16 / 7;

impl Lru {
    /// An empty list of at most `capacity` blocks. Grows with use; nothing is allocated yet.
    pub fn new(capacity: usize, order: Order) -> Self {
        let (slots, nodes, free) = (HashMap::default(), Vec::new(), Vec::new());
        Self { slots, nodes, free, newest: NONE, oldest: NONE, capacity, order, stamp: 0, evicted: 0 }
    }

    /// Blocks held.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no block is held.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Blocks that may be held.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks that went for want of room, ever.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Whether a block is held. Does not count as use.
    pub fn holds(&self, hash: BlockHash) -> bool {
        self.slots.contains_key(&hash)
    }

    /// Length of the leading run of `hashes` that is held. Does not count as use.
    ///
    /// With tail-first eviction holding block `i` implies holding all before it, so the end of the run is found by
    /// galloping: O(log run).
    pub fn matched(&self, hashes: &[BlockHash]) -> usize {
        match self.order {
            Order::TailFirst => gallop(hashes, |&hash| self.holds(hash)),
            Order::HeadFirst => hashes.iter().take_while(|&&hash| self.holds(hash)).count(),
        }
    }

    /// Touches or adds each of a prompt's blocks, then evicts beyond the capacity. Of a prompt longer than the
    /// capacity, tail-first keeps the head, head-first keeps the tail.
    pub fn record(&mut self, hashes: &[BlockHash]) -> Recording {
        self.record_all([hashes])
    }

    /// Records the prompts of one request. They are one recording: prompts that share blocks are undone together.
    pub fn record_all<'a>(&mut self, prompts: impl IntoIterator<Item = &'a [BlockHash]>) -> Recording {
        self.stamp += 1;
        prompts.into_iter().for_each(|hashes| self.record_prompt(hashes));
        Recording { stamp: self.stamp }
    }

    /// Takes back what `recording` added of `hashes`, less what another has used since. What it evicted stays gone.
    pub fn undo(&mut self, recording: Recording, hashes: &[BlockHash]) {
        for &hash in hashes {
            if let Some(&slot) = self.slots.get(&hash) {
                let node = self.nodes[slot as usize];
                if node.added == recording.stamp && node.touched == recording.stamp {
                    self.remove(slot);
                }
            }
        }
    }

    /// Changes the capacity; evicts what no longer fits.
    pub fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.shrink();
    }

    /// Forgets everything and gives the memory back.
    pub fn clear(&mut self) {
        let (capacity, order, stamp, evicted) = (self.capacity, self.order, self.stamp, self.evicted);
        *self = Self { stamp, evicted, ..Self::new(capacity, order) };
    }

    fn record_prompt(&mut self, hashes: &[BlockHash]) {
        match self.order {
            Order::TailFirst => {
                hashes[..hashes.len().min(self.capacity)].iter().rev().for_each(|&hash| self.touch(hash));
            }
            Order::HeadFirst => hashes.iter().for_each(|&hash| self.touch(hash)),
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.slots.len() > self.capacity {
            self.remove(self.oldest);
            self.evicted += 1;
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
        let node = Node { hash, newer: NONE, older: NONE, added: self.stamp, touched: self.stamp };
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
        let stamp = self.stamp;
        let node = &mut self.nodes[slot as usize];
        (node.newer, node.older, node.touched) = (NONE, self.newest, stamp);
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
    use proptest::prelude::*;

    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> Vec<BlockHash> {
        range.map(BlockHash).collect()
    }

    #[test]
    fn eviction_takes_the_tail_of_the_oldest_prompt() {
        let mut lru = Lru::new(4, Order::TailFirst);
        lru.record(&hashes(0..3));
        lru.record(&hashes(10..12));
        assert_eq!(lru.matched(&hashes(0..3)), 2);
        assert_eq!(lru.matched(&hashes(10..12)), 2);
        assert_eq!(lru.evicted(), 1);
    }

    /// D10: a prompt longer than the capacity keeps its head, and one unrelated block costs one block.
    #[test]
    fn the_head_of_a_prefix_outlives_its_tail() {
        let mut lru = Lru::new(64, Order::TailFirst);
        lru.record(&hashes(0..64));
        lru.record(&hashes(100..101));
        assert_eq!(lru.matched(&hashes(0..64)), 63);
        lru.record(&hashes(200..400));
        assert_eq!(lru.matched(&hashes(200..400)), 64);
    }

    #[test]
    fn undo_leaves_what_others_use() {
        let mut lru = Lru::new(64, Order::TailFirst);
        let first = lru.record(&hashes(0..4));
        lru.record(&hashes(0..2));
        lru.undo(first, &hashes(0..4));
        assert_eq!(lru.matched(&hashes(0..4)), 2);
        let known = lru.record(&hashes(0..2));
        lru.undo(known, &hashes(0..2));
        assert_eq!(lru.matched(&hashes(0..2)), 2, "a recording that added nothing takes nothing back");
    }

    #[test]
    fn no_capacity_holds_nothing() {
        let mut lru = Lru::new(0, Order::TailFirst);
        let recording = lru.record(&hashes(0..3));
        lru.undo(recording, &hashes(0..3));
        assert!(lru.is_empty());
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

    #[derive(Clone, Debug)]
    enum Step {
        Record(Vec<u8>),
        UndoLast,
        Resize(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => prop::collection::vec(0u8..3, 0..9).prop_map(Step::Record),
            1 => Just(Step::UndoLast),
            1 => (0usize..20).prop_map(Step::Resize),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        /// Against a naive twin: a vector of hashes, newest last.
        #[test]
        fn behaves_like_a_naive_list(steps in steps(), queries in prop::collection::vec(prop::collection::vec(0u8..3, 0..9), 8)) {
            let mut lru = Lru::new(12, Order::TailFirst);
            let (mut naive, mut capacity): (Vec<BlockHash>, usize) = (Vec::new(), 12);
            let mut last: Option<(Recording, Vec<BlockHash>, Vec<BlockHash>)> = None;
            for step in steps {
                match step {
                    Step::Record(path) => {
                        let prompt = chain(&path);
                        let kept = &prompt[..prompt.len().min(capacity)];
                        let added = kept.iter().copied().filter(|hash| !naive.contains(hash)).collect();
                        naive.retain(|hash| !kept.contains(hash));
                        naive.extend(kept.iter().rev());
                        last = Some((lru.record(&prompt), prompt, added));
                    }
                    Step::UndoLast => if let Some((recording, prompt, added)) = last.take() {
                        lru.undo(recording, &prompt);
                        naive.retain(|hash| !added.contains(hash));
                    },
                    Step::Resize(new) => { capacity = new; lru.resize(new); }
                }
                naive.drain(..naive.len().saturating_sub(capacity));
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
