//! What a decision costs: the whole of `decide` by size of body, number of messages and size of fleet.
//!
//! `cargo bench -p prefixroute-bench --bench decide [-- FILTER]`. Bodies are chats whose system prompt (or whose messages but
//! the last) one endpoint knows and whose question is new; times are of one thread on a warm index.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;
use std::time::Duration;

use bench::content::bodies::{Fleet, KILOBYTE, chat, conversation};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Messages of a body, and its sizes in kilobytes.
const SHAPES: [(&str, usize, &[usize]); 2] =
    [("known system prompt", 1, &[2, 12, 128, 400]), ("conversation of 20", 20, &[12, 128])];

fn decisions(criterion: &mut Criterion) {
    for endpoints in [8, 64, 256, 1_024] {
        let fleet = Fleet::new(endpoints);
        for (shape, messages, sizes) in SHAPES {
            let mut group = criterion.benchmark_group(format!("decide/{shape}/{endpoints} endpoints"));
            for &kilobytes in sizes {
                let body = |question: &str| match messages {
                    1 => chat(kilobytes * KILOBYTE, question),
                    _ => conversation(kilobytes * KILOBYTE, messages, question),
                };
                fleet.learn(&body("known"));
                let asked = body("What is new?");
                group.throughput(Throughput::Bytes(asked.len() as u64));
                group.bench_function(BenchmarkId::from_parameter(format!("{kilobytes} KB")), |bench| {
                    bench.iter(|| fleet.decide(black_box(&asked)));
                });
            }
        }
    }
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = benches; config = short(); targets = decisions }
criterion_main!(benches);
