//! A trace made ready: what of a request does not depend on where it goes is worked out once, for all policies.

use std::collections::HashMap;

use picker::decide::{Ask, Asked, Rules};
use picker::hash::{BlockHash, BlockSize, Blocks, model_root};
use picker::read;
use picker::tokens::Kind;

use super::{BodyError, PlayError};
use crate::demo3::{self, EntryCache, PrefixCache};
use crate::engine::{BlockCache, EvictionOrder, Prompt, Seconds};
use crate::prompt::{Api, Object, engine_prompts, token_ids};
use crate::trace::TraceRequest;
use crate::trace::hashed::HashedRequest;

/// The largest block that is looked for where nobody says how large blocks are.
const BLOCK_TOKENS_MAX: i64 = 1 << 20;

/// One request, ready to be played.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) at: Seconds,
    /// What the router sees.
    pub(super) asked: Asked,
    /// What the engine sees.
    pub(super) prompts: Vec<Prompt>,
    /// Place of its group, or its session, among the names.
    pub(super) group: Option<usize>,
    /// Tokens of the answer, at least 1.
    pub(super) output_tokens: u32,
}

impl Arrival {
    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens).sum()
    }
}

/// All requests of a trace, in the order of time.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(super) arrivals: Vec<Arrival>,
    pub(super) groups: Vec<String>,
    block_size: BlockSize,
    /// Whose replicas cache otherwise than by blocks.
    demo3: Option<demo3::Workload>,
}

impl Workload {
    /// Requests with bodies, read as the engine reads them, in blocks of that size. Errors: the first that has no prompt.
    pub fn of_bodies(trace: &[TraceRequest], block_size: BlockSize) -> Result<Self, PlayError> {
        let mut names = Names::default();
        let mut arrivals = Vec::with_capacity(trace.len());
        for (number, request) in (1..).zip(trace) {
            let read = read_body(&request.body, block_size);
            let (asked, prompts, output_tokens) =
                read.map_err(|reason| PlayError::Body { number, reason })?;
            let group = Some(names.place(&request.group));
            arrivals.push(Arrival { at: request.at, asked, prompts, group, output_tokens });
        }
        Ok(Self { arrivals, groups: names.names, block_size, demo3: None })
    }

    /// The same of those that can be played; the others are returned with what is wrong with them, a prompt without text
    /// included.
    pub(crate) fn of_good_bodies(trace: &[TraceRequest], block_size: BlockSize) -> (Self, Vec<PlayError>) {
        let (mut names, mut arrivals, mut bad) =
            (Names::default(), Vec::with_capacity(trace.len()), Vec::new());
        for (number, request) in (1..).zip(trace) {
            let read = read_body(&request.body, block_size);
            let read = read.and_then(|read| match read.1.iter().all(|prompt| prompt.tokens == 0) {
                true => Err(BodyError::NoText),
                false => Ok(read),
            });
            match read {
                Err(reason) => bad.push(PlayError::Body { number, reason }),
                Ok((asked, prompts, output_tokens)) => {
                    let group = Some(names.place(&request.group));
                    arrivals.push(Arrival { at: request.at, asked, prompts, group, output_tokens });
                }
            }
        }
        (Self { arrivals, groups: names.names, block_size, demo3: None }, bad)
    }

    /// Requests that are known by their blocks, those that can be played; the others are returned with what is wrong with
    /// them. Without a block size it is the smallest power of two that explains the most. Errors: none explains a half.
    pub(crate) fn of_good_hashes(
        trace: &[HashedRequest],
        block_size: Option<BlockSize>,
    ) -> Result<(Self, Vec<PlayError>), PlayError> {
        let (good, size, bad) = usable(trace, block_size)?;
        Ok((Self::of_hashes(&good, Some(size))?, bad))
    }

    /// Requests that are known by their blocks. Without a block size it is the smallest power of two that explains how many
    /// blocks each prompt has. Errors: a request that has not as many blocks as its length makes of that size.
    pub fn of_hashes(trace: &[HashedRequest], block_size: Option<BlockSize>) -> Result<Self, PlayError> {
        let block_size = block_size_of(trace, block_size)?;
        let mut names = Names::default();
        let arrivals = trace.iter().map(|request| hashed(request, block_size, &mut names)).collect();
        Ok(Self { arrivals, groups: names.names, block_size, demo3: None })
    }

