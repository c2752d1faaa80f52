//! The `/metrics` of a stub: a page in vLLM's words, or a way to fail.

use bytes::Bytes;

/// Load figures that a page shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Requests in the engine's queue.
    pub waiting: f64,
    /// Requests that the engine runs.
    pub running: f64,
    /// Share of KV blocks in use, 0 to 1.
    pub kv: f64,
}

impl Load {
    /// An idle replica, as the conventions of the recipes have it.
    pub const IDLE: Self = Self { waiting: 0.0, running: 0.0, kv: 0.05 };

    /// Idle but for a queue.
    pub const fn waiting(waiting: f64) -> Self {
        Self { waiting, ..Self::IDLE }
    }

    /// The page that shows these figures.
    pub fn page(self) -> String {
        let Self { waiting, running, kv } = self;
        let series = r#"{engine="0",model_name="m"}"#;
        format!(
            "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{series} {waiting}\n\
             # TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{series} {running}\n\
             # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{series} {kv}\n"
        )
    }
}

/// How a stub answers `GET /metrics`.
#[derive(Clone, Debug)]
pub enum Metrics {
    /// 200 with this text.
    Page(String),
    /// Exactly these bytes, status line and headers included, then a close.
    Raw(Bytes),
    /// Reads the request and says nothing.
    Hang,
    /// Sends the headers of a page and nothing more.
    HangAfterHead,
    /// Sends a page at one byte a second.
    Trickle(String),
    /// 200 with a page of about so many bytes, true figures at its end.
    Huge(usize),
    /// Closes without a byte.
    Close,
}

impl Metrics {
    /// A page with these figures.
    pub fn load(load: Load) -> Self {
        Self::Page(load.page())
    }
}
