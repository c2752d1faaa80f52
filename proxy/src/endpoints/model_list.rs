//! What an engine says that it serves: its `/v1/models`, models and adapters alike.
//!
//! Adapters come and go while an engine runs, and each replica has its own. So each endpoint's list is read again and
//! again, and kept as it was written: clients are shown an engine's own entries, with members that nobody here knows. Never
//! here: sockets, the choice of an endpoint.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use picker::read::json::{self, Broken};
use serde_json::value::RawValue;

/// Bytes of a list, and models in it.
pub(super) const LIST_BYTES_MAX: usize = 4 * 1024 * 1024;
pub(super) const MODELS_MAX: usize = 10_000;

/// Why an answer is no list of models. Holds no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoList {
    #[error("not JSON")]
    Json,
    #[error(
        "an odd list of models, wanted an object with an array `data` of objects that have a string `id`"
    )]
    Shape,
    #[error("over {MODELS_MAX} models")]
    TooMany,
}

/// The models of one endpoint, in its own order.
#[derive(Clone, Debug)]
pub(crate) struct ModelList {
    entries: Vec<Entry>,
    /// Places of entries by their id; of two with one id the first.
    by_id: HashMap<Box<str>, usize>,
    fresh_until: Instant,
}

/// A model as its engine lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its id, escapes resolved.
    pub(crate) id: Box<str>,
    /// The JSON object, byte for byte.
    pub(crate) raw: Bytes,
    /// Where in `raw` the value of `id` stands, quotes included: the last one, as it counts for Python.
    pub(crate) id_at: Range<usize>,
    /// An adapter on another model: vLLM and SGLang name that one in `parent`, which is null for a model.
    pub(crate) is_adapter: bool,
}

impl ModelList {
    /// Reads an answer, which is known until `fresh_until`. Errors: it is no such list, or too long. O(bytes), and no
    /// recursion.
    pub(crate) fn read(page: Bytes, fresh_until: Instant) -> Result<Self, NoList> {
        // What is passed on to clients has to be JSON; the scanner below takes some things that are not.
        serde_json::from_slice::<&RawValue>(&page).map_err(|_| NoList::Json)?;
        let mut entries = Vec::new();
        let mut too_many = false;
        let read = json::each_element(data(&page)?, |raw| {
            too_many = entries.len() == MODELS_MAX;
            if too_many {
                return Err(Broken { wanted: "fewer models" });
            }
            entries.push(Entry::read(page.slice_ref(raw)).ok_or(Broken { wanted: "a model" })?);
            Ok(())
        });
        match read {
            Ok(()) => Ok(Self::new(entries, fresh_until)),
            Err(_) => Err(if too_many { NoList::TooMany } else { NoList::Shape }),
        }
    }

    fn new(entries: Vec<Entry>, fresh_until: Instant) -> Self {
        let by_id =
            entries.iter().enumerate().rev().map(|(place, entry)| (entry.id.clone(), place)).collect();
        Self { entries, by_id, fresh_until }
    }

    /// The entry of a model. No allocation.
    pub(crate) fn entry(&self, id: &str) -> Option<&Entry> {
        self.entries.get(*self.by_id.get(id)?)
    }

    /// All entries, in the engine's order.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether the list is still taken for what the engine serves.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        now <= self.fresh_until
    }
}

impl Entry {
    /// Takes an object of valid JSON apart. `None`: it is no object, or its id is no string.
    fn read(raw: Bytes) -> Option<Self> {
        let (mut id, mut parent) = (None, None);
        json::each_member(&raw, |key, value| {
            if json::is_name(key, "id") {
                id = Some(value);
            } else if json::is_name(key, "parent") {
                parent = Some(value);
            }
            Ok(())
        })
        .ok()?;
        let id = id?;
        // From the end: what follows the id's value is the rest of the object.
        let start = id.as_ptr().addr() - raw.as_ptr().addr();
        let id_at = start..start + id.len();
        let is_adapter = parent.is_some_and(|parent| parent.starts_with(b"\""));
        Some(Self { id: unescaped(id)?.into(), id_at, is_adapter, raw })
    }
}

/// The array of entries.
fn data(page: &[u8]) -> Result<&[u8], NoList> {
    let page = page.trim_ascii_start();
    let mut data = None;
    let walked = json::each_member(page, |key, value| {
        if json::is_name(key, "data") {
            data = Some(value);
        }
        Ok(())
    });
    walked.ok().and(data).ok_or(NoList::Shape)
}

