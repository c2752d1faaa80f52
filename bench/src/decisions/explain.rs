//! The command `explain`: why a request of a decision log went where it went, in words, and what came of it.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use picker::policy::Policy;

use super::{Candidate, Column, Record};
use crate::table;
use crate::trace::lines::{BadLines, Loaded, TraceFileError};

/// Why a request went where it went
///
/// Reads a decision log (`decision_log` of the configuration), and where the request is not in it the older ones beside it:
/// LOG.1, LOG.2 and so on. Lines that are cut or damaged are left out.
///
/// Example: prefixroute explain decisions.jsonl --request 7f3a
#[derive(Clone, Debug, clap::Args)]
pub struct ExplainArgs {
    /// A decision log
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// The request's x-request-id
    #[arg(long, value_name = "ID", required_unless_present = "last")]
    pub request: Option<String>,
    /// The last N requests in place of one
    #[arg(long, value_name = "N", conflicts_with = "request")]
    pub last: Option<usize>,
}

/// Why nothing is explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] TraceFileError),
    /// No line is of that request.
    #[error("{log}: found no request {request:?} among {records}{skipped}{older}")]
    Unknown {
        /// The file.
        log: String,
        /// What was asked for.
        request: String,
        /// Requests that all files have.
        records: usize,
        /// How many older files were looked at, in words.
        older: String,
        /// What was left out, in words.
        skipped: String,
    },
    /// The text could not be written.
    #[error("explain: {0}")]
    Io(#[from] io::Error),
}

impl ExplainError {
    /// Whether the operator gave something wrong; else the command failed while it ran.
    pub const fn is_usage(&self) -> bool {
        !matches!(self, Self::Io(_))
    }
}

/// Reads the log and tells of the requests that were asked for.
pub fn run(args: &ExplainArgs, out: &mut dyn Write) -> Result<(), ExplainError> {
    let mut texts: Vec<String> = Vec::new();
    let (mut records, mut bad, mut older) = (0, 0, 0);
    loop {
        let path = if older == 0 { args.log.clone() } else { numbered(&args.log, older) };
        if older > 0 && !path.exists() {
            break;
        }
        let Loaded { requests, skipped } = match super::read(&path, BadLines::Skip) {
            // A file that was begun a moment ago.
            Err(TraceFileError::Empty { .. }) if numbered(&args.log, older + 1).exists() => Loaded::default(),
            read => read?,
        };
        let chosen: Vec<&Record> = match &args.request {
            Some(id) => requests.iter().filter(|record| record.request.as_ref() == Some(id)).collect(),
            None => requests.iter().skip(requests.len().saturating_sub(args.last.unwrap_or(1))).collect(),
        };
        texts = chosen.into_iter().map(in_words).collect();
        (records, bad) = (records + requests.len(), bad + skipped.lines);
        if !texts.is_empty() {
            break;
        }
        older += 1;
    }
    if texts.is_empty() {
        let counted = |count, of: String| if count == 0 { String::new() } else { of };
        return Err(ExplainError::Unknown {
            log: args.log.display().to_string(),
            request: args.request.clone().unwrap_or_default(),
            records,
            skipped: counted(bad, format!(" and {bad} bad lines")),
            older: counted(older - 1, format!(" in it and {} older", older - 1)),
        });
    }
    out.write_all(texts.join("\n").as_bytes())?;
    Ok(out.flush()?)
}

/// An older file of a log.
fn numbered(log: &Path, number: usize) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// One request in words: what it was, what was weighed, why, and what came of it.
pub fn in_words(record: &Record) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", what_it_was(record));
    if !record.candidates.is_empty() {
        let _ = write!(text, "\n{}", weighed(record));
    }
    let _ = writeln!(text, "\nwhy: {}", why(record));
    let _ = writeln!(text, "came: {}", what_came(record));
    text
}

fn what_it_was(record: &Record) -> String {
    let id = record.request.as_deref().unwrap_or("without an id");
    let of = record.tenant.as_ref().map_or(String::new(), |tenant| format!(", tenant {tenant}"));
    let model = record.model.as_deref().unwrap_or("none named");
    let stream = if record.stream { ", a stream" } else { "" };
    format!(
        "request {id} at {:.3} s since 1970{of}: {}{stream}, model {model}, pool {}\nprompt: {}",
        record.timestamp / 1e3,
        record.api,
        record.pool,
        prompt(record)
    )
}

fn prompt(record: &Record) -> String {
    let (blocks, size) = (record.hash_ids.len(), record.block_tokens);
    let counted =
        record.prompt_tokens.map_or(String::new(), |tokens| format!("; the engine counted {tokens} tokens"));
    match blocks {
        0 => format!("less than a block of {size} tokens, or none that could be read{counted}"),
        1 => format!("a block of up to about {size} tokens{counted}"),
        _ => format!("{blocks} blocks of about {size} tokens, the last full or not{counted}"),
    }
}

