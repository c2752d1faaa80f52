//! The second lesson's published figures, from our generator and our entry cache: 120 runs, to the printed digits.
//!
//! The policies are written here as that fixture says them, so that it is the workload that is tested, not the picker.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::thread;

use bench::demo3::{EntryCache, Options, PrefixCache, Turn, Variant, Workload};
use serde::Deserialize;

const EXPECTED: &str = include_str!("fixtures/demo3/expected.json");
const REPLICAS: usize = 8;
const WINDOW: usize = 1_000;

#[derive(Deserialize)]
struct Expected {
    defaults: Defaults,
    configs: BTreeMap<String, Config>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Defaults {
    replicas: usize,
    capacity_tokens: u64,
    conversations: u32,
    skew: f64,
    requests: usize,
    warm: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    capacity_tokens: Option<u64>,
    skew: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    variant: String,
    config: String,
    seed: u64,
    first_conversations: Vec<u32>,
    oracle_infinite: f64,
    oracle_pooled_lru: f64,
    round_robin: [f64; 4],
    sticky_mod: [f64; 4],
    #[serde(rename = "guard_eps0.1_cumulative")]
    guard_cumulative: [f64; 4],
    #[serde(rename = "guard_eps0.25_half200")]
    guard_fading: [f64; 4],
}

impl Run {
    fn workload(&self, defaults: &Defaults, config: &Config) -> Workload {
        let variant = match self.variant.as_str() {
            "keyed-by-conversation" => Variant::Keyed,
            _ => Variant::NewText,
        };
        let Defaults { requests, conversations, skew, .. } = *defaults;
        let skew = config.skew.unwrap_or(skew);
        let options =
            Options { variant, requests, conversations, skew, seed: self.seed, ..Options::default() };
        Workload::new(options).unwrap()
    }
}

/// Replicas, with the prefill tokens that each has computed, as the guard counts them.
struct Fleet {
    caches: Vec<EntryCache>,
    loads: Vec<f64>,
}

impl Fleet {
    fn least_loaded(&self) -> usize {
        (0..REPLICAS).min_by(|&one, &other| self.loads[one].total_cmp(&self.loads[other])).unwrap()
    }

    /// The most matched tokens, then the smaller load, then the lower index; the least loaded if that one has too much.
    fn guarded(&self, request: usize, epsilon: f64) -> usize {
        let matched: Vec<u32> = self.caches.iter().map(|cache| cache.cached_tokens(request)).collect();
        let better = |&one: &usize, &other: &usize| {
            matched[other].cmp(&matched[one]).then(self.loads[one].total_cmp(&self.loads[other]))
        };
        let best = (0..REPLICAS).min_by(better).unwrap();
        let mean = self.loads.iter().sum::<f64>() / REPLICAS as f64;
        if self.loads[best] > (1.0 + epsilon) * mean { self.least_loaded() } else { best }
    }
}

/// The four columns: hit rate, imbalance, mean and largest imbalance of the windows. `keep` is what is left of a load
/// from one request to the next.
fn play(
    workload: &Workload,
    capacity_tokens: u64,
    warm: usize,
    keep: f64,
    pick: impl Fn(usize, Turn, &Fleet) -> usize,
) -> [f64; 4] {
    let caches = (0..REPLICAS).map(|_| workload.cache(capacity_tokens)).collect();
    let mut fleet = Fleet { caches, loads: vec![0.0; REPLICAS] };
    let mut uncached = Vec::with_capacity(workload.turns().len());
    for (request, &turn) in workload.turns().iter().enumerate() {
        fleet.loads.iter_mut().for_each(|load| *load *= keep);
        let replica = pick(request, turn, &fleet);
        let tokens = turn.prompt_tokens() - fleet.caches[replica].admit(request);
        fleet.loads[replica] += f64::from(tokens);
        uncached.push((replica, tokens));
    }
    let (uncached, turns) = (&uncached[warm..], &workload.turns()[warm..]);
    let asked: u32 = turns.iter().map(|turn| turn.prompt_tokens()).sum();
    let computed: u32 = uncached.iter().map(|(_, tokens)| tokens).sum();
    let windows: Vec<f64> = uncached.chunks_exact(WINDOW).map(imbalance).collect();
    let mean = windows.iter().sum::<f64>() / windows.len() as f64;
    let worst = windows.iter().copied().fold(0.0, f64::max);
    [1.0 - f64::from(computed) / f64::from(asked), imbalance(uncached), mean, worst]
}

fn imbalance(uncached: &[(usize, u32)]) -> f64 {
    let mut sums = [0.0; REPLICAS];
    uncached.iter().for_each(|&(replica, tokens)| sums[replica] += f64::from(tokens));
    sums.iter().copied().fold(0.0, f64::max) / (sums.iter().sum::<f64>() / REPLICAS as f64)
}

/// Half a unit of the last printed digit, and the error of the arithmetic.
fn printed(got: [f64; 4], want: [f64; 4]) -> bool {
    let near = |place: usize, unit: f64| (got[place] - want[place]).abs() <= unit * 0.500_001;
    near(0, 1e-6) && (1..4).all(|place| near(place, 1e-4))
}

fn check(expected: &Expected, run: &Run) {
    let (defaults, config) = (&expected.defaults, &expected.configs[&run.config]);
    let workload = run.workload(defaults, config);
    let (capacity, warm) = (config.capacity_tokens.unwrap_or(defaults.capacity_tokens), defaults.warm);
    let shows = format!("{}, {}, seed {}", run.variant, run.config, run.seed);
    let first: Vec<u32> = workload.turns()[..12].iter().map(|turn| turn.conversation).collect();
    assert_eq!(first, run.first_conversations, "{shows}");
    let held =
        |name: &str, got: [f64; 4], want| assert!(printed(got, want), "{shows}, {name}: {got:?}, {want:?}");
    let turns = |request, _: Turn, _: &Fleet| request % REPLICAS;
    held("round robin", play(&workload, capacity, warm, 1.0, turns), run.round_robin);
    let sticky = |_, turn: Turn, _: &Fleet| turn.conversation as usize % REPLICAS;
    held("sticky", play(&workload, capacity, warm, 1.0, sticky), run.sticky_mod);
    let guard = |epsilon| move |request, _: Turn, fleet: &Fleet| fleet.guarded(request, epsilon);
    held("guard", play(&workload, capacity, warm, 1.0, guard(0.1)), run.guard_cumulative);
    // Halved every 200 requests, little by little.
    let keep = 0.5f64.powf(1.0 / 200.0);
    held("fading guard", play(&workload, capacity, warm, keep, guard(0.25)), run.guard_fading);
    for (name, capacity, want) in [
        ("endless cache", u64::MAX, run.oracle_infinite),
        ("pooled cache", capacity * REPLICAS as u64, run.oracle_pooled_lru),
    ] {
        let [hit_rate, ..] = play(&workload, capacity, warm, 1.0, |_, _, _: &Fleet| 0);
        assert!((hit_rate - want).abs() <= 0.500_001e-6, "{shows}, {name}: {hit_rate}, {want}");
    }
}

#[test]
fn every_run_of_the_fixture_to_the_printed_digits() {
    let expected: Expected = serde_json::from_str(EXPECTED).unwrap();
    assert_eq!((expected.runs.len(), expected.defaults.replicas), (120, REPLICAS));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = expected.runs.len().div_ceil(threads);
    thread::scope(|scope| {
        for runs in expected.runs.chunks(share) {
            scope.spawn(|| runs.iter().for_each(|run| check(&expected, run)));
        }
    });
}
