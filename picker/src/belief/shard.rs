//! One shard: the belief about up to `SLOTS` endpoints, with one writer at a time.

use std::sync::Arc;

use super::SLOTS;
use super::order::{List, NONE, Place, STRETCH_BYTES, Stretches};
use super::space::{CUT_MAX, Holder, Lines, Room, Run, Space, Step};
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
    stretches_max: usize,
    pub(super) blocks: usize,
    pub(super) evicted: u64,
    list: List,
    /// Number of the last commit. Wraps; it is only compared with commits that may still be undone.
    commit: u32,
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
    /// Scratch: the walk of the prompt at hand, with the stretch that was lifted in each of its runs.
    path: Vec<(Step, Place)>,
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
        let mut turn = Turn::begin(self, slot, belief)?;
        let commit = turn.holding.commit.wrapping_add(1);
        turn.holding.commit = commit;
        prompts.for_each(|hashes| turn.record(hashes));
        turn.end();
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
        if let Some(mut turn) = Turn::begin(self, slot, belief) {
            turn.undo(commit, prompts);
            turn.end();
        }
    }

    /// Cuts what the endpoint holds along a prompt to its first `kept` blocks. What it holds of other prompts behind
    /// the cut counts for nothing until the gap is filled again.
    pub(super) fn truncate(&mut self, slot: usize, belief: u64, hashes: &[BlockHash], kept: usize) {
        if let Some(mut turn) = Turn::begin(self, slot, belief) {
            turn.truncate(hashes, kept);
            turn.end();
        }
    }

    /// Evicts what no longer fits.
    pub(super) fn shrink(&mut self, slot: usize, belief: u64) {
        if let Some(mut turn) = Turn::begin(self, slot, belief) {
            turn.make_room(0);
            turn.make_room_for_stretches(0);
            turn.end();
        }
    }

    /// Lets go of some of what the endpoint holds; whether that was all.
    pub(super) fn drop_some(&mut self, slot: usize, belief: u64) -> bool {
        let Some(mut turn) = Turn::begin(self, slot, belief) else { return true };
        let more = (0..DROP_AT_ONCE).all(|_| turn.evict(usize::MAX));
        turn.end();
        !more
    }
}

/// Bytes that a shard of so many endpoints, each of this capacity, comes to at most.
pub(super) fn bytes_needed(endpoints: usize, capacity: usize) -> usize {
    let each = Holding::new(0, capacity);
    let stretches = endpoints * each.stretches_max;
    Room::of(endpoints * each.capacity, stretches).bytes() + stretches * STRETCH_BYTES
}

/// A writer at work for one endpoint, and whether readers have been told.
struct Turn<'a> {
    space: &'a Space,
    slot: usize,
    holding: &'a mut Holding,
    lines: &'a mut Lines,
    stretches: &'a mut Stretches,
    path: &'a mut Vec<(Step, Place)>,
    changing: bool,
}

impl<'a> Turn<'a> {
    fn begin(writer: &'a mut Writer, slot: usize, belief: u64) -> Option<Self> {
        let Writer { space, lines, stretches, holdings, path } = writer;
        let holding = holdings[slot].as_mut().filter(|holding| holding.belief == belief)?;
        Some(Self { space, slot, holding, lines, stretches, path, changing: false })
    }

    /// What follows is seen by readers.
    fn change(&mut self) {
        if !self.changing {
            self.space.version.begin();
            self.changing = true;
        }
    }

    fn end(self) {
        if self.changing {
            self.space.version.end();
        }
    }

    fn record(&mut self, hashes: &[BlockHash]) {
        let hashes = &hashes[..hashes.len().min(self.holding.capacity)];
        let mut hashes = self.follow(hashes);
        // Each run of the path may need a stretch, and what is new another.
        if self.make_room_for_stretches(self.path.len() + 1) {
            hashes = self.follow(hashes);
        }
        let known = self.lift_all();
        self.make_room(hashes.len() - known);
        self.add(hashes);
        self.hold_all();
    }

