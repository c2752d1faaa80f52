//! What tuned weights are worth, on requests that they were not chosen on.

use std::fmt::Write as _;

use picker::score::{Scorer, Weights};

use crate::simulate::Run;
use crate::table;

/// Parts of the held-out requests, whose differences are the spread.
pub(super) const PARTS: usize = 10;
/// Standard errors that a gain must be above nothing to be called one.
const ERRORS: f64 = 2.0;

/// The held-out requests under each choice.
pub(super) struct Verdict {
    /// Requests before them.
    pub(super) trained: usize,
    pub(super) preset: Run,
    pub(super) tuned: Run,
    /// The default policy.
    pub(super) default: Run,
    pub(super) weights: Weights,
}

/// By how much less the mean time to the first token is, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gain {
    mean: f64,
    /// Standard error of the mean over the parts.
    error: f64,
    /// Parts in which it is less.
    better: usize,
}

impl Gain {
    fn of(run: &Run, over: &Run) -> Self {
        let (ours, theirs) = (part_means(run), part_means(over));
        let gains: Vec<f64> = theirs.iter().zip(&ours).map(|(theirs, ours)| theirs - ours).collect();
        let count = gains.len().max(1) as f64;
        let mean = gains.iter().sum::<f64>() / count;
        let variance = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        let better = gains.iter().filter(|gain| **gain > 0.0).count();
        Self { mean, error: (variance / count).sqrt(), better }
    }

    fn is_one(self) -> bool {
        self.mean > ERRORS * self.error
    }
}

/// Mean time to the first token of each part, in milliseconds.
fn part_means(run: &Run) -> Vec<f64> {
    let held_out = run.measured();
    let mean = |part: usize| {
        let part = &held_out[part * held_out.len() / PARTS..(part + 1) * held_out.len() / PARTS];
        part.iter().map(|served| served.ttft.0 * 1e3).sum::<f64>() / part.len().max(1) as f64
    };
    (0..PARTS).map(mean).collect()
}

/// A table, what follows from it, and weights that gain something as a configuration has them.
pub(super) fn in_words(verdict: &Verdict) -> String {
    let Verdict { trained, preset, tuned, default, weights } = verdict;
    let held_out = preset.measured().len();
    let mut text = format!(
        "weights looked for on the first {trained} requests, judged on the {held_out} after them, in {PARTS} parts\n\n"
    );
    let gain = |run| {
        let Gain { mean, error, better } = Gain::of(run, preset);
        [format!("{mean:.1} ms"), format!("{:.1} ms", ERRORS * error), format!("{better} of {PARTS}")]
    };
    let row = |name: &str, run: &Run, gain: [String; 3]| {
        let tokens = run
            .measured()
            .iter()
            .fold((0, 0), |sum, served| (sum.0 + served.cached_tokens, sum.1 + served.prompt_tokens));
        let hit_rate = 100.0 * tokens.0 as f64 / tokens.1.max(1) as f64;
        let [mean, spread, parts] = gain;
        let ttft = format!("{:.1} ms", run.ttft_mean() * 1e3);
        [name.to_owned(), ttft, format!("{hit_rate:.1} %"), mean, spread, parts]
    };
    text += &table::table(
        ["held out", "TTFT mean", "hit rate", "gain", "+-", "better in"],
        [
            row("prefix, its preset", preset, ["-"; 3].map(str::to_owned)),
            row("prefix, tuned", tuned, gain(tuned)),
            row(&format!("{} (the default)", default.name), default, gain(default)),
        ],
    );
    let (over_preset, over_default) = (Gain::of(tuned, preset), Gain::of(tuned, default));
    let _ = writeln!(text, "\n{}", advice(over_preset, over_default, default.name));
    if over_preset.is_one() {
        let _ = write!(text, "\npools:\n  - policy: prefix\n    weights: {{{}}}\n", written(*weights));
    }
    text
}

fn advice(over_preset: Gain, over_default: Gain, default: &str) -> String {
    match (over_preset.is_one(), over_default.is_one()) {
        (_, true) => {
            format!("the tuned weights are better than {default} where they were not chosen: try them")
        }
        (true, false) => format!(
            "the tuned weights are better than the preset, and {default} is as good or better: stay with it"
        ),
        (false, false) => {
            "no gain that holds where the weights were not chosen: leave them as they are".to_owned()
        }
    }
}

fn written(weights: Weights) -> String {
    let named = |scorer: Scorer| format!("{}: {}", scorer.name(), weights.of(scorer));
    let shown: Vec<String> =
        Scorer::ALL.into_iter().filter(|scorer| weights.of(*scorer) > 0.0).map(named).collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Seconds;
    use crate::simulate::Served;

    fn run(ttft: impl Fn(usize) -> f64) -> Run {
        let served = |place| Served { ttft: Seconds(ttft(place)), ..Served::default() };
        Run {
            name: "x",
            served: (0..120).map(served).collect(),
            warm: 20,
            window: 1,
            replicas: 1,
            lost: 0,
            decisions: Vec::new(),
        }
    }

    #[test]
    fn a_gain_is_one_only_above_its_spread() {
        let base = run(|place| 0.1 + place as f64 * 1e-3);
        let sooner = run(|place| 0.09 + place as f64 * 1e-3);
        let gain = Gain::of(&sooner, &base);
        assert!((gain.mean - 10.0).abs() < 1e-6 && gain.error < 1e-6 && gain.better == 10, "{gain:?}");
        assert!(gain.is_one());
        let erratic =
            run(|place| if (place - place % 10) % 20 == 0 { 0.2 } else { 0.02 } + place as f64 * 1e-3);
        assert!(!Gain::of(&erratic, &base).is_one(), "{:?}", Gain::of(&erratic, &base));
        assert!(!Gain::of(&base, &base).is_one());
    }
}
