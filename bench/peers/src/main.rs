//! The index beside smg's ChainIndex and Dynamo's concurrent radix tree: look-up, cost of a store, memory, and whether all give
//! the same answers.
//!
//! Every (library, content) runs in a process of its own, all on one core (`taskset`, where there is one), `ROUNDS` times (3) in turn;
//! a figure is the median of the rounds. What is asked of each: for a query, how many leading blocks each endpoint holds. All
//! get hashes: ours chained ones, the peers one a block, so hashing itself is in nobody's figure and our chaining neither.

mod chain_index;
mod ours;
mod radix_tree;

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use content::Content;
use picker::chance::mix;
use picker::hash::BlockHash;

#[path = "../../src/content/blocks.rs"]
#[allow(dead_code, reason = "shared with the bench crate, which uses all of it")]
mod content;

/// Single look-ups a process measures.
const LOOK_UPS: usize = 60_000;
const LIBRARIES: [&str; 3] = ["prefixroute", "kv-index ChainIndex 2.0.0", "dynamo-kv-router CRTC 1.6.1"];

/// An index as this comparison needs it. `Prompt` and `Query` are made before the clock runs.
trait Library {
    /// What a prompt of an endpoint is stored as.
    type Prompt;
    /// What a query is asked as.
    type Query;

    /// Hashes as a store wants them.
    fn prompt(&self, endpoint: u32, hashes: &[BlockHash]) -> Self::Prompt;
    /// Hashes as a look-up wants them.
    fn query(&self, hashes: &[BlockHash]) -> Self::Query;
    /// Stores prompts and returns when they can be found.
    fn store(&mut self, prompts: Vec<Self::Prompt>);
    /// Leading blocks of the query that each endpoint holds, in the library's own form.
    fn look_up(&self, query: &Self::Query) -> impl Sized;
    /// The same by endpoint, unmeasured.
    fn depths(&self, query: &Self::Query) -> Vec<u32>;
}

/// Hash of a block's own content, for libraries that do not chain: as unique as the chained one.
fn content_hash(chained: BlockHash) -> u64 {
    mix(chained.0 ^ 0x5EED)
}

/// What a process measured: nanoseconds, bytes, and queries answered otherwise than the content says.
#[derive(Clone, Copy, Debug)]
struct Figures([u64; 7]);

impl Figures {
    const NAMES: [&str; 7] = [
        "look-up p50, ns",
        "again at once, p50",
        "p99",
        "miss p50",
        "store, ns a block",
        "memory, bytes a (block, endpoint)",
        "wrong answers",
    ];

    fn parse(line: &str) -> Self {
        let mut figures =
            line.split_whitespace().map(|figure| figure.parse().expect("a child prints figures"));
        Self(std::array::from_fn(|_| figures.next().expect("as many as this program prints")))
    }

