//! The command `review`: what a fleet of vLLM replicas does with its prefix caches, what it could do, and what to change
//! first.
//!
//! One principle: every sentence follows from a figure that the review shows. A figure that was not there is named with
//! what cannot be said therefore; it is never guessed and never 0. Reading ([`source`], [`replica`], [`counts`]), the trace
//! ([`traffic`]), judging ([`advice`], [`disagg`]) and saying (`sections`, `document`, `json`) are apart. The same steps
//! for people: `deploy/RUNBOOK.md`.

pub mod advice;
mod args;
mod command;
pub mod counts;
pub mod disagg;
mod document;
mod histogram;
mod json;
pub mod replica;
mod sections;
pub mod source;
pub mod traffic;
mod words;

use std::fmt;
use std::time::Duration;

pub use advice::Advice;
pub use args::ReviewArgs;
pub use command::{ReviewError, review, run};
pub use counts::{Counter, Counts, Times};
pub use histogram::Histogram;
pub use source::{Place, Replica, Source};

use disagg::Estimate;
use replica::Load;
use traffic::{Played, Traffic};

/// All that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Review {
    /// Sources that were given.
    pub asked: usize,
    /// Those that were read.
    pub replicas: Vec<Replica>,
    /// All of them, since each one's start.
    pub since_start: Counts,
    /// Those that were read twice, between the readings.
    pub over: Option<Counts>,
    /// How long that was.
    pub interval: Option<Duration>,
    /// The trace.
    pub traffic: Option<Traffic>,
    /// One line for each thing that could not be read.
    pub faults: Vec<String>,
}

/// Since when figures were counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Basis {
    /// Since each replica's start.
    SinceStart,
    /// Between the readings.
    Over(Duration),
}

impl fmt::Display for Basis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SinceStart => formatter.write_str("since the start"),
            Self::Over(interval) => write!(formatter, "over {}", words::span(interval.as_secs_f64())),
        }
    }
}

impl Review {
    /// Puts together what was read.
    pub(crate) fn new(asked: usize, gathered: source::Gathered) -> Self {
        let source::Gathered { replicas, faults, interval } = gathered;
        let sum = |sum: Option<Counts>, one: &Counts| Some(sum.unwrap_or_default().plus(&one.addable()));
        let since_start = replicas.iter().map(|replica| &replica.snapshot.counts).fold(None, sum);
        let over = replicas.iter().filter_map(|replica| replica.over.as_ref()).fold(None, sum);
        Self {
            asked,
            since_start: since_start.unwrap_or_default(),
            over,
            interval,
            replicas,
            traffic: None,
            faults,
        }
    }

    /// The counts of which a figure is judged, and since when: those over the interval where the figure can be had of them,
    /// as those since the start hide the present.
    pub fn counted<T>(&self, figure: impl Fn(&Counts) -> Option<T>) -> (&Counts, Basis) {
        match (&self.over, self.interval) {
            (Some(over), Some(interval)) if figure(over).is_some() => (over, Basis::Over(interval)),
            _ => (&self.since_start, Basis::SinceStart),
        }
    }

    /// The figure itself, and since when.
    pub fn judged<T>(&self, figure: impl Fn(&Counts) -> Option<T>) -> Option<(T, Basis)> {
        let (counts, basis) = self.counted(&figure);
        Some((figure(counts)?, basis))
    }

    /// The fleet's hit rate, and since when.
    pub fn hit_rate(&self) -> Option<(f64, Basis)> {
        self.judged(Counts::hit_rate)
    }

    /// Mean length of a prompt, by the replicas.
    pub fn prompt_mean(&self) -> Option<f64> {
        let mean = |counts: &Counts| counts.times(Times::PromptTokens)?.mean();
        self.judged(mean).map(|(mean, _)| mean)
    }

