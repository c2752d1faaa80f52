//! Files of one JSON object a line: what both forms of a trace share, so that both are refused, or forgiven, alike.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::engine::Seconds;

/// Reasons that are kept of skipped lines; the rest is only counted.
pub const REASONS_MAX: usize = 5;

/// What becomes of a line that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadLines {
    /// The first one ends the reading.
    #[default]
    Refuse,
    /// They are left out and counted.
    Skip,
}

/// The good lines of a file, and what was left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded<T> {
    /// In the order of the file; times never go back.
    pub requests: T,
    /// Nothing under [`BadLines::Refuse`].
    pub skipped: Skipped,
}

impl<T> Loaded<T> {
    pub(super) fn map<U>(self, into: impl FnOnce(T) -> U) -> Loaded<U> {
        Loaded { requests: into(self.requests), skipped: self.skipped }
    }
}

/// Lines that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub lines: usize,
    /// `file:line:column: reason` of the first [`REASONS_MAX`]; of what could be read but not used, `request N: reason`.
    pub reasons: Vec<String>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceFileError {
    /// The file.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file's name.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line of it.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    Line {
        /// The file's name.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Byte of the line, from 1.
        column: usize,
        /// What was found and what was wanted.
        reason: String,
    },
    /// Nothing in it.
    #[error("{}: found no request", path.display())]
    Empty {
        /// The file's name.
        path: PathBuf,
    },
    /// All of its lines were left out.
    #[error("{}: found no good line among {lines}, the first is {first}", path.display())]
    AllBad {
        /// The file's name.
        path: PathBuf,
        /// Bad lines.
        lines: usize,
        /// The first one's reason.
        first: String,
    },
}

impl TraceFileError {
    /// What helps against it, to be put behind it; nothing where nothing does.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Line { .. } => LEAVE_OUT,
            Self::Unreadable { .. } | Self::Empty { .. } | Self::AllBad { .. } => "",
        }
    }
}

/// What helps against a bad line, or one that cannot be used.
pub(crate) const LEAVE_OUT: &str = "; --skip-bad leaves it out";

/// What is wrong within a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Byte of the line, from 1.
    column: usize,
    reason: String,
}

impl Fault {
    /// A fault of a member: its column is where the member's name stands.
    pub(crate) fn member(line: &str, member: &str, reason: &str) -> Self {
        let column = line.find(&format!("\"{member}\"")).map_or(1, |byte| byte + 1);
        Self { column, reason: format!("{member}: {reason}") }
    }
}

impl From<std::str::Utf8Error> for Fault {
    fn from(error: std::str::Utf8Error) -> Self {
        Self { column: error.valid_up_to() + 1, reason: "found a byte that is no UTF-8".to_owned() }
    }
}

impl From<serde_json::Error> for Fault {
    /// The parser's own place is about its one line: the file's line is said elsewhere.
    fn from(error: serde_json::Error) -> Self {
        let (column, text) = (error.column(), error.to_string());
        let place = format!(" at line {} column {column}", error.line());
        let reason = text.strip_suffix(&place).unwrap_or(&text).to_owned();
        Self { column: column.max(1), reason }
    }
}

/// A form of trace: one request a line.
pub(crate) trait Line: Sized {
    /// The member that holds the time.
    const TIME: &'static str;
    /// Units of that member in a second.
    const PER_SECOND: f64;
    /// Whether it is the log of a process that may still run: the last line may be cut, and is then left out whatever becomes of
    /// other bad ones; and lines are written when requests end, so they are put in order. Else times never go back.
    const IS_LOG: bool = false;

    /// Reads one line.
    fn parse(line: &str) -> Result<Self, Fault>;
    /// When the request is sent.
    fn at(&self) -> Seconds;
}

/// Reads a file. O(bytes). Errors: those of [`parse`], and a file that cannot be read.
pub(crate) fn read<T: Line>(path: &Path, bad: BadLines) -> Result<Loaded<Vec<T>>, TraceFileError> {
    parse(&bytes(path)?, path, bad)
}

/// What is in a file: text, unless a line of it is damaged.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, TraceFileError> {
    fs::read(path).map_err(|source| TraceFileError::Unreadable { path: path.to_owned(), source })
}

/// Reads what is in a file that is called `path`; empty lines are passed over. Errors: a bad line, unless they are
/// skipped; no good line at all.
pub(crate) fn parse<T: Line>(
    text: &[u8],
    path: &Path,
    bad: BadLines,
) -> Result<Loaded<Vec<T>>, TraceFileError> {
    let (mut requests, mut skipped) = (Vec::new(), Skipped::default());
    let mut last = Seconds(0.0);
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    for (number, line) in (1..).zip(lines).filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let cut = T::IS_LOG && !line.ends_with(b"\n");
        match in_order::<T>(line, last) {
            Ok(request) => {
                last = request.at();
                requests.push(request);
            }
            Err(fault) => {
                skipped.add(fault_at(path, number, fault), if cut { BadLines::Skip } else { bad })?
            }
        }
    }
    if T::IS_LOG {
        requests.sort_by(|one: &T, other| one.at().0.total_cmp(&other.at().0));
    }
    if requests.is_empty() { Err(nothing(path, skipped)) } else { Ok(Loaded { requests, skipped }) }
}

fn in_order<T: Line>(line: &[u8], last: Seconds) -> Result<T, Fault> {
    let line = std::str::from_utf8(line.trim_ascii_end())?;
    let request = T::parse(line)?;
    let (at, last) = (request.at().0 * T::PER_SECOND, last.0 * T::PER_SECOND);
    if at >= last || T::IS_LOG {
        return Ok(request);
    }
    let wanted = if last == 0.0 { "0 or more".to_owned() } else { format!("{last} or more, as before it") };
    Err(Fault::member(line, T::TIME, &format!("found {at}, wanted {wanted}")))
}

fn fault_at(path: &Path, line: usize, fault: Fault) -> TraceFileError {
    TraceFileError::Line { path: path.to_owned(), line, column: fault.column, reason: fault.reason }
}

fn nothing(path: &Path, skipped: Skipped) -> TraceFileError {
    let path = path.to_owned();
    match skipped.reasons.into_iter().next() {
        Some(first) => TraceFileError::AllBad { path, lines: skipped.lines, first },
        None => TraceFileError::Empty { path },
    }
}

impl Skipped {
    /// What was left out, in lines with an empty one behind them; nothing of nothing.
    pub fn text(&self) -> String {
        if self.lines == 0 {
            return String::new();
        }
        let reasons: String = self.reasons.iter().map(|reason| format!("  {reason}\n")).collect();
        let lines = if self.lines == 1 { "line" } else { "lines" };
        format!("{} bad {lines} left out, the first of them:\n{reasons}\n", self.lines)
    }

    /// Counts lines that could be read, but not used.
    pub(crate) fn add_unusable(&mut self, reasons: &[impl ToString]) {
        reasons.iter().for_each(|reason| self.count(reason));
    }

    fn add(&mut self, error: TraceFileError, bad: BadLines) -> Result<(), TraceFileError> {
        if bad == BadLines::Refuse {
            return Err(error);
        }
        self.count(&error);
        Ok(())
    }

    fn count(&mut self, reason: &impl ToString) {
        self.lines += 1;
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(reason.to_string());
        }
    }
}
