//! What a single value may be: how it is read, shown again, asked for in faults, and described to editors.

use std::time::Duration;

use serde_json::{Value, json};

use crate::faults::{Reason, one_of};
use crate::quantity::{boolean, bytes, duration, integer, number, show_bytes, show_duration};

/// A kind of single value.
pub(crate) trait Form {
    type Value;
    /// The value of a text. Error: what was found and what is wanted.
    fn read(&self, text: &str) -> Result<Self::Value, Reason>;
    /// The text of a value, as a file would have it.
    fn show(&self, value: &Self::Value) -> String;
    /// As in `found …, wanted …`.
    fn wanted(&self) -> String;
    /// In JSON Schema.
    fn schema(&self) -> Value;
    /// For the table of keys.
    fn range(&self) -> String {
        self.wanted()
    }
    /// Whether `${NAME}` may stand for the value.
    fn takes_references(&self) -> bool {
        false
    }
}

/// A duration, both bounds included.
pub(crate) struct Durations {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

/// A size in bytes, both bounds included.
pub(crate) struct Sizes {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

/// An integer, both bounds included.
pub(crate) struct Integers {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

/// A number from 0.
pub(crate) struct Numbers {
    pub(crate) max: f64,
}

/// `true` or `false`.
pub(crate) struct Switch;

/// One of a few names.
pub(crate) struct Choice<T: 'static> {
    pub(crate) names: &'static [&'static str],
    pub(crate) from_name: fn(&str) -> Option<T>,
    pub(crate) name: fn(&T) -> &'static str,
}

/// A text with rules of its own.
pub(crate) struct Text<T> {
    pub(crate) wanted: &'static str,
    /// A regular expression that editors check; looser than `read`.
    pub(crate) pattern: &'static str,
    pub(crate) read: fn(&str) -> Result<T, Reason>,
    pub(crate) show: fn(&T) -> String,
}

/// Another form, or one word that means nothing of the kind.
pub(crate) struct OrWord<F> {
    pub(crate) form: F,
    pub(crate) word: &'static str,
}

impl Form for Durations {
    type Value = Duration;

    fn read(&self, text: &str) -> Result<Duration, Reason> {
        duration(text, self.min, self.max)
    }

    fn show(&self, value: &Duration) -> String {
        show_duration(*value)
    }

    fn wanted(&self) -> String {
        format!("{}, such as 100ms, 2s, 5m or 1h", self.range())
    }

    fn schema(&self) -> Value {
        json!({"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"})
    }

    fn range(&self) -> String {
        format!("a duration from {} to {}", show_duration(self.min), show_duration(self.max))
    }
}

impl Form for Sizes {
    type Value = usize;

    fn read(&self, text: &str) -> Result<usize, Reason> {
        bytes(text, self.min, self.max)
    }

    fn show(&self, value: &usize) -> String {
        show_bytes(*value)
    }

    fn wanted(&self) -> String {
        format!("{}, such as 4096, 64KiB or 4MiB", self.range())
    }

    fn schema(&self) -> Value {
        json!({"anyOf": [
            {"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)?$"},
            {"type": "integer", "minimum": self.min, "maximum": self.max},
        ]})
    }

    fn range(&self) -> String {
        format!("a size from {} to {}", show_bytes(self.min), show_bytes(self.max))
    }
}

impl Form for Integers {
    type Value = u64;

    fn read(&self, text: &str) -> Result<u64, Reason> {
        integer(text, self.min, self.max)
    }

    fn show(&self, value: &u64) -> String {
        value.to_string()
    }

    fn wanted(&self) -> String {
        format!("an integer from {} to {}", self.min, self.max)
    }

    fn schema(&self) -> Value {
        json!({"type": "integer", "minimum": self.min, "maximum": self.max})
    }
}

impl Form for Numbers {
    type Value = f64;

    fn read(&self, text: &str) -> Result<f64, Reason> {
        number(text, self.max)
    }

    fn show(&self, value: &f64) -> String {
        value.to_string()
    }

    fn wanted(&self) -> String {
        format!("{}, such as 1 or 0.5", self.range())
    }

    fn schema(&self) -> Value {
        json!({"type": "number", "minimum": 0, "maximum": self.max})
    }

    fn range(&self) -> String {
        format!("a number from 0 to {}", self.max)
    }
}

impl Form for Switch {
    type Value = bool;

    fn read(&self, text: &str) -> Result<bool, Reason> {
        boolean(text)
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }

    fn wanted(&self) -> String {
        "true or false".to_owned()
    }

    fn schema(&self) -> Value {
        json!({"type": "boolean"})
    }
}

impl<T> Form for Choice<T> {
    type Value = T;

    fn read(&self, text: &str) -> Result<T, Reason> {
        (self.from_name)(text).ok_or_else(|| Reason::text(text, one_of(self.names)))
    }

    fn show(&self, value: &T) -> String {
        (self.name)(value).to_owned()
    }

    fn wanted(&self) -> String {
        one_of(self.names)
    }

    fn schema(&self) -> Value {
        json!({"enum": self.names})
    }
}

impl<T> Form for Text<T> {
    type Value = T;

    fn read(&self, text: &str) -> Result<T, Reason> {
        (self.read)(text)
    }

    fn show(&self, value: &T) -> String {
        (self.show)(value)
    }

    fn wanted(&self) -> String {
        self.wanted.to_owned()
    }

    fn schema(&self) -> Value {
        json!({"type": "string", "pattern": self.pattern})
    }
}

impl<F: Form> Form for OrWord<F> {
    type Value = Option<F::Value>;

    fn read(&self, text: &str) -> Result<Self::Value, Reason> {
        if text == self.word {
            return Ok(None);
        }
        self.form.read(text).map(Some).map_err(|_| Reason::text(text, self.wanted()))
    }

    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| self.word.to_owned(), |value| self.form.show(value))
    }

    fn wanted(&self) -> String {
        format!("{} or {}", self.word, self.form.wanted())
    }

    fn schema(&self) -> Value {
        json!({"anyOf": [{"const": self.word}, self.form.schema()]})
    }

    fn range(&self) -> String {
        format!("{} or {}", self.word, self.form.range())
    }
}
