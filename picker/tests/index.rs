//! The router's belief: behaviours 13 to 17 and 80 to 82, the rules of eviction, and what leaving, resizing and undoing
//! do. `index_twin.rs` holds it to a naive twin, and to several threads.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::belief::{ENDPOINTS_MAX, EndpointId, IDS_MAX, Index, JoinError, Memory};
use picker::decide::{Ask, Rules, decide};
use picker::hash::{BlockHash, Blocks};
use picker::load::Load;
use picker::read::Api;
use picker::score::Candidate;
use support::{DRAW, index};

/// How an endpoint can lose its belief, for a table.
type Forget = fn(&Index);

const A: EndpointId = EndpointId(0);
const B: EndpointId = EndpointId(1);

fn prompt(range: std::ops::Range<u64>) -> Blocks {
    Blocks::one(range.map(BlockHash).collect())
}

/// The blocks of several prompts of one request; same text, same blocks.
fn prompts(texts: &[&str]) -> Blocks {
    support::completion(&format!("{texts:?}"))
}

/// Behaviour 14, tail first: the tail of the least recent prompt goes, its head stays.
#[test]
fn eviction_takes_the_tail_of_the_least_recent_prompt() {
    let index = index(&[10]);
    for known in [0..4, 10..14, 0..4, 20..23] {
        index.commit(A, &prompt(known), false);
    }
    let matched = [0..4, 10..14, 20..23].map(|known| index.matched(A, &prompt(known)));
    assert_eq!(matched, [4, 3, 3]);
    assert_eq!(index.size(A).unwrap().evicted, 1);
}

/// Behaviour 14: a shared head is refreshed by whoever uses it.
#[test]
fn a_shared_head_outlives_the_turns_that_hang_on_it() {
    let index = index(&[8]);
    for turn in 1..50 {
        let conversation = (0..4).chain(turn * 100..turn * 100 + 3).map(BlockHash).collect();
        index.commit(A, &Blocks::one(conversation), false);
        assert_eq!(index.matched(A, &prompt(0..4)), 4, "turn {turn}");
    }
}

/// Field bug D10: one unrelated block costs one block, and a prompt above the capacity keeps its head.
#[test]
fn the_head_of_a_prefix_is_never_thrown_away_first() {
    let index = index(&[64]);
    index.commit(A, &prompt(0..64), false);
    index.commit(A, &prompt(100..101), false);
    assert_eq!(index.matched(A, &prompt(0..64)), 63);
    index.commit(A, &prompt(200..400), false);
    assert_eq!(index.matched(A, &prompt(200..400)), 64);
}

/// The run is found by galloping; every length has to come out right.
#[test]
fn runs_of_every_length_are_found() {
    for held in 0..70 {
        let index = index(&[100]);
        index.commit(A, &prompt(0..held), false);
        for asked in 0..70 {
            assert_eq!(u64::from(index.matched(A, &prompt(0..asked))), held.min(asked), "{asked} of {held}");
        }
    }
}

