//! The index beside a naive twin over millions of operations on several endpoints, in an order that a seed decides.
//!
//! `PREFIXROUTE_MODEL_SEED` and `PREFIXROUTE_MODEL_OPERATIONS` change what is run; both are printed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod support;

use picker::belief::{Commit, EndpointId, Index, Memory};
use picker::chance::Draw;
use picker::hash::{BlockHash, Blocks};

/// Endpoints that come and go; more than a shard has slots for, so that there are two.
const ENDPOINTS: u64 = 70;
/// Small, so that evictions are many and the twin is quick.
const CAPACITY_MAX: u64 = 64;
const OPERATIONS: u64 = 2_000_000;
/// Operations after which everything is compared.
const LOOK_ALL_EVERY: u64 = 5_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A stream of numbers from a seed.
struct Numbers {
    seed: u64,
    turn: u64,
}

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.turn += 1;
        Draw { seed: self.seed, turn: self.turn }.number(0) % bound
    }

    /// A path through a tree that branches little near the root and ever longer stretches behind: prompts share heads.
    fn path(&mut self) -> Vec<BlockHash> {
        let length = self.below(40) as usize;
        let (mut parent, mut path) = (0xC0FF_EE00u64, Vec::with_capacity(length));
        for depth in 0..length {
            let branch = if matches!(depth, 0 | 3 | 4 | 9 | 20) { self.below(3) } else { 0 };
            parent = (parent ^ branch).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) + 1;
            path.push(BlockHash(parent));
        }
        path
    }
}

/// One endpoint's blocks, newest last; for each who added and who last used it.
#[derive(Default)]
struct Twin {
    blocks: Vec<(BlockHash, u64, u64)>,
    capacity: usize,
    evicted: u64,
}

impl Twin {
    fn commit(&mut self, path: &[BlockHash], now: u64) {
        for &hash in path.iter().take(self.capacity).rev() {
            let known = self.blocks.iter().position(|block| block.0 == hash);
            let added = known.map_or(now, |place| self.blocks.remove(place).1);
            self.blocks.push((hash, added, now));
        }
        self.shrink();
    }

    fn undo(&mut self, commit: u64) {
        self.blocks.retain(|&(_, added, used)| (added, used) != (commit, commit));
    }

    fn shrink(&mut self) {
        let over = self.blocks.len().saturating_sub(self.capacity);
        self.blocks.drain(..over);
        self.evicted += over as u64;
    }

    fn matched(&self, path: &[BlockHash]) -> u32 {
        path.iter().take_while(|&&hash| self.blocks.iter().any(|block| block.0 == hash)).count() as u32
    }
}

#[derive(Default)]
struct Pair {
    index: Index,
    twins: Vec<Option<Twin>>,
    open: Vec<(Commit, u64, usize, Vec<BlockHash>)>,
    matches: u64,
    evicted: u64,
}

impl Pair {
    fn id(place: usize) -> EndpointId {
        EndpointId(place as u32)
    }

    fn step(&mut self, numbers: &mut Numbers, now: u64) {
        let place = numbers.below(ENDPOINTS) as usize;
        let id = Self::id(place);
        match numbers.below(1_000) {
            0 => {
                self.index.join(id, numbers.below(CAPACITY_MAX + 1) as usize).unwrap();
                self.forget(place);
                let capacity = self.index.size(id).unwrap().capacity;
                self.twins[place] = Some(Twin { capacity, ..Twin::default() });
            }
            1 => {
                self.index.leave(id);
                self.forget(place);
                self.twins[place] = None;
            }
            2 => {
                self.index.clear(id);
                self.forget(place);
                if let Some(twin) = &mut self.twins[place] {
                    twin.blocks.clear();
                }
            }
            3..13 => {
                let capacity = numbers.below(CAPACITY_MAX + 1) as usize;
                self.index.resize(id, capacity).unwrap();
                if let Some(twin) = &mut self.twins[place] {
                    twin.capacity = capacity;
                    twin.shrink();
                }
            }
            13..200 if !self.open.is_empty() => {
                let which = numbers.below(self.open.len() as u64) as usize;
                let (commit, number, place, path) = self.open.swap_remove(which);
                self.index.undo(commit, &Blocks::one(path));
                if let Some(twin) = &mut self.twins[place] {
                    twin.undo(number);
                }
            }
            200..600 => {
                let path = numbers.path();
                let commit = self.index.commit(id, &Blocks::one(path.clone()), false);
                if let Some(twin) = &mut self.twins[place] {
                    twin.commit(&path, now);
                    self.open.push((commit, now, place, path));
                }
                // As requests end, their commits can no longer be undone.
                if self.open.len() > 50 {
                    self.open.swap_remove(0);
                }
            }
            _ => self.look_up(&numbers.path()),
        }
    }

    /// What was committed before the endpoint's belief went is not undone in the new one.
    fn forget(&mut self, place: usize) {
        let gone: Vec<_> = self.open.extract_if(.., |open| open.2 == place).collect();
        for (commit, _, _, path) in gone {
            self.index.undo(commit, &Blocks::one(path));
        }
    }

    fn look_up(&mut self, path: &[BlockHash]) {
        let ids = (0..self.twins.len()).map(Self::id);
        let found = self.index.look_up(&Blocks::one(path.to_vec()), ids);
        for (place, twin) in self.twins.iter().enumerate() {
            let wanted = twin.as_ref().map_or(0, |twin| twin.matched(path));
            assert_eq!(found[place], wanted, "endpoint {place}, {} blocks", path.len());
            self.matches += u64::from(wanted > 0);
        }
    }

    fn sizes(&mut self) {
        self.evicted = 0;
        for (place, twin) in self.twins.iter().enumerate() {
            let size = self.index.size(Self::id(place));
            let blocks = twin.as_ref().map(|twin| (twin.blocks.len(), twin.capacity, twin.evicted));
            assert_eq!(size.map(|size| (size.blocks, size.capacity)), blocks.map(|it| (it.0, it.1)));
            self.evicted += blocks.map_or(0, |it| it.2);
        }
        let memory = self.index.memory();
        assert!(memory.bytes <= memory.bytes_max, "{memory:?}");
    }
}

#[test]
fn index_and_twin_agree_over_millions_of_operations() {
    let seed = setting("PREFIXROUTE_MODEL_SEED", 20_261_129);
    let operations = setting("PREFIXROUTE_MODEL_OPERATIONS", OPERATIONS);
    println!("seed {seed}, {operations} operations");
    let mut numbers = Numbers { seed, turn: 0 };
    let mut pair = Pair { twins: (0..ENDPOINTS).map(|_| None).collect(), ..Pair::default() };
    for now in 1..=operations {
        pair.step(&mut numbers, now);
        if now % LOOK_ALL_EVERY == 0 {
            pair.sizes();
        }
    }
    println!("{} matches, {} blocks evicted from those that are left", pair.matches, pair.evicted);
    assert!(pair.matches > operations / 10 && pair.evicted > 0, "the paths meet");
    println!("{:?}", pair.index.memory());
    (0..pair.twins.len()).for_each(|place| pair.index.leave(Pair::id(place)));
    assert_eq!(pair.index.memory(), Memory::default(), "with the last endpoint goes the memory");
}
