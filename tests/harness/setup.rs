//! What a router is started with, as the file of its configuration.

use crate::router::Router;
use crate::stub::Stub;
use std::net::SocketAddr;
use std::path::Path;

/// What to start: endpoints and the rest of the configuration. One pool, on free ports.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    endpoints: Vec<(String, SocketAddr)>,
    pool: String,
    pools: String,
    yaml: String,
    listeners: String,
    tenants: String,
    beside: Vec<(String, Vec<u8>)>,
    descriptors: Option<usize>,
}

impl Setup {
    /// Endpoints named a, b, c... in this order.
    pub fn of(stubs: &[&Stub]) -> Self {
        let named = ('a'..='z').map(String::from).zip(stubs.iter().map(|stub| stub.address()));
        Self { endpoints: named.collect(), ..Self::default() }
    }

    /// One more endpoint.
    pub fn endpoint(mut self, name: &str, address: SocketAddr) -> Self {
        self.endpoints.push((name.to_owned(), address));
        self
    }

    /// Further keys of the pool, as YAML.
    pub fn pool(mut self, text: &str) -> Self {
        self.pool.push_str(text);
        self.pool.push('\n');
        self
    }

    /// A further pool, as the items of YAML's mapping.
    pub fn and_pool(mut self, text: &str) -> Self {
        self.pools.push_str("  -\n");
        self.pools.extend(text.lines().map(|line| format!("    {line}\n")));
        self
    }

    /// Further top-level keys of the file, as YAML.
    pub fn yaml(mut self, text: &str) -> Self {
        self.yaml.push_str(text);
        self.yaml.push('\n');
        self
    }

    /// A further listener, as the items of YAML's mapping; [`Router::listeners`] has its address.
    pub fn listener(mut self, text: &str) -> Self {
        self.listeners.push_str("  -\n");
        self.listeners.extend(text.lines().map(|line| format!("    {line}\n")));
        self
    }

    /// A file beside the configuration, for `file:` and certificates.
    pub fn beside(mut self, name: &str, contents: impl Into<Vec<u8>>) -> Self {
        self.beside.push((name.to_owned(), contents.into()));
        self
    }

    /// A tenant with keys, which lie in files, and further keys of YAML's mapping.
    pub fn tenant(mut self, name: &str, keys: &[&str], text: &str) -> Self {
        let files: Vec<_> = (0..keys.len()).map(|place| format!("{name}.{place}.key")).collect();
        let listed: Vec<_> = files.iter().map(|file| format!("\"file:{file}\"")).collect();
        self.tenants.push_str(&format!("  - name: {name}\n    keys: [{}]\n", listed.join(", ")));
        self.tenants.extend(text.lines().map(|line| format!("    {line}\n")));
        self.beside.extend(files.into_iter().zip(keys.iter().map(|key| key.as_bytes().to_vec())));
        self
    }

    /// The limit of descriptors, soft and hard, that it runs under.
    pub fn descriptors(mut self, limit: usize) -> Self {
        self.descriptors = Some(limit);
        self
    }

    /// That limit.
    pub(crate) fn descriptors_max(&self) -> Option<usize> {
        self.descriptors
    }

    /// Another policy than the default.
    pub fn policy(self, name: &str) -> Self {
        self.pool(&format!("policy: {name}"))
    }

    /// Starts it and waits until every endpoint has been scraped once, well or badly.
    pub async fn start(self) -> Router {
        Router::start(self).await
    }

    /// How many endpoints it has.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// The file. Model lists are not read unless the pool says so: the stubs' logs are the tests' own.
    pub fn file(&self) -> String {
        let row = |(name, at): &(String, SocketAddr)| format!("  - {{name: {name}, url: \"http://{at}\"}}\n");
        let rows: String = self.endpoints.iter().map(row).collect();
        let endpoints =
            if rows.is_empty() { "endpoints: []\n".to_owned() } else { format!("endpoints:\n{rows}") };
        let quiet = if self.pool.contains("models_interval") { "" } else { "models_interval: off\n" };
        let pool = [endpoints.as_str(), quiet, &self.pool].concat();
        let pool: String = pool.lines().map(|line| format!("    {line}\n")).collect();
        let tenants = if self.tenants.is_empty() { "" } else { "tenants:\n" };
        format!(
            "listeners:\n  - address: 127.0.0.1:0\n    protocol: http1\n  - address: 127.0.0.1:0\n    protocol: h2c\n{}\
             admin: 127.0.0.1:0\n{}{tenants}{}pools:\n  -\n{pool}{}",
            self.listeners, self.yaml, self.tenants, self.pools
        )
    }

    /// The same with its access log in another file.
    pub fn file_named(mut self, log: &str) -> Self {
        self.yaml = self.yaml.replace("access.jsonl", log);
        self
    }

    /// Puts the files that it speaks of into the folder of its own.
    pub fn write_beside(&self, folder: &Path) {
        for (name, contents) in &self.beside {
            std::fs::write(folder.join(name), contents).unwrap();
        }
    }
}