/// Behaviours 16, 17 and 82: deciding changes nothing, committing records the whole prompt, at the winner only.
#[test]
fn only_a_commit_teaches_and_only_the_winner() {
    let index = index(&[100, 100]);
    let candidates = [A, B].map(|id| Candidate::new(id, Load::default()));
    let body = format!(r#"{{"prompt":{}}}"#, support::quoted(&support::prose(2000)));
    let ask = Ask { api: Api::Completions, body: body.as_bytes(), tenant: b"", session: b"" };
    let decided = || decide(&ask, &candidates, &index, &Rules::default(), DRAW).unwrap();
    (0..20).for_each(|_| drop(decided()));
    assert!(decided().cold);
    let winner = decided().take_best().unwrap();
    decided().commit(&index, winner.id).unwrap();
    let after = decided();
    assert!(!after.cold);
    let held: Vec<u32> = after.choices.iter().map(|choice| choice.matched).collect();
    let total = after.blocks.total() as u32;
    assert_eq!(total, 8);
    assert_eq!(held, if winner.id == A { [total, 0] } else { [0, total] });
}

/// Behaviour 80: each endpoint's run is counted on its own.
#[test]
fn endpoints_match_on_their_own() {
    let index = index(&[100, 100]);
    index.commit(A, &prompt(0..9), false);
    index.commit(B, &prompt(0..4), false);
    let matched = [A, B, EndpointId(2), EndpointId(u32::MAX)].map(|id| index.matched(id, &prompt(0..7)));
    assert_eq!(matched, [7, 4, 0, 0]);
}

/// Behaviour 81: what an endpoint holds is bounded on its own, whatever the others hold.
#[test]
fn every_capacity_holds() {
    for (capacity, held) in [(0, 0), (1, 1), (299, 299), (300, 300), (301, 300), (usize::MAX, 300)] {
        let index = index(&[capacity, 7]);
        index.commit(A, &prompt(0..300), false);
        index.commit(B, &prompt(0..300), false);
        assert_eq!(index.size(A).unwrap().blocks, held, "{capacity}");
        assert_eq!(index.size(B).unwrap().blocks, 7);
        assert_eq!(index.matched(A, &prompt(0..300)) as usize, held);
    }
}

#[test]
fn a_new_capacity_keeps_what_still_fits() {
    let index = index(&[10]);
    index.commit(A, &prompt(0..10), false);
    let held_at = |capacity| {
        index.resize(A, capacity).unwrap();
        index.matched(A, &prompt(0..10))
    };
    assert_eq!([20, 6, 10, 1, 0, 10].map(held_at), [10, 6, 6, 1, 0, 0]);
    index.commit(A, &prompt(0..10), false);
    assert_eq!(index.matched(A, &prompt(0..10)), 10);
    index.resize(EndpointId(5), 10).unwrap();
}

/// Field bug D08: an endpoint that left, restarted or slept is believed to hold nothing.
#[test]
fn belief_goes_with_the_endpoint() {
    let index = index(&[10, 10]);
    let forget: [(&str, Forget, Option<usize>); 3] = [
        ("clear", |index| index.clear(A), Some(0)),
        ("leave", |index| index.leave(A), None),
        ("join", |index| index.join(A, 10).unwrap(), Some(0)),
    ];
    for (shows, forget, left) in forget {
        index.join(A, 10).unwrap();
        index.commit(A, &prompt(0..5), true);
        index.commit(B, &prompt(0..5), false);
        forget(&index);
        assert_eq!(index.matched(A, &prompt(0..5)), 0, "{shows}");
        assert_eq!(index.matched(B, &prompt(0..5)), 5, "{shows}: the others keep theirs");
        assert_eq!(index.size(A).map(|size| size.blocks), left, "{shows}");
    }
}

#[test]
fn an_endpoint_that_nobody_knows_is_harmless() {
    let index = index(&[10]);
    for id in [7, IDS_MAX as u32, u32::MAX].map(EndpointId) {
        index.leave(id);
        index.clear(id);
        index.resize(id, 5).unwrap();
        let commit = index.commit(id, &prompt(0..5), true);
        index.undo(commit, &prompt(0..5));
        assert_eq!((index.matched(id, &prompt(0..5)), index.last_cold(id), index.size(id)), (0, 0, None));
    }
    assert_eq!(index.join(EndpointId(IDS_MAX as u32), 10), Err(JoinError::TooMany), "ids are bounded");
    assert_eq!(index.size(EndpointId(IDS_MAX as u32)), None);
    assert_eq!(index.matched(A, &prompt(0..5)), 0);
}

/// Behaviour 32: cold requests are numbered in their order; others leave the order alone.
#[test]
fn cold_requests_are_numbered() {
    let index = index(&[10, 10]);
    assert_eq!([A, B].map(|id| index.last_cold(id)), [0, 0]);
    index.commit(A, &prompt(0..1), true);
    index.commit(B, &prompt(1..2), true);
    index.commit(A, &prompt(0..1), false);
    assert!(index.last_cold(A) < index.last_cold(B));
    index.commit(A, &prompt(2..3), true);
    assert!(index.last_cold(A) > index.last_cold(B));
}

/// An undone cold request was never taken, unless the endpoint took another since.
#[test]
fn undo_takes_the_cold_order_back() {
    let index = index(&[10]);
    let first = index.commit(A, &prompt(0..1), true);
    let before = index.last_cold(A);
    let second = index.commit(A, &prompt(1..2), true);
    index.undo(second, &prompt(1..2));
    assert_eq!(index.last_cold(A), before);
    index.commit(A, &prompt(2..3), true);
    let latest = index.last_cold(A);
    index.undo(first, &prompt(0..1));
    assert_eq!(index.last_cold(A), latest);
}

/// What an endpoint is made to forget was not evicted for want of room.
#[test]
fn what_is_cleared_was_not_evicted() {
    let index = index(&[10]);
    index.commit(A, &prompt(0..5), false);
    index.clear(A);
    assert_eq!(index.size(A).unwrap().evicted, 0);
}

/// With the last endpoint goes the memory, whichever shard empties first.
#[test]
fn an_empty_fleet_takes_no_memory() {
    for backwards in [false, true] {
        let index = Index::default();
        let ids = || (0..70).map(EndpointId);
        ids().for_each(|id| index.join(id, 10).unwrap());
        match backwards {
            true => ids().rev().for_each(|id| index.leave(id)),
            false => ids().for_each(|id| index.leave(id)),
        }
        assert_eq!(index.memory(), Memory::default(), "backwards: {backwards}");
    }
}

/// To the block: none less is believed than the engine had, and none more.
#[test]
fn truncation_is_exact() {
    let index = index(&[100]);
    for kept in [12, 10, 9, 5, 4, 1, 0] {
        index.commit(A, &prompt(0..10), false);
        index.truncate(A, &prompt(0..12), kept as usize);
        assert_eq!(index.matched(A, &prompt(0..10)), kept.min(10));
        assert_eq!(index.size(A).unwrap().blocks, kept.min(10) as usize);
    }
}

/// A gap is the endpoint's own: another that has no gap does not lead across it.
#[test]
fn nobody_matches_across_a_gap_that_others_do_not_have() {
    let index = index(&[100, 100]);
    let other = Blocks::one((0..4).chain(90..91).map(BlockHash).collect());
    for id in [A, B] {
        index.commit(id, &other, false);
        index.commit(id, &prompt(0..7), false);
    }
    index.truncate(A, &other, 2);
    assert_eq!([A, B].map(|id| index.matched(id, &prompt(0..7))), [2, 7]);
    index.commit(A, &prompt(0..4), false);
    assert_eq!([A, B].map(|id| index.matched(id, &prompt(0..7))), [7, 7]);
}

/// A prompt that fills a gap and goes on hides what lies behind it, which then goes with age: less is believed, never more.
#[test]
fn what_fills_a_gap_never_makes_more_of_it() {
    for filled in 4..8u64 {
        let index = index(&[1_000]);
        let other = Blocks::one((0..4).chain(90..91).map(BlockHash).collect());
        index.commit(A, &other, false);
        index.commit(A, &prompt(0..7), false);
        index.truncate(A, &other, 2);
        assert_eq!(index.matched(A, &prompt(0..7)), 2);
        index.commit(A, &prompt(0..filled), false);
        let matched = u64::from(index.matched(A, &prompt(0..7)));
        assert_eq!(matched, if filled == 4 { 7 } else { filled.min(7) });
        index.clear(A);
        assert_eq!(index.size(A).unwrap().blocks, 0);
    }
}

#[test]
fn several_prompts_are_matched_each_from_its_root() {
    let text = |letter: &str| letter.repeat(1000);
    let [a, b, c] = ["a", "b", "c"].map(text);
    let index = index(&[100]);
    index.commit(A, &prompts(&[&a, &b]), false);
    assert_eq!(index.size(A).unwrap().blocks, 8);
    for (asked, matched) in
        [(vec![&a], 4), (vec![&b, &a], 8), (vec![&c, &b], 4), (vec![&a, &a], 8), (vec![&c], 0)]
    {
        let asked: Vec<&str> = asked.into_iter().map(String::as_str).collect();
        assert_eq!(index.matched(A, &prompts(&asked)), matched);
    }
}

/// Prompts of one request often share their head, or are the same: undoing takes all of it back.
#[test]
fn undo_takes_back_prompts_that_overlap() {
    let (head, long) = ("x".repeat(512), "x".repeat(2000));
    for texts in [[&head, &long], [&long, &head], [&long, &long]] {
        let index = index(&[100]);
        let blocks = prompts(&texts.map(String::as_str));
        let commit = index.commit(A, &blocks, false);
        index.undo(commit, &blocks);
        assert_eq!(index.size(A).unwrap().blocks, 0);
    }
}

#[test]
fn undo_spares_what_others_have_used_since() {
    let index = index(&[100]);
    let failed = index.commit(A, &prompt(0..8), false);
    index.commit(A, &prompt(0..3), false);
    index.undo(failed, &prompt(0..8));
    assert_eq!(index.matched(A, &prompt(0..8)), 3);
    let known = index.commit(A, &prompt(0..3), false);
    index.undo(known, &prompt(0..3));
    assert_eq!(index.matched(A, &prompt(0..3)), 3, "what was known before stays known");
}

/// What an undo finds after the endpoint was forgotten in between is not its own.
#[test]
fn undo_spares_the_belief_of_an_endpoint_that_came_back() {
    let forget: [(&str, Forget); 3] = [
        ("cleared", |index| index.clear(A)),
        ("joined again", |index| index.join(A, 10).unwrap()),
        ("left and joined", |index| {
            index.leave(A);
            index.join(A, 10).unwrap();
        }),
    ];
    for (shows, forget) in forget {
        let index = index(&[10]);
        let before = index.commit(A, &prompt(0..5), true);
        forget(&index);
        index.commit(A, &prompt(0..5), true);
        let cold = index.last_cold(A);
        index.undo(before, &prompt(0..5));
        assert_eq!((index.matched(A, &prompt(0..5)), index.last_cold(A)), (5, cold), "{shows}");
    }
}

/// One endpoint too many is refused, harms nobody, and gets the place of one that leaves.
#[test]
fn the_fleet_is_bounded() {
    let index = index(&vec![10; ENDPOINTS_MAX]);
    let last = EndpointId(ENDPOINTS_MAX as u32 - 1);
    index.commit(last, &prompt(0..5), false);
    let more = EndpointId(ENDPOINTS_MAX as u32);
    assert_eq!(index.join(more, 10), Err(JoinError::TooMany));
    index.commit(more, &prompt(0..5), true);
    assert_eq!([more, last].map(|id| index.matched(id, &prompt(0..5))), [0, 5]);
    index.leave(A);
    assert_eq!(index.join(more, 10), Ok(()));
    index.commit(more, &prompt(0..5), true);
    assert_eq!([more, last, A].map(|id| index.matched(id, &prompt(0..5))), [5, 5, 0]);
}

/// Each endpoint of a large fleet is told its own depth, in the order asked for.
#[test]
fn a_look_up_answers_for_all_at_once() {
    let index = index(&vec![100; 200]);
    for id in 0..200 {
        index.commit(EndpointId(id), &prompt(0..u64::from(id % 50)), false);
    }
    let ids: Vec<_> = (0..200).rev().chain([999]).map(EndpointId).collect();
    let found = index.look_up(&prompt(0..30), ids.iter().copied());
    let wanted: Vec<_> = (0..200).rev().map(|id| (id % 50).min(30)).chain([0]).collect();
    assert_eq!(found, wanted);
}

/// Field bug D11: endpoints that come and go leave nothing behind.
#[test]
fn churn_takes_no_memory() {
    let index = index(&[100, 100]);
    let before = index.memory();
    for id in 2..1_000 {
        index.join(EndpointId(id), 5_000).unwrap();
        index.commit(EndpointId(id), &prompt(u64::from(id) * 1_000..u64::from(id) * 1_000 + 900), false);
        index.leave(EndpointId(id));
        if id == 2 {
            assert!(index.memory().bytes_max > before.bytes_max + 5_000 * 16);
        }
    }
    assert!(index.memory().bytes_max < before.bytes_max + 2 * 5_000 * 24 + 500_000, "{:?}", index.memory());
    assert_eq!(index.size(A).unwrap().blocks, 0);
}

/// The memory that the capacities announce is never exceeded, whatever the prompts look like, and a block of a long
/// prompt costs half of it.
#[test]
fn memory_is_what_was_announced() {
    for (blocks_each, most_a_block) in [(1, 200), (2, 120), (9, 30), (32, 14), (33, 14), (2_000, 12)] {
        let index = index(&[4_000, 4_000]);
        let announced = index.memory();
        for number in 0..20_000 / blocks_each {
            let start = number * 10_000;
            index.commit(EndpointId((number % 2) as u32), &prompt(start..start + blocks_each), false);
            assert!(index.memory().bytes <= announced.bytes_max);
        }
        let memory = index.memory();
        assert_eq!(memory.bytes_max, announced.bytes_max);
        let held: usize = [A, B].iter().map(|&id| index.size(id).unwrap().blocks).sum();
        let a_block = (memory.bytes - announced.bytes) / held;
        assert!(a_block <= most_a_block, "{blocks_each} blocks each: {a_block} bytes a block");
    }
}

/// Ever so many tiny prompts: the oldest go before the blocks run out, and the latest are all there.
#[test]
fn tiny_prompts_run_out_of_stretches_first() {
    let index = index(&[31_250]);
    let tiny = |number: u64| prompt(number * 10..number * 10 + 1);
    for number in 0..20_000 {
        index.commit(A, &tiny(number), false);
    }
    let size = index.size(A).unwrap();
    assert_eq!((size.blocks, size.evicted), (31_250 / 12 + 2_048, 20_000 - 31_250 / 12 - 2_048));
    let held = (0..20_000).rev().take_while(|&number| index.matched(A, &tiny(number)) == 1).count();
    assert_eq!(held, size.blocks);
}

/// Room for stretches may cost the very prompt that is committed what was known of it.
#[test]
fn a_prompt_may_be_evicted_to_make_room_for_itself() {
    let index = index(&[12_000]);
    let empty = index.memory().bytes;
    index.commit(A, &prompt(0..3), false);
    for number in 1..12_000 / 12 + 2_048 {
        index.commit(A, &prompt(number * 10..number * 10 + 1), false);
    }
    assert_eq!(index.size(A).unwrap().evicted, 0, "as many stretches as there may be");
    let longer = Blocks::one([0, 1, 2, 5].map(BlockHash).to_vec());
    let commit = index.commit(A, &longer, false);
    assert_eq!([index.matched(A, &longer), index.matched(A, &prompt(10..11))], [4, 0]);
    index.undo(commit, &longer);
    assert_eq!(index.matched(A, &longer), 0);
    index.clear(A);
    assert_eq!((index.size(A).unwrap().blocks, index.memory().bytes), (0, empty));
}

/// The bound of 24 bytes a block, and the base beside it.
#[test]
fn a_block_of_capacity_costs_24_bytes() {
    let announced = |capacity: usize| index(&[capacity]).memory().bytes_max;
    assert!((announced(1_000_000) - announced(0)) <= 24 * 1_000_000);
    assert!(announced(0) < 400_000);
    for endpoints in [0, 1, 64, 65, 200] {
        let memory = index(&vec![500; endpoints]).memory();
        assert_eq!(memory.bytes_max, Memory::needed(endpoints, 500), "{endpoints} endpoints");
        let prepared = Index::for_fleet(endpoints, 500).unwrap();
        (0..endpoints as u32).for_each(|id| prepared.join(EndpointId(id), 500).unwrap());
        assert_eq!(prepared.memory(), memory, "joined by one or prepared");
    }
}

/// An engine says that it had less of a prompt than was believed. What hangs behind the gap counts for nothing, never
/// for more than there is, and counts again once the gap is filled.
#[test]
fn truncated_belief_has_a_hole_that_nobody_matches_across() {
    let index = index(&[1_000]);
    let branch = |fork: u64, number: u64| -> Blocks {
        Blocks::one((0..fork).chain(number * 100..number * 100 + 10).map(BlockHash).collect())
    };
    let all = [prompt(0..20), branch(5, 1), branch(12, 2), branch(20, 3)];
    let matched = || all.each_ref().map(|prompt| index.matched(A, prompt));
    for prompt in &all {
        index.commit(A, prompt, false);
    }
    assert_eq!(matched(), [20, 15, 22, 30]);
    index.truncate(A, &all[3], 40);
    assert_eq!(matched(), [20, 15, 22, 30], "as much as was believed");
    index.truncate(A, &all[0], 8);
    assert_eq!(matched(), [8, 15, 8, 8], "another branch before the cut keeps its own");
    index.commit(A, &prompt(0..12), false);
    assert_eq!(matched(), [12, 15, 22, 12], "the gap of one branch is filled");
    index.truncate(A, &all[1], 0);
    assert_eq!(matched(), [0; 4]);
    index.clear(A);
    assert_eq!(index.size(A).unwrap().blocks, 0, "what lies behind a hole is not forgotten by accident");
}
