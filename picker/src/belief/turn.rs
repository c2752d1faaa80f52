//! One writer at work on one endpoint's belief: commits, undoes, cuts and evictions, by runs and stretches.

use super::order::{NONE, Place, Stretches};
use super::shard::Holding;
use super::space::{Holder, Lines, Run, Space, Step};
use crate::hash::BlockHash;

/// A prompt's walk, with the stretch that was lifted out of the order in each of its runs.
pub(super) type Path = Vec<(Step, Place)>;

/// A writer at work for one endpoint.
///
/// What readers can reach changes between `begin` and `end` of the version, and each such change leaves a belief that is true.
/// They are short: new blocks are written before a run is let in, and lines are freed after nobody can reach them.
pub(super) struct Turn<'a> {
    pub(super) space: &'a Space,
    pub(super) slot: usize,
    pub(super) holding: &'a mut Holding,
    pub(super) lines: &'a mut Lines,
    pub(super) stretches: &'a mut Stretches,
    pub(super) path: &'a mut Path,
}

impl Turn<'_> {
    pub(super) fn record(&mut self, hashes: &[BlockHash]) {
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
        self.walk(hashes);
        if self.path.len() < self.holding.stretches_max {
            return hashes;
        }
        self.path.truncate(self.holding.stretches_max - 1);
        &hashes[..self.path.last().map_or(0, |(step, _)| step.end())]
    }

    /// Adds a prompt's runs to the path, nothing lifted in them yet.
    fn walk(&mut self, hashes: &[BlockHash]) {
        self.space.walk(hashes, |step| self.path.push((step, NONE)));
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
        let added_before = if known.commit == commit { known.added_from } else { u32::MAX };
        lifted_stretch.added_from = added_before.min(common.min(holder.cut) as u32);
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
    pub(super) fn make_room(&mut self, more: usize) {
        while self.holding.blocks + more > self.holding.capacity {
            let over = self.holding.blocks + more - self.holding.capacity;
            if !self.evict(over) {
                return;
            }
        }
    }

    /// Evicts until that many more stretches fit; whether it had to.
    pub(super) fn make_room_for_stretches(&mut self, more: usize) -> bool {
        let mut evicted = false;
        while self.holding.list.count() + more > self.holding.stretches_max && self.evict(usize::MAX) {
            evicted = true;
        }
        evicted
    }

    /// Evicts up to `blocks` from the tail of the stretch used longest ago; whether there was one.
    pub(super) fn evict(&mut self, blocks: usize) -> bool {
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
        if let Some((last, _)) = self.path.last_mut()
            && last.common == self.space.len(last.run)
        {
            last.common = self.space.append(last.run, new, self.lines);
            self.space.version.change(|| self.space.set_len(last.run, last.common));
        } else if let Some(run) = self.space.open(start, self.lines) {
            let common = self.space.append(run, new, self.lines);
            self.space.set_len(run, common);
            self.space.version.change(|| self.space.add_head(run));
            self.path.push((Step { run, start, common }, NONE));
        }
    }

    /// Makes the endpoint a holder of the whole path, in the order of use: the deepest run first, the root last.
    fn hold_all(&mut self) {
        for at in 0..self.path.len() {
            if self.path[at].1 == NONE {
                self.path[at].1 = self.stretches.add(self.path[at].0.run.0, self.holding.commit);
            }
        }
        let path = &*self.path;
        let cuts = path.iter().map(|(step, _)| self.space.holder(step.run, self.slot).map_or(0, |it| it.cut));
        let more: usize = cuts.zip(path).map(|(cut, (step, _))| step.common.saturating_sub(cut)).sum();
        if more > 0 {
            self.holding.blocks += more;
            self.space.version.change(|| {
                for &(Step { run, common: cut, .. }, deepest) in path {
                    self.space.hold_more(run, Holder { slot: self.slot, cut, deepest }, self.lines);
                }
            });
        }
        for at in (0..self.path.len()).rev() {
            self.stretches.link(&mut self.holding.list, self.path[at].1);
        }
    }

    pub(super) fn undo<'h>(&mut self, commit: u32, prompts: impl Iterator<Item = &'h [BlockHash]>) {
        self.path.clear();
        prompts.for_each(|hashes| self.walk(hashes));
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

    pub(super) fn truncate(&mut self, hashes: &[BlockHash], kept: usize) {
        self.path.clear();
        self.walk(hashes);
        for at in (0..self.path.len()).rev() {
            let step = self.path[at].0;
            if step.end() > kept
                && let Some(holder) = self.space.holder(step.run, self.slot)
            {
                self.cut(step.run, holder, holder.cut.min(kept.saturating_sub(step.start)));
            }
        }
    }

    /// Lowers what the endpoint holds of a run to `cut` blocks, with the stretches, and with the blocks that nobody else
    /// holds.
    fn cut(&mut self, run: Run, holder: Holder, cut: usize) {
        self.holding.blocks -= holder.cut - cut;
        let mut deepest = holder.deepest;
        while deepest != NONE && self.stretches.at(deepest).from as usize >= cut {
            let shallower = self.stretches.at(deepest).shallower;
            self.take_out(deepest);
            self.stretches.remove(deepest);
            deepest = shallower;
        }
        let length = self.space.len(run);
        let mut left = length;
        self.space.version.change(|| {
            if cut > 0 {
                self.space.hold(run, Holder { cut, deepest, ..holder }, self.lines);
            } else {
                self.space.release(run, self.slot, self.lines);
            }
            if holder.cut == length {
                left = self.space.holders(run).map(|holder| holder.cut).max().unwrap_or(0);
            }
            match left {
                0 => self.space.remove_head(run),
                left => self.space.set_len(run, left),
            }
        });
        if left < length {
            self.space.free(run, length, left, self.lines);
        }
    }
}
