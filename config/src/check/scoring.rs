//! How a pool chooses: a policy by name with its weights, or llm-d's scheduler configuration in their place.

use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Scorer, WEIGHT_MAX, Weights};

use crate::defaults::{self, MATCH_LENGTH_WEIGHT};
use crate::faults::{Reason, one_of};
use crate::read::form::{Choice, Integers, Numbers};
use crate::read::{FilePath, Key, Place, Placed, Reader, Section, live};
use crate::scheduler::{self, Scheduler};
use crate::tree::At;
use crate::{Flags, Pool};

const POLICY: Key =
    live("policy", "What ranks the endpoints").default_is("expected-ttft; with weights prefix");
const WEIGHTS: Key =
    live("weights", "What each scorer counts for, in policies that sum; what is not named counts 0")
        .default_is("the policy's own");
const MATCH_LENGTH: Key =
    live("match_length_weight", "How much a long match counts beyond its share, in the scorer `prefix`");
const SEED: Key = live("seed", "The seed of the tie-break and of the policy `random`");
const SCHEDULER: Key = live(
    "scheduler",
    "A file with llm-d's EndpointPickerConfig, in place of policy, weights and match_length_weight",
);
const POLICIES: Choice<Policy> =
    Choice { names: &Policy::NAMES, from_name: Policy::from_name, name: |policy| policy.name() };

/// How a pool chooses.
pub(super) struct Scoring {
    pub(super) policy: Policy,
    pub(super) weights: Option<Weights>,
    pub(super) match_length: MatchLength,
    pub(super) seed: u64,
    /// In place of all but the seed.
    pub(super) scheduled: Option<Scheduled>,
}

/// What a document says, where it stands, and the path of the pool that it is for.
pub(super) struct Scheduled {
    pub(super) scheduler: Scheduler,
    pub(super) file: String,
    pub(super) pool: String,
}

/// Weights alone mean the policy that they are known for.
pub(super) fn read(section: &mut Section<'_, '_>, flags: &Flags) -> Scoring {
    let default = if section.has(WEIGHTS.name) { Policy::Prefix } else { defaults::POLICY };
    let flag = ("--policy", flags.policy.as_deref());
    let policy = section.value_or_flag(POLICY, &POLICIES, default, flag);
    let weights = weights(section, policy.value);
    let match_length = section.value(MATCH_LENGTH, &Numbers { max: 1.0 }, MATCH_LENGTH_WEIGHT).value;
    let match_length = MatchLength::new(match_length, MatchLength::SCALE_TOKENS).unwrap_or_default();
    let seed = section.value(SEED, &Integers { min: 0, max: u64::MAX }, defaults::SEED).value;
    let scoring = Scoring { policy: policy.value, weights, match_length, seed, scheduled: None };
    match section.optional(SCHEDULER, &FilePath) {
        None => scoring,
        Some(file) => scheduled(section, &file, &policy, scoring),
    }
}

/// The weights; none for a policy without any, which is a fault.
fn weights(section: &mut Section<'_, '_>, policy: Policy) -> Option<Weights> {
    let faults = section.reader.faults.iter().count();
    let written =
        section.optional_section(WEIGHTS, |weights| Scorer::ALL.map(|scorer| weight(weights, scorer)))?;
    if policy.weights().is_none() {
        let found = format_args!("weights for {}", policy.name());
        let reason = Reason::thing(found, format_args!("them for {}", summing()));
        section.reader.fault_of(&written, reason);
        return None;
    }
    let weights = Weights::new(&written.value).ok();
    // One that is misspelled is told already.
    if weights.is_none() && section.reader.faults.iter().count() == faults {
        section.reader.fault_of(&written, Reason::thing("no weight above 0", "at least one"));
    }
    weights
}

fn weight(weights: &mut Section<'_, '_>, scorer: Scorer) -> (Scorer, f64) {
    // One at fault stands as 1: it is no reason to find all of them 0.
    let default = if weights.has(scorer.name()) { 1.0 } else { 0.0 };
    let key = live(scorer.name(), about(scorer));
    (scorer, weights.value(key, &Numbers { max: WEIGHT_MAX }, default).value)
}

