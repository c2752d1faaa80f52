//! What a decision costs: the whole of `decide` by size of body, number of messages and size of fleet.
//!
//! `cargo bench -p prefixroute-bench --bench decide [-- FILTER]`. Bodies are chats whose system prompt (or whose messages but
//! the last) one endpoint knows and whose question is new; times are of one thread on a warm index.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;
use std::time::Duration;

use bench::content::bodies::{Fleet, KILOBYTE, chat, conversation, plain};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use picker::memo::Memo;

type Body = fn(usize, &str) -> String;

/// What bodies are, how one is made of a size and a question, and the sizes in kilobytes.
const SHAPES: [(&str, Body, &[usize]); 3] = [
    ("known system prompt", chat, &[2, 12, 128, 400]),
    ("without escapes", plain, &[12, 128]),
    ("conversation of 20", |bytes, question| conversation(bytes, 20, question), &[12, 128]),
];

fn decisions(criterion: &mut Criterion) {
    for endpoints in [8, 64, 256, 1_024] {
        let fleet = Fleet::new(endpoints);
        for (shape, body, sizes) in SHAPES {
            let mut group = criterion.benchmark_group(format!("decide/{shape}/{endpoints} endpoints"));
            for &kilobytes in sizes {
                fleet.learn(&body(kilobytes * KILOBYTE, "known"));
                let asked = body(kilobytes * KILOBYTE, "What is new?");
                group.throughput(Throughput::Bytes(asked.len() as u64));
                group.bench_function(BenchmarkId::from_parameter(format!("{kilobytes} KB")), |bench| {
                    bench.iter(|| fleet.decide(black_box(&asked)));
                });
            }
        }
    }
}

/// The same decision where a memo knows all but the question.
fn decisions_recalled(criterion: &mut Criterion) {
    let fleet = Fleet::new(8);
    let mut group = criterion.benchmark_group("decide/system prompt in the memo/8 endpoints");
    for kilobytes in [2, 12, 128, 400] {
        let memo = Memo::default();
        for question in ["one", "two"] {
            fleet.recall(&memo, &chat(kilobytes * KILOBYTE, question));
        }
        let asked = chat(kilobytes * KILOBYTE, "What is new?");
        group.throughput(Throughput::Bytes(asked.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{kilobytes} KB")), |bench| {
            bench.iter(|| fleet.decide_recalling(Some(&memo), black_box(&asked)));
        });
    }
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = benches; config = short(); targets = decisions, decisions_recalled }
criterion_main!(benches);
