//! One pass over a file's tree. Each key is named, described and read in one place; from it come the value, its faults,
//! its line for `check --explain`, the keys that nobody asked for, the JSON Schema and the table of keys.
//!
//! A value at fault is replaced by its default so that the reading goes on; a configuration with a fault never gets out.

mod collections;
pub(crate) mod described;
pub(crate) mod form;
mod secrets;
mod section;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub(crate) use described::{DefaultOf, Described, REQUIRED, Shape};
pub(crate) use secrets::{FilePath, SecretForm, Source, is_one_line};
pub(crate) use section::{BELOW, Section};

use crate::faults::{Fault, Faults, Reason};
use crate::tree::{At, Node, Value};
use crate::{Outside, Setting};

/// What is said about a key, once, where it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// What it does, in a sentence without its full stop.
    pub(crate) about: &'static str,
    pub(crate) reload: Reload,
    /// The default in words, where it is no value.
    pub(crate) default: Option<&'static str>,
}

/// What a change of a key needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// Taken up by a reload.
    Live,
    /// A reload refuses it by name.
    Restart,
}

/// A key whose changes a reload takes up.
pub(crate) const fn live(name: &'static str, about: &'static str) -> Key {
    Key { name, about, reload: Reload::Live, default: None }
}

/// A key whose changes need a restart.
pub(crate) const fn restart(name: &'static str, about: &'static str) -> Key {
    Key { name, about, reload: Reload::Restart, default: None }
}

impl Key {
    /// Says the default in words.
    pub(crate) const fn default_is(mut self, words: &'static str) -> Self {
        self.default = Some(words);
        self
    }

    fn default_words(&self) -> &'static str {
        self.default.unwrap_or("none")
    }

    /// The default in words, as `check --explain` shows it: in parentheses, as it is no value.
    fn default_shown(&self) -> String {
        format!("({})", self.default_words())
    }
}

/// Where a value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere, or at fault there, so that the default holds.
    Default,
    File(At),
    /// In a further file, of that place among those that were read.
    Further(usize, At),
    Flag(&'static str),
}

/// A value, where it was written, and its key's path.
#[derive(Clone, Debug)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
    pub(crate) path: String,
}

impl<T> Placed<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Placed<U> {
        Placed { value: change(self.value), place: self.place, path: self.path }
    }

    /// The same of a value that was read as if the further file of that place were the configuration.
    pub(crate) fn in_file(self, further: usize) -> Self {
        let place = match self.place {
            Place::File(at) => Place::Further(further, at),
            other => other,
        };
        Self { place, ..self }
    }

    /// Whether the operator wrote it.
    pub(crate) fn is_written(&self) -> bool {
        self.place != Place::Default
    }
}

/// What a reading has found so far, and what it may ask.
pub(crate) struct Reader<'a> {
    file: &'a str,
    folder: PathBuf,
    pub(crate) outside: &'a dyn Outside,
    /// The paths of all keys, to tell where an unknown one would have been in place; made when there is one.
    known: fn() -> HashSet<String>,
    known_paths: Option<HashSet<String>>,
    pub(crate) faults: Faults,
    pub(crate) settings: Vec<Setting>,
    pub(crate) files: Vec<PathBuf>,
    /// The keys of the section that is being described; nothing while a file is read.
    described: Option<Vec<Described>>,
    /// Secrets and certificates that were left alone; nothing where they are read.
    unread: Option<usize>,
}

impl<'a> Reader<'a> {
    /// A reader of a file of that name; it may be empty where there is no file.
    pub(crate) fn new(file: &'a str, outside: &'a dyn Outside, known: fn() -> HashSet<String>) -> Self {
        let folder = Path::new(file).parent().map(Path::to_owned).unwrap_or_default();
        let (faults, settings, files) = Default::default();
        let (known_paths, described, unread) = Default::default();
        Self { file, folder, outside, known, known_paths, faults, settings, files, described, unread }
    }

    /// Leaves secrets and certificates alone: they count as absent, and their absence is no fault.
    pub(crate) fn without_secrets(mut self) -> Self {
        self.unread = Some(0);
        self
    }

    /// How many were left alone.
    pub(crate) fn unread(&self) -> usize {
        self.unread.unwrap_or_default()
    }

    /// Whether the next one is.
    fn leaves_alone(&mut self) -> bool {
        self.unread = self.unread.map(|count| count + 1);
        self.unread.is_some()
    }