fn about(scorer: Scorer) -> &'static str {
    match scorer {
        Scorer::Prefix => "Share of the prompt that is cached",
        Scorer::Queue => "Fewer requests that wait",
        Scorer::Kv => "More room in the KV cache",
        Scorer::NoHitLru => "For a prompt that nobody holds: the longest without such a one",
        Scorer::Running => "Fewer requests that run",
        Scorer::InFlight => "Fewer requests of this router",
        Scorer::TokenLoad => "Fewer uncached tokens of this router's requests",
        Scorer::Lora => "The adapter is loaded, or has room",
        Scorer::Session => "Where the session was before",
    }
}

/// Names of the policies that sum.
fn summing() -> String {
    let summing = Policy::ALL.into_iter().filter(|policy| policy.weights().is_some());
    one_of(&summing.map(Policy::name).collect::<Vec<_>>())
}

/// What an EndpointPickerConfig says, in place of the three keys that say the same.
fn scheduled(
    section: &mut Section<'_, '_>,
    file: &Placed<String>,
    policy: &Placed<Policy>,
    scoring: Scoring,
) -> Scoring {
    for key in [POLICY, WEIGHTS, MATCH_LENGTH] {
        if section.has(key.name) {
            let found = format_args!("it beside {}", key.name);
            section.reader.fault_of(file, Reason::thing(found, "one of the two"));
        }
    }
    if let Place::Flag(_) = policy.place {
        let found = format_args!("it beside {}", file.path);
        section.reader.fault_of(policy, Reason::thing(found, "one of the two"));
    }
    let Some(scheduler) = scheduler(section, file) else { return scoring };
    let fixes_index = scheduler.block.is_some() || scheduler.capacity_blocks.is_some();
    for (key, fixed) in [("index", fixes_index), ("engine", scheduler.engine.is_some())] {
        if fixed && section.has(key) {
            let found = format_args!("a document that fixes it, beside {key}");
            section.reader.fault_of(file, Reason::thing(found, "one of the two"));
        }
    }
    let pool = file.path.strip_suffix(&format!(".{}", SCHEDULER.name)).unwrap_or_default().to_owned();
    let file = section.reader.in_folder(&file.value).display().to_string();
    Scoring { scheduled: Some(Scheduled { scheduler, file, pool }), ..scoring }
}

/// What the file holds; its faults are told under its own name.
fn scheduler(section: &mut Section<'_, '_>, file: &Placed<String>) -> Option<Scheduler> {
    let bytes = section.reader.file(&file.value, file.place, &file.path)?;
    let Ok(text) = String::from_utf8(bytes) else {
        section.reader.fault_of(file, Reason::thing("a file that is not UTF-8", "UTF-8"));
        return None;
    };
    let name = section.reader.in_folder(&file.value).display().to_string();
    let at = match file.place {
        Place::File(at) => at,
        Place::Default | Place::Flag(_) => At { line: 1, column: 1 },
    };
    scheduler::read(&name, &text).map_err(|faults| section.reader.faults.append(at, faults)).ok()
}

impl Scheduled {
    /// Lets the pool decide so, and the lines of `check --explain` say it. After all keys of the pool are read.
    pub(super) fn apply(self, reader: &mut Reader<'_>, pool: &mut Pool) {
        for (key, value) in lines(&self.scheduler) {
            reader.replace_setting(&format!("{}.{key}", self.pool), value, &self.file);
        }
        self.scheduler.apply(pool);
    }
}

/// The pool's keys that a document stands for, with its values.
fn lines(scheduler: &Scheduler) -> impl Iterator<Item = (&'static str, String)> {
    let Scheduler { policy, weights, match_length: _, tuning: _, block, capacity_blocks, engine } = scheduler;
    let weight = |(scorer, weight): (Scorer, f64)| format!("{}: {weight}", scorer.name());
    let weights: Vec<_> = weights.iter().flat_map(Weights::iter).map(weight).collect();
    let lines = [
        ("policy", Some(policy.name().to_owned())),
        ("weights", Some(format!("{{{}}}", weights.join(", ")))),
        ("match_length_weight", Some("(in that file)".to_owned())),
        ("index.block_tokens", block.map(|block| block.tokens().to_string())),
        ("index.capacity_blocks", capacity_blocks.map(|blocks| blocks.to_string())),
        ("engine", engine.map(|engine| engine.name().to_owned())),
    ];
    lines.into_iter().filter_map(|(key, value)| Some((key, value?)))
}
