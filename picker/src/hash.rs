//! Chained block hashes: one hash names a whole prefix.
//!
//! A prompt is cut into blocks of a fixed size; each block's hash covers its content and its parent's hash, so
//! two prompts share hash `i` exactly when they share everything up to and including block `i`. The chain starts
//! from a root that stands for the identity (`identity.rs`), so that another model or salt shares nothing.
//!
//! The function is XXH3-64, unseeded: a seed would rebuild the secret for every block above 240 bytes and cost
//! more than twice the time. llm-d chains XXH64 instead; [`Xxh64Chain`] exists so that a test can rebuild its
//! published vectors from the same pieces. Nothing on the wire carries these hashes.

use std::marker::PhantomData;
use std::num::NonZeroU32;

use xxhash_rust::{xxh3, xxh64};

/// Bytes of one pseudo-token.
pub const PSEUDO_TOKEN_BYTES: usize = 4;

/// Names a block and all blocks before it, under one identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// Tokens in a block, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize(NonZeroU32);

/// A block size that cannot be: `block size must be positive, got N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block size must be positive, got {0}")]
pub struct BlockSizeError(pub i64);

impl BlockSize {
    /// 64 pseudo-tokens (256 bytes): the router's block for the `bytes` tokenizer.
    pub const ROUTER: Self = Self(NonZeroU32::new(64).expect("64 is not 0"));
    /// 16 tokens: vLLM's block, and the router's for the `words` tokenizer.
    pub const ENGINE: Self = Self(NonZeroU32::new(16).expect("16 is not 0"));

    /// Refuses 0, negative sizes and sizes above `u32`.
    pub fn new(tokens: i64) -> Result<Self, BlockSizeError> {
        let size = u32::try_from(tokens).ok().and_then(NonZeroU32::new);
        size.map(Self).ok_or(BlockSizeError(tokens))
    }

    /// The size in tokens.
    pub fn tokens(self) -> usize {
        self.0.get() as usize
    }

    /// The size in bytes, four to a token.
    pub fn bytes(self) -> usize {
        self.tokens() * PSEUDO_TOKEN_BYTES
    }
}

/// What becomes of a last block that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// It is hashed like a block: an exact repeat then matches whole. The router's choice.
    Keep,
    /// It is left out: engines cache full blocks only.
    Drop,
}

/// A hash of a block's content, and how it joins its parent's.
pub trait Chain {
    /// Hash of one block's bytes. Total, no errors.
    fn content(block: &[u8]) -> u64;
    /// The block's name, given its content's hash and its parent's name.
    fn join(content: u64, parent: BlockHash) -> BlockHash;
}

/// The router's chain: XXH3-64 of the content, then XXH3-64 of (content, parent).
#[derive(Clone, Copy, Debug)]
pub struct Xxh3Chain;

impl Chain for Xxh3Chain {
    fn content(block: &[u8]) -> u64 {
        xxh3::xxh3_64(block)
    }

    fn join(content: u64, parent: BlockHash) -> BlockHash {
        BlockHash(xxh3::xxh3_64(&pair(content, parent.0)))
    }
}

/// No chain: blocks stand as their contents' hashes, to be chained when a root is known.
#[derive(Clone, Copy, Debug)]
pub struct Unchained;

impl Chain for Unchained {
    fn content(block: &[u8]) -> u64 {
        Xxh3Chain::content(block)
    }

    fn join(content: u64, _parent: BlockHash) -> BlockHash {
        BlockHash(content)
    }
}

/// llm-d's chain, for differential tests: XXH64, seed 0, over (content, parent), both little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Xxh64Chain;

impl Chain for Xxh64Chain {
    fn content(block: &[u8]) -> u64 {
        xxh64::xxh64(block, 0)
    }

    fn join(content: u64, parent: BlockHash) -> BlockHash {
        BlockHash(xxh64::xxh64(&pair(content, parent.0), 0))
    }
}

fn pair(first: u64, second: u64) -> [u8; 16] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&first.to_le_bytes());
    both[8..].copy_from_slice(&second.to_le_bytes());
    both
}

/// The block hashes of a request: one run per prompt, each chained from the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    hashes: Vec<BlockHash>,
    /// Where each prompt but the last ends in `hashes`.
    cuts: Vec<u32>,
}

impl Blocks {
    /// One prompt with these hashes, first block first.
    pub fn one(hashes: Vec<BlockHash>) -> Self {
        Self { hashes, cuts: Vec::new() }
    }

    /// Blocks of all prompts together.
    pub fn total(&self) -> usize {
        self.hashes.len()
    }

