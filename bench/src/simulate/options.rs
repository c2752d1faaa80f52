//! What a workload is played on, and how.

use picker::belief::ENDPOINTS_MAX;
use picker::score::Weights;

use super::PlayError;
use crate::engine::{EvictionOrder, Link, ReplicaOptions, Seconds};

/// What a trace is played on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulateOptions {
    /// How many replicas at first: 1 to [`ENDPOINTS_MAX`]. With a split, those that answer.
    pub replicas: usize,
    /// Each of them. Its block size is also the router's.
    pub replica: ReplicaOptions,
    /// Blocks that the router can believe of each replica; `None` for what its cache holds, as the proxy reads it from the
    /// engine's metrics.
    pub belief_blocks: Option<usize>,
    /// The router knows what each cache holds, as engines' KV events would tell it, in place of what it believes.
    pub exact: bool,
    /// In place of the preset of a policy that sums.
    pub weights: Option<Weights>,
    /// Of ties and of the policy `random`.
    pub seed: u64,
    /// How many of the first decisions are kept to be shown.
    pub decisions_shown: usize,
    /// Time between two scrapes of a replica; replicas are scraped one after another. 0: every figure is of the instant of
    /// the decision.
    pub metrics_age: Seconds,
    /// What befalls the fleet.
    pub changes: Changes,
    /// When requests arrive.
    pub pacing: Pacing,
    /// Tokens of an answer that come in a second after the first one.
    pub decode_tokens_per_second: f64,
    /// Tokens of every answer; `None` for what the trace says.
    pub output_tokens: Option<u32>,
    /// Replicas that only compute prompts.
    pub split: Option<Split>,
    /// So many of the first requests count in no figure.
    pub warm: usize,
    /// Requests over which the worst imbalance is looked for.
    pub window: usize,
}

/// What befalls the fleet, on the virtual clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Changes {
    /// One more replica joins, with an empty cache.
    pub add_at: Option<Seconds>,
    /// The last of the first replicas goes, with all that it has in flight.
    pub lose_at: Option<Seconds>,
    /// How fast the first replica computes, of what the others do: 0.5 for half.
    pub first_rate: f64,
}

/// When requests arrive, of what the trace says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacing {
    /// Times are divided by it.
    pub speed: f64,
    /// So many arrive together, when the first of them does.
    pub burst: usize,
}

/// Prompts that are computed elsewhere (behaviours 51 to 56).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Replicas that only compute prompts, each with as many lanes as the others.
    pub prefill_replicas: usize,
    /// A prompt with so many tokens that its replica is not believed to hold is computed there; 0: none is.
    pub threshold_tokens: usize,
    /// What carries the KV cache away from each of them.
    pub link: Link,
    /// What the KV cache of a token takes.
    pub kv_bytes_per_token: f64,
}

impl Default for SimulateOptions {
    /// The published table's: three replicas that evict the head of a prefix first (vLLM and the fake server evict its
    /// tail), seed 0.
    fn default() -> Self {
        Self {
            replicas: 3,
            replica: ReplicaOptions { eviction: EvictionOrder::HeadFirst, ..ReplicaOptions::default() },
            belief_blocks: None,
            exact: false,
            weights: None,
            seed: 0,
            decisions_shown: 0,
            metrics_age: Seconds(0.0),
            changes: Changes { add_at: None, lose_at: None, first_rate: 1.0 },
            pacing: Pacing { speed: 1.0, burst: 1 },
            decode_tokens_per_second: 50.0,
            output_tokens: None,
            split: None,
            warm: 0,
            window: 1000,
        }
    }
}

impl SimulateOptions {
    /// Replicas that answer, all that there ever are.
    pub(super) fn replicas_ever(&self) -> usize {
        self.replicas + usize::from(self.changes.add_at.is_some())
    }

    /// Whether so many requests can be played and measured.
    pub(super) fn check(&self, requests: usize) -> Result<(), PlayError> {
        if self.replicas == 0 || self.replicas_ever() > ENDPOINTS_MAX {
            return Err(PlayError::Replicas(self.replicas));
        }
        if self.replicas == 1 && self.changes.lose_at.is_some() {
            return Err(PlayError::NobodyLeft);
        }
        if self.warm > 0 && self.warm >= requests {
            return Err(PlayError::Warm { warm: self.warm, requests });
        }
        Ok(())
    }

    /// How fast a replica is, by its place in the fleet.
    pub(super) fn replica(&self, place: usize) -> ReplicaOptions {
        let mut replica = self.replica;
        if place == 0 {
            replica.timing.prefill_tokens_per_second *= self.changes.first_rate;
        }
        replica
    }

    /// From the first token of an answer to its end.
    pub(super) fn answer(&self, output_tokens: u32) -> Seconds {
        let more = self.output_tokens.unwrap_or(output_tokens).saturating_sub(1);
        Seconds(f64::from(more) / self.decode_tokens_per_second)
    }
}

impl Pacing {
    /// The place in the trace of the request with which this one arrives.
    pub(super) fn leader(self, place: usize) -> usize {
        place - place % self.burst.max(1)
    }

    /// A trace's time on the virtual clock.
    pub(super) fn on_clock(self, at: Seconds) -> Seconds {
        Seconds(at.0 / self.speed)
    }
}
