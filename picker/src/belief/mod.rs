//! The router's belief: which endpoint holds how much of a prompt, and who took a cold request last.
//!
//! The index learns from the router's own commits only; it does not hear of evictions at the engine. So it is bounded
//! per endpoint like the engine's cache and evicts in the same order. Matching takes no write lock and changes nothing;
//! only a commit refreshes. Memory is bounded: `capacity x BYTES_PER_BLOCK` an endpoint.

mod lru;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

pub use lru::{BYTES_PER_BLOCK, Lru, Order, Recording};

use crate::hash::Blocks;

/// Capacity of an endpoint whose engine has not told its own: blocks. Source: llm-d's `lruCapacityPerServer`.
pub const CAPACITY_BLOCKS: usize = 31_250;

/// Endpoints that one index can know, ever: ids are not used again.
pub const ENDPOINTS_MAX: usize = 65_536;

/// Endpoint as the fleet interned it: dense from 0, so it indexes a slice; never used again in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u32);

/// A commit that may still have to be undone: the request failed before the engine's first byte.
///
/// Of an endpoint that left or joined again meanwhile there is nothing to undo, so this names the belief, not the id.
#[derive(Debug, Default)]
pub struct Commit {
    held: Weak<Held>,
    recording: Option<Recording>,
    /// The endpoint's place in the cold order before and after, for a cold request.
    cold: Option<(u64, u64)>,
}

/// Who holds what. Shared by all requests; cheap to clone.
#[derive(Debug, Default)]
pub struct Index {
    endpoints: RwLock<Vec<Option<Arc<Held>>>>,
    colds: AtomicU64,
    order: Order,
}

#[derive(Debug)]
struct Held {
    blocks: RwLock<Lru>,
    /// Number of the last cold request that went here, from 1; 0 for never.
    last_cold: AtomicU64,
}

impl Index {
    /// An index without endpoints that evicts in the given order.
    pub fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Adds an endpoint, or empties a known one. Its belief is bounded by `capacity` blocks.
    pub fn join(&self, id: EndpointId, capacity: usize) {
        let held = Held { blocks: RwLock::new(Lru::new(capacity, self.order)), last_cold: AtomicU64::new(0) };
        let mut endpoints = self.endpoints.write();
        let place = id.0 as usize;
        if place < ENDPOINTS_MAX {
            let length = endpoints.len().max(place + 1);
            endpoints.resize_with(length, || None);
            endpoints[place] = Some(Arc::new(held));
        }
    }

    /// Forgets an endpoint and gives its memory back.
    pub fn leave(&self, id: EndpointId) {
        if let Some(slot) = self.endpoints.write().get_mut(id.0 as usize) {
            *slot = None;
        }
    }

    /// Forgets what an endpoint holds: it restarted, slept or was reset.
    pub fn clear(&self, id: EndpointId) {
        if let Some(held) = self.held(id) {
            held.blocks.write().clear();
        }
    }

    /// Changes the capacity of an endpoint; what still fits stays believed.
    pub fn resize(&self, id: EndpointId, capacity: usize) {
        if let Some(held) = self.held(id)
            && held.blocks.read().capacity() != capacity
        {
            held.blocks.write().resize(capacity);
        }
    }

    /// Blocks of each prompt's leading run that the endpoint holds, summed. An unknown endpoint matches 0.
    pub fn matched(&self, id: EndpointId, blocks: &Blocks) -> u32 {
        let Some(held) = self.held(id) else { return 0 };
        let lru = held.blocks.read();
        blocks.prompts().map(|prompt| lru.matched(prompt) as u32).sum()
    }

    /// Number of the last cold request that went to the endpoint, from 1; 0 for never.
    pub fn last_cold(&self, id: EndpointId) -> u64 {
        self.held(id).map_or(0, |held| held.last_cold.load(Ordering::Relaxed))
    }

    /// Records the blocks at the endpoint and, for a cold request, makes it the latest of the cold order.
    pub fn commit(&self, id: EndpointId, blocks: &Blocks, cold: bool) -> Commit {
        let Some(held) = self.held(id) else { return Commit::default() };
        let mut lru = held.blocks.write();
        let recording = Some(lru.record_all(blocks.prompts()));
        let cold = cold.then(|| {
            let now = self.colds.fetch_add(1, Ordering::Relaxed) + 1;
            (held.last_cold.swap(now, Ordering::Relaxed), now)
        });
        Commit { held: Arc::downgrade(&held), recording, cold }
    }

    /// Takes back what a commit of the same `blocks` added, less what others have used since.
    pub fn undo(&self, commit: Commit, blocks: &Blocks) {
        let (Some(held), Some(recording)) = (commit.held.upgrade(), commit.recording) else { return };
        let mut lru = held.blocks.write();
        blocks.prompts().for_each(|prompt| lru.undo(recording, prompt));
        if let Some((before, now)) = commit.cold {
            let _ = held.last_cold.compare_exchange(now, before, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// What the index holds for an endpoint, if it knows it.
    pub fn size(&self, id: EndpointId) -> Option<Size> {
        let held = self.held(id)?;
        let lru = held.blocks.read();
        Some(Size { blocks: lru.len(), capacity: lru.capacity(), evicted: lru.evicted() })
    }

    fn held(&self, id: EndpointId) -> Option<Arc<Held>> {
        self.endpoints.read().get(id.0 as usize)?.clone()
    }
}

/// How much an endpoint's belief holds, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Blocks believed.
    pub blocks: usize,
    /// Blocks that may be believed.
    pub capacity: usize,
    /// Blocks evicted so far.
    pub evicted: u64,
}
