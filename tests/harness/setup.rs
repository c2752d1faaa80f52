//! What a router is started with, as the file of its configuration.

use crate::router::Router;
use crate::stub::Stub;
use std::net::SocketAddr;

/// What to start: endpoints and the rest of the configuration. One pool, on free ports.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    endpoints: Vec<(String, SocketAddr)>,
    pool: String,
    pools: String,
    yaml: String,
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
        format!(
            "listeners:\n  - address: 127.0.0.1:0\n    protocol: http1\n  - address: 127.0.0.1:0\n    protocol: h2c\n\
             admin: 127.0.0.1:0\n{}pools:\n  -\n{pool}{}",
            self.yaml, self.pools
        )
    }
}
