//! What the engine's chat template would render, as far as a router can know it: the prompt in canonical form.
//!
//! Tools come first, then each message: role, content, then every other member in the order it came (tool calls
//! count, names count, an unknown member counts). Strings are unescaped, other values are JSON without insignificant
//! space. A content that is one text part equals the same text as a plain string, as in the engine. `system` (Anthropic)
//! and `instructions` (Responses) are messages of the role `system`, a Responses `input` string one of the role `user`,
//! so the same conversation has the same bytes by either API. A conversation plus one turn always
//! keeps its bytes as a prefix: nothing closes a message or the list.

mod media;

use crate::memo::Section;
use crate::read::{Api, Body, Broken, Member, json};
use crate::tokens::{Tag, Tokenizer};

/// Prompts of one request that are hashed; the rest of a longer list is left out.
pub const PROMPTS_MAX: usize = 1_024;

/// Claude Code heads its system text with a block that changes with every request and that vLLM drops before
/// rendering. Source: vLLM 0.32 `entrypoints/anthropic/serving_messages.py`.
const DROPPED_SYSTEM_TEXT: &[u8] = b"\"x-anthropic-billing-header";

/// The `type` of a content part that is text. Sources: OpenAI chat and responses.
const TEXT_TYPES: [&str; 3] = ["text", "input_text", "output_text"];

/// Renders the request's prompts into `out`.
///
/// Returns whether there is a prompt at all: a body without one, or with one of a shape that no engine takes, gives
/// `false`. Errors: JSON broken inside a value, or a list that mixes shapes. Cost: O(body), nothing allocated.
pub fn render(api: Api, body: &Body<'_>, out: &mut impl Tokenizer) -> Result<bool, Broken> {
    match api {
        Api::Completions => prompts(member(body, Member::Prompt), out),
        Api::Embeddings if member(body, Member::Messages).is_none() => {
            prompts(member(body, Member::Input), out)
        }
        Api::Tokenize if member(body, Member::Messages).is_none() => {
            prompts(member(body, Member::Prompt), out)
        }
        Api::Other => Ok(false),
        _ => chat(api, body, out),
    }
}

fn member<'a>(body: &Body<'a>, member: Member) -> Option<&'a [u8]> {
    body.member(member).filter(|raw| *raw != b"null")
}

fn chat(api: Api, body: &Body<'_>, out: &mut impl Tokenizer) -> Result<bool, Broken> {
    let Some(messages) = before_messages(api, body, out)? else { return Ok(false) };
    match messages.first() {
        Some(b'"') => plain_message(b"user", messages, out)?,
        Some(b'[') => match out.recall(Section::Messages) {
            Some(known) => json::walk_more_elements(messages, known, |rest| message(rest, out))?,
            None => json::walk_elements(messages, |rest| message(rest, out))?,
        },
        _ => return Ok(member(body, system_of(api)).is_some()),
    }
    Ok(true)
}

fn system_of(api: Api) -> Member {
    if api == Api::Responses { Member::Instructions } else { Member::System }
}

/// Renders what comes before the messages; gives those, as raw JSON. Nothing if there are none.
pub(crate) fn before_messages<'a>(
    api: Api,
    body: &Body<'a>,
    out: &mut impl Tokenizer,
) -> Result<Option<&'a [u8]>, Broken> {
    let messages = if api == Api::Responses { Member::Input } else { Member::Messages };
    let Some(messages) = member(body, messages) else { return Ok(None) };
    if let Some(tools) = tools(body) {
        out.tag(Tag::Tools);
        if out.recall(Section::Tools).is_none() {
            json::compact(tools, |piece| out.json(piece));
        }
    }
    if let Some(system) = member(body, system_of(api)) {
        plain_message(b"system", system, out)?;
    }
    Ok(Some(messages))
}

/// The tools, as raw JSON, if there are any.
pub(crate) fn tools<'a>(body: &Body<'a>) -> Option<&'a [u8]> {
    member(body, Member::Tools).filter(|tools| !is_empty_list(tools))
}

fn is_empty_list(raw: &[u8]) -> bool {
    raw.first() == Some(&b'[') && raw.get(json::space(raw, 1)) == Some(&b']')
}

/// A message that stands outside the list of messages.
fn plain_message(role: &[u8], raw: &[u8], out: &mut impl Tokenizer) -> Result<(), Broken> {
    out.tag(Tag::Message);
    out.text(role);
    out.tag(Tag::Content);
    content(raw, |part| !part.text.is_some_and(|text| text.starts_with(DROPPED_SYSTEM_TEXT)), out)
}

/// Members besides role and content that are kept from one walk over a message; one that has more is walked again.
const OTHERS_KEPT: usize = 4;

/// The message, or the item of a Responses input, that begins at `text[0]`; gives its length.
pub(crate) fn message(text: &[u8], out: &mut impl Tokenizer) -> Result<usize, Broken> {
    out.tag(Tag::Message);
    if text.first() != Some(&b'{') {
        let end = json::value_end(text, 0)?;
        return value(&text[..end], out).map(|()| end);
    }
    let (mut role, mut said) = (None, None);
    let mut others: [(&[u8], &[u8]); OTHERS_KEPT] = Default::default();
    let mut count = 0;
    let end = json::each_member(text, |key, value| {
        match key {
            key if json::is_name(key, "role") => role = Some(value),
            key if json::is_name(key, "content") => said = Some(value),
            _ => {
                if let Some(other) = others.get_mut(count) {
                    *other = (key, value);
                }
                count += 1;
            }
        }
        Ok(())
    })?;
    if let Some(role) = role {
        value(role, out)?;
    }
    if let Some(said) = said {
        out.tag(Tag::Content);
        content(said, |_| true, out)?;
    }
    match others.get(..count) {
        Some(others) => others.iter().try_for_each(|(key, raw)| other_member(key, raw, out))?,
        None => drop(json::each_member(text, |key, raw| other_member(key, raw, out))?),
    }
    Ok(end)
}

