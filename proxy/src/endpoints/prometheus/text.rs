//! The Prometheus text format, as far as a sample's line needs it: labels, a value, and nothing allocated.

use memchr::{memchr, memchr2};

/// The labels of one series: those that somebody asks for by name, and all of them as they stand.
#[derive(Default)]
pub(super) struct Labels<'a> {
    all: &'a [u8],
    pub(super) block_size: Option<u32>,
    pub(super) blocks: Option<u32>,
    pub(super) cache_tokens: Option<u32>,
    pub(super) is_awake_series: bool,
    pub(super) lora_max: Option<u32>,
    pub(super) lora_running: &'a [u8],
    pub(super) lora_waiting: &'a [u8],
}

impl<'a> Labels<'a> {
    /// Whether a label has exactly this value, escapes as written.
    pub(super) fn has(&self, name: &[u8], value: &[u8]) -> bool {
        let mut has = false;
        // In the format: else there were no labels.
        each_label(self.all, |other, is| has |= other == name && is == value);
        has
    }

    fn take(&mut self, name: &[u8], value: &'a [u8]) {
        match name {
            b"block_size" | b"page_size" => self.block_size = positive(value),
            b"num_gpu_blocks" | b"num_pages" => self.blocks = positive(value),
            b"kv_cache_size_tokens" => self.cache_tokens = positive(value),
            b"sleep_state" => self.is_awake_series = value == b"awake",
            b"max_lora" => self.lora_max = positive(value),
            b"running_lora_adapters" => self.lora_running = value,
            b"waiting_lora_adapters" => self.lora_waiting = value,
            _ => {}
        }
    }
}

/// The labels of a series, if it has any, and what follows them. `None`: not in the format.
pub(super) fn labels(text: &[u8]) -> Option<(Labels<'_>, &[u8])> {
    let mut labels = Labels::default();
    let Some(all) = text.trim_ascii_start().strip_prefix(b"{") else { return Some((labels, text)) };
    let after = each_label(all, |name, value| labels.take(name, value))?;
    labels.all = all;
    Some((labels, after))
}

/// Calls `label` with each name and value behind an opening brace; gives what follows the closing one. `None`: not in
/// the format.
fn each_label<'a>(text: &'a [u8], mut label: impl FnMut(&'a [u8], &'a [u8])) -> Option<&'a [u8]> {
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(b"}") {
            return Some(after);
        }
        let (name, after) = rest.split_at_checked(memchr(b'=', rest)?)?;
        let (value, after) = quoted(after.get(1..)?.trim_ascii_start().strip_prefix(b"\"")?)?;
        label(name.trim_ascii_end(), value);
        let after = after.trim_ascii_start();
        rest = match after.first()? {
            b',' => after.get(1..)?,
            b'}' => after,
            _ => return None,
        };
    }
}

/// What follows a name, if the text begins with just that: a longer name is another series'.
pub(super) fn after_name<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = text.strip_prefix(name)?;
    matches!(rest.first(), Some(b'{' | b' ' | b'\t')).then_some(rest)
}

/// The text up to the closing quote, escapes left in, and what follows the quote. No value that is read has
/// escapes.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut end = 0;
    loop {
        end += memchr2(b'"', b'\\', text.get(end..)?)?;
        if text.get(end) == Some(&b'"') {
            return Some((text.get(..end)?, text.get(end + 1..)?));
        }
        end += 2;
    }
}

/// The number after name and labels. A time stamp or an exemplar may follow it.
pub(super) fn value(text: &[u8]) -> Option<f64> {
    let number = text.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// vLLM writes Python's `str` of a setting: `None`, `-1` and the like are not known.
fn positive(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok().filter(|number| *number > 0)
}

/// A series as the operator names it: `name` or `name{label="value",...}`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Series {
    name: Box<[u8]>,
    /// Labels that it must have.
    only: Vec<Label>,
}

/// A label and its value, escapes as written.
#[derive(Debug, PartialEq, Eq)]
struct Label {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

impl Series {
    /// Takes a series apart. Also without quotes, as llm-d writes them: `name{label=value}`. Of a text that is none (the
    /// configuration has checked it) the name is all of it, and no page has it.
    pub(super) fn new(text: &str) -> Self {
        Self::parse(text.trim().as_bytes())
            .unwrap_or_else(|| Self { name: text.as_bytes().into(), only: Vec::new() })
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let Some(brace) = memchr(b'{', text) else {
            return Some(Self { name: text.into(), only: Vec::new() });
        };
        let (name, labels) = text.split_at_checked(brace)?;
        let mut only = Vec::new();
        let keep = |name: &[u8], value: &[u8]| only.push(Label { name: name.into(), value: value.into() });
        let labels = labels.get(1..)?;
        if memchr(b'"', labels).is_some() { each_label(labels, keep) } else { each_bare(labels, keep) }
            .filter(|after| after.is_empty())?;
        Some(Self { name: name.trim_ascii_end().into(), only })
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn is(&self, labels: &Labels<'_>) -> bool {
        self.only.iter().all(|label| labels.has(&label.name, &label.value))
    }
}

/// The same for labels whose values stand without quotes.
fn each_bare<'a>(text: &'a [u8], mut label: impl FnMut(&'a [u8], &'a [u8])) -> Option<&'a [u8]> {
    let (inner, after) = text.split_at_checked(memchr(b'}', text)?)?;
    for one in inner.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|one| !one.is_empty()) {
        let (name, value) = one.split_at_checked(memchr(b'=', one)?)?;
        label(name.trim_ascii_end(), value.get(1..)?.trim_ascii_start());
    }
    after.get(1..)
}
