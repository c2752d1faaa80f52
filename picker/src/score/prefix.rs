//! `prefix`: the share of the prompt's blocks that the endpoint holds.

use super::View;

/// An absolute term beside the share, so that 4,000 of 5,000 tokens beat 400 of 500.
/// Source: llm-d's `matchLengthWeight` and `matchLengthScaleTokens`; off by default there and here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatchLength {
    weight: f64,
    scale_tokens: f64,
}

/// A weight outside 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("match length weight must be between 0 and 1, got {0}")]
pub struct MatchLengthError(pub f64);

impl MatchLength {
    /// Tokens from which the absolute term counts whole.
    pub const SCALE_TOKENS: u32 = 8_192;

    /// A term of that weight. Refuses weights outside 0 to 1, NaN among them, and takes a scale of 0 as 1.
    pub fn new(weight: f64, scale_tokens: u32) -> Result<Self, MatchLengthError> {
        if !(0.0..=1.0).contains(&weight) {
            return Err(MatchLengthError(weight));
        }
        Ok(Self { weight, scale_tokens: f64::from(scale_tokens.max(1)) })
    }

    /// What the length counts beside the share.
    pub fn weight(self) -> f64 {
        self.weight
    }

    /// `weight * min(1, matched/scale)^2 + (1 - weight) * matched/total`; 0 where there are no tokens.
    pub fn score(self, matched_tokens: f64, total_tokens: f64) -> f64 {
        if total_tokens <= 0.0 {
            return 0.0;
        }
        let length = (matched_tokens / self.scale_tokens).min(1.0);
        self.weight * length * length + (1.0 - self.weight) * matched_tokens / total_tokens
    }
}

impl Default for MatchLength {
    /// No such term: the share alone.
    fn default() -> Self {
        Self { weight: 0.0, scale_tokens: f64::from(Self::SCALE_TOKENS) }
    }
}

/// Every candidate is scored: 0 without a match, and 0 for a request without blocks.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    if view.match_length.weight > 0.0 {
        return by_length(view, scores);
    }
    let total = f64::from(view.total.max(1));
    for (score, &matched) in scores.iter_mut().zip(view.matched) {
        *score = Some(f64::from(matched) / total);
    }
}

fn by_length(view: &View<'_>, scores: &mut [Option<f64>]) {
    let tokens = |blocks: u32| f64::from(blocks) * view.block_tokens as f64;
    for (score, &matched) in scores.iter_mut().zip(view.matched) {
        *score = Some(view.match_length.score(tokens(matched), tokens(view.total)));
    }
}