/// A table: each candidate's match, what each figure came to in its total, and the total.
fn weighed(record: &Record) -> String {
    let blocks = record.hash_ids.len();
    let named = |column: &Column| format!("{} x {}", column.name, number(column.weight));
    let head = ["endpoint", "believed"].map(str::to_owned).into_iter();
    let head = head.chain(record.columns.iter().map(named)).chain(["total".to_owned()]);
    let row = |candidate: &Candidate| {
        let mark = if record.endpoint.as_ref() == Some(&candidate.endpoint) { " <-" } else { "" };
        let parts = record.columns.iter().zip(&candidate.figures).map(|(column, figure)| match figure {
            Some(figure) => number(column.weight * figure),
            None => "left out".to_owned(),
        });
        [candidate.endpoint.clone() + mark, format!("{}/{blocks}", candidate.matched)]
            .into_iter()
            .chain(parts)
            .chain([number(candidate.total)])
            .collect()
    };
    let rows: Vec<Vec<String>> =
        [head.collect()].into_iter().chain(record.candidates.iter().map(row)).collect();
    let more = record.candidates_total.saturating_sub(record.candidates.len());
    let more = if more == 0 { String::new() } else { format!("and {more} that rank lower\n") };
    table::format_lines(&rows) + &more
}

/// The reason, in a sentence or three.
fn why(record: &Record) -> String {
    let Some(first) = record.candidates.first() else {
        return "nobody could be chosen".to_owned();
    };
    let mut reason = first_choice(record, first);
    let went = record.endpoint.as_deref().unwrap_or("nowhere");
    if went != first.endpoint {
        let place = record.candidates.iter().position(|candidate| candidate.endpoint == went);
        let place = place.map_or("ranked lower".to_owned(), |place| format!("is number {}", place + 1));
        let _ = write!(
            reason,
            ". It went to {went}, which {place}: those before it took no connection, were busy or had no place ({} tried)",
            record.attempts
        );
    }
    reason
}

fn first_choice(record: &Record, first: &Candidate) -> String {
    let (policy, name) = (&record.policy, &first.endpoint);
    if first.preferred {
        return format!(
            "{name} was due for a request that looks whether it works, or what it holds: that goes before all totals"
        );
    }
    let Some(next) = record.candidates.get(1) else {
        return format!(
            "{name} was the only candidate: the others are down, left out, busy or full, or have no such model"
        );
    };
    let lead = first.total - next.total;
    match Policy::from_name(policy) {
        Some(Policy::RoundRobin) => {
            return format!("it was the turn of {name}: round-robin asks nothing else");
        }
        Some(Policy::Random) => return format!("{name} was drawn: random asks nothing else"),
        _ if lead == 0.0 => {
            return format!("{policy} had {name} and {} equal, and chance decided", next.endpoint);
        }
        Some(Policy::LeastQueue) => {
            return format!(
                "least-queue goes by requests that this router has in flight, and {name} had {} fewer than {}, by weight",
                number(lead),
                next.endpoint
            );
        }
        _ => {}
    }
    let mut parts: Vec<(&str, f64)> = record
        .columns
        .iter()
        .zip(first.figures.iter().zip(&next.figures))
        .filter_map(|(column, (one, other))| {
            Some((column.name.as_str(), column.weight * ((*one)? - (*other)?)))
        })
        .filter(|(_, part)| *part != 0.0)
        .collect();
    parts.sort_by(|(_, one), (_, other)| other.abs().total_cmp(&one.abs()));
    let parts: Vec<String> = parts.iter().map(|(name, part)| format!("{name} {}", signed(*part))).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    let held = match record.cold {
        // What it is believed to hold did not count.
        _ if policy == Policy::Sticky.name() => {
            "sticky has an order of endpoints for each session, or each beginning of a prompt, and passes over those that have too much in flight"
                .to_owned()
        }
        true => "nobody is believed to hold any of it".to_owned(),
        false => format!(
            "{name} is believed to hold {} of {} blocks, {} {}",
            first.matched,
            record.hash_ids.len(),
            next.endpoint,
            next.matched
        ),
    };
    format!("{held}; {policy} has {name} {} ahead of {}{parts}", number(lead), next.endpoint)
}

fn what_came(record: &Record) -> String {
    let ended = record.trouble.as_ref().map_or(String::new(), |trouble| format!(" ({trouble})"));
    let went = record.endpoint.as_deref().unwrap_or("nobody");
    let first = record.ttfb_ms.map_or("no byte".to_owned(), |ms| format!("its head after {} ms", number(ms)));
    format!(
        "status {}{ended} of {went}, {first}, ended after {} ms{}",
        record.status,
        number(record.total_ms),
        belief_beside_report(record)
    )
}

