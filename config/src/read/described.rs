//! What a reading says of its keys when it describes them.

use super::Key;

/// A key as described.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) key: Key,
    pub(crate) default: DefaultOf,
    pub(crate) shape: Shape,
}

/// What holds where a key is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DefaultOf {
    /// This, as a file would have it.
    Value(String),
    /// This, in words.
    Words(&'static str),
    /// Nothing: it must be there.
    Required,
}

/// What a key takes.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A single value: its JSON Schema and its range in words.
    Value { schema: serde_json::Value, range: String },
    /// Keys of its own.
    Section(Vec<Described>),
    /// A list.
    List { min: usize, max: usize, of: Box<Shape> },
    /// Keys of the operator's choice: what they are in words, and their values.
    Table { max: usize, keys: &'static str, of: Box<Shape> },
}

/// As the default of a list in words: it must be there.
pub(crate) const REQUIRED: &str = "required";

impl DefaultOf {
    pub(crate) fn words(words: &'static str) -> Self {
        if words == REQUIRED { Self::Required } else { Self::Words(words) }
    }
}

impl Shape {
    /// The range in words.
    pub(crate) fn range(&self) -> String {
        match self {
            Self::Value { range, .. } => range.clone(),
            Self::Section(_) => "keys and values".to_owned(),
            Self::List { min, max, of } => match **of {
                Self::Section(_) => format!("a list, {min} to {max}"),
                _ => format!("a list, {min} to {max}, each {}", of.range()),
            },
            Self::Table { max, keys, of } => format!("at most {max} {keys}, each with {}", of.range()),
        }
    }

    /// Its keys with their paths, below `path`; those in a list stand below `path[]`.
    pub(crate) fn visit<'a>(&'a self, path: &str, visit: &mut impl FnMut(&str, &'a Described)) {
        match self {
            Self::Section(keys) => {
                for described in keys {
                    let name = described.key.name;
                    let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                    visit(&path, described);
                    described.shape.visit(&path, visit);
                }
            }
            Self::List { of, .. } => of.visit(&format!("{path}[]"), visit),
            Self::Value { .. } | Self::Table { .. } => {}
        }
    }
}
