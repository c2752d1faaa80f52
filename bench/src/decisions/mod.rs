//! The router's decision log, read: as a trace to be played, and as reasons to be told.
//!
//! A line is one request: what Mooncake's form of trace has, and why the request went where, and what came of it. The proxy
//! writes it (`proxy/src/decision_log/line.rs`); a test of the real proxy holds the two together.

pub mod explain;

use std::path::Path;

use picker::hash::BlockSize;
use serde::Deserialize;

use crate::engine::Seconds;
use crate::trace::hashed::HashedRequest;
use crate::trace::lines::{self, BadLines, Fault, Line, Loaded, TraceFileError};

/// One request of a decision log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Record {
    /// Milliseconds since 1970, when its head had been read.
    pub timestamp: f64,
    /// Its `x-request-id`.
    pub request: Option<String>,
    /// What names its session.
    pub session_id: Option<String>,
    /// Whose key it had.
    pub tenant: Option<String>,
    /// The pool that it was decided in.
    pub pool: String,
    /// The policy by which.
    pub policy: String,
    /// The model that it asked for.
    pub model: Option<String>,
    /// Which prompt its body held.
    pub api: String,
    /// Whether its client asked for a stream.
    pub stream: bool,
    /// Tokens that a block stands for; at least 1.
    pub block_tokens: usize,
    /// Hashes of the prompt's blocks, 48 bits of each; the last block may be partial.
    pub hash_ids: Vec<u64>,
    /// No candidate was believed to hold anything of it.
    pub cold: bool,
    /// The endpoint that was tried last.
    pub endpoint: Option<String>,
    /// What the candidates' totals are made of.
    pub columns: Vec<Column>,
    /// The best candidates, by rank.
    pub candidates: Vec<Candidate>,
    /// Of so many.
    pub candidates_total: usize,
    /// Endpoints that were tried.
    pub attempts: u32,
    /// Of the answer.
    pub status: u16,
    /// What the router answered by itself, or how the exchange ended badly.
    pub trouble: Option<String>,
    /// Tokens of the prompt, as the engine counted.
    pub prompt_tokens: Option<u64>,
    /// Of them, tokens that the engine had.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: Option<u32>,
    /// Milliseconds to the first byte of the endpoint's answer.
    pub ttfb_ms: Option<f64>,
    /// Milliseconds to its end.
    pub total_ms: f64,
}

/// What a figure of a candidate counts for.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Column {
    /// As decisions show it.
    pub name: String,
    /// Negative for what speaks against a candidate.
    pub weight: f64,
}

/// A candidate as the decision saw it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub endpoint: String,
    /// Leading blocks that it was believed to hold.
    pub matched: u32,
    /// What ranked.
    pub total: f64,
    /// It was to go first whatever the totals say.
    #[serde(default)]
    pub preferred: bool,
    /// In the order of the columns; `None` where it was left out.
    pub figures: Vec<Option<f64>>,
}

impl Line for Record {
    const TIME: &'static str = "timestamp";
    const PER_SECOND: f64 = 1e3;
    const IS_LOG: bool = true;

    fn parse(line: &str) -> Result<Self, Fault> {
        let record: Self = serde_json::from_str(line)?;
        match record.block_tokens {
            0 => Err(Fault::member(line, "block_tokens", "found none, wanted 1 or more")),
            _ => Ok(record),
        }
    }

    fn at(&self) -> Seconds {
        Seconds(self.timestamp / Self::PER_SECOND)
    }
}

/// Reads a log, its requests in the order in which they came. Errors: it cannot be read, has no good line, or a bad one that
/// is not to be skipped.
pub fn read(path: &Path, bad: BadLines) -> Result<Loaded<Vec<Record>>, TraceFileError> {
    lines::read(path, bad)
}

/// The requests of a log as a trace, from time 0 on, and the size of its blocks in the engine's tokens.
///
/// A router cuts text, and takes four bytes for a token; engines count otherwise. So a block has as many tokens as those that the
/// engines told have in the mean, and a prompt has the engine's count, as near to it as its blocks allow: the last may be partial.
/// A prompt without a block has one that nobody shares.
pub fn to_trace(records: &[Record]) -> (Vec<HashedRequest>, BlockSize) {
    let first = records.first().map_or(0.0, |record| record.timestamp);
    let size = block_size(records);
    let requests = (0..).zip(records).map(|(number, record)| request(record, number, first, size.tokens()));
    (requests.collect(), size)
}

/// Tokens of a block in the mean of all prompts that an engine has counted; the router's own where none has. The last block of
/// a prompt counts as half of one.
fn block_size(records: &[Record]) -> BlockSize {
    let counted = records.iter().filter_map(|record| Some((record.hash_ids.len(), record.prompt_tokens?)));
    let (blocks, tokens) = counted
        .filter(|(blocks, _)| *blocks > 0)
        .fold((0.0, 0.0), |sum, (blocks, tokens)| (sum.0 + blocks as f64 - 0.5, sum.1 + tokens as f64));
    let own = records.first().map_or(1, |record| record.block_tokens) as f64;
    let mean = if tokens > 0.0 { tokens / blocks } else { own };
    BlockSize::new(mean.round().max(1.0) as i64).unwrap_or(BlockSize::ENGINE)
}

