//! The fields of a map: each is asked for by name, and what nobody asked for is a fault.

use std::ops::RangeInclusive;

use crate::defaults::SCHEDULER_LIST_MAX;
use crate::faults::{Faults, Reason, key_path, one_of};
use crate::tree::{At, Entry, Map, Node, Value};

/// The file and its faults so far.
pub(super) struct Reading<'a> {
    pub(super) file: &'a str,
    pub(super) faults: &'a mut Faults,
}

/// A value and the path of its field.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub(super) node: &'a Node,
    pub(super) path: String,
}

/// A map that is being read.
pub(super) struct Fields<'r, 'f, 'a> {
    pub(super) reading: &'r mut Reading<'f>,
    /// Nothing of what is no map, whose fault is told.
    entries: Option<&'a [Entry]>,
    at: At,
    path: String,
    known: Vec<&'static str>,
}

impl Reading<'_> {
    pub(super) fn fault(&mut self, field: &Field<'_>, reason: Reason) {
        self.faults.add_at(self.file, field.node.at, &field.path, reason);
    }

    /// The fault of a value that is not what was wanted, unless one is told already.
    pub(super) fn unwanted(&mut self, field: &Field<'_>, wanted: impl std::fmt::Display) {
        let node = field.node;
        match (node.text(), &node.value) {
            (_, Value::Told) => {}
            // A whole file that is one text may be a secret's, named by mistake.
            (Some(text), _) if !field.path.is_empty() => self.fault(field, Reason::text(text, wanted)),
            _ => self.fault(field, Reason::thing(node.kind(), wanted)),
        }
    }
}

impl<'r, 'f, 'a> Fields<'r, 'f, 'a> {
    /// The fields of a value, none of what is no map, which is a fault.
    pub(super) fn of(reading: &'r mut Reading<'f>, field: &Field<'a>) -> Self {
        let entries = match &field.node.value {
            Value::Map(Map(entries)) => Some(entries.as_slice()),
            _ => {
                reading.unwanted(field, "keys and values");
                None
            }
        };
        Self { reading, entries, at: field.node.at, path: field.path.clone(), known: Vec::new() }
    }

    /// No fields, where a map could stand.
    pub(super) fn none(reading: &'r mut Reading<'f>, field: &Field<'a>) -> Self {
        Self { reading, entries: Some(&[]), at: field.node.at, path: field.path.clone(), known: Vec::new() }
    }

    /// Tells that a field is missing.
    pub(super) fn lacks(&mut self, key: &'static str, wanted: &str) {
        if self.entries.is_none() {
            return;
        }
        let path = key_path(&self.path, key);
        self.reading.faults.add_at(self.reading.file, self.at, &path, Reason::thing("nothing", wanted));
    }

    /// A field that has a value.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.known.push(key);
        let entry = self.entries?.iter().find(|entry| entry.key == key)?;
        let field = Field { node: &entry.node, path: key_path(&self.path, key) };
        Some(field).filter(|field| !field.node.is_nothing())
    }

    /// A text: quoted, or neither a number nor a truth value.
    pub(super) fn text(&mut self, key: &'static str) -> Option<(&'a str, Field<'a>)> {
        let field = self.get(key)?;
        let text = text(field.node);
        if text.is_none() {
            self.reading.unwanted(&field, "a text");
        }
        text.map(|text| (text, field))
    }

    pub(super) fn boolean(&mut self, key: &'static str) -> Option<(bool, Field<'a>)> {
        let field = self.get(key)?;
        let value = match plain(field.node) {
            Some("true") => true,
            Some("false") => false,
            _ => {
                self.reading.unwanted(&field, "true or false");
                return None;
            }
        };
        Some((value, field))
    }

    /// A number within a range; one without an upper end reaches to infinity.
    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let field = self.get(key)?;
        let number = plain(field.node).filter(|text| is_number(text)).and_then(|text| text.parse().ok());
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (min, max) = range.into_inner();
            let wanted = match max.is_finite() {
                _ if min == max => min.to_string(),
                true => format!("a number from {min} to {max}"),
                false => format!("a number of at least {min}"),
            };
            self.reading.unwanted(&field, wanted);
        }
        number
    }

    /// An integer within a range.
    pub(super) fn integer(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let field = self.get(key)?;
        let number = plain(field.node).and_then(|text| text.parse().ok());
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let wanted = match range.into_inner() {
                (i64::MIN, i64::MAX) => "an integer".to_owned(),
                (min, i64::MAX) => format!("an integer of at least {min}"),
                (min, max) if min == max => min.to_string(),
                (min, max) => format!("an integer from {min} to {max}"),
            };
            self.reading.unwanted(&field, wanted);
        }
        number
    }

    /// The items of a list; of a longer one than anybody needs the first.
    pub(super) fn list(&mut self, key: &'static str) -> Vec<Field<'a>> {
        let Some(field) = self.get(key) else { return Vec::new() };
        let Some(items) = field.node.list() else {
            self.reading.unwanted(&field, "a list");
            return Vec::new();
        };
        if items.len() > SCHEDULER_LIST_MAX {
            let reason = Reason::thing(items.len(), format_args!("at most {SCHEDULER_LIST_MAX} of them"));
            self.reading.fault(&field, reason);
        }
        let item = |(index, node)| Field { node, path: format!("{}[{index}]", field.path) };
        items.iter().take(SCHEDULER_LIST_MAX).enumerate().map(item).collect()
    }

    /// A field that llm-d knows and this router has nothing for.
    pub(super) fn refuse(&mut self, key: &'static str, wanted: &str) {
        if let Some(field) = self.get(key) {
            self.reading.unwanted(&field, wanted);
        }
    }

    /// Tells what nobody asked for.
    pub(super) fn finish(self) {
        let Self { reading, entries, path, known, .. } = self;
        let wanted = if known.is_empty() { "none".to_owned() } else { one_of(&known) };
        for entry in entries.unwrap_or_default().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let reason = Reason::thing("an unknown field", &wanted);
            reading.faults.add_at(reading.file, entry.at, &key_path(&path, &entry.key), reason);
        }
    }
}

/// A value that is a text in JSON's sense.
pub(super) fn text(node: &Node) -> Option<&str> {
    let written = plain(node);
    let other = written.is_some_and(|text| matches!(text, "true" | "false") || is_number(text));
    node.text().filter(|_| !other)
}

/// A value without quotes.
fn plain(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(scalar) if scalar.plain => node.text(),
        _ => None,
    }
}

/// Whether a text is a number in JSON's sense, and not a name such as `inf`.
fn is_number(text: &str) -> bool {
    let starts = text.trim_start_matches('-').starts_with(|letter: char| letter.is_ascii_digit());
    starts && text.parse::<f64>().is_ok_and(f64::is_finite)
}
