//! The pace of one endpoint: what was observed behind a lock, what decisions read in words that stand alone.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use picker::pace::{Learner, Observation, Pace};

/// Read by every decision, written a few times a second.
pub(crate) struct LearnedPace {
    learner: Mutex<Learner>,
    /// Bits of the figures. A reader may see one new and one old for a moment; each is sane by itself.
    overhead: AtomicU64,
    tokens_per_second: AtomicU64,
    queueing: AtomicU64,
}

impl Default for LearnedPace {
    fn default() -> Self {
        let words = Default::default;
        let (overhead, tokens_per_second, queueing) = (words(), words(), words());
        let pace = Self { learner: Mutex::default(), overhead, tokens_per_second, queueing };
        pace.store(&Pace::default());
        pace
    }
}

impl LearnedPace {
    /// The pace as decisions see it. HOT: three loads.
    pub(crate) fn load(&self) -> Pace {
        let figure = |word: &AtomicU64| f64::from_bits(word.load(Ordering::Relaxed));
        Pace {
            overhead: figure(&self.overhead),
            tokens_per_second: figure(&self.tokens_per_second),
            queueing: figure(&self.queueing),
        }
    }

    /// A first token was seen.
    pub(crate) fn observe(&self, observation: Observation) {
        self.learner.lock().observe(observation);
    }

    /// What was learned here, if anything was.
    pub(crate) fn learned(&self) -> Option<Pace> {
        self.learner.lock().learned()
    }

    /// Fits again if there is enough news. Decisions do not see it before [`LearnedPace::settle`].
    pub(crate) fn fit(&self, prior: &Pace) {
        let _ = self.learner.lock().fit(prior);
    }

    /// Shows decisions what this endpoint is taken for in its fleet, which is the fleet's pace as long as nothing is learned
    /// here.
    pub(crate) fn settle(&self, fleet: &Pace) {
        let pace = self.learner.lock().among(fleet);
        self.store(&pace);
    }

    fn store(&self, pace: &Pace) {
        self.overhead.store(pace.overhead.to_bits(), Ordering::Relaxed);
        self.tokens_per_second.store(pace.tokens_per_second.to_bits(), Ordering::Relaxed);
        self.queueing.store(pace.queueing.to_bits(), Ordering::Relaxed);
    }
}
