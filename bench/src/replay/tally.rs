//! Adds up records as they come, so that a run of any length takes the memory of its groups and endpoints only.

use std::collections::BTreeMap;
use std::time::Duration;

use super::exchange::Record;
use super::failure::Kind;
use super::spans::Spans;

/// What a request has to keep to count as good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Time to the first token at most.
    pub ttft: Option<Duration>,
    /// Time between two tokens at most, in the mean of an answer.
    pub tpot: Option<Duration>,
    /// Time to the last byte at most.
    pub latency: Option<Duration>,
}

impl Slo {
    /// Whether anything is asked for.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }

    /// Whether a request kept it. An answer of one token has no time between two; one without a first token kept nothing.
    pub fn is_kept(&self, record: &Record) -> bool {
        let first = self.ttft.is_none_or(|most| record.ttft.is_some_and(|ttft| ttft <= most));
        let between = self.tpot.is_none_or(|most| record.tpot.is_none_or(|tpot| tpot <= most));
        let whole = self.latency.is_none_or(|most| record.latency <= most);
        record.failure.is_none() && first && between && whole
    }
}

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// How many.
    pub count: usize,
    /// What was said of the first.
    pub first: String,
}

/// What one or several plays came to. Times are of requests that did not fail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// All that were sent.
    pub requests: usize,
    /// Those that failed, by kind.
    pub failures: BTreeMap<Kind, Failed>,
    /// To the first token.
    pub ttft: Spans,
    /// Between two events of a stream.
    pub gaps: Spans,
    /// In the mean of an answer, between its tokens.
    pub tpot: Spans,
    /// To the last byte.
    pub latency: Spans,
    /// How late the sender itself was; of all requests.
    pub late: Spans,
    /// How long it took to send and to be answered.
    pub took: Duration,
    /// Answers with a usage.
    pub with_usage: usize,
    /// Of them, those that say how much was cached.
    pub with_cached: usize,
    /// By usage.
    pub prompt_tokens: u64,
    /// By usage.
    pub cached_tokens: u64,
    /// By usage, else by events.
    pub output_tokens: u64,
    /// Answers by the endpoint that they name.
    pub endpoints: BTreeMap<String, usize>,
    /// Groups that one endpoint alone answered.
    pub groups_on_one: usize,
    /// Groups.
    pub groups: usize,
    /// Requests that kept the SLO.
    pub good: usize,
    homes: BTreeMap<String, Home>,
}

/// Where the requests of a group went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Home {
    One(String),
    Several,
}

impl Tally {
    /// Adds a record.
    pub fn add(&mut self, record: &Record, slo: &Slo) {
        self.requests += 1;
        self.late.add(record.late);
        self.good += usize::from(slo.is_kept(record));
        self.add_place(record);
        self.add_usage(record);
        match &record.failure {
            None => self.add_times(record),
            Some(failure) => {
                let first = || Failed { count: 0, first: failure.text.clone() };
                self.failures.entry(failure.kind).or_insert_with(first).count += 1;
            }
        }
    }

    fn add_times(&mut self, record: &Record) {
        self.latency.add(record.latency);
        record.ttft.into_iter().for_each(|time| self.ttft.add(time));
        record.tpot.into_iter().for_each(|time| self.tpot.add(time));
        record.gaps.iter().for_each(|time| self.gaps.add(*time));
    }

    fn add_usage(&mut self, record: &Record) {
        self.output_tokens += record.output_tokens.unwrap_or(0);
        self.with_usage += usize::from(record.prompt_tokens.is_some());
        self.with_cached += usize::from(record.cached_tokens.is_some());
        self.prompt_tokens += record.prompt_tokens.unwrap_or(0);
        self.cached_tokens += record.cached_tokens.unwrap_or(0);
    }

    fn add_place(&mut self, record: &Record) {
        if let Some(endpoint) = &record.endpoint {
            *self.endpoints.entry(endpoint.clone()).or_default() += 1;
        }
        let Some(group) = &record.group else { return };
        let here = record.endpoint.clone().map_or(Home::Several, Home::One);
        match self.homes.get_mut(group) {
            None => drop(self.homes.insert(group.clone(), here)),
            Some(home) if *home != here => *home = Home::Several,
            Some(_) => {}
        }
    }

    /// Ends a play that took so long. In another play the groups may live elsewhere.
    pub fn end_play(&mut self, took: Duration) {
        self.took += took;
        self.groups += self.homes.len();
        self.groups_on_one += self.homes.values().filter(|home| **home != Home::Several).count();
        self.homes.clear();
    }

