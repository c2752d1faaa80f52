//! What is kept of a decision until its request has ended: copied before the decision is used up, written after the answer
//! has gone out.

use std::sync::Arc;

use picker::decide::{Choice, Decision};
use picker::hash::BlockHash;
use serde::Serialize;

use crate::pool::{Candidates, Pool};

/// Candidates that a line shows: the best, in the order of their rank.
const CANDIDATES_MAX: usize = 8;
/// Bits of a block's hash that a line shows. What reads JSON numbers as doubles keeps 53.
const HASH_BITS: u32 = 48;

/// A decision and its reasons.
pub(crate) struct Noted {
    pub(super) pool: Arc<Pool>,
    pub(super) hashes: Vec<u64>,
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) cold: bool,
    pub(super) session: Option<u64>,
    /// Name and weight of each figure.
    pub(super) columns: Vec<Column>,
    pub(super) considered: Vec<Considered>,
    /// All candidates, those that are not shown included.
    pub(super) candidates: usize,
}

/// What a figure counts for.
#[derive(Serialize)]
pub(super) struct Column {
    name: &'static str,
    weight: f64,
}

/// A candidate as the decision saw it.
#[derive(Serialize)]
pub(super) struct Considered {
    pub(super) endpoint: String,
    pub(super) matched: u32,
    pub(super) total: f64,
    /// It was to go first whatever the sums say: to see whether it works again, or what it holds.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) preferred: bool,
    /// In the order of the columns; `None` where it was left out.
    pub(super) figures: Vec<Option<f64>>,
}

impl Noted {
    /// What is worth keeping of a decision among these candidates. O(blocks + candidates · log candidates).
    pub(crate) fn new(decision: &Decision, candidates: &Candidates) -> Self {
        let mut ranked: Vec<&Choice> = decision.choices.iter().collect();
        ranked.sort_by(|one, other| other.rank(one));
        let considered = ranked.iter().take(CANDIDATES_MAX).map(|choice| Considered {
            endpoint: candidates
                .member(choice.id)
                .map(|member| member.endpoint.name.clone())
                .unwrap_or_default(),
            matched: choice.matched,
            total: choice.total,
            preferred: choice.preferred,
            figures: decision.figures(choice).collect(),
        });
        let columns = decision.columns().iter().map(|it| Column { name: it.name, weight: it.weight });
        Self {
            pool: candidates.pool.clone(),
            hashes: decision.blocks.prompts().flatten().copied().map(shown).collect(),
            model: decision.model.clone(),
            stream: decision.stream,
            cold: decision.cold,
            session: decision.session(),
            columns: columns.collect(),
            considered: considered.collect(),
            candidates: decision.choices.len(),
        }
    }
}

fn shown(hash: BlockHash) -> u64 {
    hash.0 >> (u64::BITS - HASH_BITS)
}
