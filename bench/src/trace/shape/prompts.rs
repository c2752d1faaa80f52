//! Prompts as rows of texts, and the ids of their blocks.

use std::collections::HashMap;

use picker::chance::mix;
use picker::hash::BlockSize;

/// A text of which nothing is known but that it is always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text {
    number: u64,
    tokens: u32,
}

/// Makes texts, and names the blocks of prompts in the order in which they first come.
pub(super) struct Writer {
    block_tokens: u32,
    texts: u64,
    /// By the chained hash of the block and all before it.
    ids: HashMap<u64, u64>,
}

impl Writer {
    /// Nothing is written yet.
    pub(super) fn new(block_size: BlockSize) -> Self {
        // A block size is made of a `u32`.
        let block_tokens = u32::try_from(block_size.tokens()).unwrap_or(u32::MAX);
        Self { block_tokens, texts: 0, ids: HashMap::new() }
    }

    /// A text that nobody has written before.
    pub(super) fn text(&mut self, tokens: u32) -> Text {
        self.texts += 1;
        Text { number: self.texts, tokens }
    }

    /// An id for each block of a prompt, the partial last one included. O(blocks + texts).
    pub(super) fn ids(&mut self, prompt: &[Text]) -> Vec<u64> {
        let mut ids = Vec::with_capacity(tokens(prompt).div_ceil(self.block_tokens) as usize);
        let (mut hash, mut filled) = (0, 0);
        for text in prompt {
            let mut from = 0;
            while from < text.tokens {
                let taken = (self.block_tokens - filled).min(text.tokens - from);
                hash = chained(hash, text.number, from, taken);
                (from, filled) = (from + taken, filled + taken);
                if filled == self.block_tokens {
                    ids.push(self.id(hash));
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            ids.push(self.id(hash));
        }
        ids
    }

    fn id(&mut self, hash: u64) -> u64 {
        let next = self.ids.len() as u64;
        *self.ids.entry(hash).or_insert(next)
    }
}

/// Length of a prompt.
pub(super) fn tokens(prompt: &[Text]) -> u32 {
    prompt.iter().fold(0, |sum, text| sum.saturating_add(text.tokens))
}

/// The hash of a piece of a text behind what `hash` is of.
fn chained(hash: u64, text: u64, from: u32, taken: u32) -> u64 {
    mix(mix(hash ^ mix(text)) ^ (u64::from(from) << 32 | u64::from(taken)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn equal_ids_are_equal_prefixes() {
        let mut writer = Writer::new(BlockSize::new(10).unwrap());
        let [a, b, c, long] = [25, 15, 7, 40].map(|tokens| writer.text(tokens));
        for (shows, prompt, want) in [
            ("a partial last block", &[a][..], &[0, 1, 2][..]),
            ("the same again", &[a], &[0, 1, 2]),
            ("what is filled up is another block", &[a, b], &[0, 1, 3, 4]),
            ("the prefix decides", &[b, a], &[5, 6, 7, 8]),
            ("a block of three texts", &[c, c, a], &[9, 10, 11, 12]),
            ("a longer end", &[a, c], &[0, 1, 13, 14]),
            ("full blocks only", &[long], &[15, 16, 17, 18]),
            ("nothing", &[], &[]),
        ] {
            assert_eq!(writer.ids(prompt), want, "{shows}");
        }
    }
}
