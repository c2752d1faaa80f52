//! Bodies of requests: what the scanner takes of them is what serde_json reads, and what is decided hangs on nothing else.
//!
//! The first byte chooses the API, `1` to `7`, and with its highest bit the tokenizer; the rest is the body.

use std::sync::LazyLock;

use picker::belief::Index;
use picker::chance::Draw;
use picker::decide::{Ask, Decision, MODEL_BYTES_MAX, Reading, Refusal, Rules, decide};
use picker::hash::BlockHash;
use picker::read::{Api, Body, Member, Unreadable};
use picker::tokens::Kind;

use super::json::{Members, elements};

/// In the order of the digits that stand for them.
pub(crate) const APIS: [Api; 7] =
    [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Embeddings, Api::Tokenize, Api::Other];

/// Members that are compared one by one.
const MEMBERS: [(&str, Member); 8] = [
    ("model", Member::Model),
    ("cache_salt", Member::CacheSalt),
    ("messages", Member::Messages),
    ("prompt", Member::Prompt),
    ("input", Member::Input),
    ("system", Member::System),
    ("tools", Member::Tools),
    ("stream", Member::Stream),
];

/// Blocks that all media of a request may be worth: [`picker::tokens::bytes::MEDIA_TOKENS_MAX`], four bytes a token.
const MEDIA_BLOCKS_MAX: usize = 4_096;
/// A turn that is added to a conversation.
const TURN: &str = r#"{"role":"user","content":"and then?"}"#;

static NOBODY: LazyLock<Index> = LazyLock::new(Index::default);

/// Runs the oracle. Panics where it does not hold.
pub(crate) fn run(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else { return };
    let api = APIS[usize::from(first & 0x7f) % APIS.len()];
    let tokenizer = if first & 0x80 == 0 { Kind::Bytes } else { Kind::Words };
    let rules = Rules { tokenizer, ..Rules::default() };
    let read = Body::read(body);
    let is_text = std::str::from_utf8(body).is_ok();
    assert_eq!(matches!(read, Err(Unreadable::Encoding)), !is_text, "only what is no UTF-8 is told as such");
    let decided = outcome(api, body, &rules);
    bounded(&decided, body.len());
    let Some(members) = Members::of(body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)) else { return };
    let read = read.expect("serde_json reads it");
    agrees(&read, &members, body);
    let Ok(decision) = decided else {
        assert!(api != Api::Other && read.duplicate_salt, "no other refusal");
        return;
    };
    read_alike(api, &decision, &members);
    spaces_do_not_matter(api, body, &rules, &decision);
    a_turn_keeps_the_blocks(api, body, &read, &rules, &decision);
}

fn outcome(api: Api, body: &[u8], rules: &Rules) -> Result<Decision, Refusal> {
    let ask = Ask { api, body, tenant: b"", session: b"" };
    decide(&ask, &[], &NOBODY, rules, Draw { seed: 0, turn: 0 })
}

/// No body makes more blocks than it has bytes, media aside.
fn bounded(decided: &Result<Decision, Refusal>, bytes: usize) {
    if let Ok(decision) = decided {
        let blocks = decision.blocks.total();
        assert!(blocks <= bytes + MEDIA_BLOCKS_MAX, "{blocks} blocks of {bytes} bytes");
        assert!(decision.reading == Reading::Prompt || blocks == 0, "blocks of no prompt");
    }
}

/// The scanner's members are serde_json's: of two the last, byte for byte, each at its place.
fn agrees(read: &Body<'_>, members: &Members<'_>, body: &[u8]) {
    for (name, member) in MEMBERS {
        let raw = read.member(member);
        assert_eq!(raw, members.last(name).map(str::as_bytes), "{name}");
        assert_eq!(read.span(member).map(|span| &body[span]), raw, "the place of {name}");
    }
    let salts = members.0.iter().filter(|(key, _)| key == "cache_salt").count();
    assert_eq!(read.duplicate_salt, salts > 1);
    assert_eq!(read.is_empty(), members.0.is_empty());
    assert_eq!(body[read.inside() - 1], b'{', "inside of the object");
}

/// What the decision says of the body, beside the prompt.
fn read_alike(api: Api, decision: &Decision, members: &Members<'_>) {
    if api == Api::Other {
        return;
    }
    let model = members.last("model").and_then(|raw| serde_json::from_str::<String>(raw).ok());
    assert_eq!(decision.model, model.filter(|model| model.len() <= MODEL_BYTES_MAX));
    assert_eq!(decision.stream, members.last("stream") == Some("true"));
}

/// Members of a body are read the same with white space wherever JSON allows it.
fn spaces_do_not_matter(api: Api, body: &[u8], rules: &Rules, decision: &Decision) {
    let spaced = outcome(api, &spaced(body), rules).expect("it has no other members");
    assert_eq!(spaced.reading, decision.reading);
    assert_eq!(spaced.blocks, decision.blocks);
    assert_eq!((&spaced.model, spaced.stream), (&decision.model, decision.stream));
}

/// Valid JSON with white space on both sides of everything that is no string and no part of a word.
fn spaced(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() * 3);
    let (mut inside, mut escaped) = (false, false);
    for &byte in body {
        let is_structure = !inside && matches!(byte, b'{' | b'}' | b'[' | b']' | b',' | b':');
        if is_structure {
            out.extend_from_slice(&[b' ', byte, b'\n']);
        } else {
            out.push(byte);
        }
        inside ^= byte == b'"' && !escaped;
        escaped = inside && byte == b'\\' && !escaped;
    }
    out
}

/// A conversation with one more turn keeps all its blocks, the last one aside, which may not be full.
fn a_turn_keeps_the_blocks(api: Api, body: &[u8], read: &Body<'_>, rules: &Rules, decision: &Decision) {
    let list = match api {
        Api::Chat | Api::Messages => Member::Messages,
        Api::Responses => Member::Input,
        _ => return,
    };
    let Some((at, list)) = read.span(list).zip(read.member(list)) else { return };
    let Some(turns) = std::str::from_utf8(list).ok().and_then(elements) else { return };
    let comma = if turns.is_empty() { "" } else { "," };
    let (before, after) = body.split_at(at.end - 1);
    let longer = [before, comma.as_bytes(), TURN.as_bytes(), after].concat();
    let longer = outcome(api, &longer, rules).expect("the same members");
    if let Reading::Unreadable(_) = decision.reading {
        return;
    }
    assert_eq!(longer.reading, Reading::Prompt);
    let [short, long] = [decision, &longer].map(only);
    let same = short.iter().zip(&long).take_while(|(one, other)| one == other).count();
    assert!(same + 1 >= short.len(), "{same} blocks of {} are kept", short.len());
}

fn only(decision: &Decision) -> Vec<BlockHash> {
    decision.blocks.prompts().next().unwrap_or_default().to_vec()
}
