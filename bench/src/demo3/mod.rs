//! The second published lesson's workload: 500 skewed conversations over eight replicas that cache whole conversations.
//!
//! A third party's figures for it are known (`tests/fixtures/demo3/expected.json`), so a policy can be held against
//! them. The lesson knows no blocks: a prompt is a system prompt, a history and a question, and a replica answers from
//! an [`EntryCache`], one entry a conversation. For a router that knows blocks, [`Workload::requests`] spells the same
//! prompts as ids of blocks of [`BLOCK_TOKENS`]. A simulator plays both sides: the router gets the blocks of request
//! `n`, and the replica it picks is asked by [`PrefixCache::admit`] with that `n`.
//!
//! What the blocks say. A turn adds 500 tokens, a question of 300 and an answer of 200, and a router sees an answer only
//! in the next turn's prompt. So the text of a conversation is a fixed script: its first `history + 300` tokens are in
//! the prompt, and a question comes again as part of the next history. After a reset, [`Variant::Keyed`] begins the same
//! script again, so that even its questions are ones that were asked before; [`Variant::NewText`] begins another.

mod cache;

use std::sync::Arc;

use picker::chance::mix;

pub use cache::{EntryCache, PrefixCache};

use crate::engine::Seconds;
use crate::trace::hashed::HashedRequest;

/// Tokens in a block of [`Workload::requests`]; every prompt is a whole number of them.
pub const BLOCK_TOKENS: u32 = 100;
/// Tokens of a system prompt.
const SYSTEM_TOKENS: u32 = 2_000;
/// System prompts; a conversation has the one of its number modulo this.
const SYSTEMS: u32 = 4;
/// Tokens of a question.
const QUESTION_TOKENS: u32 = 300;
/// Tokens of an answer.
const ANSWER_TOKENS: u32 = TURN_TOKENS - QUESTION_TOKENS;
/// What a turn adds to the history; also the history of the first turn.
const TURN_TOKENS: u32 = 500;
/// A longer history begins anew.
const HISTORY_TOKENS_MAX: u32 = 20_000;
/// SplitMix64's step.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a conversation is about after a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    /// The same text again: what was cached of it before the reset still counts. The published figures are of this one.
    #[default]
    Keyed,
    /// New text, of which nothing is cached.
    NewText,
}

/// What the workload is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// What a reset does.
    pub variant: Variant,
    /// How many requests.
    pub requests: usize,
    /// How many conversations.
    pub conversations: u32,
    /// The conversation of number `i` is asked for in proportion to `1 / (i + 1)^skew`.
    pub skew: f64,
    /// Requests per second, evenly spaced.
    pub rate: f64,
    /// Same seed, same requests.
    pub seed: u64,
}

impl Default for Options {
    /// The published run. Of a mean prompt of 10,790 tokens, 3.5 % uncached take 31 ms at 12,000 tokens/s; with 5 ms for
    /// the request, eight replicas at 130 requests/s are busy 59 % of the time.
    fn default() -> Self {
        let variant = Variant::Keyed;
        Self { variant, requests: 20_000, conversations: 500, skew: 1.0, rate: 130.0, seed: 1 }
    }
}

/// Why there is no workload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OptionsError {
    /// Nobody who asks.
    #[error("conversations: found 0, wanted at least 1")]
    Conversations,
    /// The skew.
    #[error("skew: found {0}, wanted 0 or more")]
    Skew(f64),
    /// The rate.
    #[error("rate: found {0}, wanted more than 0")]
    Rate(f64),
}

/// One request, as the lesson knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// From 0.
    pub conversation: u32,
    /// Tokens of the conversation before the question.
    pub history_tokens: u32,
    /// Which script of the conversation it is of: resets so far under [`Variant::NewText`], else 0.
    pub script: u32,
}

impl Turn {
    /// Length of the prompt.
    pub fn prompt_tokens(self) -> u32 {
        SYSTEM_TOKENS + self.history_tokens + QUESTION_TOKENS
    }

    /// The conversation's system prompt, from 0.
    fn system(self) -> u32 {
        self.conversation % SYSTEMS
    }
}

/// The requests, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    options: Options,
    turns: Arc<[Turn]>,
}

impl Workload {
    /// Draws the requests: O(requests · log conversations). Same options, same requests.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        let sums = running_sums(&options)?;
        let mut states = vec![(TURN_TOKENS, 0); options.conversations as usize];
        let draw = |number: usize| {
            let conversation = drawn(&sums, uniform(options.seed, number));
            let (history_tokens, resets) = states[conversation];
            states[conversation] = after(history_tokens, resets);
            let script = if options.variant == Variant::Keyed { 0 } else { resets };
            Turn { conversation: conversation as u32, history_tokens, script }
        };
        Ok(Self { options, turns: (0..options.requests).map(draw).collect() })
    }

    /// The requests as the lesson knows them.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// The requests as a router sees them, in blocks of [`BLOCK_TOKENS`], request `i` at `i / rate` seconds. The session is
    /// the conversation's number. About 900 bytes a request.
    pub fn requests(&self) -> Vec<HashedRequest> {
        let request = |(number, &turn): (usize, &Turn)| HashedRequest {
            at: Seconds(number as f64 / self.options.rate),
            input_tokens: turn.prompt_tokens(),
            output_tokens: ANSWER_TOKENS,
            hash_ids: self.block_ids(turn).collect(),
            session: Some(turn.conversation.to_string()),
        };
        self.turns.iter().enumerate().map(request).collect()
    }

    /// The empty cache of one replica that is to serve these requests.
    pub fn cache(&self, capacity_tokens: u64) -> EntryCache {
        EntryCache::new(self.turns.clone(), capacity_tokens)
    }

    /// System prompts have the first ids; behind them lies a range for each script of each conversation.
    fn block_ids(&self, turn: Turn) -> impl Iterator<Item = u64> + use<> {
        const SYSTEM: u64 = (SYSTEM_TOKENS / BLOCK_TOKENS) as u64;
        const SCRIPT: u64 = ((HISTORY_TOKENS_MAX + QUESTION_TOKENS) / BLOCK_TOKENS) as u64;
        let script = u64::from(turn.script) * u64::from(self.options.conversations);
        let text = u64::from(SYSTEMS) * SYSTEM + (script + u64::from(turn.conversation)) * SCRIPT;
        let system = u64::from(turn.system()) * SYSTEM;
        let blocks = u64::from((turn.history_tokens + QUESTION_TOKENS) / BLOCK_TOKENS);
        (system..system + SYSTEM).chain(text..text + blocks)
    }
}

