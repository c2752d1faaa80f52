//! What a line of the decision log holds: always the same members in the same order, `null` where there is nothing to say.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::noted::{Column, Considered, Noted};
use crate::edge::access_log;
use crate::edge::access_log::Text;
use crate::request::usage::Usage;

/// Room for an ordinary line.
const LINE_BYTES: usize = 2 * 1024;

/// The members of Mooncake's form come first.
#[derive(Serialize)]
struct Line<'a> {
    /// Milliseconds since 1970.
    timestamp: f64,
    /// Tokens: as the engine counted, else as the blocks have them.
    input_length: u64,
    output_length: u32,
    session_id: Option<String>,
    request: Option<Text<'a>>,
    tenant: Option<&'a str>,
    pool: &'a str,
    policy: &'a str,
    model: Option<Text<'a>>,
    api: &'a str,
    stream: bool,
    /// Tokens that a block stands for.
    block_tokens: usize,
    hash_ids: &'a [u64],
    /// No candidate was believed to hold anything of it.
    cold: bool,
    endpoint: Option<&'a str>,
    columns: &'a [Column],
    candidates: &'a [Considered],
    /// Of so many.
    candidates_total: usize,
    attempts: u32,
    status: u16,
    trouble: Option<&'a str>,
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    output_tokens: Option<u32>,
    decision_us: Option<f64>,
    ttfb_ms: Option<f64>,
    total_ms: Option<f64>,
}

impl Noted {
    /// The line, with its end, of a request of which the access log says so much.
    pub(crate) fn line(&self, of: &access_log::Line<'_>, usage: Option<Usage>) -> Vec<u8> {
        let block_tokens = self.pool.rules.block.tokens();
        let prompt_tokens = usage.map(|usage| usage.prompt_tokens);
        let in_blocks = (self.hashes.len() * block_tokens) as u64;
        let output_tokens = usage.and_then(|usage| usage.completion_tokens);
        let line = Line {
            timestamp: millis_since_1970(of.time),
            input_length: prompt_tokens.map_or(in_blocks, u64::from),
            output_length: output_tokens.unwrap_or(1),
            session_id: self.session.map(|session| format!("{session:016x}")),
            request: of.request_id,
            tenant: of.tenant,
            pool: &self.pool.config.name,
            policy: self.pool.rules.policy.name(),
            model: self.model.as_deref().map(|model| Text(model.as_bytes())),
            api: of.api,
            stream: self.stream,
            block_tokens,
            hash_ids: &self.hashes,
            cold: self.cold,
            endpoint: of.endpoint,
            columns: &self.columns,
            candidates: &self.considered,
            candidates_total: self.candidates,
            attempts: of.attempts,
            status: of.status,
            trouble: of.trouble,
            prompt_tokens,
            cached_tokens: usage.and_then(|usage| usage.cached_tokens),
            output_tokens,
            decision_us: of.decision_us.map(|time| time.as_nanos() as f64 / 1e3),
            ttfb_ms: of.ttfb_ms.map(in_millis),
            total_ms: of.total_ms.map(in_millis),
        };
        let mut bytes = Vec::with_capacity(LINE_BYTES);
        // Nothing in a line can fail: no map with keys that are no text, no writer but memory.
        let _ = serde_json::to_writer(&mut bytes, &line);
        bytes.push(b'\n');
        bytes
    }
}

fn millis_since_1970(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, in_millis)
}

/// To the microsecond.
fn in_millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
