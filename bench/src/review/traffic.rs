//! What the trace allows: its ceiling, its working set, and what policies make of it on the fleet's own caches.
//!
//! Nothing is simulated here that `simulate` does not: this file chooses the fleet and reads the runs.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use picker::hash::{BlockHash, BlockSize};
use picker::policy::Policy;

use crate::engine::{EvictionOrder, ReplicaOptions, Seconds, Timing};
use crate::simulate::{Pacing, PlayError, Report, Run, SimulateOptions, Workload, play_all};
use crate::trace::form::{self, AnyTrace};
use crate::trace::lines::{BadLines, Loaded, REASONS_MAX};

/// Policies that are played: all but `random`, which says nothing that `round-robin` does not.
const PLAYED: [Policy; 8] = [
    Policy::RoundRobin,
    Policy::LeastQueue,
    Policy::Sticky,
    Policy::Guarded,
    Policy::Affinity,
    Policy::PrefixOnly,
    Policy::Prefix,
    Policy::ExpectedTtft,
];
/// Policies played at once: each has a belief as large as the fleet's caches.
const PLAYED_AT_ONCE: usize = 2;
/// What every prefill costs beside its tokens, as everywhere in the laboratory.
const OVERHEAD_MS: f64 = 5.0;

/// What a trace is played on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Caches, one for each engine.
    pub caches: usize,
    /// Tokens that each holds.
    pub cache_tokens: f64,
    /// Uncached prompt tokens that each computes in a second.
    pub tokens_per_second: f64,
    /// Where that pace is from, in words.
    pub paced: &'static str,
    /// Times of the trace are divided by it.
    pub speed: f64,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Tokens in a block of bodies.
    pub body_block: BlockSize,
    /// Tokens in a block of `hash_ids`; `None` for what explains them.
    pub hashed_block: Option<BlockSize>,
    /// `None` where the replicas do not tell what their caches hold.
    pub stage: Option<Stage>,
}

/// What a trace says.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The file.
    pub path: String,
    /// Requests that count.
    pub requests: usize,
    /// Whether tokens are word pieces of bodies; else they are the trace's own lengths.
    pub in_words: bool,
    /// From the first request to the last.
    pub span: Seconds,
    /// Tokens in a block.
    pub block_size: usize,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of them, found by one cache without a bound.
    pub ceiling_tokens: u64,
    /// Tokens of distinct full blocks: what a cache without a bound would hold in the end.
    pub distinct_tokens: u64,
    /// Of them, those that more than one request has: what is worth keeping.
    pub shared_tokens: u64,
    /// On the fleet's caches; `None` where there is no fleet to play on.
    pub played: Option<Played>,
}

/// What policies made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// On what.
    pub stage: Stage,
    /// Prompt tokens found by one cache as large as all of the fleet's, the least recently used out first.
    pub pooled_tokens: u64,
    /// Round robin first.
    pub plays: Vec<Play>,
    /// The place of the best of them.
    pub best: usize,
}

/// What one policy made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Play {
    /// Its figures.
    pub report: Report,
    /// Replicas that a shared block was sent to, in the mean; `None` without shared blocks.
    pub reach: Option<f64>,
}

impl Traffic {
    /// Prompt tokens found by one cache without a bound, 0 to 1.
    pub fn ceiling(&self) -> f64 {
        self.share(self.ceiling_tokens)
    }

    /// A share of the prompt tokens.
    pub fn share(&self, tokens: u64) -> f64 {
        tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// What a play has of the ceiling, 0 to 1; `None` where there is nothing to have.
    pub fn of_ceiling(&self, play: &Play) -> Option<f64> {
        (self.ceiling_tokens > 0).then_some(play.report.of_ceiling)
    }

    /// Mean length of a prompt.
    pub fn mean_prompt(&self) -> f64 {
        self.prompt_tokens as f64 / self.requests.max(1) as f64
    }
}

impl Played {
    /// Requests taking turns.
    pub fn round_robin(&self) -> &Play {
        &self.plays[0]
    }

