//! Policies: what ranks the endpoints. Presets over the scorers, rules of their own, and baselines that know nothing.
//!
//! Each is a pure function from the view to a `Ranking`: totals, the figures that they are made of, and what decides
//! between equal ones.

mod affinity;
mod expected_ttft;
mod guarded;
mod sticky;
mod sum;

use crate::columns::Table;
use crate::score::{Candidate, Scorer, View, Weights};

/// How an endpoint is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Prefix 3, queue 2, kv 2, no-hit-lru 1: affinity weighed against load.
    Prefix,
    /// The longest match alone, blind to load; a cold request goes where the tie falls.
    PrefixOnly,
    /// Fewest requests in flight from this router.
    LeastQueue,
    /// Each in turn.
    RoundRobin,
    /// Any, by the seed.
    Random,
    /// The session, or the beginning of the prompt, always goes to the same endpoint, unless that has too much in flight.
    Sticky,
    /// The longest match among the endpoints that have not much more work than the others.
    Guarded,
    /// The endpoints that hold most of the prompt, until they are saturated; among those, the least prompt tokens to compute.
    Affinity,
    /// The soonest first token, with what it costs the requests after. The default.
    #[default]
    ExpectedTtft,
}

/// Weights of [`Policy::Prefix`]. Source: the seed text; its printed score of 5.00 for a cold request on idle
/// endpoints implies 1 for no-hit-lru.
const PREFIX: Weights = Weights::preset(&[
    (Scorer::Prefix, 3.0),
    (Scorer::Queue, 2.0),
    (Scorer::Kv, 2.0),
    (Scorer::NoHitLru, 1.0),
]);
const PREFIX_ONLY: Weights = Weights::preset(&[(Scorer::Prefix, 3.0)]);
/// Source: llm-d's guide for its optimised baseline, where the affinity filter stands before this scorer alone.
const AFFINITY: Weights = Weights::preset(&[(Scorer::TokenLoad, 1.0)]);

/// What ranks the candidates.
pub(crate) struct Ranking {
    /// A candidate's total is the sum of weight times figure, and the higher goes first.
    pub(crate) table: Table,
    /// Totals of a baseline, which has no columns; empty for all others, and where every total is 0.
    pub(crate) totals: Vec<f64>,
    pub(crate) ties: Ties,
    /// Of the time to the first token at the best holder, the share that is waiting; 0 where nobody asks.
    pub(crate) waiting: f32,
}

/// What decides between equal totals.
pub(crate) enum Ties {
    Chance,
    /// The one whose turn it is, then those after it.
    Turns,
    /// The one for which this is less, then chance. Told apart as `f32`; not negative.
    Less(fn(&Candidate) -> f64),
}

impl Ranking {
    fn of(table: Table, ties: Ties) -> Self {
        Self { table, totals: Vec::new(), ties, waiting: 0.0 }
    }

    fn bare(totals: Vec<f64>, ties: Ties) -> Self {
        Self { table: Table::default(), totals, ties, waiting: 0.0 }
    }
}

impl Policy {
    /// All policies, in the order in which tables print them.
    pub const ALL: [Self; 9] = [
        Self::Prefix,
        Self::PrefixOnly,
        Self::LeastQueue,
        Self::RoundRobin,
        Self::Random,
        Self::Sticky,
        Self::Guarded,
        Self::Affinity,
        Self::ExpectedTtft,
    ];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 9] = [
        "prefix",
        "prefix-only",
        "least-queue",
        "round-robin",
        "random",
        "sticky",
        "guarded",
        "affinity",
        "expected-ttft",
    ];

    /// The policy of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// The name as configuration, headers and tables have it.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The preset of a policy that sums scorers, which other weights may replace; `None` for one that does not.
    pub fn weights(self) -> Option<Weights> {
        match self {
            Self::Prefix => Some(PREFIX),
            Self::PrefixOnly => Some(PREFIX_ONLY),
            Self::Affinity => Some(AFFINITY),
            Self::LeastQueue | Self::RoundRobin | Self::Random => None,
            Self::Sticky | Self::Guarded | Self::ExpectedTtft => None,
        }
    }

    /// Ranks the candidates; `weights` replaces the preset of a policy that sums.
    pub(crate) fn rank(self, view: &View<'_>, weights: Option<Weights>) -> Ranking {
        match self {
            Self::Prefix => sum::rank(view, &weights.unwrap_or(PREFIX)),
            Self::PrefixOnly => sum::rank(view, &weights.unwrap_or(PREFIX_ONLY)),
            Self::Affinity => affinity::rank(view, &weights.unwrap_or(AFFINITY)),
            Self::LeastQueue => Ranking::bare(fewest_in_flight(view), Ties::Chance),
            Self::RoundRobin => Ranking::bare(Vec::new(), Ties::Turns),
            Self::Random => Ranking::bare(Vec::new(), Ties::Chance),
            Self::Sticky => sticky::rank(view),
            Self::Guarded => guarded::rank(view),
            Self::ExpectedTtft => expected_ttft::rank(view),
        }
    }
}

fn fewest_in_flight(view: &View<'_>) -> Vec<f64> {
    // Counted with this one, or weights would not count among the idle; of weight 1 it is what is in flight.
    let fill = |to: &Candidate| 1.0 - to.weighed(to.load.in_flight.requests + 1);
    view.candidates.iter().map(fill).collect()
}
