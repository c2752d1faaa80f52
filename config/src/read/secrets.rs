//! Secrets and further files. What was read is never shown again: not in a fault, not in a setting.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::form::Form;
use super::{Key, Place, Placed, Reader, Section};
use crate::Secret;
use crate::defaults::HEADER_VALUE_BYTES_MAX;
use crate::faults::Reason;

/// The pattern of a reference to a variable or a file.
const REFERENCE: &str = r"^(\$\{[A-Za-z_][A-Za-z0-9_]*\}|file:.+)$";

/// How a secret may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretForm {
    /// As a reference.
    Reference,
    /// As a reference, or as its hash.
    Hash,
    /// As a reference, or in plain text: the value of a header, which need not be one.
    Header,
}

/// Where a secret is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Variable(String),
    File(String),
    Sha256([u8; 32]),
    Plain(String),
}

/// A path in a file.
pub(crate) struct FilePath;

impl Form for SecretForm {
    fn takes_references(&self) -> bool {
        true
    }

    type Value = Source;

    fn read(&self, text: &str) -> Result<Source, Reason> {
        let wrong = |found| Err(Reason::thing(found, self.wanted()));
        if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'))
            && is_variable(name)
        {
            return Ok(Source::Variable(name.to_owned()));
        }
        match (self, text.strip_prefix("file:"), text.strip_prefix("sha256:")) {
            (_, Some(""), _) => wrong("file: without a path"),
            (_, Some(path), _) if !is_one_line(path) => wrong("file: with a control character in its path"),
            (_, Some(path), _) => Ok(Source::File(path.to_owned())),
            (Self::Hash, _, Some(hex)) => from_hex(hex)
                .map_or_else(|| wrong("sha256: without 64 hex digits"), |hash| Ok(Source::Sha256(hash))),
            (Self::Header, ..) if text.contains("${") => wrong("a reference within a text"),
            (Self::Header, ..) if text.len() <= HEADER_VALUE_BYTES_MAX => Ok(Source::Plain(text.to_owned())),
            (Self::Header, ..) => wrong("a longer text"),
            _ => wrong("a secret in plain text"),
        }
    }

    fn show(&self, value: &Source) -> String {
        match value {
            Source::Variable(name) => format!("${{{name}}}"),
            Source::File(path) => format!("file:{path}"),
            Source::Sha256(_) => "sha256:…".to_owned(),
            Source::Plain(_) => "…".to_owned(),
        }
    }

    fn wanted(&self) -> String {
        match self {
            Self::Reference => "${NAME} or file:PATH".to_owned(),
            Self::Hash => "${NAME}, file:PATH or sha256:HEX".to_owned(),
            Self::Header => {
                format!("${{NAME}}, file:PATH or a text of at most {HEADER_VALUE_BYTES_MAX} bytes")
            }
        }
    }

    fn schema(&self) -> Value {
        let reference = json!({"type": "string", "pattern": REFERENCE});
        match self {
            Self::Reference => reference,
            Self::Hash => {
                json!({"anyOf": [reference, {"type": "string", "pattern": "^sha256:[0-9a-fA-F]{64}$"}]})
            }
            Self::Header => json!({"type": "string", "maxLength": HEADER_VALUE_BYTES_MAX}),
        }
    }
}

impl Form for FilePath {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, Reason> {
        if !is_one_line(text) {
            return Err(Reason::text(text, "a path without control characters"));
        }
        if text.is_empty() { Err(Reason::text(text, self.wanted())) } else { Ok(text.to_owned()) }
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }

    fn wanted(&self) -> String {
        "a path".to_owned()
    }

    fn schema(&self) -> Value {
        json!({"type": "string", "minLength": 1})
    }
}

/// Whether a path can stand in a fault: each is a line, and a path is where it begins.
pub(crate) fn is_one_line(path: &str) -> bool {
    !path.chars().any(char::is_control)
}

impl Section<'_, '_> {
    /// A secret that may be absent.
    pub(crate) fn secret(&mut self, key: Key) -> Option<Placed<Secret>> {
        let source = self.optional(key, &SecretForm::Reference)?;
        self.reader.secret(source)
    }

    /// A secret that must be there.
    pub(crate) fn required_secret(&mut self, key: Key) -> Option<Placed<Secret>> {
        let source = self.required(key, &SecretForm::Reference)?;
        self.reader.secret(source)
    }

    /// The bytes of a further file that may be absent.
    pub(crate) fn file(&mut self, key: Key) -> Option<Placed<Vec<u8>>> {
        let path = self.optional(key, &FilePath)?;
        self.reader.file_at(path)
    }

    /// The bytes of a further file that must be there.
    pub(crate) fn required_file(&mut self, key: Key) -> Option<Placed<Vec<u8>>> {
        let path = self.required(key, &FilePath)?;
        self.reader.file_at(path)
    }
}

impl Reader<'_> {
    /// What a source holds, not empty. A hash holds no secret, and is none; nor is one that is left alone.
    pub(crate) fn secret(&mut self, source: Placed<Source>) -> Option<Placed<Secret>> {
        let Placed { value, place, path } = source;
        let bytes = match value {
            Source::Plain(text) => text.into_bytes(),
            Source::Sha256(_) => return None,
            Source::File(_) | Source::Variable(_) if self.leaves_alone() => return None,
            Source::File(file) => {
                let bytes = self.file(&file, place, &path)?;
                let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
                line.strip_suffix(b"\r").unwrap_or(line).to_owned()
            }
            Source::Variable(name) => {
                let missing = |why| Reason::thing(format_args!("${{{name}}}, {why}"), "one with a value");
                let value = self.outside.variable(&name);
                value.map_err(|why| self.fault(place, &path, missing(why))).ok()?.into_bytes()
            }
        };
        if bytes.is_empty() {
            self.fault(place, &path, Reason::thing("an empty secret", "one with a value"));
            return None;
        }
        Some(Placed { value: Secret::new(bytes), place, path })
    }

    fn file_at(&mut self, path: Placed<String>) -> Option<Placed<Vec<u8>>> {
        if self.leaves_alone() {
            return None;
        }
        let bytes = self.file(&path.value, path.place, &path.path)?;
        Some(path.map(|_| bytes))
    }

    /// A further file's bytes; its name is from the folder of the file that is read.
    pub(crate) fn file(&mut self, name: &str, place: Place, path: &str) -> Option<Vec<u8>> {
        let file = self.in_folder(name);
        if !self.files.contains(&file) {
            self.files.push(file.clone());
        }
        let unread = |why: String| Reason::thing(format_args!("{why}: {name:?}"), "a file that can be read");
        self.outside.file(&file).map_err(|why| self.fault(place, path, unread(why))).ok()
    }

    /// A path from the folder of the file that is read.
    pub(crate) fn in_folder(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }
}

fn is_variable(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.bytes().all(plain) && !name.starts_with(|first: char| first.is_ascii_digit())
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u8::from_str_radix(text, 16).ok())?
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(digits).collect();
    bytes?.try_into().ok()
}
