//! From a body's bytes to the members that routing needs, as spans of those bytes.
//!
//! The engine is the judge of a body: what cannot be read here is forwarded all the same and routed by load. Of
//! duplicate members the last counts, as in the engine (Python's json). The one exception is `cache_salt`: a tenant's
//! isolation hangs on it, so two of them are reported and the front refuses the request.

mod escape;
pub mod json;

use std::ops::Range;

pub use json::Broken;

/// Which prompt a path's body holds, and whether answering fills the engine's prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages` (Anthropic)
    Messages,
    /// `/v1/embeddings`
    Embeddings,
    /// `/tokenize` and token counting: has a prompt, fills no cache
    Tokenize,
    /// Anything else: routed by load alone
    Other,
}

/// Paths that are picked by prefix. A deployment may serve them below a path of its own, so the end decides; longer
/// ends first. Source: vLLM 0.32 `entrypoints/openai/api_server.py`.
const PATHS: [(&str, Api); 10] = [
    ("/v1/chat/completions", Api::Chat),
    ("/v1/completions", Api::Completions),
    ("/v1/responses", Api::Responses),
    ("/v1/messages", Api::Messages),
    ("/v1/embeddings", Api::Embeddings),
    ("/v2/embed", Api::Embeddings),
    ("/v1/messages/count_tokens", Api::Tokenize),
    ("/v1/chat/completions/render", Api::Tokenize),
    ("/v1/completions/render", Api::Tokenize),
    ("/tokenize", Api::Tokenize),
];

impl Api {
    /// The API of a POST to `path` (no query).
    pub fn of(path: &str) -> Self {
        let path = path.strip_suffix('/').unwrap_or(path);
        PATHS.iter().find(|(end, _)| path.ends_with(end)).map_or(Self::Other, |&(_, api)| api)
    }

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Tokenize => "tokenize",
            Self::Other => "other",
        }
    }

    /// Whether an engine that answers holds the prompt's KV cache afterwards.
    pub fn fills_cache(self) -> bool {
        !matches!(self, Self::Tokenize | Self::Other)
    }
}

macro_rules! members {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// The top-level members that routing reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Member {
            $(#[doc = concat!("`", $name, "`")] $variant),*
        }

        impl Member {
            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        const NAMES: &[&str] = &[$($name),*];
        const MEMBERS: &[Member] = &[$(Member::$variant),*];
    };
}

members! {
    Model = "model",
    CacheSalt = "cache_salt",
    Messages = "messages",
    Prompt = "prompt",
    Input = "input",
    Instructions = "instructions",
    System = "system",
    Tools = "tools",
    ChatTemplate = "chat_template",
    ChatTemplateKwargs = "chat_template_kwargs",
    Documents = "documents",
    ReasoningEffort = "reasoning_effort",
    Reasoning = "reasoning",
    AddSpecialTokens = "add_special_tokens",
    TruncatePromptTokens = "truncate_prompt_tokens",
    MmProcessorKwargs = "mm_processor_kwargs",
    PreviousResponseId = "previous_response_id",
    Conversation = "conversation",
    Thinking = "thinking",
    Stream = "stream",
}

/// The members of a request body, each a span of it. Some 20 pointers, no copy.
#[derive(Debug)]
pub struct Body<'a> {
    bytes: &'a [u8],
    /// Where the first member stands, or the closing brace: behind the opening one.
    inside: usize,
    members: [Option<&'a [u8]>; NAMES.len()],
    /// `cache_salt` stands in the body more than once.
    pub duplicate_salt: bool,
}

/// The beginning of an array that was read before, and is JSON and UTF-8.
pub(crate) struct Beginning {
    /// Its length: up to the end of an element that is an object, or of the array.
    pub(crate) bytes: usize,
    /// It is all of the array.
    pub(crate) is_whole: bool,
}

/// A body that routing cannot read; the engine may see it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Not valid UTF-8.
    #[error("not UTF-8")]
    Encoding,
    /// Not JSON, or not an object.
    #[error(transparent)]
    Syntax(#[from] Broken),
}

impl<'a> Body<'a> {
    /// Finds the members. One pass over the text, no copy, no recursion; O(body).
    pub fn read(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        Self::read_but(bytes, |_, _| None)
    }

