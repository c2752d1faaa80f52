//! Which pool serves which model, under which names. No name may lead to two places.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::check::names::{MODEL, refuse_repeated};
use crate::defaults::{DURATION_MAX, MODELS_INTERVAL, MODELS_INTERVAL_MIN, MODELS_MAX};
use crate::faults::Reason;
use crate::read::form::{Durations, OrWord};
use crate::read::{Key, Place, Placed, Reader, Section, live};

const MODELS: Key = live("models", "Models that the pool serves, beside the adapters that its engines list")
    .default_is("all that no other pool serves");
const ALIASES: Key =
    live("aliases", "Further names of models: what engines are asked for, by what clients ask for");
const INTERVAL: Key = live(
    "models_interval",
    "Time from one reading of each engine's `/v1/models`, which tells its adapters, to the next",
);
const INTERVALS: OrWord<Durations> =
    OrWord { form: Durations { min: MODELS_INTERVAL_MIN, max: DURATION_MAX }, word: "off" };

/// The names of a pool's models as written.
pub(super) struct Models {
    /// Nothing where all others are meant.
    named: Option<Placed<Vec<Placed<String>>>>,
    /// Whether there should be some, even if none is right.
    are_written: bool,
    aliases: Vec<(Placed<String>, Placed<String>)>,
    pub(super) interval: Option<Duration>,
    path: String,
}

pub(super) fn read(section: &mut Section<'_, '_>) -> Models {
    let named = section.list(MODELS, 1..=MODELS_MAX, &MODEL);
    let aliases = section.table(ALIASES, MODELS_MAX, ("names of models", &MODEL), &MODEL);
    let interval = section.value(INTERVAL, &INTERVALS, Some(MODELS_INTERVAL)).value;
    let are_written = section.has(MODELS.name);
    let models = Models { named, are_written, aliases, interval, path: section.path(MODELS.name) };
    check_targets(section.reader, &models);
    models
}

/// An alias leads to a model in one step.
fn check_targets(reader: &mut Reader<'_>, models: &Models) {
    for (_, target) in &models.aliases {
        let is_alias = models.aliases.iter().any(|(alias, _)| alias.value == target.value);
        let is_model = match &models.named {
            Some(named) => named.value.iter().any(|model| model.value == target.value),
            None => !is_alias,
        };
        if !is_model {
            let wanted = if is_alias {
                "a model, not another alias".to_owned()
            } else {
                format!("one of {}", models.path)
            };
            reader.fault_of(target, Reason::text(&target.value, wanted));
        }
    }
}

/// No model or alias twice, and one pool at most for all others.
pub(super) fn compare<'m>(reader: &mut Reader<'_>, pools: impl Iterator<Item = (&'m Models, Place)>) {
    let (mut names, mut open) = (Vec::new(), None);
    for (models, place) in pools {
        names.extend(models.named.iter().flat_map(|named| named.value.clone()));
        names.extend(models.aliases.iter().map(|(alias, _)| alias.clone()));
        if models.are_written {
            continue;
        }
        match &open {
            None => open = Some(&models.path),
            Some(first) => {
                let found = format_args!("nothing, as at {first}");
                reader.fault(place, &models.path, Reason::thing(found, "models in all pools but one"));
            }
        }
    }
    refuse_repeated(reader, names, String::clone, |name, first| {
        Reason::text(name, format_args!("another name than that of {first}"))
    });
}

impl Models {
    pub(super) fn names(&self) -> Vec<String> {
        self.named.iter().flat_map(|named| &named.value).map(|model| model.value.clone()).collect()
    }

    pub(super) fn aliases(&self) -> BTreeMap<String, String> {
        self.aliases.iter().map(|(alias, model)| (alias.value.clone(), model.value.clone())).collect()
    }
}
