//! The only edits of a client's body: the model's name in place of an alias, and a tenant's `cache_salt`.
//!
//! An engine must get what the client wrote, and members that nobody here knows have to survive. So no body is written
//! anew: a span of its bytes is replaced, or a member put right behind the opening brace, and every other byte stays. Of
//! duplicate members the last is edited, as the engine reads the last.

use std::ops::Range;

use bytes::Bytes;
use picker::read::{Body, Member};

/// What is to stand in a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edits<'a> {
    /// The model that an engine is asked for. Nothing happens to a body without a model.
    pub(crate) model: Option<&'a str>,
    /// A tenant's salt, for a body that has none or null. vLLM 0.32 takes 1 to 128 characters without `@`, `/`, `\` and NUL,
    /// and takes null for none (`entrypoints/generate/base/protocol.py`, `validate_cache_salt`).
    pub(crate) salt: Option<&'a str>,
}

/// A span of the body and what stands there afterwards.
struct Change {
    at: Range<usize>,
    to: Vec<u8>,
}

/// The body with the edits made; the very same where there are none. `read` is what was read of `body`. O(body), one
/// allocation of its size.
pub(crate) fn edited(body: &Bytes, read: &Body<'_>, edits: Edits<'_>) -> Bytes {
    let changes =
        [edits.model.and_then(|model| rename(read, model)), edits.salt.and_then(|salt| salted(read, salt))];
    let mut changes: Vec<_> = changes.into_iter().flatten().collect();
    if changes.is_empty() {
        return body.clone();
    }
    changes.sort_by_key(|change| change.at.start);
    let more: usize = changes.iter().map(|change| change.to.len()).sum();
    let mut out = Vec::with_capacity(body.len() + more);
    let mut from = 0;
    for Change { at, to } in changes {
        out.extend_from_slice(body.get(from..at.start).unwrap_or_default());
        out.extend_from_slice(&to);
        from = at.end;
    }
    out.extend_from_slice(body.get(from..).unwrap_or_default());
    out.into()
}

fn rename(read: &Body<'_>, model: &str) -> Option<Change> {
    Some(Change { at: read.span(Member::Model)?, to: quoted(model) })
}

