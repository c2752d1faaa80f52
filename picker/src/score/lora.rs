//! `lora`: an adapter is best asked where it is loaded, else where it has a place.

use xxhash_rust::xxh3::xxh3_64;

use super::View;

/// What an engine says of its LoRA adapters. Names stand as hashes: they are only compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    active: Vec<u64>,
    waiting: Vec<u64>,
    places: usize,
}

impl Adapters {
    /// Adapters that requests run on, those that requests wait for, and how many can be loaded at once.
    pub fn new<'a>(
        active: impl IntoIterator<Item = &'a str>,
        waiting: impl IntoIterator<Item = &'a str>,
        places: usize,
    ) -> Self {
        let hash = |name: &str| xxh3_64(name.as_bytes());
        let (active, waiting) =
            (active.into_iter().map(hash).collect(), waiting.into_iter().map(hash).collect());
        Self { active, waiting, places }
    }

    fn knows(&self, name: u64) -> bool {
        self.active.contains(&name) || self.waiting.contains(&name)
    }

    fn score(&self, name: u64) -> f64 {
        if self.active.contains(&name) {
            1.0
        } else if self.active.len() + self.waiting.len() < self.places {
            0.8
        } else if self.waiting.contains(&name) {
            0.6
        } else {
            0.0
        }
    }
}

/// 1 where the asked adapter is active, 0.8 where another can be loaded, 0.6 where it is waited for, else 0; engines that
/// say nothing are left out. A model that is no adapter anywhere leaves all out. Source: llm-d's `lora-affinity-scorer`.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    let Some(name) = view.model.map(|name| xxh3_64(name.as_bytes())) else { return };
    let adapters = || view.candidates.iter().map(|candidate| candidate.adapters.as_deref());
    if !adapters().flatten().any(|adapters| adapters.knows(name)) {
        return;
    }
    for (score, adapters) in scores.iter_mut().zip(adapters()) {
        *score = adapters.map(|adapters| adapters.score(name));
    }
}
