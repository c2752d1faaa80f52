//! The scheduling profile: which plugins decide, and what each counts for.

use picker::policy::Policy;
use picker::score::{Scorer, WEIGHT_MAX, Weights};

use super::Scheduler;
use super::fields::{Field, Fields, Reading};
use super::plugin::{Constants, Effect, Plugin, Role};
use crate::faults::Reason;

/// A plugin of the profile, where it is named and what it counts for.
struct Chosen<'p, 'a> {
    plugin: &'p Plugin<'a>,
    field: Field<'a>,
    weight: f64,
}

/// Reads the only profile, or takes every configured plugin where there is none, into `scheduler`.
pub(super) fn read<'a>(
    reading: &mut Reading<'_>,
    profiles: Vec<Field<'a>>,
    plugins: &[Plugin<'a>],
    scheduler: &mut Scheduler,
) {
    for second in profiles.iter().skip(1) {
        let reason = Reason::thing("a second profile", "one: prefill and decode are not told apart here");
        reading.fault(second, reason);
    }
    let mut chosen = match profiles.into_iter().next() {
        Some(profile) => named(reading, &profile, plugins),
        None => plugins.iter().map(Chosen::by_default).collect(),
    };
    // As in llm-d, a picker that is configured stands in for one that the profile does not name.
    if !chosen.iter().any(|choice| choice.plugin.role == Some(Role::Picker)) {
        chosen
            .extend(plugins.iter().find(|plugin| plugin.role == Some(Role::Picker)).map(Chosen::by_default));
    }
    refuse_second(reading, &chosen);
    decide(reading, &chosen, scheduler);
}

impl<'p, 'a> Chosen<'p, 'a> {
    fn by_default(plugin: &'p Plugin<'a>) -> Self {
        Self { plugin, field: plugin.field.clone(), weight: 1.0 }
    }
}

fn named<'p, 'a>(
    reading: &mut Reading<'_>,
    profile: &Field<'a>,
    plugins: &'p [Plugin<'a>],
) -> Vec<Chosen<'p, 'a>> {
    let mut fields = Fields::of(reading, profile);
    if fields.text("name").is_none_or(|(name, _)| name.is_empty()) {
        fields.lacks("name", "the name of the profile");
    }
    let list = fields.list("plugins");
    fields.finish();
    list.into_iter().filter_map(|field| chosen(reading, field, plugins)).collect()
}

fn chosen<'p, 'a>(
    reading: &mut Reading<'_>,
    field: Field<'a>,
    plugins: &'p [Plugin<'a>],
) -> Option<Chosen<'p, 'a>> {
    let mut fields = Fields::of(reading, &field);
    let weight = fields.number("weight", 0.0..=WEIGHT_MAX).unwrap_or(1.0);
    let plugin = reference(&mut fields, plugins, None);
    fields.finish();
    Some(Chosen { plugin: plugin?, field, weight })
}

/// The plugin that `pluginRef` names, which must be configured and of that role; a fault of its own lets it pass.
pub(super) fn reference<'p, 'a>(
    fields: &mut Fields<'_, '_, '_>,
    plugins: &'p [Plugin<'a>],
    role: Option<Role>,
) -> Option<&'p Plugin<'a>> {
    const KEY: &str = "pluginRef";
    let written = fields.text(KEY);
    let Some((name, field)) = written else {
        fields.lacks(KEY, "the name of a configured plugin");
        return None;
    };
    let plugin = plugins.iter().find(|plugin| plugin.name == name);
    match (plugin.map(|plugin| plugin.role), role) {
        (Some(Some(found)), Some(role)) if found != role => {
            let found = format_args!("{name:?}, {}", found.name());
            fields.reading.fault(&field, Reason::thing(found, role.name()));
        }
        (None, _) => fields.reading.fault(&field, Reason::text(name, "the name of a configured plugin")),
        _ => {}
    }
    plugin
}

/// Each type of scorer, the affinity filter and a picker once: a column is a column.
fn refuse_second(reading: &mut Reading<'_>, chosen: &[Chosen<'_, '_>]) {
    for (index, later) in chosen.iter().enumerate() {
        let earlier = |earlier: &&Chosen<'_, '_>| match later.plugin.role {
            Some(Role::Picker) => earlier.plugin.role == Some(Role::Picker),
            Some(Role::Scorer | Role::Filter) => earlier.plugin.kind == later.plugin.kind,
            _ => false,
        };
        if let Some(earlier) = chosen.iter().take(index).find(earlier) {
            let found = format_args!("{} beside {}", later.plugin.kind, earlier.plugin.kind);
            let wanted = match later.plugin.role {
                Some(Role::Scorer) => "one, with the sum of their weights",
                _ => "one",
            };
            reading.fault(&later.field, Reason::thing(found, wanted));
        }
    }
}

fn decide(reading: &mut Reading<'_>, chosen: &[Chosen<'_, '_>], scheduler: &mut Scheduler) {
    let mut weights: Vec<(Scorer, f64)> = Vec::new();
    let (mut filter, mut chance) = (None, false);
    for choice in chosen {
        match choice.plugin.effect {
            Effect::Score(scorer, constants) => {
                weights.push((scorer, choice.weight));
                scheduler.take(constants);
            }
            Effect::Stick { share, penalty_seconds_max, tokens_per_second } => {
                filter = Some(&choice.field);
                scheduler.tuning.holds_share = share;
                scheduler.tuning.penalty_seconds_max = penalty_seconds_max;
                scheduler.tuning.tokens_per_second = Some(tokens_per_second);
            }
            Effect::Chance => chance = true,
            Effect::Index { .. } | Effect::Engine(_) | Effect::Nothing => {}
        }
    }
    // Where all weights are 0, as where there is no scorer, every endpoint is as good as any.
    scheduler.weights = Weights::new(&weights).ok().filter(|_| !chance);
    scheduler.policy = match (filter, scheduler.weights) {
        (None, None) => Policy::Random,
        (None, Some(_)) => Policy::Prefix,
        (Some(_), Some(_)) => Policy::Affinity,
        (Some(field), None) => {
            let found = if chance { "random-picker behind it" } else { "no scorer with a weight behind it" };
            reading.fault(field, Reason::thing(found, "one that ranks, such as token-load-scorer"));
            Policy::Affinity
        }
    };
}

impl Scheduler {
    fn take(&mut self, constants: Constants) {
        match constants {
            Constants::None => {}
            Constants::MatchLength(match_length) => self.match_length = match_length,
            Constants::FullTokens(full_tokens) => self.tuning.full_tokens = full_tokens,
            Constants::InFlight { idle_requests, busy_score_max } => {
                self.tuning.idle_requests = idle_requests;
                self.tuning.busy_score_max = busy_score_max;
            }
        }
    }
}
