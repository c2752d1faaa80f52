//! How fast an endpoint computes prompts, as its first tokens tell.
//!
//! [`Pace`] is what a decision reads, [`Learner`] what turns observed first tokens into one. The fit is a line by least
//! absolute deviations, each deviation as a share of what was predicted: one request in ten that took a hundred times as
//! long, or a third of a window that was sent to a busy engine, does not move it. No clock: times are arguments.

/// Time to the first token of a request with `u` uncached tokens behind `w` seconds of other prompts:
/// `overhead + u / rate + queueing * w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds that every request takes, cached or not.
    pub overhead: f64,
    /// Uncached prompt tokens computed in a second.
    pub tokens_per_second: f64,
    /// Share of the prompts ahead that a request waits for: 1 for one lane, less for several.
    pub queueing: f64,
}

/// Observations that a learner keeps.
pub const WINDOW: usize = 64;
/// New observations that a fit waits for.
pub const FIT_EVERY: usize = 8;

/// Sane bounds: from a laptop's processor to a rack, an hour at most.
const OVERHEAD_MAX: f64 = 3_600.0;
const TOKENS_PER_SECOND_MIN: f64 = 10.0;
const TOKENS_PER_SECOND_MAX: f64 = 1e7;
/// Above 1: a backlog is itself predicted, by a pace that may still be too fast.
const QUEUEING_MAX: f64 = 2.0;

/// Uncached tokens must differ by so many, and by this share, before they tell a rate.
const SPREAD_TOKENS: f64 = 256.0;
const SPREAD_SHARE: f64 = 0.25;
/// Backlogs must reach this share of a typical first token before they tell the queueing.
const SPREAD_BACKLOG: f64 = 0.1;

/// Share of the fleet's errors from which an endpoint's own pace is clearly the better one.
const CLEARLY: f64 = 0.5;
/// How far two engines of a fleet can be apart.
const APART_MAX: f64 = 4.0;
/// Factors within which two engines are taken for equal.
const OVERHEAD_APART: f64 = 3.0;
const RATE_APART: f64 = 1.5;

/// Refinements of one fit; it has converged to a percent long before.
const ROUNDS: usize = 24;
/// Deviations below this share of the prediction count alike.
const SHARP: f64 = 0.01;
/// Seconds below which predictions are not told apart: timers and networks are no finer.
const SECONDS_MIN: f64 = 1e-4;

impl Default for Pace {
    /// Until it is learned: an 8-billion-parameter model on one large accelerator, prompts one after another.
    fn default() -> Self {
        Self { overhead: 0.005, tokens_per_second: 12_000.0, queueing: 1.0 }
    }
}

impl Pace {
    /// Seconds of computing for a prompt with so many uncached tokens.
    pub fn work(&self, uncached_tokens: f64) -> f64 {
        self.overhead + uncached_tokens / self.tokens_per_second
    }

    /// Seconds to the first token behind `backlog` seconds of other prompts.
    pub fn first_token(&self, uncached_tokens: f64, backlog: f64) -> f64 {
        self.work(uncached_tokens) + self.queueing * backlog
    }

    /// How far an observation is off: a logarithm, so that no single one counts for many.
    fn error(&self, seen: &Observation) -> f64 {
        let predicted = self.first_token(seen.uncached_tokens, seen.backlog);
        (seen.seconds.max(SECONDS_MIN) / predicted.max(SECONDS_MIN)).ln().abs()
    }

    /// The same, or the fleet's where it differs no more than a few dozen first tokens can tell. Small differences between
    /// equal engines would decide every tie for one of them. How many prompts an engine takes at once is the fleet's: it
    /// shows only under load, and load is what it would steer.
    fn among(self, fleet: &Self) -> Self {
        let told = |own: f64, usual: f64, factor: f64| {
            let is_equal = (usual / factor..=usual * factor).contains(&own);
            if is_equal { usual } else { own.max(usual / APART_MAX).min(usual * APART_MAX) }
        };
        Self {
            overhead: told(self.overhead, fleet.overhead, OVERHEAD_APART),
            tokens_per_second: told(self.tokens_per_second, fleet.tokens_per_second, RATE_APART),
            queueing: fleet.queueing,
        }
    }

    /// The median of each figure; `None` without any pace. What an endpoint has that has not been observed.
    pub fn median(paces: impl Iterator<Item = Self> + Clone) -> Option<Self> {
        Some(Self {
            overhead: median(paces.clone().map(|pace| pace.overhead))?,
            tokens_per_second: median(paces.clone().map(|pace| pace.tokens_per_second))?,
            queueing: median(paces.map(|pace| pace.queueing))?,
        })
    }
}

