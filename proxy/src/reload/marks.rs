//! What tells that a file has changed, without reading it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use config::{Outside, System};

/// A file at one moment: which it is, and when it was last changed. Links are followed, so another target is another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The files of a configuration, each as it was just before it was read; `None` for one that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(BTreeMap<PathBuf, Option<Mark>>);

/// Gives what lies outside of a configuration, and marks each file before it is read: what changes while it is read, or
/// after, differs from its mark.
pub(super) struct Marking(RefCell<Marks>);

impl Mark {
    fn of(path: &Path) -> Option<Self> {
        let data = std::fs::metadata(path).ok()?;
        Some(Self {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }
}

impl Marks {
    /// The same files as they are now.
    pub(super) fn now(&self) -> Self {
        Self(self.0.keys().map(|path| (path.clone(), Mark::of(path))).collect())
    }

    /// Takes newer marks. Files that were not read this time, because the reading ended before, are marked as they are.
    pub(super) fn update(&mut self, newer: Self) {
        let mut all = self.now();
        all.0.extend(newer.0);
        *self = all;
    }
}

impl Marking {
    /// Nothing marked yet.
    pub(super) fn new() -> Self {
        Self(RefCell::default())
    }

    /// Marks a file that is about to be read.
    pub(super) fn mark(&self, path: &Path) {
        self.0.borrow_mut().0.insert(path.to_owned(), Mark::of(path));
    }

    /// All marks.
    pub(super) fn into_marks(self) -> Marks {
        self.0.into_inner()
    }
}

impl Outside for Marking {
    fn variable(&self, name: &str) -> Result<String, String> {
        System.variable(name)
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        self.mark(path);
        System.file(path)
    }
}
