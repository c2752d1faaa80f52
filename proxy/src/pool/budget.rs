//! How many requests may be sent once more: a share of all, so that a storm of failures cannot double the load.

use std::sync::atomic::{AtomicU64, Ordering};

/// Hundredths of a sending that are always there again after a second: a small pool may retry too (Linkerd's `minRetriesPerSecond`).
const RESERVE: u64 = 10 * 100;
/// What is saved up at most.
const SAVED_MAX: u64 = 100 * 100;

/// Sendings left, in hundredths.
pub(crate) struct Budget(AtomicU64);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicU64::new(RESERVE))
    }
}

impl Budget {
    /// A request came, which earns so many hundredths.
    pub(crate) fn earn(&self, percent: u32) {
        self.change(|saved| Some((saved + u64::from(percent)).min(SAVED_MAX)));
    }

    /// Takes a sending, if one is left.
    pub(crate) fn spend(&self) -> bool {
        self.change(|saved| saved.checked_sub(100))
    }

    /// A second has passed.
    pub(crate) fn renew(&self) {
        self.change(|saved| Some(saved.max(RESERVE)));
    }

    fn change(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(budget: &Budget) -> usize {
        (0..10_000).take_while(|_| budget.spend()).count()
    }

    #[test]
    fn a_share_of_all_requests_and_a_few_each_second() {
        let budget = Budget::default();
        assert_eq!(spent(&budget), 10);
        (0..50).for_each(|_| budget.earn(20));
        assert_eq!(spent(&budget), 10, "a fifth of fifty");
        (0..2).for_each(|_| budget.renew());
        assert_eq!(spent(&budget), 10, "a reserve, which does not add up");
        (0..1_000_000).for_each(|_| budget.earn(100));
        assert_eq!(spent(&budget), 100, "no more is saved");
    }
}
