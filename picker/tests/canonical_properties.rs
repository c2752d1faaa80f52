//! What holds for any conversation: one more turn keeps its blocks, and how it is written does not matter.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::decide::Decision;
use picker::read::Api;
use proptest::collection::vec;
use proptest::prelude::*;
use support::{chat, common, only, quoted, read};

/// A value as a client may write it: what is inside a string is settled, the rest is free.
#[derive(Clone, Debug)]
enum Json {
    Bare(&'static str),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// How to write it: numbers that pick the white space and the escapes, used in turn.
struct Pen {
    choices: Vec<u8>,
    used: usize,
    spaces: bool,
    escapes: bool,
    text: String,
}

impl Pen {
    fn next(&mut self) -> u8 {
        self.used += 1;
        self.choices[self.used % self.choices.len()]
    }

    fn space(&mut self) {
        if self.spaces {
            let space = ["", " ", "\n", "\t\r\n ", "   "][self.next() as usize % 5];
            self.text.push_str(space);
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            if self.escapes && self.next().is_multiple_of(3) {
                c.encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| self.text.push_str(&format!("\\u{unit:04x}")));
            } else {
                let quoted = quoted(&c.to_string());
                self.text.push_str(&quoted[1..quoted.len() - 1]);
            }
        }
        self.text.push('"');
    }

    fn write(&mut self, json: &Json) {
        self.space();
        match json {
            Json::Bare(text) => self.text.push_str(text),
            Json::Text(text) => self.string(text),
            Json::List(items) => self.series('[', ']', items, |pen, item| pen.write(item)),
            Json::Object(members) => self.series('{', '}', members, |pen, (key, value)| {
                pen.space();
                pen.string(key);
                pen.space();
                pen.text.push(':');
                pen.write(value);
            }),
        }
        self.space();
    }

    fn series<T>(&mut self, open: char, close: char, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.text.push(open);
        self.space();
        for (place, item) in items.iter().enumerate() {
            if place > 0 {
                self.text.push(',');
            }
            write(self, item);
        }
        self.text.push(close);
    }
}

fn written(json: &Json, choices: &[u8], spaces: bool, escapes: bool) -> String {
    let mut pen = Pen { choices: choices.to_vec(), used: 0, spaces, escapes, text: String::new() };
    pen.write(json);
    pen.text
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z ]{0,12}",
        2 => "[a-z]{100,400}",
        2 => any::<String>(),
        1 => Just("quote\" back\\slash / \u{0} \u{1F600} é \u{2028}".to_owned()),
    ]
}

fn string(text: &str) -> Json {
    Json::Text(text.to_owned())
}

fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    Json::Object(members.map(|(key, value)| (key.to_owned(), value)).to_vec())
}

/// Whether values may be JSON that counts as it is written, not as what it says: tools, tool calls, unknown parts.
type Verbatim = bool;

fn content(verbatim: Verbatim) -> impl Strategy<Value = Json> {
    let part = prop_oneof![
        4 => text().prop_map(|text| object([("type", string("text")), ("text", Json::Text(text))])),
        u32::from(verbatim) => "[a-z]{1,9}".prop_map(|id| {
            let input = Json::List(vec![Json::Bare("1"), Json::Bare("-2.5e3")]);
            object([("type", string("tool_use")), ("input", object([(id.as_str(), input)]))])
        }),
        u32::from(verbatim) => "[a-z]{1,9}".prop_map(|url| {
            object([("type", string("image_url")), ("image_url", object([("url", Json::Text(url))]))])
        }),
    ];
    prop_oneof![
        4 => text().prop_map(Json::Text),
        2 => vec(part, 0..4).prop_map(Json::List),
        1 => Just(Json::Bare("null")),
    ]
}