fn request(record: &Record, number: u64, first: f64, size: usize) -> HashedRequest {
    // Above all that 48 bits can say.
    let own = (1 << 63) | number;
    let hash_ids = if record.hash_ids.is_empty() { vec![own] } else { record.hash_ids.clone() };
    let before_last = (hash_ids.len() - 1) * size;
    let counted = record.prompt_tokens.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
    let tokens = counted.unwrap_or(before_last + size.div_ceil(2)).clamp(before_last + 1, before_last + size);
    HashedRequest {
        at: Seconds((record.timestamp - first) / 1e3),
        input_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        output_tokens: record.output_tokens.unwrap_or(1).max(1),
        hash_ids,
        session: record.session_id.clone(),
    }
}

/// The endpoints of a log in the order of their names, and the place of each request's among them; `None` where nobody was
/// tried.
pub fn routed(records: &[Record]) -> (Vec<&str>, Vec<Option<usize>>) {
    let mut names: Vec<&str> = records.iter().filter_map(|record| record.endpoint.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    let place = |record: &Record| names.binary_search(&record.endpoint.as_deref()?).ok();
    let places = records.iter().map(place).collect();
    (names, places)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::trace::lines::parse;

    fn line(timestamp: u32, endpoint: &str) -> String {
        format!(
            r#"{{"timestamp":{timestamp},"block_tokens":64,"hash_ids":[1,2],"endpoint":"{endpoint}","output_tokens":7}}"#
        )
    }

    fn read(text: &str, bad: BadLines) -> Result<Loaded<Vec<Record>>, String> {
        parse(text.as_bytes(), Path::new("d.jsonl"), bad).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_come_in_the_order_of_their_arrival_and_share_their_blocks() {
        let text = [line(2000, "b"), line(1500, "a"), line(3000, "b")].join("\n");
        let records = read(&text, BadLines::Refuse).unwrap().requests;
        assert_eq!(routed(&records), (vec!["a", "b"], vec![Some(0), Some(1), Some(1)]));
        let (trace, size) = to_trace(&records);
        assert_eq!(trace.iter().map(|one| one.at.0).collect::<Vec<_>>(), [0.0, 0.5, 1.5]);
        assert_eq!(size, BlockSize::ROUTER, "no engine has counted");
        for request in &trace {
            assert_eq!((request.input_tokens, request.output_tokens), (64 + 32, 7));
            assert_eq!(request.hash_ids, [1, 2]);
        }
    }

    /// 450 tokens in 6 blocks less the halves of two last ones, 5: blocks of 90, not of the router's 64.
    #[test]
    fn lengths_are_the_engines() {
        let record = |hash_ids: &[u64], prompt_tokens| Record {
            block_tokens: 64,
            hash_ids: hash_ids.to_vec(),
            prompt_tokens,
            ..Record::default()
        };
        let records = [
            record(&[1, 2, 3, 4], Some(300)),
            record(&[1, 2], Some(150)),
            record(&[1, 2], None),
            record(&[1], Some(1000)),
            record(&[], Some(5)),
        ];
        let (_, size) = to_trace(&records[..3]);
        assert_eq!(size.tokens(), 90);
        let (trace, size) = to_trace(&records);
        assert_eq!(size.tokens(), 264, "1,450 tokens in 5.5 blocks");
        let lengths: Vec<_> = trace.iter().map(|request| request.input_tokens).collect();
        assert_eq!(lengths, [3 * 264 + 1, 264 + 1, 264 + 132, 264, 5], "as near as the blocks allow");
        assert_eq!(trace[4].hash_ids.len(), 1, "one of its own");
        assert!(trace[4].hash_ids[0] > 1 << 48);
    }

    /// The router may be writing it at this moment.
    #[test]
    fn a_last_line_that_is_cut_is_left_out_and_said() {
        let cut = &line(2000, "b")[..40];
        let loaded = read(&format!("{}\n{cut}", line(1000, "a")), BadLines::Refuse).unwrap();
        assert_eq!((loaded.requests.len(), loaded.skipped.lines), (1, 1));
        assert!(loaded.skipped.reasons[0].starts_with("d.jsonl:2:40: EOF while parsing"));
        let whole = read(&[line(1000, "a"), line(2000, "b")].join("\n"), BadLines::Refuse).unwrap();
        assert_eq!(whole.requests.len(), 2, "only its end of line is missing");
    }

    #[test]
    fn a_bad_line_is_named_and_can_be_left_out() {
        let text = format!("{}\n{}\n", line(1000, "a"), &line(2000, "b")[..40]);
        let error = read(&text, BadLines::Refuse).unwrap_err();
        assert!(error.starts_with("d.jsonl:2:40: EOF while parsing"), "{error}");
        let loaded = read(&text, BadLines::Skip).unwrap();
        assert_eq!((loaded.requests.len(), loaded.skipped.lines), (1, 1));
        let error = read("{}\n", BadLines::Refuse).unwrap_err();
        assert_eq!(error, "d.jsonl:1:1: block_tokens: found none, wanted 1 or more");
    }
}
