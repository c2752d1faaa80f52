//! Constants of formulas that an operator may set otherwise: those that llm-d makes parameters of its plugins.

/// Constants of scorers and of the policy `affinity`. With the defaults every decision is as published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// `affinity`: share of the prompt from which an endpoint holds it. Source: llm-d's `affinityThreshold`.
    pub holds_share: f64,
    /// `affinity`: seconds that the first token may come later at a holder than elsewhere; infinite for any. Source: llm-d's
    /// `maxTTFTPenaltyMs`.
    pub penalty_seconds_max: f64,
    /// `affinity`: tokens that every endpoint computes in a second, above 0; where absent, each at its own pace. llm-d's
    /// `peakPrefillThroughput`, which is 15,928 there.
    pub tokens_per_second: Option<f64>,
    /// `token-load`: tokens to compute from which an endpoint counts as full, above 0. Source: llm-d's
    /// `queueThresholdTokens`.
    pub full_tokens: f64,
    /// `in-flight`: requests up to which an endpoint counts as idle. Source: llm-d's `idleThreshold`.
    pub idle_requests: u32,
    /// `in-flight`: what the best of those that are not idle could have, 0 to 1. Source: llm-d's `maxBusyScore`.
    pub busy_score_max: f64,
}

impl Tuning {
    /// As published.
    pub const DEFAULT: Self = Self {
        holds_share: 0.80,
        penalty_seconds_max: 18.0,
        tokens_per_second: None,
        full_tokens: 4_194_304.0,
        idle_requests: 0,
        busy_score_max: 1.0,
    };
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}
