//! The index under what no honest client sends: hashes that come again within a prompt, as whoever can make blocks
//! collide can have them. It may forget such prompts; it may not break.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::belief::{Commit, EndpointId};
use picker::hash::{BlockHash, Blocks};
use proptest::collection::vec;
use proptest::prelude::*;
use support::index;

const A: EndpointId = EndpointId(0);
const CAPACITY: usize = 12;

fn one(hashes: &[u64]) -> Blocks {
    Blocks::one(hashes.iter().copied().map(BlockHash).collect())
}

/// A prompt that comes back to a run it has left.
#[test]
fn a_prompt_that_meets_a_run_twice_harms_nobody() {
    let index = index(&[100]);
    let before = index.memory().bytes;
    for prompt in
        [&[1, 2][..], &[1, 2, 3], &[1, 9], &[1, 2, 3, 1, 2, 3, 1, 9], &[1, 9, 1, 2, 3, 1, 9], &[1, 2]]
    {
        let blocks = one(prompt);
        let commit = index.commit(A, &blocks, false);
        assert!(index.matched(A, &blocks) as usize <= prompt.len());
        index.commit(A, &blocks, false);
        index.undo(commit, &blocks);
        index.truncate(A, &blocks, 1);
    }
    for number in 500..800 {
        index.commit(A, &one(&[number]), false);
    }
    assert_eq!(index.size(A).unwrap().blocks, 100);
    index.clear(A);
    assert_eq!((index.size(A).unwrap().blocks, index.memory().bytes), (0, before));
}

/// The shortest of them: the second run is left at its first block and met again at once.
#[test]
fn a_run_met_again_at_once_is_no_other_run() {
    let index = index(&[CAPACITY]);
    for prompt in [&[1][..], &[5, 1], &[5, 5]] {
        index.commit(A, &one(prompt), false);
    }
    index.clear(A);
    assert_eq!(index.size(A).unwrap().blocks, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Commit(usize, Vec<u64>),
    Undo(prop::sample::Index),
    Truncate(usize, Vec<u64>, usize),
    Resize(usize, usize),
    Clear(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let prompt = || vec(1u64..7, 0..12);
    let step = prop_oneof![
        12 => (0usize..3, prompt()).prop_map(|(id, prompt)| Step::Commit(id, prompt)),
        4 => any::<prop::sample::Index>().prop_map(Step::Undo),
        2 => (0usize..3, prompt(), 0usize..12).prop_map(|(id, prompt, kept)| Step::Truncate(id, prompt, kept)),
        2 => (0usize..3, 0usize..30).prop_map(|(id, capacity)| Step::Resize(id, capacity)),
        1 => (0usize..3).prop_map(Step::Clear),
    ];
    vec(step, 0..80)
}

fn id(place: usize) -> EndpointId {
    EndpointId(place as u32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No panic, no loop, no bound broken, nothing left behind.
    #[test]
    fn hashes_that_repeat_break_no_bound(steps in steps()) {
        let index = index(&[CAPACITY; 3]);
        let empty = index.memory().bytes;
        let mut open: Vec<(Commit, Vec<u64>)> = Vec::new();
        for step in steps {
            match step {
                Step::Commit(place, prompt) => {
                    let commit = index.commit(id(place), &one(&prompt), false);
                    open.push((commit, prompt));
                }
                Step::Undo(which) if !open.is_empty() => {
                    let (commit, prompt) = open.remove(which.index(open.len()));
                    index.undo(commit, &one(&prompt));
                }
                Step::Undo(_) => {}
                Step::Truncate(place, prompt, kept) => index.truncate(id(place), &one(&prompt), kept),
                Step::Resize(place, capacity) => { index.resize(id(place), capacity).unwrap(); }
                Step::Clear(place) => index.clear(id(place)),
            }
            for place in 0..3 {
                let size = index.size(id(place)).unwrap();
                prop_assert!(size.blocks <= size.capacity, "{:?}", size);
            }
            let memory = index.memory();
            prop_assert!(memory.bytes <= memory.bytes_max);
        }
        (0..3).for_each(|place| index.clear(id(place)));
        prop_assert_eq!((0..3).map(|place| index.size(id(place)).unwrap().blocks).sum::<usize>(), 0);
        prop_assert!(index.memory().bytes <= empty, "{:?}, empty {}", index.memory(), empty);
    }
}
