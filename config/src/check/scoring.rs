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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{Config, Flags, System, load};

    fn file(text: &str) -> Result<Config, String> {
        load(Some(("f", text)), &Flags::default(), &System).map_err(|faults| faults.to_string())
    }

    #[test]
    fn weights_replace_the_preset_of_a_policy_that_sums() {
        for (shows, text, weights) in [
            ("none", "policy: prefix\n", None),
            ("nothing written", "weights:\n", None),
            ("one, the others 0", "weights: {token-load: 0.5}\n", Some((Scorer::TokenLoad, 0.5))),
            ("of another policy", "{policy: affinity, weights: {kv: 3, lora: 0}}", Some((Scorer::Kv, 3.0))),
        ] {
            let found = file(text).unwrap().pool.weights;
            assert_eq!(found, weights.map(|weight| Weights::new(&[weight]).unwrap()), "{shows}");
        }
    }

    #[test]
    fn wrong_weights_are_told_with_their_place() {
        const NUMBER: &str = "wanted a number from 0 to 1000000, such as 1 or 0.5";
        const FOR: &str = "wanted them for prefix, prefix-only or affinity";
        let scorers = one_of(&Scorer::NAMES);
        for (text, fault) in [
            (
                "weights: {speed: 1}\n",
                format!("f:1:11: weights.speed: found an unknown key, wanted {scorers}").as_str(),
            ),
            ("weights: {kv: -1}\n", &format!("f:1:15: weights.kv: found \"-1\", {NUMBER}")),
            (
                "weights: {no-hit-lru: .nan}\n",
                &format!("f:1:23: weights.no-hit-lru: found \".nan\", {NUMBER}"),
            ),
            ("weights: {prefix: inf}\n", &format!("f:1:19: weights.prefix: found \"inf\", {NUMBER}")),
            ("weights: {prefix: 1000001}\n", &format!("f:1:19: weights.prefix: found \"1000001\", {NUMBER}")),
            ("weights: {}\n", "f:1:10: weights: found no weight above 0, wanted at least one"),
            (
                "weights: {kv: 0, queue: 0.0}\n",
                "f:1:10: weights: found no weight above 0, wanted at least one",
            ),
            ("weights: 3\n", "f:1:10: weights: found another kind of value, wanted keys and values"),
            (
                "policy: sticky\nweights: {kv: 1}\n",
                &format!("f:2:10: weights: found weights for sticky, {FOR}"),
            ),
            (
                "match_length_weight: 1.5\n",
                "f:1:22: match_length_weight: found \"1.5\", wanted a number from 0 to 1, such as 1 or 0.5",
            ),
        ] {
            assert_eq!(file(text).unwrap_err(), fault, "{text}");
        }
        let given = Flags { policy: Some("random".to_owned()), ..Flags::default() };
        let fault = load(Some(("f", "weights: {kv: 1}\n")), &given, &System).unwrap_err().to_string();
        assert_eq!(fault, format!("f:1:10: weights: found weights for random, {FOR}"), "the flag counts");
    }
}
