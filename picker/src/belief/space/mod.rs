//! The memory of one shard: runs of blocks, who holds how much of each, and the way from a block to its run.
//!
//! A *run* is a stretch of some prompt's blocks that was new when it was committed; a later prompt that leaves it
//! midway begins a run of its own there, which hangs on nothing but its first block's hash: that hash covers all
//! before it. So a prompt is a walk over few runs, and since hashes are chained, one comparison inside a run vouches
//! for all blocks before. Each holder of a run holds it from its start up to a *cut*; evicting a tail lowers a number.
//!
//! All of it lies in lines of eight words: a run's record, its hashes (a tree of lines, four at its root, sixteen below),
//! and holders that do not fit the record. Readers follow references that may be changing under them: every load is
//! in bounds or 0, every loop is bounded, and the version says afterwards whether any of it counts.

mod edit;
mod lines;

pub(super) use lines::Lines;

use super::SLOTS;
use super::atomic::{AtomicU64, Ordering, zeros};
use super::version::Version;
use crate::hash::BlockHash;

/// Words of a line: one cache line.
const WORDS: usize = 8;
/// Hashes of a line, as a power of two.
const HASHES_BITS: usize = 3;
/// References to lines below a line, as a power of two.
const FAN_BITS: u32 = 4;
/// References in a run's record.
const ROOTS: usize = 4;
/// Where they begin, in half words.
const ROOTS_AT: usize = 2;
/// Holders in a run's record, and the word where they begin.
const INLINE: usize = 4;
const INLINE_AT: usize = 3;
/// The word of a run's record that refers to further holders; its other half says how many blocks are before the run.
const MORE_AT: usize = 7;
const START_AT: usize = 2 * MORE_AT + 1;
/// Holders in a line of their own; the last word refers to the next such line.
const PER_LINE: usize = WORDS - 1;

/// Refers to a line; `NOWHERE` to none.
pub(super) type Line = u32;
pub(super) const NOWHERE: Line = 0;

/// A run, by the line of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run(pub(super) Line);

/// Who holds a run, up to which cut, and which stretch of it was used longest ago. One word, so never torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) slot: usize,
    pub(super) cut: usize,
    pub(super) deepest: u32,
}

const CUT_BITS: u32 = 26;

/// Blocks that a run can have, and an endpoint can hold.
pub(super) const CUT_MAX: usize = (1 << CUT_BITS) - 1;

impl Holder {
    fn pack(self) -> u64 {
        (self.slot as u64) << (CUT_BITS + 32) | (self.cut as u64) << 32 | u64::from(self.deepest)
    }

    fn unpack(word: u64) -> Self {
        let slot = (word >> (CUT_BITS + 32)) as usize % SLOTS;
        Self { slot, cut: (word >> 32) as usize & CUT_MAX, deepest: word as u32 }
    }
}

/// One run of a prompt's walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) run: Run,
    /// Blocks of the prompt before the run.
    pub(super) start: usize,
    /// Leading blocks of the run that are the prompt's, at least one.
    pub(super) common: usize,
}

impl Step {
    /// Blocks of the prompt up to where it leaves the run.
    pub(super) fn end(&self) -> usize {
        self.start + self.common
    }
}

/// How much a space has room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) lines: usize,
    pub(super) heads: usize,
}

impl Room {
    /// Room for endpoints of these capacities in blocks and in stretches, whatever they hold.
    ///
    /// Every run has a holder with a stretch in it, so there are at most as many runs as stretches (one more while
    /// one is added). A run of `n` blocks takes `n/8` lines rounded up, and the tree above them at most `n/33`. Holders
    /// beyond a record's take a line for seven, but only where several share what room was made for severally.
    pub(super) fn of(blocks: usize, stretches: usize) -> Self {
        let runs = stretches + 1;
        let hashes = blocks.div_ceil(WORDS) + (runs * (WORDS - 1)).div_ceil(WORDS);
        let trees = blocks.div_ceil((ROOTS << HASHES_BITS) + 1);
        Self { lines: 1 + runs + hashes + trees + SLOTS, heads: runs + runs / 2 + 1 }
    }

    pub(super) fn bytes(self) -> usize {
        (self.lines * WORDS + self.heads) * size_of::<u64>()
    }

    pub(super) fn holds(self, other: Self) -> bool {
        self.lines >= other.lines && self.heads >= other.heads
    }
}

/// Lines, and a table from a run's first hash to the run.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) version: Version,
    words: Box<[AtomicU64]>,
    /// The word at which a cache line begins.
    aligned: usize,
    /// Open addressing, linear probing: the run in the low half, in the high half a part of the hash; 0 is free.
    heads: Box<[AtomicU64]>,
    /// Block hashes have no key, so a client could search for prompts whose runs all fall into one place.
    key: u64,
}

impl Space {
    /// `None`: the system has no such memory.
    pub(super) fn new(room: Room, key: u64) -> Option<Self> {
        let words = zeros((room.lines + 1) * WORDS)?;
        let aligned = words.as_ptr().align_offset(WORDS * size_of::<u64>()).min(WORDS);
        Some(Self { version: Version::new(), aligned, words, heads: zeros(room.heads)?, key })
    }

    pub(super) fn room(&self) -> Room {
        Room { lines: self.words.len() / WORDS - 1, heads: self.heads.len() }
    }

