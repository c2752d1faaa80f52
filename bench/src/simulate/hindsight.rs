//! The best assignment of requests to replicas that can be found by one who knows all arrivals, to hold policies against.
//!
//! The best there is cannot be computed: where one request goes changes what every later one finds. So it is looked for, from
//! the best of all plays it is held against and of the policies with exact knowledge of the caches: requests that waited or
//! computed most are moved, alone or with those that build on them, and a move that lowers the mean time to the first token
//! is kept. What is found can be reached and is never worse than what it started from, so a policy's distance to it is
//! regret; the best there is may be better still.

use std::collections::HashMap;

use picker::policy::Policy;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::Fleet;
use super::{PlayError, Run, Served, SimulateOptions, Workload, play_all};

/// How the found one is called.
const NAME: &str = "oracle";
/// Requests among which the one with the most to gain is moved.
const CHOSEN_OF: usize = 8;

/// Plays a workload with each request at its replica; those without one as the default policy decides.
///
/// `assigned` has a place for each request, in the order of the trace. `name` is what the run is called.
pub fn play_assigned(
    workload: &Workload,
    options: &SimulateOptions,
    name: &'static str,
    assigned: &[Option<usize>],
) -> Result<Run, PlayError> {
    play(workload, options, (name, assigned), &workload.cached_at_best())
}

