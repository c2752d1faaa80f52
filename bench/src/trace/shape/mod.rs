//! Workloads of other shapes than the default one, without texts: what is known of a prompt is which blocks it has.
//!
//! Each shape stresses another part of a routing rule: [`Shape::Agents`] long growing prompts that begin together,
//! [`Shape::Giant`] one prefix that a single replica cannot serve, [`Shape::Unique`] nothing to gain,
//! [`Shape::Rag`] popular parts behind a common beginning in changing order, [`Shape::Chat`] many short conversations.
//! Lengths are log-normal: a half is below the median, some are many times as long.

mod chance;
mod prompts;
mod sessions;
mod single;

use picker::hash::BlockSize;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::hashed::HashedRequest;
use prompts::Writer;

/// Which workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Sessions of 20 to 60 turns, four starting at once, that grow by tool outputs behind one common prefix
    Agents,
    /// One tenant with a long prefix sends 70 % of the requests, 40 small ones the rest
    Giant,
    /// Nothing is asked twice
    Unique,
    /// One to five popular documents between common instructions and a question
    Rag,
    /// Conversations of 1 to 12 turns with 16 tenants, each with a system prompt
    Chat,
}

/// What a workload is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShapeOptions {
    /// Which.
    pub shape: Shape,
    /// How many requests.
    pub requests: usize,
    /// Requests per second in the long run. Where sessions have turns, fewer in the beginning.
    pub rate: f64,
    /// Same seed, same trace.
    pub seed: u64,
    /// Tokens in a block.
    pub block_size: BlockSize,
}

/// Why there is no workload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ShapeError {
    /// The rate.
    #[error("rate: found {0}, wanted more than 0")]
    Rate(f64),
}

