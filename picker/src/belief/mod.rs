//! The router's belief: which endpoint holds how much of a prompt, and who took a cold request last.
//!
//! The index learns from the router's own commits only; it does not hear of evictions at the engine. So it is bounded
//! per endpoint like the engine's cache and evicts in the same order: the least recently used first, of one prompt its
//! tail. Whoever holds a block therefore holds all before it.
//!
//! Prompts lie as runs of blocks in shards of `SLOTS` endpoints (`space/`). A look-up takes no lock and writes
//! nothing (`version.rs`); a commit locks the endpoint's shard. In what order blocks were used is the writers' own
//! (`order.rs`, `turn.rs`). Memory is fixed by the capacities: [`Index::memory`] says what may be needed before any is.

mod atomic;
mod cold;
#[cfg(all(test, loom))]
mod model;
mod order;
mod shard;
mod space;
mod turn;
mod version;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use cold::{Colds, LastCold, Taken};
use shard::Writer;
use space::{Room, Space};

use crate::hash::{BlockHash, Blocks};
use crate::traffic::Traffic;

/// Endpoints that one index can know at a time.
pub const ENDPOINTS_MAX: usize = 1_024;

/// Blocks that one endpoint can be believed to hold.
pub const CAPACITY_MAX: usize = space::CUT_MAX;

/// Ids are below this.
pub const IDS_MAX: usize = 65_536;

/// Endpoints of a shard. They share one copy of each prompt's hashes, and one writer's lock.
const SLOTS: usize = 64;

/// Looks at a shard in the midst of changes before a reader waits for the writer.
const LOOKS_MAX: usize = 64;

/// Endpoint as the fleet interned it: dense from 0, so it indexes a slice. One that left may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u32);

/// Why an endpoint cannot be believed to hold anything. It can be routed to all the same: it matches 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// There is no place for another.
    #[error("the index knows {ENDPOINTS_MAX} endpoints, ids below {IDS_MAX}, and has no place for another")]
    TooMany,
    /// The system has no such memory.
    #[error("no memory for a belief of {0} blocks")]
    NoMemory(usize),
}

