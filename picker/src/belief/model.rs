//! What threads share in the belief, explored by loom: every interleaving, every value that a load may see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p prefixroute-picker --lib model`. Each model has a twin that breaks one rule;
//! loom must find the fault in it, or the model would show nothing.

use std::sync::Arc;

use super::SLOTS;
use super::atomic::{AtomicU64, Ordering, fence};
use super::cold::{Colds, LastCold};
use super::shard::Writer;
use super::space::{Room, Space};
use super::version::Version;
use crate::hash::BlockHash;

const BELIEF: u64 = 1;

/// Two words that a writer keeps equal: all that a version is for.
struct Words {
    version: Version,
    words: [AtomicU64; 2],
}

impl Words {
    fn new() -> Arc<Self> {
        Arc::new(Self { version: Version::new(), words: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    fn set(&self, value: u64) {
        self.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    fn get(&self) -> [u64; 2] {
        [self.words[0].load(Ordering::Relaxed), self.words[1].load(Ordering::Relaxed)]
    }

    fn write(&self, value: u64) {
        self.version.change(|| self.set(value));
    }
}

fn beside(words: &Arc<Words>, work: impl FnOnce(&Words) + Send + 'static) -> loom::thread::JoinHandle<()> {
    let words = Arc::clone(words);
    loom::thread::spawn(move || work(&words))
}

#[test]
fn what_a_version_vouches_for_belongs_together() {
    loom::model(|| {
        let words = Words::new();
        let writer = beside(&words, |words| (1..3).for_each(|value| words.write(value)));
        if let Some([first, second]) = words.version.read(|| words.get()) {
            assert_eq!(first, second);
        }
        writer.join().unwrap();
        assert_eq!(words.version.read(|| words.get()), Some([2, 2]), "at rest every look counts");
    });
}

/// Twin: the reader looks at the version before, but not after.
#[test]
#[should_panic(expected = "assertion")]
fn twin_without_a_second_look() {
    loom::model(|| {
        let words = Words::new();
        let writer = beside(&words, |words| words.write(1));
        if words.version.read(|| ()).is_some() {
            let [first, second] = words.get();
            assert_eq!(first, second);
        }
        writer.join().unwrap();
    });
}

/// Twin: the version is stored as `Version` stores it, but nothing orders the words after it.
#[test]
#[should_panic(expected = "assertion")]
fn twin_without_fences() {
    loom::model(|| {
        let (version, words) = (Arc::new(AtomicU64::new(0)), Words::new());
        let shared = Arc::clone(&version);
        let writer = beside(&words, move |words| {
            shared.store(1, Ordering::Relaxed);
            words.set(1);
            shared.store(2, Ordering::Relaxed);
        });
        let before = version.load(Ordering::Relaxed);
        let [first, second] = words.get();
        fence(Ordering::Acquire);
        if before % 2 == 0 && version.load(Ordering::Relaxed) == before {
            assert_eq!(first, second);
        }
        writer.join().unwrap();
    });
}

const KNOWN: [BlockHash; 2] = [BlockHash(11), BlockHash(12)];
const LONGER: [BlockHash; 4] = [BlockHash(11), BlockHash(12), BlockHash(13), BlockHash(14)];
const NEW: [BlockHash; 2] = [BlockHash(21), BlockHash(22)];

/// An endpoint that holds one prompt of two blocks and has room for `capacity`.
fn holding(capacity: usize) -> Writer {
    let mut writer = Writer::new(Arc::new(Space::new(Room { lines: 6, heads: 3 }, 7).unwrap()));
    writer.provide_in_place(0, BELIEF, capacity);
    writer.commit(0, BELIEF, [&KNOWN[..]].into_iter());
    writer
}

fn depth(space: &Space, prompt: &[BlockHash]) -> u32 {
    let mut depths = [0; SLOTS];
    space.depths(prompt, &mut depths);
    depths[0]
}

/// A commit beside a look-up that may see what was there before, or what is there after, and nothing else.
fn commit_beside(
    capacity: usize,
    committed: &'static [BlockHash],
    asked: &'static [BlockHash],
    before_or_after: [u32; 2],
    look: impl Fn(&Space, &[BlockHash]) -> Option<u32> + Copy + Sync + Send + 'static,
) {
    let mut model = loom::model::Builder::new();
    // Where a thread is stopped in the middle at most twice; all interleavings take more than minutes.
    model.preemption_bound = Some(2);
    model.check(move || {
        let mut writer = holding(capacity);
        let space = Arc::clone(&writer.space);
        let thread = loom::thread::spawn(move || {
            writer.commit(0, BELIEF, [committed].into_iter());
        });
        if let Some(depth) = look(&space, asked) {
            assert!(before_or_after.contains(&depth), "assertion: {depth}, wanted {before_or_after:?}");
        }
        thread.join().unwrap();
        assert_eq!(depth(&space, asked), before_or_after[1]);
    });
}

fn looked_up(space: &Space, prompt: &[BlockHash]) -> Option<u32> {
    space.version.read(|| depth(space, prompt))
}

#[test]
fn a_look_up_sees_a_new_prompt_whole_or_not_at_all() {
    commit_beside(2, &NEW, &NEW, [0, 2], looked_up);
}

/// The new prompt takes over the lines of the one that is looked up.
#[test]
fn a_look_up_sees_an_evicted_prompt_whole_or_not_at_all() {
    commit_beside(2, &NEW, &KNOWN, [2, 0], looked_up);
}

/// Its blocks are written behind a run's end before the run is said to have them.
#[test]
fn a_look_up_sees_a_longer_prompt_whole_or_as_it_was() {
    commit_beside(4, &LONGER, &LONGER, [2, 4], looked_up);
}

/// Twin: the look-up does not ask the version.
#[test]
#[should_panic(expected = "assertion")]
fn twin_that_looks_up_without_the_version() {
    commit_beside(2, &NEW, &KNOWN, [2, 0], |space, prompt| Some(depth(space, prompt)));
}

/// One endpoint takes a cold request that fails and one that does not, in any order.
fn cold_order(give_back: impl Fn(&LastCold, u64, super::cold::Taken) + Copy + Send + Sync + 'static) {
    loom::model(move || {
        let (colds, last) = (Arc::new(Colds::default()), Arc::new(LastCold::default()));
        let (other_colds, other_last) = (Arc::clone(&colds), Arc::clone(&last));
        let stays = loom::thread::spawn(move || {
            other_last.take(&other_colds);
        });
        let before = last.number();
        let taken = last.take(&colds);
        give_back(&last, before, taken);
        stays.join().unwrap();
        assert_ne!(last.number(), 0, "assertion: the request that stayed is remembered");
    });
}

#[test]
fn giving_back_a_cold_request_spares_the_others() {
    cold_order(|last, _, taken| last.give_back(taken));
}

/// Twin: what was there before is put back whatever is there now.
#[test]
#[should_panic(expected = "assertion")]
fn twin_that_gives_back_blindly() {
    cold_order(|last, before, _| last.overwrite(before));
}
