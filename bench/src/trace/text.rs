//! Text for prompts of which only the ids of their blocks are known, so that a trace in Mooncake's form can be sent to
//! real servers.
//!
//! A block's words hang on its id alone, so equal ids give equal text, and prompts share as much as their traces say. The
//! words are those of generated traces: one token each to the fake server, and about one in the vocabularies of common
//! models. Integer arithmetic only: the same text in every run and on every machine. Nothing is kept between prompts.

use picker::hash::BlockSize;

use super::words::WORDS;

/// Blocks of fewer words begin with their id: so few words of so few could be equal by chance.
const PLAIN_WORDS_MIN: usize = 8;

/// How block ids become text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wording {
    block_tokens: usize,
    tokens_per_word: f64,
}

impl Wording {
    /// Blocks of that size, told in words of that many tokens each; 1 is exact for the fake server. Anything that is not
    /// above 0 counts as 1.
    pub fn new(block: BlockSize, tokens_per_word: f64) -> Self {
        let tokens_per_word = if tokens_per_word > 0.0 { tokens_per_word } else { 1.0 };
        Self { block_tokens: block.tokens(), tokens_per_word }
    }

    /// A prompt of `tokens`, of which each block has an id, the last for what is left. O(tokens).
    ///
    /// Each word has a space behind it, the last as well: to the `words` tokenizer it belongs to the word, and a block must
    /// not change when another follows.
    pub fn prompt(&self, hash_ids: &[u64], tokens: u32) -> String {
        let mut left = self.words(tokens as usize);
        let mut text = String::with_capacity(left.saturating_mul(8));
        for &id in hash_ids {
            let words = left.min(self.words(self.block_tokens).max(1));
            self.push_block(&mut text, id, words);
            left -= words;
        }
        text
    }

    fn words(&self, tokens: usize) -> usize {
        (tokens as f64 / self.tokens_per_word).round() as usize
    }

    fn push_block(&self, text: &mut String, id: u64, words: usize) {
        let seed = picker::chance::mix(id);
        for place in 0..words {
            if place == 0 && self.words(self.block_tokens) < PLAIN_WORDS_MIN {
                text.push('b');
                text.push_str(&id.to_string());
            } else {
                text.push_str(word(seed.wrapping_add(place as u64)));
            }
            text.push(' ');
        }
    }
}

fn word(seed: u64) -> &'static str {
    let place = picker::chance::mix(seed) % WORDS.len() as u64;
    WORDS.get(place as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use picker::tokens::words::{fnv1a32, token_ids};

    use super::*;

    fn wording(block: i64, tokens_per_word: f64) -> Wording {
        Wording::new(BlockSize::new(block).unwrap(), tokens_per_word)
    }

    #[test]
    fn a_prompt_has_its_tokens_and_shares_its_blocks() {
        for block in [1, 4, 16, 512] {
            let wording = wording(block, 1.0);
            let tokens = |ids: &[u64], count| token_ids(&wording.prompt(ids, count));
            let size = block as usize;
            let long = tokens(&[7, 8, 9, 10], block as u32 * 4);
            let short = tokens(&[7, 8, 11], block as u32 * 3);
            assert_eq!((long.len(), short.len()), (size * 4, size * 3), "block {block}");
            assert_eq!(long[..size * 2], short[..size * 2], "block {block}");
            assert_ne!(long[size * 2..size * 3], short[size * 2..], "block {block}");
        }
    }

    #[test]
    fn the_last_block_may_be_partial_and_an_odd_count_of_ids_does_no_harm() {
        let wording = wording(16, 1.0);
        assert_eq!(token_ids(&wording.prompt(&[1, 2], 21)).len(), 21);
        assert_eq!(token_ids(&wording.prompt(&[1, 2, 3], 21)).len(), 21, "an id too many");
        assert_eq!(token_ids(&wording.prompt(&[1], 21)).len(), 16, "an id too few");
        assert_eq!(wording.prompt(&[], 0), "");
    }

    #[test]
    fn blocks_differ_even_where_they_are_small() {
        let wording = wording(1, 1.0);
        let texts: std::collections::HashSet<String> = (0..1000).map(|id| wording.prompt(&[id], 1)).collect();
        assert_eq!(texts.len(), 1000);
    }

    #[test]
    fn words_of_several_tokens_are_fewer() {
        let text = wording(64, 1.25).prompt(&[1, 2], 100);
        assert_eq!(text.split_whitespace().count(), 80);
        assert_eq!(wording(64, 0.0), wording(64, 1.0));
    }

    /// Whoever compares two runs, of two machines, has sent the same text.
    #[test]
    fn the_text_is_pinned() {
        let text = wording(8, 1.0).prompt(&[0, u64::MAX], 12);
        assert_eq!(fnv1a32(text.as_bytes()), PINNED, "{text}");
    }

    const PINNED: u32 = 3_451_741_156;
}
