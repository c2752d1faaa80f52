//! Every default and every bound of the product in one place, so that no limit hides in the code that keeps
//! it.
//!
//! Units are in the name or in the type. `*_MIN` and `*_MAX` bound what an operator may write; the rest are
//! defaults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use picker::hash::BlockSize;
use picker::policy::Policy;

use crate::Tokenizer;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const GIB: usize = 1024 * MIB;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Where clients are served: loopback, until somebody says otherwise.
pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Metrics, health and state: loopback, because state shows what the fleet is doing.
pub const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// Listeners in one process.
pub const LISTENERS_MAX: usize = 16;

/// The policy of a pool: the soonest first token. ARCHITECTURE.md has the measurements that chose it.
pub const POLICY: Policy = Policy::ExpectedTtft;
/// What a long match counts beyond its share: nothing, as in llm-d.
pub const MATCH_LENGTH_WEIGHT: f64 = 0.0;
/// The seed of the tie-break and of the policy `random`: fixed, so that a run replays.
pub const SEED: u64 = 0;
/// Whether an answer carries the `x-prefixroute-*` headers.
pub const RESPONSE_HEADERS: bool = true;

/// Endpoints of one pool. Each has a poller, a row of metrics and a share of the index.
pub const ENDPOINTS_MAX: usize = picker::belief::ENDPOINTS_MAX;
/// Bytes of an endpoint's name: that of a DNS label, which a pod's name mostly is.
pub const ENDPOINT_NAME_BYTES_MAX: usize = 63;
/// The port of a URL that names none.
pub const ENDPOINT_PORT: u16 = 80;

/// The port of an `https://` URL that names none.
pub const ENDPOINT_TLS_PORT: u16 = 443;
/// The largest weight of an endpoint beside the 1 of an ordinary one.
pub const ENDPOINT_WEIGHT_MAX: f64 = 1000.0;
/// Headers that an endpoint, or a browser's list, may have.
pub const HEADERS_MAX: usize = 32;
/// Bytes of a header's value: what servers take in a line.
pub const HEADER_VALUE_BYTES_MAX: usize = 4096;

/// Pools in one process. Each has metrics, an index and tasks of its own.
pub const POOLS_MAX: usize = 64;
/// The name of the only pool.
pub const POOL_NAME: &str = "default";
/// Models that one pool may name, and aliases beside them.
pub const MODELS_MAX: usize = 256;
/// Bytes of a model's name.
pub const MODEL_NAME_BYTES_MAX: usize = 256;
/// Endpoints that one request is tried at.
pub const ATTEMPTS_MAX: NonZeroU32 = NonZeroU32::new(3).expect("3 is not 0");
/// Most endpoints that one request may be tried at: past it a poisonous request would break a fleet.
pub const ATTEMPTS_LIMIT: u64 = 10;
/// Requests that are sent once more, in hundredths of all (Envoy's retry budget).
pub const RETRY_BUDGET_PERCENT: u32 = 20;
/// Failures in a row that leave an endpoint out (Envoy's `consecutive_5xx`).
pub const FAILURES: NonZeroU32 = NonZeroU32::new(5).expect("5 is not 0");
/// Most failures in a row that an operator may wait for.
pub const FAILURES_LIMIT: u64 = 1_000;
/// Time without a first token, while streams wait for one: longer than a prefill, shorter than a client's patience.
pub const STALL: Duration = Duration::from_secs(30);
/// Less would take a long prefill for a stall.
pub const STALL_MIN: Duration = Duration::from_millis(100);
/// How long an endpoint is left out the first time.
pub const COOLDOWN: Duration = Duration::from_secs(5);
/// The longest that doubling makes of it.
pub const COOLDOWN_MAX: Duration = Duration::from_secs(30);
/// From one look at an engine's health path to the next.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// Shorter intervals cost the engine more than a sooner notice is worth.
pub const HEALTH_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Requests that may wait at most: each holds its body in memory.
pub const QUEUE_LIMIT: u64 = 100_000;
/// How long one may wait.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
/// The highest priority.
pub const PRIORITY_MAX: u64 = 100;
/// Shorter intervals cost the engines more than an adapter's sooner discovery is worth.
pub const MODELS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// From one look at the addresses of a name to the next.
pub const DNS_INTERVAL: Duration = Duration::from_secs(5);
/// Shorter intervals cost the name server more than a replica's sooner discovery is worth.
pub const DNS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Labels of one endpoint of a discovery file: more than pods have.
pub const LABELS_MAX: usize = 256;
/// From one reading of an engine's `/v1/models` to the next.
pub const MODELS_INTERVAL: Duration = Duration::from_secs(10);

