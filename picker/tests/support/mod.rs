//! What the tests of this crate share: the fixtures, and the shortest way from a body to its blocks.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used)]

use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Ask, Decision, Reading, Rules, decide};
use picker::hash::{BlockHash, BlockSize, Blocks};
use picker::read::Api;
use picker::tokens::Kind;

/// For tests in which chance decides nothing.
pub(crate) const DRAW: Draw = Draw { seed: 0, turn: 0 };

/// A JSON file of `fixtures/seed`.
pub(crate) fn seed(name: &str) -> serde_json::Value {
    serde_json::from_str(&seed_text(name)).unwrap()
}

/// A file of `fixtures/seed`, as text.
pub(crate) fn seed_text(name: &str) -> String {
    let path = format!("{}/tests/fixtures/seed/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What `decide` makes of a body that no endpoint is there for, under the router's defaults.
pub(crate) fn read(api: Api, body: &[u8]) -> Decision {
    read_with(api, body, &Rules::default())
}

/// The same under other rules.
pub(crate) fn read_with(api: Api, body: &[u8], rules: &Rules) -> Decision {
    decide(&Ask { api, body, tenant: b"", session: b"" }, &[], &Index::default(), rules, DRAW).unwrap()
}

/// The blocks of a body that has a prompt.
pub(crate) fn blocks(api: Api, body: &str) -> Blocks {
    let decision = read(api, body.as_bytes());
    assert_eq!(decision.reading, Reading::Prompt, "{body:.200}");
    decision.blocks
}

/// The blocks of a chat with these messages (a JSON array).
pub(crate) fn chat(messages: &str) -> Blocks {
    blocks(Api::Chat, &format!(r#"{{"model":"m","messages":{messages}}}"#))
}

/// The blocks of a completion of this prompt (any JSON).
pub(crate) fn completion(prompt: &str) -> Blocks {
    blocks(Api::Completions, &format!(r#"{{"model":"m","prompt":{prompt}}}"#))
}

/// One hash for each word piece of a body: equal leading hashes are equal leading tokens.
pub(crate) fn words(api: Api, body: &str) -> Vec<BlockHash> {
    let rules = Rules { tokenizer: Kind::Words, block: BlockSize::new(1).unwrap(), ..Rules::default() };
    only(&read_with(api, body.as_bytes(), &rules).blocks)
}

/// The hashes of a request with one prompt.
pub(crate) fn only(blocks: &Blocks) -> Vec<BlockHash> {
    let prompts: Vec<_> = blocks.prompts().collect();
    assert_eq!(prompts.len(), 1, "one prompt");
    prompts[0].to_vec()
}

/// Length of the leading run in which both are equal.
pub(crate) fn common(a: &[BlockHash], b: &[BlockHash]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Blocks of `later` that an endpoint is credited with after it took `first`.
pub(crate) fn credited(first: &Blocks, later: &Blocks) -> u32 {
    let index = index(&[100_000]);
    index.commit(EndpointId(0), first, false);
    index.matched(EndpointId(0), later)
}

/// An index of endpoints 0, 1, ... with these capacities.
pub(crate) fn index(capacities: &[usize]) -> Index {
    let index = Index::for_fleet(capacities.len(), 0).unwrap();
    (0..).zip(capacities).for_each(|(id, &capacity)| index.join(EndpointId(id), capacity).unwrap());
    index
}

/// `text` as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// `bytes` bytes of text in which no two places look alike.
pub(crate) fn prose(bytes: usize) -> String {
    let mut text: String = (0..=bytes / 6).map(|word| format!("w{word:04} ")).collect();
    text.truncate(bytes);
    text
}
