//! A request's place at an endpoint: taken at the decision, given back once, however the request ends.

use std::sync::Arc;

use parking_lot::Mutex;
use picker::hash::{BlockHash, Blocks};
use picker::ledger::{Booked, Micros, Request};
use picker::pace::Pace;

use super::{Endpoint, Held};
use crate::clock::Clock;

/// Prefixes in the making that are kept for one endpoint. Beyond, nothing is predicted there.
const MAKING_MAX: usize = 256;

/// What a request asks of an endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) blocks: &'a Blocks,
    /// Leading blocks that the endpoint is believed to hold.
    pub(crate) matched: u32,
    pub(crate) block_tokens: usize,
    /// The client asked for a stream.
    pub(crate) is_streamed: bool,
}

/// Load booked on an endpoint, released when this is dropped.
pub(crate) struct Booking {
    held: Held,
    clock: Clock,
    is_streamed: bool,
    /// There until it is released.
    booked: Option<Booked>,
    making: Option<u64>,
    since: Micros,
    first_token: Option<Micros>,
    pub(crate) uncached_tokens: u32,
    /// Leading blocks that the engine should have, those left out that another request is only just having computed. `None`:
    /// not known.
    pub(crate) expected_blocks: Option<u32>,
    /// How often the belief had been dropped.
    pub(crate) drops: u64,
}

impl Booking {
    /// Books one request. HOT: no allocation once the endpoint has been busy.
    pub(crate) fn new(held: Held, wanted: Wanted<'_>, clock: Clock) -> Self {
        let (now, endpoint) = (clock.now(), held.endpoint());
        let uncached_tokens = wanted.uncached_tokens();
        let pace = endpoint.pace.load();
        let overhead = if wanted.blocks.total() > 0 { pace.overhead } else { 0.0 };
        let Wanted { is_streamed, .. } = wanted;
        let request = Request { uncached_tokens, pace: Pace { overhead, ..pace }, is_streamed };
        let booked = Some(endpoint.ledger.book(request, now));
        let (expected_blocks, making) = endpoint.making.enter(wanted);
        let drops = endpoint.trust.drops();
        endpoint.note_request(now);
        if is_streamed {
            endpoint.health.begin_waiting(now.millis());
        }
        Self {
            held,
            clock,
            is_streamed,
            booked,
            making,
            since: now,
            first_token: None,
            uncached_tokens,
            expected_blocks,
            drops,
        }
    }

    /// Where it is booked.
    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        self.held.endpoint()
    }

    /// The first token has come; only the first call counts.
    pub(crate) fn first_token(&mut self) {
        if self.first_token.is_none() {
            let now = self.clock.now();
            self.first_token = Some(now);
            self.computed(now);
            if self.is_streamed {
                self.endpoint().health.end_waiting(true, now.millis());
            }
        }
    }

    /// The engine said how many tokens it computed.
    pub(crate) fn correct(&self, uncached_tokens: u32) {
        if let Some(booked) = &self.booked {
            self.endpoint().ledger.correct(booked, uncached_tokens, self.clock.now());
        }
    }

    /// Seconds of computing that the request is taken for.
    pub(crate) fn work(&self) -> f64 {
        self.endpoint().pace.load().work(self.uncached_tokens.into())
    }

    /// Seconds of other prompts that were ahead.
    pub(crate) fn backlog(&self) -> f64 {
        self.booked.as_ref().map_or(0.0, Booked::backlog)
    }

    /// Seconds from the booking to the first token, if it has come.
    pub(crate) fn first_token_seconds(&self) -> Option<f64> {
        self.first_token.map(|at| at.0.saturating_sub(self.since.0) as f64 / 1e6)
    }

    fn computed(&mut self, now: Micros) {
        let endpoint = self.held.endpoint();
        if let Some(booked) = &mut self.booked {
            endpoint.ledger.first_token(booked, now);
        }
        if let Some(number) = self.making.take() {
            endpoint.making.leave(number);
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        let now = self.clock.now();
        self.computed(now);
        if self.is_streamed && self.first_token.is_none() {
            self.endpoint().health.end_waiting(false, now.millis());
        }
        if let Some(booked) = self.booked.take() {
            let ledger = &self.endpoint().ledger;
            if self.first_token.is_none() {
                ledger.abandon(&booked, self.since, now);
            }
            ledger.release(booked, now);
        }
    }
}