/// How a prompt is cut into tokens for hashing.
pub const TOKENIZER: Tokenizer = Tokenizer::Bytes;
/// The block of the tokenizer `bytes`: 64 pseudo-tokens of 4 bytes.
pub const BLOCK_OF_BYTES: BlockSize = BlockSize::ROUTER;
/// The block of the tokenizer `words`: 16 of them.
pub const BLOCK_OF_WORDS: BlockSize = BlockSize::ENGINE;
/// Most tokens in a block: larger ones hold no prompt's prefix.
pub const BLOCK_TOKENS_MAX: u32 = 65_536;
/// Blocks of belief per endpoint until its engine tells its own cache size (DESIGN 5: llm-d's default).
pub const CAPACITY_BLOCKS: usize = 31_250;
/// Most blocks of belief per endpoint: at 24 bytes each, 1.5 GiB.
pub const CAPACITY_BLOCKS_MAX: usize = picker::belief::CAPACITY_MAX;
/// Most blocks of belief that an engine's own word can claim: 67 million tokens, above any replica's cache.
pub const ENGINE_BLOCKS_MAX: usize = MIB;

/// Time from one reading of an endpoint's `/metrics` to the next.
pub const SCRAPE_INTERVAL: Duration = Duration::from_millis(100);
/// Shorter intervals cost the engine more than a fresher figure is worth.
pub const SCRAPE_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// A reading that takes longer has failed.
pub const SCRAPE_TIMEOUT: Duration = Duration::from_secs(1);
/// A figure older than this is no longer known.
pub const STALE_AFTER: Duration = Duration::from_secs(2);
/// `stale_after` in scrape intervals, at least: with less, one late page would make every figure unknown.
pub const STALE_AFTER_INTERVALS_MIN: u32 = 2;
/// Bytes of a `/metrics` page; a vLLM page has about 70 KB.
pub const PAGE_BYTES_MAX: usize = 4 * MIB;

/// Bytes of one request's body.
pub const BODY_BYTES_MAX: usize = 32 * MIB;
/// Bytes of all bodies held in memory at once.
pub const BODIES_BYTES_MAX: usize = GIB;
/// Bytes of a request's head: first line and headers. What proxies before us mostly let pass.
pub const HEADERS_BYTES_MAX: usize = 64 * KIB;
/// The smallest head that may be asked for: browsers send some 1,000 bytes.
pub const HEADERS_BYTES_MIN: usize = KIB;
/// The largest: past it pingora's parser refuses a head.
pub const HEADERS_BYTES_LIMIT: usize = MIB - 1;
/// Headers of a request, or of an engine's answer, over HTTP/1: pingora's parser has room for no more.
pub const HEADERS_COUNT_MAX: usize = 256;
/// Connections of clients at once: at 24 KiB for a silent one, 1.5 GiB.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Past it a number of connections is a mistake.
pub const CONNECTIONS_LIMIT: u64 = 16_777_216;
/// Connections to the admin listener at once.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
/// Descriptors that neither clients nor engines get: the admin listener's, and those of listeners, files, the log, look-ups of
/// names and the runtime.
pub const DESCRIPTORS_RESERVED: usize = 192;
/// The largest value of any size in the file: past it a size is a mistake in units.
pub const BYTES_MAX: usize = 1024 * GIB;

