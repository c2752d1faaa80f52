//! What a decision costs, and its parts: the whole of `decide` by body size and fleet, and the index alone.
//!
//! `cargo bench -p prefixroute-bench --bench decide [-- FILTER]`. Bodies are chats whose system prompt is known to one
//! endpoint and whose question is new; times are of one thread on a warm index.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use picker::belief::{EndpointId, Index, Order};
use picker::chance::Draw;
use picker::decide::{Ask, Rules, decide, decide_recalling};
use picker::hash::{BlockHash, Blocks, token_block_hashes};
use picker::load::Load;
use picker::memo::Memo;
use picker::read::Api;
use picker::score::Candidate;

const KIB: usize = 1_000;
const CAPACITY: usize = 31_250;
/// Other prompts that each endpoint holds.
const OTHERS: u32 = 200;
const OTHER_TOKENS: u32 = 64 * 100;

/// A chat of about `bytes`, nine tenths of it a system prompt of `messages` messages, with an escape every 100 bytes.
fn chat(bytes: usize, question: &str) -> String {
    let line = "The quick brown fox jumps over the lazy dog and then some more words follow here to fill one line up.\\n";
    let system = line.repeat(bytes / line.len());
    format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}],"max_tokens":16}}"#
    )
}

fn fleet(endpoints: u32) -> (Index, Vec<Candidate>) {
    let index = Index::new(Order::TailFirst);
    let load = Load { waiting: Some(0.0), running: Some(1.0), kv_usage: Some(0.3), in_flight: 1 };
    let candidates = (0..endpoints).map(|id| Candidate { id: EndpointId(id), load }).collect::<Vec<_>>();
    for candidate in &candidates {
        index.join(candidate.id, CAPACITY);
        for other in 0..OTHERS {
            let tokens: Vec<u32> =
                (0..OTHER_TOKENS).map(|token| token ^ other << 16 ^ candidate.id.0 << 24).collect();
            let hashes =
                token_block_hashes(BlockHash(1), &tokens, Default::default(), picker::hash::Tail::Drop);
            index.commit(candidate.id, &Blocks::one(hashes), false);
        }
    }
    (index, candidates)
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    for endpoints in [8, 64, 256] {
        let (index, candidates) = fleet(endpoints);
        for kilobytes in [2, 12, 128, 400] {
            let known = chat(kilobytes * KIB, "known");
            let asked = chat(kilobytes * KIB, "What is new?");
            let ask = |body: &str| -> picker::Decision {
                let ask = Ask { api: Api::Chat, body: body.as_bytes(), tenant: b"" };
                decide(&ask, &candidates, &index, &Rules::default(), Draw { seed: 0, turn: 0 })
                    .expect("one salt at most")
            };
            ask(&known).commit(&index, EndpointId(3));
            group.throughput(Throughput::Bytes(asked.len() as u64));
            group.bench_function(
                BenchmarkId::new(format!("{endpoints} endpoints"), format!("{kilobytes} KB")),
                |bench| {
                    bench.iter(|| ask(black_box(&asked)));
                },
            );
        }
    }
}

/// The same decision where a memo knows all but the question.
fn decisions_recalled(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide, system prompt in the memo");
    let (index, candidates) = fleet(8);
    for kilobytes in [2, 12, 128, 400] {
        let memo = Memo::default();
        let decided = |ask: &Ask<'_>| {
            let (rules, draw) = (Rules::default(), Draw { seed: 0, turn: 0 });
            let decision = decide_recalling(ask, Some(&memo), &candidates, &index, &rules, draw);
            decision.expect("one salt at most")
        };
        for question in ["one", "two"] {
            let body = chat(kilobytes * KIB, question);
            let ask = Ask { api: Api::Chat, body: body.as_bytes(), tenant: b"" };
            let decision = decided(&ask);
            decision.commit(&index, EndpointId(3));
            memo.learn(&ask, &Rules::default(), &decision.recall);
        }
        let body = chat(kilobytes * KIB, "What is new?");
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(BenchmarkId::new("8 endpoints", format!("{kilobytes} KB")), |bench| {
            bench.iter(|| decided(&Ask { api: Api::Chat, body: black_box(body.as_bytes()), tenant: b"" }));
        });
    }
}

fn look_ups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index");
    for (blocks, endpoints) in [(198u32, 8u32), (2_010, 64), (6_260, 8)] {
        let (index, candidates) = fleet(endpoints);
        let tokens: Vec<u32> = (0..blocks * 64).collect();
        let hashes = token_block_hashes(BlockHash(2), &tokens, Default::default(), picker::hash::Tail::Drop);
        let known = Blocks::one(hashes[..hashes.len() - 10].to_vec());
        let asked = Blocks::one(hashes);
        for holder in candidates.iter().take(8) {
            index.commit(holder.id, &known, false);
        }
        let name = format!("{blocks} blocks, {endpoints} endpoints");
        group.bench_function(BenchmarkId::new("match all", &name), |bench| {
            bench.iter(|| candidates.iter().map(|to| index.matched(to.id, black_box(&asked))).sum::<u32>());
        });
        group.bench_function(BenchmarkId::new("commit known", &name), |bench| {
            bench.iter(|| index.commit(EndpointId(0), black_box(&known), false));
        });
    }
}

criterion_group!(benches, decisions, decisions_recalled, look_ups);
criterion_main!(benches);
