//! Chained block hashes: behaviours 6 to 12 and 79, on structural vectors and as properties.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::HashSet;

use picker::hash::{
    BlockHash, BlockSize, Blocks, Cutter, PSEUDO_TOKEN_BYTES, Tail, Xxh3Chain, model_root, token_block_hashes,
};
use picker::read::Api;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use support::{common, completion, only, prose, quoted, read, seed};

const ROOT: BlockHash = BlockHash(1);

fn size(tokens: i64) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

/// Behaviour 6.
#[test]
fn a_block_size_that_is_not_positive_is_refused() {
    for case in seed("block_hashes.json")["errors"].as_array().unwrap() {
        let error = BlockSize::new(case["block_size"].as_i64().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), case["error"].as_str().unwrap());
    }
    assert!(BlockSize::new(i64::MIN).is_err());
    assert!(BlockSize::new(i64::from(u32::MAX) + 1).is_err());
}

/// Behaviour 7.
#[test]
fn a_prompt_has_its_full_blocks_and_a_tail_if_asked() {
    for case in seed("block_hashes.json")["counts"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap();
        let tokens: Vec<u32> = (0..number("tokens") as u32).collect();
        let count =
            |tail| token_block_hashes(ROOT, &tokens, size(number("block_size") as i64), tail).len() as u64;
        assert_eq!(count(Tail::Keep), number("with_partial"), "{case}");
        assert_eq!(count(Tail::Drop), number("full_only"), "{case}");
    }
}

/// Behaviours 8 to 11.
#[test]
fn prompts_share_hashes_as_far_as_they_are_equal() {
    for pair in seed("block_hashes.json")["pairs"].as_array().unwrap() {
        let (a, b) = (hashes_of(pair, "a"), hashes_of(pair, "b"));
        let shared = common(&a, &b);
        assert_eq!([a.len(), b.len(), shared].map(|n| n as u64), wanted(pair), "{}", pair["name"]);
        let rest: HashSet<_> = a[shared..].iter().collect();
        assert!(!b[shared..].iter().any(|hash| rest.contains(hash)), "{}", pair["name"]);
    }
}

fn wanted(pair: &Value) -> [u64; 3] {
    ["len_a", "len_b", "common_prefix_blocks"].map(|key| pair[key].as_u64().unwrap())
}

fn hashes_of(pair: &Value, side: &str) -> Vec<BlockHash> {
    let text = |key: &str| pair[side][key].as_str().unwrap();
    let tokens: Vec<u32> = serde_json::from_value(pair[side]["tokens"].clone()).unwrap();
    let tail = if pair["include_partial"] == true { Tail::Keep } else { Tail::Drop };
    let root = model_root(text("model"), text("salt"));
    token_block_hashes(root, &tokens, size(pair["block_size"].as_i64().unwrap()), tail)
}

/// Behaviours 9 and 10, on bodies.
#[test]
fn model_and_salt_are_told_apart_in_bodies() {
    let prompt = quoted(&prose(1000));
    let identities = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("ab", "d"), ("xb", "c")].map(
        |(model, salt)| {
            let body = format!(r#"{{"model":"{model}","cache_salt":"{salt}","prompt":{prompt}}}"#);
            only(&read(Api::Completions, body.as_bytes()).blocks)
        },
    );
    let distinct: HashSet<_> = identities.iter().flatten().collect();
    assert_eq!(distinct.len(), identities.len() * 4, "no block is shared");
}

/// Behaviour 11.
#[test]
fn equal_blocks_at_other_depths_differ() {
    let hashes = token_block_hashes(ROOT, &[7; 64], BlockSize::ENGINE, Tail::Keep);
    assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 4);
}