impl Wanted<'_> {
    fn uncached_tokens(&self) -> u32 {
        let uncached = self.blocks.total().saturating_sub(self.matched as usize);
        u32::try_from(uncached.saturating_mul(self.block_tokens)).unwrap_or(u32::MAX)
    }
}

/// Prefixes that requests in flight are having computed, by their first new block. A chained hash names all before it, so
/// who has that block in the same place waits for the same computation.
#[derive(Default)]
pub(super) struct Making(Mutex<Prefixes>);

#[derive(Default)]
struct Prefixes {
    last: u64,
    list: Vec<Prefix>,
}

struct Prefix {
    number: u64,
    /// Place of the block in its prompt.
    at: usize,
    hash: BlockHash,
}

impl Making {
    /// How much of what is believed has been computed already, and the number of what this request adds. Nothing is known of
    /// several prompts in one request.
    fn enter(&self, wanted: Wanted<'_>) -> (Option<u32>, Option<u64>) {
        let mut prompts = wanted.blocks.prompts();
        let (Some(prompt), None) = (prompts.next(), prompts.next()) else { return (None, None) };
        let matched = wanted.matched as usize;
        let mut prefixes = self.0.lock();
        let making = prefixes.list.iter().filter(|it| it.at < matched && prompt.get(it.at) == Some(&it.hash));
        let expected = making.map(|it| it.at).min().unwrap_or(matched) as u32;
        if prefixes.list.len() >= MAKING_MAX {
            return (None, None);
        }
        let number = prompt.get(matched).map(|&hash| prefixes.add(matched, hash));
        (Some(expected), number)
    }

    fn leave(&self, number: u64) {
        let list = &mut self.0.lock().list;
        if let Some(place) = list.iter().position(|it| it.number == number) {
            list.swap_remove(place);
        }
    }
}

impl Prefixes {
    fn add(&mut self, at: usize, hash: BlockHash) -> u64 {
        self.last += 1;
        self.list.push(Prefix { number: self.last, at, hash });
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(hashes: impl Iterator<Item = u64>) -> Blocks {
        Blocks::one(hashes.map(BlockHash).collect())
    }

    fn enter(making: &Making, blocks: &Blocks, matched: u32) -> (Option<u32>, Option<u64>) {
        making.enter(Wanted { blocks, matched, block_tokens: 64, is_streamed: true })
    }

    #[test]
    fn what_another_request_is_having_computed_is_not_expected_yet() {
        let making = Making::default();
        let (first, other) = (prompt(1..9), prompt((1..5).chain(90..94)));
        assert_eq!(enter(&making, &first, 4), (Some(4), Some(1)), "its own blocks are no obstacle");
        assert_eq!(enter(&making, &first, 8), (Some(4), None), "the same prompt at the same time");
        assert_eq!(enter(&making, &other, 4), (Some(4), Some(2)), "what was there before is expected");
        making.leave(1);
        assert_eq!(enter(&making, &first, 8), (Some(8), None), "computed");
        assert_eq!(enter(&making, &other, 8), (Some(4), None));
    }

    #[test]
    fn beyond_the_bound_nothing_is_predicted() {
        let making = Making::default();
        for number in 0..MAKING_MAX as u64 {
            assert!(enter(&making, &prompt(number..number + 1), 0).1.is_some());
        }
        assert_eq!(enter(&making, &prompt(7..9), 1), (None, None));
        making.leave(3);
        assert_eq!(enter(&making, &prompt(900..901), 1), (Some(1), None));
    }

    #[test]
    fn uncached_tokens_do_not_wrap() {
        let blocks = prompt(0..3);
        for (matched, block_tokens, wanted) in [(1, 64, 128), (9, 64, 0), (0, usize::MAX, u32::MAX)] {
            let asked = Wanted { blocks: &blocks, matched, block_tokens, is_streamed: true };
            assert_eq!(asked.uncached_tokens(), wanted);
        }
    }
}
