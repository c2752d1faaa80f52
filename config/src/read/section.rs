//! Keys and values of one level, asked for by name.

use super::form::Form;
use super::{DefaultOf, Key, Place, Placed, Reader, Shape};
use crate::faults::{Reason, key_path, one_of};
use crate::tree::{Map, Node, Value};

/// The default of a section that is read also where it is absent.
pub(crate) const BELOW: &str = "as below";
/// What is wanted where a section stands.
pub(super) const KEYS: &str = "keys and values";

/// Keys and values that stand together. Each key is asked for once, in the order of the documentation.
pub(crate) struct Section<'r, 'a> {
    pub(crate) reader: &'r mut Reader<'a>,
    content: Content<'a>,
    /// Where it is complained of what it lacks.
    place: Place,
    path: String,
    asked: Vec<&'static str>,
}

enum Content<'a> {
    Map(&'a Map),
    Absent,
    /// Something whose fault is told: nothing is missing from it.
    Told,
}

impl<'r, 'a> Section<'r, 'a> {
    /// The section at a node; without one, an absent one at `place`.
    pub(super) fn new(
        reader: &'r mut Reader<'a>,
        node: Option<&'a Node>,
        path: String,
        place: Place,
    ) -> Self {
        let (content, place) = match node {
            None => (Content::Absent, place),
            Some(Node { at, value: Value::Map(map) }) => (Content::Map(map), Place::File(*at)),
            Some(node) => {
                reader.wrong_kind(node, &path, KEYS);
                (Content::Told, Place::File(node.at))
            }
        };
        Self { reader, content, place, path, asked: Vec::new() }
    }

    /// Where it begins.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The path of a key.
    pub(crate) fn path(&self, name: &str) -> String {
        key_path(&self.path, name)
    }