/// History and resets of a conversation's next turn.
fn after(history_tokens: u32, resets: u32) -> (u32, u32) {
    match history_tokens + TURN_TOKENS {
        longer if longer <= HISTORY_TOKENS_MAX => (longer, resets),
        _ => (TURN_TOKENS, resets + 1),
    }
}

/// Of the conversations' shares, each with all before it.
fn running_sums(options: &Options) -> Result<Vec<f64>, OptionsError> {
    let Options { requests, conversations, skew, rate, .. } = *options;
    if conversations == 0 {
        return Err(OptionsError::Conversations);
    }
    if !(skew >= 0.0 && skew.is_finite()) {
        return Err(OptionsError::Skew(skew));
    }
    if !(rate > 0.0 && rate.is_finite() && (requests as f64 / rate).is_finite()) {
        return Err(OptionsError::Rate(rate));
    }
    let sums = (1..=conversations).scan(0.0, |sum, rank| {
        *sum += 1.0 / f64::from(rank).powf(skew);
        Some(*sum)
    });
    Ok(sums.collect())
}

/// The first conversation whose running sum reaches `uniform` of the total.
fn drawn(sums: &[f64], uniform: f64) -> usize {
    let last = sums.len() - 1;
    sums.partition_point(|&sum| sum < uniform * sums[last]).min(last)
}

/// The draw of that number of a SplitMix64 generator, 0 to below 1.
fn uniform(seed: u64, number: usize) -> f64 {
    let state = seed.wrapping_add(STEP.wrapping_mul(number as u64));
    (mix(state) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashMap;

    use super::*;

    /// One conversation that resets after its 40th turn.
    fn alone(variant: Variant) -> Vec<HashedRequest> {
        let options = Options { variant, requests: 45, conversations: 1, ..Options::default() };
        Workload::new(options).unwrap().requests()
    }

    fn shared(one: &HashedRequest, other: &HashedRequest) -> usize {
        one.hash_ids.iter().zip(&other.hash_ids).take_while(|(one, other)| one == other).count()
    }

    #[test]
    fn a_turn_repeats_all_of_the_last_prompt() {
        for variant in [Variant::Keyed, Variant::NewText] {
            for pair in alone(variant)[..40].windows(2) {
                assert_eq!(shared(&pair[0], &pair[1]), pair[0].hash_ids.len());
                assert_eq!(pair[1].hash_ids.len(), pair[0].hash_ids.len() + 5, "question 3, answer 2");
            }
        }
    }

    #[test]
    fn a_reset_begins_the_same_script_or_another() {
        for (variant, same) in [(Variant::Keyed, 28), (Variant::NewText, 20)] {
            let requests = alone(variant);
            assert_eq!(requests[39].input_tokens, 22_300);
            assert_eq!((requests[0].input_tokens, requests[40].input_tokens), (2_800, 2_800));
            assert_eq!(shared(&requests[0], &requests[40]), same, "{variant:?}");
            assert_eq!(shared(&requests[40], &requests[41]), 28, "{variant:?}");
        }
    }

    #[test]
    fn blocks_are_whole_and_an_id_has_one_prefix() {
        for variant in [Variant::Keyed, Variant::NewText] {
            let requests = Workload::new(Options { variant, ..Options::default() }).unwrap().requests();
            let mut parents = HashMap::new();
            for request in &requests {
                assert_eq!(request.hash_ids.len() as u32 * BLOCK_TOKENS, request.input_tokens);
                let before = [None].into_iter().chain(request.hash_ids.iter().copied().map(Some));
                for (parent, &id) in before.zip(&request.hash_ids) {
                    assert_eq!(*parents.entry(id).or_insert(parent), parent);
                }
            }
            assert_eq!(parents.values().filter(|parent| parent.is_none()).count(), 4);
        }
    }

    #[test]
    fn requests_come_evenly() {
        let requests = Workload::new(Options { rate: 4.0, requests: 3, ..Options::default() }).unwrap();
        let times: Vec<f64> = requests.requests().iter().map(|request| request.at.0).collect();
        assert_eq!(times, [0.0, 0.25, 0.5]);
    }

    #[test]
    fn options_without_meaning_are_refused() {
        let good = Options::default();
        for (options, want) in [
            (Options { conversations: 0, ..good }, "conversations: found 0, wanted at least 1"),
            (Options { skew: -1.0, ..good }, "skew: found -1, wanted 0 or more"),
            (Options { skew: f64::NAN, ..good }, "skew: found NaN, wanted 0 or more"),
            (Options { rate: 0.0, ..good }, "rate: found 0, wanted more than 0"),
            (Options { rate: f64::INFINITY, ..good }, "rate: found inf, wanted more than 0"),
            (Options { rate: 1e-308, ..good }, &format!("rate: found {}, wanted more than 0", 1e-308)),
        ] {
            assert_eq!(Workload::new(options).unwrap_err().to_string(), want);
        }
    }
}
