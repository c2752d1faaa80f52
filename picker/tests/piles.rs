//! Bodies that pile one thing up: what is handed on to be hashed is counted, and a memo makes no difference.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::belief::Index;
use picker::canonical;
use picker::decide::{Ask, Reading, Rules, decide_recalling};
use picker::hash::Blocks;
use picker::memo::{BYTES_MAX, Memo};
use picker::read::{Api, Body};
use picker::tokens::{Media, Tag, Tokenizer};
use support::read;

/// Bodies that hurt where it is costly, `size` times a thing.
fn piles(size: usize) -> Vec<(&'static str, String)> {
    let chat = |messages: &str| format!(r#"{{"model":"m","messages":[{messages}]}}"#);
    vec![
        ("deep content", chat(&format!(r#"{{"content":{}{}}}"#, "[".repeat(size), "]".repeat(size)))),
        ("deep member", chat(&format!(r#"{{"x":{}1{}}}"#, r#"{"a":"#.repeat(size), "}".repeat(size)))),
        ("roles", chat(&format!(r#"{{"role":"user"{}}}"#, r#","role":"tool""#.repeat(size)))),
        ("contents", chat(&format!(r#"{{"role":"user"{}}}"#, r#","content":"x""#.repeat(size)))),
        ("escaped keys", chat(&format!(r#"{{"role":"user"{}}}"#, r#","rol\u0065":"x""#.repeat(size)))),
        ("messages members", format!(r#"{{"model":"m"{}}}"#, r#","messages":[{}]"#.repeat(size))),
        ("tiny messages", chat(&vec![r#"{"role":"user","content":"x"}"#; size].join(","))),
        (
            "parts",
            chat(&format!(r#"{{"content":[{}]}}"#, vec![r#"{"type":"text","text":"x"}"#; size].join(","))),
        ),
    ]
    .into_iter()
    .chain(escapes(size))
    .collect()
}

/// One string of escapes.
fn escapes(size: usize) -> Vec<(&'static str, String)> {
    let said = |text: String| format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    vec![
        ("new lines", said(r"\n".repeat(size))),
        ("quotes", said(r#"\""#.repeat(size))),
        ("backslashes", said(r"\\".repeat(size))),
        ("letters", said(r"\u0061".repeat(size))),
        ("pairs", said(r"\ud83d\ude00".repeat(size))),
        ("half pairs", said(r"\ud83d".repeat(size))),
        ("backslashes before quotes", said(r#"\\\\\\\\\\\\\\\\\""#.repeat(size))),
    ]
}

/// A tokenizer that only counts what it is given.
#[derive(Default)]
struct Counted {
    pieces: usize,
    bytes: usize,
}

impl Tokenizer for Counted {
    fn tag(&mut self, _: Tag) {
        self.text(b"t");
    }
    fn text(&mut self, text: &[u8]) {
        self.pieces += 1;
        self.bytes += text.len();
    }
    fn json(&mut self, json: &[u8]) {
        self.text(json);
    }
    fn id(&mut self, _: u32) {
        self.text(b"id");
    }
    fn media(&mut self, _: Media) {
        self.text(b"media");
    }
    fn end_prompt(&mut self) {}
    fn finish(self) -> Blocks {
        Blocks::default()
    }
}

fn counted(body: &str) -> Counted {
    let mut out = Counted::default();
    canonical::render(Api::Chat, &Body::read(body.as_bytes()).unwrap(), &mut out).unwrap();
    out
}

/// Escapes are handed on by the kilobyte, not one by one.
#[test]
fn escapes_are_gathered() {
    for (what, body) in escapes(100_000) {
        let Counted { pieces, bytes } = counted(&body);
        assert!(bytes >= 100_000 && pieces <= 10 + bytes / 900, "{what}: {bytes} bytes in {pieces} pieces");
    }
}

/// Twice the body is twice the pieces and twice the bytes to hash, of which no body gives more than it has.
#[test]
fn what_is_hashed_grows_with_the_body() {
    let size = 50_000;
    for ((what, one), (_, two)) in piles(size).into_iter().zip(piles(2 * size)) {
        let (one_counted, two_counted) = (counted(&one), counted(&two));
        assert!(one_counted.bytes <= one.len() && two_counted.bytes <= two.len(), "{what}");
        assert!(two_counted.bytes <= 2 * one_counted.bytes, "{what}");
        assert!(two_counted.pieces <= 2 * one_counted.pieces, "{what}: {} pieces", two_counted.pieces);
        assert!(
            two_counted.pieces * 5 <= two.len() + 50,
            "{what}: {} pieces of few bytes",
            two_counted.pieces
        );
    }
}

/// The same bodies, thrice each, so that a memo keeps what it can of them: bounded, and no other blocks.
#[test]
fn a_memo_survives_them() {
    let memo = Memo::default();
    for (what, body) in piles(100_000) {
        for _ in 0..3 {
            let ask = Ask { api: Api::Chat, body: body.as_bytes(), tenant: b"", session: b"" };
            let rules = Rules::default();
            let index = Index::default();
            let decision = decide_recalling(&ask, Some(&memo), &[], &index, &rules, support::DRAW).unwrap();
            memo.learn(&ask, &rules, &decision.recall);
            assert_eq!(decision.reading, Reading::Prompt, "{what}");
            assert_eq!(decision.blocks, read(Api::Chat, body.as_bytes()).blocks, "{what}");
            assert!(memo.bytes() <= BYTES_MAX);
        }
    }
    assert!(memo.hits() > 0);
}