    /// Walks as far as anybody holds the prompt; gives as much of it as the endpoint's stretches allow for.
    fn follow<'h>(&mut self, hashes: &'h [BlockHash]) -> &'h [BlockHash] {
        self.path.clear();
        self.space.walk(hashes, |step| self.path.push((step, NONE)));
        if self.path.len() < self.holding.stretches_max {
            return hashes;
        }
        self.path.truncate(self.holding.stretches_max - 1);
        &hashes[..self.path.last().map_or(0, |(step, _)| step.end())]
    }

    /// In each run of the path, takes what the endpoint holds of it out of the order; gives how many blocks that is.
    fn lift_all(&mut self) -> usize {
        let mut known = 0;
        for at in 0..self.path.len() {
            let Step { run, common, .. } = self.path[at].0;
            if let Some(holder) = self.space.holder(run, self.slot) {
                self.path[at].1 = self.lift(holder, common);
                known += common.min(holder.cut);
            }
        }
        known
    }

    /// Makes the first `common` blocks of a run, or as many as are held, one stretch of this commit in no list.
    fn lift(&mut self, holder: Holder, common: usize) -> Place {
        let (mut deeper, mut place) = (NONE, holder.deepest);
        while self.stretches.at(place).from as usize >= common {
            deeper = place;
            place = self.stretches.at(place).shallower;
        }
        let known = *self.stretches.at(place);
        let end = if deeper == NONE { holder.cut } else { self.stretches.at(deeper).from as usize };
        let lifted = if end > common { self.split(place, common) } else { self.take_out(place) };
        self.drop_shallower(lifted);
        let commit = self.holding.commit;
        let lifted_stretch = self.stretches.at(lifted);
        (lifted_stretch.from, lifted_stretch.commit) = (0, commit);
        // Another prompt of the same commit may have added them.
        lifted_stretch.added_from =
            if known.commit == commit { known.added_from } else { common.min(holder.cut) as u32 };
        lifted
    }

    /// Leaves a stretch the blocks from `common` on; gives one for those before it.
    fn split(&mut self, place: Place, common: usize) -> Place {
        let stretch = *self.stretches.at(place);
        let before = match stretch.shallower {
            NONE => self.stretches.add(stretch.run, stretch.commit),
            shallower => self.take_out(shallower),
        };
        let stretch = self.stretches.at(place);
        (stretch.from, stretch.shallower) = (common as u32, before);
        before
    }

    fn take_out(&mut self, place: Place) -> Place {
        self.stretches.unlink(&mut self.holding.list, place);
        place
    }

    fn drop_shallower(&mut self, place: Place) {
        let mut at = std::mem::replace(&mut self.stretches.at(place).shallower, NONE);
        while at != NONE {
            self.take_out(at);
            let next = self.stretches.at(at).shallower;
            self.stretches.remove(at);
            at = next;
        }
    }

    /// Evicts until that many more blocks fit.
    fn make_room(&mut self, more: usize) {
        while self.holding.blocks + more > self.holding.capacity {
            let over = self.holding.blocks + more - self.holding.capacity;
            if !self.evict(over) {
                return;
            }
        }
    }

    /// Evicts until that many more stretches fit; whether it had to.
    fn make_room_for_stretches(&mut self, more: usize) -> bool {
        let mut evicted = false;
        while self.holding.list.count() + more > self.holding.stretches_max && self.evict(usize::MAX) {
            evicted = true;
        }
        evicted
    }

    /// Evicts up to `blocks` from the tail of the stretch used longest ago; whether there was one.
    fn evict(&mut self, blocks: usize) -> bool {
        let Some(place) = self.holding.list.oldest() else { return false };
        let stretch = *self.stretches.at(place);
        let run = Run(stretch.run);
        let Some(holder) = self.space.holder(run, self.slot) else { return false };
        let cut = holder.cut.saturating_sub(blocks).max(stretch.from as usize);
        self.holding.evicted += (holder.cut - cut) as u64;
        self.cut(run, holder, cut);
        true
    }

    /// Adds what nobody holds yet: at the end of the last run if the prompt goes all its length, else as a new run.
    fn add(&mut self, hashes: &[BlockHash]) {
        let start = self.path.last().map_or(0, |(step, _)| step.end());
        let new = &hashes[start..];
        if new.is_empty() {
            return;
        }
        self.change();
        if let Some((last, _)) = self.path.last_mut()
            && last.common == self.space.len(last.run)
        {
            self.space.append(last.run, new, self.lines);
            last.common = self.space.len(last.run);
        } else if let Some(line) = self.lines.take(self.space) {
            let run = self.space.open(line);
            self.space.append(run, new, self.lines);
            if self.space.len(run) == 0 {
                return self.lines.give(self.space, line);
            }
            self.space.add_head(run);
            self.path.push((Step { run, start, common: self.space.len(run) }, NONE));
        }
    }

    /// Makes the endpoint a holder of the whole path, in the order of use: the deepest run first, the root last.
    fn hold_all(&mut self) {
        for at in (0..self.path.len()).rev() {
            let (Step { run, common, .. }, lifted) = self.path[at];
            let holder = self.space.holder(run, self.slot);
            let cut = holder.map_or(0, |holder| holder.cut);
            let place = if lifted == NONE { self.stretches.add(run.0, self.holding.commit) } else { lifted };
            if cut < common {
                self.change();
                self.space.hold(run, Holder { slot: self.slot, cut: common, deepest: place }, self.lines);
                self.holding.blocks += common - cut;
            }
            self.stretches.link(&mut self.holding.list, place);
        }
    }

    fn undo<'h>(&mut self, commit: u32, prompts: impl Iterator<Item = &'h [BlockHash]>) {
        self.path.clear();
        for hashes in prompts {
            self.space.walk(hashes, |step| self.path.push((step, NONE)));
        }
        // Runs are only freed here once their holder has gone, and then no later step finds one.
        for at in (0..self.path.len()).rev() {
            self.undo_in(self.path[at].0.run, commit);
        }
    }

    fn undo_in(&mut self, run: Run, commit: u32) {
        while let Some(holder) = self.space.holder(run, self.slot) {
            let stretch = *self.stretches.at(holder.deepest);
            let cut = stretch.added_from.max(stretch.from) as usize;
            if stretch.commit != commit || cut >= holder.cut {
                return;
            }
            self.cut(run, holder, cut);
        }
    }

    fn truncate(&mut self, hashes: &[BlockHash], kept: usize) {
        self.path.clear();
        self.space.walk(hashes, |step| self.path.push((step, NONE)));
        for at in (0..self.path.len()).rev() {
            let step = self.path[at].0;
            if step.end() > kept
                && let Some(holder) = self.space.holder(step.run, self.slot)
            {
                self.cut(step.run, holder, holder.cut.min(kept.saturating_sub(step.start)));
            }
        }
    }

    /// Lowers what the endpoint holds of a run to `cut` blocks, with the stretches, and with the blocks that nobody else holds.
    fn cut(&mut self, run: Run, holder: Holder, cut: usize) {
        self.change();
        self.holding.blocks -= holder.cut - cut;
        let mut deepest = holder.deepest;
        while deepest != NONE && self.stretches.at(deepest).from as usize >= cut {
            let shallower = self.stretches.at(deepest).shallower;
            self.take_out(deepest);
            self.stretches.remove(deepest);
            deepest = shallower;
        }
        if cut > 0 {
            self.space.hold(run, Holder { cut, deepest, ..holder }, self.lines);
        } else {
            self.space.release(run, self.slot, self.lines);
        }
        if holder.cut == self.space.len(run) {
            let left = self.space.holders(run).map(|holder| holder.cut).max().unwrap_or(0);
            match left {
                0 => self.space.close(run, self.lines),
                left => self.space.truncate(run, left, self.lines),
            }
        }
    }
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