fn salted(read: &Body<'_>, salt: &str) -> Option<Change> {
    let Some(value) = read.member(Member::CacheSalt) else {
        let comma = if read.is_empty() { "" } else { "," };
        let to = [br#""cache_salt":"#, quoted(salt).as_slice(), comma.as_bytes()].concat();
        return Some(Change { at: read.inside()..read.inside(), to });
    };
    // Any other value is the client's own, or what the engine refuses.
    (value == b"null").then_some(Change { at: read.span(Member::CacheSalt)?, to: quoted(salt) })
}

fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn edit(text: &str, model: Option<&str>, salt: Option<&str>) -> String {
        let body = Bytes::copy_from_slice(text.as_bytes());
        let edited = edited(&body, &Body::read(&body).unwrap(), Edits { model, salt });
        String::from_utf8(edited.to_vec()).unwrap()
    }

    #[test]
    fn a_model_is_renamed_where_it_stands() {
        for (name, text, wanted) in [
            ("plain", r#"{"model":"a","x":1}"#, r#"{"model":"b\"é","x":1}"#),
            ("last", r#"{"x":1.50, "model" : "a" }"#, r#"{"x":1.50, "model" : "b\"é" }"#),
            ("the last of two", r#"{"model":"a","model":"c"}"#, r#"{"model":"a","model":"b\"é"}"#),
            ("an escaped key", r#"{"mod\u0065l":"a"}"#, r#"{"mod\u0065l":"b\"é"}"#),
            ("an escaped value", r#"{"model":"\u0061"}"#, r#"{"model":"b\"é"}"#),
            (
                "an inner one stays",
                r#"{"x":{"model":"a"},"model":"a"}"#,
                r#"{"x":{"model":"a"},"model":"b\"é"}"#,
            ),
            ("none", r#"{"x":1}"#, r#"{"x":1}"#),
            ("no string", r#"{"model":null}"#, r#"{"model":"b\"é"}"#),
            ("behind a mark of order", "\u{feff} {\"model\":\"a\"}\n", "\u{feff} {\"model\":\"b\\\"é\"}\n"),
        ] {
            assert_eq!(edit(text, Some("b\"é"), None), wanted, "{name}");
        }
    }

    #[test]
    fn a_salt_is_put_where_there_is_none() {
        for (name, text, wanted) in [
            ("plain", r#"{"x":1}"#, r#"{"cache_salt":"s","x":1}"#),
            ("white space", "{ \"x\":1 }", "{\"cache_salt\":\"s\", \"x\":1 }"),
            ("empty", "{}", r#"{"cache_salt":"s"}"#),
            ("empty with white space", "{ \n}", "{\"cache_salt\":\"s\" \n}"),
            ("a mark of order and white space", "\u{feff}\t{} ", "\u{feff}\t{\"cache_salt\":\"s\"} "),
            ("null", r#"{"x":1,"cache_salt": null }"#, r#"{"x":1,"cache_salt": "s" }"#),
            ("null under an escaped key", r#"{"cache\u005fsalt":null}"#, r#"{"cache\u005fsalt":"s"}"#),
            ("the client's own", r#"{"cache_salt":"c"}"#, r#"{"cache_salt":"c"}"#),
            ("what the engine refuses", r#"{"cache_salt":""}"#, r#"{"cache_salt":""}"#),
            ("another such", r#"{"cache_salt":7}"#, r#"{"cache_salt":7}"#),
            ("an inner one", r#"{"x":{"cache_salt":"c"}}"#, r#"{"cache_salt":"s","x":{"cache_salt":"c"}}"#),
        ] {
            assert_eq!(edit(text, None, Some("s")), wanted, "{name}");
        }
    }

    #[test]
    fn both_edits_in_either_order() {
        for (text, wanted) in [
            (r#"{"model":"a","x":1}"#, r#"{"cache_salt":"s","model":"b","x":1}"#),
            (r#"{"cache_salt":null,"model":"a"}"#, r#"{"cache_salt":"s","model":"b"}"#),
            (r#"{"model":"a","cache_salt":null}"#, r#"{"model":"b","cache_salt":"s"}"#),
        ] {
            assert_eq!(edit(text, Some("b"), Some("s")), wanted, "{text}");
        }
        let body = Bytes::from_static(br#"{"model":"a"}"#);
        let same = edited(&body, &Body::read(&body).unwrap(), Edits::default());
        assert_eq!(same.as_ptr(), body.as_ptr(), "no edit, no copy");
    }

    /// A body as text: members in some order, some of them twice, escapes and white space anywhere.
    fn bodies() -> impl Strategy<Value = String> {
        let key = prop_oneof![
            Just(r#""model""#.to_owned()),
            Just(r#""mo\u0064el""#.to_owned()),
            r#""[a-c]{1,3}""#,
        ];
        let salt = prop_oneof![Just(r#""cache_salt""#), Just(r#""cache\u005fsalt""#)];
        let value = prop_oneof![
            r#""([a-z]|\\n|\\"|\\u00e9|é){0,9}""#,
            Just("null".to_owned()),
            Just("-1.50e3".to_owned()),
            Just(r#"{"model":[{"cache_salt":null}]}"#.to_owned()),
        ];
        let space = || "[ \n\t]{0,2}";
        let member = (space(), key, space(), value.clone(), space());
        let salted = proptest::option::of((salt, value, any::<proptest::sample::Index>()));
        let members = proptest::collection::vec(member, 0..6);
        let mark = prop_oneof![Just(""), Just("\u{feff}")];
        (mark, space(), members, salted, space()).prop_map(|(mark, before, members, salt, after)| {
            let text = |(a, key, b, value, c)| format!("{a}{key}{b}:{value}{c}");
            let mut members: Vec<_> = members.into_iter().map(text).collect();
            if let Some((key, value, place)) = salt {
                members.insert(place.index(members.len() + 1), format!("{key}:{value}"));
            }
            format!("{mark}{before}{{{}{after}}}{after}", members.join(","))
        })
    }

    fn parsed(text: &str) -> serde_json::Map<String, Value> {
        serde_json::from_str(text.trim_start_matches('\u{feff}')).unwrap()
    }

    proptest! {
        /// The engine sees the edits and nothing else, and no other byte has moved.
        #[test]
        fn nothing_but_the_edits_changes(text in bodies(), model in r#"[a-z/"\\é\n]{0,6}"#, salt in "[a-f0-9]{1,9}") {
            let out = edit(&text, Some(&model), Some(&salt));
            let (mut before, mut after) = (parsed(&text), parsed(&out));
            let own = before.remove("cache_salt").filter(|own| !own.is_null());
            let is_own = own.is_some();
            prop_assert_eq!(after.remove("cache_salt"), Some(own.unwrap_or(Value::from(salt.as_str()))));
            let had_model = before.remove("model").is_some();
            prop_assert_eq!(after.remove("model"), had_model.then(|| Value::from(model.as_str())));
            prop_assert_eq!(before, after);

            // Both edits undone by bytes.
            let blank = |text: &str| {
                let body = Body::read(text.as_bytes()).unwrap();
                let (model, salt) = (body.span(Member::Model), body.span(Member::CacheSalt));
                let mut spans: Vec<_> = model.into_iter().chain(salt.filter(|_| !is_own)).collect();
                spans.sort_by_key(|span| span.start);
                let mut text = text.to_owned();
                spans.into_iter().rev().for_each(|span| text.replace_range(span, "_"));
                text.replacen(r#"{"cache_salt":_"#, "{", 1).replacen("{,", "{", 1)
            };
            prop_assert_eq!(blank(&out), blank(&text));
        }
    }
}
