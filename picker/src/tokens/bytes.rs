//! The `bytes` tokenizer: blocks of the canonical bytes themselves.
//!
//! No vocabulary, no model: a pseudo-token is four bytes. Routing asks only whether two prompts begin alike, and
//! equal bytes are equal tokens.

use super::{Media, Tag, Tokenizer};
use crate::hash::{
    BlockHash, BlockSize, Blocks, Chain, Cutter, PSEUDO_TOKEN_BYTES, Tail, Unchained, Xxh3Chain,
};
use crate::memo::{Known, Section};

/// Tokens that all media of a request may weigh together; beyond, each part counts for one. A part of 17 bytes may be
/// worth 2,250 tokens: without a bound, 8 MiB of them cost seconds.
pub const MEDIA_TOKENS_MAX: u32 = 1 << 18;

/// Blocks over canonical bytes, the partial tail kept.
pub struct Bytes<'k, C = Xxh3Chain> {
    cutter: Cutter<C>,
    block_bytes: usize,
    media_tokens_left: u32,
    known: Option<&'k Knowns>,
}

/// What is known of a body, section by section.
pub(crate) type Knowns = [Option<Known>; 2];

impl<'k> Bytes<'k> {
    /// A tokenizer at the start of its first prompt; `expected_bytes` sizes the list of hashes.
    pub fn new(root: BlockHash, size: BlockSize, expected_bytes: usize) -> Self {
        let mut cutter = Cutter::new(root, size);
        cutter.reserve(expected_bytes);
        Self { cutter, block_bytes: size.bytes(), media_tokens_left: MEDIA_TOKENS_MAX, known: None }
    }

    /// The same, for a body of which this much is known.
    pub(crate) fn knowing(mut self, known: &'k Knowns) -> Self {
        self.known = Some(known);
        self
    }
}

/// What a memo keeps: contents' hashes, and the state behind them.
impl Bytes<'_, Unchained> {
    pub(crate) fn unchained(size: BlockSize) -> Self {
        let cutter = Cutter::new(BlockHash(0), size);
        Self { cutter, block_bytes: size.bytes(), media_tokens_left: MEDIA_TOKENS_MAX, known: None }
    }

    pub(crate) fn blocks(&self) -> &[BlockHash] {
        self.cutter.blocks()
    }

    pub(crate) fn partial(&self) -> &[u8] {
        self.cutter.partial()
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    pub(crate) fn media_tokens_left(&self) -> u32 {
        self.media_tokens_left
    }
}

impl<C: Chain> Tokenizer for Bytes<'_, C> {
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

    fn recall(&mut self, section: Section) -> Option<usize> {
        let known = self.known?[section as usize].as_ref()?;
        let resumed =
            known.resume(section, self.block_bytes, self.cutter.partial(), self.media_tokens_left)?;
        self.cutter.resume(resumed.contents, resumed.partial);
        self.media_tokens_left = resumed.media_tokens_left;
        Some(known.bytes())
    }

    fn end_prompt(&mut self) {
        self.cutter.end_prompt(Tail::Keep);
    }

    fn finish(self) -> Blocks {
        self.cutter.finish(Tail::Keep)
    }
}