/// A request whose first token was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Prompt tokens that the endpoint did not hold.
    pub uncached_tokens: f64,
    /// Seconds of other prompts that were ahead when it was booked, as [`crate::ledger::InFlight::backlog`] has them.
    pub backlog: f64,
    /// Seconds from the booking to the first token.
    pub seconds: f64,
}

/// The last observations of one endpoint, and the pace that they give.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    window: Vec<Observation>,
    next: usize,
    fresh: usize,
    learned: Option<Pace>,
}

impl Learner {
    /// Takes an observation. O(1); one with a figure that cannot be is dropped.
    pub fn observe(&mut self, observation: Observation) {
        let Observation { uncached_tokens, backlog, seconds } = observation;
        if ![uncached_tokens, backlog, seconds].iter().all(|figure| figure.is_finite() && *figure >= 0.0) {
            return;
        }
        if self.window.len() < WINDOW {
            self.window.push(observation);
        } else {
            self.window[self.next] = observation;
        }
        self.next = (self.next + 1) % WINDOW;
        self.fresh += 1;
    }

    /// Fits once there are [`FIT_EVERY`] new observations; about 10 us, so not on a request's path. `prior` is what is
    /// believed without any: the fleet's pace or the default. Few observations move it little.
    pub fn fit(&mut self, prior: &Pace) -> Option<Pace> {
        if self.fresh < FIT_EVERY {
            return None;
        }
        self.fresh = 0;
        let known = self.learned.unwrap_or(*prior);
        let pace = Fit::new(&self.window, prior, &known).solve();
        self.learned = Some(pace);
        Some(pace)
    }

    /// What the endpoint is taken for in a fleet: its own pace where that explains its first tokens much better than the
    /// fleet's does, else the fleet's. On a noisy machine the rates of equal engines were learned sixty times apart.
    pub fn among(&self, fleet: &Pace) -> Pace {
        let Some(own) = self.learned else { return *fleet };
        let error = |pace: &Pace| self.window.iter().map(|seen| pace.error(seen)).sum::<f64>();
        if error(&own) < CLEARLY * error(fleet) { own.among(fleet) } else { *fleet }
    }

    /// What the last fit gave.
    pub fn learned(&self) -> Option<Pace> {
        self.learned
    }
}

/// Coefficients of overhead, of a thousand tokens and of the backlog.
type Three = [f64; 3];

const OVERHEAD: usize = 0;
const KILOTOKENS: usize = 1;
const BACKLOG: usize = 2;

const LEAST: Three = [0.0, 1e3 / TOKENS_PER_SECOND_MAX, 0.0];
const MOST: Three = [OVERHEAD_MAX, 1e3 / TOKENS_PER_SECOND_MIN, QUEUEING_MAX];

#[derive(Clone, Copy)]
struct Row {
    x: Three,
    seconds: f64,
}

struct Fit {
    rows: Vec<Row>,
    start: Three,
    /// What the observations tell; the rest stays as it was.
    free: [bool; 3],
}

impl Fit {
    fn new(window: &[Observation], prior: &Pace, known: &Pace) -> Self {
        let tokens = Spread::of(window.iter().map(|it| it.uncached_tokens));
        let backlog = Spread::of(window.iter().map(|it| it.backlog));
        let seconds = Spread::of(window.iter().map(|it| it.seconds));
        let tells_rate = tokens.high - tokens.low >= SPREAD_TOKENS.max(SPREAD_SHARE * tokens.high);
        let tells_queueing = backlog.high >= SPREAD_BACKLOG * seconds.middle;
        let mut rows: Vec<Row> = window.iter().map(Row::from).collect();
        // The prior, as three requests that went as it says.
        rows.extend([(0.0, 0.0), (tokens.middle, 0.0), (tokens.middle, backlog.high)].map(
            |(tokens, backlog)| {
                let seconds = prior.first_token(tokens, backlog);
                Row::from(&Observation { uncached_tokens: tokens, backlog, seconds })
            },
        ));
        Self { rows, start: coefficients(known), free: [true, tells_rate, tells_queueing] }
    }

    fn solve(&self) -> Pace {
        let mut at = self.start;
        for _ in 0..ROUNDS {
            at = self.better(&at);
        }
        let [overhead, kilotoken_seconds, queueing] = at;
        Pace { overhead, tokens_per_second: 1e3 / kilotoken_seconds, queueing }
    }

