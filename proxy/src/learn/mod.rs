//! What answers teach: whether the belief was right, and how fast an endpoint is.
//!
//! Everything here runs after the last byte of an answer was read. The engine has the prompt of an answer, whatever it
//! had before; what it reports is what it had when the request came. So a prompt that fell short loses what hung behind
//! the lost part, and is then believed again itself.

mod prediction;
pub(crate) mod tokens;

use picker::hash::Blocks;
use picker::pace::{Observation, Pace};

use crate::endpoints::Endpoint;
use crate::endpoints::booking::Booking;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::request::usage::Usage;
use prediction::{Prediction, Verdict};

/// Tokens of an engine's block until it says so: vLLM's default.
const ENGINE_BLOCK_TOKENS: u32 = 16;
/// Fewer blocks tell no ratio: the last one is not full.
const BLOCKS_MIN: usize = 4;

/// An answer that came whole.
pub(crate) struct Answered<'a> {
    pub(crate) model: &'a str,
    pub(crate) prompt: Prompt,
    pub(crate) usage: Option<Usage>,
    /// The moment of its first token tells how fast the prompt was computed.
    pub(crate) shows_pace: bool,
}

/// What is kept of a prompt until its answer has come whole.
pub(crate) struct Prompt {
    total_blocks: usize,
    /// None of a prompt that nothing was predicted of: a stream may be long, and so may its prompt.
    blocks: Blocks,
}

impl Prompt {
    /// Of a request that is booked.
    pub(crate) fn new(blocks: Blocks, booking: &Booking) -> Self {
        let total_blocks = blocks.total();
        let is_predicted = booking.expected_blocks > Some(0);
        Self { total_blocks, blocks: if is_predicted { blocks } else { Blocks::default() } }
    }
}

impl Pool {
    /// Learns from an answer.
    pub(crate) fn learn_from(&self, metrics: &Metrics, booking: &Booking, answered: Answered<'_>) {
        let Answered { model, prompt, usage, shows_pace } = answered;
        let ratio = usage.and_then(|usage| self.ratio(model, prompt.total_blocks, usage));
        // What the engine says that it had to compute counts more than what was believed.
        let told = usage.zip(ratio).and_then(|(usage, ratio)| uncached_tokens(usage, ratio));
        if let Some(told) = told {
            booking.correct(told as u32);
        }
        if shows_pace && let Some(seconds) = booking.first_token_seconds() {
            let uncached_tokens = told.unwrap_or(booking.uncached_tokens.into());
            let observation = Observation { uncached_tokens, backlog: booking.backlog(), seconds };
            booking.endpoint().pace.observe(observation);
        }
        if let (Some(usage), Some(ratio)) = (usage, ratio) {
            self.check(metrics, booking, prompt.blocks, usage, ratio);
        }
    }

    /// Fits the paces that have news. To be called a few times a second. All see the first one that is learned at once: who
    /// is taken for slow beside those who have learned is sent nothing to learn from.
    pub(crate) fn fit_paces(&self) {
        let prior = self.usual_pace();
        self.endpoints().for_each(|endpoint| endpoint.pace.fit(&prior));
        let usual = self.usual_pace();
        self.endpoints().for_each(|endpoint| endpoint.pace.settle(&usual));
    }

    /// The middle of what was learned, and the default before that.
    fn usual_pace(&self) -> Pace {
        let learned: Vec<Pace> = self.endpoints().filter_map(|endpoint| endpoint.pace.learned()).collect();
        Pace::median(learned.iter().copied()).unwrap_or_default()
    }

    /// Forgets what an endpoint is believed to hold; how often is counted.
    pub(crate) fn forget(&self, endpoint: &Endpoint, why: &'static str) {
        self.known.index.clear(endpoint.id());
        endpoint.trust.dropped();
        tracing::info!(endpoint = endpoint.name, why, "belief dropped");
    }

    /// Tokens of the router to one of the engine: this prompt's own, or the model's where that is larger.
    fn ratio(&self, model: &str, total: usize, usage: Usage) -> Option<f64> {
        let engine_tokens = f64::from(usage.prompt_tokens);
        // The last block is half full, for all that is known.
        let router_tokens = (total as f64 - 0.5) * self.rules.block.tokens() as f64;
        let own = router_tokens / engine_tokens;
        (total >= BLOCKS_MIN).then(|| self.known.ratios.learn(model, router_tokens, engine_tokens).max(own))
    }

