//! Bytes that the index takes for a (block, endpoint), measured from outside: resident memory of a fresh process.
//!
//! `cargo bench -p prefixroute-bench --bench memory`. Each row runs in a process of its own. "Full" is when every endpoint holds
//! what it may, "churned" after as many new blocks again as four times that: memory that only grows shows there.

#![allow(clippy::print_stdout, reason = "a table is what it makes")]

use std::process::Command;

use bench::content::blocks::{Content, unique};
use picker::belief::{EndpointId, Index};

/// The capacity of an endpoint whose engine has not told its own.
const CAPACITY: usize = 31_250;
const ENDPOINTS: u32 = 8;
/// Blocks of a unique prompt: of bodies of 8, 2 and 1 KB. With the last the endpoints run out of stretches first.
const UNIQUE: [usize; 3] = [32, 8, 4];

fn main() {
    // A row is asked for by its name; cargo's own arguments are no names.
    let rows = UNIQUE.iter().map(usize::to_string).chain(["B".to_owned()]);
    if let Some(row) = rows.clone().find(|row| std::env::args().skip(1).any(|argument| argument == *row)) {
        return println!("{}", measured(&row));
    }
    println!(
        "| content | (block, endpoint) pairs | full, bytes each | churned, bytes each | the index says at most |"
    );
    println!("|---|---|---|---|---|");
    let this = std::env::current_exe().expect("a bench is a file");
    for row in rows {
        let output = Command::new(&this).arg(row).output().expect("this program starts again");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        println!("{}", String::from_utf8_lossy(&output.stdout).trim());
    }
}

fn measured(row: &str) -> String {
    match row.parse() {
        Ok(blocks) => unique_prompts(blocks),
        Err(_) => shared_prompts(Content::B),
    }
}

fn unique_prompts(blocks: usize) -> String {
    let before = resident();
    let index = Index::default();
    let fill = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            for id in 0..ENDPOINTS {
                let prompt = unique(number as u64 * u64::from(ENDPOINTS) + u64::from(id), blocks);
                index.commit(EndpointId(id), &prompt, false);
            }
        }
    };
    for id in 0..ENDPOINTS {
        index.join(EndpointId(id), CAPACITY).expect("a fleet that fits");
    }
    let prompts = CAPACITY.div_ceil(blocks);
    fill(0..prompts);
    let full = resident();
    fill(prompts..5 * prompts);
    let held = (0..ENDPOINTS).filter_map(|id| index.size(EndpointId(id)));
    let pairs = held.map(|size| size.blocks).sum();
    let name = format!("unique prompts of {blocks} blocks, {ENDPOINTS} endpoints");
    line(&name, pairs, [full - before, resident() - before], &index)
}

fn shared_prompts(content: Content) -> String {
    let before = resident();
    let index = content.index(0);
    let full = resident();
    let pairs: usize = content.held().iter().sum();
    for number in 0..(4 * pairs / content.query_blocks()) as u64 {
        let id = EndpointId((number % u64::from(content.endpoints)) as u32);
        index.commit(id, &content.unheld(number), false);
    }
    let name = format!("{}, then new prompts, {} endpoints", content.name, content.endpoints);
    line(&name, pairs, [full - before, resident() - before], &index)
}

fn line(name: &str, pairs: usize, bytes: [usize; 2], index: &Index) -> String {
    let each = |bytes: usize| bytes as f64 / pairs as f64;
    let [full, churned] = bytes.map(each);
    format!("| {name} | {pairs} | {full:.1} | {churned:.1} | {:.1} |", each(index.memory().bytes_max))
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|figure| figure.parse().ok());
    kibibytes.map(|figure: usize| figure * 1_024).expect("VmRSS in kB")
}