/// What was believed to be cached beside what the engine says was.
fn belief_beside_report(record: &Record) -> String {
    let (Some(cached), Some(prompt)) = (record.cached_tokens, record.prompt_tokens) else {
        return "; the engine did not say what it had cached".to_owned();
    };
    let went = record.candidates.iter().find(|one| Some(&one.endpoint) == record.endpoint.as_ref());
    let believed = went.map(|one| (u64::from(one.matched) * prompt) / (record.hash_ids.len() as u64).max(1));
    let believed =
        believed.map_or(String::new(), |tokens| format!(" (believed: about {})", tokens.min(prompt)));
    format!("; of {prompt} tokens {cached} were cached{believed}")
}

/// With as many digits as tell something.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 1.0 || size == 0.0 => 2,
        size if size >= 1e-3 => 4,
        // What is as good as nothing still tells which way it went.
        _ => return format!("{value:.0e}"),
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn signed(value: f64) -> String {
    if value > 0.0 { format!("+{}", number(value)) } else { number(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(endpoint: &str, matched: u32, figures: [f64; 2]) -> Candidate {
        Candidate {
            endpoint: endpoint.to_owned(),
            matched,
            total: 3.0 * figures[0] + 2.0 * figures[1],
            preferred: false,
            figures: figures.map(Some).to_vec(),
        }
    }

    fn record() -> Record {
        let column = |name: &str, weight| Column { name: name.to_owned(), weight };
        Record {
            timestamp: 1500.0,
            request: Some("r-1".to_owned()),
            pool: "default".to_owned(),
            policy: "prefix".to_owned(),
            model: Some("m".to_owned()),
            api: "chat".to_owned(),
            block_tokens: 64,
            hash_ids: (0..14).collect(),
            endpoint: Some("a".to_owned()),
            columns: vec![column("prefix", 3.0), column("queue", 2.0)],
            candidates: vec![candidate("a", 12, [0.85, 0.5]), candidate("b", 0, [0.0, 1.0])],
            candidates_total: 3,
            attempts: 1,
            status: 200,
            prompt_tokens: Some(910),
            cached_tokens: Some(768),
            ttfb_ms: Some(34.25),
            total_ms: 120.0,
            ..Record::default()
        }
    }

    #[test]
    fn a_request_is_told_in_words() {
        assert_eq!(
            in_words(&record()),
            "request r-1 at 1.500 s since 1970: chat, model m, pool default\n\
             prompt: 14 blocks of about 64 tokens, the last full or not; the engine counted 910 tokens\n\n\
             endpoint   believed   prefix x 3   queue x 2   total\n\
             a <-          12/14         2.55           1    3.55\n\
             b              0/14            0           2       2\n\
             and 1 that rank lower\n\n\
             why: a is believed to hold 12 of 14 blocks, b 0; prefix has a 1.55 ahead of b (prefix +2.55, queue -1)\n\
             came: status 200 of a, its head after 34.25 ms, ended after 120 ms; of 910 tokens 768 were cached (believed: about 780)\n"
        );
    }

    #[test]
    fn each_reason_has_its_words() {
        let change = |change: fn(&mut Record)| {
            let mut record = record();
            change(&mut record);
            why(&record)
        };
        for (want, made) in [
            ("a was the only candidate", change(|it| it.candidates.truncate(1))),
            ("nobody could be chosen", change(|it| it.candidates.clear())),
            ("a was due for a request that looks", change(|it| it.candidates[0].preferred = true)),
            ("prefix had a and b equal", change(|it| it.candidates[1].total = it.candidates[0].total)),
            ("nobody is believed to hold any of it; ", change(|it| it.cold = true)),
            ("it was the turn of a", change(|it| it.policy = "round-robin".to_owned())),
            ("a was drawn", change(|it| it.policy = "random".to_owned())),
            ("sticky has an order of endpoints", change(|it| it.policy = "sticky".to_owned())),
            (
                "least-queue goes by requests that this router has in flight, and a had 1.55 fewer than b",
                change(|it| it.policy = "least-queue".to_owned()),
            ),
        ] {
            assert!(made.starts_with(want), "{made}");
        }
        let went = change(|it| (it.endpoint, it.attempts) = (Some("b".to_owned()), 2));
        assert!(went.contains("It went to b, which is number 2: those before it took no"), "{went}");
    }

    #[test]
    fn a_figure_that_is_nearly_nothing_is_not_shown_as_nothing() {
        for (value, want) in
            [(0.0, "0"), (1e-6, "1e-6"), (-2.4e-4, "-2e-4"), (0.001, "0.001"), (340.4, "340")]
        {
            assert_eq!(number(value), want);
        }
    }

    #[test]
    fn what_is_not_known_is_said() {
        let broken = Record {
            status: 502,
            trouble: Some("upstream_broke".to_owned()),
            ttfb_ms: None,
            cached_tokens: None,
            ..record()
        };
        let want = "status 502 (upstream_broke) of a, no byte, ended after 120 ms; the engine did not say what it had cached";
        assert_eq!(what_came(&broken), want);
    }
}
