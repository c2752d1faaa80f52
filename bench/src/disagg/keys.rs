//! Members of a `config.json`, checked one by one; what is missing or makes no sense is collected.

use serde_json::{Map, Value};

/// Larger counts are no model's.
const COUNT_MAX: u64 = 100_000_000;
/// Members under which multimodal models keep their text model.
const NESTED: [&str; 4] = ["thinker_config", "text_config", "llm_config", "language_config"];
/// Text models are nested no deeper.
const NESTED_MAX: usize = 3;

/// The members that describe a text model, and what is wrong with them so far.
pub(super) struct Keys<'a> {
    root: &'a Map<String, Value>,
    text: &'a Map<String, Value>,
    /// Names of what is needed and not there.
    pub(super) missing: Vec<String>,
    /// Whole phrases: found, wanted.
    pub(super) faults: Vec<String>,
}

impl<'a> Keys<'a> {
    /// Of a file whose top is `root`; a text model that is nested in it is looked up.
    pub(super) fn of(root: &'a Map<String, Value>) -> Self {
        let mut text = root;
        for _ in 0..NESTED_MAX {
            let nested = NESTED.iter().find_map(|name| text.get(*name)?.as_object());
            let Some(nested) = nested else { break };
            text = nested;
        }
        Self { root, text, missing: Vec::new(), faults: Vec::new() }
    }

    /// A member of the text model; null counts as none.
    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        self.text.get(name).filter(|value| !value.is_null())
    }

    /// A member of the text model, else of the whole.
    pub(super) fn anywhere(&self, name: &str) -> Option<&'a Value> {
        self.value(name).or_else(|| self.root.get(name).filter(|value| !value.is_null()))
    }

    /// A switch.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.value(name)?.as_bool()
    }

    /// The first of these that is there, as a count of at least 1.
    pub(super) fn count(&mut self, names: &[&str]) -> Option<u32> {
        let (name, value) = names.iter().find_map(|name| Some((name, self.value(name)?)))?;
        match value.as_u64().filter(|count| (1..=COUNT_MAX).contains(count)) {
            Some(count) => u32::try_from(count).ok(),
            None => {
                let found: String = value.to_string().chars().take(40).collect();
                self.faults
                    .push(format!("found {name} {found}, wanted a whole number from 1 to {COUNT_MAX}"));
                None
            }
        }
    }

    /// The same of what has to be there; the first name is the one that is asked for.
    pub(super) fn required(&mut self, names: &[&str]) -> Option<u32> {
        if names.iter().all(|name| self.value(name).is_none()) {
            self.missing.extend(names.first().map(|name| (*name).to_owned()));
        }
        self.count(names)
    }

    /// `model_type`, of the text model if it has one.
    pub(super) fn model_type(&self) -> &'a str {
        self.anywhere("model_type").and_then(Value::as_str).unwrap_or_default()
    }
}
