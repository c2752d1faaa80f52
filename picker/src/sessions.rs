//! Where each session was last sent.
//!
//! A table of fixed size without a lock: a session is one word, in one of the eight places that its hash allows. A place
//! in use by others is taken from whoever was last seen longest ago. Two writers at once may lose one word, and two
//! sessions in a hundred million may be taken for one another: either costs an affinity, never an answer.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::belief::EndpointId;
use crate::ledger::Micros;

/// Sessions that are remembered at most; 8 bytes each.
pub const SESSIONS_MAX: usize = 1 << 16;

/// For how long, in microseconds. Source: llm-d's `session-affinity-scorer`.
pub const TTL: Micros = Micros(300_000_000);

/// Places of a session: one cache line.
const WAYS: usize = 8;

const ID_BITS: u32 = 16;
const SECOND_BITS: u32 = 20;
const _: () = assert!(crate::belief::IDS_MAX <= 1 << ID_BITS);

/// Shared by all requests.
#[derive(Debug)]
pub struct Sessions(Box<[Line]>);

/// A word holds 28 bits of the session's hash, the second at which it was sent (of 12 days, then they begin anew) and the
/// endpoint. 0 is empty: the hash's bits are never 0.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; WAYS]);

impl Default for Sessions {
    fn default() -> Self {
        Self((0..SESSIONS_MAX / WAYS).map(|_| Line::default()).collect())
    }
}

impl Sessions {
    /// The endpoint that a session was sent to last, within [`TTL`]; `session` is its hash, 0 for none.
    pub fn last(&self, session: u64, now: Micros) -> Option<EndpointId> {
        let mut words = self.line(session)?.iter().map(|word| word.load(Ordering::Relaxed));
        let word = words.find(|&word| tag(word) == tag_of(session))?;
        (age(word, now) <= TTL.0 / 1_000_000).then(|| EndpointId((word & mask(ID_BITS)) as u32))
    }

    /// A session was sent to `id`.
    pub fn learn(&self, session: u64, id: EndpointId, now: Micros) {
        let Some(line) = self.line(session) else { return };
        let word = tag_of(session) << (ID_BITS + SECOND_BITS)
            | second(now) << ID_BITS
            | u64::from(id.0) & mask(ID_BITS);
        // Its own place, else an empty one, else the oldest.
        let worth = |place: &&AtomicU64| match place.load(Ordering::Relaxed) {
            held if tag(held) == tag_of(session) => u64::MAX,
            0 => u64::MAX - 1,
            held => age(held, now),
        };
        if let Some(place) = line.iter().max_by_key(worth) {
            place.store(word, Ordering::Relaxed);
        }
    }

    fn line(&self, session: u64) -> Option<&[AtomicU64; WAYS]> {
        let line = self.0.get(session as usize % self.0.len().max(1))?;
        (session != 0).then_some(&line.0)
    }
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Of the high bits, as the low ones choose the line.
fn tag_of(session: u64) -> u64 {
    (session >> (ID_BITS + SECOND_BITS)).max(1)
}

fn tag(word: u64) -> u64 {
    word >> (ID_BITS + SECOND_BITS)
}

fn second(now: Micros) -> u64 {
    (now.0 / 1_000_000) & mask(SECOND_BITS)
}

/// In seconds.
fn age(word: u64, now: Micros) -> u64 {
    second(now).wrapping_sub(word >> ID_BITS) & mask(SECOND_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(second: u64) -> Micros {
        Micros(second * SECOND)
    }

    /// Sessions that share a line, each with a tag of its own.
    fn rivals() -> impl Iterator<Item = u64> {
        (1..).map(|number| number << (ID_BITS + SECOND_BITS) | 5)
    }

    #[test]
    fn a_session_is_where_it_was_sent_last_until_its_time_is_over() {
        let sessions = Sessions::default();
        assert_eq!(sessions.last(77, at(0)), None);
        sessions.learn(77, EndpointId(3), at(10));
        sessions.learn(77, EndpointId(65_535), at(20));
        for (second, id) in [(20, Some(EndpointId(65_535))), (320, Some(EndpointId(65_535))), (321, None)] {
            assert_eq!(sessions.last(77, at(second)), id, "{second}");
        }
        assert_eq!(sessions.last(78, at(20)), None);
    }

    #[test]
    fn no_session_is_none() {
        let sessions = Sessions::default();
        sessions.learn(0, EndpointId(3), at(1));
        assert_eq!(sessions.last(0, at(1)), None);
    }

    /// The ninth of a line takes the place of the one that was seen longest ago.
    #[test]
    fn the_longest_unseen_makes_room() {
        let sessions = Sessions::default();
        rivals()
            .zip(1..)
            .take(8)
            .for_each(|(session, second)| sessions.learn(session, EndpointId(7), at(second)));
        let (first, ninth) = (1 << (ID_BITS + SECOND_BITS) | 5, 9 << (ID_BITS + SECOND_BITS) | 5);
        sessions.learn(first, EndpointId(7), at(20));
        sessions.learn(ninth, EndpointId(9), at(21));
        let known: Vec<_> =
            rivals().take(9).map(|session| sessions.last(session, at(22)).is_some()).collect();
        assert_eq!(known, [true, false, true, true, true, true, true, true, true]);
    }

    /// In a process of more than 12 days the seconds begin anew.
    #[test]
    fn ages_survive_the_turn_of_the_seconds() {
        let sessions = Sessions::default();
        let turn = 1 << SECOND_BITS;
        sessions.learn(77, EndpointId(3), at(turn - 10));
        assert_eq!(sessions.last(77, at(turn + 10)), Some(EndpointId(3)));
        assert_eq!(sessions.last(77, at(turn + 291)), None);
    }

    #[test]
    fn sessions_are_many() {
        let sessions = Sessions::default();
        let hash = |number: u64| crate::chance::mix(number).max(1);
        (0..SESSIONS_MAX as u64 / 2).for_each(|number| sessions.learn(hash(number), EndpointId(1), at(1)));
        let known =
            (0..SESSIONS_MAX as u64 / 2).filter(|&number| sessions.last(hash(number), at(1)).is_some());
        assert!(known.count() > SESSIONS_MAX * 49 / 100);
    }
}
