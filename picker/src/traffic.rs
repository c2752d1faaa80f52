//! What the requests lately had in common: where prompts part from each other, whether they had to wait, how much they cost.
//!
//! A system prompt that everyone shares is a *fork*: a block after which many different prompts go on. A conversation is not,
//! however busy it is: each of its turns goes on where the last one ended. So forks tell what is worth a second copy. A prompt
//! that comes again whole counts as one as far as it had to wait: one replica does not keep up with it.
//!
//! Learned when a request is committed, read by every decision, no lock: words that stand alone. Two requests that write
//! the same word at once may lose one of the two; a figure of many requests does not mind. Memory is fixed: 64 KiB.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hash::{BlockHash, Blocks};

/// Forks that are remembered at once.
const FORKS_MAX: usize = 4_096;
/// Requests after which what was counted counts half: about 350, so that a thousand requests forget.
const HALF_LIFE: f32 = 346.0;
/// What one request moves an average by.
const STEP: f32 = 0.02;
/// The same for the share of prompts that is held, which a few long ones must not move.
const HELD_STEP: f32 = 0.005;

/// Where a prompt leaves what some endpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fork {
    /// The last block that is held.
    at: BlockHash,
    /// The block that is not; `None` for a prompt that is held whole.
    next: Option<BlockHash>,
}

impl Fork {
    /// Where a prompt parts of which `held` leading blocks are held; nowhere if none is. Of several prompts in one request
    /// nothing is learned.
    pub(crate) fn of(blocks: &Blocks, held: u32) -> Option<Self> {
        let mut prompts = blocks.prompts();
        let (prompt, None) = (prompts.next()?, prompts.next()) else { return None };
        let at = *prompt.get((held as usize).checked_sub(1)?)?;
        Some(Self { at, next: prompt.get(held as usize).copied() })
    }
}

/// What a request teaches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lesson {
    pub(crate) fork: Option<Fork>,
    /// Of the time to its first token at the endpoint that holds most of it, the share that is waiting, 0 to 1.
    pub(crate) waiting: f32,
    /// Blocks of the request.
    pub(crate) blocks: f32,
}

/// The endpoint that a request went to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Went {
    /// Leading blocks of the request that it held.
    pub(crate) held: u32,
    /// How full its cache is believed to be, 0 to 1.
    pub(crate) full: f64,
    /// Blocks that its cache is believed to hold at most.
    pub(crate) capacity: f64,
    /// Seconds of computing that the request takes there.
    pub(crate) work: f64,
}

/// What a decision reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Requests that lately parted from others where this one does.
    pub forked: f64,
    /// Requests that lately parted from others anywhere.
    pub forked_anywhere: f64,
    /// Of the time to the first token, the share that is waiting, 0 to 1, over the latest requests.
    pub contention: f64,
    /// Seconds of computing that a request took, over the latest ones; 0 before the first.
    pub work: f64,
    /// Share of the blocks that was held where the requests went, 0 to 1, over the latest ones.
    pub held: f64,
    /// How full the caches are where the requests went, 0 to 1, over the latest ones.
    pub full: f64,
    /// Blocks that such a cache holds, over the latest ones; 0 before the first.
    pub capacity: f64,
}

/// Shared by all requests of a pool.
#[derive(Debug)]
pub struct Traffic {
    forks: Box<[Slot]>,
    /// Requests learned, from 1; it turns over.
    requests: AtomicU32,
    forked_anywhere: Fading,
    contention: Average,
    work: Average,
    held_blocks: Average,
    blocks: Average,
    full: Average,
    capacity: Average,
}

impl Default for Traffic {
    fn default() -> Self {
        let forks = (0..FORKS_MAX).map(|_| Slot::default()).collect();
        let (requests, forked_anywhere) = Default::default();
        let (contention, work, held_blocks, blocks, full, capacity) = Default::default();
        Self { forks, requests, forked_anywhere, contention, work, held_blocks, blocks, full, capacity }
    }
}

impl Traffic {
    /// What is known that bears on a request with this fork. O(1).
    pub(crate) fn seen(&self, fork: Option<Fork>) -> Seen {
        let now = self.requests.load(Ordering::Relaxed);
        let forked = fork.and_then(|fork| self.slot(fork).counted(fork, now));
        Seen {
            forked: forked.unwrap_or_default().into(),
            forked_anywhere: self.forked_anywhere.at(now).into(),
            contention: self.contention.value().into(),
            work: self.work.value().into(),
            held: f64::from(self.held_blocks.value()) / f64::from(self.blocks.value()).max(1.0),
            full: self.full.value().into(),
            capacity: self.capacity.value().into(),
        }
    }

