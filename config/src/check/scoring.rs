//! How a pool chooses: a policy by name with its weights, or llm-d's scheduler configuration in their place.

use picker::Tuning;
use picker::policy::Policy;
use picker::score::prefix::MatchLength;
use picker::score::{Scorer, WEIGHT_MAX, Weights};

use crate::Flags;
use crate::defaults::{self, MATCH_LENGTH_WEIGHT};
use crate::faults::{Reason, one_of};
use crate::read::form::{Choice, Integers, Numbers};
use crate::read::{FilePath, Key, Section, live};
use crate::scheduler::{self, Scheduler};

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
    pub(super) tuning: Tuning,
    pub(super) seed: u64,
}

/// What an EndpointPickerConfig says, and the name of its file.
pub(super) struct Scheduled {
    pub(super) file: String,
    pub(super) says: Scheduler,
}

/// The pool's EndpointPickerConfig: of its key, or else the file itself. Beside keys that say the same it is a fault.
pub(super) fn scheduled(section: &mut Section<'_, '_>, itself: Option<&Scheduler>) -> Option<Scheduled> {
    let file = section.optional(SCHEDULER, &FilePath);
    let Some(file) = file else {
        let file = section.reader.file_name().to_owned();
        return itself.map(|says| Scheduled { file, says: says.clone() });
    };
    for key in [POLICY, WEIGHTS, MATCH_LENGTH] {
        if section.has(key.name) {
            let found = format_args!("it beside {}", key.name);
            section.reader.fault_of(&file, Reason::thing(found, "one of the two"));
        }
    }
    let text = section.reader.file(&file.value, file.place, &file.path)?;
    let name = section.reader.in_folder(&file.value).display().to_string();
    let Ok(text) = String::from_utf8(text) else {
        section.reader.fault_of(&file, Reason::thing("a file that is not UTF-8", "UTF-8"));
        return None;
    };
    match scheduler::read(&name, &text) {
        Ok(says) => Some(Scheduled { file: name, says }),
        Err(faults) => {
            section.reader.faults.append(faults);
            None
        }
    }
}

/// Weights alone mean the policy that they are known for. A flag's policy has its own weights.
pub(super) fn read(section: &mut Section<'_, '_>, flags: &Flags, scheduled: Option<&Scheduled>) -> Scoring {
    let default = match scheduled {
        Some(Scheduled { says, .. }) => says.policy,
        None if section.has(WEIGHTS.name) => Policy::Prefix,
        None => defaults::POLICY,
    };
    let policy = section.value_or_flag(POLICY, &POLICIES, default, ("--policy", flags.policy.as_deref()));
    let weights = weights(section, policy.value);
    let default = scheduled.map_or(MATCH_LENGTH_WEIGHT, |scheduled| scheduled.says.match_length.weight());
    let weight = section.value(MATCH_LENGTH, &Numbers { max: 1.0 }, default);
    let match_length = MatchLength::new(weight.value, MatchLength::SCALE_TOKENS).unwrap_or_default();
    let seed = section.value(SEED, &Integers { min: 0, max: u64::MAX }, defaults::SEED).value;
    let mut scoring = Scoring { policy: policy.value, weights, match_length, tuning: Tuning::DEFAULT, seed };
    if let Some(Scheduled { file, says }) = scheduled {
        section.reader.says(&policy, file);
        section.reader.says(&weight, file);
        scoring.match_length = says.match_length;
        scoring.tuning = says.tuning;
        if !policy.is_written() {
            scoring.weights.clone_from(&says.weights);
            show_weights(section, says, file);
        }
    }
    scoring
}

fn show_weights(section: &mut Section<'_, '_>, says: &Scheduler, file: &str) {
    let path = section.path(WEIGHTS.name);
    section.reader.forget_setting(&path);
    for (scorer, weight) in says.weights.iter().flat_map(Weights::iter) {
        section.reader.setting_of(&format!("{path}.{}", scorer.name()), weight.to_string(), file);
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