    /// Why the trace cannot be of the traffic that the replicas count, so that both must not be compared; `None` where nothing
    /// speaks against it.
    pub fn unlike(&self) -> Option<String> {
        let traffic = self.traffic.as_ref()?;
        if let Some(mean) = self.prompt_mean()
            && !alike(mean, traffic.mean_prompt())
        {
            return Some(format!(
                "the trace's prompts have {} tokens in the mean and those of the replicas {}, more than a quarter apart",
                words::whole(traffic.mean_prompt()),
                words::whole(mean)
            ));
        }
        let (measured, basis) = self.hit_rate()?;
        (measured > traffic.ceiling() + advice::GAIN_MIN).then(|| {
            let (measured, ceiling) = (words::percent(measured), words::percent(traffic.ceiling()));
            format!("the replicas hit {measured} {basis}, and an endless cache only {ceiling} of the trace")
        })
    }

    /// The fleet's play of a trace that is of its traffic.
    pub fn comparable(&self) -> Option<(&Traffic, &Played)> {
        let traffic = self.traffic.as_ref().filter(|_| self.unlike().is_none())?;
        Some((traffic, traffic.played.as_ref()?))
    }

    /// How far the measured hit rate is below that of round-robin on the fleet's caches, where it is too far for any routing
    /// to be the reason.
    pub fn unexplained(&self) -> Option<f64> {
        let (_, played) = self.comparable()?;
        let below = played.round_robin().report.hit_rate - self.hit_rate()?.0;
        (below >= advice::GAIN_MIN).then_some(below)
    }

    /// A gauge of each replica that has it.
    pub fn loads(&self, of: impl Fn(&Load) -> Option<f64>) -> Vec<f64> {
        self.replicas.iter().filter_map(|replica| of(&replica.snapshot.load)).collect()
    }

    /// Caches of the fleet, one for each engine, and their tokens together, of the replicas that tell.
    pub fn caches(&self) -> Option<(usize, f64)> {
        let told = self
            .replicas
            .iter()
            .filter_map(|replica| Some((replica.snapshot.engines, replica.snapshot.capacity?.tokens)));
        let (caches, tokens) = told.fold((0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (caches > 0).then_some((caches, tokens))
    }

    /// Tokens of the smallest cache and of the largest; engines of one page have alike ones.
    pub fn cache_sizes(&self) -> Option<(f64, f64)> {
        let of =
            |replica: &Replica| Some(replica.snapshot.capacity?.tokens / replica.snapshot.engines as f64);
        let sizes = self.replicas.iter().filter_map(of).map(|size| (size, size));
        sizes.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// Uncached prompt tokens that a replica computes in a second of prefill, as measured.
    pub fn pace(&self) -> Option<f64> {
        let pace = |counts: &Counts| {
            let (computed, prefill) = (counts.times(Times::ComputedTokens)?, counts.times(Times::Prefill)?);
            (computed.sum > 0.0 && prefill.sum > 0.0).then(|| computed.sum / prefill.sum)
        };
        self.judged(pace).map(|(pace, _)| pace)
    }

    /// Whether disaggregation would pay. Errors: what is missing.
    pub fn disagg(&self) -> Result<Estimate, String> {
        let ended =
            |counts: &Counts| disagg::times(counts).filter(|(prefill, _)| prefill.count > 0.0).map(drop);
        let (counts, basis) = self.counted(ended);
        let is_measured = |replica: &&Replica| match basis {
            Basis::Over(_) => replica.over.as_ref().and_then(disagg::times).is_some(),
            Basis::SinceStart => disagg::times(&replica.snapshot.counts).is_some(),
        };
        let of = disagg::Of {
            basis,
            measured: self.replicas.iter().filter(is_measured).count(),
            fleet: self.asked,
            hit_rates: self.hit_rate().map(|(now, _)| now).zip(self.reachable()),
        };
        Estimate::of(counts, of)
    }

    /// The hit rate that routing can have, where it is routing that is in the way.
    fn reachable(&self) -> Option<f64> {
        let (_, played) = self.comparable().filter(|(_, played)| played.stage.caches > 1)?;
        self.unexplained().is_none().then(|| played.best().report.hit_rate)
    }

    /// What to change, most urgent first.
    pub fn advice(&self) -> Vec<Advice> {
        advice::all(self)
    }
}

/// Within a quarter of each other.
fn alike(one: f64, other: f64) -> bool {
    one.min(other) / one.max(other) >= 0.75
}
