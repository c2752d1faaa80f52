//! What a replica of the lesson remembers: whole system prompts and conversations, the oldest out first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{SYSTEM_TOKENS, TURN_TOKENS, Turn};

/// A replica's memory of prompts, whatever it is made of. Requests are named by their number in the workload, from 0.
pub trait PrefixCache {
    /// Tokens of the prompt that are cached now. Changes nothing.
    fn cached_tokens(&self, request: usize) -> u32;
    /// Looks the request's prompt up, then caches it. Returns what was cached before. A request that the workload does
    /// not have has nothing cached and leaves nothing.
    fn admit(&mut self, request: usize) -> u32;
}

/// What is kept, and thrown out, as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    System(u32),
    Script { conversation: u32, script: u32 },
}

#[derive(Debug)]
struct Held {
    tokens: u32,
    /// Place in the order of use.
    used: u64,
}

/// The entry cache of one replica. A look-up is O(1), an admission O(log entries).
#[derive(Debug)]
pub struct EntryCache {
    turns: Arc<[Turn]>,
    capacity_tokens: u64,
    held_tokens: u64,
    held: HashMap<Entry, Held>,
    /// Entries by their last use.
    order: BTreeMap<u64, Entry>,
    uses: u64,
}

impl EntryCache {
    pub(super) fn new(turns: Arc<[Turn]>, capacity_tokens: u64) -> Self {
        let (held, order) = (HashMap::new(), BTreeMap::new());
        Self { turns, capacity_tokens, held_tokens: 0, held, order, uses: 0 }
    }

    /// Tokens of all entries, at most the capacity.
    pub fn held_tokens(&self) -> u64 {
        self.held_tokens
    }

    /// Nothing without the system prompt: it is the beginning.
    fn cached(&self, turn: Turn) -> u32 {
        if !self.held.contains_key(&system(turn)) {
            return 0;
        }
        let history = self.held.get(&script(turn)).map_or(0, |held| held.tokens);
        SYSTEM_TOKENS + history.min(turn.history_tokens)
    }

    fn put(&mut self, entry: Entry, tokens: u32) {
        self.uses += 1;
        if let Some(old) = self.held.insert(entry, Held { tokens, used: self.uses }) {
            self.order.remove(&old.used);
            self.held_tokens -= u64::from(old.tokens);
        }
        self.order.insert(self.uses, entry);
        self.held_tokens += u64::from(tokens);
    }

    fn evict(&mut self) {
        while self.held_tokens > self.capacity_tokens {
            let oldest = self.order.pop_first().and_then(|(_, entry)| self.held.remove(&entry));
            let Some(oldest) = oldest else { return };
            self.held_tokens -= u64::from(oldest.tokens);
        }
    }
}

impl PrefixCache for EntryCache {
    fn cached_tokens(&self, request: usize) -> u32 {
        self.turns.get(request).map_or(0, |&turn| self.cached(turn))
    }

    fn admit(&mut self, request: usize) -> u32 {
        let Some(&turn) = self.turns.get(request) else { return 0 };
        let cached = self.cached(turn);
        self.put(system(turn), SYSTEM_TOKENS);
        self.put(script(turn), turn.history_tokens + TURN_TOKENS);
        self.evict();
        cached
    }
}

fn system(turn: Turn) -> Entry {
    Entry::System(turn.system())
}

fn script(turn: Turn) -> Entry {
    Entry::Script { conversation: turn.conversation, script: turn.script }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(conversation: u32, history_tokens: u32) -> Turn {
        Turn { conversation, history_tokens, script: 0 }
    }

    #[test]
    fn each_step_hits_what_is_held() {
        // Conversations 0 and 4 have the same system prompt, 1 has another.
        let turns = [
            turn(0, 500),
            turn(0, 1_000),
            turn(4, 500),
            turn(0, 500),
            turn(0, 1_000),
            turn(1, 500),
            turn(4, 500),
        ];
        let mut cache = EntryCache::new(Arc::from(turns), 5_000);
        for (request, cached, held, shows) in [
            (0, 0, 3_000, "cold"),
            (1, 3_000, 3_500, "the whole history"),
            (2, 2_000, 4_500, "the system prompt of another"),
            (3, 2_500, 4_000, "no more than the history; the entry shrinks"),
            (4, 3_000, 4_500, "all that the entry has"),
            (5, 0, 4_500, "its room is that of conversation 4 and the system prompt they shared"),
            (6, 0, 4_000, "its system prompt went, and entries go one by one until there is room"),
        ] {
            assert_eq!(cache.cached_tokens(request), cached, "{shows}");
            assert_eq!(cache.admit(request), cached, "{shows}");
            assert_eq!(cache.held_tokens(), held, "{shows}");
        }
        assert_eq!((cache.admit(7), cache.cached_tokens(7)), (0, 0), "not of the workload");
    }
}
