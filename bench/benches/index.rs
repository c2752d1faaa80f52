//! What the index alone costs: look-ups, commits and evictions by length of prompt and size of fleet.
//!
//! `cargo bench -p prefixroute-bench --bench index [-- FILTER]`. One thread, a warm index; every iteration takes another prompt.
//! `content/blocks.rs` says what the endpoints hold.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;
use std::time::Duration;

use bench::content::blocks::{Content, UNKNOWN_BLOCKS, look_up};
use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use picker::belief::{EndpointId, Index};
use picker::hash::Blocks;

/// Who is committed to: holds prompts whole in every content and fleet.
const WRITTEN: EndpointId = EndpointId(0);

fn index(criterion: &mut Criterion) {
    for content in Content::ALL {
        let mut group = criterion.benchmark_group(format!("index/{} blocks", content.query_blocks()));
        for content in [8, 64, 256, 1_024].map(|endpoints| content.on(endpoints)) {
            let whole = content.whole_at(WRITTEN);
            // New tails go before any prompt does: each prompt is touched again after as many commits.
            let index = content.index(UNKNOWN_BLOCKS * (whole.len() + 1));
            look_ups(&mut group, &content, &index);
            commits(&mut group, &content, &index, &whole);
            evictions(&mut group, &content, &index);
        }
    }
}

fn look_ups(group: &mut BenchmarkGroup<'_, WallTime>, content: &Content, index: &Index) {
    let queries: Vec<_> = (0..content.prompts).map(|number| content.query(number)).collect();
    run(group, "look-up", content, &queries, |query| look_up(index, query, content.endpoints));
    let unheld: Vec<_> = (0..64).map(|number| content.unheld(number)).collect();
    run(group, "look-up of a miss", content, &unheld, |query| look_up(index, query, content.endpoints));
}

fn commits(group: &mut BenchmarkGroup<'_, WallTime>, content: &Content, index: &Index, whole: &[u32]) {
    let known: Vec<_> = whole.iter().map(|&number| Blocks::one(content.prompt(number))).collect();
    run(group, "commit known", content, &known, |prompt| index.commit(WRITTEN, prompt, false));
    let mut turns = (0u64..).zip(whole.iter().cycle());
    let name = BenchmarkId::new("commit new tail", format!("{} endpoints", content.endpoints));
    group.bench_function(name, |bench| {
        let next = || turns.next().map(|(turn, &number)| content.continued(number, 1_000_000 + turn));
        bench.iter_batched(
            next,
            |prompt| prompt.map(|prompt| index.commit(WRITTEN, &prompt, false)),
            BatchSize::SmallInput,
        );
    });
}

/// The endpoint is full of prompts of this kind when the measurement begins, or becomes so in the warm-up.
fn evictions(group: &mut BenchmarkGroup<'_, WallTime>, content: &Content, index: &Index) {
    let mut number = 1_000_000;
    let name = BenchmarkId::new("commit new, evict", format!("{} endpoints", content.endpoints));
    group.bench_function(name, |bench| {
        let next = || {
            number += 1;
            content.unheld(number)
        };
        bench.iter_batched(next, |prompt| index.commit(WRITTEN, &prompt, false), BatchSize::SmallInput);
    });
}

/// Measures a call on each of `prompts` in turn.
fn run<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    content: &Content,
    prompts: &[Blocks],
    mut call: impl FnMut(&Blocks) -> T,
) {
    let mut turns = prompts.iter().cycle();
    group.bench_function(BenchmarkId::new(name, format!("{} endpoints", content.endpoints)), |bench| {
        bench.iter(|| turns.next().map(|prompt| call(black_box(prompt))));
    });
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = benches; config = short(); targets = index }
criterion_main!(benches);
