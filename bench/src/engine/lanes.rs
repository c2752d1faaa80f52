//! Who computes now and who waits, and how long computing takes.
//!
//! TTFT = wait for a free lane + overhead + uncached tokens / prefill rate. Lanes know the order only: when a
//! request begins and ends is for the caller's clock, real or virtual, so a client that leaves early needs no
//! replanning.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// A moment since the caller's beginning, or a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl Seconds {
    /// From milliseconds.
    pub fn from_millis(millis: f64) -> Self {
        Self(millis / 1e3)
    }

    /// In milliseconds.
    pub fn millis(self) -> f64 {
        self.0 * 1e3
    }

    /// As a span to sleep: nothing for what is negative or no number, a year at most.
    pub fn to_duration(self) -> Duration {
        const YEAR: f64 = 365.0 * 86_400.0;
        let capped = if self.0 > YEAR { YEAR } else { self.0 };
        Duration::try_from_secs_f64(capped).unwrap_or_default()
    }
}

impl std::ops::Add for Seconds {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::ops::Sub for Seconds {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

/// How fast a replica computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// What every request costs, cached or not.
    pub prefill_overhead: Seconds,
    /// Uncached prompt tokens a lane computes in a second; infinite is allowed.
    pub prefill_tokens_per_second: f64,
}

impl Timing {
    /// From getting a lane to the first token.
    pub fn prefill(&self, uncached_tokens: usize) -> Seconds {
        self.prefill_overhead + Seconds(uncached_tokens as f64 / self.prefill_tokens_per_second)
    }
}

/// A request's place in the lanes; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Parallel lanes with one queue before them, first come first served.
#[derive(Clone, Debug)]
pub struct Lanes {
    slots: usize,
    running: HashSet<Ticket>,
    waiting: VecDeque<Ticket>,
    next: u64,
}

impl Lanes {
    /// `slots` free lanes, at least one.
    pub fn new(slots: usize) -> Self {
        Self { slots: slots.max(1), running: HashSet::new(), waiting: VecDeque::new(), next: 0 }
    }

    /// Takes a free lane, or the last place in the queue. The second value says whether it runs.
    pub fn join(&mut self) -> (Ticket, bool) {
        let ticket = self.pass();
        let free = self.running.len() < self.slots;
        if free {
            self.running.insert(ticket);
        } else {
            self.waiting.push_back(ticket);
        }
        (ticket, free)
    }

    /// A ticket without a place: for what computes elsewhere.
    pub fn pass(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next - 1)
    }

    /// Gives up a lane or a place in the queue. Returns who gets the lane. A second time does nothing.
    pub fn leave(&mut self, ticket: Ticket) -> Option<Ticket> {
        if !self.running.remove(&ticket) {
            self.waiting.retain(|waiting| *waiting != ticket);
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.running.insert(next);
        Some(next)
    }

    /// Whether a request has a lane.
    pub fn runs(&self, ticket: Ticket) -> bool {
        self.running.contains(&ticket)
    }

    /// Requests in a lane.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_go_to_who_waits_longest() {
        let mut lanes = Lanes::new(2);
        let joined: Vec<_> = (0..5).map(|_| lanes.join()).collect();
        assert_eq!(
            joined.iter().map(|(_, runs)| *runs).collect::<Vec<_>>(),
            [true, true, false, false, false]
        );
        let tickets: Vec<_> = joined.into_iter().map(|(ticket, _)| ticket).collect();

        assert_eq!(lanes.leave(tickets[2]), None, "a waiting request leaves no lane behind");
        assert_eq!(lanes.leave(tickets[1]), Some(tickets[3]));
        assert_eq!(lanes.leave(tickets[1]), None, "leaving twice frees nothing");
        assert_eq!((lanes.running(), lanes.waiting()), (2, 1));
        assert!(lanes.runs(tickets[3]) && !lanes.runs(tickets[4]));
    }

    #[test]
    fn a_span_to_sleep_is_never_wild() {
        for (seconds, millis) in [(0.25, 250), (-1.0, 0), (f64::NAN, 0), (0.0, 0)] {
            assert_eq!(Seconds(seconds).to_duration(), Duration::from_millis(millis), "{seconds}");
        }
        assert_eq!(Seconds(f64::INFINITY).to_duration(), Duration::from_secs(31_536_000));
    }
}
