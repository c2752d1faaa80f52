//! The log of decisions: where it goes, and how large it gets.

use crate::DecisionLog;
use crate::defaults::{
    DECISION_FILE_BYTES, DECISION_FILE_BYTES_MAX, DECISION_FILE_BYTES_MIN, DECISION_FILES, DECISION_FILES_MAX,
};
use crate::read::form::{Integers, Sizes};
use crate::read::{FilePath, Key, Section, live};

const DECISION_LOG: Key = live(
    "decision_log",
    "A line of JSON for each decision, with its reasons and what came of it, to be explained and replayed; of a prompt only hashes",
);
const PATH: Key = live("path", "The newest file; full ones are renamed to `.1`, `.2` and so on");
const BYTES: Key = live("file_bytes_max", "Bytes of a file that is full");
const FILES: Key = live("files", "Files that are kept; the oldest is deleted");
const SIZE: Sizes = Sizes { min: DECISION_FILE_BYTES_MIN, max: DECISION_FILE_BYTES_MAX };
const COUNT: Integers = Integers { min: 1, max: DECISION_FILES_MAX };

pub(super) fn read(top: &mut Section<'_, '_>) -> Option<DecisionLog> {
    top.optional_section(DECISION_LOG, |section| {
        let path = section.required(PATH, &FilePath);
        let file_bytes_max = section.value(BYTES, &SIZE, DECISION_FILE_BYTES).value as u64;
        let files = section.value(FILES, &COUNT, DECISION_FILES).value;
        let path = section.reader.in_folder(path?.value);
        Some(DecisionLog { path, file_bytes_max, files: u32::try_from(files).unwrap_or(u32::MAX) })
    })?
    .value
}