    /// Compares what was predicted with what was reported, and corrects the belief.
    fn check(&self, metrics: &Metrics, booking: &Booking, blocks: Blocks, usage: Usage, ratio: f64) {
        let endpoint = booking.endpoint();
        let (Some(expected), Some(cached)) = (booking.expected_blocks, usage.cached_tokens) else { return };
        let prediction = Prediction {
            blocks: expected,
            block_tokens: self.rules.block.tokens() as f64,
            ratio,
            engine_block_tokens: endpoint.block_tokens().unwrap_or(ENGINE_BLOCK_TOKENS).into(),
            prompt_tokens: usage.prompt_tokens.into(),
            cached_tokens: cached.into(),
        };
        metrics.predicted(prediction.error());
        endpoint.counters.predicted_tokens.add(prediction.tokens() as u64);
        endpoint.counters.cached_tokens.add(cached.into());
        endpoint.counters.prompt_tokens.add(usage.prompt_tokens.into());
        if booking.drops != endpoint.trust.drops() {
            return;
        }
        match prediction.verdict() {
            Verdict::Nothing => {}
            Verdict::Confirmed => endpoint.trust.confirmed(),
            Verdict::Short { kept } => {
                let is_lost = kept * 2 < expected as usize;
                self.correct(endpoint, blocks, kept, Lost { most: is_lost, all: cached == 0 });
            }
        }
    }

    /// Believes no more of what was there before than `kept` blocks, and the prompt itself, which is there now. Not so a prompt
    /// that is mostly lost where prompts are lost more than elsewhere: its next request finds it a home anew.
    fn correct(&self, endpoint: &Endpoint, blocks: Blocks, kept: usize, lost: Lost) {
        let size = self.known.index.size(endpoint.id());
        endpoint.trust.fell_short(size.is_some_and(|size| size.blocks * 2 >= size.capacity));
        self.known.index.truncate(endpoint.id(), &blocks, kept);
        let others = self.endpoints().map(|other| &other.trust);
        if !(lost.most && endpoint.trust.is_worse_than(others)) {
            self.known.index.commit(endpoint.id(), &blocks, false);
        }
        if !lost.all {
            return endpoint.trust.has_something();
        }
        if let Some(since) = endpoint.trust.missed(blocks) {
            self.forget(endpoint, "three predicted hits found nothing cached");
            for blocks in &since {
                self.known.index.commit(endpoint.id(), blocks, false);
            }
        }
    }
}

/// How much of a predicted hit was not there.
#[derive(Clone, Copy)]
struct Lost {
    most: bool,
    all: bool,
}

/// Tokens of the router that the engine computed, if it says what was cached.
fn uncached_tokens(usage: Usage, ratio: f64) -> Option<f64> {
    Some(f64::from(usage.prompt_tokens.saturating_sub(usage.cached_tokens?)) * ratio)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use config::{ClientKey, Config, Flags, System};
    use picker::pace::FIT_EVERY;

    use super::*;

    #[test]
    fn the_first_pace_that_is_learned_is_all_endpoints_at_once() {
        let endpoints = ["a=http://a", "b=http://b", "c=http://c"].map(str::to_owned).to_vec();
        let flags = Flags { endpoints, ..Flags::default() };
        let Config { mut pools, .. } = config::load(None, &flags, &System).unwrap().config;
        let pool = Pool::build(pools.remove(0), ClientKey::default(), None).unwrap();
        let paces = || pool.endpoints().map(|endpoint| endpoint.pace.load()).collect::<Vec<_>>();
        pool.fit_paces();
        assert_eq!(paces(), [Pace::default(); 3]);
        // A tenth of the default.
        for turn in 0..FIT_EVERY {
            let uncached_tokens = 500.0 * turn as f64;
            let seconds = 0.05 + uncached_tokens / 1_200.0;
            let seen = Observation { uncached_tokens, backlog: 0.0, seconds };
            pool.endpoints().next().unwrap().pace.observe(seen);
        }
        pool.fit_paces();
        let learned = paces();
        assert!((1_000.0..1_400.0).contains(&learned[0].tokens_per_second), "{learned:?}");
        assert_eq!(learned, [learned[0]; 3], "nobody is sent nothing for having learned nothing");
    }
}
