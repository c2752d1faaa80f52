//! The router's own clock: one zero for all that is booked, so that times can be compared.

use std::time::Instant;

use picker::ledger::Micros;

/// Counts from when it was made; never goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The time now.
    pub(crate) fn now(self) -> Micros {
        self.at(Instant::now())
    }

    /// What it shows at an instant; 0 for one before its start.
    pub(crate) fn at(self, instant: Instant) -> Micros {
        let micros = instant.saturating_duration_since(self.0).as_micros();
        Micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Milliseconds now.
    pub(crate) fn millis(self) -> u64 {
        self.now().millis()
    }
}
