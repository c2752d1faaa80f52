//! The index beside a naive twin under any interleaving of commits, undos, resizes and restarts; and under threads.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use picker::belief::{Commit, EndpointId, Index};
use picker::chance::Draw;
use picker::hash::{BlockHash, Blocks};
use proptest::collection::vec;
use proptest::prelude::*;
use support::index;

const CAPACITY: usize = 12;

/// Blocks of a path through a tree with three branches at each node: named by the path, as chained hashes are.
fn chain(path: &[u8]) -> Vec<BlockHash> {
    let mut parent = 1;
    let link = |&step: &u8| {
        parent = parent * 4 + u64::from(step) + 1;
        BlockHash(parent)
    };
    path.iter().map(link).collect()
}

fn one(path: &[u8]) -> Blocks {
    Blocks::one(chain(path))
}

#[derive(Clone, Debug)]
enum Step {
    Commit {
        path: Vec<u8>,
        cold: bool,
    },
    /// Of the commits that are not undone yet, this one, be it the oldest or the newest.
    Undo(prop::sample::Index),
    Resize(usize),
    Clear,
    Join,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (vec(0u8..3, 0..9), any::<bool>()).prop_map(|(path, cold)| Step::Commit { path, cold }),
        5 => any::<prop::sample::Index>().prop_map(Step::Undo),
        2 => (0usize..20).prop_map(Step::Resize),
        1 => Just(Step::Clear),
        1 => Just(Step::Join),
    ];
    vec(step, 0..80)
}

/// The same rules, written for the eye: the newest block last, and for each who added and who last used it.
#[derive(Debug)]
struct Twin {
    blocks: Vec<Block>,
    capacity: usize,
    commits: usize,
}

#[derive(Clone, Debug)]
struct Block {
    hash: BlockHash,
    added: usize,
    used: usize,
}

impl Twin {
    fn commit(&mut self, path: &[u8]) -> usize {
        self.commits += 1;
        let now = self.commits;
        for hash in chain(path).into_iter().take(self.capacity).rev() {
            let known = self.blocks.iter().position(|block| block.hash == hash);
            let added = known.map_or(now, |place| self.blocks.remove(place).added);
            self.blocks.push(Block { hash, added, used: now });
        }
        self.shrink();
        now
    }

    fn undo(&mut self, commit: usize) {
        self.blocks.retain(|block| (block.added, block.used) != (commit, commit));
    }

    fn shrink(&mut self) {
        self.blocks.drain(..self.blocks.len().saturating_sub(self.capacity));
    }

    fn matched(&self, path: &[u8]) -> u32 {
        let held = |hash: &BlockHash| self.blocks.iter().any(|block| block.hash == *hash);
        chain(path).iter().take_while(|hash| held(hash)).count() as u32
    }
}

/// Both at once.
struct Pair {
    index: Index,
    twin: Twin,
    open: Vec<(Commit, usize, Vec<u8>)>,
}

const ID: EndpointId = EndpointId(0);