    /// One round of reweighted least squares. A coefficient that leaves its bounds stays at the bound and the others are
    /// found again.
    fn better(&self, at: &Three) -> Three {
        let mut next = *at;
        let mut free = self.free;
        for _ in 0..free.len() {
            next = self.least_squares(at, &next, &free).unwrap_or(next);
            let beyond = (0..3).find(|&it| free[it] && !(LEAST[it]..=MOST[it]).contains(&next[it]));
            let Some(beyond) = beyond else { break };
            next[beyond] = next[beyond].max(LEAST[beyond]).min(MOST[beyond]);
            free[beyond] = false;
        }
        next
    }

    /// The free coefficients, the others as in `fixed`, with weights by the deviations from `at`.
    fn least_squares(&self, at: &Three, fixed: &Three, free: &[bool; 3]) -> Option<Three> {
        let mut normal = [[0.0; 4]; 3];
        for row in &self.rows {
            let weight = row.weight(at);
            let held: f64 = (0..3).filter(|&it| !free[it]).map(|it| row.x[it] * fixed[it]).sum();
            for (one, line) in normal.iter_mut().enumerate().filter(|&(one, _)| free[one]) {
                for other in (0..3).filter(|&other| free[other]) {
                    line[other] += weight * row.x[one] * row.x[other];
                }
                line[3] += weight * row.x[one] * (row.seconds - held);
            }
        }
        for it in (0..3).filter(|&it| !free[it]) {
            (normal[it][it], normal[it][3]) = (1.0, fixed[it]);
        }
        eliminate(normal)
    }
}

impl From<&Observation> for Row {
    fn from(observation: &Observation) -> Self {
        let Observation { uncached_tokens, backlog, seconds } = *observation;
        Self { x: [1.0, uncached_tokens / 1e3, backlog], seconds }
    }
}

impl Row {
    /// Makes squares count like absolute shares of what `at` predicts.
    fn weight(&self, at: &Three) -> f64 {
        let predicted = (0..3).map(|it| self.x[it] * at[it]).sum::<f64>().max(SECONDS_MIN);
        1.0 / (predicted * (self.seconds - predicted).abs().max(SHARP * predicted))
    }
}

fn coefficients(pace: &Pace) -> Three {
    let mut all = [0.0; 3];
    all[OVERHEAD] = pace.overhead;
    all[KILOTOKENS] = 1e3 / pace.tokens_per_second;
    all[BACKLOG] = pace.queueing;
    std::array::from_fn(|it| all[it].max(LEAST[it]).min(MOST[it]))
}

/// Solves three equations by elimination with the largest pivot. `None`: they do not tell.
fn eliminate(mut lines: [[f64; 4]; 3]) -> Option<Three> {
    for column in 0..3 {
        let pivot = (column..3).max_by(|&a, &b| lines[a][column].abs().total_cmp(&lines[b][column].abs()))?;
        lines.swap(column, pivot);
        let line = lines[column];
        if line[column].abs() < 1e-12 {
            return None;
        }
        for other in (0..3).filter(|&other| other != column) {
            let factor = lines[other][column] / line[column];
            (0..4).for_each(|at| lines[other][at] -= factor * line[at]);
        }
    }
    let solved: Three = std::array::from_fn(|it| lines[it][3] / lines[it][it]);
    solved.iter().all(|figure| figure.is_finite()).then_some(solved)
}

