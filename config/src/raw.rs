//! The file as written: YAML to keys and texts, each with its line and column. Nothing is interpreted here.
//!
//! Every value is read as text, so that a wrong one is a fault among others and not the end of the reading.
//! What ends it is broken structure: not YAML, an unknown or repeated key, a list where a value belongs.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_path_to_error::{Path as KeyPath, Segment};
use serde_saphyr::{Error, MergeKeyPolicy, MessageFormatter, Options, Spanned, UserMessageFormatter};

use crate::defaults::{FILE_BYTES_MAX, FOUND_CHARS_MAX};
use crate::faults::{Fault, Faults, Reason};

/// One value as written; nothing where the key is absent or has no value.
pub(crate) type Text = Option<Spanned<String>>;
/// A list as written, each item with its place.
pub(crate) type List<T> = Option<Spanned<Vec<Spanned<T>>>>;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawConfig {
    pub(crate) listeners: List<RawListener>,
    pub(crate) admin: Text,
    pub(crate) policy: Text,
    pub(crate) weights: Option<Spanned<RawWeights>>,
    pub(crate) match_length_weight: Text,
    pub(crate) seed: Text,
    pub(crate) response_headers: Text,
    pub(crate) endpoints: List<RawEndpoint>,
    pub(crate) index: Option<RawIndex>,
    pub(crate) load: Option<RawLoad>,
    pub(crate) limits: Option<RawLimits>,
    pub(crate) timeouts: Option<RawTimeouts>,
    pub(crate) drain: Text,
}

/// The names of the scorers.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawWeights {
    pub(crate) prefix: Text,
    pub(crate) queue: Text,
    pub(crate) kv: Text,
    pub(crate) no_hit_lru: Text,
    pub(crate) running: Text,
    pub(crate) in_flight: Text,
    pub(crate) token_load: Text,
    pub(crate) lora: Text,
    pub(crate) session: Text,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawListener {
    pub(crate) address: Text,
    pub(crate) protocol: Text,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawEndpoint {
    pub(crate) name: Text,
    pub(crate) url: Text,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawIndex {
    pub(crate) tokenizer: Text,
    pub(crate) block_tokens: Text,
    pub(crate) capacity_blocks: Text,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawLoad {
    pub(crate) scrape_interval: Text,
    pub(crate) scrape_timeout: Text,
    pub(crate) stale_after: Text,
    pub(crate) page_bytes_max: Text,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawLimits {
    pub(crate) body_bytes_max: Text,
    pub(crate) bodies_bytes_max: Text,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawTimeouts {
    pub(crate) request_body: Text,
    pub(crate) connect: Text,
    pub(crate) first_byte: Text,
    pub(crate) idle: Text,
    pub(crate) client_write: Text,
    pub(crate) upstream_idle: Text,
    pub(crate) keep_alive: Text,
}

/// A file's text for [`crate::load`]: at most [`FILE_BYTES_MAX`], UTF-8.
///
/// Errors: one fault, of the file as a whole.
pub fn read_file(path: &Path) -> Result<String, Faults> {
    let fault = |reason| Faults::from(of_file(&path.display().to_string(), reason));
    let unread = |error| fault(Reason::thing(error, "a file that can be read"));
    let bytes = read_bounded(path).map_err(unread)?;
    check_length(bytes.len()).map_err(fault)?;
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        fault(Reason::thing(format_args!("a byte that is not UTF-8 at offset {offset}"), "UTF-8"))
    })
}

/// A file's bytes; one more than [`FILE_BYTES_MAX`] of one that is longer.
pub(crate) fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(room).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the structure of `text`. Error: the first fault of structure.
pub(crate) fn parse(name: &str, text: &str) -> Result<RawConfig, Fault> {
    check_length(text.len()).map_err(|reason| of_file(name, reason))?;
    let mut path = String::new();
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            path = keys(error.path());
            error.into_inner()
        })
    });
    read.map(Option::unwrap_or_default).map_err(|error| structural(name, path, &error))
}

fn check_length(bytes: usize) -> Result<(), Reason> {
    if bytes <= FILE_BYTES_MAX {
        return Ok(());
    }
    Err(Reason::thing("a longer file", format_args!("at most {FILE_BYTES_MAX} bytes")))
}

fn of_file(name: &str, reason: Reason) -> Fault {
    Fault { place: name.to_owned(), path: String::new(), reason }
}

/// The reader's own budget bounds depth, aliases and documents; two documents may begin, so that the second
/// is told.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_documents: 2 },
        merge_keys: MergeKeyPolicy::Error,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn structural(name: &str, path: String, error: &Error) -> Fault {
    let reason = match error {
        Error::SerdeUnknownField { expected, .. } => Reason::thing("an unknown key", one_of(expected)),
        Error::DuplicateMappingKey { key: Some(key), .. } => Reason::text(key, "each key once"),
        Error::MultipleDocuments { .. } => Reason::thing("a second document", "one"),
        Error::Unexpected { expected, .. } => Reason::thing("another kind of value", kind(expected)),
        _ => Reason::reader(&UserMessageFormatter.format_message(error)),
    };
    let place = error
        .location()
        .map_or_else(|| name.to_owned(), |at| format!("{name}:{}:{}", at.line(), at.column()));
    Fault { place, path, reason }
}

/// The reader names what it wanted in terms of its events.
fn kind(event: &str) -> &str {
    match event {
        "mapping start" => "keys and values",
        "sequence start" => "a list",
        "string scalar" => "a single value",
        other => other,
    }
}

/// `a, b or c`.
pub(crate) fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// `endpoints[0].url`, without the `value` that the reader of positions puts around each value.
fn keys(path: &KeyPath) -> String {
    let mut keys = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } if key == "value" => {}
            Segment::Map { key } => {
                keys.push_str(if keys.is_empty() { "" } else { "." });
                keys.extend(key.chars().take(FOUND_CHARS_MAX).flat_map(char::escape_debug));
            }
            Segment::Seq { index } => keys.push_str(&format!("[{index}]")),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Write;

    use super::*;

    fn written(bytes: &[u8]) -> Result<String, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        read_file(file.path()).map_err(|faults| faults.iter().next().unwrap().reason.to_string())
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        assert_eq!(written(b"seed: 1\n"), Ok("seed: 1\n".to_owned()));
        assert_eq!(written(&vec![b' '; FILE_BYTES_MAX]).map(|text| text.len()), Ok(FILE_BYTES_MAX));
        let too_long = written(&vec![b' '; FILE_BYTES_MAX + 1]);
        assert_eq!(too_long, Err("found a longer file, wanted at most 1048576 bytes".to_owned()));
    }

    #[test]
    fn a_file_that_is_not_text_is_a_fault() {
        let reason = "found a byte that is not UTF-8 at offset 6, wanted UTF-8";
        assert_eq!(written(b"seed: \xff"), Err(reason.to_owned()));
    }

    #[test]
    fn a_file_that_is_absent_is_a_fault_of_its_name() {
        let faults = read_file(Path::new("no/such.yaml")).unwrap_err().to_string();
        assert!(faults.starts_with("no/such.yaml: found No such file"), "{faults}");
        assert!(faults.ends_with(", wanted a file that can be read"), "{faults}");
    }

    #[test]
    fn names_are_listed_as_a_sentence() {
        for (names, sentence) in
            [(&[][..], ""), (&["a"], "a"), (&["a", "b"], "a or b"), (&["a", "b", "c"], "a, b or c")]
        {
            assert_eq!(one_of(names), sentence);
        }
    }
}