fn unescaped(raw: &[u8]) -> Option<String> {
    let mut text = Vec::with_capacity(raw.len());
    json::unescape(raw, |piece| text.extend_from_slice(piece)).ok()?;
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    const RECORDED: &str =
        include_str!("../../../tests/fixtures/vllm/http_variant/models_with_lora.response.http");

    fn read(page: &str) -> Result<ModelList, NoList> {
        ModelList::read(Bytes::copy_from_slice(page.as_bytes()), Instant::now())
    }

    #[test]
    fn a_recorded_list_reads_as_it_is() {
        let body = RECORDED.split_once("\r\n\r\n").unwrap().1;
        let list = read(body).unwrap();
        let ids: Vec<_> = list.entries().iter().map(|entry| (&*entry.id, entry.is_adapter)).collect();
        assert_eq!(ids, [("tiny-llama", false), ("alpha", true), ("beta", true)]);
        let raw: Vec<_> =
            list.entries().iter().map(|entry| std::str::from_utf8(&entry.raw).unwrap()).collect();
        assert_eq!(body, format!(r#"{{"object":"list","data":[{}]}}"#, raw.join(",")), "byte for byte");
        assert!(list.entry("beta").is_some() && list.entry("bet").is_none());
    }

    #[test]
    fn entries_keep_what_nobody_knows() {
        for (name, page, ids) in [
            ("empty", r#"{"object":"list","data":[]}"#, &[][..]),
            ("white space", " {\n\"data\" : [ { \"id\" : \"a\" } ] }\n", &["a"]),
            ("slashes and escapes", r#"{"data":[{"id":"org\/ad:1"},{"id":"\u00e9"}]}"#, &["org/ad:1", "é"]),
            ("an escaped key", r#"{"d\u0061ta":[{"\u0069d":"a"}]}"#, &["a"]),
            ("the last id counts", r#"{"data":[{"id":"a","id":"b"}]}"#, &["b"]),
            (
                "numbers of any form",
                r#"{"data":[{"x":1e400,"y":-0.0,"z":123456789012345678901,"id":"a"}]}"#,
                &["a"],
            ),
            ("ids within", r#"{"data":[{"permission":[{"id":"p"}],"id":"a"}]}"#, &["a"]),
            (
                "llama.cpp's further lists",
                r#"{"models":[{"name":"x"}],"data":[{"id":"a","meta":{}}]}"#,
                &["a"],
            ),
        ] {
            let list = read(page).unwrap();
            let found: Vec<_> = list.entries().iter().map(|entry| &*entry.id).collect();
            assert_eq!(found, ids, "{name}");
            for entry in list.entries() {
                let raw = std::str::from_utf8(&entry.raw).unwrap();
                assert!(page.contains(raw), "{name}");
                let id: String = serde_json::from_slice(&entry.raw[entry.id_at.clone()]).unwrap();
                assert_eq!(id, *entry.id, "{name}");
            }
        }
    }

    #[test]
    fn an_adapter_has_a_parent() {
        for (parent, is_adapter) in [
            (r#","parent":"base""#, true),
            (r#","parent":null"#, false),
            ("", false),
            (r#","parent":[]"#, false),
        ] {
            let list = read(&format!(r#"{{"data":[{{"id":"a"{parent}}}]}}"#)).unwrap();
            assert_eq!(list.entries()[0].is_adapter, is_adapter, "{parent}");
        }
    }

    #[test]
    fn odd_answers_are_no_lists() {
        let entries = |count: usize| format!(r#"{{"data":[{}]}}"#, vec![r#"{"id":"a"}"#; count].join(","));
        let (most, more) = (entries(MODELS_MAX), entries(MODELS_MAX + 1));
        let deep = format!(r#"{{"data":[{{"id":"a","x":{}{}}}]}}"#, "[".repeat(100_000), "]".repeat(100_000));
        for (name, page, wanted) in [
            ("nothing", "", Err(NoList::Json)),
            ("HTML", "<html>", Err(NoList::Json)),
            ("broken off", r#"{"data":[{"id":"a"}]"#, Err(NoList::Json)),
            ("what only the scanner takes", r#"{"data":[{"id":"a","x":tru}]}"#, Err(NoList::Json)),
            ("not UTF-8", "\u{fffd}", Err(NoList::Json)),
            ("an array", r#"[{"id":"a"}]"#, Err(NoList::Shape)),
            ("no data", r#"{"object":"list"}"#, Err(NoList::Shape)),
            ("an error", r#"{"detail":"Not Found"}"#, Err(NoList::Shape)),
            ("data that is no array", r#"{"data":{"id":"a"}}"#, Err(NoList::Shape)),
            ("entries that are no objects", r#"{"data":["a"]}"#, Err(NoList::Shape)),
            ("no id", r#"{"data":[{"name":"a"}]}"#, Err(NoList::Shape)),
            ("an id that is no string", r#"{"data":[{"id":7}]}"#, Err(NoList::Shape)),
            ("a lone surrogate", r#"{"data":[{"id":"\ud800"}]}"#, Err(NoList::Shape)),
            ("as many as there may be", &most, Ok(MODELS_MAX)),
            ("one more", &more, Err(NoList::TooMany)),
            ("deep", &deep, Ok(1)),
        ] {
            assert_eq!(read(page).map(|list| list.entries().len()), wanted, "{name}");
        }
        let latin = ModelList::read(Bytes::from_static(b"{\"data\":[{\"id\":\"\xe9\"}]}"), Instant::now());
        assert_eq!(latin.unwrap_err(), NoList::Json);
    }

    #[test]
    fn a_list_grows_old() {
        let now = Instant::now();
        let list = ModelList::read(Bytes::from_static(br#"{"data":[]}"#), now).unwrap();
        assert!(list.is_fresh(now) && !list.is_fresh(now + Duration::from_millis(1)));
    }
}
