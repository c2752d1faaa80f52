//! The `bytes` tokenizer: blocks of the canonical bytes themselves.
//!
//! No vocabulary, no model: a pseudo-token is four bytes. Routing asks only whether two prompts begin alike, and
//! equal bytes are equal tokens.

use super::{Media, Tag, Tokenizer};
use crate::hash::{BlockHash, BlockSize, Blocks, Cutter, PSEUDO_TOKEN_BYTES, Tail, Xxh3Chain};

/// Tokens that all media of a request may weigh together; beyond, each part counts for one. A part of 17 bytes may be
/// worth 2,250 tokens: without a bound, 8 MiB of them cost seconds.
pub const MEDIA_TOKENS_MAX: u32 = 1 << 18;

/// Blocks over canonical bytes, the partial tail kept.
#[derive(Debug)]
pub struct Bytes {
    cutter: Cutter<Xxh3Chain>,
    media_tokens_left: u32,
}

impl Bytes {
    /// A tokenizer at the start of its first prompt; `expected_bytes` sizes the list of hashes.
    pub fn new(root: BlockHash, size: BlockSize, expected_bytes: usize) -> Self {
        let mut cutter = Cutter::new(root, size);
        cutter.reserve(expected_bytes);
        Self { cutter, media_tokens_left: MEDIA_TOKENS_MAX }
    }
}

impl Tokenizer for Bytes {
    fn tag(&mut self, tag: Tag) {
        self.cutter.push_byte(tag as u8);
    }

    fn text(&mut self, text: &[u8]) {
        self.cutter.push(text);
    }

    fn json(&mut self, json: &[u8]) {
        self.cutter.push(json);
    }

    fn id(&mut self, id: u32) {
        self.cutter.push(&id.to_le_bytes());
    }

    /// The content's hash as often as it takes to weigh what the media weighs, two pseudo-tokens each.
    fn media(&mut self, media: Media) {
        let hash = media.content.to_le_bytes();
        let tokens = media.tokens.min(self.media_tokens_left);
        self.media_tokens_left -= tokens;
        for _ in 0..(tokens.max(1) as usize).div_ceil(hash.len() / PSEUDO_TOKEN_BYTES) {
            self.cutter.push(&hash);
        }
    }

    fn end_prompt(&mut self) {
        self.cutter.end_prompt(Tail::Keep);
    }

    fn finish(self) -> Blocks {
        self.cutter.finish(Tail::Keep)
    }
}