    /// Adds another play, which has ended.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        for (kind, failed) in &other.failures {
            let first = || Failed { count: 0, first: failed.first.clone() };
            self.failures.entry(*kind).or_insert_with(first).count += failed.count;
        }
        self.ttft.merge(&other.ttft);
        self.gaps.merge(&other.gaps);
        self.tpot.merge(&other.tpot);
        self.latency.merge(&other.latency);
        self.late.merge(&other.late);
        self.took += other.took;
        self.with_usage += other.with_usage;
        self.with_cached += other.with_cached;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.output_tokens += other.output_tokens;
        for (endpoint, count) in &other.endpoints {
            *self.endpoints.entry(endpoint.clone()).or_default() += count;
        }
        self.groups_on_one += other.groups_on_one;
        self.groups += other.groups;
        self.good += other.good;
    }

    /// Requests that failed.
    pub fn failed(&self) -> usize {
        self.failures.values().map(|failed| failed.count).sum()
    }

    /// Cached share of the prompts, 0 to 1, by usage. None where no answer says what was cached.
    pub fn cached_share(&self) -> Option<f64> {
        let said = self.with_cached > 0 && self.prompt_tokens > 0;
        said.then(|| self.cached_tokens as f64 / self.prompt_tokens as f64)
    }

    /// A count in a second.
    pub fn per_second(&self, count: f64) -> f64 {
        let seconds = self.took.as_secs_f64();
        if seconds > 0.0 { count / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::failure::Failure;
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn record(group: &str, endpoint: Option<&str>) -> Record {
        Record {
            group: Some(group.to_owned()),
            endpoint: endpoint.map(str::to_owned),
            ttft: Some(millis(100)),
            latency: millis(200),
            tpot: Some(millis(10)),
            gaps: vec![millis(10), millis(10)],
            prompt_tokens: Some(50),
            cached_tokens: Some(20),
            output_tokens: Some(3),
            ..Record::default()
        }
    }

    fn failed(kind: Kind, text: &str) -> Record {
        let failure = Some(Failure { kind, text: text.to_owned() });
        Record {
            failure,
            latency: millis(9000),
            prompt_tokens: None,
            cached_tokens: None,
            ..record("f", None)
        }
    }

    fn tally(records: &[Record]) -> Tally {
        let mut tally = Tally::default();
        records.iter().for_each(|record| tally.add(record, &Slo::default()));
        tally.end_play(Duration::from_secs(2));
        tally
    }

    #[test]
    fn records_add_up() {
        let failures = [failed(Kind::Refused, "one"), failed(Kind::Refused, "two"), failed(Kind::Cut, "c")];
        let answered =
            [record("a", Some("x")), record("a", Some("x")), record("b", Some("x")), record("b", Some("y"))];
        let tally = tally(&[&failures[..], &answered[..]].concat());
        assert_eq!((tally.requests, tally.failed()), (7, 3));
        assert_eq!(tally.failures[&Kind::Refused], Failed { count: 2, first: "one".to_owned() });
        assert_eq!((tally.groups_on_one, tally.groups), (1, 3), "an unknown endpoint is not one endpoint");
        assert_eq!(tally.endpoints, BTreeMap::from([("x".to_owned(), 3), ("y".to_owned(), 1)]));
        assert_eq!((tally.prompt_tokens, tally.cached_share()), (200, Some(0.4)));
        assert_eq!(tally.latency.count(), 4, "failures have no latency");
        assert_eq!(tally.gaps.count(), 8);
        assert_eq!(tally.per_second(7.0), 3.5);
    }

    #[test]
    fn plays_add_up_and_a_group_may_move_between_them() {
        let mut both = tally(&[record("a", Some("x"))]);
        both.merge(&tally(&[record("a", Some("y")), failed(Kind::Cut, "c")]));
        assert_eq!((both.requests, both.failed(), both.took), (3, 1, Duration::from_secs(4)));
        assert_eq!((both.groups_on_one, both.groups), (2, 3));
        assert_eq!((both.endpoints.len(), both.ttft.count(), both.prompt_tokens), (2, 2, 100));
    }

    /// vLLM says nothing of 0 cached tokens: who says it once means 0 by silence.
    #[test]
    fn silence_of_all_answers_is_no_share() {
        let silent = Record { cached_tokens: None, ..record("a", None) };
        assert_eq!(tally(std::slice::from_ref(&silent)).cached_share(), None);
        assert_eq!(tally(&[silent, record("a", None)]).cached_share(), Some(0.2));
    }

    #[test]
    fn good_requests_keep_all_that_is_asked() {
        let good = record("a", None);
        let slow = Record { ttft: Some(millis(101)), ..good.clone() };
        let halting = Record { tpot: Some(millis(11)), ..good.clone() };
        let short = Record { tpot: None, ..good.clone() };
        let whole = Record { ttft: None, ..good.clone() };
        let slo = Slo { ttft: Some(millis(100)), tpot: Some(millis(10)), latency: Some(millis(200)) };
        for (shows, record, want) in [
            ("at the limit", &good, true),
            ("first token late", &slow, false),
            ("tokens slow", &halting, false),
            ("one token has no time between two", &short, true),
            ("no first token was seen", &whole, false),
            ("too long in all", &Record { latency: millis(201), ..good.clone() }, false),
            ("failed", &Record { failure: failed(Kind::Cut, "").failure, ..good.clone() }, false),
        ] {
            assert_eq!(slo.is_kept(record), want, "{shows}");
        }
        assert!(slo.is_set() && !Slo::default().is_set());
    }
}
