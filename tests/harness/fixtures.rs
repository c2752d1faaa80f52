//! Recorded bytes beside the suites; `fixtures/SOURCES.md` says where each folder comes from.

use std::path::{Path, PathBuf};

/// A request and the response that a real engine gave to it, as they were on the wire.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Name of the pair, without its suffix.
    pub name: String,
    /// Bytes of the request.
    pub request: Vec<u8>,
    /// Bytes of the response.
    pub response: Vec<u8>,
}

/// A file under `fixtures`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// The bytes of a file under `fixtures`.
pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|fault| panic!("fixtures/{name}: {fault}"))
}

/// Every recorded pair of a folder, by name.
pub fn recorded(folder: &str) -> Vec<Recorded> {
    let listing =
        std::fs::read_dir(path(folder)).unwrap_or_else(|fault| panic!("fixtures/{folder}: {fault}"));
    let names = listing.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> =
        names.filter_map(|name| Some(name.strip_suffix(".request.http")?.to_owned())).collect();
    names.sort();
    names.into_iter().map(|name| pair(folder, name)).collect()
}

fn pair(folder: &str, name: String) -> Recorded {
    let request = bytes(&format!("{folder}/{name}.request.http"));
    let response = bytes(&format!("{folder}/{name}.response.http"));
    Recorded { name, request, response }
}
