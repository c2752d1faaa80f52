//! llm-d's EndpointPickerConfig, read as it is: what a pool's decision is made of, or every fault.
//!
//! Decoding is as strict as llm-d's: unknown and repeated fields are faults. Beyond that a plugin or a parameter that this
//! router lacks is a fault which names it and what is nearest, so that no configuration seems to hold that does not.
//! `deploy/LLM-D.md` has the table. Source: llm-d-router at ebab687 (August 2026): `apix/config/v1alpha1`,
//! `pkg/epp/config/loader` and the plugins' own parameters.

mod absent;
mod document;
mod fields;
mod parameters;
mod plugin;
mod profile;
mod rest;

use picker::Tuning;
use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Scorer, Weights};

use crate::EngineKind;
use crate::faults::Faults;
use crate::tree::{self, Node};

/// The `kind` that a document is known by.
const KIND: &str = "EndpointPickerConfig";

/// Tokens that the affinity filter takes an endpoint to compute in a second, where nobody says. Source: llm-d's
/// `peakPrefillThroughput`.
const TOKENS_PER_SECOND: f64 = 15_928.0;

/// What an EndpointPickerConfig says of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduler {
    /// `prefix` for scorers alone, `affinity` where they stand behind the affinity filter, `random` where nothing ranks.
    pub policy: Policy,
    /// Weights of the scorers; none with `random`.
    pub weights: Option<Weights>,
    /// Parameters of the prefix scorer.
    pub match_length: MatchLength,
    /// Parameters of the other scorers and of the affinity filter.
    pub tuning: Tuning,
    /// The block, where the document fixes it.
    pub block: Option<BlockSize>,
    /// Blocks of belief per endpoint, where the document says so.
    pub capacity_blocks: Option<usize>,
    /// What the engines are, where the document says so.
    pub engine: Option<EngineKind>,
}

impl Default for Scheduler {
    /// What llm-d does without a configuration: queue 2, KV cache 2, prefix 3.
    fn default() -> Self {
        let weights = [(Scorer::Queue, 2.0), (Scorer::Kv, 2.0), (Scorer::Prefix, 3.0)];
        Self { policy: Policy::Prefix, weights: Weights::new(&weights).ok(), ..Self::nothing() }
    }
}

impl Scheduler {
    /// Nothing that ranks.
    fn nothing() -> Self {
        Self {
            policy: Policy::Random,
            weights: None,
            match_length: MatchLength::default(),
            tuning: Tuning { tokens_per_second: Some(TOKENS_PER_SECOND), ..Tuning::DEFAULT },
            block: None,
            capacity_blocks: None,
            engine: None,
        }
    }
}

/// Whether a document says of itself that it is an EndpointPickerConfig.
pub fn is_scheduler(document: &Node) -> bool {
    let kind = document.map().and_then(|map| map.get("kind"));
    kind.and_then(Node::text) == Some(KIND)
}

/// Reads the text of a file. `file` names it in faults.
///
/// Errors: all faults at once, each as `file:line:column: path: found, wanted`; one if it is no YAML.
pub fn read(file: &str, text: &str) -> Result<Scheduler, Faults> {
    let (node, mut faults) = tree::document(file, text)?;
    match node.as_ref().and_then(|node| read_document(file, node, &mut faults)) {
        Some(scheduler) if faults.is_empty() => Ok(scheduler),
        _ => Err(faults),
    }
}

/// Reads a document whose own faults are told. Nothing where what it says cannot stand for anything.
pub(crate) fn read_document(file: &str, node: &Node, faults: &mut Faults) -> Option<Scheduler> {
    let mut reading = fields::Reading { file, faults };
    document::read(&mut reading, node)
}
