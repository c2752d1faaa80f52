//! Names that end up in labels and logs, names of models, and what may be named once only.

use std::collections::HashMap;
use std::hash::Hash;

use crate::EndpointName;
use crate::defaults::MODEL_NAME_BYTES_MAX;
use crate::faults::Reason;
use crate::read::form::Text;
use crate::read::{Placed, Reader};

/// A name that is safe in a label: of an endpoint, a pool or a tenant.
pub(super) const NAME: Text<EndpointName> = Text {
    wanted: "1 to 63 characters of A-Z a-z 0-9 . _ -",
    pattern: "^[A-Za-z0-9._-]{1,63}$",
    read: EndpointName::new,
    show: EndpointName::to_string,
};

/// The name of a model, as clients and engines write it.
pub(super) const MODEL: Text<String> =
    Text { wanted: "1 to 256 bytes of text", pattern: "^.{1,256}$", read: model, show: String::clone };

fn model(text: &str) -> Result<String, Reason> {
    if (1..=MODEL_NAME_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(Reason::text(text, format_args!("1 to {MODEL_NAME_BYTES_MAX} bytes of text")))
}

/// Adds a fault for each value that came before. `reason` is made of the repetition and the path of the first.
pub(super) fn refuse_repeated<T, K: Eq + Hash>(
    reader: &mut Reader<'_>,
    values: impl IntoIterator<Item = Placed<T>>,
    key: impl Fn(&T) -> K,
    reason: impl Fn(&T, &str) -> Reason,
) {
    let mut first: HashMap<K, String> = HashMap::new();
    for placed in values {
        let key = key(&placed.value);
        match first.get(&key) {
            Some(path) => {
                let reason = reason(&placed.value, path);
                reader.fault_of(&placed, reason);
            }
            None => {
                first.insert(key, placed.path);
            }
        }
    }
}