    /// The second lesson's requests, for replicas with its cache. Errors: none that its generator can make.
    pub fn of_demo3(demo3: &demo3::Workload) -> Result<Self, PlayError> {
        let size = BlockSize::new(demo3::BLOCK_TOKENS.into()).ok();
        Ok(Self { demo3: Some(demo3.clone()), ..Self::of_hashes(&demo3.requests(), size)? })
    }

    /// The first requests, so many.
    pub fn first(&self, count: usize) -> Self {
        let arrivals = self.arrivals.iter().take(count).cloned().collect();
        Self { arrivals, groups: self.groups.clone(), block_size: self.block_size, demo3: self.demo3.clone() }
    }

    /// How many requests.
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Tokens in a block, for router and engine.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The empty cache of one replica, if it is none of blocks.
    pub(super) fn entry_cache(&self, capacity_tokens: u64) -> Option<EntryCache> {
        self.demo3.as_ref().map(|demo3| demo3.cache(capacity_tokens))
    }

    /// The prompts of each request, as an engine sees them.
    pub(crate) fn prompts(&self) -> impl Iterator<Item = &[Prompt]> {
        self.arrivals.iter().map(|arrival| arrival.prompts.as_slice())
    }

    /// From the first request to the last.
    pub(crate) fn span(&self) -> Seconds {
        match (self.arrivals.first(), self.arrivals.last()) {
            (Some(first), Some(last)) => last.at - first.at,
            _ => Seconds(0.0),
        }
    }

    /// Tokens of each prompt that one cache without a bound would have: nothing can do better.
    pub(super) fn cached_at_best(&self) -> Vec<usize> {
        if let Some(mut entries) = self.entry_cache(u64::MAX) {
            return (0..self.len()).map(|place| entries.admit(place) as usize).collect();
        }
        self.cached_by_one(usize::MAX)
    }

    /// Tokens of each prompt that one cache of so many blocks would have, evicting in vLLM's order.
    pub(crate) fn cached_by_one(&self, capacity_blocks: usize) -> Vec<usize> {
        let mut cache = BlockCache::new(capacity_blocks, self.block_size, EvictionOrder::TailFirst);
        let cached = |arrival: &Arrival| arrival.prompts.iter().map(|prompt| cache.admit(prompt)).sum();
        self.arrivals.iter().map(cached).collect()
    }
}

/// Names in the order in which they first came.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    places: HashMap<String, usize>,
}

impl Names {
    fn place(&mut self, name: &str) -> usize {
        if let Some(&place) = self.places.get(name) {
            return place;
        }
        self.places.insert(name.to_owned(), self.names.len());
        self.names.push(name.to_owned());
        self.names.len() - 1
    }
}

/// How a router cuts prompts that it is to compare with an engine's word for word; the policy is still open.
pub(super) fn rules(block: BlockSize) -> Rules {
    Rules { tokenizer: Kind::Words, block, ..Rules::default() }
}

fn read_body(body: &str, size: BlockSize) -> Result<(Asked, Vec<Prompt>, u32), BodyError> {
    let object: Object = serde_json::from_str(body).map_err(|error| BodyError::Json(error.to_string()))?;
    let api = Api::of_members(|member| object.contains_key(member)).ok_or(BodyError::NoPrompt)?;
    let text = |member| object.get(member).and_then(|value| value.as_str()).unwrap_or_default();
    let root = model_root(text("model"), text("cache_salt"));
    let prompts = engine_prompts(root, &token_ids(api, &object)?, size);
    let ask = Ask { api: router_api(api), body: body.as_bytes(), tenant: b"", session: b"" };
    Ok((Asked::read(&ask, None, &rules(size))?, prompts, output_tokens(&object)))
}

fn router_api(api: Api) -> read::Api {
    match api {
        Api::Chat => read::Api::Chat,
        Api::Completions => read::Api::Completions,
        Api::Responses => read::Api::Responses,
        Api::Messages => read::Api::Messages,
        Api::Embeddings => read::Api::Embeddings,
    }
}

/// As long as it may be; an answer of which nothing is said ends with its first token.
fn output_tokens(body: &Object) -> u32 {
    let limits = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
    let limit = limits.iter().find_map(|limit| body.get(*limit)?.as_u64());
    limit.map_or(1, |limit| u32::try_from(limit).unwrap_or(u32::MAX).max(1))
}

