//! Plugins by type: what each comes to here.

use std::collections::HashMap;

use picker::hash::BlockSize;
use picker::score::Scorer;
use picker::score::prefix::MatchLength;

use super::fields::{Field, Fields, Reading};
use super::{absent, parameters};
use crate::EngineKind;
use crate::faults::Reason;
use crate::tree::Node;

/// What a plugin is, which says where it may be referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Scorer,
    Filter,
    Picker,
    Handler,
    Producer,
    Parser,
    Source,
    Extractor,
    Detector,
}

/// What a plugin changes here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Effect {
    /// A scorer with its parameters.
    Score(Scorer, Constants),
    /// The affinity filter with its parameters.
    Stick { share: f64, penalty_seconds_max: f64, tokens_per_second: f64 },
    /// A picker of chance.
    Chance,
    /// How prompts are remembered.
    Index { block: Option<BlockSize>, capacity_blocks: Option<usize> },
    /// What the engines are.
    Engine(EngineKind),
    /// Nothing that the router does not do anyway.
    Nothing,
}

/// Parameters of a scorer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constants {
    None,
    MatchLength(MatchLength),
    FullTokens(f64),
    InFlight { idle_requests: u32, busy_score_max: f64 },
}

/// A configured plugin. One whose type is at fault has no role and no effect, and may stand anywhere.
pub(super) struct Plugin<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) role: Option<Role>,
    pub(super) effect: Effect,
    pub(super) field: Field<'a>,
}

/// Names of configured plugins with their types.
pub(super) type Names<'a> = HashMap<&'a str, &'a str>;

/// A plugin as written.
struct Written<'a> {
    name: &'a str,
    kind: &'a str,
    kind_at: Field<'a>,
    parameters: Option<Field<'a>>,
    field: Field<'a>,
}

/// Reads the list of plugins; those without a type are left out.
pub(super) fn read<'a>(reading: &mut Reading<'_>, list: Vec<Field<'a>>) -> Vec<Plugin<'a>> {
    let mut names = Names::new();
    let written: Vec<_> = list.into_iter().filter_map(|field| written(reading, field, &mut names)).collect();
    written.into_iter().map(|written| plugin(reading, written, &names)).collect()
}

fn written<'a>(reading: &mut Reading<'_>, field: Field<'a>, names: &mut Names<'a>) -> Option<Written<'a>> {
    let mut fields = Fields::of(reading, &field);
    let (kind, name) = (fields.text("type"), fields.text("name"));
    let parameters = fields.get("parameters");
    if field.node.map().is_some_and(|map| map.get("type").is_none_or(Node::is_nothing)) {
        fields.lacks("type", "the type of a plugin");
    }
    fields.finish();
    let (kind, kind_at) = kind?;
    let (name, name_at) = name.filter(|(name, _)| !name.is_empty()).unwrap_or((kind, kind_at.clone()));
    if names.insert(name, kind).is_some() {
        reading.fault(&name_at, Reason::text(name, "each name of a plugin once"));
    }
    Some(Written { name, kind, kind_at, parameters, field })
}

fn plugin<'a>(reading: &mut Reading<'_>, written: Written<'a>, names: &Names<'_>) -> Plugin<'a> {
    let Written { name, kind, kind_at, parameters, field } = written;
    let known = effect(reading, kind, parameters.as_ref(), &field, names);
    if known.is_none() {
        reading.fault(&kind_at, absent::reason(kind));
    }
    let (role, effect) = known.map_or((None, Effect::Nothing), |(role, effect)| (Some(role), effect));
    Plugin { name, kind, role, effect, field }
}

/// What a type comes to with these parameters; nothing for a type that the router lacks.
fn effect<'a>(
    reading: &mut Reading<'_>,
    kind: &str,
    parameters: Option<&Field<'a>>,
    plugin: &Field<'a>,
    names: &Names<'_>,
) -> Option<(Role, Effect)> {
    let empty = Field { node: plugin.node, path: format!("{}.parameters", plugin.path) };
    let role = role(kind)?;
    // A plugin without parameters is read as one whose map has none of them.
    let mut fields = match parameters {
        Some(field) => Fields::of(reading, field),
        None => Fields::none(reading, &empty),
    };
    let effect = parameters::read(&mut fields, kind, names);
    fields.finish();
    Some((role, effect))
}

/// The role of a type that the router has something for.
pub(super) fn role(kind: &str) -> Option<Role> {
    KNOWN.iter().find(|(known, _)| *known == kind).map(|(_, role)| *role)
}

/// Every type that the router has something for.
pub(super) const KNOWN: [(&str, Role); 27] = [
    ("queue-scorer", Role::Scorer),
    ("kv-cache-utilization-scorer", Role::Scorer),
    ("prefix-cache-scorer", Role::Scorer),
    ("no-hit-lru-scorer", Role::Scorer),
    ("running-requests-size-scorer", Role::Scorer),
    ("active-request-scorer", Role::Scorer),
    ("token-load-scorer", Role::Scorer),
    ("lora-affinity-scorer", Role::Scorer),
    ("session-affinity-scorer", Role::Scorer),
    ("prefix-cache-affinity-filter", Role::Filter),
    ("decode-filter", Role::Filter),
    ("max-score-picker", Role::Picker),
    ("random-picker", Role::Picker),
    ("single-profile-handler", Role::Handler),
    ("approx-prefix-cache-producer", Role::Producer),
    ("inflight-load-producer", Role::Producer),
    ("token-producer", Role::Producer),
    ("tokenizer", Role::Producer),
    ("openai-parser", Role::Parser),
    ("anthropic-parser", Role::Parser),
    ("vllmhttp-parser", Role::Parser),
    ("passthrough-parser", Role::Parser),
    ("metrics-data-source", Role::Source),
    ("models-data-source", Role::Source),
    ("core-metrics-extractor", Role::Extractor),
    ("models-data-extractor", Role::Extractor),
    ("utilization-detector", Role::Detector),
];

impl Role {
    /// With its article, as a fault has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scorer => "a scorer",
            Self::Filter => "a filter",
            Self::Picker => "a picker",
            Self::Handler => "a profile handler",
            Self::Producer => "a producer",
            Self::Parser => "a parser",
            Self::Source => "a data source",
            Self::Extractor => "an extractor",
            Self::Detector => "a saturation detector",
        }
    }
}
