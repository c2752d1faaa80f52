//! The pool itself, by the rules of its CRD.

use std::collections::HashSet;

use super::field::{Field, invalid, shown, unsupported};
use super::labels;
use super::objects::Object;
use crate::faults::{Faults, key_path};
use crate::tree::Entry;

const API_VERSION: &str = "inference.networking.k8s.io/v1";
const H2C: &str = "kubernetes.io/h2c";
const PORTS_MAX: usize = 8;
const LABELS_MAX: usize = 64;
/// Characters of an object's name: those of a DNS subdomain.
const NAME_CHARS_MAX: usize = 253;
/// And of a kind: those of a DNS label.
const KIND_CHARS_MAX: usize = 63;
const PORT_WANTED: &str = "Invalid value: \"object\": port is required when kind is 'Service' or unspecified (defaults to 'Service')";

/// What a pool says of its pods. Whole only if the pool has no fault.
pub(super) struct Selection<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) labels: Vec<(&'a str, &'a str)>,
    pub(super) ports: Vec<u16>,
    pub(super) h2c: bool,
}

/// Checks a pool, and says what it selects as far as it can be told; nothing without a name.
pub(super) fn check<'a>(file: &str, pool: &Object<'a>, faults: &mut Faults) -> Option<Selection<'a>> {
    let root = pool.root();
    if let Some(version) = root.need(file, "apiVersion", faults)
        && let Some(found) = version.string(file, faults)
        && found != API_VERSION
    {
        unsupported(file, &version, found, &[API_VERSION], faults);
    }
    root.refuse_unknown(file, &["apiVersion", "kind", "metadata", "spec", "status"], faults);
    if let Some(metadata) = root.need(file, "metadata", faults) {
        metadata.need(file, "name", faults);
    }
    let (labels, ports, h2c) =
        root.need(file, "spec", faults).map(|spec| Spec { file, faults }.check(&spec)).unwrap_or_default();
    let metadata = pool.metadata()?;
    Some(Selection { namespace: metadata.namespace, name: metadata.name, labels, ports, h2c })
}

struct Spec<'a> {
    file: &'a str,
    faults: &'a mut Faults,
}

