//! What surrounds the profile: gates, data layer, flow control and parsers.

use super::fields::{Field, Fields, Reading, text};
use super::plugin::{self, Plugin, Role};
use super::profile::reference;
use crate::faults::Reason;

/// The gate that holds requests back; the only one that would change anything here.
const FLOW_CONTROL: &str = "flowControl";
/// And all of llm-d's.
const GATES: [&str; 2] = [FLOW_CONTROL, "haPopulateNonLeaderDatastore"];
const LACKS_FLOW_CONTROL: &str = "none: this router holds no request back";
const LACKS_PEERS: &str = "none: this router shares nothing with its peers";

/// The parts of the document.
pub(super) struct Parts<'a> {
    pub(super) data_layer: Option<Field<'a>>,
    pub(super) flow_control: Option<Field<'a>>,
    pub(super) request_handler: Option<Field<'a>>,
    /// Before `flowControl` had it.
    pub(super) saturation_detector: Option<Field<'a>>,
    /// Before `requestHandler` had them.
    pub(super) parser: Option<Field<'a>>,
}

/// Gates as `NAME` or `NAME=BOOLEAN`; of a gate that stands twice the last counts.
pub(super) fn gates(reading: &mut Reading<'_>, gates: &[Field<'_>]) {
    let mut on = None;
    for field in gates {
        let written = text(field.node).map(|text| text.split_once('=').unwrap_or((text, "true")));
        let value = written.and_then(|(_, value)| truth(value));
        match (written, value) {
            (Some((FLOW_CONTROL, _)), Some(value)) => on = value.then_some(field),
            (Some((name, _)), Some(_)) if GATES.contains(&name) => {}
            _ => reading
                .unwanted(field, "flowControl or haPopulateNonLeaderDatastore, perhaps with =true or =false"),
        }
    }
    if let Some(field) = on {
        reading.unwanted(field, "it off: this router holds no request back");
    }
}

/// As Go reads it, in any case.
fn truth(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}

/// Checks all that is no profile.
pub(super) fn read<'a>(reading: &mut Reading<'_>, parts: Parts<'a>, plugins: &[Plugin<'a>]) {
    if let Some(field) = parts.data_layer {
        data_layer(reading, &field, plugins);
    }
    if let Some(field) = parts.flow_control {
        flow_control(reading, &field, plugins);
    }
    if let Some(field) = parts.request_handler {
        request_handler(reading, &field, plugins);
    }
    if let Some(field) = parts.saturation_detector {
        referring(reading, &field, plugins, Role::Detector);
    }
    if let Some(field) = parts.parser {
        referring(reading, &field, plugins, Role::Parser);
    }
}

/// A map that is a reference and nothing else. Parsers and detectors that llm-d makes itself need not be configured.
fn referring(reading: &mut Reading<'_>, field: &Field<'_>, plugins: &[Plugin<'_>], role: Role) {
    let mut fields = Fields::of(reading, field);
    let own = fields.get("pluginRef").and_then(|name| name.node.text().and_then(plugin::role));
    if own != Some(role) {
        reference(&mut fields, plugins, Some(role));
    }
    fields.finish();
}

fn data_layer(reading: &mut Reading<'_>, field: &Field<'_>, plugins: &[Plugin<'_>]) {
    let mut fields = Fields::of(reading, field);
    let injected = fields.boolean("injectDefaults");
    let sources = fields.list("sources");
    fields.refuse("discovery", "none: nearest is the router's own pools[].discovery.file");
    fields.refuse("peerDiscovery", "none: endpoints are the pool's");
    for key in [
        "crossReplica",
        "crossReplicaSyncerPluginRef",
        "crossReplicaSyncInterval",
        "crossReplicaPublishTimeout",
    ] {
        fields.refuse(key, LACKS_PEERS);
    }
    fields.finish();
    if let Some((false, field)) = injected
        && sources.is_empty()
    {
        reading.unwanted(&field, "true: loads are always read");
    }
    for source in &sources {
        let mut fields = Fields::of(reading, source);
        reference(&mut fields, plugins, Some(Role::Source));
        let extractors = fields.list("extractors");
        fields.finish();
        for extractor in &extractors {
            referring(reading, extractor, plugins, Role::Extractor);
        }
    }
}

fn flow_control(reading: &mut Reading<'_>, field: &Field<'_>, plugins: &[Plugin<'_>]) {
    let mut fields = Fields::of(reading, field);
    let detector = fields.get("saturationDetector");
    for key in [
        "maxBytes",
        "maxRequests",
        "defaultRequestTTL",
        "noEndpointRequestTTL",
        "defaultPriorityBand",
        "defaultNegativePriorityBand",
        "priorityBands",
        "usageLimitPolicyPluginRef",
    ] {
        fields.refuse(key, LACKS_FLOW_CONTROL);
    }
    if let Some((true, field)) = fields.boolean("enableEviction") {
        fields.reading.unwanted(&field, "false: this router evicts no request");
    }
    fields.finish();
    if let Some(detector) = detector {
        referring(reading, &detector, plugins, Role::Detector);
    }
}

fn request_handler(reading: &mut Reading<'_>, field: &Field<'_>, plugins: &[Plugin<'_>]) {
    let mut fields = Fields::of(reading, field);
    let parsers = fields.list("parsers");
    if let Some((true, field)) = fields.boolean("propagatePriority") {
        let reason = Reason::thing("true", "false: requests have no priority here");
        fields.reading.fault(&field, reason);
    }
    fields.finish();
    for parser in &parsers {
        referring(reading, parser, plugins, Role::Parser);
    }
}
