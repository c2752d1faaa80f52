//! Counts of requests, one against the other: what `queue` and `running` share.

use super::{Candidate, View};

/// Requests that make a whole point where the engines' own counts lie closer together: an engine takes some in at once.
const SCALE: f64 = 16.0;

/// Least and most of what was seen, and how far apart they are.
#[derive(Clone, Copy)]
struct Range {
    least: f64,
    most: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let nothing = Self { least: f64::INFINITY, most: f64::NEG_INFINITY };
        values
            .fold(nothing, |range, value| Self { least: range.least.min(value), most: range.most.max(value) })
    }

    fn width(self) -> f64 {
        self.most - self.least
    }
}

/// `(max - count)/(max - min)` over the measured candidates, 1 for all when they are equal. Unmeasured ones are left out
/// and do not stretch the range; a figure that is not finite is no measurement.
///
/// Requests that the engine had not seen when it was asked count too, or a burst between two readings would all go to one
/// endpoint. But most of them run at once, and in a range of 1 a single one would be a whole point, enough to outweigh a
/// prefix. So they count on a scale of their own: the wider of both ranges, and at least [`SCALE`]. With no such request,
/// or as many everywhere, this is the formula above.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>], figure: fn(&Candidate) -> Option<f64>) {
    let measured = |candidate: &Candidate| figure(candidate).filter(|count| count.is_finite());
    let unseen = |candidate: &Candidate| f64::from(candidate.load.unseen);
    let counted = || view.candidates.iter().filter_map(|to| Some((measured(to)?, unseen(to))));
    let (seen, fresh) = (Range::of(counted().map(|both| both.0)), Range::of(counted().map(|both| both.1)));
    let range = seen.width().max(fresh.width());
    let above = |count: f64, least: f64, range: f64| if range > 0.0 { (count - least) / range } else { 0.0 };
    for (score, candidate) in scores.iter_mut().zip(view.candidates) {
        *score = measured(candidate).map(|count| {
            let unseen = above(unseen(candidate), fresh.least, range.max(SCALE));
            1.0 - above(count, seen.least, range) - unseen
        });
    }
}
