//! Shapes whose prompts grow turn by turn: agents, and people who chat.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rand::Rng;
use rand::rngs::StdRng;

use super::chance::{Lengths, gap_micros, micros};
use super::prompts::{Text, Writer, tokens};
use crate::engine::Seconds;
use crate::trace::hashed::HashedRequest;

/// How fast answers come; the next turn waits for its answer.
const ANSWER_TOKENS_PER_SECOND: f64 = 50.0;

/// Who talks, how long and how fast.
pub(super) struct Talk {
    /// Prefixes; a session has one of them by chance.
    tenants: usize,
    prefix: Lengths,
    turns_min: u32,
    turns_max: u32,
    /// Sessions that start together.
    at_once: u32,
    /// What the first turn asks.
    opening: Lengths,
    answer: Lengths,
    /// What each later turn adds: a tool's output, or a person's words.
    addition: Lengths,
    /// Seconds between an answer and the next turn.
    think: Lengths,
}

/// Agents: one prefix of tools and instructions, tool outputs of very different lengths, seconds of thought.
pub(super) const AGENTS: Talk = Talk {
    tenants: 1,
    prefix: Lengths { median: 4_000.0, sigma: 0.0, max: 4_000.0 },
    turns_min: 20,
    turns_max: 60,
    at_once: 4,
    opening: Lengths { median: 300.0, sigma: 0.7, max: 4_000.0 },
    answer: Lengths { median: 100.0, sigma: 0.6, max: 1_000.0 },
    addition: Lengths { median: 250.0, sigma: 1.0, max: 8_000.0 },
    think: Lengths { median: 3.0, sigma: 0.8, max: 60.0 },
};

/// People: a system prompt for each tenant, short questions, long pauses.
pub(super) const CHAT: Talk = Talk {
    tenants: 16,
    prefix: Lengths { median: 800.0, sigma: 0.6, max: 4_000.0 },
    turns_min: 1,
    turns_max: 12,
    at_once: 1,
    opening: Lengths { median: 60.0, sigma: 1.0, max: 4_000.0 },
    answer: Lengths { median: 200.0, sigma: 0.8, max: 2_000.0 },
    addition: Lengths { median: 60.0, sigma: 1.0, max: 4_000.0 },
    think: Lengths { median: 12.0, sigma: 0.8, max: 120.0 },
};

struct Session {
    prompt: Vec<Text>,
    turns_left: u32,
}

/// Sessions that go on, and when each has its next turn: by microseconds, then by number.
#[derive(Default)]
struct Running {
    sessions: HashMap<u64, Session>,
    next: BinaryHeap<Reverse<(u64, u64)>>,
    started: u64,
}

impl Running {
    /// Starts a session, or has it go on.
    fn plan(&mut self, number: u64, session: Session, at_micros: u64) {
        self.sessions.insert(number, session);
        self.next.push(Reverse((at_micros, number)));
    }

    /// The next turn, if it is due by then.
    fn due(&mut self, by_micros: u64) -> Option<(u64, u64, Session)> {
        let &Reverse((at_micros, number)) = self.next.peek()?;
        if at_micros > by_micros {
            return None;
        }
        self.next.pop();
        Some((at_micros, number, self.sessions.remove(&number)?))
    }
}

impl Talk {
    /// The first turns in time, as many as are wanted. `rate` is what the sessions that start come to.
    pub(super) fn play(
        &self,
        requests: usize,
        rate: f64,
        writer: &mut Writer,
        chance: &mut StdRng,
    ) -> Vec<HashedRequest> {
        let prefixes: Vec<Text> =
            (0..self.tenants).map(|_| writer.text(self.prefix.tokens(chance))).collect();
        let starts_per_second = rate / (self.mean_turns() * f64::from(self.at_once));
        let (mut running, mut start_micros) = (Running::default(), 0);
        let mut trace = Vec::with_capacity(requests);
        while trace.len() < requests {
            let Some((at_micros, number, mut session)) = running.due(start_micros) else {
                self.start(&mut running, start_micros, &prefixes, writer, chance);
                start_micros = start_micros.saturating_add(gap_micros(starts_per_second, chance).max(1));
                continue;
            };
            let request = self.turn(at_micros, number, &mut session, writer, chance);
            let done_micros = micros(f64::from(request.output_tokens) / ANSWER_TOKENS_PER_SECOND);
            trace.push(request);
            if session.turns_left > 0 {
                let think_micros = micros(self.think.draw(chance));
                running.plan(number, session, at_micros.saturating_add(done_micros + think_micros));
            }
        }
        trace
    }

