//! A field of an object and its path, and what the cluster says when it does not hold.

pub(super) use crate::faults::quoted as shown;
use crate::faults::{Faults, Reason, key_path};
use crate::tree::{At, Entry, Map, Node, Value};

/// A value and the path of its field, such as `spec.targetPorts[0].number`.
pub(super) struct Field<'a> {
    pub(super) node: &'a Node,
    pub(super) path: String,
}

impl<'a> Field<'a> {
    pub(super) fn new(node: &'a Node, path: &str) -> Self {
        Self { node, path: path.to_owned() }
    }

    /// A field of this one that has a value.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let node = self.node.map()?.get(key).filter(|node| !node.is_nothing())?;
        Some(Self { node, path: key_path(&self.path, key) })
    }

    /// A field of this one that is a string.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.node.map()?.get(key).filter(|node| kind(node) == "string")?.text()
    }

    pub(super) fn is_map(&self) -> bool {
        self.node.map().is_some()
    }

    /// The items of a list.
    pub(super) fn items(self) -> Option<&'a [Node]> {
        self.node.list()
    }

    /// The keys and values; none of what is no map.
    pub(super) fn entries(&self) -> &'a [Entry] {
        self.node.map().map_or(&[], |Map(entries)| entries)
    }

    /// One problem of this value, in so many words.
    pub(super) fn problem(&self, file: &str, words: String, faults: &mut Faults) {
        problem(file, self.node.at, &self.path, words, faults);
    }

    /// The value as an integer, or the problem that it is none.
    pub(super) fn integer(&self, file: &str, faults: &mut Faults) -> Option<i64> {
        let number = self.node.text().filter(|_| kind(self.node) == "integer");
        let number = number.and_then(|text| text.parse().ok());
        if number.is_none() {
            invalid(file, self, "integer", faults);
        }
        number
    }

    /// The value as a string, or the problem that it is none.
    pub(super) fn string(&self, file: &str, faults: &mut Faults) -> Option<&'a str> {
        let text = self.node.text().filter(|_| kind(self.node) == "string");
        if text.is_none() {
            invalid(file, self, "string", faults);
        }
        text
    }

    /// Fields that the CRD does not have, which the cluster would drop.
    pub(super) fn refuse_unknown(&self, file: &str, known: &[&str], faults: &mut Faults) {
        for entry in self.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let path = key_path(&self.path, &entry.key);
            problem(file, entry.at, &path, "unknown field".to_owned(), faults);
        }
    }

    /// A field that must be there, or the problem that it is not.
    pub(super) fn need(&self, file: &str, key: &str, faults: &mut Faults) -> Option<Self> {
        let field = self.get(key);
        if field.is_none() {
            required(file, self, key, faults);
        }
        field
    }
}

/// `Required value`, of a field of this one.
pub(super) fn required(file: &str, parent: &Field<'_>, key: &str, faults: &mut Faults) {
    problem(file, parent.node.at, &key_path(&parent.path, key), "Required value".to_owned(), faults);
}

/// A value of another type than wanted; nothing of a value whose fault is told.
pub(super) fn invalid(file: &str, field: &Field<'_>, wanted: &str, faults: &mut Faults) {
    let Field { node, path } = field;
    if node.value == Value::Told {
        return;
    }
    let found = kind(node);
    let subject = if path.is_empty() { "a document" } else { path };
    field.problem(
        file,
        format!("Invalid value: \"{found}\": {subject} in body must be of type {wanted}: \"{found}\""),
        faults,
    );
}

/// One of a few strings.
pub(super) fn unsupported(file: &str, field: &Field<'_>, found: &str, known: &[&str], faults: &mut Faults) {
    let known: Vec<_> = known.iter().map(|name| format!("{name:?}")).collect();
    let words = format!("Unsupported value: {}: supported values: {}", shown(found), known.join(", "));
    field.problem(file, words, faults);
}

fn problem(file: &str, at: At, path: &str, words: String, faults: &mut Faults) {
    faults.add_at(file, at, path, Reason::said(words));
}

/// The JSON type of a value, as the cluster's messages name it.
fn kind(node: &Node) -> &'static str {
    match &node.value {
        Value::Map(_) => "object",
        Value::List(_) => "array",
        Value::Scalar(_) if node.is_nothing() => "null",
        Value::Scalar(scalar) if !scalar.plain => "string",
        Value::Scalar(scalar) => match scalar.text.as_str() {
            "true" | "false" => "boolean",
            text if text.parse::<i64>().is_ok() => "integer",
            text if text.parse::<f64>().is_ok() => "number",
            _ => "string",
        },
        Value::Told => "string",
    }
}
