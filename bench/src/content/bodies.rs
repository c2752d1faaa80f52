//! Request bodies and a warm fleet: what a whole decision is measured on.

use picker::Decision;
use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Ask, Rules, decide_recalling};
use picker::load::Load;
use picker::memo::Memo;
use picker::policy::Policy;
use picker::read::Api;
use picker::score::Candidate;

use super::blocks::unique;

/// Bodies are given in thousands of bytes.
pub const KILOBYTE: usize = 1_000;

/// Blocks that an endpoint may hold, as long as the fleet is small.
const CAPACITY: usize = 31_250;
/// Blocks that the whole fleet may hold: bounds the memory of a large one.
const FLEET_CAPACITY: usize = 4_000_000;
/// Other prompts that each endpoint holds, as long as the fleet is small, and in the whole fleet.
const OTHERS: u32 = 200;
const FLEET_OTHERS: u32 = 12_800;
const OTHER_BLOCKS: usize = 100;

const LINE: &str = "The quick brown fox jumps over the lazy dog and then some more words follow here to fill one line up.\\n";

/// A chat of about `bytes`, nearly all of it the system prompt, with an escape every 100 bytes.
pub fn chat(bytes: usize, question: &str) -> String {
    body(bytes, 1, LINE, question)
}

/// A chat of about `bytes` without any escape: its blocks are hashed where they lie.
pub fn plain(bytes: usize, question: &str) -> String {
    body(bytes, 1, &LINE.replace("\\n", " "), question)
}

/// A chat of about `bytes` in `messages` messages of one length, then a question. Escapes as in [`chat`].
pub fn conversation(bytes: usize, messages: usize, question: &str) -> String {
    body(bytes, messages, LINE, question)
}

fn body(bytes: usize, messages: usize, line: &str, question: &str) -> String {
    let text = line.repeat((bytes / messages / line.len()).max(1));
    let message = |place: usize| {
        let role = ["system", "user", "assistant"][if place == 0 { 0 } else { 2 - place % 2 }];
        format!(r#"{{"role":"{role}","content":"{place}: {text}"}},"#)
    };
    let messages: String = (0..messages).map(message).collect();
    format!(
        r#"{{"model":"m","messages":[{messages}{{"role":"user","content":"{question}"}}],"max_tokens":16}}"#
    )
}

/// Endpoints that hold other prompts, and what they know.
#[derive(Debug)]
pub struct Fleet {
    /// The belief.
    pub index: Index,
    /// Every endpoint, lightly loaded.
    pub candidates: Vec<Candidate>,
    /// The default ones, unless another policy was asked for.
    rules: Rules,
}

impl Fleet {
    /// A fleet of `endpoints`, each holding many prompts of its own.
    pub fn new(endpoints: u32) -> Self {
        Self::with_others(endpoints, OTHERS.min(FLEET_OTHERS / endpoints))
    }

    /// A fleet of `endpoints`, each holding `others` prompts of its own.
    pub fn with_others(endpoints: u32, others: u32) -> Self {
        let index = Index::default();
        let load = Load { waiting: Some(0.0), running: Some(1.0), ..Load::default() };
        let load = Load { kv_usage: Some(0.3), foreign: Some(0.0), ..load };
        let candidates = (0..endpoints).map(|id| Candidate::new(EndpointId(id), load)).collect::<Vec<_>>();
        for candidate in &candidates {
            index
                .join(candidate.id, CAPACITY.min(FLEET_CAPACITY / endpoints as usize))
                .expect("a fleet that fits");
            for other in 0..others {
                let number = u64::from(candidate.id.0) << 32 | u64::from(other);
                index.commit(candidate.id, &unique(number, OTHER_BLOCKS), false);
            }
        }
        Self { index, candidates, rules: Rules::default() }
    }

    /// The same fleet under this policy.
    pub fn under(self, policy: Policy) -> Self {
        Self { rules: Rules { policy, ..self.rules }, ..self }
    }

    /// What the router does with a body before it forwards it.
    pub fn decide(&self, body: &str) -> Decision {
        self.decide_recalling(None, body)
    }

    /// The same with a memo.
    pub fn decide_recalling(&self, memo: Option<&Memo>, body: &str) -> Decision {
        let draw = Draw { seed: 0, turn: 0 };
        decide_recalling(&ask(body), memo, &self.candidates, &self.index, &self.rules, draw)
            .expect("only a duplicate salt is refused")
    }

    /// Has a memo learn from a body, as the router does once the request is on its way.
    pub fn recall(&self, memo: &Memo, body: &str) {
        let decision = self.decide_recalling(Some(memo), body);
        memo.learn(&ask(body), &self.rules, &decision.recall);
    }

    /// Makes a body's prompt known to the fourth endpoint.
    pub fn learn(&self, body: &str) {
        self.decide(body).commit(&self.index, EndpointId(3));
    }
}

fn ask(body: &str) -> Ask<'_> {
    Ask { api: Api::Chat, body: body.as_bytes(), tenant: b"", session: b"" }
}

#[cfg(test)]
mod tests {
    use picker::decide::Reading;

    use super::*;

    /// A body that cannot be read is decided fast, so a bench on one would show a gain.
    #[test]
    fn a_new_question_after_a_known_prompt_matches_all_but_its_end() {
        let fleets = [Policy::Prefix, Policy::default()].map(|policy| Fleet::new(8).under(policy));
        let prompts = [
            (chat(12 * KILOBYTE, "known"), chat(12 * KILOBYTE, "What is new?")),
            (plain(12 * KILOBYTE, "known"), plain(12 * KILOBYTE, "What is new?")),
            (conversation(12 * KILOBYTE, 20, "known"), conversation(12 * KILOBYTE, 20, "What is new?")),
        ];
        for (fleet, (known, asked)) in
            fleets.iter().flat_map(|fleet| prompts.iter().map(move |it| (fleet, it)))
        {
            fleet.learn(known);
            let decision = fleet.decide(asked);
            assert_eq!(decision.reading, Reading::Prompt);
            let best = decision.best().expect("a fleet");
            let (matched, total) = (best.matched as usize, decision.blocks.total());
            assert_eq!(best.id, EndpointId(3));
            assert!(total > 40 && (total - 2..total).contains(&matched), "{matched} of {total}");
        }
    }

    #[test]
    fn bodies_have_the_length_asked_for() {
        for bytes in [2, 12, 128, 400].map(|size| size * KILOBYTE) {
            for body in [chat(bytes, "?"), plain(bytes, "?"), conversation(bytes, 20, "?")] {
                assert!((bytes * 9 / 10..bytes * 11 / 10 + 1_500).contains(&body.len()), "{}", body.len());
            }
        }
    }
}