/// Behaviour 12: no two of 300,000 different blocks share a name, which 32 bits would not hold.
#[test]
fn hashes_are_wide() {
    let hashes = token_block_hashes(ROOT, &(0..300_000).collect::<Vec<_>>(), size(1), Tail::Keep);
    assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
    let low: HashSet<u32> = hashes.iter().map(|hash| hash.0 as u32).collect();
    assert!(low.len() < hashes.len(), "so many do collide in 32 bits, or this test shows nothing");
}

/// Behaviour 79.
#[test]
fn the_routers_block_is_64_pseudo_tokens_of_4_bytes_and_the_tail_counts() {
    assert_eq!(
        (PSEUDO_TOKEN_BYTES, BlockSize::default().tokens(), BlockSize::default().bytes()),
        (4, 64, 256)
    );
    for (bytes, blocks) in [(1, 1), (255, 1), (256, 1), (257, 2), (512, 2), (1000, 4)] {
        assert_eq!(completion(&quoted(&prose(bytes))).total(), blocks, "{bytes} bytes");
    }
    let (short, long) = (completion(&quoted(&prose(300))), completion(&quoted(&prose(310))));
    assert_eq!(common(&only(&short), &only(&long)), 1, "the tail is hashed as it is");
}

#[test]
fn prompts_of_one_request_each_start_from_the_root() {
    let mut cutter = Cutter::<Xxh3Chain>::new(ROOT, size(1));
    cutter.push(b"onlytext");
    cutter.end_prompt(Tail::Keep);
    cutter.end_prompt(Tail::Keep);
    cutter.push(b"onlytexts");
    let blocks = cutter.finish(Tail::Keep);
    let prompts: Vec<&[BlockHash]> = blocks.prompts().collect();
    assert_eq!(prompts.iter().map(|prompt| prompt.len()).collect::<Vec<_>>(), [2, 0, 3]);
    assert_eq!(prompts[0], &prompts[2][..2]);
    assert_eq!(blocks.total(), 5);
    assert_eq!(Blocks::default().prompts().count(), 1, "no blocks are one empty prompt");
}

proptest! {
    /// Behaviour 8: a change in block k changes block k and every later one, and none before.
    #[test]
    fn a_changed_token_changes_its_block_and_all_later(
        tokens in vec(0u32..9, 1..200), block in 1i64..20, place: prop::sample::Index, tail: bool,
    ) {
        let tail = if tail { Tail::Keep } else { Tail::Drop };
        let place = place.index(tokens.len());
        let mut other = tokens.clone();
        other[place] += 9;
        let hashes = |tokens: Vec<u32>| token_block_hashes(ROOT, &tokens, size(block), tail);
        let [before, after] = [tokens, other].map(hashes);
        let changed = (place / block as usize).min(before.len());
        prop_assert_eq!(&before[..changed], &after[..changed]);
        prop_assert!(before[changed..].iter().zip(&after[changed..]).all(|(a, b)| a != b));
    }

    /// A longer prompt keeps the hashes of the shorter's full blocks.
    #[test]
    fn hashes_of_a_prefix_are_a_prefix(
        tokens in vec(0u32..9, 0..200), cut: prop::sample::Index, block in 1i64..20,
    ) {
        let hashes = |tokens: &[u32]| token_block_hashes(ROOT, tokens, size(block), Tail::Drop);
        let cut = cut.index(tokens.len() + 1);
        prop_assert!(hashes(&tokens).starts_with(&hashes(&tokens[..cut])));
    }

    /// However the bytes are cut into pieces, the blocks are those of the whole.
    #[test]
    fn pieces_do_not_matter(pieces in vec(vec(any::<u8>(), 0..40), 0..20), block in 1i64..9) {
        let mut cutter = Cutter::<Xxh3Chain>::new(ROOT, size(block));
        pieces.iter().for_each(|piece| cutter.push(piece));
        let mut whole = Cutter::<Xxh3Chain>::new(ROOT, size(block));
        whole.push(&pieces.concat());
        prop_assert_eq!(cutter.finish(Tail::Keep), whole.finish(Tail::Keep));
    }
}