    /// Learns from a request and from where it went. O(1).
    pub(crate) fn learn(&self, lesson: Lesson, went: Went) {
        let Went { held, full, capacity, work } = went;
        if lesson.blocks > 0.0 {
            self.blocks.learn(lesson.blocks, HELD_STEP);
            self.held_blocks.learn(held as f32, HELD_STEP);
            self.full.learn(full as f32, STEP);
            self.capacity.learn(capacity as f32, STEP);
        }
        let now = self.requests.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.contention.learn(lesson.waiting, STEP);
        self.work.learn(work as f32, STEP);
        let Some(fork) = lesson.fork else { return };
        let weight = if fork.next.is_some() { 1.0 } else { lesson.waiting.clamp(0.0, 1.0) };
        if self.slot(fork).count(fork, weight, now) {
            self.forked_anywhere.add(weight, now);
        }
    }

    fn slot(&self, fork: Fork) -> &Slot {
        &self.forks[fork.at.0 as usize % FORKS_MAX]
    }
}

/// How often prompts parted at one block. Whoever is counted most stays when two share the place.
#[derive(Debug, Default)]
struct Slot {
    /// 32 bits of the last shared block's hash, then 32 of the next one's in the latest prompt.
    names: AtomicU64,
    count: Fading,
}

impl Slot {
    /// `None` for a fork that is not counted here.
    fn counted(&self, fork: Fork, now: u32) -> Option<f32> {
        let is_same = self.names.load(Ordering::Relaxed) >> 32 == fork.at.0 >> 32;
        is_same.then(|| self.count.at(now))
    }

    /// Whether it was a fork before: prompts have parted here twice now. The same prompt once more is no fork; that is one
    /// whose tail was evicted, or that is longer than a cache.
    fn count(&self, fork: Fork, weight: f32, now: u32) -> bool {
        let names = fork.at.0 >> 32 << 32 | fork.next.map_or(0, |next| next.0 >> 32);
        match self.counted(fork, now) {
            Some(_) if self.names.load(Ordering::Relaxed) == names && fork.next.is_some() => false,
            Some(_) => {
                self.names.store(names, Ordering::Relaxed);
                self.count.add(weight, now);
                true
            }
            None if self.count.at(now) < 1.0 => {
                self.names.store(names, Ordering::Relaxed);
                self.count.set(weight, now);
                false
            }
            None => false,
        }
    }
}

/// A count that fades with the requests that come: an `f32`, and the number of the request at which it was that.
#[derive(Debug, Default)]
struct Fading(AtomicU64);

impl Fading {
    fn at(&self, now: u32) -> f32 {
        let word = self.0.load(Ordering::Relaxed);
        let age = now.wrapping_sub(word as u32);
        f32::from_bits((word >> 32) as u32) * (-(age as f32) / HALF_LIFE).exp2()
    }

    fn add(&self, weight: f32, now: u32) {
        self.set(self.at(now) + weight, now);
    }

    fn set(&self, count: f32, now: u32) {
        self.0.store(u64::from(count.to_bits()) << 32 | u64::from(now), Ordering::Relaxed);
    }
}

/// An average over the latest requests, as the bits of an `f32`; of the first few, their mean.
#[derive(Debug, Default)]
struct Average(AtomicU64);

impl Average {
    fn value(&self) -> f32 {
        f32::from_bits((self.0.load(Ordering::Relaxed) >> 32) as u32)
    }