impl Spec<'_> {
    fn check<'a>(&mut self, spec: &Field<'a>) -> (Vec<(&'a str, &'a str)>, Vec<u16>, bool) {
        let known = ["selector", "targetPorts", "appProtocol", "endpointPickerRef"];
        spec.refuse_unknown(self.file, &known, self.faults);
        let selector = spec.need(self.file, "selector", self.faults);
        let labels = selector.map(|selector| self.selector(&selector)).unwrap_or_default();
        let ports = spec.need(self.file, "targetPorts", self.faults);
        let ports = ports.map(|ports| self.ports(&ports)).unwrap_or_default();
        let h2c = spec.get("appProtocol").is_some_and(|protocol| self.is_h2c(&protocol));
        if let Some(picker) = spec.get("endpointPickerRef") {
            self.picker(&picker);
        }
        (labels, ports, h2c)
    }

    fn selector<'a>(&mut self, selector: &Field<'a>) -> Vec<(&'a str, &'a str)> {
        selector.refuse_unknown(self.file, &["matchLabels"], self.faults);
        let Some(labels) = selector.need(self.file, "matchLabels", self.faults) else { return Vec::new() };
        if !labels.is_map() {
            invalid(self.file, &labels, "object", self.faults);
            return Vec::new();
        }
        let count = labels.entries().len();
        if count == 0 {
            self.too_few(&labels, "properties");
        } else if count > LABELS_MAX {
            self.too_many(&labels, count, LABELS_MAX);
        }
        labels.entries().iter().take(LABELS_MAX).filter_map(|entry| self.label(&labels, entry)).collect()
    }

    fn label<'a>(&mut self, labels: &Field<'a>, entry: &'a Entry) -> Option<(&'a str, &'a str)> {
        let field = Field { node: &entry.node, path: key_path(&labels.path, &entry.key) };
        if !labels::is_key(&entry.key) {
            let words = format!("Invalid value: {}: {}", shown(&entry.key), labels::KEY);
            field.problem(self.file, words, self.faults);
        }
        let value = field.string(self.file, self.faults)?;
        if !labels::is_value(value) {
            let words = format!("Invalid value: {}: {}", shown(value), labels::VALUE);
            field.problem(self.file, words, self.faults);
        }
        Some((&entry.key, value))
    }

    fn ports(&mut self, ports: &Field<'_>) -> Vec<u16> {
        let Some(items) = ports.node.list() else {
            invalid(self.file, ports, "array", self.faults);
            return Vec::new();
        };
        if items.is_empty() {
            self.too_few(ports, "items");
        } else if items.len() > PORTS_MAX {
            self.too_many(ports, items.len(), PORTS_MAX);
        }
        let fields = items
            .iter()
            .enumerate()
            .map(|(index, node)| Field { node, path: format!("{}[{index}]", ports.path) });
        let numbers: Vec<_> = fields.filter_map(|field| self.numbered(&field)).collect();
        let distinct: HashSet<_> = numbers.iter().collect();
        if distinct.len() < numbers.len() {
            let words = "Invalid value: \"array\": port number must be unique".to_owned();
            ports.problem(self.file, words, self.faults);
        }
        numbers
    }

    /// The `number` of a port.
    fn numbered(&mut self, port: &Field<'_>) -> Option<u16> {
        if !port.is_map() {
            invalid(self.file, port, "object", self.faults);
            return None;
        }
        port.refuse_unknown(self.file, &["number"], self.faults);
        let field = port.need(self.file, "number", self.faults)?;
        let number = field.integer(self.file, self.faults)?;
        let bound = match number {
            1..=65_535 => return u16::try_from(number).ok(),
            ..1 => "greater than or equal to 1",
            _ => "less than or equal to 65535",
        };
        let words = format!("Invalid value: {number}: {} in body should be {bound}", field.path);
        field.problem(self.file, words, self.faults);
        None
    }

    fn is_h2c(&mut self, protocol: &Field<'_>) -> bool {
        let found = protocol.string(self.file, self.faults).unwrap_or("http");
        if found != "http" && found != H2C {
            unsupported(self.file, protocol, found, &["http", H2C], self.faults);
        }
        found == H2C
    }

    fn picker(&mut self, picker: &Field<'_>) {
        if !picker.is_map() {
            return invalid(self.file, picker, "object", self.faults);
        }
        let known = ["group", "kind", "name", "port", "failureMode"];
        picker.refuse_unknown(self.file, &known, self.faults);
        if let Some(name) = picker.need(self.file, "name", self.faults) {
            self.bounded(&name, 1, NAME_CHARS_MAX);
        }
        if let Some(group) = picker.get("group") {
            self.bounded(&group, 0, NAME_CHARS_MAX);
        }
        let kind = picker.get("kind").and_then(|kind| self.bounded(&kind, 1, KIND_CHARS_MAX));
        match picker.get("port") {
            Some(port) => _ = self.numbered(&port),
            None if kind.unwrap_or("Service") == "Service" => {
                picker.problem(self.file, PORT_WANTED.to_owned(), self.faults);
            }
            None => {}
        }
        if let Some(mode) = picker.get("failureMode")
            && let Some(found) = mode.string(self.file, self.faults)
            && !["FailOpen", "FailClose"].contains(&found)
        {
            unsupported(self.file, &mode, found, &["FailOpen", "FailClose"], self.faults);
        }
    }

    /// A string of so many characters.
    fn bounded<'a>(&mut self, field: &Field<'a>, min: usize, max: usize) -> Option<&'a str> {
        let text = field.string(self.file, self.faults)?;
        let Field { path, .. } = field;
        let chars = text.chars().count();
        if chars < min {
            let words = format!("Invalid value: \"\": {path} in body should be at least {min} chars long");
            field.problem(self.file, words, self.faults);
        } else if chars > max {
            field.problem(self.file, format!("Too long: may not be more than {max} bytes"), self.faults);
        }
        Some(text)
    }

    fn too_few(&mut self, field: &Field<'_>, of: &str) {
        let words = format!("Invalid value: 0: {} in body should have at least 1 {of}", field.path);
        field.problem(self.file, words, self.faults);
    }

    fn too_many(&mut self, field: &Field<'_>, count: usize, max: usize) {
        field.problem(self.file, format!("Too many: {count}: must have at most {max} items"), self.faults);
    }
}
