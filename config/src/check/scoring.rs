//! Weights of the scorers.

use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Scorer, WEIGHT_MAX, Weights};
use serde_saphyr::Spanned;

use super::{Checker, Place};
use crate::defaults::MATCH_LENGTH_WEIGHT;
use crate::faults::Reason;
use crate::quantity::number;
use crate::raw::{RawWeights, Text, one_of};

impl Checker<'_> {
    /// The weights; none for a policy without any, which is a fault.
    pub(super) fn weights(&mut self, raw: Spanned<RawWeights>, policy: Policy) -> Option<Weights> {
        let place = Place::File(raw.referenced);
        let by_scorer = by_scorer(raw.value).map(|(scorer, text)| {
            // One at fault stands as 1: it is no reason to find all of them 0.
            let default = if text.is_some() { 1.0 } else { 0.0 };
            let path = format!("weights.{}", scorer.name());
            (scorer, self.value(&path, text, default, |text| number(text, WEIGHT_MAX)))
        });
        if policy.weights().is_none() {
            let found = format_args!("weights for {}", policy.name());
            self.add(&place, "weights", Reason::thing(found, format_args!("them for {}", summing())));
            return None;
        }
        let weights =
            Weights::new(&by_scorer).map_err(|_| Reason::thing("no weight above 0", "at least one"));
        self.ok(&place, "weights", weights)
    }

    pub(super) fn match_length(&mut self, raw: Text) -> MatchLength {
        let weight = self.value("match_length_weight", raw, MATCH_LENGTH_WEIGHT, |text| number(text, 1.0));
        MatchLength::new(weight, MatchLength::SCALE_TOKENS).unwrap_or_default()
    }
}

fn by_scorer(raw: RawWeights) -> [(Scorer, Text); Scorer::ALL.len()] {
    let RawWeights { prefix, queue, kv, no_hit_lru, running, in_flight, token_load, lora, session } = raw;
    [
        (Scorer::Prefix, prefix),
        (Scorer::Queue, queue),
        (Scorer::Kv, kv),
        (Scorer::NoHitLru, no_hit_lru),
        (Scorer::Running, running),
        (Scorer::InFlight, in_flight),
        (Scorer::TokenLoad, token_load),
        (Scorer::Lora, lora),
        (Scorer::Session, session),
    ]
}

/// Names of the policies that sum.
fn summing() -> String {
    let summing = Policy::ALL.into_iter().filter(|policy| policy.weights().is_some());
    one_of(&summing.map(Policy::name).collect::<Vec<_>>())
}
