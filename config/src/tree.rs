//! YAML and JSON as written: texts, lists and keys, each with its line and column. Nothing is interpreted here.
//!
//! What is wrong with one key or value is a fault among others, and the reading goes on. Only text that is no YAML, and
//! text that would cost too much, ends it. Bounded in bytes, in depth, in values and in what aliases repeat.
//! Also for other formats than the router's own: a stream may hold several documents.

mod build;

use crate::defaults::{FILE_BYTES_MAX, OBJECTS_BYTES_MAX, OBJECTS_NODES_MAX, TREE_NODES_MAX};
use crate::faults::{Fault, Faults, Reason};

/// Where something begins: line and column, both from 1, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
}

/// A value with its place. What an alias stands for has the alias's place; what is inside of it has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it begins; for keys and values in lines of their own, at the first key.
    pub at: At,
    /// What it is.
    pub value: Value,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A single value.
    Scalar(Scalar),
    /// A list, in order.
    List(Vec<Node>),
    /// Keys and values, in order.
    Map(Map),
    /// Something whose fault is told already: no second one is wanted.
    Told,
}

/// A single value as text, after YAML's escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// The text.
    pub text: String,
    /// Whether it was written without quotes: only then `null` is nothing and `5` a number.
    pub plain: bool,
}

/// Keys and values, in order; no key twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(pub Vec<Entry>);

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key begins.
    pub at: At,
    /// Its value.
    pub node: Node,
}

/// What a text holds, and what is wrong with it so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Documents {
    /// Each document, in order. One without content is a scalar that is nothing.
    pub nodes: Vec<Node>,
    /// Repeated keys, unknown aliases and tags, merge keys, keys that are no text.
    pub faults: Faults,
}

/// What a text may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of it.
    pub bytes: usize,
    /// Values, with those that its aliases repeat.
    pub nodes: usize,
}

impl Bounds {
    /// A file that somebody wrote.
    pub const FILE: Self = Self { bytes: FILE_BYTES_MAX, nodes: TREE_NODES_MAX };
    /// What a cluster says of its objects.
    pub const OBJECTS: Self = Self { bytes: OBJECTS_BYTES_MAX, nodes: OBJECTS_NODES_MAX };
}

/// Reads a text of at most [`FILE_BYTES_MAX`] that may hold several documents. `file` names it in faults.
///
/// Errors: one fault, if it is no YAML or would cost too much.
pub fn documents(file: &str, text: &str) -> Result<Documents, Faults> {
    documents_within(file, text, Bounds::FILE)
}

/// The same with other bounds.
pub fn documents_within(file: &str, text: &str, bounds: Bounds) -> Result<Documents, Faults> {
    check_length(text.len(), bounds.bytes).map_err(|reason| Fault::of_file(file, reason))?;
    build::Builder::new(file, bounds.nodes).read(text)
}

/// Reads a text that must hold one document. Nothing where it has none, which is a fault among others.
///
/// Errors: as of [`documents`].
pub fn document(file: &str, text: &str) -> Result<(Option<Node>, Faults), Faults> {
    let Documents { nodes, mut faults } = documents(file, text)?;
    if let Some(second) = nodes.get(1) {
        faults.add_at(file, second.at, "", Reason::thing("a second document", "one"));
    }
    let first = nodes.into_iter().next().filter(|node| !node.is_nothing());
    if first.is_none() && faults.is_empty() {
        faults.add(Fault::of_file(file, Reason::thing("an empty file", "a configuration")));
    }
    Ok((first, faults))
}

/// Whether a text of so many bytes is read at all.
pub(crate) fn check_length(bytes: usize, max: usize) -> Result<(), Reason> {
    if bytes <= max {
        return Ok(());
    }
    Err(Reason::thing("a longer file", format_args!("at most {max} bytes")))
}

impl Node {
    /// Whether it is a key's missing value, `~` or `null`.
    pub fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_nothing())
    }

    /// What a fault calls it.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Scalar(scalar) if scalar.is_nothing() => "nothing",
            Value::Scalar(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "keys and values",
            Value::Told => "a fault",
        }
    }

    /// The text of a single value; of nothing, none.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) if !scalar.is_nothing() => Some(&scalar.text),
            _ => None,
        }
    }

    /// The items of a list.
    pub fn list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The keys and values.
    pub fn map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }
}

impl Scalar {
    fn is_nothing(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }
}

