//! `running`: the fewer requests the engine runs, relative to the others', the better.

use super::{View, spread};

/// See [`spread::score`].
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    spread::score(view, scores, |candidate| candidate.load.running);
}
