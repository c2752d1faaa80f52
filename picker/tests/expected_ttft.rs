//! What `expected-ttft` does with requests that follow one another: a small fleet on a clock of its own.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;

use picker::belief::{EndpointId, Index};
use picker::chance::{Draw, mix};
use picker::decide::{Asked, Rules, choose};
use picker::hash::{BlockHash, Blocks};
use picker::ledger::{Booked, Ledger, Micros, Request};
use picker::load::Load;
use picker::pace::Pace;
use picker::policy::Policy;
use picker::score::Candidate;

const CAPACITY: usize = 10_000;
const SECOND: u64 = 1_000_000;

/// Endpoints that compute one prompt after another.
struct Fleet {
    index: Index,
    ledgers: Vec<Ledger>,
    paces: Vec<Pace>,
    told: Vec<Load>,
    turn: u64,
}

impl Fleet {
    fn new(endpoints: usize) -> Self {
        Self {
            index: support::index(&vec![CAPACITY; endpoints]),
            ledgers: (0..endpoints).map(|_| Ledger::default()).collect(),
            paces: vec![Pace::default(); endpoints],
            told: vec![Load { foreign: Some(0.0), kv_usage: Some(0.0), ..Load::default() }; endpoints],
            turn: 0,
        }
    }

    /// Routes a prompt at `now`; gives its endpoint, its booking and when it is computed if it begins at once.
    fn send(&mut self, prompt: &[u64], now: u64) -> (usize, Booked, u64) {
        let rules = Rules { policy: Policy::ExpectedTtft, ..Rules::default() };
        let candidate = |(place, ledger): (usize, &Ledger)| {
            let load = Load {
                in_flight: ledger.in_flight(Micros(now)),
                pace: self.paces[place],
                ..self.told[place]
            };
            Candidate::new(EndpointId(place as u32), load)
        };
        let candidates: Vec<_> = self.ledgers.iter().enumerate().map(candidate).collect();
        let blocks = Blocks::one(prompt.iter().map(|&name| BlockHash(mix(name))).collect());
        let tokens = |blocks: usize| (blocks * rules.block.tokens()) as u32;
        let draw = Draw { seed: 1, turn: self.turn };
        self.turn += 1;
        let mut decision = choose(Asked::hashed(blocks, b""), &candidates, &self.index, &rules, draw);
        let best = decision.take_best().unwrap();
        decision.commit(&self.index, best.id);
        let (to, uncached_tokens) = (best.candidate, tokens(prompt.len() - best.matched as usize));
        let work = self.paces[to].work(uncached_tokens.into());
        decision.learn(&self.index, &best, work);
        let request = Request { uncached_tokens, pace: self.paces[to], is_streamed: true };
        let booked = self.ledgers[to].book(request, Micros(now));
        (to, booked, now + (work * 1e6) as u64)
    }

    /// Sends a prompt and waits for its answer; gives the endpoint and when that was.
    fn ask(&mut self, prompt: &[u64], now: u64) -> (usize, u64) {
        let (to, booked, done) = self.send(prompt, now);
        self.ledgers[to].release(booked, Micros(done));
        (to, done)
    }
}

/// A prompt of `shared` blocks that all have, and then some of its own.
fn prompt(shared: u64, own: u64, name: u64) -> Vec<u64> {
    (0..shared).chain((0..own).map(|block| (name + 1) << 32 | block)).collect()
}

#[test]
fn one_prompt_again_and_again_stays_where_it_is_cached() {
    for endpoints in [3, 8, 64, 500] {
        let mut fleet = Fleet::new(endpoints);
        let mut now = SECOND;
        let mut used = BTreeSet::new();
        for _ in 0..500 {
            let (to, done) = fleet.ask(&prompt(50, 2, 7), now);
            used.insert(to);
            now = done + 1_000;
        }
        assert_eq!(used.len(), 1, "{endpoints} endpoints");
    }
}

