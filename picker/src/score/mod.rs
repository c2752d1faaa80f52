//! Scorers: each gives an endpoint 0 to 1 for one quality, or leaves it out; weighted and summed they rank.
//!
//! What was not measured is left out, never idle. Formulas and defaults are llm-d's where no other source is named.

mod in_flight;
mod kv;
mod lora;
mod no_hit_lru;
pub mod prefix;
mod queue;
mod running;
mod session;
mod spread;
mod token_load;
mod weights;

use std::sync::Arc;

use crate::belief::EndpointId;
use crate::load::Load;
use crate::traffic::Seen;
use crate::tuning::Tuning;

pub use lora::Adapters;
pub use weights::{WEIGHT_MAX, Weights, WeightsError};

/// An endpoint that a request could go to.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub id: EndpointId,
    /// What is known of its load.
    pub load: Load,
    /// What the engine says of its adapters, if it says anything.
    pub adapters: Option<Arc<Adapters>>,
    /// The share of the load that it is to have beside others: above 0, 1 for an ordinary one.
    pub weight: f64,
}

impl Candidate {
    /// An ordinary endpoint, of which no adapters are known.
    pub fn new(id: EndpointId, load: Load) -> Self {
        Self { id, load, adapters: None, weight: 1.0 }
    }

    /// A figure of load as it weighs there: twice the weight, half the load.
    pub fn weighed(&self, figure: impl Into<f64>) -> f64 {
        figure.into() / self.weight
    }
}

/// All that scorers and policies look at. The slices go by candidate.
#[derive(Clone, Copy, Debug, Default)]
pub struct View<'a> {
    /// The endpoints.
    pub candidates: &'a [Candidate],
    /// Leading blocks that each holds.
    pub matched: &'a [u32],
    /// Blocks of the request.
    pub total: u32,
    /// Tokens in a block.
    pub block_tokens: usize,
    /// For a request that founds a prefix: the number of the last such request that each took, 0 for never. Such a request
    /// has blocks of which no candidate holds any, and the engine keeps them. Empty for all others.
    pub last_cold: &'a [u64],
    /// Whether any endpoint has another weight than 1.
    pub is_weighed: bool,
    /// How much a long match counts beyond its share.
    pub match_length: prefix::MatchLength,
    /// Constants of the formulas.
    pub tuning: Tuning,
    /// The model that is asked for.
    pub model: Option<&'a str>,
    /// The endpoint that the request's session was last sent to.
    pub session_at: Option<EndpointId>,
    /// What a policy may hold on to: the session, else the beginning of the prompt; 0 for neither.
    pub key: u64,
    /// What the requests lately had in common.
    pub seen: Seen,
}

impl View<'_> {
    /// Tokens of the request that the candidate at a place does not hold.
    pub fn uncached_tokens(&self, candidate: usize) -> f64 {
        let matched = self.matched.get(candidate).copied().unwrap_or(0);
        f64::from(self.total.saturating_sub(matched)) * self.block_tokens as f64
    }

    /// Share of the request that each candidate holds, 0 to 1; 0 for a request without blocks.
    pub fn shares(&self) -> impl Iterator<Item = f64> {
        let total = f64::from(self.total.max(1));
        self.matched.iter().map(move |&matched| (f64::from(matched) / total).min(1.0))
    }
}

/// The scorers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scorer {
    /// Share of the prompt's blocks that the endpoint holds.
    Prefix,
    /// Shorter engine queue.
    Queue,
    /// Less KV cache in use.
    Kv,
    /// Spreads requests that nobody has a prefix for.
    NoHitLru,
    /// Fewer requests that the engine runs.
    Running,
    /// Fewer requests in flight from this router.
    InFlight,
    /// Fewer prompt tokens to compute, this request's among them.
    TokenLoad,
    /// The asked adapter is loaded, or has a place.
    Lora,
    /// The session was sent there last.
    Session,
}

impl Scorer {
    /// All scorers, in the order of their columns.
    pub const ALL: [Self; 9] = [
        Self::Prefix,
        Self::Queue,
        Self::Kv,
        Self::NoHitLru,
        Self::Running,
        Self::InFlight,
        Self::TokenLoad,
        Self::Lora,
        Self::Session,
    ];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 9] =
        ["prefix", "queue", "kv", "no-hit-lru", "running", "in-flight", "token-load", "lora", "session"];

    /// The name in decisions and configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// One score for each candidate into `scores`, all `None` before. What stays `None` is left out and counts as 0.
    pub fn score(self, view: &View<'_>, scores: &mut [Option<f64>]) {
        match self {
            Self::Prefix => prefix::score(view, scores),
            Self::Queue => queue::score(view, scores),
            Self::Kv => kv::score(view, scores),
            Self::NoHitLru => no_hit_lru::score(view, scores),
            Self::Running => running::score(view, scores),
            Self::InFlight => in_flight::score(view, scores),
            Self::TokenLoad => token_load::score(view, scores),
            Self::Lora => lora::score(view, scores),
            Self::Session => session::score(view, scores),
        }
        for score in scores.iter_mut().flatten() {
            *score = if score.is_nan() { 0.0 } else { score.clamp(0.0, 1.0) };
        }
    }
}
