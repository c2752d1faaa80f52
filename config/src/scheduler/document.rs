//! The document as a whole.

use super::fields::{Field, Fields, Reading};
use super::plugin::{self, Effect, Plugin, Role};
use super::{KIND, Scheduler, profile, rest};
use crate::faults::{Reason, one_of};
use crate::tree::Node;

/// The versions that llm-d reads; they differ in `dataLayer` alone, in parts that the router lacks.
const VERSIONS: [&str; 3] = ["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"];

/// Reads a document. Nothing where it is no map.
pub(super) fn read(reading: &mut Reading<'_>, node: &Node) -> Option<Scheduler> {
    let root = Field { node, path: String::new() };
    let mut top = Fields::of(reading, &root);
    node.map()?;
    head(&mut top, "apiVersion", &VERSIONS);
    head(&mut top, "kind", &[KIND]);
    let gates = top.list("featureGates");
    let list = top.list("plugins");
    let profiles = top.list("schedulingProfiles");
    let parts = rest::Parts {
        data_layer: top.get("dataLayer"),
        flow_control: top.get("flowControl"),
        request_handler: top.get("requestHandler"),
        saturation_detector: top.get("saturationDetector"),
        parser: top.get("parser"),
    };
    top.finish();
    rest::gates(reading, &gates);
    let plugins = plugin::read(reading, list);
    refuse_second(reading, &plugins);
    let mut scheduler = Scheduler::nothing();
    profile::read(reading, profiles, &plugins, &mut scheduler);
    rest::read(reading, parts, &plugins);
    beside_the_profile(&plugins, &mut scheduler);
    Some(scheduler)
}

/// A text that must be one of a few.
fn head(top: &mut Fields<'_, '_, '_>, key: &'static str, known: &[&str]) {
    match top.get(key) {
        Some(field) if field.node.text().is_some_and(|text| known.contains(&text)) => {}
        Some(field) => top.reading.unwanted(&field, one_of(known)),
        None => top.lacks(key, &one_of(known)),
    }
}

/// Plugins that act without being in a profile, so that only one of a type can hold.
fn refuse_second(reading: &mut Reading<'_>, plugins: &[Plugin<'_>]) {
    for (index, later) in plugins.iter().enumerate() {
        let acts = matches!(later.role, Some(Role::Producer | Role::Handler | Role::Extractor));
        if acts && plugins.iter().take(index).any(|earlier| earlier.kind == later.kind) {
            reading.fault(&later.field, Reason::thing(format_args!("a second {}", later.kind), "one"));
        }
    }
}

fn beside_the_profile(plugins: &[Plugin<'_>], scheduler: &mut Scheduler) {
    for plugin in plugins {
        match plugin.effect {
            Effect::Index { block, capacity_blocks } => {
                scheduler.block = block;
                scheduler.capacity_blocks = capacity_blocks;
            }
            Effect::Engine(engine) => scheduler.engine = Some(engine),
            Effect::Score(..) | Effect::Stick { .. } | Effect::Chance | Effect::Nothing => {}
        }
    }
}
