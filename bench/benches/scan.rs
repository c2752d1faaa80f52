//! Whether our own scanner earns its keep: the same work by it, by serde_json and by sonic-rs.
//!
//! `cargo bench -p prefixroute-bench --bench scan [-- FILTER]`. The work: find model and messages in the body, unescape
//! every role and content, hash the text in chained blocks of 256 bytes. The libraries keep spans first (`RawValue`,
//! `LazyValue`) and read the messages in a second, typed pass, which is their fastest way. They do less: no tools, no
//! other member, no content parts, no duplicates.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::borrow::Cow;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use picker::canonical;
use picker::hash::{BlockHash, BlockSize, Blocks};
use picker::identity;
use picker::read::{Api, Body};
use picker::tokens::bytes::Bytes;
use picker::tokens::{Tag, Tokenizer};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Deserialize;

const KIB: usize = 1_000;
const WORDS: [&str; 8] = ["The", "quick", "brown", "fox", "jumps", "electrification", "of", "understanding"];

/// Lines of 60 to 140 bytes, each ended by an escape. Of uneven length, so that no branch is learnt by heart.
fn prose(bytes: usize, chance: &mut StdRng) -> String {
    let mut text = String::new();
    let mut line_ends = 0;
    while text.len() < bytes {
        text += WORDS[chance.random_range(0..WORDS.len())];
        if text.len() < line_ends {
            text.push(' ');
        } else {
            text += r"\n";
            line_ends = text.len() + chance.random_range(60..140);
        }
    }
    text
}

fn chat(bytes: usize, messages: usize) -> String {
    let mut chance = StdRng::seed_from_u64(7);
    let message = |place: usize| {
        let role = if place.is_multiple_of(2) { "user" } else { "assistant" };
        format!(r#"{{"role":"{role}","content":"{}"}}"#, prose(bytes / messages - 40, &mut chance))
    };
    let messages = (0..messages).map(message).collect::<Vec<_>>().join(",");
    format!(r#"{{"model":"m","messages":[{messages}],"max_tokens":16}}"#)
}

type Reader = fn(&[u8]) -> Blocks;

fn own(body: &[u8]) -> Blocks {
    let read = Body::read(body).expect("a chat");
    let root = identity::root(&read, b"").expect("no broken escape");
    let mut out = Bytes::new(root, BlockSize::ROUTER, body.len());
    canonical::render(Api::Chat, &read, &mut out).expect("a chat");
    out.finish()
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

fn hashed(messages: &[Message<'_>], bytes: usize) -> Blocks {
    let mut out = Bytes::new(BlockHash(1), BlockSize::ROUTER, bytes);
    for message in messages {
        out.tag(Tag::Message);
        out.text(message.role.as_bytes());
        out.tag(Tag::Content);
        out.text(message.content.as_bytes());
    }
    out.finish()
}

fn by_serde_json(body: &[u8]) -> Blocks {
    #[derive(Deserialize)]
    struct Spans<'a> {
        #[serde(borrow)]
        model: Option<Cow<'a, str>>,
        #[serde(borrow)]
        messages: &'a serde_json::value::RawValue,
    }
    let text = std::str::from_utf8(body).expect("UTF-8");
    let spans: Spans<'_> = serde_json::from_str(text).expect("a chat");
    black_box(spans.model);
    let messages: Vec<Message<'_>> = serde_json::from_str(spans.messages.get()).expect("messages");
    hashed(&messages, body.len())
}

fn by_sonic_rs(body: &[u8]) -> Blocks {
    #[derive(Deserialize)]
    struct Spans<'a> {
        #[serde(borrow)]
        model: Option<Cow<'a, str>>,
        #[serde(borrow)]
        messages: sonic_rs::LazyValue<'a>,
    }
    let spans: Spans<'_> = sonic_rs::from_slice(body).expect("a chat");
    black_box(spans.model);
    let messages: Vec<Message<'_>> = sonic_rs::from_str(spans.messages.as_raw_str()).expect("messages");
    hashed(&messages, body.len())
}

fn scans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scan");
    for (kilobytes, messages) in [(2, 1), (12, 1), (12, 6), (128, 1), (128, 60), (400, 1), (400, 190)] {
        let body = chat(kilobytes * KIB, messages);
        group.throughput(Throughput::Bytes(body.len() as u64));
        let readers: [(&str, Reader); 3] =
            [("own", own), ("serde_json", by_serde_json), ("sonic-rs", by_sonic_rs)];
        for (name, read) in readers {
            assert_eq!(
                read(body.as_bytes()).total(),
                own(body.as_bytes()).total(),
                "the same text is hashed"
            );
            group.bench_function(
                BenchmarkId::new(format!("{kilobytes} KB, {messages} messages"), name),
                |bench| {
                    bench.iter(|| read(black_box(body.as_bytes())));
                },
            );
        }
    }
}

criterion_group!(benches, scans);
criterion_main!(benches);
