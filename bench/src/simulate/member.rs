//! One replica of the fleet, and what a router knows of it: the figures of the last scrape and its own ledger.

use std::collections::HashMap;

use picker::belief::EndpointId;
use picker::ledger::{Booked, Ledger, Micros, Request};
use picker::load::Load;
use picker::pace::{Learner, Observation, Pace};
use picker::score::Candidate;

use super::run::Served;
use crate::demo3::{EntryCache, PrefixCache};
use crate::engine::{
    Admitted, Figures, Happened, Prompt, ReplicaOptions, Seconds, Ticket, VirtualReplica, What,
};

/// A replica and the router's view of it.
pub(super) struct Member {
    id: EndpointId,
    engine: VirtualReplica,
    /// In place of the engine's cache of blocks.
    entries: Option<EntryCache>,
    ledger: Ledger,
    scrapes: Scrapes,
    scraped: Scraped,
    flights: HashMap<Ticket, Flight>,
    learner: Learner,
    /// How fast the router takes it to be.
    pace: Pace,
    /// Prompts that it computed: when each began, and for how long.
    prefills: Vec<(Seconds, Seconds)>,
}

/// A request that is sent to a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// Place in the trace.
    pub(super) place: usize,
    /// When.
    pub(super) now: Seconds,
    /// How long after its arrival: it was sent to a replica that was lost.
    pub(super) late: Seconds,
    /// Prompt tokens that the member is not believed to hold.
    pub(super) uncached_tokens: usize,
    /// From the first token to the end.
    pub(super) answer: Seconds,
}

/// A prompt that another computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere {
    /// For a lane there.
    pub(super) wait: Seconds,
    /// From now until its KV cache is here, that wait included.
    pub(super) whole: Seconds,
}

/// A request in flight.
#[derive(Debug)]
struct Flight {
    place: usize,
    booked: Booked,
    /// Tokens that are computed for it, as the engine will say.
    computed_tokens: u32,
    /// When it was booked.
    sent: Seconds,
    late: Seconds,
    elsewhere: Option<Elsewhere>,
}

/// When a member is scraped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scrapes {
    /// Time between two; 0 for at every decision.
    age: Seconds,
    /// Time of the first that is in turn.
    offset: Seconds,
    /// When the router came to know the member, and scraped it out of turn.
    joined: Seconds,
}

impl Scrapes {
    /// Those of the member at `place` of so many, which take turns evenly.
    pub(super) fn new(age: Seconds, place: usize, members: usize, joined: Seconds) -> Self {
        let offset = Seconds(age.0 * place as f64 / members.max(1) as f64);
        Self { age, offset, joined }
    }

    /// The last one that is not after `now`.
    fn last(self, now: Seconds) -> Seconds {
        if self.age.0 <= 0.0 {
            return now;
        }
        let turns = ((now - self.offset).0 / self.age.0).floor();
        let last = self.offset.0 + turns * self.age.0;
        Seconds(last.min(now.0).max(self.joined.0))
    }
}

/// What a scrape read, and what the router had sent by then.
#[derive(Clone, Copy, Debug, Default)]
struct Scraped {
    at: Seconds,
    figures: Figures,
    sent: u64,
}

impl Member {
    pub(super) fn new(
        id: EndpointId,
        options: ReplicaOptions,
        entries: Option<EntryCache>,
        scrapes: Scrapes,
    ) -> Self {
        Self {
            id,
            engine: VirtualReplica::new(options),
            entries,
            ledger: Ledger::default(),
            scrapes,
            scraped: Scraped { at: scrapes.joined, ..Scraped::default() },
            flights: HashMap::new(),
            learner: Learner::default(),
            pace: Pace::default(),
            prefills: Vec::new(),
        }
    }

    /// Moves the clock to `now`, with the scrape that is due on the way.
    pub(super) fn catch_up(&mut self, now: Seconds, served: &mut [Served]) {
        let due = self.scrapes.last(now);
        if due > self.scraped.at || self.scrapes.age.0 <= 0.0 {
            self.advance(due, served);
            self.scraped = Scraped { at: due, figures: self.engine.figures(), sent: self.ledger.sent() };
        }
        self.advance(now, served);
    }

    /// Moves the clock to the end of the last request.
    pub(super) fn run_out(&mut self, served: &mut [Served]) {
        self.advance(Seconds(f64::INFINITY), served);
    }

