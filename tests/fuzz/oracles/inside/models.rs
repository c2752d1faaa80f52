//! Lists of models: what is read of one is what serde_json reads, each entry byte for byte.

use std::time::Instant;

use bytes::Bytes;

use super::json::{Members, elements};
use crate::endpoints::model_list::ModelList;

/// Runs the oracle. Panics where it does not hold.
pub fn run(data: &[u8]) {
    let page = Bytes::copy_from_slice(data);
    let read = ModelList::read(page, Instant::now());
    let Some(members) = Members::of(data) else {
        // No JSON, or a key with half a character, which serde_json refuses and a client may be shown.
        assert!(read.is_err() || data.contains(&b'\\'), "read what is no JSON");
        return;
    };
    let wanted = members
        .last("data")
        .and_then(elements)
        .and_then(|list| list.into_iter().map(Wanted::of).collect::<Option<Vec<_>>>());
    // Half a character again.
    let Some(wanted) = wanted else {
        assert!(read.is_err() || data.contains(&b'\\'), "read what is no list");
        return;
    };
    let read = read.expect("serde_json reads it");
    assert_eq!(read.entries().len(), wanted.len());
    for (entry, wanted) in read.entries().iter().zip(&wanted) {
        assert_eq!((&*entry.id, entry.is_adapter), (wanted.id.as_str(), wanted.is_adapter));
        assert_eq!(entry.raw, wanted.raw.as_bytes());
        assert_eq!(&entry.raw[entry.id_at.clone()], wanted.id_raw.as_bytes());
        assert!(read.entry(&wanted.id).is_some_and(|found| found.id == entry.id));
    }
}

struct Wanted<'a> {
    raw: &'a str,
    id: String,
    id_raw: &'a str,
    is_adapter: bool,
}

impl<'a> Wanted<'a> {
    fn of(raw: &'a str) -> Option<Self> {
        let members = Members::of(raw.as_bytes())?;
        let id_raw = members.last("id")?;
        let is_adapter = members.last("parent").is_some_and(|parent| parent.starts_with('"'));
        Some(Self { raw, id: serde_json::from_str(id_raw).ok()?, id_raw, is_adapter })
    }
}
