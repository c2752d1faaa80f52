//! How much prompt text a token of an engine stands for, by model.
//!
//! The router cuts prompts into tokens of its own, the engine reports in the model's. Models are named by clients, so only
//! those of whole answers are kept, and no more than [`MODELS_MAX`].

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Models that are told apart; all further ones share one figure.
pub(crate) const MODELS_MAX: usize = 64;
/// The figure of all further models.
const OTHER: &str = "";

/// An answer moves the figure by this share of the difference at least, the first ones by more.
const STEP_MIN: f64 = 1.0 / 32.0;
/// Answers from which a model's figure is taken for the engine's.
const ANSWERS_MIN: u64 = 16;
/// One answer counts for no more than this difference of logarithms: a prompt of one odd language, or an image.
const DIFFERENCE_MAX: f64 = 0.5;
/// What a ratio can be: from text that every byte is a token of, to words that no vocabulary has.
const RATIO_MIN: f64 = 1.0 / 16.0;
const RATIO_MAX: f64 = 64.0;

/// Tokens of the router to a token of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) ratio: f64,
    /// Answers that it comes from.
    pub(crate) answers: u64,
}

/// The ratio of each model.
#[derive(Default)]
pub(crate) struct Ratios(Mutex<BTreeMap<String, Ratio>>);

impl Ratios {
    /// Takes what one answer says; gives what is known now.
    pub(crate) fn learn(&self, model: &str, router_tokens: f64, engine_tokens: f64) -> f64 {
        let ratio = (router_tokens / engine_tokens).clamp(RATIO_MIN, RATIO_MAX);
        if ratio.is_nan() {
            return 1.0;
        }
        let mut models = self.0.lock();
        let model = if models.len() < MODELS_MAX || models.contains_key(model) { model } else { OTHER };
        match models.get_mut(model) {
            Some(known) => known.take(ratio),
            None => {
                models.insert(model.to_owned(), Ratio { ratio, answers: 1 });
                ratio
            }
        }
    }

    /// That of the model with the most answers, in steps of an eighth: capacities that hang on it are not to tremble. 1 until
    /// there are enough answers.
    pub(crate) fn usual(&self) -> f64 {
        let models = self.0.lock();
        let most = models.values().max_by_key(|ratio| ratio.answers);
        let known = most.filter(|ratio| ratio.answers >= ANSWERS_MIN);
        known.map_or(1.0, |known| ((known.ratio * 8.0).round() / 8.0).max(RATIO_MIN))
    }

    /// All of them, by name.
    pub(crate) fn map<T>(&self, show: impl Fn(&str, Ratio) -> T) -> Vec<T> {
        self.0.lock().iter().map(|(model, &ratio)| show(model, ratio)).collect()
    }
}

impl Ratio {
    fn take(&mut self, ratio: f64) -> f64 {
        self.answers += 1;
        let step = (1.0 / self.answers as f64).max(STEP_MIN);
        let difference = (ratio / self.ratio).ln().clamp(-DIFFERENCE_MAX, DIFFERENCE_MAX);
        self.ratio *= (step * difference).exp();
        self.ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_ratio_is_that_of_the_busiest_model() {
        let ratios = Ratios::default();
        let learn = |model, times, router| (0..times).for_each(|_| _ = ratios.learn(model, router, 100.0));
        learn("m", 15, 152.0);
        assert_eq!(ratios.usual(), 1.0, "too few answers");
        learn("m", 5, 152.0);
        learn("n", 16, 300.0);
        assert_eq!(ratios.usual(), 1.5);
        learn("n", 16, 300.0);
        assert_eq!(ratios.usual(), 3.0);
    }

    #[test]
    fn the_ratio_is_the_usual_one_whatever_some_answers_say() {
        let ratios = Ratios::default();
        let mut known = 0.0;
        for answer in 0..400 {
            // One in ten is a hundred times off, either way.
            let odd = if answer % 20 == 7 {
                100.0
            } else if answer % 20 == 17 {
                0.01
            } else {
                1.0
            };
            known = ratios.learn("m", 1_100.0 * odd, 1_000.0);
        }
        assert!((known / 1.1 - 1.0).abs() < 0.1, "{known}");
        let moved = (0..200).map(|_| ratios.learn("m", 500.0, 1_000.0)).last();
        assert!(moved.is_some_and(|it| (it / 0.5 - 1.0).abs() < 0.05), "follows another habit: {moved:?}");
    }

    #[test]
    fn models_are_told_apart_up_to_a_bound() {
        let ratios = Ratios::default();
        for number in 0..10_000 {
            ratios.learn(&format!("model-{number}"), 2_000.0, 1_000.0);
        }
        assert_eq!(ratios.learn("model-3", 2_000.0, 1_000.0), 2.0);
        let names = ratios.map(|name, _| name.to_owned());
        assert!(names.len() <= MODELS_MAX + 1 && names.contains(&OTHER.to_owned()), "{}", names.len());
        for (router, engine) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (f64::INFINITY, 1.0)] {
            let ratio = ratios.learn("odd", router, engine);
            assert!((RATIO_MIN..=RATIO_MAX).contains(&ratio), "{router} / {engine}: {ratio}");
        }
    }
}
