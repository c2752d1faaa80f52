//! What tuned weights are worth, on requests that they were not chosen on.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use picker::score::{Scorer, Weights};
use serde::Serialize;

use crate::simulate::{Run, Served};
use crate::table;
use crate::trace::lines::Skipped;

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

/// One choice, as text and JSON have it.
#[derive(Serialize)]
struct Row {
    name: String,
    ttft_mean_ms: f64,
    hit_rate: f64,
    /// By how much less its mean is than that of the preset, which has none itself.
    gain_ms: Option<f64>,
    /// [`ERRORS`] standard errors of the gain.
    spread_ms: Option<f64>,
    /// Parts in which its mean is less.
    better_in: Option<usize>,
}

impl Row {
    fn of(name: String, run: &Run, gain: Option<Gain>) -> Self {
        let sum = |of: fn(&Served) -> usize| run.measured().iter().map(of).sum::<usize>();
        let (cached, tokens) = (sum(|served| served.cached_tokens), sum(|served| served.prompt_tokens));
        Self {
            name,
            ttft_mean_ms: run.ttft_mean() * 1e3,
            hit_rate: cached as f64 / tokens.max(1) as f64,
            gain_ms: gain.map(|gain| gain.mean),
            spread_ms: gain.map(|gain| ERRORS * gain.error),
            better_in: gain.map(|gain| gain.better),
        }
    }

    fn cells(self) -> [String; 6] {
        let millis = |millis: f64| format!("{millis:.1} ms");
        let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        [
            self.name,
            millis(self.ttft_mean_ms),
            format!("{:.1} %", self.hit_rate * 1e2),
            or_none(self.gain_ms.map(millis)),
            or_none(self.spread_ms.map(millis)),
            or_none(self.better_in.map(|better| format!("{better} of {PARTS}"))),
        ]
    }
}

impl Verdict {
    fn rows(&self) -> [Row; 3] {
        let Self { preset, tuned, default, .. } = self;
        let gain = |run| Some(Gain::of(run, preset));
        [
            Row::of("prefix, its preset".to_owned(), preset, None),
            Row::of("prefix, tuned".to_owned(), tuned, gain(tuned)),
            Row::of(format!("{} (the default)", default.name), default, gain(default)),
        ]
    }

    fn advice(&self) -> String {
        let Self { preset, tuned, default, .. } = self;
        advice(Gain::of(tuned, preset), Gain::of(tuned, default), default.name)
    }
}

/// A table, what follows from it, and weights that gain something as a configuration has them.
pub(super) fn in_words(verdict: &Verdict) -> String {
    let Verdict { trained, preset, tuned, weights, .. } = verdict;
    let held_out = preset.measured().len();
    let mut text = format!(
        "weights looked for on the first {trained} requests, judged on the {held_out} after them, in {PARTS} parts;\n\
         gain is by how much less the mean is than the preset's, +- is two standard errors of that over the parts\n\n"
    );
    let head = ["held out", "TTFT mean", "hit rate", "gain", "+-", "better in"];
    text += &table::table(head, verdict.rows().map(Row::cells));
    let _ = writeln!(text, "\n{}", verdict.advice());
    if Gain::of(tuned, preset).is_one() {
        let shown: Vec<String> =
            shown(*weights).iter().map(|(name, weight)| format!("{name}: {weight}")).collect();
        let _ = write!(text, "\npools:\n  - policy: prefix\n    weights: {{{}}}\n", shown.join(", "));
    }
    text
}

#[derive(Serialize)]
struct Json<'a> {
    trained: usize,
    held_out: usize,
    parts: usize,
    skipped_lines: usize,
    skipped_reasons: &'a [String],
    runs: [Row; 3],
    advice: String,
    /// Those that were found, whether they gain something or not.
    weights: BTreeMap<&'static str, f64>,
}

/// The same for programs.
pub(super) fn json(verdict: &Verdict, skipped: &Skipped) -> String {
    let json = Json {
        trained: verdict.trained,
        held_out: verdict.preset.measured().len(),
        parts: PARTS,
        skipped_lines: skipped.lines,
        skipped_reasons: &skipped.reasons,
        runs: verdict.rows(),
        advice: verdict.advice(),
        weights: shown(verdict.weights).into_iter().collect(),
    };
    // String keys and finite numbers only: it cannot fail.
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
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

/// Those that count for something, by name.
fn shown(weights: Weights) -> Vec<(&'static str, f64)> {
    let named = Scorer::ALL.into_iter().map(|scorer| (scorer.name(), weights.of(scorer)));
    named.filter(|(_, weight)| *weight > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Seconds;

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
