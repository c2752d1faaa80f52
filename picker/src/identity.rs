//! Under what a prefix is shared: the root of the hash chain.
//!
//! Two requests may use each other's KV cache only under the same model (the adapter's name included), the same
//! `cache_salt`, the same tenant and the same members that change what the chat template renders. Each part enters
//! the root tagged and length-prefixed, so (ab, c) and (a, bc) differ and a salt is never taken for a model.

use xxhash_rust::xxh3::xxh3_64;

use crate::hash::BlockHash;
use crate::read::{Body, Broken, Member, json};

/// Members besides model and salt that change the engine's prompt from its first token on, or that stand for
/// text which this router does not see (`previous_response_id`).
/// Source: vLLM 0.32 `ChatCompletionRequest`, `CompletionRequest`, `ResponsesRequest`.
const TEMPLATE_MEMBERS: [Member; 11] = [
    Member::ChatTemplate,
    Member::ChatTemplateKwargs,
    Member::Documents,
    Member::ReasoningEffort,
    Member::Reasoning,
    Member::AddSpecialTokens,
    Member::TruncatePromptTokens,
    Member::MmProcessorKwargs,
    Member::PreviousResponseId,
    Member::Conversation,
    Member::Thinking,
];

/// The root of a request's hash chain. `tenant` is a salt that the edge adds for whom it knows, empty for nobody.
///
/// Absent and null are the same; `""` is not, nor is `7` the same as `"7"`. Errors: a string with a broken escape.
pub fn root(body: &Body<'_>, tenant: &[u8]) -> Result<BlockHash, Broken> {
    let mut root = Root::default();
    if !tenant.is_empty() {
        root.text(b't', tenant);
    }
    root.member(b'm', body.member(Member::Model))?;
    root.member(b's', body.member(Member::CacheSalt))?;
    for (place, member) in (b'0'..).zip(TEMPLATE_MEMBERS) {
        root.member(place, body.member(member))?;
    }
    Ok(root.finish())
}

/// Collects the tagged, length-prefixed parts of an identity.
#[derive(Default)]
pub(crate) struct Root {
    parts: Vec<u8>,
}

impl Root {
    /// A part that is plain text.
    pub(crate) fn text(&mut self, tag: u8, text: &[u8]) {
        let start = self.open([tag, b'"']);
        self.parts.extend_from_slice(text);
        self.close(start);
    }

    /// A part that is a member's raw JSON: strings unescaped, others without insignificant space.
    fn member(&mut self, tag: u8, raw: Option<&[u8]>) -> Result<(), Broken> {
        let Some(raw) = raw.filter(|raw| *raw != b"null") else { return Ok(()) };
        let is_text = raw.first() == Some(&b'"');
        let start = self.open([tag, if is_text { b'"' } else { b'{' }]);
        if is_text {
            json::unescape(raw, |piece| self.parts.extend_from_slice(piece))?;
        } else {
            json::compact(raw, |piece| self.parts.extend_from_slice(piece));
        }
        self.close(start);
        Ok(())
    }

    /// Begins a part, its length still open; gives where its bytes start.
    fn open(&mut self, tag: [u8; 2]) -> usize {
        self.parts.extend_from_slice(&tag);
        self.parts.extend_from_slice(&[0; LENGTH_BYTES]);
        self.parts.len()
    }

    fn close(&mut self, start: usize) {
        let length = (self.parts.len() - start) as u64;
        self.parts[start - LENGTH_BYTES..start].copy_from_slice(&length.to_le_bytes());
    }

    pub(crate) fn finish(self) -> BlockHash {
        BlockHash(xxh3_64(&self.parts))
    }
}

const LENGTH_BYTES: usize = size_of::<u64>();