/// A member besides role and content. A Responses message may say `"type":"message"` or leave it out.
fn other_member(key: &[u8], raw: &[u8], out: &mut impl Tokenizer) -> Result<(), Broken> {
    let is = |name| json::is_name(key, name);
    if is("role") || is("content") || is("type") && raw == b"\"message\"" {
        return Ok(());
    }
    out.tag(Tag::Member);
    json::unescape(key, |piece| out.json(piece))?;
    out.tag(Tag::Value);
    value(raw, out)
}

/// The parts of a content, those that `counts` leaves out missing.
fn content(raw: &[u8], counts: impl Fn(&Part<'_>) -> bool, out: &mut impl Tokenizer) -> Result<(), Broken> {
    if raw.first() != Some(&b'[') {
        return value(raw, out);
    }
    let mut first = true;
    json::walk_elements(raw, |rest| {
        let (part, end) = Part::of(rest)?;
        if counts(&part) {
            if !std::mem::take(&mut first) {
                out.tag(Tag::Part);
            }
            part.render(&rest[..end], out)?;
        }
        Ok(end)
    })
}

/// What a content part says of itself.
#[derive(Default)]
struct Part<'a> {
    /// The text, where the part is text and nothing else.
    text: Option<&'a [u8]>,
    media: Option<media::Kind>,
}

impl<'a> Part<'a> {
    /// The part that begins at `text[0]`, and where it ends.
    fn of(text: &'a [u8]) -> Result<(Self, usize), Broken> {
        if text.first() != Some(&b'{') {
            return Ok((Self::default(), json::value_end(text, 0)?));
        }
        let (mut part_type, mut said) = (&b"\"text\""[..], None);
        let end = json::each_member(text, |key, value| {
            match key {
                key if json::is_name(key, "type") => part_type = value,
                key if json::is_name(key, "text") => said = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        if TEXT_TYPES.iter().any(|name| json::is_name(part_type, name)) {
            let text = said.filter(|text| text.first() == Some(&b'"'));
            return Ok((Self { text, media: None }, end));
        }
        Ok((Self { text: None, media: media::Kind::of(part_type) }, end))
    }

    fn render(&self, raw: &[u8], out: &mut impl Tokenizer) -> Result<(), Broken> {
        match (self.text, self.media) {
            (Some(text), _) => json::unescape(text, |piece| out.text(piece)),
            (None, Some(kind)) => {
                out.tag(Tag::Media);
                out.media(media::media(kind, raw)?);
                Ok(())
            }
            (None, None) => value(raw, out),
        }
    }
}

/// A value as it is: a string as its text, anything else as JSON, told apart by a tag.
fn value(raw: &[u8], out: &mut impl Tokenizer) -> Result<(), Broken> {
    if raw.first() == Some(&b'"') {
        return json::unescape(raw, |piece| out.text(piece));
    }
    out.tag(Tag::Json);
    json::compact(raw, |piece| out.json(piece));
    Ok(())
}

/// A prompt of `/v1/completions` or an input of `/v1/embeddings`: string, strings, token ids, lists of token ids.
fn prompts(raw: Option<&[u8]>, out: &mut impl Tokenizer) -> Result<bool, Broken> {
    match raw.and_then(|raw| Some((raw, raw.first()?))) {
        Some((raw, b'"')) => json::unescape(raw, |piece| out.text(piece)).map(|()| true),
        Some((raw, b'[')) => match raw.get(json::space(raw, 1)) {
            Some(b'"' | b'[') => many(raw, out),
            Some(b'0'..=b'9') => ids(raw, out).map(|()| true),
            _ => Ok(false),
        },
        _ => Ok(false),
    }
}

/// A list of prompts: each is chained from the root.
fn many(raw: &[u8], out: &mut impl Tokenizer) -> Result<bool, Broken> {
    let mut seen = 0;
    json::each_element(raw, |prompt| {
        seen += 1;
        if seen > PROMPTS_MAX {
            return Ok(());
        }
        if seen > 1 {
            out.end_prompt();
        }
        match prompt.first() {
            Some(b'"') => json::unescape(prompt, |piece| out.text(piece)),
            Some(b'[') => ids(prompt, out),
            _ => Err(Broken { wanted: "a prompt" }),
        }
    })?;
    Ok(true)
}

fn ids(raw: &[u8], out: &mut impl Tokenizer) -> Result<(), Broken> {
    const WANTED: Broken = Broken { wanted: "token ids" };
    if is_empty_list(raw) {
        return Ok(());
    }
    out.tag(Tag::Ids);
    json::each_element(raw, |id| {
        let id = std::str::from_utf8(id).map_err(|_| WANTED)?;
        out.id(id.parse().map_err(|_| WANTED)?);
        Ok(())
    })
}
