//! Workloads: who asks what, when.
//!
//! A trace is a list of requests with arrival times, each of a tenant whose system prompt they share.
//! [`generate`] makes one from a seed; [`mod@file`] writes and reads them as lines of JSON. [`hashed`] holds those whose
//! prompts are known by the ids of their blocks only, in Mooncake's form. [`form`] tells a file's form and reads either;
//! [`lines`] is what reading them has in common, [`shape`] makes such traces, and [`text`] gives them words to be sent as.

mod args;
pub mod file;
pub mod form;
pub mod hashed;
pub mod lines;
pub mod shape;
pub mod text;
mod words;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde::Serialize;

pub use args::{TraceArgs, TraceError, run};

use crate::engine::Seconds;
use words::WORDS;

/// Words in a sentence of a system prompt.
const SENTENCE_WORDS: usize = 12;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// When it is sent, from the beginning of the trace.
    pub at: Seconds,
    /// The tenant; requests of one share a prefix.
    pub group: String,
    /// The OpenAI request body, a JSON object, as the bytes that are sent.
    pub body: String,
}

/// What a trace is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// How many requests.
    pub requests: usize,
    /// Poisson arrivals per second; 0 puts every request at time 0.
    pub rate: f64,
    /// Tenants.
    pub groups: usize,
    /// Share of the requests that goes to the first tenant, 0 to 1; 0 treats all alike.
    pub hot: f64,
    /// Words of a system prompt, in sentences of 12.
    pub prompt_words: usize,
    /// Words of a question, without its number.
    pub question_words: usize,
    /// The model asked for.
    pub model: String,
    /// Same seed, same trace.
    pub seed: u64,
}

impl Default for TraceOptions {
    /// Every prompt is 221 tokens, 195 of them the tenant's: of the repeats, 12 blocks of 16 can be cached.
    fn default() -> Self {
        Self {
            requests: 64,
            rate: 20.0,
            groups: 8,
            hot: 0.0,
            prompt_words: 180,
            question_words: 22,
            model: "cc-sim".to_owned(),
            seed: 0,
        }
    }
}

/// Why a trace cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceOptionsError {
    /// The rate.
    #[error("rate: found {0}, wanted 0 or more")]
    Rate(f64),
    /// The share of the hot tenant.
    #[error("hot: found {0}, wanted 0 to 1")]
    Hot(f64),
    /// Nobody to ask.
    #[error("groups: found 0, wanted at least 1")]
    Groups,
}

/// Makes a trace. Same options, same bytes (`rand` pinned; a test holds them).
///
/// Tenants get equal shares, dealt in a random order, so that the part of a trace that can be cached does not
/// hang on luck.
pub fn generate(options: &TraceOptions) -> Result<Vec<TraceRequest>, TraceOptionsError> {
    checked(options)?;
    let mut chance = StdRng::seed_from_u64(options.seed);
    let systems: Vec<String> =
        (0..options.groups).map(|_| system_prompt(options.prompt_words, &mut chance)).collect();
    let mut at_micros = 0;
    let mut requests = Vec::with_capacity(options.requests);
    for (number, group) in deal(options, &mut chance).into_iter().enumerate() {
        at_micros = gap_micros(options.rate, &mut chance).saturating_add(at_micros);
        let question = question(number + 1, options.question_words, &mut chance);
        let body = body(&options.model, &systems[group], &question);
        let at = Seconds(at_micros as f64 / 1e6);
        requests.push(TraceRequest { at, group: format!("tenant-{}", group + 1), body });
    }
    Ok(requests)
}

fn checked(options: &TraceOptions) -> Result<(), TraceOptionsError> {
    if !(options.rate >= 0.0 && options.rate.is_finite()) {
        return Err(TraceOptionsError::Rate(options.rate));
    }
    if !(0.0..=1.0).contains(&options.hot) {
        return Err(TraceOptionsError::Hot(options.hot));
    }
    if options.groups == 0 {
        return Err(TraceOptionsError::Groups);
    }
    Ok(())
}

/// Who asks, request by request.
fn deal(options: &TraceOptions, chance: &mut StdRng) -> Vec<usize> {
    let hot = (options.hot * options.requests as f64).round() as usize;
    let others = if options.hot > 0.0 { 1..options.groups.max(2) } else { 0..options.groups };
    let rest = others.cycle().map(|group| group.min(options.groups - 1));
    let mut groups: Vec<usize> = std::iter::repeat_n(0, hot).chain(rest).take(options.requests).collect();
    groups.shuffle(chance);
    groups
}

/// Time to the next arrival: exponential, so that arrivals are Poisson.
fn gap_micros(rate: f64, chance: &mut StdRng) -> u64 {
    if rate == 0.0 {
        return 0;
    }
    let uniform: f64 = chance.random();
    (-(1.0 - uniform).ln() / rate * 1e6).round() as u64
}

fn system_prompt(words: usize, chance: &mut StdRng) -> String {
    let words: Vec<&str> = (0..words).map(|_| word(chance)).collect();
    let sentences: Vec<String> = words.chunks(SENTENCE_WORDS).map(|words| words.join(" ") + ".").collect();
    sentences.join(" ")
}

fn question(number: usize, words: usize, chance: &mut StdRng) -> String {
    let words: Vec<&str> = (0..words).map(|_| word(chance)).collect();
    format!("Question {number}: {}?", words.join(" "))
}

fn word(chance: &mut StdRng) -> &'static str {
    WORDS.choose(chance).copied().unwrap_or_default()
}

