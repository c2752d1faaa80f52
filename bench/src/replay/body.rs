//! Changes members of a request's body; all others stay as they are written, in their order.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::prompt::Api;

/// What is changed in every body that is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Bodies that say nothing of a stream ask for one, with usage at its end.
    pub stream: bool,
    /// Tokens of an answer at most.
    pub max_tokens: Option<u32>,
    /// Answers go on to that length, where the engine knows vLLM's `ignore_eos`.
    pub ignore_eos: bool,
    /// The model that is asked for.
    pub model: Option<String>,
    /// Joined to the body's `cache_salt`: what others sent is then not cached for it.
    pub salt: Option<String>,
}

/// A body and the API that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// By the member that holds the prompt; none where there is no such member.
    pub api: Option<Api>,
    /// The bytes to send.
    pub body: String,
}

impl Edits {
    /// Applies them. What is no JSON object is sent as it is.
    pub fn apply(&self, body: &str) -> Edited {
        let Ok(mut members) = serde_json::from_str::<Members<'_>>(body) else {
            return Edited { api: None, body: body.to_owned() };
        };
        let api = Api::of_members(|name| members.has(name));
        if let Some(model) = &self.model {
            members.set("model", model);
        }
        if let Some(tokens) = self.max_tokens {
            let name = length_member(api, &members);
            members.set(name, &tokens);
        }
        if self.ignore_eos {
            members.set("ignore_eos", &true);
        }
        if let Some(salt) = &self.salt {
            let own = members.text("cache_salt").map_or(String::new(), |own| own + "-");
            members.set("cache_salt", &(own + salt));
        }
        if self.stream && !members.has("stream") {
            members.ask_for_stream(api);
        }
        let body = serde_json::to_string(&members).unwrap_or_else(|_| body.to_owned());
        Edited { api, body }
    }
}

/// The member that bounds an answer.
fn length_member(api: Option<Api>, members: &Members<'_>) -> &'static str {
    match api {
        Some(Api::Responses) => "max_output_tokens",
        _ if members.has("max_completion_tokens") => "max_completion_tokens",
        _ => "max_tokens",
    }
}

/// The members of an object, in their order; duplicates too.
struct Members<'a>(Vec<(String, Cow<'a, RawValue>)>);

impl Members<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Of duplicates the last counts, to engines as well.
    fn text(&self, name: &str) -> Option<String> {
        let (_, value) = self.0.iter().rev().find(|(known, _)| known == name)?;
        serde_json::from_str(value.get()).ok()
    }

    /// Replaces a member, or adds it at the end.
    fn set(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        // Texts, numbers and truth values: it cannot fail.
        let Ok(value) = serde_json::value::to_raw_value(value).map(Cow::Owned) else { return };
        match self.0.iter_mut().rev().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// The stream of `/v1/responses` ends with its usage unasked, and takes no options.
    fn ask_for_stream(&mut self, api: Option<Api>) {
        self.set("stream", &true);
        if api != Some(Api::Responses) {
            self.set("stream_options", &StreamOptions { include_usage: true });
        }
    }
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value.as_ref())))
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
            members.push((name, Cow::Borrowed(value)));
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_set_where_they_stand_and_the_rest_keeps_its_bytes() {
        let stream = Edits { stream: true, ..Edits::default() };
        let length = Edits { max_tokens: Some(4), ..Edits::default() };
        let salt = Edits { salt: Some("r1".to_owned()), ..Edits::default() };
        let others = Edits { model: Some("m".to_owned()), ignore_eos: true, ..Edits::default() };
        for (shows, edits, body, want) in [
            (
                "a stream is asked for with usage",
                &stream,
                r#"{"messages":[ 1.50 ],"x":1}"#,
                r#"{"messages":[ 1.50 ],"x":1,"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            ("who says it already keeps it", &stream, r#"{"stream":false}"#, r#"{"stream":false}"#),
            ("responses take no options", &stream, r#"{"input":"a"}"#, r#"{"input":"a","stream":true}"#),
            ("a length in its place", &length, r#"{"max_tokens":9,"x":1}"#, r#"{"max_tokens":4,"x":1}"#),
            (
                "the newer name of it",
                &length,
                r#"{"messages":[],"max_completion_tokens":9}"#,
                r#"{"messages":[],"max_completion_tokens":4}"#,
            ),
            ("that of responses", &length, r#"{"input":"a"}"#, r#"{"input":"a","max_output_tokens":4}"#),
            ("a salt", &salt, "{}", r#"{"cache_salt":"r1"}"#),
            ("tenants stay apart under it", &salt, r#"{"cache_salt":"t"}"#, r#"{"cache_salt":"t-r1"}"#),
            ("model and end", &others, r#"{"model":"a"}"#, r#"{"model":"m","ignore_eos":true}"#),
            (
                "the last of duplicates",
                &others,
                r#"{"model":"a","model":"b"}"#,
                r#"{"model":"a","model":"m","ignore_eos":true}"#,
            ),
            ("no object", &others, "[1]", "[1]"),
        ] {
            assert_eq!(edits.apply(body).body, want, "{shows}");
        }
    }

    #[test]
    fn the_prompts_member_tells_the_api() {
        let api = |body| Edits::default().apply(body).api;
        assert_eq!(api(r#"{"messages":[]}"#), Some(Api::Chat));
        assert_eq!(api(r#"{"prompt":""}"#), Some(Api::Completions));
        assert_eq!(api(r#"{"input":""}"#), Some(Api::Responses));
        assert_eq!((api("{}"), api("nonsense")), (None, None));
    }
}
