//! Policies: named presets over the scorers, and the baselines that use none.

use crate::score::{Scorer, Weighted};

/// How an endpoint is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Prefix 3, queue 2, kv 2, no-hit-lru 1: affinity weighed against load. The default.
    #[default]
    Prefix,
    /// The longest match alone, blind to load; a cold request goes where the tie falls.
    PrefixOnly,
    /// Fewest requests in flight from this router.
    LeastQueue,
    /// Each in turn.
    RoundRobin,
    /// Any, by the seed.
    Random,
}

/// Weights of [`Policy::Prefix`]. Source: the seed text; its printed score of 5.00 for a cold request on idle
/// endpoints implies 1 for no-hit-lru.
const PREFIX: [Weighted; 4] = [
    Weighted { scorer: Scorer::Prefix, weight: 3.0 },
    Weighted { scorer: Scorer::Queue, weight: 2.0 },
    Weighted { scorer: Scorer::Kv, weight: 2.0 },
    Weighted { scorer: Scorer::NoHitLru, weight: 1.0 },
];

const PREFIX_ONLY: [Weighted; 1] = [Weighted { scorer: Scorer::Prefix, weight: 3.0 }];

impl Policy {
    /// All policies, in the order in which tables print them.
    pub const ALL: [Self; 5] =
        [Self::Prefix, Self::PrefixOnly, Self::LeastQueue, Self::RoundRobin, Self::Random];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 5] = ["prefix", "prefix-only", "least-queue", "round-robin", "random"];

    /// The policy of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// The name as configuration, headers and tables have it.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The scorers that make the sum; none for the baselines.
    pub fn scorers(self) -> &'static [Weighted] {
        match self {
            Self::Prefix => &PREFIX,
            Self::PrefixOnly => &PREFIX_ONLY,
            Self::LeastQueue | Self::RoundRobin | Self::Random => &[],
        }
    }
}
