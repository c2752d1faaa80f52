//! Bodies that the router edits: serde_json reads the edit and nothing else that has changed.
//!
//! The first byte chooses what is edited, `1` the model, `2` the salt, `3` both; the rest is the body.

use bytes::Bytes;
use picker::read::Body;

use super::json::Members;
use crate::request::edit::{Edits, edited};

const MODEL: &str = "org/engine's \"own\"\n";
const SALT: &str = "0123456789abcdef";

/// Runs the oracle. Panics where it does not hold.
pub fn run(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else { return };
    let (model, salt) = ((first & 1 != 0).then_some(MODEL), (first & 2 != 0).then_some(SALT));
    let body = Bytes::copy_from_slice(body);
    let Ok(read) = Body::read(&body) else { return };
    let after = edited(&body, &read, Edits { model, salt });
    let text = |body: &Bytes| body.slice(body.strip_prefix("\u{feff}".as_bytes()).map_or(0, |_| 3)..);
    let (before_text, after_text) = (text(&body), text(&after));
    let Some(before) = Members::of(&before_text) else { return };
    let after = Members::of(&after_text).expect("an edit leaves JSON").0;
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let (model, salt) = (model.map(quoted), salt.map(quoted));
    let mut wanted = before.0;
    if let Some(model) = &model
        && let Some((_, value)) = wanted.iter_mut().rev().find(|(key, _)| key == "model")
    {
        *value = model;
    }
    if let Some(salt) = &salt {
        match wanted.iter_mut().rev().find(|(key, _)| key == "cache_salt") {
            Some((_, value)) if *value == "null" => *value = salt,
            Some(_) => {}
            None => wanted.insert(0, ("cache_salt".to_owned(), salt)),
        }
    }
    assert_eq!(after, wanted);
}