    /// What the router knows when it decides at the moment to which the member was moved.
    pub(super) fn candidate(&self, now: Seconds) -> Candidate {
        let Scraped { figures, sent, .. } = self.scraped;
        let in_flight = self.ledger.in_flight(micros(now));
        let unseen = u32::try_from(self.ledger.sent() - sent).unwrap_or(u32::MAX);
        let load = Load {
            waiting: Some(figures.waiting as f64),
            running: Some(figures.running as f64),
            kv_usage: Some(figures.kv_usage),
            foreign: Some(0.0),
            unseen: unseen.min(in_flight.requests),
            in_flight,
            pace: self.pace,
        };
        Candidate::new(self.id, load)
    }

    /// Seconds that computing so many tokens is taken for.
    pub(super) fn work(&self, uncached_tokens: usize) -> f64 {
        self.pace.work(uncached_tokens as f64)
    }

    /// Prompt tokens of a request that the member's cache holds. Changes nothing.
    pub(super) fn cached_tokens(&self, place: usize, prompts: &[Prompt]) -> usize {
        match &self.entries {
            Some(entries) => entries.cached_tokens(place) as usize,
            None => self.engine.cached_tokens(prompts),
        }
    }

    /// What first tokens have taught.
    pub(super) fn learned(&self) -> Option<Pace> {
        self.learner.learned()
    }

    /// Learns its pace anew, to be shown by [`Member::settle`].
    pub(super) fn fit(&mut self, prior: &Pace) {
        let _ = self.learner.fit(prior);
    }

    /// Without first tokens of its own it is taken for one of the fleet.
    pub(super) fn settle(&mut self, fleet: &Pace) {
        self.pace = self.learner.among(fleet);
    }

    /// Looks a request's prompts up in the member's cache and fills it with them.
    pub(super) fn admit(&mut self, place: usize, prompts: &[Prompt]) -> Admitted {
        let Some(entries) = &mut self.entries else { return self.engine.admit(prompts) };
        Admitted { cached_tokens: entries.admit(place) as usize, ..self.engine.measure(prompts) }
    }

    /// Books a request that was looked up, and takes it.
    pub(super) fn take(&mut self, sending: Sending, admitted: Admitted, elsewhere: Option<Elsewhere>) {
        let Sending { place, now, late, uncached_tokens, answer } = sending;
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let request = Request { uncached_tokens: count(uncached_tokens), pace: self.pace, is_streamed: true };
        let booked = self.ledger.book(request, micros(now));
        let ticket = match elsewhere {
            Some(Elsewhere { whole, .. }) => self.engine.join_remote(now, admitted, whole, answer),
            None => self.engine.join(now, admitted, answer).ticket,
        };
        let computed_tokens = count(admitted.prompt_tokens - admitted.cached_tokens);
        self.flights.insert(ticket, Flight { place, booked, computed_tokens, sent: now, late, elsewhere });
    }

    /// All that it has in flight, in the order in which it came. The member is of no more use.
    pub(super) fn abandon(&mut self) -> Vec<usize> {
        let mut left: Vec<_> = self.flights.drain().map(|(ticket, flight)| (ticket, flight.place)).collect();
        left.sort_unstable();
        left.into_iter().map(|(_, place)| place).collect()
    }

    /// Prompts that it computed: when each began, and for how long.
    pub(super) fn into_prefills(self) -> Vec<(Seconds, Seconds)> {
        self.prefills
    }

    fn advance(&mut self, now: Seconds, served: &mut [Served]) {
        self.engine.advance(now);
        for Happened { ticket, at, what } in self.engine.take_happened() {
            match what {
                What::FirstToken { wait, prefill } => self.first_token(ticket, at, (wait, prefill), served),
                What::End => self.end(ticket, at, served),
            }
        }
    }

    fn first_token(
        &mut self,
        ticket: Ticket,
        at: Seconds,
        (wait, prefill): (Seconds, Seconds),
        served: &mut [Served],
    ) {
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        self.ledger.first_token(&mut flight.booked, micros(at));
        self.ledger.correct(&flight.booked, flight.computed_tokens, micros(at));
        if flight.elsewhere.is_none() {
            self.prefills.push((at - prefill, prefill));
            let (uncached_tokens, seconds) = (f64::from(flight.computed_tokens), (at - flight.sent).0);
            self.learner.observe(Observation { uncached_tokens, backlog: flight.booked.backlog(), seconds });
        }
        let served = &mut served[flight.place];
        // A request that was sent again has its first token already if its stream broke.
        if served.answer.is_none() {
            served.wait = flight.late + wait + flight.elsewhere.map_or(Seconds(0.0), |it| it.wait);
            served.ttft = flight.late + wait + prefill;
            served.answer = Some((at, at));
        }
    }

    fn end(&mut self, ticket: Ticket, at: Seconds, served: &mut [Served]) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        self.ledger.release(flight.booked, micros(at));
        if let Some((_, end)) = &mut served[flight.place].answer {
            *end = at;
        }
    }
}

