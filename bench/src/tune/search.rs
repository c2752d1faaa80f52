//! The search: from given weights on, one weight at a time is changed, and what lowers the cost is kept.

use picker::score::{Scorer, Weights};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Scorers whose weights are looked for: the others need what a trace does not have.
const SCORERS: [Scorer; 7] = [
    Scorer::Prefix,
    Scorer::Queue,
    Scorer::Kv,
    Scorer::NoHitLru,
    Scorer::Running,
    Scorer::InFlight,
    Scorer::TokenLoad,
];
/// What a weight is multiplied by; one that is 0 becomes [`FIRST`].
const FACTORS: [f64; 6] = [0.0, 0.4, 0.7, 1.4, 2.5, 5.0];
const FIRST: f64 = 1.0;
/// A weight that has grown beyond is not told apart from a rule.
const LARGEST: f64 = 100.0;

/// The weights of the least cost among so many that are tried. Same arguments, same weights. Errors: those of `cost`.
pub(super) fn best<E>(
    start: Weights,
    tries: usize,
    seed: u64,
    cost: &mut impl FnMut(Weights) -> Result<f64, E>,
) -> Result<Weights, E> {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut best = (start, cost(start)?);
    for _ in 0..tries {
        let Some(weights) = changed(best.0, &mut chance) else { continue };
        let found = cost(weights)?;
        if found < best.1 {
            best = (weights, found);
        }
    }
    Ok(best.0)
}

/// With another weight of one scorer; none where that is no weights.
fn changed(weights: Weights, chance: &mut StdRng) -> Option<Weights> {
    let scorer = *SCORERS.choose(chance)?;
    let factor = *FACTORS.choose(chance)?;
    let was = weights.of(scorer);
    let next = if was == 0.0 { FIRST } else { rounded((was * factor).min(LARGEST)) };
    let all: Vec<(Scorer, f64)> =
        Scorer::ALL.map(|one| (one, if one == scorer { next } else { weights.of(one) })).to_vec();
    Weights::new(&all).ok()
}

/// To two digits, so that it can be written down.
fn rounded(weight: f64) -> f64 {
    let digits = 10f64.powi(1 - weight.abs().max(1e-9).log10().floor() as i32);
    (weight * digits).round() / digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_cost_is_found_and_weights_can_be_written() {
        let start = Weights::new(&[(Scorer::Prefix, 3.0), (Scorer::Queue, 2.0)]).expect("weights");
        let mut tried = 0;
        let mut cost = |weights: Weights| {
            tried += 1;
            Ok::<_, ()>((weights.of(Scorer::Prefix) - 8.0).abs() + weights.of(Scorer::Queue))
        };
        let found = best(start, 400, 1, &mut cost).expect("no error");
        assert_eq!(found.of(Scorer::Queue), 0.0);
        assert!((7.0..9.0).contains(&found.of(Scorer::Prefix)), "{}", found.of(Scorer::Prefix));
        assert!(tried > 100);
        for (weight, want) in [(1.2345, 1.2), (0.056789, 0.057), (0.0, 0.0), (87.6, 88.0)] {
            assert!((rounded(weight) - want).abs() < 1e-12, "{weight}");
        }
    }
}
