//! Work whose machine instructions are counted, so that a regression turns CI red on any machine, however noisy.
//!
//! `bench/instructions.py` runs this under callgrind and compares. By hand: `instructions` lists the scenarios, `instructions NAME`
//! runs one. Only what happens within [`counted_from_here`] counts. It is the picker's bench, not the bench crate's, so that CI
//! builds a handful of crates for it.

#![allow(clippy::print_stdout, reason = "the script reads the list")]

use std::hint::black_box;

use content::blocks::{Content, look_up};
use content::bodies::{Fleet, KILOBYTE, chat, conversation, plain};
use picker::belief::EndpointId;
use picker::hash::Blocks;
use picker::policy::Policy::{self, ExpectedTtft, Prefix};

#[path = "../../bench/src/content/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub, reason = "the bench crate uses and tests all of it")]
mod content;

/// One call of what is counted.
type Work = Box<dyn FnMut()>;
/// Makes what is counted; is not counted itself.
type Prepare = fn() -> Work;

/// Name, calls, and what makes the work. Enough calls that the index's random key is no noise. `decide` is under the policy
/// `prefix`, whose scores are the sums of several, unless the name says another.
const SCENARIOS: [(&str, u32, Prepare); 16] = [
    ("decide-2KB-8", 200, || decide(Prefix, chat, 2, 8)),
    ("decide-12KB-8", 100, || decide(Prefix, chat, 12, 8)),
    ("decide-128KB-8", 20, || decide(Prefix, chat, 128, 8)),
    ("decide-400KB-8", 12, || decide(Prefix, chat, 400, 8)),
    ("decide-12KB-256", 100, || decide(Prefix, chat, 12, 256)),
    ("decide-no-escape-12KB-8", 100, || decide(Prefix, plain, 12, 8)),
    ("decide-20-messages-12KB-8", 100, || {
        decide(Prefix, |bytes, question| conversation(bytes, 20, question), 12, 8)
    }),
    ("decide-expected-ttft-12KB-8", 100, || decide(ExpectedTtft, chat, 12, 8)),
    ("decide-expected-ttft-12KB-256", 100, || decide(ExpectedTtft, chat, 12, 256)),
    ("look-up-A", 256, || look_ups(Content::A)),
    ("look-up-B", 64, || look_ups(Content { prompts: 32, ..Content::B })),
    ("look-up-C", 64, || look_ups(Content { prompts: 16, ..Content::C })),
    ("look-up-miss", 256, || misses(Content::A)),
    ("commit-known", 128, || commits(whole)),
    ("commit-new-tail", 128, || commits(continued)),
    ("commit-new-evict", 128, || commits(unheld)),
];

/// Other prompts that each endpoint of a fleet holds.
const OTHERS: u32 = 8;
/// New prompts, more than there are calls.
const NEW: u64 = 200;
/// Who is committed to.
const WRITTEN: EndpointId = EndpointId(0);

fn main() {
    let asked = std::env::args().find_map(|name| SCENARIOS.into_iter().find(|scenario| scenario.0 == name));
    match asked {
        Some((_, calls, prepare)) => {
            let mut work = prepare();
            // What happens once in a process: detection of the CPU, growth to the size that stays.
            (0..calls / 4).for_each(|_| work());
            counted_from_here(calls, &mut *work);
        }
        None => SCENARIOS.iter().for_each(|(name, calls, _)| println!("{name} {calls}")),
    }
}

/// Callgrind collects only while in here.
#[inline(never)]
fn counted_from_here(calls: u32, work: &mut dyn FnMut()) {
    for _ in 0..calls {
        work();
    }
}

fn decide(policy: Policy, body: fn(usize, &str) -> String, kilobytes: usize, endpoints: u32) -> Work {
    let fleet = Fleet::with_others(endpoints, OTHERS).under(policy);
    fleet.learn(&body(kilobytes * KILOBYTE, "known"));
    let asked = body(kilobytes * KILOBYTE, "What is new?");
    Box::new(move || drop(black_box(fleet.decide(black_box(&asked)))))
}

fn look_ups(content: Content) -> Work {
    ask(content, (0..content.prompts).map(|number| content.query(number)).collect())
}

fn misses(content: Content) -> Work {
    ask(content, unheld(&content))
}

fn ask(content: Content, queries: Vec<Blocks>) -> Work {
    let index = content.index(0);
    let mut turn = 0;
    Box::new(move || {
        turn = (turn + 1) % queries.len();
        drop(black_box(look_up(&index, black_box(&queries[turn]), content.endpoints)));
    })
}

/// Commits to one endpoint that is full.
fn commits(prompts: impl FnOnce(&Content) -> Vec<Blocks>) -> Work {
    let content = Content::A;
    let index = content.index(0);
    let prompts = prompts(&content);
    let mut turn = 0;
    Box::new(move || {
        turn = (turn + 1) % prompts.len();
        black_box(index.commit(WRITTEN, black_box(&prompts[turn]), false));
    })
}

fn whole(content: &Content) -> Vec<Blocks> {
    content.whole_at(WRITTEN).into_iter().map(|number| Blocks::one(content.prompt(number))).collect()
}

/// More than there are calls: each tail is new.
fn continued(content: &Content) -> Vec<Blocks> {
    let whole = content.whole_at(WRITTEN);
    let turns = (0..NEW).zip(whole.into_iter().cycle());
    turns.map(|(tail, number)| content.continued(number, tail)).collect()
}

fn unheld(content: &Content) -> Vec<Blocks> {
    (0..NEW).map(|number| content.unheld(number)).collect()
}
