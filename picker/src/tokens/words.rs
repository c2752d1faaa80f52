//! The `words` tokenizer: word pieces with FNV-1a ids, for the simulator and the fake server.
//!
//! A real engine's tokens depend on its vocabulary. This rule needs none and still gives token counts near a real
//! one's, so a fake engine and a router can agree on what a block is. A token is one character of the
//! punctuation set or a run of word characters, together with the white space after it; its id is the 32-bit FNV-1a of
//! its UTF-8 bytes. Characters of neither class, and leading white space, yield nothing.

use super::{Media, Tag, Tokenizer};
use crate::hash::{BlockHash, BlockSize, Blocks, Cutter, Tail, Xxh3Chain};

/// A punctuation mark is a token of its own, an underscore at the start of a word too.
const PUNCTUATION: &str = "{}:,-.?!;@#$%^&*()+_~/\\><[]=\"'";

/// The pieces of a text, in order. Concatenated they are the text less what is in neither class.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| !is_punctuation(c) && !is_word(c));
        let first = rest.chars().next()?;
        let body = if is_punctuation(first) { first.len_utf8() } else { end_of(rest, is_word) };
        let piece = body + end_of(&rest[body..], char::is_whitespace);
        let (now, later) = rest.split_at(piece);
        rest = later;
        Some(now)
    })
}

/// The token ids of a text.
pub fn token_ids(text: &str) -> Vec<u32> {
    pieces(text).map(|piece| fnv1a32(piece.as_bytes())).collect()
}

/// 32-bit FNV-1a: offset basis 2166136261, prime 16777619.
pub fn fnv1a32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn end_of(text: &str, inside: impl Fn(char) -> bool) -> usize {
    text.find(|c| !inside(c)).unwrap_or(text.len())
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii() && PUNCTUATION.as_bytes().contains(&(c as u8))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Renders message contents joined by one newline, without roles, and blocks the pieces.
///
/// Only text counts: tags, tools and media are left out, as the fake server leaves them out.
#[derive(Debug)]
pub struct Words {
    cutter: Cutter<Xxh3Chain>,
    text: Vec<u8>,
    ids: Vec<u32>,
    messages: usize,
    /// Whether what comes is content: a role, a name or a tool is not.
    content: bool,
}

impl Words {
    /// A tokenizer at the start of its first prompt.
    pub fn new(root: BlockHash, size: BlockSize) -> Self {
        let cutter = Cutter::new(root, size);
        Self { cutter, text: Vec::new(), ids: Vec::new(), messages: 0, content: true }
    }

    fn flush(&mut self) {
        let text = String::from_utf8_lossy(&self.text);
        for id in pieces(&text).map(|piece| fnv1a32(piece.as_bytes())) {
            self.cutter.push(&id.to_le_bytes());
        }
        for id in self.ids.drain(..) {
            self.cutter.push(&id.to_le_bytes());
        }
        self.text.clear();
        self.messages = 0;
        self.content = true;
    }
}

impl Tokenizer for Words {
    fn tag(&mut self, tag: Tag) {
        self.content = matches!(tag, Tag::Content | Tag::Part | Tag::Ids);
        if tag == Tag::Content {
            if self.messages > 0 {
                self.text.push(b'\n');
            }
            self.messages += 1;
        }
    }

    fn text(&mut self, text: &[u8]) {
        if self.content {
            self.text.extend_from_slice(text);
        }
    }

    fn json(&mut self, _json: &[u8]) {}

    fn id(&mut self, id: u32) {
        self.ids.push(id);
    }

    fn media(&mut self, _media: Media) {}

    fn end_prompt(&mut self) {
        self.flush();
        self.cutter.end_prompt(Tail::Keep);
    }

    fn finish(mut self) -> Blocks {
        self.flush();
        self.cutter.finish(Tail::Keep)
    }
}