fn hashed(request: &HashedRequest, size: BlockSize, names: &mut Names) -> Arrival {
    let blocks: Vec<BlockHash> = request.hash_ids.iter().map(|&id| block_hash(id)).collect();
    let tokens = request.input_tokens as usize;
    let prompt = Prompt { tokens, blocks: blocks[..tokens / size.tokens()].to_vec() };
    let session = request.session.as_deref();
    Arrival {
        at: request.at,
        asked: Asked::hashed(Blocks::one(blocks), session.unwrap_or_default().as_bytes()),
        prompts: vec![prompt],
        group: session.map(|session| names.place(session)),
        output_tokens: request.output_tokens.max(1),
    }
}

/// Ids count up from 0; block hashes are spread over all numbers.
fn block_hash(id: u64) -> BlockHash {
    BlockHash(picker::chance::mix(id))
}

/// The requests that have as many blocks as their lengths make, the size of the blocks, and what is wrong with the others.
/// Without a stated size it is the smallest power of two that explains the most. Errors: none explains a half.
pub(crate) fn usable(
    trace: &[HashedRequest],
    stated: Option<BlockSize>,
) -> Result<(Vec<HashedRequest>, BlockSize, Vec<PlayError>), PlayError> {
    let size = stated.map_or_else(|| most_explained(trace), Ok)?;
    let (mut good, mut bad) = (Vec::with_capacity(trace.len()), Vec::new());
    for (number, request) in (1..).zip(trace) {
        match check_count(number, request, size) {
            Ok(()) if request.input_tokens > 0 => good.push(request.clone()),
            Ok(()) => bad.push(PlayError::Body { number, reason: BodyError::NoText }),
            Err(reason) => bad.push(reason),
        }
    }
    Ok((good, size, bad))
}

/// The size of a trace's blocks: what is stated, or the smallest power of two that explains how many blocks each prompt has.
/// Errors: a request that has not as many blocks as its length makes of that size.
pub fn block_size_of(trace: &[HashedRequest], stated: Option<BlockSize>) -> Result<BlockSize, PlayError> {
    let size = stated.map_or_else(|| inferred(trace), Ok)?;
    check_counts(trace, size).map(|()| size)
}

/// The smallest power of two that explains every request; where none does, the one that explains the most, so that those which
/// it does not explain are named.
fn inferred(trace: &[HashedRequest]) -> Result<BlockSize, PlayError> {
    let of_all = block_sizes().find(|&size| check_counts(trace, size).is_ok());
    of_all.map_or_else(|| most_explained(trace), Ok)
}

/// The smallest power of two that explains the most requests, and half of them at least.
fn most_explained(trace: &[HashedRequest]) -> Result<BlockSize, PlayError> {
    let explained = |size| trace.iter().filter(|request| check_count(1, request, size).is_ok()).count();
    // Of equal counts `max_by_key` takes the last.
    let sizes: Vec<_> = block_sizes().map(|size| (size, explained(size))).collect();
    let best = sizes.into_iter().rev().max_by_key(|(_, count)| *count);
    best.filter(|(_, count)| count * 2 >= trace.len()).map(|(size, _)| size).ok_or(PlayError::NoBlockSize)
}

fn block_sizes() -> impl Iterator<Item = BlockSize> {
    let powers = std::iter::successors(Some(1), |size: &i64| Some(size * 2));
    powers.take_while(|&size| size <= BLOCK_TOKENS_MAX).filter_map(|size| BlockSize::new(size).ok())
}

fn check_counts(trace: &[HashedRequest], size: BlockSize) -> Result<(), PlayError> {
    (1..).zip(trace).try_for_each(|(number, request)| check_count(number, request, size))
}

