//! What lies outside of a configuration's text, as tests give it: variables, files, certificates.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod values;

use std::collections::BTreeMap;
use std::path::Path;

use config::{Config, Flags, Loaded, Outside, load};
use rcgen::{CertificateParams, KeyPair};

/// Every key, each with a value that is not its default.
pub(crate) const EVERY_KEY: &str = include_str!("../fixtures/every_key.yaml");

/// The discovery file of [`EVERY_KEY`].
pub(crate) const LISTED: &str = "\
endpoints:
- name: listed-0
  namespace: engines
  address: 10.0.0.5
  port: \"8000\"
  labels: {llm-d.ai/role: decode, empty: ''}
- {name: listed-1, address: '2001:DB8::2', port: 8001}
";

/// Variables and files by their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Given {
    /// What the fixtures and the examples ask for. Certificates are made anew.
    pub(crate) fn all() -> Self {
        let mut given = Self::default();
        for (name, value) in [
            ("CHAT_KEY", "sk-chat-1"),
            ("BATCH_KEY", "sk-batch-1"),
            ("ENGINE_KEY", "sk-engine"),
            ("CACHE_SALT_SECRET", "sixteen bytes or more"),
            ("EMPTY", ""),
            ("SHORT", "short"),
            ("LINES", "one\ntwo"),
        ] {
            given.variables.insert(name.to_owned(), value.to_owned());
        }
        for name in ["edge", "api", "router", "authority"] {
            let (certificate, key) = certificate(name);
            given =
                given.file(&format!("tls/{name}.crt"), &certificate).file(&format!("tls/{name}.key"), &key);
        }
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        given
            .file("endpoints.yaml", LISTED)
            .file("secrets/key", "sk-from-a-file\n")
            .file("secrets/empty", "\n")
            .file("tls/empty.crt", "")
            .file("tls/broken.crt", broken)
            .file("tls/cut.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n")
    }

    /// The same without certificates, which take time to make.
    pub(crate) fn cheap() -> Self {
        let variables = [("CHAT_KEY", "sk-chat-1"), ("CACHE_SALT_SECRET", "sixteen bytes or more")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self { variables, ..Self::default() }
    }

    /// One more file.
    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), text.as_bytes().to_vec());
        self
    }
}

impl Outside for Given {
    fn variable(&self, name: &str) -> Result<String, String> {
        self.variables.get(name).cloned().ok_or_else(|| "a variable that is not set".to_owned())
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        let found = self.files.get(path.to_str().unwrap());
        found.cloned().ok_or_else(|| "No such file or directory".to_owned())
    }
}

/// A certificate for a name and its key, both PEM.
fn certificate(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let parameters = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
    (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// The configuration of a file `f` beside which everything of [`Given::all`] lies.
pub(crate) fn file(text: &str) -> Result<Config, String> {
    with_flags(text, &Flags::default()).map(|loaded| loaded.config)
}

/// The same with flags.
pub(crate) fn with_flags(text: &str, flags: &Flags) -> Result<Loaded, String> {
    load(Some(("f", text)), flags, &Given::all()).map_err(|faults| faults.to_string())
}