fn message(verbatim: Verbatim) -> impl Strategy<Value = Json> {
    let role = prop::sample::select(vec!["system", "user", "assistant", "tool", "other"]);
    let more = prop_oneof![
        3 => Just(None),
        1 => text().prop_map(|name| Some(("name", Json::Text(name)))),
        u32::from(verbatim) => text().prop_map(|id| {
            Some(("tool_calls", Json::List(vec![object([("id", Json::Text(id))])])))
        }),
    ];
    (role, content(verbatim), more).prop_map(|(role, content, more)| {
        let members = [("role", string(role)), ("content", content)];
        let members = members.into_iter().chain(more);
        Json::Object(members.map(|(key, value)| (key.to_owned(), value)).collect())
    })
}

/// The members of a chat; they may stand in any order.
fn body(verbatim: Verbatim) -> impl Strategy<Value = Vec<(String, Json)>> {
    let tools =
        vec(text().prop_map(|name| object([("name", Json::Text(name))])), 0..1 + 2 * usize::from(verbatim));
    (vec(message(verbatim), 0..6), tools, text(), text()).prop_map(|(messages, tools, model, salt)| {
        let members = [
            ("model", Json::Text(model)),
            ("messages", Json::List(messages)),
            ("tools", Json::List(tools)),
            ("cache_salt", Json::Text(salt)),
            ("stream", Json::Bare("true")),
            ("x_unknown", object([("messages", Json::List(vec![]))])),
        ];
        members.map(|(key, value)| (key.to_owned(), value)).to_vec()
    })
}

fn decision(text: &str) -> Decision {
    read(Api::Chat, text.as_bytes())
}

const PLAIN: &[u8] = &[1];

proptest! {
    /// A conversation plus one turn keeps its blocks as a prefix: all but the partial last one.
    #[test]
    fn one_more_turn_keeps_the_blocks(messages in vec(message(true), 1..8), turns in 1usize..4) {
        let written: Vec<_> = messages.iter().map(|message| written(message, PLAIN, false, false)).collect();
        let before = &written[..written.len().saturating_sub(turns).max(1)];
        let blocks = |messages: &[String]| only(&chat(&format!("[{}]", messages.join(","))));
        let [before, after] = [before, &written].map(blocks);
        prop_assert!(common(&before, &after) >= before.len().saturating_sub(1));
    }

    #[test]
    fn white_space_does_not_matter(body in body(true), choices in vec(any::<u8>(), 1..40)) {
        let body = Json::Object(body);
        let decision = |spaces| decision(&written(&body, &choices, spaces, false));
        let [plain, spaced] = [false, true].map(decision);
        prop_assert_eq!(plain.reading, spaced.reading);
        prop_assert_eq!(plain.blocks, spaced.blocks);
        prop_assert_eq!((plain.model, plain.stream), (spaced.model, spaced.stream));
    }

    #[test]
    fn the_order_of_the_members_does_not_matter(body in body(true).prop_shuffle(), again: prop::sample::Index) {
        let mut turned = body.clone();
        turned.rotate_left(again.index(body.len()));
        turned.swap(0, again.index(body.len()));
        let hashes = |body| only(&decision(&written(&Json::Object(body), PLAIN, false, false)).blocks);
        let [one, other] = [body, turned].map(hashes);
        prop_assert_eq!(one, other);
    }

    /// Of text, that is: the JSON of tools and tool calls stays in the client's spelling.
    #[test]
    fn how_a_character_is_escaped_does_not_matter(body in body(false), choices in vec(any::<u8>(), 1..40)) {
        let body = Json::Object(body);
        let decision = |escapes| decision(&written(&body, &choices, false, escapes));
        let [plain, escaped] = [false, true].map(decision);
        prop_assert_eq!(plain.reading, escaped.reading);
        prop_assert_eq!(plain.blocks, escaped.blocks);
        prop_assert_eq!(plain.model, escaped.model);
    }

    /// Two prompts with the same blocks are the same prompt.
    #[test]
    fn different_texts_have_different_blocks(one in text(), other in text()) {
        let blocks = |text: &String| chat(&format!(r#"[{{"role":"user","content":{}}}]"#, quoted(text)));
        let [a, b] = [&one, &other].map(blocks);
        prop_assert_eq!(one == other, a == b);
    }
}
