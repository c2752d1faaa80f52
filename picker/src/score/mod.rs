//! Scorers: each gives an endpoint 0 to 1 for one quality, or leaves it out; weighted and summed they rank.

mod kv;
mod no_hit_lru;
pub mod prefix;
mod queue;

use crate::belief::EndpointId;
use crate::load::Load;

/// Scorers that one policy may have.
pub const SCORERS_MAX: usize = 8;

/// An endpoint that a request could go to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub id: EndpointId,
    /// What is known of its load.
    pub load: Load,
}

/// All that scorers look at. The slices go by candidate.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The endpoints.
    pub candidates: &'a [Candidate],
    /// Leading blocks that each holds.
    pub matched: &'a [u32],
    /// Blocks of the request.
    pub total: u32,
    /// For a request that founds a prefix: the number of the last such request that each took, 0 for never. Such a request
    /// has blocks of which no candidate holds any, and the engine keeps them. Empty for all others.
    pub last_cold: &'a [u64],
}

/// The scorers by name.
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
}

/// A scorer and what it counts for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted {
    /// The scorer.
    pub scorer: Scorer,
    /// Finite, not negative.
    pub weight: f64,
}

impl Scorer {
    /// The name in decisions and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Queue => "queue",
            Self::Kv => "kv",
            Self::NoHitLru => "no-hit-lru",
        }
    }

    /// One score for each candidate into `scores`, all `None` before. What stays `None` is left out and counts as 0.
    pub fn score(self, view: &View<'_>, scores: &mut [Option<f64>]) {
        match self {
            Self::Prefix => prefix::score(view, scores),
            Self::Queue => queue::score(view, scores),
            Self::Kv => kv::score(view, scores),
            Self::NoHitLru => no_hit_lru::score(view, scores),
        }
        for score in scores.iter_mut().flatten() {
            *score = if score.is_nan() { 0.0 } else { score.clamp(0.0, 1.0) };
        }
    }
}
