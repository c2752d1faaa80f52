//! llm-d's own block hashes, rebuilt from our pieces.
//!
//! That the chain, the blocks, the scanner and the order of a prompt's parts give llm-d's published figures to the
//! last bit shows that they are what we take them for. Only the layout is upstream's: its tokenizer below keeps no
//! structure, forgets tool calls and pads to four bytes. Source: llm-d-router, commit ebab687, `estimate.go` and
//! `hashing.go`; `fixtures/SOURCES.md` says how the vectors were made.
//!
//! Upstream's number 12 was never published. All others are here; of GV5, GV6, GV10, GV14 and GV15 the test writes the
//! flattened bytes itself, since they are a Go program's re-serialisation of the request, which this router never makes.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::canonical;
use picker::hash::{BlockHash, BlockSize, Blocks, Chain, Cutter, PSEUDO_TOKEN_BYTES, Tail, Xxh64Chain};
use picker::read::{Api, Body, Member, json};
use picker::tokens::{Media, Tag, Tokenizer};
use support::quoted;

/// llm-d's layout: roles and contents without separators, four bytes to a token, the last one padded with zeros.
struct LlmD {
    cutter: Cutter<Xxh64Chain>,
    pushed: usize,
    /// Whether what comes is role or content.
    counts: bool,
    /// Anthropic's system text has no role there; ours stands as a message of that role.
    skips_first_role: bool,
}

impl LlmD {
    fn new(root: BlockHash, block: BlockSize) -> Self {
        Self { cutter: Cutter::new(root, block), pushed: 0, counts: true, skips_first_role: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.cutter.push(bytes);
        self.pushed += bytes.len();
    }

    fn pad(&mut self) {
        let missing = self.pushed.next_multiple_of(PSEUDO_TOKEN_BYTES) - self.pushed;
        self.push(&[0; PSEUDO_TOKEN_BYTES][..missing]);
    }

    /// As llm-d has it: the low half of XXH64 over the address, once a token.
    fn picture(&mut self, address: &str, tokens: usize) {
        self.pad();
        let hash = Xxh64Chain::content(address.as_bytes()).to_le_bytes();
        (0..tokens).for_each(|_| self.push(&hash[..PSEUDO_TOKEN_BYTES]));
    }
}

impl Tokenizer for LlmD {
    fn tag(&mut self, tag: Tag) {
        let role = tag == Tag::Message && !std::mem::take(&mut self.skips_first_role);
        self.counts = role || matches!(tag, Tag::Content | Tag::Part | Tag::Ids);
    }

    fn text(&mut self, text: &[u8]) {
        if self.counts {
            self.push(text);
        }
    }

    fn json(&mut self, _json: &[u8]) {}

    fn id(&mut self, id: u32) {
        self.push(&id.to_le_bytes());
    }

    fn media(&mut self, _media: Media) {}

    fn end_prompt(&mut self) {
        self.pad();
        self.cutter.end_prompt(Tail::Keep);
    }