    /// The runs, one per prompt, in the order of the request. Runs may be empty.
    pub fn prompts(&self) -> impl Iterator<Item = &[BlockHash]> {
        let ends = self.cuts.iter().map(|&cut| cut as usize).chain([self.hashes.len()]);
        let starts = [0].into_iter().chain(self.cuts.iter().map(|&cut| cut as usize));
        starts.zip(ends).map(|(start, end)| &self.hashes[start..end])
    }
}

/// Cuts a stream of bytes into blocks and chains their hashes. Never holds more than one block of bytes.
///
/// HOT: `bench/benches/decide.rs`. O(bytes); whole blocks are hashed where they lie, only a block that straddles
/// two pieces is copied.
#[derive(Debug)]
pub struct Cutter<C> {
    root: BlockHash,
    parent: BlockHash,
    block_bytes: usize,
    partial: Vec<u8>,
    blocks: Blocks,
    chain: PhantomData<C>,
}

impl<C: Chain> Cutter<C> {
    /// A cutter at the start of its first prompt.
    pub fn new(root: BlockHash, size: BlockSize) -> Self {
        let block_bytes = size.bytes();
        let partial = Vec::with_capacity(block_bytes);
        Self { root, parent: root, block_bytes, partial, blocks: Blocks::default(), chain: PhantomData }
    }

    /// Makes room for the blocks of `bytes` more bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.blocks.hashes.reserve(bytes / self.block_bytes + 1);
    }

    /// Appends bytes of the current prompt.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let wanted = self.block_bytes - self.partial.len();
        if bytes.len() < wanted {
            return self.partial.extend_from_slice(bytes);
        }
        if !self.partial.is_empty() {
            let (now, rest) = bytes.split_at(wanted);
            self.partial.extend_from_slice(now);
            self.link(C::content(&self.partial));
            self.partial.clear();
            bytes = rest;
        }
        let mut whole = bytes.chunks_exact(self.block_bytes);
        for block in &mut whole {
            self.link(C::content(block));
        }
        self.partial.extend_from_slice(whole.remainder());
    }

    /// Appends one byte of the current prompt.
    pub fn push_byte(&mut self, byte: u8) {
        self.partial.push(byte);
        if self.partial.len() == self.block_bytes {
            self.link(C::content(&self.partial));
            self.partial.clear();
        }
    }

    /// Appends blocks of which only the contents' hashes are known, and the bytes after them.
    ///
    /// Whatever stood in the partial block is part of the first of them.
    pub fn resume(&mut self, contents: &[u64], partial: &[u8]) {
        self.partial.clear();
        self.partial.extend_from_slice(partial);
        contents.iter().for_each(|&content| self.link(content));
    }

    /// The blocks that are full.
    pub fn blocks(&self) -> &[BlockHash] {
        &self.blocks.hashes
    }

    /// The bytes that do not fill a block yet.
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// Ends the current prompt; what is pushed next starts again from the root.
    pub fn end_prompt(&mut self, tail: Tail) {
        self.close(tail);
        self.blocks.cuts.push(u32::try_from(self.blocks.hashes.len()).unwrap_or(u32::MAX));
        self.parent = self.root;
    }

    /// Ends the last prompt and gives the blocks.
    pub fn finish(mut self, tail: Tail) -> Blocks {
        self.close(tail);
        self.blocks
    }

    fn close(&mut self, tail: Tail) {
        if tail == Tail::Keep && !self.partial.is_empty() {
            self.link(C::content(&self.partial));
        }
        self.partial.clear();
    }

    fn link(&mut self, content: u64) {
        self.parent = C::join(content, self.parent);
        self.blocks.hashes.push(self.parent);
    }
}

/// Chained hashes of a prompt given as token ids, first block first.
///
/// `floor(tokens / size)` hashes, one more for a partial tail that is kept. O(tokens), two allocations.
pub fn token_block_hashes(root: BlockHash, tokens: &[u32], size: BlockSize, tail: Tail) -> Vec<BlockHash> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut cutter = Cutter::<Xxh3Chain>::new(root, size);
    cutter.reserve(bytes.len());
    cutter.push(&bytes);
    cutter.finish(tail).hashes
}

/// The root of an identity that is only a model and a salt, as the engine model has it.
pub fn model_root(model: &str, salt: &str) -> BlockHash {
    let mut root = crate::identity::Root::default();
    root.text(b'm', model.as_bytes());
    root.text(b's', salt.as_bytes());
    root.finish()
}

impl Default for BlockSize {
    fn default() -> Self {
        Self::ROUTER
    }
}