    /// Whether a key is written, with whatever value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.peek(name).is_some()
    }

    /// The node of a key, without asking for it.
    pub(super) fn peek(&self, name: &str) -> Option<&'a Node> {
        match self.content {
            Content::Map(map) => map.get(name),
            Content::Absent | Content::Told => None,
        }
    }

    /// The value of a key, or its default.
    pub(crate) fn value<F: Form>(&mut self, key: Key, form: &F, default: F::Value) -> Placed<F::Value> {
        self.reader.describe(&key, || DefaultOf::Value(form.show(&default)), || shape(form));
        let written = self.node(&key).and_then(|node| self.reader.single(node, &self.path(key.name), form));
        let found = written.unwrap_or_else(|| Placed {
            value: default,
            place: Place::Default,
            path: self.path(key.name),
        });
        self.reader.setting(&found.path, form.show(&found.value), found.place);
        found
    }

    /// The value of a key, or its default, unless a flag says another.
    pub(crate) fn value_or_flag<F: Form>(
        &mut self,
        key: Key,
        form: &F,
        default: F::Value,
        flag: (&'static str, Option<&str>),
    ) -> Placed<F::Value> {
        let settings = self.reader.settings.len();
        let written = self.value(key, form, default);
        let Some(flagged) = self.flag(flag, form) else { return written };
        self.reader.settings.truncate(settings);
        self.reader.setting(&written.path, form.show(&flagged.value), flagged.place);
        flagged
    }

    /// The value of a flag. Nothing where it is not given or at fault.
    pub(crate) fn flag<F: Form>(
        &mut self,
        (flag, text): (&'static str, Option<&str>),
        form: &F,
    ) -> Option<Placed<F::Value>> {
        let place = Place::Flag(flag);
        let read = form.read(text?).map_err(|reason| self.reader.fault(place, "", reason));
        read.ok().map(|value| Placed { value, place, path: String::new() })
    }

    /// The value of a key that may be absent.
    pub(crate) fn optional<F: Form>(&mut self, key: Key, form: &F) -> Option<Placed<F::Value>> {
        self.reader.describe(&key, || DefaultOf::words(key.default_words()), || shape(form));
        let path = self.path(key.name);
        let Some(node) = self.node(&key) else {
            self.reader.setting(&path, key.default_shown(), Place::Default);
            return None;
        };
        let found = self.reader.single(node, &path, form)?;
        self.reader.setting(&path, form.show(&found.value), found.place);
        Some(found)
    }

    /// The value of a key that must be there.
    pub(crate) fn required<F: Form>(&mut self, key: Key, form: &F) -> Option<Placed<F::Value>> {
        self.reader.describe(&key, || DefaultOf::Required, || shape(form));
        let path = self.path(key.name);
        let Some(node) = self.node(&key) else {
            self.lacks(&path, form.wanted());
            return None;
        };
        let found = self.reader.single(node, &path, form)?;
        self.reader.setting(&path, form.show(&found.value), found.place);
        Some(found)
    }

    /// Keys and values below a key, read also where it is absent: then all of them have their defaults.
    pub(crate) fn section<T>(&mut self, key: Key, read: impl FnOnce(&mut Section<'_, 'a>) -> T) -> T {
        let node = self.node(&key);
        self.below(key, BELOW, node, read)
    }

    /// Keys and values below a key, read where it is there.
    pub(crate) fn optional_section<T>(
        &mut self,
        key: Key,
        read: impl FnOnce(&mut Section<'_, 'a>) -> T,
    ) -> Option<Placed<T>> {
        let node = self.node(&key);
        let path = self.path(key.name);
        if node.is_none() && !self.reader.is_describing() {
            self.reader.setting(&path, key.default_shown(), Place::Default);
            return None;
        }
        let place = node.map_or(Place::Default, |node| Place::File(node.at));
        let value = self.below(key, key.default_words(), node, read);
        node.map(|_| Placed { value, place, path })
    }

    fn below<T>(
        &mut self,
        key: Key,
        default: &'static str,
        node: Option<&'a Node>,
        read: impl FnOnce(&mut Section<'_, 'a>) -> T,
    ) -> T {
        let outer = self.reader.described.as_mut().map(std::mem::take);
        let mut section = Section::new(self.reader, node, key_path(&self.path, key.name), self.place);
        let value = read(&mut section);
        section.finish();
        if let Some(outer) = outer {
            let keys = self.reader.described.replace(outer).unwrap_or_default();
            self.reader.describe(&key, || DefaultOf::words(default), || Shape::Section(keys));
        }
        value
    }

    /// Adds the fault that something is missing, unless the section's own fault says enough.
    pub(crate) fn lacks(&mut self, path: &str, wanted: impl std::fmt::Display) {
        if !matches!(self.content, Content::Told) {
            self.reader.fault(self.place, path, Reason::thing("nothing", wanted));
        }
    }

    /// The node of a key, which counts as asked for.
    pub(super) fn node(&mut self, key: &Key) -> Option<&'a Node> {
        self.asked.push(key.name);
        self.peek(key.name)
    }

    /// Tells the keys that nobody asked for.
    pub(super) fn finish(self) {
        let Content::Map(Map(entries)) = self.content else { return };
        for entry in entries.iter().filter(|entry| !self.asked.contains(&entry.key.as_str())) {
            let path = key_path(&self.path, &entry.key);
            let reason = match self.reader.belongs(&path) {
                Some(place) => Reason::thing("a key of a pool", format_args!("it under {place}")),
                None => Reason::thing("an unknown key", one_of(&self.asked)),
            };
            self.reader.fault(Place::File(entry.at), &path, reason);
        }
    }
}

impl Reader<'_> {
    /// A single value; nothing where it is at fault.
    pub(super) fn single<F: Form>(&mut self, node: &Node, path: &str, form: &F) -> Option<Placed<F::Value>> {
        let place = Place::File(node.at);
        let Some(text) = node.text() else {
            self.wrong_kind(node, path, &form.wanted());
            return None;
        };
        if text.contains("${") && !form.takes_references() {
            // Taken for text it would be a host or a file of that name.
            let wanted = format!("{}, as it is: only secrets are references", form.wanted());
            self.fault(place, path, Reason::text(text, wanted));
            return None;
        }
        let read = form.read(text).map_err(|reason| self.fault(place, path, reason));
        read.ok().map(|value| Placed { value, place, path: path.to_owned() })
    }
}

/// The shape of a single value.
pub(super) fn shape<F: Form>(form: &F) -> Shape {
    Shape::Value { schema: form.schema(), range: form.range() }
}