    /// The same, but of a member's value `known` may say that so many bytes were read before: then they are neither
    /// searched nor checked again.
    pub(crate) fn read_but(
        bytes: &'a [u8],
        mut known: impl FnMut(Member, &'a [u8]) -> Option<Beginning>,
    ) -> Result<Self, Unreadable> {
        let mut unchecked = bytes;
        let mut is_utf8 = true;
        let mut check = |text: &[u8]| is_utf8 &= simdutf8::basic::from_utf8(text).is_ok();
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let text = &text[json::space(text, 0)..];
        let mut members = [None; NAMES.len()];
        let mut salts = 0;
        let end = json::walk_members(text, |key, rest| {
            let Some(member) = Member::of(key) else { return json::value_end(rest, 0) };
            let end = match known(member, rest) {
                None => json::value_end(rest, 0)?,
                Some(Beginning { bytes, is_whole }) => {
                    check(&unchecked[..unchecked.len() - rest.len()]);
                    unchecked = &rest[bytes..];
                    if is_whole { bytes } else { json::container_end(rest, bytes, 1)? }
                }
            };
            members[member as usize] = Some(&rest[..end]);
            salts += usize::from(member == Member::CacheSalt);
            Ok(end)
        });
        check(unchecked);
        if !is_utf8 {
            return Err(Unreadable::Encoding);
        }
        if json::space(text, end?) != text.len() {
            return Err(Broken { wanted: "nothing after the object" }.into());
        }
        let inside = bytes.len() - text.len() + 1;
        Ok(Self { bytes, inside, members, duplicate_salt: salts > 1 })
    }

    /// The raw value of a member, if the body has it.
    pub fn member(&self, member: Member) -> Option<&'a [u8]> {
        self.members[member as usize]
    }

    /// Where a member's raw value stands in the body, if the body has it.
    pub fn span(&self, member: Member) -> Option<Range<usize>> {
        let value = self.member(member)?;
        let start = value.as_ptr().addr() - self.bytes.as_ptr().addr();
        Some(start..start + value.len())
    }

    /// The place right behind the opening brace.
    pub fn inside(&self) -> usize {
        self.inside
    }

    /// Whether the body has no members at all.
    pub fn is_empty(&self) -> bool {
        self.bytes.get(json::space(self.bytes, self.inside)) == Some(&b'}')
    }

    /// The model's name, escapes resolved, if it is a string of at most `bytes_max` bytes.
    pub fn model(&self, bytes_max: usize) -> Option<String> {
        let raw = self.member(Member::Model).filter(|raw| raw.len() <= json::ESCAPE_BYTES * bytes_max + 2)?;
        let mut name = Vec::with_capacity(raw.len());
        json::unescape(raw, |piece| name.extend_from_slice(piece)).ok()?;
        String::from_utf8(name).ok().filter(|name| name.len() <= bytes_max)
    }

    /// Whether the client asked for a stream.
    pub fn stream(&self) -> bool {
        self.member(Member::Stream) == Some(b"true")
    }
}

impl Member {
    /// By the raw key. An escaped one is looked for name by name.
    fn of(key: &[u8]) -> Option<Self> {
        let plain = key.get(1..key.len() - 1).and_then(|name| std::str::from_utf8(name).ok())?;
        if plain.contains('\\') {
            return NAMES.iter().position(|name| json::is_name(key, name)).map(|place| MEMBERS[place]);
        }
        Self::named(plain)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn members_have_a_place() {
        for (text, inside, is_empty, span) in [
            ("{}", 1, true, None),
            (" { \n} ", 2, true, None),
            ("\u{feff}\t{\"model\":\"a\"}", 5, false, Some(13..16)),
            ("{\"x\":1}", 1, false, None),
            ("{\"model\":1,\"model\" : [2 ] }", 1, false, Some(21..25)),
            ("{\"mod\\u0065l\": null}", 1, false, Some(15..19)),
        ] {
            let body = Body::read(text.as_bytes()).unwrap();
            assert_eq!(
                (body.inside(), body.is_empty(), body.span(Member::Model)),
                (inside, is_empty, span.clone()),
                "{text}"
            );
            assert_eq!(span.map(|span| &text.as_bytes()[span]), body.member(Member::Model), "{text}");
        }
    }
}
