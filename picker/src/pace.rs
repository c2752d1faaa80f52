//! How fast an endpoint computes prompts, as its first tokens tell.

/// Time to the first token of a request with `u` uncached tokens behind `w` seconds of other prompts:
/// `overhead + u / rate + queueing * w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds that every request takes, cached or not.
    pub overhead: f64,
    /// Uncached prompt tokens computed in a second.
    pub tokens_per_second: f64,
    /// Share of the prompts ahead that a request waits for: 1 for one lane, less for several.
    pub queueing: f64,
}

impl Default for Pace {
    /// Until it is learned: an 8-billion-parameter model on one large accelerator, prompts one after another.
    fn default() -> Self {
        Self { overhead: 0.005, tokens_per_second: 12_000.0, queueing: 1.0 }
    }
}

impl Pace {
    /// Seconds of computing for a prompt with so many uncached tokens.
    pub fn work(&self, uncached_tokens: f64) -> f64 {
        self.overhead + uncached_tokens / self.tokens_per_second
    }
}
