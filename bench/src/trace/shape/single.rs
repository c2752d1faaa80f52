//! Shapes of requests that do not hang together: one giant tenant, nothing shared, documents before a question.

use rand::Rng;
use rand::rngs::StdRng;

use super::chance::{Lengths, Zipf, gap_micros};
use super::prompts::{Text, Writer, tokens};
use crate::engine::Seconds;
use crate::trace::hashed::HashedRequest;

const QUESTION: Lengths = Lengths { median: 150.0, sigma: 0.8, max: 4_000.0 };
const ANSWER: Lengths = Lengths { median: 150.0, sigma: 0.8, max: 2_000.0 };
/// Share of the requests that the giant tenant sends.
const GIANT_SHARE: f64 = 0.7;
/// Tokens that all its prompts begin with.
const GIANT_TOKENS: u32 = 8_000;
const SMALL_TENANTS: usize = 40;
const SMALL: Lengths = Lengths { median: 600.0, sigma: 0.5, max: 2_000.0 };
const UNIQUE: Lengths = Lengths { median: 1_500.0, sigma: 1.0, max: 32_000.0 };
const INSTRUCTION_TOKENS: u32 = 600;
const DOCUMENTS: u32 = 500;
const DOCUMENT: Lengths = Lengths { median: 800.0, sigma: 0.6, max: 6_000.0 };
const DOCUMENTS_MAX: usize = 5;

/// One tenant with a long prefix sends most, many with short ones send the rest.
pub(super) fn giant(
    requests: usize,
    rate: f64,
    writer: &mut Writer,
    chance: &mut StdRng,
) -> Vec<HashedRequest> {
    let giant = writer.text(GIANT_TOKENS);
    let small: Vec<Text> = (0..SMALL_TENANTS).map(|_| writer.text(SMALL.tokens(chance))).collect();
    arrivals(requests, rate, writer, chance, |writer, chance| {
        let asks = chance.random_bool(GIANT_SHARE);
        let prefix = if asks { giant } else { small[chance.random_range(0..small.len())] };
        vec![prefix, writer.text(QUESTION.tokens(chance))]
    })
}

/// No prompt has anything of another.
pub(super) fn unique(
    requests: usize,
    rate: f64,
    writer: &mut Writer,
    chance: &mut StdRng,
) -> Vec<HashedRequest> {
    arrivals(requests, rate, writer, chance, |writer, chance| vec![writer.text(UNIQUE.tokens(chance))])
}

/// Instructions that all have, some documents of a corpus in the order in which they were found, a question.
pub(super) fn rag(
    requests: usize,
    rate: f64,
    writer: &mut Writer,
    chance: &mut StdRng,
) -> Vec<HashedRequest> {
    let instructions = writer.text(INSTRUCTION_TOKENS);
    let corpus: Vec<Text> = (0..DOCUMENTS).map(|_| writer.text(DOCUMENT.tokens(chance))).collect();
    let popularity = Zipf::new(DOCUMENTS);
    arrivals(requests, rate, writer, chance, |writer, chance| {
        let mut prompt = vec![instructions];
        let documents = chance.random_range(1..=DOCUMENTS_MAX);
        while prompt.len() <= documents {
            let document = corpus[popularity.draw(chance)];
            if !prompt.contains(&document) {
                prompt.push(document);
            }
        }
        prompt.push(writer.text(QUESTION.tokens(chance)));
        prompt
    })
}

/// Poisson arrivals of prompts.
fn arrivals(
    requests: usize,
    rate: f64,
    writer: &mut Writer,
    chance: &mut StdRng,
    mut prompt: impl FnMut(&mut Writer, &mut StdRng) -> Vec<Text>,
) -> Vec<HashedRequest> {
    let mut at_micros = 0;
    let request = |_| {
        at_micros = gap_micros(rate, chance).saturating_add(at_micros);
        let prompt = prompt(writer, chance);
        HashedRequest {
            at: Seconds(at_micros as f64 / 1e6),
            input_tokens: tokens(&prompt),
            output_tokens: ANSWER.tokens(chance),
            hash_ids: writer.ids(&prompt),
            session: None,
        }
    };
    (0..requests).map(request).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use picker::hash::BlockSize;
    use rand::SeedableRng;

    use super::*;

    type Make = fn(usize, f64, &mut Writer, &mut StdRng) -> Vec<HashedRequest>;

    fn trace(make: Make) -> Vec<HashedRequest> {
        make(5_000, 20.0, &mut Writer::new(BlockSize::ROUTER), &mut StdRng::seed_from_u64(3))
    }

    /// Requests by the id of one of their blocks.
    fn counts(trace: &[HashedRequest], block: usize) -> HashMap<u64, usize> {
        let mut counts = HashMap::new();
        for id in trace.iter().filter_map(|request| request.hash_ids.get(block)) {
            *counts.entry(*id).or_default() += 1;
        }
        counts
    }

    #[test]
    fn one_tenant_has_70_percent() {
        let trace = trace(giant);
        let first = counts(&trace, 0);
        let most = first.values().copied().max().unwrap_or_default();
        assert!((3_400..3_600).contains(&most), "{most} of 5000");
        assert_eq!(first.len(), 1 + SMALL_TENANTS);
        let behind = counts(&trace, GIANT_TOKENS as usize / 64 - 1);
        assert_eq!(behind.values().copied().max(), Some(most), "all of its prefix is shared");
    }

    #[test]
    fn unique_prompts_share_nothing() {
        let trace = trace(unique);
        let ids: Vec<u64> = trace.iter().flat_map(|request| request.hash_ids.clone()).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        let below = trace.iter().filter(|request| request.input_tokens < 1_500).count();
        assert!((2_300..2_700).contains(&below), "{below} of 5000 are below the median");
        assert!(trace.iter().any(|request| request.input_tokens > 15_000));
    }

    #[test]
    fn documents_are_popular_and_behind_the_instructions() {
        let trace = trace(rag);
        let last_common = INSTRUCTION_TOKENS as usize / 64 - 1;
        assert_eq!(counts(&trace, last_common).len(), 1, "the instructions are everyone's");
        let firsts = counts(&trace, last_common + 1);
        let most = firsts.values().copied().max().unwrap_or_default();
        // The sum of 1/1 to 1/500 is 6.793.
        assert!((650..830).contains(&most), "{most} of 5000 begin with the first document");
        assert!(firsts.len() > 300, "only {} documents come first", firsts.len());
    }
}
