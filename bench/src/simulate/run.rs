//! What one policy came to, request by request.

use picker::columns::Column;
use picker::decide::{Choice, Decision};

use crate::engine::Seconds;

/// A play of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Under what: a policy's name, or what assigned the requests.
    pub name: &'static str,
    /// One for each request, in the order of the trace.
    pub served: Vec<Served>,
    /// So many of the first count in no figure.
    pub warm: usize,
    /// Requests over which the worst imbalance is looked for.
    pub window: usize,
    /// Replicas that there ever were.
    pub replicas: usize,
    /// Requests that a replica had in flight when it was lost; they were sent again.
    pub lost: usize,
    /// The first decisions, as many as were asked for.
    pub decisions: Vec<ShownDecision>,
}

impl Run {
    /// The requests that count.
    pub fn measured(&self) -> &[Served] {
        &self.served[self.warm.min(self.served.len())..]
    }

    /// The mean time to the first token of the requests that count, in seconds; 0 of none.
    pub fn ttft_mean(&self) -> f64 {
        let measured = self.measured();
        measured.iter().map(|served| served.ttft.0).sum::<f64>() / measured.len().max(1) as f64
    }

    /// The replica of each request, from 0, in the order of the trace.
    pub fn routed(&self) -> impl Iterator<Item = usize> {
        self.served.iter().map(|served| served.replica)
    }
}

/// What became of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Number of its group or session, if it has one.
    pub group: Option<usize>,
    /// Which replica it went to, from 0; the last one, if it was sent again.
    pub replica: usize,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of them, cached there.
    pub cached_tokens: usize,
    /// Of them, computed there: those not cached, unless others computed them.
    pub computed_tokens: usize,
    /// Whether a prefill replica computed them.
    pub apart: bool,
    /// Of them, cached by one cache without a bound.
    pub cached_at_best: usize,
    /// For a lane, since it arrived.
    pub wait: Seconds,
    /// To its first token, since it arrived.
    pub ttft: Seconds,
    /// When the first token came and when the answer ended.
    pub answer: Option<(Seconds, Seconds)>,
    /// Of that time, what its replica spent on the prompts of others.
    pub stall: Seconds,
}

/// One decision, as it is told.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownDecision {
    /// From 1.
    pub number: usize,
    /// The request's group or session; empty for none.
    pub group: String,
    /// The winner, from 0.
    pub replica: usize,
    /// Leading blocks that the winner is believed to hold, of `total`.
    pub matched: u32,
    /// Blocks of the prompt.
    pub total: usize,
    /// Nobody is believed to hold any.
    pub cold: bool,
    /// What ranked the winner: its weighted sum; for `least-queue` minus its requests in flight.
    pub score: f64,
    /// What the sum is made of.
    pub reasons: Vec<Reason>,
    /// The next best and its sum; none of one replica.
    pub next: Option<(usize, f64)>,
}

/// One part of a winner's sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// Name of the column.
    pub name: &'static str,
    /// What it counts for.
    pub weight: f64,
    /// Its figure; `None` where the winner was left out.
    pub value: Option<f64>,
}

/// What the decision says for this choice.
pub(super) fn reasons(decision: &Decision, choice: &Choice) -> Vec<Reason> {
    let reason = |(column, value): (&Column, _)| Reason { name: column.name, weight: column.weight, value };
    decision.columns().iter().zip(decision.figures(choice)).map(reason).collect()
}
