//! The draws of the shapes: lengths, gaps between arrivals, popular things.

use std::f64::consts::TAU;

use rand::Rng;
use rand::rngs::StdRng;

/// Log-normal lengths, or times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// Half of them are below.
    pub(super) median: f64,
    /// Of the logarithm. 0 has no spread; with 1, one in six is more than 2.7 times the median.
    pub(super) sigma: f64,
    /// None is above.
    pub(super) max: f64,
}

impl Lengths {
    /// One of them, with its fraction.
    pub(super) fn draw(self, chance: &mut StdRng) -> f64 {
        (self.median * (self.sigma * normal(chance)).exp()).min(self.max)
    }

    /// A whole number of tokens, at least 1.
    pub(super) fn tokens(self, chance: &mut StdRng) -> u32 {
        (self.draw(chance).round() as u32).max(1)
    }
}

/// Standard normal, after Box and Muller.
fn normal(chance: &mut StdRng) -> f64 {
    let (radius, angle): (f64, f64) = (chance.random(), chance.random());
    (-2.0 * (1.0 - radius).ln()).sqrt() * (TAU * angle).cos()
}

/// Microseconds to the next arrival of Poisson's, at `rate` per second.
pub(super) fn gap_micros(rate: f64, chance: &mut StdRng) -> u64 {
    let uniform: f64 = chance.random();
    micros(-(1.0 - uniform).ln() / rate)
}

/// Seconds, rounded to microseconds.
pub(super) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// Things of which the one of rank `i`, from 1, is asked for in proportion to `1 / i`.
pub(super) struct Zipf {
    /// Shares, each with all before it.
    sums: Vec<f64>,
}

impl Zipf {
    /// At least one thing.
    pub(super) fn new(things: u32) -> Self {
        let sums = (1..=things.max(1)).scan(0.0, |sum, rank| {
            *sum += 1.0 / f64::from(rank);
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    /// One of them, from 0.
    pub(super) fn draw(&self, chance: &mut StdRng) -> usize {
        let last = self.sums.len() - 1;
        let uniform: f64 = chance.random();
        self.sums.partition_point(|&sum| sum < uniform * self.sums[last]).min(last)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const DRAWS: usize = 20_000;

    fn share(mut holds: impl FnMut(&mut StdRng) -> bool) -> f64 {
        let mut chance = StdRng::seed_from_u64(7);
        (0..DRAWS).filter(|_| holds(&mut chance)).count() as f64 / DRAWS as f64
    }

    #[test]
    fn draws_have_the_shares_they_state() {
        let lengths = Lengths { median: 100.0, sigma: 1.0, max: 1_000.0 };
        let zipf = Zipf::new(100);
        // The sum of 1/1 to 1/100 is 5.187.
        for (shows, got, want) in [
            ("median", share(|chance| lengths.draw(chance) < 100.0), 0.5),
            ("one sigma", share(|chance| lengths.draw(chance) > 100.0 * 1f64.exp()), 0.1587),
            ("the limit", share(|chance| lengths.draw(chance) >= 1_000.0), 0.0107),
            ("a mean gap", share(|chance| gap_micros(2.0, chance) > 500_000), (-1f64).exp()),
            ("the first", share(|chance| zipf.draw(chance) == 0), 1.0 / 5.187),
            ("the fourth", share(|chance| zipf.draw(chance) == 3), 0.25 / 5.187),
        ] {
            assert!((got - want).abs() < 0.01, "{shows}: {got}, {want}");
        }
        let tiny = Lengths { median: 0.01, sigma: 0.0, max: 1.0 };
        assert_eq!(tiny.tokens(&mut StdRng::seed_from_u64(7)), 1);
    }
}
