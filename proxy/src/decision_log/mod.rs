//! The decision log: a line of JSON for each request that was decided, with the reasons and what came of it.
//!
//! Of a prompt it holds the hashes of its blocks and its length. A line has what Mooncake's form of trace has (`timestamp`,
//! `input_length`, `output_length`, `hash_ids`, `session_id`), so it can be played; the rest tells why and how well.

mod files;
mod line;
mod noted;

use std::io;

use crate::lines::Sink;
pub(crate) use noted::Noted;

/// Opens the newest file. Errors: the system's.
pub(crate) fn open(to: &config::DecisionLog) -> io::Result<Sink> {
    Ok(Box::new(files::Files::open(to)?))
}