    /// The highest hit rate among those whose p95 of the first token is not later than round robin's; the soonest where
    /// all are later.
    pub fn best(&self) -> &Play {
        &self.plays[self.best]
    }
}

/// Reads a trace of either form and plays it. What cannot be read or played becomes a line among the faults.
pub fn look_at(
    path: &Path,
    wanted: &Wanted,
    progress: &(dyn Fn(u64) + Sync),
) -> (Option<Traffic>, Vec<String>) {
    let mut faults = Vec::new();
    let Loaded { requests, skipped } = match form::read(path, BadLines::Skip) {
        Ok(loaded) => loaded,
        Err(error) => return (None, vec![error.to_string()]),
    };
    if skipped.lines > 0 {
        faults.push(format!(
            "{}: {} bad lines left out, the first: {}",
            path.display(),
            skipped.lines,
            skipped.reasons[0]
        ));
    }
    let in_words = matches!(requests, AnyTrace::Bodies(_));
    let read = match requests {
        AnyTrace::Bodies(trace) => Ok(Workload::of_good_bodies(&trace, wanted.body_block)),
        AnyTrace::Hashed(trace, told) => Workload::of_good_hashes(&trace, wanted.hashed_block.or(told)),
    };
    let (workload, bad) = match read {
        Ok(read) => read,
        Err(reason) => {
            faults.push(format!("{}: {reason}", path.display()));
            return (None, faults);
        }
    };
    faults.extend(left_out(path, &bad));
    if workload.is_empty() {
        faults.push(format!("{}: found no request that can be played", path.display()));
        return (None, faults);
    }
    let mut traffic = measure(path, &workload, in_words);
    match wanted.stage.map(|stage| play(&workload, stage, progress)).transpose() {
        Ok(played) => traffic.played = played,
        Err(reason) => faults.push(format!("{}: cannot be played on this fleet: {reason}", path.display())),
    }
    (Some(traffic), faults)
}

/// One line for the requests that cannot be played, with the first few reasons.
fn left_out(path: &Path, bad: &[PlayError]) -> Option<String> {
    let reasons: Vec<_> = bad.iter().take(REASONS_MAX).map(ToString::to_string).collect();
    let more = if bad.len() > reasons.len() { ", ..." } else { "" };
    let line =
        || format!("{}: {} requests left out: {}{more}", path.display(), bad.len(), reasons.join("; "));
    (!bad.is_empty()).then(line)
}

fn measure(path: &Path, workload: &Workload, in_words: bool) -> Traffic {
    let size = workload.block_size().tokens();
    let uses = uses(workload);
    let shared = uses.values().filter(|&&requests| requests > 1).count();
    let sum = |tokens: Vec<usize>| tokens.into_iter().sum::<usize>() as u64;
    Traffic {
        path: path.display().to_string(),
        requests: workload.len(),
        in_words,
        span: workload.span(),
        block_size: size,
        prompt_tokens: workload.prompts().flatten().map(|prompt| prompt.tokens as u64).sum(),
        ceiling_tokens: sum(workload.cached_by_one(usize::MAX)),
        distinct_tokens: (uses.len() * size) as u64,
        shared_tokens: (shared * size) as u64,
        played: None,
    }
}

/// Requests that have each block.
fn uses(workload: &Workload) -> HashMap<BlockHash, usize> {
    let mut uses = HashMap::new();
    for prompts in workload.prompts() {
        let blocks: HashSet<_> = prompts.iter().flat_map(|prompt| &prompt.blocks).collect();
        blocks.into_iter().for_each(|block| *uses.entry(*block).or_default() += 1);
    }
    uses
}

fn play(workload: &Workload, stage: Stage, progress: &(dyn Fn(u64) + Sync)) -> Result<Played, PlayError> {
    let options = options(workload, stage);
    let uses = uses(workload);
    let mut plays = Vec::with_capacity(PLAYED.len());
    for policies in PLAYED.chunks(PLAYED_AT_ONCE) {
        let runs = play_all(workload, &options, policies, progress)?;
        plays.extend(
            runs.iter().map(|run| Play { report: Report::of(run), reach: reach(workload, run, &uses) }),
        );
    }
    let pooled_blocks = options.replica.cache_blocks.saturating_mul(stage.caches);
    let pooled_tokens = workload.cached_by_one(pooled_blocks).into_iter().sum::<usize>() as u64;
    Ok(Played { stage, pooled_tokens, best: best(&plays), plays })
}

/// One lane, as prefill takes the whole engine; vLLM's order of eviction.
fn options(workload: &Workload, stage: Stage) -> SimulateOptions {
    let block_size = workload.block_size();
    let timing = Timing {
        prefill_overhead: Seconds::from_millis(OVERHEAD_MS),
        prefill_tokens_per_second: stage.tokens_per_second,
    };
    let cache_blocks = (stage.cache_tokens / block_size.tokens() as f64) as usize;
    let replica =
        ReplicaOptions { cache_blocks, block_size, eviction: EvictionOrder::TailFirst, slots: 1, timing };
    // More than there are distinct blocks need not be believed.
    let distinct: HashSet<_> = workload.prompts().flatten().flat_map(|prompt| &prompt.blocks).collect();
    let pacing = Pacing { speed: stage.speed, burst: 1 };
    let belief_blocks = Some(cache_blocks.min(distinct.len()).max(1));
    SimulateOptions { replicas: stage.caches, replica, belief_blocks, pacing, ..SimulateOptions::default() }
}

/// The mean over the blocks that more than one request has.
fn reach(workload: &Workload, run: &Run, uses: &HashMap<BlockHash, usize>) -> Option<f64> {
    let shared = uses.values().filter(|&&requests| requests > 1).count();
    let mut sent: HashSet<(BlockHash, usize)> = HashSet::new();
    for (prompts, replica) in workload.prompts().zip(run.routed()) {
        let blocks = prompts.iter().flat_map(|prompt| &prompt.blocks);
        sent.extend(
            blocks
                .filter(|block| uses.get(block).is_some_and(|&requests| requests > 1))
                .map(|block| (*block, replica)),
        );
    }
    (shared > 0).then(|| sent.len() as f64 / shared as f64)
}

fn best(plays: &[Play]) -> usize {
    let round_robin = plays[0].report.ttft_p95_ms;
    let in_time = |place: &usize| plays[*place].report.ttft_p95_ms <= round_robin;
    let hit_rate = |place: usize| plays[place].report.hit_rate;
    let best =
        (0..plays.len()).filter(in_time).max_by(|&one, &other| hit_rate(one).total_cmp(&hit_rate(other)));
    best.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::trace::hashed::HashedRequest;

    const STAGE: Stage =
        Stage { caches: 2, cache_tokens: 32.0, tokens_per_second: 1e6, paced: "given", speed: 1.0 };

    /// Two prefixes of 2 blocks of 8 tokens, each asked for three times in turn, with a block of its own at the end.
    fn workload() -> Workload {
        let request = |number: u64| HashedRequest {
            at: Seconds(number as f64 / 3.0),
            input_tokens: 24,
            output_tokens: 1,
            hash_ids: vec![number % 2 * 10, number % 2 * 10 + 1, 100 + number],
            session: None,
        };
        let trace: Vec<_> = [0, 1, 3, 2, 4, 5].map(request).into_iter().collect();
        let trace: Vec<_> = (0..)
            .zip(trace)
            .map(|(at, request)| HashedRequest { at: Seconds(at as f64), ..request })
            .collect();
        Workload::of_hashes(&trace, BlockSize::new(8).ok()).unwrap()
    }

    #[test]
    fn the_working_set_is_distinct_blocks_and_its_shared_part_what_comes_again() {
        let traffic = measure(Path::new("t"), &workload(), false);
        assert_eq!((traffic.requests, traffic.prompt_tokens, traffic.span), (6, 144, Seconds(5.0)));
        // Two prefixes of 16 tokens, and six tails of 8.
        assert_eq!((traffic.distinct_tokens, traffic.shared_tokens), (80, 32));
        // All but the first of each prefix.
        assert_eq!((traffic.ceiling_tokens, traffic.mean_prompt()), (64, 24.0));
    }

    #[test]
    fn there_is_no_share_of_no_ceiling() {
        let workload = workload();
        for (requests, want) in [(1, None), (3, Some(0.0))] {
            let workload = workload.first(requests);
            let played = play(&workload, STAGE, &|_| ()).unwrap();
            let share = measure(Path::new("t"), &workload, false).of_ceiling(played.round_robin());
            assert_eq!(share, want, "{requests}");
        }
    }

    #[test]
    fn round_robin_sends_a_prefix_everywhere_and_the_best_does_not() {
        let played = play(&workload(), STAGE, &|_| ()).unwrap();
        assert_eq!(played.round_robin().report.policy, "round-robin");
        assert_eq!(played.round_robin().reach, Some(2.0));
        assert_eq!(played.best().reach, Some(1.0), "{:?}", played.best());
        assert_eq!(played.best().report.hit_tokens, 64);
        assert!(played.round_robin().report.hit_tokens < 64 && played.pooled_tokens == 64);
    }

    #[test]
    fn the_best_hits_most_and_is_not_later_than_round_robin() {
        let plays = |figures: &[(f64, f64)]| -> Vec<Play> {
            let play = |&(hit_rate, ttft_p95_ms): &(f64, f64)| {
                let mut play = play(&workload(), STAGE, &|_| ()).unwrap().plays.remove(0);
                (play.report.hit_rate, play.report.ttft_p95_ms) = (hit_rate, ttft_p95_ms);
                play
            };
            figures.iter().map(play).collect()
        };
        assert_eq!(best(&plays(&[(0.4, 10.0), (0.9, 20.0), (0.6, 9.0), (0.5, 1.0)])), 2);
        assert_eq!(best(&plays(&[(0.4, 10.0), (0.9, 20.0)])), 0);
    }
}
