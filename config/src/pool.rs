//! A pool: endpoints that serve the same models, and how one is chosen among them.

use std::collections::BTreeMap;
use std::time::Duration;

use picker::Tuning;
use picker::hash::BlockSize;
use picker::policy::Policy;
use picker::score::Weights;
use picker::score::prefix::MatchLength;

use crate::{ClientTls, Endpoint, Health, PoolLimits, Queue, Retry, Tokenizer};

/// The endpoints that serve the same models, and how one is chosen among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Unique; safe in a label, like an endpoint's.
    pub name: String,
    /// Models that it serves, beside the adapters that its engines list. Empty: all that no other pool serves.
    pub models: Vec<String>,
    /// Further names of models: the model that an engine is asked for, by what a client asks for.
    pub aliases: BTreeMap<String, String>,
    /// From one reading of each engine's `/v1/models` to the next; none where they are not read.
    pub models_interval: Option<Duration>,
    /// What the engines are, and so what their figures are called.
    pub engine: Engine,
    /// What ranks the endpoints.
    pub policy: Policy,
    /// In place of the preset of a policy that sums; always absent for one that does not.
    pub weights: Option<Weights>,
    /// How much a long match counts beyond its share, in the scorer `prefix`.
    pub match_length: MatchLength,
    /// Constants of the scorers and of the policy `affinity`.
    pub tuning: Tuning,
    /// The seed of the tie-break and of the policy `random`.
    pub seed: u64,
    /// Unique in name over all pools, in address within the pool. May be empty: the pool serves once it has some.
    pub endpoints: Vec<Endpoint>,
    /// Further endpoints, found while the router runs; absent where all are written. Those of a file are among
    /// [`endpoints`](Self::endpoints).
    pub dns: Option<Dns>,
    /// How engines are spoken to where their URL says `https`.
    pub tls: ClientTls,
    /// What the router believes of the caches.
    pub index: Index,
    /// How the load of the endpoints is read.
    pub load: Load,
    /// What becomes of a request that an endpoint failed.
    pub retry: Retry,
    /// When an endpoint is left out.
    pub health: Health,
    /// Requests that may be in flight.
    pub limits: PoolLimits,
    /// Who waits beyond them.
    pub queue: Queue,
    /// How long each step of a request may take.
    pub timeouts: Timeouts,
}

/// Endpoints by the addresses of a name, such as a headless Service's: each address is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// The name, in lower case.
    pub host: String,
    /// The port of each.
    pub port: u16,
    /// From one look to the next.
    pub interval: Duration,
}

/// What engines are, and under which names they tell their load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Whose names hold.
    pub kind: EngineKind,
    /// Another series for the requests that wait: its name, labels in braces as in a query where it needs some.
    pub waiting: Option<String>,
    /// Another series for the requests that run.
    pub running: Option<String>,
    /// Another series for the share of the KV cache in use.
    pub kv_usage: Option<String>,
}

/// Engines whose metrics are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's own server.
    TrtllmServe,
    /// TensorRT-LLM in Triton.
    TritonTensorrtLlm,
    /// Triton with any other backend.
    Triton,
    /// llama.cpp's server.
    LlamaCpp,
}

/// How prompts become blocks, and how many blocks are remembered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Index {
    /// How a prompt is cut into tokens.
    pub tokenizer: Tokenizer,
    /// Tokens of that tokenizer in one block.
    pub block: BlockSize,
    /// Blocks remembered per endpoint until its engine tells its own cache size; at least 1.
    pub capacity_blocks: usize,
}

/// How the load of the endpoints is read from their `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// From one reading to the next.
    pub scrape_interval: Duration,
    /// A reading that takes longer has failed.
    pub scrape_timeout: Duration,
    /// A figure older than this is unknown; at least 2 × `scrape_interval`.
    pub stale_after: Duration,
    /// A longer page is a failed reading.
    pub page_bytes_max: usize,
}

/// How long each step of a request may take at an endpoint. None is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection to an endpoint to stand, TLS included.
    pub connect: Duration,
    /// To the first byte of an answer.
    pub first_byte: Duration,
    /// Between two chunks of an answer.
    pub idle: Duration,
    /// Life of an unused connection to an endpoint.
    pub upstream_idle: Duration,
}

impl EngineKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 6] =
        [Self::Vllm, Self::Sglang, Self::TrtllmServe, Self::TritonTensorrtLlm, Self::Triton, Self::LlamaCpp];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 6] =
        ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton", "llama.cpp"];

    /// The kind of that name in the file.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The name in the file.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}