fn play(
    workload: &Workload,
    options: &SimulateOptions,
    (name, assigned): (&'static str, &[Option<usize>]),
    best: &[usize],
) -> Result<Run, PlayError> {
    Fleet::new(workload, options, Policy::default())?.assigning(name, assigned).play(best, &|_| ())
}

/// The best assignment that a search of so many plays finds. Same arguments, same run. O(plays · requests).
///
/// `beside` are the plays of this workload with these options that it is held against: none of them has a lower mean.
pub fn oracle(
    workload: &Workload,
    options: &SimulateOptions,
    plays: usize,
    beside: &[Run],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Run, PlayError> {
    let as_told = SimulateOptions { decisions_shown: 0, ..*options };
    let knowing = SimulateOptions { exact: true, ..as_told };
    let exact = play_all(workload, &knowing, &Policy::ALL, progress)?;
    let starts = exact.iter().map(|run| (run, knowing)).chain(beside.iter().map(|run| (run, as_told)));
    // What the router knows stays as it was in the start: with a split it decides what is computed apart.
    let start = starts.min_by(|(one, _), (other, _)| one.ttft_mean().total_cmp(&other.ttft_mean()));
    let Some((start, options)) = start else { return Err(PlayError::Replicas(options.replicas)) };
    let mut assigned: Vec<Option<usize>> = start.routed().map(Some).collect();
    // The start itself, not its assignment played anew: what was sent again after a loss would go to its last replica at once.
    let mut best = Run { name: NAME, decisions: Vec::new(), ..start.clone() };
    let at_best = workload.cached_at_best();
    let heirs = Heirs::of(workload);
    let mut chance = StdRng::seed_from_u64(options.seed);
    for _ in 0..plays {
        let mut moved = assigned.clone();
        let place = most_to_gain(&best, &mut chance);
        let to = Some(chance.random_range(0..options.replicas));
        moved[place] = to;
        if chance.random() {
            heirs.of_request(place).iter().for_each(|&heir| moved[heir] = to);
        }
        if moved == assigned {
            continue;
        }
        let run = play(workload, &options, (NAME, &moved), &at_best)?;
        progress(workload.len() as u64);
        if run.ttft_mean() < best.ttft_mean() {
            (best, assigned) = (run, moved);
        }
    }
    Ok(best)
}

/// Of some requests the one that waited longest, or computed most of what could have been cached.
fn most_to_gain(run: &Run, chance: &mut StdRng) -> usize {
    let some = (0..CHOSEN_OF).map(|_| chance.random_range(0..run.served.len()));
    let gain = |served: &Served| {
        let missed = served.cached_at_best.saturating_sub(served.cached_tokens) as f64;
        served.ttft.0 * (1.0 + missed / served.prompt_tokens.max(1) as f64)
    };
    let most = some.max_by(|&one, &other| gain(&run.served[one]).total_cmp(&gain(&run.served[other])));
    most.unwrap_or_default()
}

/// Which later requests build on each.
struct Heirs {
    /// By request: its deepest block that comes again, as a key of `places`.
    keys: Vec<Option<u64>>,
    places: HashMap<u64, Vec<usize>>,
}

impl Heirs {
    fn of(workload: &Workload) -> Self {
        let blocks = |place: usize| {
            workload.arrivals[place]
                .prompts
                .iter()
                .flat_map(|prompt| prompt.blocks.iter().map(|block| block.0))
        };
        let mut last: HashMap<u64, usize> = HashMap::new();
        for place in 0..workload.len() {
            last.extend(blocks(place).map(|block| (block, place)));
        }
        let key =
            |place: usize| blocks(place).rfind(|block| last.get(block).is_some_and(|&last| last > place));
        let keys: Vec<Option<u64>> = (0..workload.len()).map(key).collect();
        let mut places: HashMap<u64, Vec<usize>> =
            keys.iter().flatten().map(|&key| (key, Vec::new())).collect();
        for place in 0..workload.len() {
            for block in blocks(place) {
                if let Some(places) = places.get_mut(&block) {
                    places.push(place);
                }
            }
        }
        Self { keys, places }
    }

    /// Later requests with the deepest block of this one that comes again.
    fn of_request(&self, place: usize) -> &[usize] {
        let places = self.keys[place].and_then(|key| self.places.get(&key)).map_or(&[][..], Vec::as_slice);
        &places[places.partition_point(|&other| other <= place)..]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::super::{Changes, Pacing, Split};
    use super::*;
    use crate::engine::{EvictionOrder, Link, ReplicaOptions, Seconds, Timing};
    use crate::trace::hashed;

    fn workload() -> Workload {
        let path = "tests/fixtures/traces/taubench_airline_bs64.jsonl";
        let trace = hashed::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        Workload::of_hashes(&trace, None).unwrap()
    }

    fn options() -> SimulateOptions {
        let default = SimulateOptions::default();
        let timing = Timing { prefill_tokens_per_second: 12_000.0, ..default.replica.timing };
        let eviction = EvictionOrder::TailFirst;
        let replica = ReplicaOptions { cache_blocks: 93, slots: 1, timing, eviction, ..default.replica };
        let pacing = Pacing { speed: 3.0, ..default.pacing };
        SimulateOptions { replicas: 2, replica, pacing, ..default }
    }

    fn split() -> SimulateOptions {
        let link = Link::of(10.0);
        let split = Split { prefill_replicas: 1, threshold_tokens: 900, link, kv_bytes_per_token: 1e5 };
        SimulateOptions { split: Some(split), belief_blocks: Some(30), ..options() }
    }

    /// Of these plays the best is one whose router does not know the caches, which the search has to start from.
    #[test]
    fn no_play_beside_it_is_better() {
        let workload = workload();
        let best_of = |played: &[Run]| played.iter().map(Run::ttft_mean).fold(f64::INFINITY, f64::min);
        let losing = Changes { lose_at: Some(Seconds(20.0)), ..options().changes };
        for (shows, options) in [
            ("beliefs do better than knowledge", options()),
            ("prompts computed apart", split()),
            ("a replica is lost", SimulateOptions { changes: losing, ..options() }),
            ("the first ones do not count", SimulateOptions { warm: 100, ..options() }),
        ] {
            let played = play_all(&workload, &options, &Policy::ALL, &|_| ()).unwrap();
            for plays in [0, 5] {
                let found = oracle(&workload, &options, plays, &played, &|_| ()).unwrap();
                let best = best_of(&played);
                assert!(found.ttft_mean() <= best, "{shows}: {} after {best}", found.ttft_mean());
            }
        }
        let alone = oracle(&workload, &options(), 0, &[], &|_| ()).unwrap();
        let played = play_all(&workload, &options(), &Policy::ALL, &|_| ()).unwrap();
        assert!(alone.ttft_mean() > best_of(&played), "else the first case shows nothing");
    }

    /// Who decided does not matter, only where requests went and what the router knew.
    #[test]
    fn an_assignment_played_anew_is_the_same_play() {
        let workload = workload();
        let exact = |options| SimulateOptions { exact: true, ..options };
        for options in [options(), exact(options()), split(), exact(split())] {
            for run in play_all(&workload, &options, &Policy::ALL, &|_| ()).unwrap() {
                let assigned: Vec<_> = run.routed().map(Some).collect();
                let again = play_assigned(&workload, &options, "again", &assigned).unwrap();
                assert_eq!(again.served, run.served, "{}", run.name);
            }
        }
    }
}