impl Pair {
    fn new() -> Self {
        let twin = Twin { blocks: Vec::new(), capacity: CAPACITY, commits: 0 };
        Self { index: index(&[CAPACITY]), twin, open: Vec::new() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Commit { path, cold } => {
                let commit = self.index.commit(ID, &one(&path), cold);
                self.open.push((commit, self.twin.commit(&path), path));
            }
            Step::Undo(which) => {
                if !self.open.is_empty() {
                    let (commit, number, path) = self.open.remove(which.index(self.open.len()));
                    self.index.undo(commit, &one(&path));
                    self.twin.undo(number);
                }
            }
            Step::Resize(capacity) => {
                self.index.resize(ID, capacity).unwrap();
                self.twin.capacity = capacity;
                self.twin.shrink();
            }
            Step::Clear => {
                self.index.clear(ID);
                self.twin.blocks.clear();
            }
            Step::Join => {
                self.index.join(ID, CAPACITY).unwrap();
                self.twin.blocks.clear();
                self.twin.capacity = CAPACITY;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn index_and_twin_never_differ(steps in steps(), queries in vec(vec(0u8..3, 0..9), 8)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
            prop_assert_eq!(pair.index.size(ID).unwrap().blocks, pair.twin.blocks.len());
            for query in &queries {
                prop_assert_eq!(pair.index.matched(ID, &one(query)), pair.twin.matched(query));
            }
        }
    }
}

const THREADS: u64 = 4;
const ROUNDS: u64 = 3_000;
const SHARED: [EndpointId; 2] = [EndpointId(0), EndpointId(1)];

/// A path of a thread's own making, the same in every run.
fn path(thread: u64, round: u64) -> Vec<u8> {
    let draw = Draw { seed: thread, turn: round };
    (0..1 + draw.number(0) % 12).map(|step| (draw.number(1 + step as usize) % 3) as u8).collect()
}

/// One thread's share: commits, matches, undoes a fifth, and now and then forgets an endpoint.
fn work(index: &Index, thread: u64) {
    for round in 0..ROUNDS {
        let blocks = one(&path(thread, round));
        let id = SHARED[(round % 2) as usize];
        let commit = index.commit(id, &blocks, round % 3 == 0);
        assert!(index.matched(id, &blocks) as usize <= blocks.total());
        match round % 20 {
            0..4 => index.undo(commit, &blocks),
            4 => drop(index.resize(id, (20 + round % 200) as usize)),
            5 if round % 500 == 5 => index.join(id, 64).unwrap(),
            6 if round % 500 == 6 => index.clear(id),
            _ => {}
        }
    }
}

/// Whatever the threads did in whatever order: bounds hold and no block is held without all before it.
#[test]
fn threads_leave_no_holes_and_keep_the_bounds() {
    let index = index(&[64, 64]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                SHARED.iter().for_each(|&id| bounded(&index, id));
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let index = &index;
                    move || work(index, thread)
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(watch.join().is_ok() && ended.iter().all(Result::is_ok));
    });
    SHARED.iter().for_each(|&id| bounded(&index, id));
    for (thread, round) in (0..THREADS).flat_map(|thread| (0..ROUNDS).map(move |round| (thread, round))) {
        SHARED.iter().for_each(|&id| no_holes(&index, id, &chain(&path(thread, round))));
    }
}

fn bounded(index: &Index, id: EndpointId) {
    if let Some(size) = index.size(id) {
        assert!(size.blocks <= size.capacity, "{size:?}");
    }
}

/// Each part of a prompt, asked for on its own, is held just as far as the whole is.
fn no_holes(index: &Index, id: EndpointId, hashes: &[BlockHash]) {
    let run = index.matched(id, &Blocks::one(hashes.to_vec())) as usize;
    for asked in 0..hashes.len() {
        let held = index.matched(id, &Blocks::one(hashes[..asked].to_vec())) as usize;
        assert_eq!(held, asked.min(run), "{asked} blocks of a run of {run}");
    }
}

/// With room for all, a thread sees what it committed itself, whatever the others do.
#[test]
fn what_a_thread_commits_it_sees() {
    let index = index(&[100_000]);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let index = &index;
            scope.spawn(move || {
                for round in 0..500 {
                    let own = Blocks::one(
                        (0..20).map(|block| BlockHash(((1 + thread) << 40) | (round << 8) | block)).collect(),
                    );
                    index.commit(ID, &own, true);
                    assert_eq!(index.matched(ID, &own), 20);
                }
            });
        }
    });
    let size = index.size(ID).unwrap();
    assert_eq!((size.blocks, size.evicted), (4 * 500 * 20, 0));
    assert_eq!(index.last_cold(ID), 4 * 500, "each cold request has a number of its own");
}

/// The same while others join the shard: each moves it to a larger space and makes the fleet's list longer.
#[test]
fn what_a_thread_commits_it_sees_while_others_join() {
    let index = index(&[10_000]);
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| {
            (1..64).for_each(|place| index.join(EndpointId(1_000 * place), 10_000).unwrap());
        });
        let mut round = 0;
        while !joins.is_finished() {
            round += 1;
            let own = Blocks::one((0..8).map(|block| BlockHash(round << 8 | block)).collect());
            index.commit(ID, &own, false);
            assert_eq!(index.matched(ID, &own), 8, "round {round}");
        }
        joins.join().unwrap();
    });
}