    fn finish(mut self) -> Blocks {
        self.pad();
        self.cutter.finish(Tail::Keep)
    }
}

/// Model and salt run into each other there; ours are told apart (GV11).
fn seed(model: &str, salt: &str) -> BlockHash {
    BlockHash(Xxh64Chain::content(&[model, salt].concat().into_bytes()))
}

fn text_of(body: &Body<'_>, member: Member) -> String {
    let mut text = Vec::new();
    if let Some(raw) = body.member(member) {
        json::unescape(raw, |piece| text.extend_from_slice(piece)).unwrap();
    }
    String::from_utf8(text).unwrap()
}

/// Hashes of a request through our scanner and canonical order, prompt after prompt.
fn hashes(api: Api, body: &str, block: i64) -> Vec<BlockHash> {
    let body = Body::read(body.as_bytes()).unwrap();
    let root = seed(&text_of(&body, Member::Model), &text_of(&body, Member::CacheSalt));
    let mut out = LlmD::new(root, BlockSize::new(block).unwrap());
    out.skips_first_role = api == Api::Messages && body.member(Member::System).is_some();
    assert!(canonical::render(api, &body, &mut out).unwrap());
    out.finish().prompts().flatten().copied().collect()
}

fn hex(digits: &str) -> Vec<BlockHash> {
    digits.split(' ').map(|hash| BlockHash(u64::from_str_radix(hash, 16).unwrap())).collect()
}

/// Hashes of bytes that are flattened already.
fn flattened(text: &str) -> Vec<BlockHash> {
    let mut out = LlmD::new(seed("m", ""), BlockSize::ROUTER);
    out.text(text.as_bytes());
    out.finish().prompts().flatten().copied().collect()
}

#[test]
fn seeds() {
    for (model, salt, hash) in [
        ("", "", "ef46db3751d8e999"),
        ("m", "", "ba2e567083a2b2e8"),
        ("cc-sim", "", "6eff9e83a986cdb7"),
        ("cc-sim", "tenant-a", "2ae22e92e544ddac"),
        ("meta-llama/Llama-3.1-8B-Instruct", "", "a903820a10f81cff"),
    ] {
        assert_eq!(vec![seed(model, salt)], hex(hash), "{model} {salt}");
    }
}

/// GV1 to GV4b, GV7, GV8, GV16.
#[test]
fn completions() {
    let fox = quoted(&"The quick brown fox jumps over the lazy dog. ".repeat(20));
    let llama = "meta-llama/Llama-3.1-8B-Instruct";
    for (name, model, prompt, block, wanted) in [
        ("GV1", "m", r#""hello world""#, 64, "f6615699d17cb474"),
        ("GV1 in a list", "m", r#"["hello world"]"#, 64, "f6615699d17cb474"),
        ("GV4", llama, &fox, 64, "b49b1eee29cb9e44 85524d3cf1e5086f 0d72caccb4472ecb ac1e5e07bb5fcd86"),
        ("GV4b", llama, &fox, 128, "47d5756294a64427 25657b8638302f3d"),
        ("GV7", "m", r#"["abcd","efgh"]"#, 64, "86e4723b12002d77 c353866b1f12cf09"),
        ("GV8", "m", "[1,2,3,4,5,6,7,8,9,10]", 4, "ff375b446cd15b25 d0e13dbe79e3cd40 6c0f38e4493e1b53"),
        ("GV16", "m", r#""héllo → 世界""#, 64, "770d53fd10b73866"),
        ("GV16 escaped", "m", r#""h\u00e9llo \u2192 \u4e16\u754c""#, 64, "770d53fd10b73866"),
    ] {
        let body = format!(r#"{{"model":"{model}","prompt":{prompt}}}"#);
        assert_eq!(hashes(Api::Completions, &body, block), hex(wanted), "{name}");
    }
}

/// GV2, GV3 and GV13.
#[test]
fn chats() {
    let billing = "You are the billing assistant. Check the invoice, the refund policy and the order history before \
                   answering.";
    let question = r#"{"role":"user","content":"Where is my refund?"}"#;
    let question =
        format!(r#""model":"cc-sim","messages":[{{"role":"system","content":"{billing}"}},{question}]"#);
    let calls = r#""model":"m","messages":[{"role":"user","content":"q"},
        {"role":"assistant","content":null,
         "tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c1","content":"r"}]"#;
    for (name, members, wanted) in [
        ("GV2", question.clone(), "92592a1011249a6e"),
        ("GV3", format!(r#""cache_salt":"tenant-a",{question}"#), "e73e29fd2015a369"),
        ("GV13", calls.to_owned(), "3443116c34b06285"),
    ] {
        assert_eq!(hashes(Api::Chat, &format!("{{{members}}}"), 64), hex(wanted), "{name}");
    }
}

/// GV9.
#[test]
fn anthropic_messages() {
    let body = r#"{"model":"m","system":"You are helpful.","messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(hashes(Api::Messages, body, 64), hex("4860000d73978565"));
}

/// GV11: upstream cannot tell the two apart; our own identity can (`identity.rs`).
#[test]
fn model_and_salt_collide_upstream() {
    for (model, salt) in [("ab", "c"), ("a", "bc")] {
        let body = format!(r#"{{"model":"{model}","cache_salt":"{salt}","prompt":"hello world"}}"#);
        assert_eq!(hashes(Api::Completions, &body, 64), hex("2d96d7cc392ad256"), "{model} {salt}");
    }
}

/// GV6: text parts run together, then a picture of unknown size, 225 tokens of its address' hash.
#[test]
fn content_parts_with_a_picture() {
    let mut out = LlmD::new(seed("m", ""), BlockSize::ROUTER);
    let parts = r#"[{"type":"text","text":"What is"},{"type":"text","text":" this?"}]"#;
    let body = format!(r#"{{"messages":[{{"role":"user","content":{parts}}}]}}"#);
    assert!(canonical::render(Api::Chat, &Body::read(body.as_bytes()).unwrap(), &mut out).unwrap());
    out.picture("https://x.test/a.png", 225);
    let found: Vec<_> = out.finish().prompts().flatten().copied().collect();
    assert_eq!(found, hex("6be6757c7f2c85e9 449c5c18b17c4b0a f3adf454d34a1b6b f779f2e99255f0d4"));
}

/// GV5, GV10, GV14 and GV15: what Go's encoder makes of tools, of a Responses request and of an embeddings input (sorted
/// keys, `<`, `>` and `&` escaped, 10.0 as 10, an internal struct's field names).
#[test]
fn what_upstream_serialises_again() {
    let tools = concat!(
        r#"[{"function":{"description":"T \u003c 5 \u0026 wind \u003e 3","name":"get_weather","#,
        r#""parameters":{"properties":{"city":{"type":"string"},"days":{"maximum":10,"type":"integer"}},"#,
        r#""type":"object"}},"type":"function"}]userhi"#
    );
    for (name, bytes, wanted) in [
        ("GV5", tools, "a1c12dd614c9292f"),
        ("GV10", r#"[{"instructions":"Be brief"},{"input":"hi"}]"#, "1a9460bebd2aad08"),
        ("GV14", r#"{"Raw":"hello","Strings":null,"TokenIDs":null}"#, "470dbc4782548c47"),
        ("GV15", r#"{"Raw":"","Strings":["a","b"],"TokenIDs":null}"#, "4cf451419e431cdf"),
    ] {
        assert_eq!(flattened(bytes), hex(wanted), "{name}");
    }
}