/// Makes a workload, in the order of time. Same options, same requests. O(blocks of all prompts), 8 bytes a block.
pub fn generate(options: &ShapeOptions) -> Result<Vec<HashedRequest>, ShapeError> {
    let ShapeOptions { shape, requests, rate, seed, block_size } = *options;
    if !(rate > 0.0 && rate.is_finite()) {
        return Err(ShapeError::Rate(rate));
    }
    let (mut chance, mut writer) = (StdRng::seed_from_u64(seed), Writer::new(block_size));
    let trace = match shape {
        Shape::Agents => sessions::AGENTS.play(requests, rate, &mut writer, &mut chance),
        Shape::Chat => sessions::CHAT.play(requests, rate, &mut writer, &mut chance),
        Shape::Giant => single::giant(requests, rate, &mut writer, &mut chance),
        Shape::Unique => single::unique(requests, rate, &mut writer, &mut chance),
        Shape::Rag => single::rag(requests, rate, &mut writer, &mut chance),
    };
    Ok(trace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::{HashMap, HashSet};

    use clap::ValueEnum;
    use picker::tokens::words::fnv1a32;

    use super::*;
    use crate::trace::hashed::to_lines;

    fn options(shape: Shape, requests: usize) -> ShapeOptions {
        ShapeOptions { shape, requests, rate: 20.0, seed: 1, block_size: BlockSize::ROUTER }
    }

    fn trace(shape: Shape) -> Vec<HashedRequest> {
        generate(&options(shape, 4_000)).unwrap()
    }

    /// Share of the prompts' tokens that one endless cache has, in full blocks.
    fn ceiling(trace: &[HashedRequest]) -> f64 {
        let (mut seen, mut hits, mut tokens) = (HashSet::<u64>::new(), 0, 0);
        for request in trace {
            let full = (request.input_tokens as usize - 1) / 64;
            hits += request.hash_ids[..full].iter().take_while(|&id| seen.contains(id)).count() * 64;
            seen.extend(&request.hash_ids);
            tokens += request.input_tokens as usize;
        }
        hits as f64 / tokens as f64
    }

    #[test]
    fn a_seed_names_the_bytes() {
        // FNV-1a of 200 requests; changes only on purpose.
        for (shape, want) in [
            (Shape::Agents, 2_333_025_627),
            (Shape::Giant, 3_605_481_136),
            (Shape::Unique, 3_804_693_933),
            (Shape::Rag, 3_428_658_400),
            (Shape::Chat, 3_557_569_818),
        ] {
            let bytes = |seed| to_lines(&generate(&ShapeOptions { seed, ..options(shape, 200) }).unwrap());
            assert_eq!(bytes(1), bytes(1));
            assert_ne!(bytes(1), bytes(2), "{shape:?}");
            assert_eq!(fnv1a32(bytes(1).as_bytes()), want, "the bytes of {shape:?} have changed");
        }
    }

    #[test]
    fn times_never_go_back_and_blocks_fit_the_length() {
        for &shape in Shape::value_variants() {
            let trace = trace(shape);
            assert_eq!(trace.len(), 4_000, "{shape:?}");
            assert!(trace.is_sorted_by(|one, next| one.at.0 <= next.at.0), "{shape:?}");
            for request in &trace {
                assert_eq!(request.hash_ids.len(), request.input_tokens.div_ceil(64) as usize, "{shape:?}");
                assert!(request.input_tokens > 0 && request.output_tokens > 0, "{shape:?}");
            }
        }
    }

    #[test]
    fn an_id_has_one_prefix() {
        for &shape in Shape::value_variants() {
            let mut parents = HashMap::new();
            for request in trace(shape) {
                let before = [None].into_iter().chain(request.hash_ids.iter().copied().map(Some));
                for (parent, id) in before.zip(request.hash_ids.iter().copied()) {
                    assert_eq!(*parents.entry(id).or_insert(parent), parent, "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn requests_come_at_the_rate_in_the_long_run() {
        for &shape in Shape::value_variants() {
            let trace = generate(&options(shape, 12_000)).unwrap();
            let seconds = trace[11_999].at.0 - trace[6_000].at.0;
            assert!((seconds / 300.0 - 1.0).abs() < 0.2, "{shape:?}: 6000 requests at 20/s take {seconds} s");
        }
    }

    #[test]
    fn what_can_be_cached_is_the_shapes() {
        for (shape, low, high) in [
            (Shape::Agents, 0.94, 0.97),
            (Shape::Giant, 0.95, 0.97),
            (Shape::Unique, 0.0, 0.0),
            (Shape::Rag, 0.4, 0.5),
            (Shape::Chat, 0.8, 0.86),
        ] {
            let ceiling = ceiling(&trace(shape));
            assert!((low..=high).contains(&ceiling), "{shape:?}: {ceiling}");
        }
    }

    #[test]
    fn a_block_size_changes_blocks_only() {
        let small = ShapeOptions { block_size: BlockSize::ENGINE, ..options(Shape::Rag, 50) };
        for (small, large) in
            generate(&small).unwrap().iter().zip(generate(&options(Shape::Rag, 50)).unwrap())
        {
            assert_eq!((small.at, small.input_tokens), (large.at, large.input_tokens));
            assert_eq!(small.hash_ids.len(), small.input_tokens.div_ceil(16) as usize);
        }
    }

    #[test]
    fn the_slowest_and_the_fastest_rate_end() {
        for (&shape, rate) in
            Shape::value_variants().iter().flat_map(|shape| [(shape, 1e-300), (shape, 1e300)])
        {
            let trace = generate(&ShapeOptions { rate, ..options(shape, 100) }).unwrap();
            assert!(trace.is_sorted_by(|one, next| one.at.0 <= next.at.0), "{shape:?} at {rate}");
        }
    }

    #[test]
    fn a_rate_without_meaning_is_refused() {
        for (rate, want) in
            [(0.0, "rate: found 0, wanted more than 0"), (f64::NAN, "rate: found NaN, wanted more than 0")]
        {
            let options = ShapeOptions { rate, ..options(Shape::Chat, 1) };
            assert_eq!(generate(&options).unwrap_err().to_string(), want);
        }
    }
}