    fn mean_turns(&self) -> f64 {
        f64::from(self.turns_min + self.turns_max) / 2.0
    }

    fn start(
        &self,
        running: &mut Running,
        at_micros: u64,
        prefixes: &[Text],
        writer: &mut Writer,
        chance: &mut StdRng,
    ) {
        for _ in 0..self.at_once {
            let prefix = prefixes[chance.random_range(0..prefixes.len())];
            let prompt = vec![prefix, writer.text(self.opening.tokens(chance))];
            let turns_left = chance.random_range(self.turns_min..=self.turns_max);
            running.started += 1;
            running.plan(running.started, Session { prompt, turns_left }, at_micros);
        }
    }

    /// Asks, and has the session's prompt grow by the answer and by what comes after it.
    fn turn(
        &self,
        at_micros: u64,
        number: u64,
        session: &mut Session,
        writer: &mut Writer,
        chance: &mut StdRng,
    ) -> HashedRequest {
        let output_tokens = self.answer.tokens(chance);
        let request = HashedRequest {
            at: Seconds(at_micros as f64 / 1e6),
            input_tokens: tokens(&session.prompt),
            output_tokens,
            hash_ids: writer.ids(&session.prompt),
            session: Some(number.to_string()),
        };
        session.turns_left -= 1;
        session.prompt.push(writer.text(output_tokens));
        session.prompt.push(writer.text(self.addition.tokens(chance)));
        request
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use picker::hash::BlockSize;
    use rand::SeedableRng;

    use super::*;

    /// The sessions, each with its requests in order.
    fn sessions(talk: &Talk, requests: usize) -> BTreeMap<u64, Vec<HashedRequest>> {
        let (mut writer, mut chance) = (Writer::new(BlockSize::ROUTER), StdRng::seed_from_u64(3));
        let mut sessions: BTreeMap<u64, Vec<HashedRequest>> = BTreeMap::new();
        for request in talk.play(requests, 20.0, &mut writer, &mut chance) {
            let session = request.session.as_ref().unwrap().parse().unwrap();
            sessions.entry(session).or_default().push(request);
        }
        sessions
    }

    #[test]
    fn a_turn_keeps_the_full_blocks_of_the_last_one() {
        for talk in [&AGENTS, &CHAT] {
            for requests in sessions(talk, 3_000).values() {
                for pair in requests.windows(2) {
                    let full = pair[0].input_tokens as usize / 64;
                    assert_eq!(pair[0].hash_ids[..full], pair[1].hash_ids[..full]);
                    let answered = pair[0].input_tokens + pair[0].output_tokens;
                    assert!(pair[1].input_tokens > answered, "the answer and more");
                    let pause = pair[1].at.0 - pair[0].at.0;
                    assert!(pause > f64::from(pair[0].output_tokens) / ANSWER_TOKENS_PER_SECOND);
                }
            }
        }
    }

    #[test]
    fn sessions_have_as_many_turns_as_stated() {
        for (talk, least, most) in [(&AGENTS, 20, 60), (&CHAT, 1, 12)] {
            let turns: Vec<usize> = sessions(talk, 20_000).values().map(Vec::len).collect();
            // The first sessions are at their end, whatever comes after them.
            let (shortest, longest) = (turns[..60].iter().min().unwrap(), turns[..60].iter().max().unwrap());
            assert!(*shortest >= least && *longest <= most, "{shortest} to {longest}");
            assert!(*shortest < least + 6 && *longest > most - 6, "{shortest} to {longest}");
        }
    }

    #[test]
    fn agents_start_four_at_once_behind_one_prefix() {
        let sessions = sessions(&AGENTS, 3_000);
        let starts: Vec<_> = sessions.values().map(|requests| &requests[0]).collect();
        for four in starts.chunks_exact(4) {
            assert!(four.iter().all(|start| start.at == four[0].at));
        }
        assert!(starts[4].at > starts[3].at);
        let full = 4_000 / 64;
        assert!(starts.iter().all(|start| start.hash_ids[..full] == starts[0].hash_ids[..full]));
        assert!(starts[0].hash_ids[full] != starts[1].hash_ids[full]);
    }

    #[test]
    fn chat_has_a_beginning_for_each_tenant() {
        let firsts = sessions(&CHAT, 3_000).into_values().map(|requests| requests[0].hash_ids[0]);
        assert_eq!(firsts.collect::<std::collections::HashSet<_>>().len(), 16);
    }
}
