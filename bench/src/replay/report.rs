//! What a run of records says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Record;

/// The value below which a share of all values lies: nearest rank, exact. None of nothing.
pub fn percentile(values: &[Duration], share: f64) -> Option<Duration> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// First-token times of the requests that have one.
pub fn ttfts(records: &[Record]) -> Vec<Duration> {
    records.iter().filter_map(|record| record.ttft).collect()
}

/// Requests that each endpoint answered, by its name.
pub fn per_endpoint(records: &[Record]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for endpoint in records.iter().filter_map(|record| record.endpoint.as_deref()) {
        *counts.entry(endpoint).or_default() += 1;
    }
    counts
}

/// Groups that one endpoint alone answered, of all groups.
pub fn groups_on_one(records: &[Record]) -> (usize, usize) {
    let mut groups: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    for record in records {
        if let Some(group) = &record.group {
            groups.entry(group).or_default().insert(record.endpoint.as_deref());
        }
    }
    let on_one = groups.values().filter(|endpoints| endpoints.len() == 1 && !endpoints.contains(&None));
    (on_one.count(), groups.len())
}

/// Requests that failed, and why the first did.
pub fn failures(records: &[Record]) -> Option<(usize, &str)> {
    let mut failures = records.iter().filter_map(|record| Some(record.failure.as_ref()?.text.as_str()));
    let first = failures.next()?;
    Some((failures.count() + 1, first))
}

#[cfg(test)]
mod tests {
    use super::super::failure::{Failure, Kind};
    use super::*;

    #[test]
    fn percentiles_are_exact() {
        let values: Vec<_> = [5, 1, 4, 2, 3].map(Duration::from_millis).to_vec();
        for (share, want) in [(0.0, 1), (0.2, 1), (0.5, 3), (0.8, 4), (0.95, 5), (1.0, 5)] {
            assert_eq!(percentile(&values, share), Some(Duration::from_millis(want)), "{share}");
        }
        assert_eq!(percentile(&[], 0.5), None);
    }

    fn record(group: &str, endpoint: Option<&str>, failure: Option<&str>) -> Record {
        let failure = failure.map(|text| Failure { kind: Kind::NoAnswer, text: text.to_owned() });
        Record {
            group: Some(group.to_owned()),
            endpoint: endpoint.map(str::to_owned),
            failure,
            ..Record::default()
        }
    }

    #[test]
    fn groups_and_endpoints_are_counted() {
        let records = [
            record("a", Some("x"), None),
            record("a", Some("x"), None),
            record("b", Some("x"), None),
            record("b", Some("y"), None),
            record("c", None, Some("refused")),
            record("c", None, Some("late")),
        ];
        assert_eq!(groups_on_one(&records), (1, 3), "an unknown endpoint is not one endpoint");
        assert_eq!(per_endpoint(&records), BTreeMap::from([("x", 3), ("y", 1)]));
        assert_eq!(failures(&records), Some((2, "refused")));
        assert_eq!(failures(&records[..4]), None);
    }
}