fn body(model: &str, system: &str, question: &str) -> String {
    let messages = [Message { role: "system", content: system }, Message { role: "user", content: question }];
    // String keys and plain numbers only: it cannot fail.
    serde_json::to_string(&Body { model, max_tokens: 1, messages }).unwrap_or_default()
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    messages: [Message<'a>; 2],
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::{BTreeMap, HashSet};

    use picker::hash::{BlockSize, model_root};
    use picker::tokens::words::fnv1a32;

    use super::*;
    use crate::engine::{Prompt, ReplicaOptions, VirtualReplica};
    use crate::prompt::{Api, engine_prompts, token_ids};

    /// FNV-1a of the default trace; changes only on purpose.
    const SEED_0: u32 = 242_861_818;

    fn tokens(request: &TraceRequest) -> Vec<u32> {
        let body = serde_json::from_str(&request.body).unwrap();
        token_ids(Api::Chat, &body).unwrap().concat()
    }

    fn prompt(request: &TraceRequest) -> Prompt {
        engine_prompts(model_root("cc-sim", ""), &[tokens(request)], BlockSize::ENGINE).remove(0)
    }

    fn share_of_groups(trace: &[TraceRequest]) -> BTreeMap<&str, usize> {
        let mut shares = BTreeMap::new();
        for request in trace {
            *shares.entry(request.group.as_str()).or_default() += 1;
        }
        shares
    }

    #[test]
    fn a_prompt_is_221_tokens_of_which_192_to_207_are_the_tenants() {
        let trace = generate(&TraceOptions::default()).unwrap();
        assert_eq!(trace.len(), 64);
        assert!(trace.is_sorted_by(|one, next| one.at.0 <= next.at.0));
        for request in &trace {
            let peers = trace.iter().filter(|peer| peer.group == request.group && *peer != request);
            for peer in peers {
                let (mine, theirs) = (tokens(request), tokens(peer));
                let shared = mine.iter().zip(&theirs).take_while(|(one, two)| one == two).count();
                assert_eq!((mine.len(), theirs.len()), (221, 221));
                assert!((192..=207).contains(&shared), "{shared}");
            }
        }
        assert!(share_of_groups(&trace).values().all(|share| *share == 8));
    }

    /// Tenants on replicas by their number is the best routing there is; requests in turn is round-robin.
    #[test]
    fn the_ceiling_is_76_percent_and_round_robin_is_well_under_half() {
        let mut round_robin = Vec::new();
        for seed in 0..20 {
            let trace = generate(&TraceOptions { seed, ..TraceOptions::default() }).unwrap();
            let tenants: Vec<&str> = share_of_groups(&trace).into_keys().collect();
            let sticky =
                |_, request: &TraceRequest| tenants.iter().position(|it| *it == request.group).unwrap();
            assert_eq!(hits(&trace, sticky), (56 * 192, 64 * 221), "seed {seed}");
            let (hit_tokens, query_tokens) = hits(&trace, |number, _| number);
            round_robin.push(hit_tokens as f64 / query_tokens as f64);
        }
        assert!(round_robin[0] < 0.46, "the demo's seed: {}", round_robin[0]);
        let mean = round_robin.iter().sum::<f64>() / 20.0;
        assert!((0.35..0.45).contains(&mean), "{mean}");
    }

    fn hits(trace: &[TraceRequest], route: impl Fn(usize, &TraceRequest) -> usize) -> (u64, u64) {
        let mut replicas = [(); 3].map(|()| VirtualReplica::new(ReplicaOptions::default()));
        for (number, request) in trace.iter().enumerate() {
            replicas[route(number, request) % 3].arrive(request.at, &[prompt(request)]);
        }
        let figures = replicas.iter().map(|replica| replica.figures().cache);
        figures.fold((0, 0), |sum, cache| (sum.0 + cache.hit_tokens, sum.1 + cache.query_tokens))
    }

    #[test]
    fn a_seed_names_a_trace() {
        let bytes =
            |seed| file::to_lines(&generate(&TraceOptions { seed, ..TraceOptions::default() }).unwrap());
        assert_eq!(bytes(7), bytes(7));
        let distinct: HashSet<u32> = (0..20).map(|seed| fnv1a32(bytes(seed).as_bytes())).collect();
        assert_eq!(distinct.len(), 20);
        assert_eq!(fnv1a32(bytes(0).as_bytes()), SEED_0, "the bytes of seed 0 have changed");
    }
    #[test]
    fn options_shape_the_trace() {
        let at_once = generate(&TraceOptions { rate: 0.0, ..TraceOptions::default() }).unwrap();
        assert!(at_once.iter().all(|request| request.at == Seconds(0.0)));

        let hot = TraceOptions { hot: 0.7, rate: 40.0, requests: 200, ..TraceOptions::default() };
        let trace = generate(&hot).unwrap();
        assert_eq!(share_of_groups(&trace)["tenant-1"], 140);
        let last = trace.last().unwrap().at.0;
        assert!((3.5..7.0).contains(&last), "200 requests at 40/s take {last} s");

        let alone = generate(&TraceOptions { groups: 1, hot: 0.5, ..TraceOptions::default() }).unwrap();
        assert_eq!(share_of_groups(&alone)["tenant-1"], 64);

        for (options, want) in [
            (TraceOptions { rate: -1.0, ..hot.clone() }, "rate: found -1, wanted 0 or more"),
            (TraceOptions { rate: f64::NAN, ..hot.clone() }, "rate: found NaN, wanted 0 or more"),
            (TraceOptions { hot: 1.5, ..hot.clone() }, "hot: found 1.5, wanted 0 to 1"),
            (TraceOptions { groups: 0, ..hot }, "groups: found 0, wanted at least 1"),
        ] {
            assert_eq!(generate(&options).unwrap_err().to_string(), want);
        }
    }
}