/// The tenth, the middle and the ninetieth of a hundred.
struct Spread {
    low: f64,
    middle: f64,
    high: f64,
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.collect();
        figures.sort_unstable_by(f64::total_cmp);
        let at = |share: usize| figures.get((figures.len().max(1) - 1) * share / 100).copied().unwrap_or(0.0);
        Self { low: at(10), middle: at(50), high: at(90) }
    }
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    let middle = figures.len().checked_sub(1)? / 2;
    Some(*figures.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::chance::Draw;
    use crate::ledger::{Booked, Ledger, Micros, Request};

    const TRUE: Pace = Pace { overhead: 0.02, tokens_per_second: 8_000.0, queueing: 1.0 };

    /// An engine that computes prompts in lanes, first come first served, and the router before it.
    struct Synthetic {
        pace: Pace,
        lanes: Vec<f64>,
        /// Share of requests that take a hundred times as long to answer, for no reason of the engine's pace.
        outliers: f64,
        /// Share of its capacity that is used.
        load: f64,
    }

    fn chance(turn: u64, which: usize) -> f64 {
        Draw { seed: 7, turn }.number(which) as f64 / u64::MAX as f64
    }

    impl Synthetic {
        fn of(pace: Pace, lanes: usize) -> Self {
            Self { pace, lanes: vec![0.0; lanes], outliers: 0.0, load: 0.5 }
        }

        /// What a learner makes of so many requests.
        fn learned(mut self, requests: u64, prior: Pace) -> Pace {
            let (mut learner, mut pace, ledger) = (Learner::default(), prior, Ledger::default());
            let mut flying: Vec<(f64, Booked, Observation)> = Vec::new();
            let mean = self.pace.work(4_000.0) / self.lanes.len() as f64 / self.load;
            let mut now = 0.0;
            for turn in 0..requests {
                now += -mean * (1.0 - chance(turn, 0)).ln();
                flying.sort_by(|a, b| a.0.total_cmp(&b.0));
                let done = flying.partition_point(|it| it.0 <= now);
                for (at, booked, observation) in flying.drain(..done) {
                    ledger.release(booked, micros(at));
                    learner.observe(observation);
                    pace = learner.fit(&prior).unwrap_or(pace);
                }
                let uncached_tokens = (8_000.0 * chance(turn, 1)).floor();
                let request = Request { uncached_tokens: uncached_tokens as u32, pace, is_streamed: true };
                let booked = ledger.book(request, micros(now));
                let backlog = booked.backlog();
                let lane = self.lanes.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap();
                *lane = lane.max(now) + self.pace.work(uncached_tokens);
                let mut seconds = *lane - now;
                if chance(turn, 2) < self.outliers {
                    seconds *= 100.0;
                }
                flying.push((*lane, booked, Observation { uncached_tokens, backlog, seconds }));
            }
            learner.learned().unwrap_or(prior)
        }
    }

    fn micros(seconds: f64) -> Micros {
        Micros((seconds * 1e6) as u64)
    }

    fn close(found: f64, wanted: f64, share: f64, shows: &str) {
        assert!((found / wanted - 1.0).abs() <= share, "{shows}: found {found}, wanted {wanted}");
    }

    #[test]
    fn the_pace_of_an_engine_is_learned_within_15_percent() {
        let half = Pace { tokens_per_second: TRUE.tokens_per_second / 2.0, ..TRUE };
        let odd = |engine: Synthetic| Synthetic { outliers: 0.1, ..engine };
        let quiet = |engine: Synthetic| Synthetic { load: 0.05, ..engine };
        for (shows, engine, pace) in [
            ("one lane", Synthetic::of(TRUE, 1), TRUE),
            ("one lane, hardly used", quiet(Synthetic::of(TRUE, 1)), TRUE),
            ("four lanes", Synthetic::of(TRUE, 4), TRUE),
            ("half as fast", Synthetic::of(half, 1), half),
            ("one lane, outliers", odd(Synthetic::of(TRUE, 1)), TRUE),
            ("four lanes, outliers", odd(Synthetic::of(TRUE, 4)), TRUE),
            ("half as fast, outliers", odd(Synthetic::of(half, 1)), half),
        ] {
            let learned = engine.learned(200, Pace::default());
            close(learned.tokens_per_second, pace.tokens_per_second, 0.15, shows);
            close(learned.work(4_000.0), pace.work(4_000.0), 0.15, shows);
        }
    }

    #[test]
    fn a_request_waits_for_less_where_there_are_more_lanes() {
        let busy = |lanes| Synthetic { load: 0.8, ..Synthetic::of(TRUE, lanes) };
        let [one, four] = [1, 4].map(|lanes| busy(lanes).learned(400, Pace::default()).queueing);
        close(one, 1.0, 0.15, "one lane");
        assert!(four < 0.5, "four lanes: {four}");
    }

    fn observed(learner: &mut Learner, count: usize, uncached_tokens: impl Fn(usize) -> f64, pace: &Pace) {
        for number in 0..count {
            let uncached_tokens = uncached_tokens(number);
            let seconds = pace.first_token(uncached_tokens, 0.0);
            learner.observe(Observation { uncached_tokens, backlog: 0.0, seconds });
        }
    }

    #[test]
    fn prompts_of_one_length_tell_no_rate() {
        let mut learner = Learner::default();
        observed(&mut learner, 40, |number| 1_000.0 + number as f64, &TRUE);
        let prior = Pace::default();
        let pace = learner.fit(&prior).unwrap();
        assert_eq!((pace.tokens_per_second, pace.queueing), (prior.tokens_per_second, prior.queueing));
        close(pace.work(1_020.0), TRUE.work(1_020.0), 0.02, "what was seen is predicted all the same");
        observed(&mut learner, 64, |number| 200.0 * number as f64, &TRUE);
        close(learner.fit(&prior).unwrap().tokens_per_second, TRUE.tokens_per_second, 0.02, "spread");
        observed(&mut learner, 64, |_| 1_000.0, &TRUE);
        close(learner.fit(&prior).unwrap().tokens_per_second, TRUE.tokens_per_second, 0.02, "remembered");
    }

    #[test]
    fn a_fit_waits_for_news_and_few_of_them_move_it_less_than_many() {
        let prior = Pace::default();
        let slow = Pace { overhead: 1.0, ..prior };
        let mut learner = Learner::default();
        observed(&mut learner, FIT_EVERY - 1, |_| 0.0, &slow);
        assert_eq!(learner.fit(&prior), None);
        observed(&mut learner, 1, |_| 0.0, &slow);
        assert!(learner.fit(&prior).is_some());
        assert_eq!(learner.fit(&prior), None);
    }

    #[test]
    fn nothing_that_is_observed_gives_a_pace_that_cannot_be() {
        let odd = [0.0, 1e-9, 1.0, 1e300, f64::MAX, f64::INFINITY, f64::NAN, -1.0];
        let mut learner = Learner::default();
        for seed in 0..2_000 {
            let figure = |which| odd[Draw { seed: 1, turn: seed }.number(which) as usize % odd.len()];
            learner.observe(Observation {
                uncached_tokens: figure(0),
                backlog: figure(1),
                seconds: figure(2),
            });
            if let Some(pace) = learner.fit(&Pace::default()) {
                assert!((0.0..=OVERHEAD_MAX).contains(&pace.overhead), "{pace:?}");
                assert!(
                    (TOKENS_PER_SECOND_MIN * 0.999..=TOKENS_PER_SECOND_MAX * 1.001)
                        .contains(&pace.tokens_per_second),
                    "{pace:?}"
                );
                assert!((0.0..=QUEUEING_MAX).contains(&pace.queueing), "{pace:?}");
            }
        }
    }

    #[test]
    fn noise_is_no_difference_and_half_the_rate_is() {
        let fleet = Pace { overhead: 0.02, tokens_per_second: 2_000.0, queueing: 1.0 };
        let learner = |rate: f64, noise: f64| {
            let mut learner = Learner::default();
            for turn in 0..64 {
                let uncached_tokens = 40.0 * f64::from(turn % 16);
                let work = 0.02 + uncached_tokens / rate;
                let seconds = work * (noise * (2.0 * chance(u64::from(turn as u32), 3) - 1.0)).exp();
                learner.observe(Observation { uncached_tokens, backlog: 0.0, seconds });
            }
            let _ = learner.fit(&fleet);
            learner.among(&fleet)
        };
        assert_eq!(learner(2_000.0, 2.0), fleet, "up to seven times too fast or too slow");
        let half = learner(1_000.0, 0.3);
        assert!((900.0..1_150.0).contains(&half.tokens_per_second), "{half:?}");
    }

    #[test]
    fn equal_engines_are_taken_for_equal_and_others_for_what_they_are() {
        let pace = |overhead, tokens_per_second, queueing| Pace { overhead, tokens_per_second, queueing };
        let fleet = pace(0.010, 12_000.0, 0.25);
        for (own, wanted) in [
            (pace(0.025, 9_000.0, 0.0), fleet),
            (pace(0.010, 6_000.0, 0.25), pace(0.010, 6_000.0, 0.25)),
            (pace(0.035, 12_000.0, 1.0), pace(0.035, 12_000.0, 0.25)),
            (pace(0.500, 1e7, 1.0), pace(0.040, 48_000.0, 0.25)),
        ] {
            assert_eq!(own.among(&fleet), wanted);
        }
    }

    #[test]
    fn the_fleets_pace_is_the_median_of_each_figure() {
        let pace = |rate| Pace { tokens_per_second: rate, ..Pace::default() };
        let fleet = [3.0, 900.0, 5.0].map(pace);
        assert_eq!(Pace::median(fleet.into_iter()), Some(pace(5.0)));
        assert_eq!(Pace::median([].into_iter()), None);
    }
}
