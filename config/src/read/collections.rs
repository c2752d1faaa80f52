//! Lists, and keys of the operator's choice. All bounded: items past the bound are not read.

use std::ops::RangeInclusive;

use super::form::Form;
use super::section::shape;
use super::{DefaultOf, Key, Place, Placed, Section, Shape};
use crate::faults::{Reason, key_path};
use crate::tree::{Entry, Map, Node, Value};

/// A list's items with their numbers, and where it stands.
type Items<'a> = (Place, &'a [Node]);

/// A key of the operator's choice and its value.
type Pair<K, F> = (Placed<<K as Form>::Value>, Placed<<F as Form>::Value>);

impl<'a> Section<'_, 'a> {
    /// A list of single values. Nothing where the key is absent or no list; items at fault are left out.
    pub(crate) fn list<F: Form>(
        &mut self,
        key: Key,
        count: RangeInclusive<usize>,
        form: &F,
    ) -> Option<Placed<Vec<Placed<F::Value>>>> {
        self.reader.describe(&key, || DefaultOf::words(key.default_words()), || list_of(&count, shape(form)));
        let path = self.path(key.name);
        let (place, items) = self.items(key, &path, &count)?;
        let mut value = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let found = self.reader.single(item, &format!("{path}[{index}]"), form);
            if let Some(found) = &found {
                self.reader.setting(&found.path, form.show(&found.value), found.place);
            }
            value.extend(found);
        }
        Some(Placed { value, place, path })
    }

    /// A list of sections. Nothing where the key is absent or no list; items for which `read` has nothing are left out.
    pub(crate) fn sections<T>(
        &mut self,
        key: Key,
        count: RangeInclusive<usize>,
        mut read: impl FnMut(&mut Section<'_, 'a>) -> Option<T>,
    ) -> Option<Placed<Vec<T>>> {
        let path = self.path(key.name);
        if let Some(outer) = self.reader.described.as_mut().map(std::mem::take) {
            let mut section = Section::new(self.reader, None, format!("{path}[]"), Place::Default);
            read(&mut section);
            let keys = self.reader.described.replace(outer).unwrap_or_default();
            let shape = || list_of(&count, Shape::Section(keys));
            self.reader.describe(&key, || DefaultOf::words(key.default_words()), shape);
        }
        let (place, items) = self.items(key, &path, &count)?;
        let mut value = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let mut section = Section::new(self.reader, Some(item), format!("{path}[{index}]"), place);
            value.extend(read(&mut section));
            section.finish();
        }
        Some(Placed { value, place, path })
    }

    /// The items of a list of sections, before it is read. Nothing where it is absent or no list.
    pub(crate) fn count(&self, name: &str) -> Option<usize> {
        self.peek(name)?.list().map(<[Node]>::len)
    }

    /// The only item of a list that is absent, with all defaults in place of the list's own line.
    pub(crate) fn absent_item<T>(&mut self, key: Key, read: impl FnOnce(&mut Section<'_, 'a>) -> T) -> T {
        // It is described already.
        let described = self.reader.described.take();
        let path = self.path(key.name);
        self.reader.forget_setting(&path);
        let path = format!("{path}[0]");
        let value = read(&mut Section::new(self.reader, None, path, Place::Default));
        self.reader.described = described;
        value
    }

    /// Adds the fault of a list that must be there.
    pub(crate) fn require_list(&mut self, name: &str) {
        if !self.has(name) {
            let path = self.path(name);
            self.lacks(&path, "a list");
        }
    }

    /// Keys of the operator's choice with single values. Pairs at fault are left out.
    pub(crate) fn table<K: Form, F: Form>(
        &mut self,
        key: Key,
        max: usize,
        (keys, key_form): (&'static str, &K),
        form: &F,
    ) -> Vec<Pair<K, F>> {
        let described = || Shape::Table { max, keys, of: Box::new(shape(form)) };
        self.reader.describe(&key, || DefaultOf::words(key.default_words()), described);
        let path = self.path(key.name);
        let Some(node) = self.node(&key) else {
            self.reader.setting(&path, key.default_shown(), Place::Default);
            return Vec::new();
        };
        let Value::Map(Map(entries)) = &node.value else {
            self.reader.wrong_kind(node, &path, super::section::KEYS);
            return Vec::new();
        };
        if entries.len() > max {
            let reason = Reason::thing(entries.len(), format_args!("at most {max} of them"));
            self.reader.fault(Place::File(node.at), &path, reason);
        }
        entries.iter().take(max).filter_map(|entry| self.pair(&path, entry, key_form, form)).collect()
    }

    fn pair<K: Form, F: Form>(
        &mut self,
        path: &str,
        Entry { key, at, node }: &Entry,
        key_form: &K,
        form: &F,
    ) -> Option<Pair<K, F>> {
        let path = key_path(path, key);
        let place = Place::File(*at);
        let read_key = key_form.read(key).map_err(|reason| self.reader.fault(place, &path, reason));
        let value = self.reader.single(node, &path, form)?;
        let key = Placed { value: read_key.ok()?, place, path };
        self.reader.setting(&value.path, form.show(&value.value), value.place);
        Some((key, value))
    }

    /// The items of the list at `path`, as many as may be; told where there are too many or too few. The default holds where
    /// it is absent.
    fn items(&mut self, key: Key, path: &str, count: &RangeInclusive<usize>) -> Option<Items<'a>> {
        let Some(node) = self.node(&key) else {
            self.reader.setting(path, key.default_shown(), Place::Default);
            return None;
        };
        let place = Place::File(node.at);
        let Some(items) = node.list() else {
            self.reader.wrong_kind(node, path, "a list");
            return None;
        };
        if !count.contains(&items.len()) {
            let (min, max) = (count.start(), count.end());
            let wanted =
                if *min == 0 { format!("at most {max} of them") } else { format!("{min} to {max} of them") };
            self.reader.fault(place, path, Reason::thing(items.len(), wanted));
        }
        Some((place, items.get(..*count.end()).unwrap_or(items)))
    }
}

fn list_of(count: &RangeInclusive<usize>, of: Shape) -> Shape {
    Shape::List { min: *count.start(), max: *count.end(), of: Box::new(of) }
}