    fn median(rounds: &[Self]) -> Self {
        Self(std::array::from_fn(|place| {
            median(&mut rounds.iter().map(|one| one.0[place]).collect::<Vec<_>>())
        }))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [library, content] = &arguments[..] {
        let content = Content::ALL.into_iter().find(|one| one.name == content).expect("A, B or C");
        return child(library, content);
    }
    let rounds = arguments.first().map_or(3, |rounds| rounds.parse().expect("ROUNDS is a number"));
    println!(
        "| content | library | {} |\n|---|---|{}",
        Figures::NAMES.join(" | "),
        "---|".repeat(Figures::NAMES.len())
    );
    for content in Content::ALL {
        let mut figures = LIBRARIES.map(|_| Vec::new());
        for _ in 0..rounds {
            LIBRARIES
                .iter()
                .zip(&mut figures)
                .for_each(|(library, figures)| figures.push(run(library, content)));
        }
        for (library, figures) in LIBRARIES.iter().zip(figures) {
            let figures = Figures::median(&figures).0.map(|figure| figure.to_string());
            println!(
                "| {}, {} blocks, {} endpoints | {library} | {} |",
                content.name,
                content.query_blocks(),
                content.endpoints,
                figures.join(" | ")
            );
        }
    }
}

/// Runs this program again for one library and content, pinned if that is possible.
fn run(library: &str, content: Content) -> Figures {
    let this = std::env::current_exe().expect("a program is a file");
    let pinned = Command::new("taskset").args(["-c", "0"]).arg(&this).args([library, content.name]).output();
    let output = pinned
        .or_else(|_| Command::new(&this).args([library, content.name]).output())
        .expect("this starts again");
    assert!(
        output.status.success(),
        "{library}, {}: {}",
        content.name,
        String::from_utf8_lossy(&output.stderr)
    );
    Figures::parse(&String::from_utf8_lossy(&output.stdout))
}

fn child(library: &str, content: Content) {
    let Figures(figures) = match LIBRARIES.iter().position(|name| *name == library) {
        Some(0) => measure(ours::Ours::new(&content), &content),
        Some(1) => measure(chain_index::ChainIndex::new(&content), &content),
        Some(2) => measure(radix_tree::RadixTree::new(&content), &content),
        _ => panic!("no library {library:?}"),
    };
    println!("{}", figures.map(|figure| figure.to_string()).join(" "));
}

fn measure<L: Library>(mut library: L, content: &Content) -> Figures {
    let before = resident();
    let store_ns = store(&mut library, content);
    let pairs: usize = content.held().iter().sum();
    let bytes = (resident() - before) / pairs as u64;
    let queries: Vec<_> = (0..content.prompts).map(|number| hashes(&content.query(number))).collect();
    let queries: Vec<_> = queries.iter().map(|query| library.query(query)).collect();
    let wrong = (0..)
        .zip(&queries)
        .filter(|(number, query)| library.depths(query) != expected(content, *number))
        .count();
    let unheld: Vec<_> = (0..64).map(|number| library.query(&hashes(&content.unheld(number)))).collect();
    let wrong =
        wrong + unheld.iter().filter(|query| library.depths(query).iter().any(|&depth| depth > 0)).count();
    let [mut first, mut again] = look_ups(&library, &queries);
    let [mut miss, _] = look_ups(&library, &unheld);
    let p99 = {
        first.sort_unstable();
        first[first.len() * 99 / 100]
    };
    Figures([
        median(&mut first),
        median(&mut again),
        p99,
        median(&mut miss),
        store_ns / pairs as u64,
        bytes,
        wrong as u64,
    ])
}

/// Nanoseconds to store the whole content, prompt by prompt; making the events is not in it.
fn store<L: Library>(library: &mut L, content: &Content) -> u64 {
    let mut spent = 0;
    for number in 0..content.prompts {
        let prompt = content.prompt(number);
        let prompts =
            content.holders(number).map(|(id, held)| library.prompt(id.0, &prompt[..held])).collect();
        let begin = Instant::now();
        library.store(prompts);
        spent += begin.elapsed().as_nanos() as u64;
    }
    spent
}

/// Nanoseconds of look-ups, less the clock's own: of each query in turn, and of the same one again at once.
fn look_ups<L: Library>(library: &L, queries: &[L::Query]) -> [Vec<u64>; 2] {
    let clock = clock_ns();
    let time = |query: &L::Query| {
        let before = Instant::now();
        black_box(library.look_up(black_box(query)));
        (before.elapsed().as_nanos() as u64).saturating_sub(clock)
    };
    let mut times = [Vec::new(), Vec::new()];
    for query in queries.iter().cycle().take(LOOK_UPS) {
        times.iter_mut().for_each(|times| times.push(time(query)));
    }
    times
}

fn expected(content: &Content, number: u32) -> Vec<u32> {
    let mut depths = vec![0; content.endpoints as usize];
    content.holders(number).for_each(|(id, held)| depths[id.0 as usize] = held as u32);
    depths
}

fn hashes(blocks: &picker::hash::Blocks) -> Vec<BlockHash> {
    blocks.prompts().flatten().copied().collect()
}

fn clock_ns() -> u64 {
    let pair = |_| {
        let before = Instant::now();
        before.elapsed().as_nanos() as u64
    };
    median(&mut (0..100_001).map(pair).collect::<Vec<_>>())
}

fn median(figures: &mut [u64]) -> u64 {
    figures.sort_unstable();
    figures[figures.len() / 2]
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kibibytes.expect("VmRSS in kB") * 1_024
}
