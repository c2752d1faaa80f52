//! What is wrong with a configuration: where, at which key, what was found and what was wanted.
//!
//! Faults are collected, not returned at the first one: an operator fixes a file once, not once per fault.

use std::fmt;

use crate::defaults::{FAULTS_MAX, FOUND_CHARS_MAX};
use crate::tree::At;

/// One fault, printed as `place: path: reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `file:line:column`, both from 1; the file alone where no line is at fault; or a flag such as
    /// `--endpoint`.
    pub place: String,
    /// The key, such as `pools[0].endpoints[2].url`; for an `--endpoint` its name. Empty where there is none.
    pub path: String,
    /// What was found and what was wanted.
    pub reason: Reason,
}

/// Every fault of one configuration: those of whole files, then by line and column, then those of further files, then
/// those of flags. Prints one a line. Past [`FAULTS_MAX`] the last one says that there are more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(Vec<(Rank, Fault)>);

/// `found …, wanted …`: why one value does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(String);

/// What faults are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    File,
    Line(At),
    OtherFile,
    Flag,
    Last,
}

impl Faults {
    /// The faults in their order. Never empty where [`crate::load`] returned them.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter().map(|(_, fault)| fault)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds one of a whole file.
    pub(crate) fn add(&mut self, fault: Fault) {
        self.insert(Rank::File, fault);
    }

    /// Adds one of a line of a file.
    pub(crate) fn add_at(&mut self, file: &str, at: At, path: &str, reason: Reason) {
        let place = format!("{file}:{}:{}", at.line, at.column);
        self.insert(Rank::Line(at), Fault { place, path: path.to_owned(), reason });
    }

    /// Adds one of a flag.
    pub(crate) fn add_flag(&mut self, flag: &str, path: &str, reason: Reason) {
        self.insert(Rank::Flag, Fault { place: flag.to_owned(), path: path.to_owned(), reason });
    }

    /// Adds all of another file, after those of this one's lines and in their order.
    pub(crate) fn append(&mut self, others: Self) {
        for (_, fault) in others.0 {
            self.insert(Rank::OtherFile, fault);
        }
    }

    fn insert(&mut self, rank: Rank, fault: Fault) {
        let (rank, fault) = match self.0.len() {
            FAULTS_MAX.. => return,
            count if count == FAULTS_MAX - 1 => {
                let reason = Reason::thing(format_args!("{FAULTS_MAX} faults or more"), "none");
                (Rank::Last, Fault { reason, path: String::new(), ..fault })
            }
            _ => (rank, fault),
        };
        let position = self.0.partition_point(|(other, _)| *other <= rank);
        self.0.insert(position, (rank, fault));
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![(Rank::File, fault)])
    }
}

impl std::error::Error for Faults {}

impl Fault {
    /// One of a whole file.
    pub(crate) fn of_file(file: &str, reason: Reason) -> Self {
        Self { place: file.to_owned(), path: String::new(), reason }
    }
}

impl Reason {
    /// For a value that may be repeated to the operator: quoted, escaped, and cut after [`FOUND_CHARS_MAX`].
    pub(crate) fn text(found: &str, wanted: impl fmt::Display) -> Self {
        Self(format!("found {}, wanted {wanted}", quoted(found)))
    }

    /// For what is described instead of repeated: a thing that is absent, or may hold a secret.
    pub(crate) fn thing(found: impl fmt::Display, wanted: impl fmt::Display) -> Self {
        Self(format!("found {found}, wanted {wanted}"))
    }

    /// In the words of somebody else's rules, such as those of a Kubernetes cluster.
    pub(crate) fn said(words: String) -> Self {
        Self(words)
    }
}

/// A text as it is repeated to the operator: quoted, escaped, and cut after [`FOUND_CHARS_MAX`].
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(FOUND_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

/// The path of a key in what stands at `parent`; an odd key escaped and cut.
pub(crate) fn key_path(parent: &str, key: &str) -> String {
    let key: String = key.chars().take(FOUND_CHARS_MAX).flat_map(char::escape_debug).collect();
    if parent.is_empty() { key } else { format!("{parent}.{key}") }
}

/// `a, b or c`.
pub(crate) fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
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
        for (index, fault) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(out, "{separator}{fault}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_a_sentence() {
        for (names, sentence) in
            [(&[][..], ""), (&["a"], "a"), (&["a", "b"], "a or b"), (&["a", "b", "c"], "a, b or c")]
        {
            assert_eq!(one_of(names), sentence);
        }
    }

    #[test]
    fn faults_are_bounded_and_sorted() {
        let mut faults = Faults::default();
        faults.add_flag("--port", "", Reason::thing("a", "b"));
        for line in (1..2 * FAULTS_MAX).rev() {
            let at = At { line: u32::try_from(line).unwrap_or(0), column: 1 };
            faults.add_at("f", at, "", Reason::thing("a", "b"));
        }
        faults.add(Fault::of_file("f", Reason::thing("a", "b")));
        let places: Vec<&str> = faults.iter().map(|fault| fault.place.as_str()).collect();
        assert_eq!(places.len(), FAULTS_MAX);
        assert_eq!((places[0], places[FAULTS_MAX - 2]), ("f:258:1", "--port"));
        assert!(faults.to_string().ends_with("found 256 faults or more, wanted none"), "{faults}");
    }
}
