//! The table at the end: a line for each policy.

use std::time::Duration;

use super::REPLICAS;
use crate::table;

/// What one policy came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) policy: &'static str,
    /// By the replicas' own counters, 0 to 1.
    pub(super) hit_rate: f64,
    pub(super) ttft_p50: Duration,
    pub(super) ttft_p95: Duration,
    /// Requests of each replica.
    pub(super) requests: [usize; REPLICAS.len()],
    /// Groups that one replica answered alone, of all.
    pub(super) groups: (usize, usize),
}

pub(super) fn table(rows: &[Row]) -> String {
    let head =
        ["policy", "hit rate", "TTFT p50", "TTFT p95", "requests per replica", "groups on one replica"];
    table::table(head, rows.iter().map(cells))
}

fn cells(row: &Row) -> [String; 6] {
    let millis = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
    [
        row.policy.to_owned(),
        format!("{:.1} %", row.hit_rate * 1e2),
        millis(row.ttft_p50),
        millis(row.ttft_p95),
        row.requests.map(|count| count.to_string()).join(" "),
        format!("{}/{}", row.groups.0, row.groups.1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = |policy, hit_rate, millis| Row {
            policy,
            hit_rate,
            ttft_p50: Duration::from_millis(millis),
            ttft_p95: Duration::from_micros(226_600),
            requests: [22, 21, 21],
            groups: (8, 8),
        };
        let want = "\
policy        hit rate   TTFT p50   TTFT p95   requests per replica   groups on one replica
round-robin     44.8 %     226 ms     227 ms               22 21 21                     8/8
prefix          76.0 %      34 ms     227 ms               22 21 21                     8/8
";
        assert_eq!(table(&[row("round-robin", 0.4481, 226), row("prefix", 0.7602, 34)]), want);
    }
}