    /// A larger copy. `used` lines from the first are in use.
    pub(super) fn grown(&self, room: Room, used: usize) -> Option<Self> {
        let grown = Self::new(room, self.key)?;
        for at in 0..used * WORDS {
            grown.words[grown.aligned + at]
                .store(self.words[self.aligned + at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // A fleet that starts joins one by one and holds nothing yet.
        let heads = if used > 1 { &self.heads[..] } else { &[] };
        for head in heads {
            let run = Run(head.load(Ordering::Relaxed) as Line);
            if run.0 != NOWHERE {
                grown.add_head(run);
            }
        }
        Some(grown)
    }

    /// How many leading blocks each slot's endpoint holds, into `depths`, all 0 before.
    ///
    /// HOT: `bench/benches/index.rs`. O(runs x (log blocks + holders)). Gives nonsense in the midst of a change.
    pub(super) fn depths(&self, hashes: &[BlockHash], depths: &mut [u32]) {
        self.walk(hashes, |step| {
            for holder in self.holders(step.run) {
                // Who lacks blocks before the run has no use for it.
                if depths[holder.slot] as usize == step.start {
                    depths[holder.slot] = (step.start + holder.cut.min(step.common)) as u32;
                }
            }
        });
    }

    /// The runs of a prompt in order, as far as anybody holds it.
    pub(super) fn walk(&self, hashes: &[BlockHash], mut step: impl FnMut(Step)) {
        let mut start = 0;
        while let Some(&first) = hashes.get(start)
            && let Some(run) = self.find(first, start)
        {
            let common = self.common(run, &hashes[start..]);
            if common == 0 {
                return;
            }
            step(Step { run, start, common });
            start += common;
        }
    }

    /// The run that begins with this block after so many others. A hash that comes again elsewhere, as only collisions make
    /// it, is another run: no walk meets one twice.
    fn find(&self, first: BlockHash, start: usize) -> Option<Run> {
        let (home, tag) = self.place(first.0);
        let (before, from) = self.heads.split_at(home);
        for head in from.iter().chain(before) {
            let head = head.load(Ordering::Relaxed);
            let run = Run(head as Line);
            if run.0 == NOWHERE {
                return None;
            }
            let same = head >> 32 == tag && self.half(run.0, START_AT) as usize == start;
            if same && self.hash(run, self.height(run), 0) == first.0 {
                return Some(run);
            }
        }
        None
    }

    /// Leading blocks of a run that are those of `hashes`, given that the first is.
    fn common(&self, run: Run, hashes: &[BlockHash]) -> usize {
        let height = self.height(run);
        let same = |at: usize| self.hash(run, height, at) == hashes[at].0;
        let length = self.len(run).min(hashes.len());
        if length == 0 || same(length - 1) {
            return length;
        }
        let (mut same_at, mut other_at) = (0, length - 1);
        while other_at - same_at > 1 {
            let middle = same_at.midpoint(other_at);
            if same(middle) { same_at = middle } else { other_at = middle }
        }
        other_at
    }

    /// All holders, in no order.
    pub(super) fn holders(&self, run: Run) -> impl Iterator<Item = Holder> {
        let count = self.holder_count(run);
        let mut line = run.0;
        (0..count).map(move |place| {
            if place >= INLINE && (place - INLINE).is_multiple_of(PER_LINE) {
                line = self.load(line, MORE_AT) as Line;
            }
            let word = if place < INLINE { INLINE_AT + place } else { (place - INLINE) % PER_LINE };
            Holder::unpack(self.load(line, word))
        })
    }

    /// Blocks of a run.
    pub(super) fn len(&self, run: Run) -> usize {
        self.load(run.0, 0) as u32 as usize
    }

    fn height(&self, run: Run) -> u32 {
        (self.load(run.0, 0) >> 32) as u32 & 7
    }

    fn holder_count(&self, run: Run) -> usize {
        ((self.load(run.0, 0) >> 40) as usize).min(SLOTS)
    }

    fn hash(&self, run: Run, height: u32, at: usize) -> u64 {
        self.load(self.line_of(run, height, at >> HASHES_BITS), at % WORDS)
    }

    fn line_of(&self, run: Run, height: u32, index: usize) -> Line {
        let mut below = height * FAN_BITS;
        let mut line = self.half(run.0, ROOTS_AT + (index >> below) % ROOTS);
        while below > 0 {
            below -= FAN_BITS;
            line = self.half(line, (index >> below) % (1 << FAN_BITS));
        }
        line
    }

    fn half(&self, line: Line, half: usize) -> Line {
        (self.load(line, half / 2) >> (half % 2 * 32)) as Line
    }

    fn load(&self, line: Line, word: usize) -> u64 {
        let at = self.aligned + line as usize * WORDS + word;
        self.words.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Where a run with this first hash is looked for first, and the part of the hash that stands beside it.
    fn place(&self, first: u64) -> (usize, u64) {
        let product = u128::from(first ^ self.key) * 0x9E37_79B9_7F4A_7C15;
        let mixed = (product >> 64) as u64 ^ product as u64;
        let home = (u64::from(mixed as u32) * self.heads.len() as u64) >> 32;
        (home as usize, mixed >> 32)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashMap;

    use super::*;

    /// What stands beside a run's reference is a part of its hash only; the hash itself decides.
    #[test]
    fn equal_tags_are_not_equal_hashes() {
        let room = Room { lines: 8, heads: 3 };
        let empty = Space::new(room, 7).unwrap();
        let (mut known, mut pairs) = (HashMap::new(), 0);
        for number in 0..400_000u64 {
            let hash = xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes());
            let Some(other) = known.insert(empty.place(hash), hash) else { continue };
            let space = Space::new(room, 7).unwrap();
            let mut lines = Lines::new(room);
            let run = space.open(0, &mut lines).unwrap();
            space.set_len(run, space.append(run, &[BlockHash(other)], &mut lines));
            space.add_head(run);
            assert_eq!([other, hash].map(|hash| space.find(BlockHash(hash), 0)), [Some(run), None]);
            pairs += 1;
        }
        assert!(pairs > 0);
    }
}