pub(super) fn micros(at: Seconds) -> Micros {
    Micros((at.0 * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Timing;

    #[test]
    fn a_scrape_is_the_last_of_its_turns() {
        let of_four = |age, place, joined| Scrapes::new(Seconds(age), place, 4, Seconds(joined));
        for (shows, scrapes, now, want) in [
            ("always fresh", of_four(0.0, 1, 0.0), 3.3, 3.3),
            ("in turn", of_four(2.0, 1, 0.0), 3.3, 2.5),
            ("the next one later", of_four(2.0, 2, 0.0), 3.3, 3.0),
            ("at the very moment", of_four(2.0, 1, 0.0), 4.5, 4.5),
            ("when it joined, before its first turn", of_four(10.0, 3, 4.0), 5.0, 4.0),
        ] {
            assert_eq!(scrapes.last(Seconds(now)), Seconds(want), "{shows}");
        }
    }

    fn member(age: f64) -> Member {
        let timing = Timing { prefill_overhead: Seconds(0.0), prefill_tokens_per_second: 100.0 };
        let options = ReplicaOptions { slots: 1, timing, ..ReplicaOptions::default() };
        let scrapes = Scrapes::new(Seconds(age), 0, 1, Seconds(0.0));
        Member::new(EndpointId(0), options, None, scrapes)
    }

    /// Sends a request of 100 tokens: a second to compute, and two more to answer.
    fn send(member: &mut Member, place: usize, now: f64, late: f64) {
        let admitted = Admitted { prompt_tokens: 100, cached_tokens: 0, blocks: 7 };
        let (now, late, answer) = (Seconds(now), Seconds(late), Seconds(2.0));
        member.take(Sending { place, now, late, uncached_tokens: 100, answer }, admitted, None);
    }

    #[test]
    fn figures_are_of_the_last_scrape_and_the_ledger_is_of_now() {
        let mut member = member(2.0);
        let mut served = [Served::default(); 3];
        (0..3).for_each(|place| send(&mut member, place, 0.5, 0.0));
        // When: waiting, running, unseen, in flight, without a first token.
        for (now, waiting, running, unseen, requests, prefilling) in [
            (0.5, 0.0, 0.0, 3, 3, 3),
            (1.75, 0.0, 0.0, 3, 3, 2),
            (2.0, 1.0, 2.0, 0, 3, 2),
            (3.75, 1.0, 2.0, 0, 2, 0),
            (9.0, 0.0, 0.0, 0, 0, 0),
        ] {
            member.catch_up(Seconds(now), &mut served);
            let load = member.candidate(Seconds(now)).load;
            assert_eq!((load.waiting, load.running), (Some(waiting), Some(running)), "at {now}");
            let in_flight = load.in_flight;
            assert_eq!(
                (load.unseen, in_flight.requests, in_flight.prefilling),
                (unseen, requests, prefilling),
                "at {now}"
            );
            assert_eq!(in_flight.uncached_tokens, u64::from(prefilling) * 100, "at {now}");
        }
        let answers = served.map(|served| (served.wait.0, served.ttft.0, served.answer));
        let answer = |from: f64| Some((Seconds(from), Seconds(from + 2.0)));
        assert_eq!(answers, [(0.0, 1.0, answer(1.5)), (1.0, 2.0, answer(2.5)), (2.0, 3.0, answer(3.5))]);
    }

    #[test]
    fn what_has_ended_is_no_unseen_load() {
        let (mut member, mut served) = (member(100.0), [Served::default(); 2]);
        send(&mut member, 0, 0.5, 0.0);
        send(&mut member, 1, 2.5, 0.0);
        for (now, unseen) in [(2.5, 2), (4.0, 1), (6.0, 0)] {
            member.catch_up(Seconds(now), &mut served);
            assert_eq!(member.candidate(Seconds(now)).load.unseen, unseen, "at {now}");
        }
    }

    #[test]
    fn what_is_sent_again_waited_since_it_arrived() {
        let mut member = member(0.0);
        let mut served = [Served { answer: None, ..Served::default() }, Served::default()];
        send(&mut member, 0, 5.0, 4.0);
        send(&mut member, 1, 5.0, 0.0);
        member.catch_up(Seconds(6.5), &mut served);
        assert_eq!((served[0].wait.0, served[0].ttft.0), (4.0, 5.0));
        assert_eq!(member.abandon(), [0, 1]);
        send(&mut member, 0, 7.0, 6.0);
        member.run_out(&mut served);
        assert_eq!(served[0].ttft.0, 5.0, "the client had its first token when the stream broke");
    }
}
