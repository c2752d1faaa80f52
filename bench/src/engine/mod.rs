//! One model of an engine, for the fake server and for the simulator.
//!
//! What decides whether prefix routing pays is small: a bounded block cache, a few lanes that prefill at a
//! known rate, and the figures that the engine exports about both. Both users call this one model, so a
//! figure that the simulator prints is a figure that the fake server shows over HTTP. Never here: sockets,
//! clocks, async.

pub mod cache;
pub mod lanes;
mod lru;
pub mod prefill_pool;
pub mod replica;
pub mod virtual_time;

pub use cache::{BlockCache, CacheFigures, Prompt};
pub use lanes::{Lanes, Seconds, Ticket, Timing};
pub use lru::EvictionOrder;
pub use prefill_pool::{Link, PrefillPool};
pub use replica::{Admission, Admitted, Figures, Replica, ReplicaOptions};
pub use virtual_time::{Happened, VirtualReplica, What};