    /// The name of the file that is read.
    pub(crate) fn file_name(&self) -> &'a str {
        self.file
    }

    /// Lets the keys be described instead: a reading of nothing, in which each list of sections is taken once.
    pub(crate) fn describing(mut self) -> Self {
        self.described = Some(Vec::new());
        self
    }

    /// What was described.
    pub(crate) fn into_described(self) -> Vec<Described> {
        self.described.unwrap_or_default()
    }

    /// Reads the whole file; nothing for all defaults.
    pub(crate) fn root<T>(
        &mut self,
        node: Option<&'a Node>,
        read: impl FnOnce(&mut Section<'_, 'a>) -> T,
    ) -> T {
        let mut section = Section::new(self, node, String::new(), Place::Default);
        let value = read(&mut section);
        section.finish();
        value
    }

    /// Adds a fault. One of a default is one of the file as a whole.
    pub(crate) fn fault(&mut self, place: Place, path: &str, reason: Reason) {
        match place {
            Place::File(at) => self.faults.add_at(self.file, at, path, reason),
            Place::Further(file, at) => {
                let mut of_file = Faults::default();
                of_file.add_at(&self.further_name(file), at, path, reason);
                self.faults.append(of_file);
            }
            Place::Flag(flag) => self.faults.add_flag(flag, path, reason),
            Place::Default => {
                self.faults.add(Fault { place: self.file.to_owned(), path: path.to_owned(), reason });
            }
        }
    }

    /// The name of a further file by its place; empty for one that was not read.
    fn further_name(&self, file: usize) -> String {
        self.files.get(file).map(|file| file.display().to_string()).unwrap_or_default()
    }

    /// Adds a fault of a value.
    pub(crate) fn fault_of<T>(&mut self, placed: &Placed<T>, reason: Reason) {
        self.fault(placed.place, &placed.path, reason);
    }

    fn is_describing(&self) -> bool {
        self.described.is_some()
    }

    fn describe(&mut self, key: &Key, default: impl FnOnce() -> DefaultOf, shape: impl FnOnce() -> Shape) {
        if let Some(described) = &mut self.described {
            let default = key.default.map_or_else(default, DefaultOf::words);
            described.push(Described { key: *key, default, shape: shape() });
        }
    }

    /// Adds a line for `check --explain`.
    pub(crate) fn setting(&mut self, path: &str, value: String, place: Place) {
        if self.is_describing() {
            return;
        }
        let origin = match place {
            Place::Default => "default".to_owned(),
            Place::File(At { line, column }) => format!("{}:{line}:{column}", self.file),
            Place::Further(file, At { line, column }) => {
                format!("{}:{line}:{column}", self.further_name(file))
            }
            Place::Flag(flag) => flag.to_owned(),
        };
        self.setting_of(path, value, &origin);
    }

    /// The same of another origin, such as a further file.
    pub(crate) fn setting_of(&mut self, path: &str, value: String, origin: &str) {
        self.settings.push(Setting { path: path.to_owned(), value, origin: origin.to_owned() });
    }

    /// Says that a default is a further file's.
    pub(crate) fn says<T>(&mut self, placed: &Placed<T>, file: &str) {
        let setting = self.settings.iter_mut().rev().find(|setting| setting.path == placed.path);
        if let Some(setting) = setting.filter(|_| !placed.is_written()) {
            file.clone_into(&mut setting.origin);
        }
    }

    /// Takes back the line of a key that others replace.
    pub(crate) fn forget_setting(&mut self, path: &str) {
        self.settings.retain(|setting| setting.path != path);
    }

    /// Replaces what the line of a key says of its default.
    pub(crate) fn amend_setting(&mut self, path: &str, value: &str) {
        if let Some(setting) = self.settings.iter_mut().rev().find(|setting| setting.path == path) {
            value.clone_into(&mut setting.value);
        }
    }

    /// For a key out of place that a pool knows: where it belongs.
    fn belongs(&mut self, path: &str) -> Option<String> {
        let known = self.known_paths.get_or_insert_with(self.known);
        let wanted = format!("pools[].{path}");
        known.contains(&wanted).then(|| wanted.rsplit_once('.').map(|(parent, _)| parent.to_owned()))?
    }

    /// The fault of a value of the wrong kind, unless it is told already.
    fn wrong_kind(&mut self, node: &Node, path: &str, wanted: &str) {
        if node.value != Value::Told {
            self.fault(Place::File(node.at), path, Reason::thing(node.kind(), wanted));
        }
    }
}
