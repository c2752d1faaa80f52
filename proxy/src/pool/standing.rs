//! Which endpoints a request may go to, as they stand at this moment.
//!
//! Each endpoint has a standing, and the candidates are those of the best standing that any has. So what is wrong with an
//! endpoint keeps requests from it as long as another can take them, and when all look bad the least bad are tried.

use std::sync::Arc;
use std::time::{Duration, Instant};

use picker::score::Candidate;

use super::{Candidates, Member, Pool};
use crate::clock::Clock;
use crate::endpoints::Endpoint;
use crate::endpoints::health::Trial;

/// How an endpoint stands, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    Free,
    /// It said that it is busy, and not until when.
    Busy,
    /// It has as many requests as it may.
    Full,
    /// It asked for a pause, which is not over.
    Paused,
    /// Left out for failures, or by its health path.
    Out,
    /// It sleeps, or takes no connection.
    Down,
    /// Out or down, and full.
    Closed,
}

/// Why a request can go nowhere at this moment, though there are endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// All have as many requests as they may.
    Full,
    /// All asked for a pause; so long is the shortest.
    Paused(Duration),
}

impl Standing {
    /// As the state page says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Paused => "paused",
            Self::Out => "out",
            Self::Down => "down",
            Self::Closed => "closed",
        }
    }
}

impl Pool {
    /// How an endpoint stands.
    pub(crate) fn standing(&self, endpoint: &Endpoint, now: Instant, clock: Clock) -> Standing {
        let is_full = self.is_full(endpoint);
        if !endpoint.usable(now, self.config.load.stale_after) {
            return if is_full { Standing::Closed } else { Standing::Down };
        }
        let (health, millis) = (&endpoint.health, clock.at(now).millis());
        match () {
            () if health.is_out() && is_full => Standing::Closed,
            () if health.is_out() => Standing::Out,
            () if health.pause_left(millis).is_some() => Standing::Paused,
            () if is_full => Standing::Full,
            () if health.is_busy(millis) => Standing::Busy,
            () => Standing::Free,
        }
    }

    /// Who can take a request now: the weighed endpoints of the best standing, of a model that some list only those that do.
    /// Errors: all must be waited for.
    pub(crate) fn candidates(
        self: &Arc<Self>,
        model: Option<&str>,
        clock: Clock,
    ) -> Result<Candidates, NoRoom> {
        let now = Instant::now();
        let lacking = self.known.lacking.load();
        let without = model.map_or(&[][..], |model| lacking.without(model));
        let serving = self.weighed().filter(|member| !without.contains(&member.endpoint.id()));
        let (mut best, mut list) = self.best(serving, now, clock);
        // Lists may be old, and the engine is the judge: of those that serve none can be used, so the others are asked.
        if !without.is_empty() && best.is_none_or(|best| best >= Standing::Down) {
            (best, list) = self.best(self.weighed(), now, clock);
        }
        match best {
            Some(Standing::Full | Standing::Closed) => Err(NoRoom::Full),
            // Alone it is asked all the same: there is no choice to make, and it says itself how busy it is.
            Some(Standing::Paused) if self.weighed().count() > 1 => {
                let left = |member: &Member| member.endpoint.health.pause_left(clock.at(now).millis());
                Err(NoRoom::Paused(self.weighed().filter_map(left).min().unwrap_or_default()))
            }
            _ => Ok(Candidates { pool: self.clone(), list }),
        }
    }

    fn weighed(&self) -> impl Iterator<Item = &Member> {
        self.fleet.iter().filter(|member| member.weight > 0.0)
    }

    /// The best standing that any of them has, and those that have it. HOT: mostly all stand alike.
    fn best<'a>(
        &self,
        members: impl Iterator<Item = &'a Member>,
        now: Instant,
        clock: Clock,
    ) -> (Option<Standing>, Vec<Candidate>) {
        let (mut best, mut list) = (None, Vec::with_capacity(self.fleet.len()));
        for member in members {
            let standing = self.standing(&member.endpoint, now, clock);
            if best.is_none_or(|best| standing < best) {
                best = Some(standing);
                list.clear();
            }
            if best == Some(standing) {
                list.push(self.candidate(member, now, clock));
            }
        }
        (best, list)
    }

    fn candidate(&self, member: &Member, now: Instant, clock: Clock) -> Candidate {
        Candidate {
            id: member.endpoint.id(),
            load: member.endpoint.load(now, clock, self.config.load.stale_after),
            adapters: member.endpoint.adapters(),
            weight: member.weight,
        }
    }

    /// Whether an endpoint has as many requests as it may.
    pub(crate) fn is_full(&self, endpoint: &Endpoint) -> bool {
        let limit = self.config.limits.endpoint_requests_max;
        limit.is_some_and(|limit| endpoint.held() >= limit.get())
    }
}

impl Candidates {
    /// An endpoint that is left out and may be tried again by this request; it is a candidate then.
    pub(crate) fn trial(&mut self, clock: Clock) -> Option<Trial> {
        let (now, millis) = (Instant::now(), clock.millis());
        let pool = self.pool.clone();
        let wants = |member: &&Member| {
            let endpoint = &member.endpoint;
            let is_usable = endpoint.usable(now, pool.config.load.stale_after);
            endpoint.health.wants_trial(millis)
                && is_usable
                && !endpoint.health.is_busy(millis)
                && !pool.is_full(endpoint)
        };
        let member = pool.weighed().find(wants)?;
        let trial = Trial::of(&member.endpoint)?;
        if self.list.iter().all(|candidate| candidate.id != member.endpoint.id()) {
            self.list.push(pool.candidate(member, now, clock));
        }
        Some(trial)
    }
}
