//! What each scorer counts for in a policy that sums.

use super::Scorer;

/// The largest weight: past it a weight is a mistake, and a sum of all of them stays exact enough to tell scores apart.
pub const WEIGHT_MAX: f64 = 1e6;

/// A weight for each scorer, 0 to [`WEIGHT_MAX`], not all of them 0. A scorer that weighs nothing is not asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights([f64; Scorer::ALL.len()]);

/// Weights that cannot rank.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum WeightsError {
    /// Negative, too large or no number.
    #[error("weight of {} must be a number from 0 to {WEIGHT_MAX}, got {}", .0.name(), .1)]
    OutOfRange(Scorer, f64),
    /// Nothing would rank.
    #[error("at least one weight must be above 0")]
    AllZero,
}

impl Weights {
    /// The weights of these scorers, 0 for all others; of a scorer named twice the last.
    pub fn new(weights: &[(Scorer, f64)]) -> Result<Self, WeightsError> {
        let wrong = weights.iter().find(|(_, weight)| !(0.0..=WEIGHT_MAX).contains(weight));
        if let Some(&(scorer, weight)) = wrong {
            return Err(WeightsError::OutOfRange(scorer, weight));
        }
        let weights = Self::preset(weights);
        if weights.sum() > 0.0 { Ok(weights) } else { Err(WeightsError::AllZero) }
    }

    /// Weights that are right as written.
    pub(crate) const fn preset(weights: &[(Scorer, f64)]) -> Self {
        let mut by_scorer = [0.0; Scorer::ALL.len()];
        let mut place = 0;
        while place < weights.len() {
            by_scorer[weights[place].0 as usize] = weights[place].1;
            place += 1;
        }
        Self(by_scorer)
    }

    /// What a scorer counts for.
    pub fn of(&self, scorer: Scorer) -> f64 {
        self.0[scorer as usize]
    }

    /// The scorers that count, and for what, in the order of [`Scorer::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Scorer, f64)> {
        let all = Scorer::ALL.iter().zip(&self.0);
        all.filter(|(_, weight)| **weight > 0.0).map(|(&scorer, &weight)| (scorer, weight))
    }

    /// The highest total that scores can come to.
    pub fn sum(&self) -> f64 {
        self.0.iter().sum()
    }
}