impl Map {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.0.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    /// A tree in one line: `line:column` before each value that is no scalar's key.
    fn show(node: &Node) -> String {
        let At { line, column } = node.at;
        let value = match &node.value {
            Value::Scalar(Scalar { text, plain: true }) => text.clone(),
            Value::Scalar(Scalar { text, plain: false }) => format!("{text:?}"),
            Value::List(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" ")),
            Value::Map(Map(entries)) => {
                let show = |entry: &Entry| {
                    format!("{}@{}:{}={}", entry.key, entry.at.line, entry.at.column, show(&entry.node))
                };
                format!("{{{}}}", entries.iter().map(show).collect::<Vec<_>>().join(" "))
            }
            Value::Told => "!".to_owned(),
        };
        format!("{line}:{column} {value}")
    }

    fn read(text: &str) -> (String, String) {
        let Documents { nodes, faults } = documents("f", text).unwrap();
        (nodes.iter().map(show).collect::<Vec<_>>().join(" | "), faults.to_string())
    }

    #[test]
    fn every_value_has_its_place() {
        for (text, tree) in [
            ("a: 1\nb: 'x'\n", "1:1 {a@1:1=1:4 1 b@2:1=2:4 \"x\"}"),
            ("l:\n- 1\n- {k: \"v\"}\n", "1:1 {l@1:1=2:3 [2:3 1 3:3 {k@3:4=3:7 \"v\"}]}"),
            ("{\"a\": [1, true],\n\t\"b\": null}", "1:1 {a@1:2=1:7 [1:8 1 1:11 true] b@2:2=2:7 null}"),
            ("a: &x {k: 1}\nb: *x\n", "1:1 {a@1:1=1:7 {k@1:8=1:11 1} b@2:1=2:4 {k@1:8=1:11 1}}"),
            ("a: 1\n---\n- 2\n...\n", "1:1 {a@1:1=1:4 1} | 3:1 [3:3 2]"),
            ("s: !!str 5\nt: ! 6\n", "1:1 {s@1:1=1:10 \"5\" t@2:1=2:6 \"6\"}"),
            ("", ""),
            ("# only a comment\n", ""),
        ] {
            assert_eq!(read(text), (tree.to_owned(), String::new()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_one_value_does_not_end_the_reading() {
        for (text, tree, faults) in [
            (
                "a: 1\na: 2\nb: 3\n",
                "1:1 {a@1:1=1:4 1 b@3:1=3:4 3}",
                "f:2:1: found \"a\", wanted each key once",
            ),
            (
                "p:\n- x: {a: 1, a: 2}\n",
                "1:1 {p@1:1=2:3 [2:3 {x@2:3=2:6 {a@2:7=2:10 1}}]}",
                "f:2:13: p[0].x: found \"a\", wanted each key once",
            ),
            (
                "<<: {a: 1}\nb: 2\n",
                "1:1 {b@2:1=2:4 2}",
                "f:1:1: found a merge key, wanted each key written out",
            ),
            ("a: *b\n", "1:1 {a@1:1=1:4 !}", "f:1:4: a: found an alias of nothing, wanted a value"),
            (
                "a: &b [*b]\n",
                "1:1 {a@1:1=1:7 [1:8 !]}",
                "f:1:8: a[0]: found an alias of nothing, wanted a value",
            ),
            ("a: !x 3\n", "1:1 {a@1:1=1:7 !}", "f:1:7: a: found tag \"!x\", wanted a value without one"),
            (
                "a: !!binary 3\n",
                "1:1 {a@1:1=1:13 !}",
                "f:1:13: a: found tag \"!!binary\", wanted a value without one",
            ),
            ("[1]: 2\nb: 3\n", "1:1 {b@2:1=2:4 3}", "f:1:1: found a list as a key, wanted text"),
        ] {
            assert_eq!(read(text), (tree.to_owned(), faults.to_owned()), "{text}");
        }
    }

    #[test]
    fn one_document_is_wanted_of_a_configuration() {
        for (text, faults) in [
            ("{}", ""),
            ("", "f: found an empty file, wanted a configuration"),
            ("# a: 1\n", "f: found an empty file, wanted a configuration"),
            ("---\n", "f: found an empty file, wanted a configuration"),
            ("a: 1\n---\nb: 2\n", "f:3:1: found a second document, wanted one"),
        ] {
            assert_eq!(document("f", text).unwrap().1.to_string(), faults, "{text}");
        }
    }

    #[test]
    fn what_is_no_yaml_or_costs_too_much_ends_it() {
        let aliases = |level: usize| format!("- &a{level} [{}]\n", format!("*a{}, ", level - 1).repeat(10));
        let bomb: String = std::iter::once("- &a0 [x]\n".to_owned()).chain((1..9).map(aliases)).collect();
        let long = format!("- &a {}\n{}", "x".repeat(500_000), "- *a\n".repeat(100_000));
        for (shows, text, fault) in [
            ("no YAML", "a: 'x\n".to_owned(), "f:1:4: found no YAML (unclosed quote), wanted YAML"),
            ("deep", "[".repeat(500_000), "f:1:65: found more than 64 levels, wanted fewer"),
            ("deep blocks", "- ".repeat(500_000), "f:1:129: found more than 64 levels, wanted fewer"),
            ("many", "- \n".repeat(300_000), "f:262145:3: found more than 262144 values, wanted fewer"),
            ("a bomb of aliases", bomb, "f:6:7: found more than 262144 values, wanted fewer"),
            ("long aliases", long, "f:3:3: found aliases of more than 1048576 bytes, wanted fewer"),
            ("long", " ".repeat(FILE_BYTES_MAX + 1), "f: found a longer file, wanted at most 1048576 bytes"),
        ] {
            let told = documents("f", &text).map(|_| ()).unwrap_err().to_string();
            assert_eq!(told, fault, "{shows}");
        }
    }
}
