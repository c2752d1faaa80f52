//! What is wrong with a configuration: where, at which key, what was found and what was wanted.
//!
//! Faults are collected, not returned at the first one: an operator fixes a file once, not once per fault.

use std::fmt;

use crate::defaults::FOUND_CHARS_MAX;

/// One fault, printed as `place: path: reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `file:line:column`, both from 1; the file alone where no line is at fault; or a flag such as
    /// `--endpoint`.
    pub place: String,
    /// The key, such as `endpoints[2].url`; for an `--endpoint` its name. Empty where there is none.
    pub path: String,
    /// What was found and what was wanted.
    pub reason: Reason,
}

/// Every fault of one configuration, in the order of the checks. Prints one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Faults(Vec<Fault>);

/// `found …, wanted …`: why one value does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(String);

impl Faults {
    /// The faults, first found first. Never empty where [`crate::load`] returned them.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }

    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl Reason {
    /// For a value that may be repeated to the operator: quoted, escaped, and cut after [`FOUND_CHARS_MAX`].
    pub(crate) fn text(found: &str, wanted: impl fmt::Display) -> Self {
        let mut shown: String = found.chars().take(FOUND_CHARS_MAX).collect();
        if shown.len() < found.len() {
            shown.push('…');
        }
        Self(format!("found {shown:?}, wanted {wanted}"))
    }

    /// For what is described instead of repeated: a thing that is absent, or may hold a secret.
    pub(crate) fn thing(found: impl fmt::Display, wanted: impl fmt::Display) -> Self {
        Self(format!("found {found}, wanted {wanted}"))
    }

    /// In the words of the YAML reader, cut to one line.
    pub(crate) fn reader(message: &str) -> Self {
        Self(message.lines().collect::<Vec<_>>().join(" "))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, path, reason } = self;
        if path.is_empty() {
            write!(out, "{place}: {reason}")
        } else {
            write!(out, "{place}: {path}: {reason}")
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(out, "{separator}{fault}")?;
        }
        Ok(())
    }
}