#[test]
fn one_conversation_stays_where_it_is_cached() {
    for endpoints in [3, 8, 64] {
        let mut fleet = Fleet::new(endpoints);
        let (mut now, mut used) = (SECOND, BTreeSet::new());
        for turn in 1..200 {
            let (to, done) = fleet.ask(&prompt(20, 4 * turn, 7), now);
            used.insert(to);
            now = done + 1_000;
        }
        assert_eq!(used.len(), 1, "{endpoints} endpoints");
    }
}

#[test]
fn one_prompt_sent_64_times_at_once_spreads() {
    for endpoints in [3, 8] {
        let mut fleet = Fleet::new(endpoints);
        let (_, now) = fleet.ask(&prompt(50, 2, 7), SECOND);
        let sent: Vec<_> = (0..64).map(|_| fleet.send(&prompt(50, 2, 7), now)).collect();
        let mut counts = vec![0; endpoints];
        sent.iter().for_each(|(to, ..)| counts[*to] += 1);
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }
}

/// Sessions that begin alike, several at a time: the system prompt is on every replica before long, and each session stays.
#[test]
fn a_shared_beginning_goes_everywhere_and_sessions_stay() {
    let mut fleet = Fleet::new(8);
    let mut homes: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); 60];
    let mut now = SECOND;
    for turn in 0..10 {
        for group in 0..15 {
            let sent: Vec<_> = (0..4)
                .map(|place| {
                    let session = group * 4 + place;
                    let sent = fleet.send(&prompt(40, 3 * (turn + 1), session), now);
                    homes[session as usize].insert(sent.0);
                    sent
                })
                .collect();
            now = sent.iter().map(|(_, _, done)| *done).max().unwrap();
            sent.into_iter().for_each(|(to, booked, done)| fleet.ledgers[to].release(booked, Micros(done)));
            now += 50_000;
        }
    }
    let mut counts = [0; 8];
    homes.iter().flatten().for_each(|&home| counts[home] += 1);
    assert!(counts.iter().all(|count| (3..=14).contains(count)), "sessions of each: {counts:?}");
    let stayed = homes.iter().filter(|homes| homes.len() == 1).count();
    assert!(stayed >= 54, "{stayed} of 60 sessions stayed");
}

#[test]
fn new_prompts_go_where_little_was_computed() {
    let mut fleet = Fleet::new(4);
    let mut counts = [0; 4];
    for name in 0..40 {
        let (to, _) = fleet.ask(&prompt(0, 30, name), SECOND * (name + 1));
        counts[to] += 1;
    }
    assert_eq!(counts, [10; 4]);
}

#[test]
fn half_a_pace_gets_about_half() {
    let mut fleet = Fleet::new(3);
    fleet.paces[0].tokens_per_second /= 2.0;
    let mut counts = [0; 3];
    let mut held: Vec<(usize, Booked, u64)> = Vec::new();
    let mut free_at = [0; 3];
    for name in 0..600 {
        let now = SECOND + name * 80_000;
        for (to, booked, done) in std::mem::take(&mut held) {
            if done <= now {
                fleet.ledgers[to].release(booked, Micros(done));
            } else {
                held.push((to, booked, done));
            }
        }
        let (to, booked, done) = fleet.send(&prompt(0, 30, name), now);
        counts[to] += 1;
        free_at[to] = free_at[to].max(now) + (done - now);
        held.push((to, booked, free_at[to]));
    }
    let share = f64::from(counts[0]) / f64::from(counts[1] + counts[2]) * 2.0;
    assert!((0.2..0.8).contains(&share), "{counts:?}");
}

#[test]
fn what_others_have_waiting_counts_and_the_unmeasured_is_no_better() {
    let mut fleet = Fleet::new(3);
    let (_, mut now) = fleet.ask(&prompt(0, 30, 0), SECOND);
    fleet.told[0].foreign = Some(5.0);
    fleet.told[1].foreign = None;
    for name in 1..20 {
        let (to, done) = fleet.ask(&prompt(0, 30, name), now);
        now = done + SECOND;
        assert_eq!(to, 2);
    }
    fleet.told[2].kv_usage = Some(0.97);
    fleet.told[0].foreign = Some(0.0);
    let (to, _) = fleet.ask(&prompt(0, 30, 99), now);
    assert_ne!(to, 2, "its KV cache is nearly full");
}