/// A commit that may still have to be undone: the request failed before the engine's first byte.
///
/// Of an endpoint that left or joined again meanwhile there is nothing to undo, so this names the belief, not only the id.
#[derive(Debug, Default)]
pub struct Commit(Option<Recorded>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recorded {
    id: EndpointId,
    belief: u64,
    number: u32,
    /// For a cold request, its place in the cold order.
    cold: Option<Taken>,
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

/// What the index takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Taken by what is believed now.
    pub bytes: usize,
    /// At most, with the capacities as they are.
    pub bytes_max: usize,
}

impl Memory {
    /// Bytes that an index of so many endpoints, each of this capacity, comes to at most.
    pub fn needed(endpoints: usize, capacity: usize) -> usize {
        let (whole, rest) = (endpoints / SLOTS, endpoints % SLOTS);
        let shard = |endpoints: usize| shard::bytes_needed(endpoints, capacity);
        whole * shard(SLOTS) + if rest > 0 { shard(rest) } else { 0 }
    }
}

/// Who holds what. Shared by all requests.
#[derive(Debug)]
pub struct Index {
    fleet: ArcSwap<Fleet>,
    /// Held by whoever changes the fleet; the last number given to a belief.
    beliefs: Mutex<u64>,
    colds: Colds,
    traffic: Traffic,
    key: u64,
}

/// Which endpoint sits where. Replaced as a whole.
#[derive(Clone, Debug, Default)]
struct Fleet {
    /// By id.
    seats: Vec<Option<Seat>>,
    shards: Vec<Shard>,
}

#[derive(Clone, Debug)]
struct Seat {
    shard: u16,
    slot: u16,
    belief: u64,
    last_cold: Arc<LastCold>,
}

#[derive(Clone, Debug)]
struct Shard {
    /// The writer's, for readers.
    space: Arc<Space>,
    writer: Arc<Mutex<Writer>>,
}

impl Default for Index {
    fn default() -> Self {
        let (fleet, beliefs, colds, traffic) = Default::default();
        Self { fleet, beliefs, colds, traffic, key: RandomState::new().hash_one(0) }
    }
}

impl Index {
    /// An index with room for so many endpoints of this capacity. More can join, each for a copy of what its shard holds.
    pub fn for_fleet(endpoints: usize, capacity: usize) -> Result<Self, JoinError> {
        let index = Self::default();
        let mut fleet = Fleet::default();
        for first in (0..endpoints.min(ENDPOINTS_MAX)).step_by(SLOTS) {
            let room = shard::room((endpoints - first).min(SLOTS), capacity);
            fleet.shards.push(index.shard(room).ok_or(JoinError::NoMemory(capacity))?);
        }
        index.fleet.store(Arc::new(fleet));
        Ok(index)
    }

    /// Adds an endpoint, or empties a known one. Its belief is bounded by `capacity` blocks, at most [`CAPACITY_MAX`].
    pub fn join(&self, id: EndpointId, capacity: usize) -> Result<(), JoinError> {
        let mut beliefs = self.beliefs.lock();
        let mut fleet = Fleet::clone(&self.fleet.load());
        self.remove(&mut fleet, id);
        self.seat(fleet, &mut beliefs, id, capacity)
    }

    /// Forgets an endpoint. Its memory goes to those that join later, or back to the system with the last of its shard.
    pub fn leave(&self, id: EndpointId) {
        let _changing = self.beliefs.lock();
        let mut fleet = Fleet::clone(&self.fleet.load());
        self.remove(&mut fleet, id);
        self.fleet.store(Arc::new(fleet));
    }

    /// Forgets what an endpoint holds: it restarted, slept or was reset.
    pub fn clear(&self, id: EndpointId) {
        let mut beliefs = self.beliefs.lock();
        let mut fleet = Fleet::clone(&self.fleet.load());
        if let Some(seat) = fleet.seats.get_mut(id.0 as usize).and_then(Option::as_mut) {
            *beliefs += 1;
            forget(&fleet.shards[usize::from(seat.shard)].writer, seat, *beliefs);
            seat.belief = *beliefs;
            self.fleet.store(Arc::new(fleet));
        }
    }

    /// Changes the capacity of an endpoint; what still fits stays believed. Whether it was another; cheap where not.
    pub fn resize(&self, id: EndpointId, capacity: usize) -> Result<bool, JoinError> {
        if self.size(id).is_some_and(|size| size.capacity == capacity.min(CAPACITY_MAX)) {
            return Ok(false);
        }
        let _changing = self.beliefs.lock();
        let mut fleet = Fleet::clone(&self.fleet.load());
        let Some((seat, shard)) = fleet.find(id) else { return Ok(false) };
        let (number, slot) = (usize::from(seat.shard), usize::from(seat.slot));
        let (belief, writer) = (seat.belief, Arc::clone(&shard.writer));
        let mut writer = writer.lock();
        writer.provide(slot, belief, capacity).ok_or(JoinError::NoMemory(capacity))?;
        writer.shrink(slot, belief);
        fleet.shards[number].space = Arc::clone(&writer.space);
        // Before the lock is released: who reads after a commit must find its space.
        self.fleet.store(Arc::new(fleet));
        Ok(true)
    }

    /// How many leading blocks each endpoint holds, summed over the prompts; in the order of `ids`. An unknown endpoint
    /// matches 0.
    ///
    /// HOT: `bench/benches/index.rs`. O(shards x runs x (log blocks + holders) + ids); one or two allocations.
    pub fn look_up(&self, blocks: &Blocks, ids: impl Iterator<Item = EndpointId>) -> Vec<u32> {
        let fleet = self.fleet.load();
        let (mut few, mut many) = ([0; SLOTS], Vec::new());
        let depths = if let [_, _, ..] = fleet.shards[..] {
            many.resize(fleet.shards.len() * SLOTS, 0);
            &mut many[..]
        } else {
            &mut few[..]
        };
        for (shard, depths) in fleet.shards.iter().zip(depths.chunks_exact_mut(SLOTS)) {
            shard.look_up(blocks, depths);
        }
        ids.map(|id| fleet.find(id).map_or(0, |(seat, _)| depths[seat.number()])).collect()
    }

    /// Blocks of each prompt's leading run that one endpoint holds, summed.
    pub fn matched(&self, id: EndpointId, blocks: &Blocks) -> u32 {
        self.look_up(blocks, [id].into_iter())[0]
    }

    /// What the requests of all endpoints had in common.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Number of the last cold request that went to the endpoint, from 1; 0 for never.
    pub fn last_cold(&self, id: EndpointId) -> u64 {
        self.fleet.load().find(id).map_or(0, |(seat, _)| seat.last_cold.number())
    }

    /// Records the blocks at the endpoint and, for a cold request, makes it the latest of the cold order.
    pub fn commit(&self, id: EndpointId, blocks: &Blocks, cold: bool) -> Commit {
        let fleet = self.fleet.load();
        let Some((seat, shard)) = fleet.find(id) else { return Commit::default() };
        let mut writer = shard.writer.lock();
        let Some(number) = writer.commit(seat.slot.into(), seat.belief, blocks.prompts()) else {
            return Commit::default();
        };
        let cold = cold.then(|| seat.last_cold.take(&self.colds));
        Commit(Some(Recorded { id, belief: seat.belief, number, cold }))
    }

    /// Whether a commit could push out a good part of what the endpoint is believed to hold: more than a quarter.
    ///
    /// What it evicts does not come back when it is undone, so such a prompt is better committed when the engine has answered.
    pub fn is_large(&self, id: EndpointId, blocks: &Blocks) -> bool {
        self.size(id).is_some_and(|size| blocks.total() > size.capacity / 4)
    }

    /// Takes back what a commit of the same `blocks` added, less what others have used since.
    pub fn undo(&self, commit: Commit, blocks: &Blocks) {
        let Some(Recorded { id, belief, number, cold }) = commit.0 else { return };
        let fleet = self.fleet.load();
        let Some((seat, shard)) = fleet.find(id).filter(|(seat, _)| seat.belief == belief) else { return };
        shard.writer.lock().undo(seat.slot.into(), belief, number, blocks.prompts());
        if let Some(taken) = cold {
            seat.last_cold.give_back(taken);
        }
    }

    /// Believes no more than the first `kept` blocks of a request's first prompt: the engine said that it had no more.
    ///
    /// What the endpoint holds of other prompts behind that point is a hole's far side: it counts for nothing until
    /// the gap is filled again. Then it counts as before, unless the prompt that fills the gap itself goes on behind it.
    pub fn truncate(&self, id: EndpointId, blocks: &Blocks, kept: usize) {
        let fleet = self.fleet.load();
        if let (Some((seat, shard)), Some(prompt)) = (fleet.find(id), blocks.prompts().next()) {
            shard.writer.lock().truncate(seat.slot.into(), seat.belief, prompt, kept);
        }
    }

    /// What the index holds for an endpoint, if it knows it; `None` also while the endpoint joins or is cleared.
    pub fn size(&self, id: EndpointId) -> Option<Size> {
        let fleet = self.fleet.load();
        let (seat, shard) = fleet.find(id)?;
        let mut writer = shard.writer.lock();
        let holding = writer.holding(seat.slot.into(), seat.belief)?;
        Some(Size { blocks: holding.blocks, capacity: holding.capacity, evicted: holding.evicted })
    }

    /// What the index takes, and what it may take.
    pub fn memory(&self) -> Memory {
        self.fleet.load().shards.iter().fold(Memory::default(), |sum, shard| {
            let (bytes_max, bytes) = shard.writer.lock().bytes();
            Memory { bytes: sum.bytes + bytes, bytes_max: sum.bytes_max + bytes_max }
        })
    }

    /// Seats an endpoint that has no seat, and shows the fleet to everybody, with it or without.
    fn seat(
        &self,
        mut fleet: Fleet,
        beliefs: &mut u64,
        id: EndpointId,
        capacity: usize,
    ) -> Result<(), JoinError> {
        let shard = match self.shard_for(&mut fleet, id, capacity) {
            Ok(shard) => shard,
            Err(error) => {
                self.fleet.store(Arc::new(fleet));
                return Err(error);
            }
        };
        *beliefs += 1;
        let writer = Arc::clone(&fleet.shards[shard].writer);
        let mut writer = writer.lock();
        let slot = writer.vacant().filter(|&slot| writer.provide(slot, *beliefs, capacity).is_some());
        if let Some(slot) = slot {
            let place = id.0 as usize;
            fleet.seats.resize(fleet.seats.len().max(place + 1), None);
            let (shard, slot, belief) = (shard as u16, slot as u16, *beliefs);
            fleet.seats[place] = Some(Seat { shard, slot, belief, last_cold: Arc::default() });
        }
        fleet.shards[shard].space = Arc::clone(&writer.space);
        // Before the lock is released: who reads after a commit must find its space.
        self.fleet.store(Arc::new(fleet));
        slot.map(|_| ()).ok_or(JoinError::NoMemory(capacity))
    }

    /// A shard with a vacant slot.
    fn shard_for(&self, fleet: &mut Fleet, id: EndpointId, capacity: usize) -> Result<usize, JoinError> {
        if id.0 as usize >= IDS_MAX || fleet.seats.iter().flatten().count() >= ENDPOINTS_MAX {
            return Err(JoinError::TooMany);
        }
        let vacant = fleet.shards.iter().position(|shard| shard.writer.lock().vacant().is_some());
        if let Some(shard) = vacant {
            return Ok(shard);
        }
        fleet.shards.push(self.shard(Room::of(0, 0)).ok_or(JoinError::NoMemory(capacity))?);
        Ok(fleet.shards.len() - 1)
    }

    fn remove(&self, fleet: &mut Fleet, id: EndpointId) {
        let Some(seat) = fleet.seats.get_mut(id.0 as usize).and_then(Option::take) else { return };
        let number = usize::from(seat.shard);
        forget(&fleet.shards[number].writer, &seat, 0);
        let mut writer = fleet.shards[number].writer.lock();
        writer.vacate(seat.slot.into());
        let empty = writer.is_empty();
        drop(writer);
        if empty && let Some(new) = self.shard(Room::of(0, 0)) {
            fleet.shards[number] = new;
        }
        while fleet.shards.last().is_some_and(|shard| shard.writer.lock().is_empty()) {
            fleet.shards.pop();
        }
    }

    fn shard(&self, room: Room) -> Option<Shard> {
        let space = Arc::new(Space::new(room, self.key)?);
        Some(Shard { writer: Arc::new(Mutex::new(Writer::new(Arc::clone(&space)))), space })
    }
}

/// Lets go of what a seat's endpoint holds, under another name for what is believed from now on. In steps, so that the
/// shard's readers never wait for all of it.
fn forget(writer: &Mutex<Writer>, seat: &Seat, belief: u64) {
    let slot = seat.slot.into();
    if let Some(holding) = writer.lock().holding(slot, seat.belief) {
        holding.belief = belief;
    }
    while !writer.lock().drop_some(slot, belief) {}
}

impl Fleet {
    fn find(&self, id: EndpointId) -> Option<(&Seat, &Shard)> {
        let seat = self.seats.get(id.0 as usize)?.as_ref()?;
        Some((seat, &self.shards[usize::from(seat.shard)]))
    }
}

impl Seat {
    fn number(&self) -> usize {
        usize::from(self.shard) * SLOTS + usize::from(self.slot)
    }
}

impl Shard {
    /// Adds up each slot's depths over the prompts; `depths` all 0 before.
    fn look_up(&self, blocks: &Blocks, depths: &mut [u32]) {
        let mut prompts = blocks.prompts();
        if let Some(first) = prompts.next() {
            self.depths(first, depths);
        }
        for prompt in prompts {
            let mut more = [0; SLOTS];
            self.depths(prompt, &mut more);
            depths.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }

    fn depths(&self, hashes: &[BlockHash], depths: &mut [u32]) {
        for _ in 0..LOOKS_MAX {
            if self.space.version.read(|| self.space.depths(hashes, depths)).is_some() {
                return;
            }
            depths.fill(0);
            std::hint::spin_loop();
        }
        self.writer.lock().space.depths(hashes, depths);
    }
}