    fn learn(&self, sample: f32, step: f32) {
        if !sample.is_finite() {
            return;
        }
        let word = self.0.load(Ordering::Relaxed);
        let samples = (word as u32).saturating_add(1);
        let value = f32::from_bits((word >> 32) as u32);
        let next = value + (sample - value) * step.max(1.0 / samples as f32);
        self.0.store(u64::from(next.to_bits()) << 32 | u64::from(samples), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::chance::mix;

    fn hashes(names: &[u64]) -> Vec<BlockHash> {
        names.iter().map(|&name| BlockHash(mix(name))).collect()
    }

    /// A prompt of two shared blocks and one of its own.
    fn fork(name: u64) -> Option<Fork> {
        Fork::of(&Blocks::one(hashes(&[1, 2, name])), 2)
    }

    fn learn(traffic: &Traffic, fork: Option<Fork>) {
        traffic.learn(Lesson { fork, ..Lesson::default() }, Went::default());
    }

    #[test]
    fn a_fork_is_where_a_prompt_leaves_what_is_held() {
        let prompt = Blocks::one(hashes(&[1, 2, 3]));
        let at = |place: u64| BlockHash(mix(place));
        assert_eq!(Fork::of(&prompt, 2), Some(Fork { at: at(2), next: Some(at(3)) }));
        assert_eq!(Fork::of(&prompt, 3), Some(Fork { at: at(3), next: None }), "held whole");
        assert_eq!(Fork::of(&prompt, 0), None, "not held at all");
        assert_eq!(Fork::of(&Blocks::default(), 0), None, "no prompt");
    }

    #[test]
    fn different_prompts_after_one_block_are_counted_and_fade() {
        let traffic = Traffic::default();
        assert_eq!(traffic.seen(fork(9)).forked, 0.0);
        for name in 0..10 {
            learn(&traffic, fork(100 + name));
        }
        let seen = traffic.seen(fork(9));
        assert!((9.0..10.0).contains(&seen.forked), "{seen:?}");
        assert!((8.0..9.0).contains(&seen.forked_anywhere), "the first prompt parted from nobody: {seen:?}");
        for _ in 0..346 {
            learn(&traffic, None);
        }
        let later = traffic.seen(fork(9));
        assert!((later.forked / seen.forked - 0.5).abs() < 0.01, "{later:?}");
    }

    #[test]
    fn one_prompt_again_and_again_is_no_fork() {
        let traffic = Traffic::default();
        for _ in 0..50 {
            learn(&traffic, fork(7));
        }
        assert!(traffic.seen(fork(7)).forked <= 1.0);
        assert_eq!(traffic.seen(fork(7)).forked_anywhere, 0.0);
    }

    #[test]
    fn a_whole_prompt_counts_as_far_as_it_waits() {
        let traffic = Traffic::default();
        let whole = Fork::of(&Blocks::one(hashes(&[1, 2])), 2);
        let learn = |waiting| {
            (0..10).for_each(|_| traffic.learn(Lesson { fork: whole, waiting, blocks: 2.0 }, Went::default()))
        };
        learn(0.0);
        assert_eq!(traffic.seen(whole).forked, 0.0);
        learn(0.5);
        assert!((4.5..5.0).contains(&traffic.seen(whole).forked), "{:?}", traffic.seen(whole));
    }

    #[test]
    fn turns_of_a_conversation_are_no_forks() {
        let traffic = Traffic::default();
        for turn in 2..50 {
            let names: Vec<u64> = (0..turn + 1).collect();
            learn(&traffic, Fork::of(&Blocks::one(hashes(&names)), turn as u32));
        }
        assert_eq!(traffic.seen(fork(7)).forked_anywhere, 0.0);
    }

    #[test]
    fn a_busy_fork_keeps_its_place() {
        let traffic = Traffic::default();
        for name in 0..50 {
            learn(&traffic, fork(100 + name));
        }
        let busy = fork(9).unwrap();
        let stranger = Fork { at: BlockHash(busy.at.0 ^ 1 << 40), next: busy.next };
        learn(&traffic, Some(stranger));
        assert!(traffic.seen(fork(9)).forked > 40.0);
        assert_eq!(traffic.seen(Some(stranger)).forked, 0.0);
    }

    #[test]
    fn the_share_that_is_held_is_of_blocks() {
        let traffic = Traffic::default();
        for (blocks, held) in [(90.0, 60), (10.0, 0), (0.0, 0)] {
            let went = Went { held, full: 0.5, capacity: 200.0, ..Went::default() };
            traffic.learn(Lesson { blocks, ..Lesson::default() }, went);
        }
        assert_eq!((traffic.seen(None).full, traffic.seen(None).capacity), (0.5, 200.0));
        assert!((traffic.seen(None).held - 0.6).abs() < 1e-6, "{:?}", traffic.seen(None));
    }

    #[test]
    fn averages_follow_the_latest() {
        let traffic = Traffic::default();
        let learn = |waiting, work| {
            traffic.learn(Lesson { waiting, ..Lesson::default() }, Went { work, ..Went::default() });
        };
        learn(1.0, 0.25);
        assert_eq!((traffic.seen(None).contention, traffic.seen(None).work), (1.0, 0.25));
        (0..400).for_each(|_| learn(0.0, 0.5));
        let seen = traffic.seen(None);
        assert!(seen.contention < 0.01 && (seen.work - 0.5).abs() < 0.01, "{seen:?}");
        learn(f32::NAN, f64::INFINITY);
        assert_eq!(traffic.seen(None), Seen { forked_anywhere: 0.0, ..seen }, "no number teaches nothing");
    }
}