fn check_count(number: usize, request: &HashedRequest, size: BlockSize) -> Result<(), PlayError> {
    let (found, wanted) = (request.hash_ids.len(), (request.input_tokens as usize).div_ceil(size.tokens()));
    let (tokens, size) = (request.input_tokens, size.tokens());
    if found == wanted { Ok(()) } else { Err(PlayError::BlockCount { number, found, wanted, tokens, size }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn request(input_tokens: u32, ids: std::ops::Range<u64>) -> HashedRequest {
        HashedRequest {
            at: Seconds(0.0),
            input_tokens,
            output_tokens: 3,
            hash_ids: ids.collect(),
            session: Some("s".to_owned()),
        }
    }

    #[test]
    fn the_smallest_power_of_two_that_explains_all_is_the_block() {
        for (shows, trace, want) in [
            ("one length leaves several: the smallest", vec![request(100, 0..2)], Ok(64)),
            ("another length rules it out", vec![request(9, 0..1), request(100, 0..1)], Ok(128)),
            ("a prompt of one block can be any", vec![request(9, 0..1)], Ok(16)),
            ("each token a block", vec![request(9, 0..9)], Ok(1)),
            (
                "none fits all: what the best does not explain",
                vec![request(100, 0..2), request(100, 0..4), request(100, 0..2)],
                Err(PlayError::BlockCount { number: 2, found: 4, wanted: 2, tokens: 100, size: 64 }),
            ),
            (
                "none fits a half",
                [2, 3, 5].map(|blocks| request(100, 0..blocks)).to_vec(),
                Err(PlayError::NoBlockSize),
            ),
        ] {
            let size = Workload::of_hashes(&trace, None).map(|workload| workload.block_size().tokens());
            assert_eq!(size, want, "{shows}");
        }
    }

    #[test]
    fn a_stated_block_that_does_not_explain_a_request_is_refused() {
        let trace = [request(64, 0..1), request(100, 0..3)];
        let error = Workload::of_hashes(&trace, Some(BlockSize::new(64).unwrap())).unwrap_err();
        assert_eq!(error.to_string(), "request 2: found 3 hash ids, wanted 2 for 100 tokens in blocks of 64");
    }

    /// The engine keeps full blocks and always computes the last token; 64 of 128 equal tokens can be had.
    #[test]
    fn the_best_there_is_counts_full_blocks() {
        let trace = [request(128, 0..2), request(128, 0..2), request(129, 0..3), request(100, 0..2)];
        let workload = Workload::of_hashes(&trace, Some(BlockSize::new(64).unwrap())).unwrap();
        assert_eq!(workload.cached_at_best(), [0, 64, 128, 64]);
        assert_eq!(workload.arrivals[3].prompts[0].blocks.len(), 1);
        assert_eq!((workload.arrivals[0].group, workload.groups.len()), (Some(0), 1));
    }

    #[test]
    fn what_cannot_be_played_is_left_out_and_said() {
        let body =
            |body: &str| TraceRequest { at: Seconds(0.0), group: "g".to_owned(), body: body.to_owned() };
        let trace = [r#"{"prompt":"a b"}"#, r#"{"model":"m"}"#, r#"{"messages":[{"content":""}]}"#].map(body);
        let (workload, bad) = Workload::of_good_bodies(&trace, BlockSize::ENGINE);
        let bad: Vec<_> = bad.iter().map(ToString::to_string).collect();
        let want =
            ["request 2: found none of messages, prompt and input", "request 3: found a prompt without text"];
        assert_eq!((workload.len(), bad), (1, want.map(str::to_owned).to_vec()));

        let trace = [request(100, 0..2), request(0, 0..0), request(100, 0..0), request(64, 0..1)];
        let (workload, bad) = Workload::of_good_hashes(&trace, None).unwrap();
        let bad: Vec<_> = bad.iter().map(ToString::to_string).collect();
        let want = "request 3: found 0 hash ids, wanted 2 for 100 tokens in blocks of 64";
        assert_eq!((workload.len(), bad.len(), bad[1].as_str()), (2, 2, want));
        let nonsense = [request(100, 0..2), request(100, 0..3), request(100, 0..5)];
        assert_eq!(Workload::of_good_hashes(&nonsense, None).unwrap_err(), PlayError::NoBlockSize);
    }

    #[test]
    fn one_cache_of_some_blocks_has_what_is_left_in_it() {
        let trace = [request(128, 0..2), request(128, 2..4), request(129, 0..3)];
        let workload = Workload::of_hashes(&trace, Some(BlockSize::new(64).unwrap())).unwrap();
        assert_eq!(workload.cached_by_one(4), [0, 0, 128]);
        assert_eq!(workload.cached_by_one(3), [0, 0, 64]);
        assert_eq!(workload.prompts().map(|prompts| prompts[0].blocks.len()).collect::<Vec<_>>(), [2, 2, 2]);
    }

    #[test]
    fn bodies_say_how_long_an_answer_is() {
        for (body, want) in [
            (r#"{"prompt":"a"}"#, 1),
            (r#"{"prompt":"a","max_tokens":7}"#, 7),
            (r#"{"messages":[],"max_tokens":7,"max_completion_tokens":0}"#, 1),
            (r#"{"input":"a","max_output_tokens":99999999999}"#, u32::MAX),
        ] {
            let request = TraceRequest { at: Seconds(0.0), group: "g".to_owned(), body: body.to_owned() };
            let workload = Workload::of_bodies(&[request], BlockSize::ENGINE).unwrap();
            assert_eq!(workload.arrivals[0].output_tokens, want, "{body}");
        }
    }
}
