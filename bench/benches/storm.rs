//! How long a single look-up takes while a writer commits new prompts to full endpoints without pause.
//!
//! `cargo bench -p prefixroute-bench --bench storm [-- SECONDS]`. Half of the fleet holds the content and is only read; the other
//! half takes the storm, each commit of it evicting as many blocks. Every look-up asks all endpoints and checks its answer. Times
//! are of single look-ups, less the cost of reading the clock; with more threads than cores the tail is the scheduler's.

#![allow(clippy::print_stdout, reason = "a table is what it makes")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench::content::blocks::{Content, look_up};
use picker::belief::{EndpointId, Index};
use picker::hash::Blocks;

/// New prompts that a stormed endpoint holds.
const STORMED_PROMPTS: usize = 8;
/// Prompts made before the storm, used in turn; long evicted when their turn comes again.
const NEW_PROMPTS: usize = 1_024;

fn main() {
    let seconds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(2);
    let clock = clock_ns();
    println!("clock: {clock} ns a look-up, subtracted; {seconds} s a row; all in ns\n");
    println!("| content | readers | writer | look-ups/s | p50 | p99 | p99.9 | max | blocks committed/s |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for content in [Content::A, Content { prompts: 64, ..Content::B }, Content::C] {
        for (readers, writer) in [(1, false), (1, true), (2, false), (2, true)] {
            let storm = Storm::new(content);
            let (mut times, committed) = storm.run(readers, writer, Duration::from_secs(seconds));
            times.sort_unstable();
            let at = |share: f64| {
                let place = (times.len() as f64 * share) as usize;
                times[place.min(times.len() - 1)].saturating_sub(clock)
            };
            println!(
                "| {}, {} endpoints | {readers} | {} | {} | {} | {} | {} | {} | {} |",
                content.name,
                2 * content.endpoints,
                if writer { "storms" } else { "none" },
                times.len() as u64 / seconds,
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
                committed / seconds,
            );
        }
    }
}

struct Storm {
    content: Content,
    index: Index,
    queries: Vec<(Blocks, u32)>,
    new: Vec<Blocks>,
}

impl Storm {
    fn new(content: Content) -> Self {
        let index = content.index(0);
        for id in content.endpoints..2 * content.endpoints {
            index.join(EndpointId(id), STORMED_PROMPTS * content.query_blocks()).expect("a fleet that fits");
        }
        let query = |number| {
            let held: usize = content.holders(number).map(|(_, held)| held).sum();
            (content.query(number), held as u32)
        };
        let queries = (0..content.prompts).map(query).collect();
        let new = (0..NEW_PROMPTS as u64).map(|number| content.unheld(number)).collect();
        Self { content, index, queries, new }
    }

    /// Nanoseconds of each look-up, and blocks that the writer committed.
    fn run(&self, readers: u32, writer: bool, time: Duration) -> (Vec<u32>, u64) {
        let reading = AtomicU32::new(readers);
        let begun = AtomicBool::new(!writer);
        thread::scope(|scope| {
            let write = writer.then(|| scope.spawn(|| self.write(&begun, &reading)));
            let read = || {
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let times = self.read(time);
                reading.fetch_sub(1, Ordering::Release);
                times
            };
            let threads: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
            let times = threads.into_iter().flat_map(|one| one.join().expect("a reader's check held"));
            let times = times.collect();
            let committed = write.map(|one| one.join().expect("the writer does not panic"));
            (times, committed.unwrap_or(0))
        })
    }

    fn read(&self, time: Duration) -> Vec<u32> {
        let mut times = Vec::with_capacity(1 << 24);
        let end = Instant::now() + time;
        for (query, held) in self.queries.iter().cycle() {
            let before = Instant::now();
            let answer = look_up(&self.index, black_box(query), 2 * self.content.endpoints);
            let after = Instant::now();
            assert_eq!(answer.iter().sum::<u32>(), *held, "the storm changed what others hold");
            times.push(u32::try_from((after - before).as_nanos()).unwrap_or(u32::MAX));
            if after > end {
                break;
            }
        }
        times
    }

    /// Commits until the last reader is done; lets them begin when every stormed endpoint is full.
    fn write(&self, begun: &AtomicBool, reading: &AtomicU32) -> u64 {
        let ids = (self.content.endpoints..2 * self.content.endpoints).map(EndpointId);
        let commit = |(id, prompt): (EndpointId, &Blocks)| {
            black_box(self.index.commit(id, prompt, false));
            prompt.total() as u64
        };
        let mut turns = ids.clone().cycle().zip(self.new.iter().cycle());
        turns.by_ref().take(STORMED_PROMPTS * ids.len()).for_each(|turn| _ = commit(turn));
        begun.store(true, Ordering::Release);
        turns.take_while(|_| reading.load(Ordering::Acquire) > 0).map(commit).sum()
    }
}

/// Median of two readings of the clock, one right after the other.
fn clock_ns() -> u32 {
    let pair = |_| {
        let before = Instant::now();
        black_box(()); // what a look-up stands between
        (Instant::now() - before).as_nanos() as u32
    };
    let mut pairs: Vec<u32> = (0..100_001).map(pair).collect();
    pairs.sort_unstable();
    pairs[pairs.len() / 2]
}