/// Certificates of one listener.
pub const CERTIFICATES_MAX: usize = 64;
/// Tenants in one process. Each has limits and labels of its own.
pub const TENANTS_MAX: usize = 1024;
/// Keys of one tenant: enough to hand one to each of its services, and to change them one by one.
pub const TENANT_KEYS_MAX: usize = 64;
/// Bytes of the secret that isolates caches, at least: fewer could be guessed.
pub const CACHE_SALT_SECRET_BYTES_MIN: usize = 16;
/// Origins that browsers may come from.
pub const ORIGINS_MAX: usize = 64;
/// How long browsers may remember what they were told.
pub const CORS_MAX_AGE: Duration = Duration::from_secs(10 * 60);
/// Patterns of paths that are served.
pub const PATHS_MAX: usize = 256;
/// Bytes of such a pattern.
pub const PATH_BYTES_MAX: usize = 256;
/// Networks of proxies that are believed.
pub const TRUSTED_PROXIES_MAX: usize = 256;
/// Whether engines are told the client's address.
pub const FORWARDED_HEADERS: bool = false;
/// Whether the file is looked at for changes.
pub const WATCH: bool = true;

/// Time for a request's head to arrive.
pub const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a whole request body to arrive.
pub const REQUEST_BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a connection to an endpoint to stand.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to the first byte of an answer: a queued prefill may be long.
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Time between two chunks of an answer.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Time that a client may leave an answer unread.
pub const CLIENT_WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Life of an unused connection to an endpoint. uvicorn, which vLLM runs on, closes its side after 5 s.
pub const UPSTREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Life of an unused connection of a client.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that running requests get after SIGTERM. Zero stops at once.
pub const DRAIN: Duration = Duration::from_secs(30);
/// Time in which a router that got SIGTERM is not ready and takes connections all the same. A restart on one machine would only take longer
/// by it; who is found by others (Kubernetes, a load balancer) needs the time that they take to look.
pub const DRAIN_DELAY: Duration = Duration::ZERO;
/// Time that an unused connection of a client stays in a drain: many round trips, and hardly a delay of a restart.
pub const DRAIN_IDLE: Duration = Duration::from_secs(1);
/// The longest duration in the file: past it a duration is a mistake in units.
pub const DURATION_MAX: Duration = DAY;

/// Bytes of a configuration file.
pub const FILE_BYTES_MAX: usize = MIB;
/// Characters of a bad value that a fault repeats.
pub const FOUND_CHARS_MAX: usize = 80;
/// Lists and maps inside each other in a file; ours has 5.
pub const TREE_DEPTH_MAX: usize = 64;
/// Values of a file, with those that its aliases repeat.
pub const TREE_NODES_MAX: usize = 262_144;
/// Bytes of Kubernetes objects that `pool` reads: a thousand pods have about 15 MB.
pub const OBJECTS_BYTES_MAX: usize = 32 * MIB;
/// Values of Kubernetes objects: a pod has about 600.
pub const OBJECTS_NODES_MAX: usize = 2 * MIB;
/// Plugins, profiles and other items of one list in an EndpointPickerConfig.
pub const SCHEDULER_LIST_MAX: usize = 256;
/// Bytes that the aliases of a file repeat.
pub const ALIASED_BYTES_MAX: usize = MIB;
/// Faults of one configuration that are told.
pub const FAULTS_MAX: usize = 256;
/// Characters up to which `check --explain` aligns origins.
pub const EXPLAIN_COLUMN_MAX: usize = 80;

/// Bytes of a file of the decision log.
pub const DECISION_FILE_BYTES: usize = 64 * MIB;
/// A smaller one would be renamed all the time.
pub const DECISION_FILE_BYTES_MIN: usize = 64 * KIB;
/// A larger one is none that anybody reads at once.
pub const DECISION_FILE_BYTES_MAX: usize = 16 * GIB;
/// Files of the decision log.
pub const DECISION_FILES: u64 = 4;
/// More would be renamed each time that one is full.
pub const DECISION_FILES_MAX: u64 = 100;
