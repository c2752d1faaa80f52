//! From the pieces of a canonical prompt to blocks: one trait, one file per tokenizer.

pub mod bytes;
pub mod words;

use crate::hash::Blocks;
use crate::memo::Section;

/// What a piece of a canonical prompt is. A tag is a byte that no UTF-8 text contains, so text can never be
/// mistaken for structure, whatever it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// The member's key has ended; its value follows.
    Value = 0xF7,
    /// The tools that follow are part of the prompt.
    Tools = 0xF8,
    /// A message begins; its role follows.
    Message = 0xF9,
    /// The message's content follows.
    Content = 0xFA,
    /// Another part of the same content.
    Part = 0xFB,
    /// Another member of the message; its key follows.
    Member = 0xFC,
    /// A value that is JSON, not text.
    Json = 0xFD,
    /// Token ids follow, four bytes each, to the prompt's end.
    Ids = 0xFE,
    /// An image, audio or video.
    Media = 0xFF,
}

/// An image, audio or video part: what it is, and how many tokens of context it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// Hash of its content (the URL, or the data).
    pub content: u64,
    /// An estimate; see `canonical/media.rs`.
    pub tokens: u32,
}

/// Takes the pieces of a canonical prompt in order and gives chained block hashes.
pub trait Tokenizer {
    /// Structure.
    fn tag(&mut self, tag: Tag);
    /// Text, in as many pieces as it comes; always UTF-8, or what UTF-8's rule gives for a lone surrogate.
    fn text(&mut self, text: &[u8]);
    /// JSON without insignificant space, in pieces.
    fn json(&mut self, json: &[u8]);
    /// A token id that the client gave.
    fn id(&mut self, id: u32);
    /// A media part.
    fn media(&mut self, media: Media);
    /// Takes what is known of this section of the body; gives how many bytes of its JSON that was.
    fn recall(&mut self, _section: Section) -> Option<usize> {
        None
    }
    /// The prompt ends and another, chained from the root again, follows.
    fn end_prompt(&mut self);
    /// All prompts have ended.
    fn finish(self) -> Blocks;
}

/// The tokenizers by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Four bytes of canonical prompt to a pseudo-token; needs no vocabulary. The default.
    #[default]
    Bytes,
    /// Word pieces, for the fake server's prompts.
    Words,
}

impl Kind {
    /// Their names, as configuration has them.
    pub const NAMES: [&'static str; 2] = ["bytes", "words"];

    /// The tokenizer of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Bytes, Self::Words].into_iter().find(|kind| kind.name() == name)
    }

    /// The name as configuration has it.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}
