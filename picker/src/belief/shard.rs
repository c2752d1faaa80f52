//! One shard: the belief about up to `SLOTS` endpoints, with one writer at a time.

use std::sync::Arc;

use super::SLOTS;
use super::order::{List, STRETCH_BYTES, Stretches};
use super::space::{CUT_MAX, Lines, Room, Space};
use super::turn::{Path, Turn};
use crate::hash::BlockHash;

/// Blocks of capacity to a stretch: what makes a block cost 24 bytes at most. An endpoint that is sent ever so many prompts
/// of few new blocks each runs out of stretches before it runs out of blocks, and then forgets its oldest prompt.
const BLOCKS_PER_STRETCH: usize = 12;

/// Stretches that an endpoint may have besides: a fixed base of a third of a megabyte, touched as it is used.
const STRETCHES_BASE: usize = 2_048;

/// Stretches let go at a time when an endpoint's belief is dropped, for the sake of readers that wait.
const DROP_AT_ONCE: usize = 64;

/// What one endpoint may hold, and holds.
#[derive(Debug)]
pub(super) struct Holding {
    /// Names what is believed since the endpoint joined or was cleared; never the same twice.
    pub(super) belief: u64,
    pub(super) capacity: usize,
    pub(super) stretches_max: usize,
    pub(super) blocks: usize,
    pub(super) evicted: u64,
    pub(super) list: List,
    /// Number of the last commit. Wraps; it is only compared with commits that may still be undone.
    pub(super) commit: u32,
}

impl Holding {
    fn new(belief: u64, capacity: usize) -> Self {
        let capacity = capacity.min(CUT_MAX);
        let stretches_max = capacity / BLOCKS_PER_STRETCH + STRETCHES_BASE;
        Self { belief, capacity, stretches_max, blocks: 0, evicted: 0, list: List::EMPTY, commit: 0 }
    }
}

/// What the lock guards: everything but what readers look at.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) space: Arc<Space>,
    lines: Lines,
    stretches: Stretches,
    holdings: [Option<Holding>; SLOTS],
    /// Scratch.
    path: Path,
}

impl Writer {
    pub(super) fn new(space: Arc<Space>) -> Self {
        let holdings = std::array::from_fn(|_| None);
        let lines = Lines::new(space.room());
        Self { space, lines, stretches: Stretches::default(), holdings, path: Vec::new() }
    }

    /// The first slot without an endpoint.
    pub(super) fn vacant(&self) -> Option<usize> {
        self.holdings.iter().position(Option::is_none)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holdings.iter().all(Option::is_none)
    }

    /// What a slot holds, if `belief` is still what is believed of it.
    pub(super) fn holding(&mut self, slot: usize, belief: u64) -> Option<&mut Holding> {
        self.holdings[slot].as_mut().filter(|holding| holding.belief == belief)
    }

    /// Gives a slot a belief and a capacity, and the space the room for it; a vacant slot is taken, holding nothing.
    /// `None`: the system has no such memory, and nothing has changed.
    pub(super) fn provide(&mut self, slot: usize, belief: u64, capacity: usize) -> Option<()> {
        let new = Holding::new(belief, capacity);
        let others = self.holdings.iter().enumerate().filter(|&(other, _)| other != slot);
        let all = others.filter_map(|(_, holding)| holding.as_ref()).chain([&new]);
        let (blocks, stretches) = all.fold((0, 0), |sum, it| (sum.0 + it.capacity, sum.1 + it.stretches_max));
        let room = Room::of(blocks, stretches);
        self.stretches.reserve(stretches)?;
        if !self.space.room().holds(room) {
            self.space = Arc::new(self.space.grown(room, self.lines.used())?);
            self.lines.grow(room);
        }
        match &mut self.holdings[slot] {
            Some(known) => {
                (known.belief, known.capacity, known.stretches_max) =
                    (belief, new.capacity, new.stretches_max);
            }
            vacant => *vacant = Some(new),
        }
        Some(())
    }

    /// For models: a holding in the space as it is.
    #[cfg(all(test, loom))]
    pub(super) fn provide_in_place(&mut self, slot: usize, belief: u64, capacity: usize) {
        self.holdings[slot] = Some(Holding::new(belief, capacity));
    }

    /// Leaves a slot vacant that holds nothing any more.
    pub(super) fn vacate(&mut self, slot: usize) {
        self.holdings[slot] = None;
    }

