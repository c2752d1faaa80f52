//! Counts of requests, one against the other: what `queue` and `running` share.

use super::{Candidate, View};

/// Requests that make a whole point where the engines' own counts lie closer together: an engine takes some in at once.
const SCALE: f64 = 16.0;

/// Over the measured candidates: least and most of the engine's count, and of the requests that it has not seen.
#[derive(Clone, Copy)]
struct Ranges {
    least: f64,
    most: f64,
    unseen_least: f64,
    unseen_most: f64,
}

impl Ranges {
    const NOTHING: Self =
        Self { least: f64::INFINITY, most: f64::NEG_INFINITY, unseen_least: f64::INFINITY, unseen_most: 0.0 };

    /// The count is finite.
    fn with(self, count: f64, unseen: f64) -> Self {
        Self {
            least: if count < self.least { count } else { self.least },
            most: if count > self.most { count } else { self.most },
            unseen_least: if unseen < self.unseen_least { unseen } else { self.unseen_least },
            unseen_most: if unseen > self.unseen_most { unseen } else { self.unseen_most },
        }
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
    if view.is_weighed {
        let weighed = |to: &Candidate| figure(to).map(|count| to.weighed(count));
        relate(view, scores, weighed, |to| to.weighed(to.load.unseen));
    } else {
        relate(view, scores, figure, |to| to.load.unseen.into());
    }
}

/// The formula, of a figure and of the requests that the engine has not seen.
fn relate(
    view: &View<'_>,
    scores: &mut [Option<f64>],
    figure: impl Fn(&Candidate) -> Option<f64>,
    unseen: impl Fn(&Candidate) -> f64,
) {
    let counted = |to: &Candidate| figure(to).filter(|count| count.is_finite());
    let mut ranges = Ranges::NOTHING;
    for candidate in view.candidates {
        if let Some(count) = counted(candidate) {
            ranges = ranges.with(count, unseen(candidate));
        }
    }
    let unseen_range = (ranges.unseen_most - ranges.unseen_least).max(0.0);
    let range = (ranges.most - ranges.least).max(unseen_range);
    for (score, candidate) in scores.iter_mut().zip(view.candidates) {
        *score = counted(candidate).map(|count| {
            let above = if range > 0.0 { (count - ranges.least) / range } else { 0.0 };
            let unseen = unseen(candidate) - ranges.unseen_least;
            1.0 - above - if unseen > 0.0 { unseen / range.max(SCALE) } else { 0.0 }
        });
    }
}