    /// Bytes that the belief may come to, and what it takes now. The table of heads counts whole.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let room = self.space.room();
        let now = Room { lines: self.lines.taken(), ..room };
        let bytes = |room: Room, stretches: usize| room.bytes() + stretches * STRETCH_BYTES;
        (bytes(room, self.stretches.max()), bytes(now, self.stretches.len()))
    }

    /// Touches or adds the blocks of each prompt at `slot`, then evicts beyond the capacity. The prompts are one commit:
    /// they are undone together. Of a prompt longer than the capacity the head is kept. Gives the commit's number.
    ///
    /// HOT: `bench/benches/index.rs`. O(runs x (log blocks + holders) + blocks added + blocks evicted).
    pub(super) fn commit<'a>(
        &mut self,
        slot: usize,
        belief: u64,
        prompts: impl Iterator<Item = &'a [BlockHash]>,
    ) -> Option<u32> {
        let mut turn = self.turn(slot, belief)?;
        let commit = turn.holding.commit.wrapping_add(1);
        turn.holding.commit = commit;
        prompts.for_each(|hashes| turn.record(hashes));
        Some(commit)
    }

    /// Takes back what a commit added, less what another has used since.
    pub(super) fn undo<'a>(
        &mut self,
        slot: usize,
        belief: u64,
        commit: u32,
        prompts: impl Iterator<Item = &'a [BlockHash]>,
    ) {
        if let Some(mut turn) = self.turn(slot, belief) {
            turn.undo(commit, prompts);
        }
    }

    /// Cuts what the endpoint holds along a prompt to its first `kept` blocks. What it holds of other prompts behind
    /// the cut counts for nothing until the gap is filled again.
    pub(super) fn truncate(&mut self, slot: usize, belief: u64, hashes: &[BlockHash], kept: usize) {
        if let Some(mut turn) = self.turn(slot, belief) {
            turn.truncate(hashes, kept);
        }
    }

    /// Evicts what no longer fits.
    pub(super) fn shrink(&mut self, slot: usize, belief: u64) {
        if let Some(mut turn) = self.turn(slot, belief) {
            turn.make_room(0);
            turn.make_room_for_stretches(0);
        }
    }

    fn turn(&mut self, slot: usize, belief: u64) -> Option<Turn<'_>> {
        let Self { space, lines, stretches, holdings, path } = self;
        let holding = holdings[slot].as_mut().filter(|holding| holding.belief == belief)?;
        Some(Turn { space, slot, holding, lines, stretches, path })
    }

    /// Lets go of some of what the endpoint holds; whether that was all.
    pub(super) fn drop_some(&mut self, slot: usize, belief: u64) -> bool {
        let Some(mut turn) = self.turn(slot, belief) else { return true };
        let evicted = turn.holding.evicted;
        let more = (0..DROP_AT_ONCE).all(|_| turn.evict(usize::MAX));
        // It was not for want of room.
        turn.holding.evicted = evicted;
        !more
    }
}

/// Room for so many endpoints, each of this capacity.
pub(super) fn room(endpoints: usize, capacity: usize) -> Room {
    let each = Holding::new(0, capacity);
    Room::of(endpoints * each.capacity, endpoints * each.stretches_max)
}

/// Bytes that a shard of so many endpoints, each of this capacity, comes to at most.
pub(super) fn bytes_needed(endpoints: usize, capacity: usize) -> usize {
    let stretches = endpoints * Holding::new(0, capacity).stretches_max;
    room(endpoints, capacity).bytes() + stretches * STRETCH_BYTES
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Prompts that share heads, leave each other midway and are longer than the capacity.
    fn prompts() -> impl Iterator<Item = Vec<BlockHash>> {
        (0..3_000u64).map(|number| {
            let fork = number * 7 % 90;
            let hash = |at: u64| BlockHash(1 + at + if at < fork { 0 } else { 1_000 * (1 + number % 50) });
            (0..fork + number % 40).map(hash).collect()
        })
    }

    /// A run that has shrunk takes no more lines than one that was never longer, at every height of its tree.
    #[test]
    fn what_has_shrunk_costs_what_is_left() {
        let hashes: Vec<_> = (1..=9_000).map(BlockHash).collect();
        let lines_after = |longest: usize, left: usize| {
            let mut writer = Writer::new(Arc::new(Space::new(Room::of(0, 0), 7).unwrap()));
            writer.provide(0, 1, 9_000).unwrap();
            writer.commit(0, 1, [&hashes[..longest]].into_iter()).unwrap();
            writer.truncate(0, 1, &hashes, left);
            writer.lines.taken()
        };
        for left in [1, 8, 9, 31, 32, 33, 511, 512, 513, 8_191, 8_192, 8_193] {
            for longest in [left + 1, 600, 9_000].into_iter().filter(|&longest| longest > left) {
                assert_eq!(lines_after(longest, left), lines_after(left, left), "{longest} cut to {left}");
            }
        }
    }

    /// What is no longer held is no longer paid for: every line and every stretch comes back.
    #[test]
    fn nothing_leaks() {
        let mut writer = Writer::new(Arc::new(Space::new(Room::of(0, 0), 7).unwrap()));
        (0..20).for_each(|slot| writer.provide(slot, 1, 100 + slot * 20).unwrap());
        for (number, prompt) in prompts().enumerate() {
            let slot = number * 11 % 20;
            let commit =
                writer.commit(slot, 1, [&prompt[..], &prompt[..prompt.len() / 2]].into_iter()).unwrap();
            match number % 10 {
                0..3 => writer.undo(slot, 1, commit, [&prompt[..]].into_iter()),
                3 => writer.truncate(slot, 1, &prompt, prompt.len() / 3),
                _ => {}
            }
            let (max, now) = writer.bytes();
            assert!(now <= max);
        }
        assert!(writer.lines.taken() > 500 && writer.stretches.len() > 100, "the slots hold something");
        (0..20).for_each(|slot| while !writer.drop_some(slot, 1) {});
        assert_eq!((writer.lines.taken(), writer.stretches.len()), (1, 0));
        let blocks: usize = (0..20).map(|slot| writer.holding(slot, 1).unwrap().blocks).sum();
        assert_eq!(blocks, 0);
    }
}
