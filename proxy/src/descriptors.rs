//! What this process may open: its limit of descriptors, raised as far as it goes, and how it is shared out.
//!
//! Of the process and not of a router, as the limit is: two routers in one process share it. Each client may need a
//! connection to an engine, and scrapes need some too, so engines get more; a reserve is left for the admin listener, files, the log, look-ups of
//! names and the runtime. Nobody takes from another's share: an engine connection that finds its own used up closes an idle
//! one or waits, clients beyond theirs wait in the listen backlog, and the admin listener answers through all of it.

use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock};

use config::defaults::{ADMIN_CONNECTIONS_MAX, CONNECTIONS_MAX, DESCRIPTORS_RESERVED};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Semaphore;

/// The shares of this process.
pub(crate) static SHARES: LazyLock<Shares> = LazyLock::new(|| Shares::of(raised()));
/// A permit for each connection to an engine, idle ones included; taken in the order of asking.
pub(crate) static ENGINES: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(SHARES.engines.min(Semaphore::MAX_PERMITS))));

/// Connections by whom they are with. None is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Descriptors that the process may have.
    pub(crate) limit: usize,
    pub(crate) clients: usize,
    pub(crate) engines: usize,
    pub(crate) admin: usize,
}

impl Shares {
    /// Shares a limit out. Of a small one a half is reserved.
    fn of(limit: usize) -> Self {
        let reserved = DESCRIPTORS_RESERVED.min(limit / 2);
        let rest = limit - reserved;
        let clients = (rest / 5 * 2).max(1);
        let engines = rest.saturating_sub(clients).max(1);
        let admin = ADMIN_CONNECTIONS_MAX.min(reserved / 3).max(1);
        Self { limit, clients, engines, admin }
    }

    /// Clients that may be connected where so many were asked for, if any were.
    pub(crate) fn connections_max(&self, wanted: Option<usize>) -> usize {
        wanted.unwrap_or(CONNECTIONS_MAX).min(self.clients)
    }
}

/// Whether something is to be had from a descriptor at once, by the system's own word: bytes, an end, or on a listener
/// somebody who waits in its backlog.
pub(crate) fn is_readable(descriptor: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Whether the other side of a connection has ended it, even behind bytes that nobody has read.
pub(crate) fn has_hung_up(connection: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&connection, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Raises the soft limit to the hard one, which needs no right; gives what holds.
fn raised() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised =
        current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    // None is without a limit.
    let holds = if raised { maximum } else { current };
    holds.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shared_out_with_a_reserve() {
        for (limit, clients, engines, admin) in
            [(1_048_576, 419_352, 629_032, 64), (1024, 332, 500, 64), (64, 12, 20, 10), (1, 1, 1, 1)]
        {
            assert_eq!(Shares::of(limit), Shares { limit, clients, engines, admin });
        }
    }

    #[test]
    fn what_is_asked_for_is_had_as_far_as_it_goes() {
        let shares = Shares::of(1_048_576);
        for (wanted, had) in
            [(None, CONNECTIONS_MAX), (Some(7), 7), (Some(100_000), 100_000), (Some(1 << 30), 419_352)]
        {
            assert_eq!(shares.connections_max(wanted), had, "{wanted:?}");
        }
        assert_eq!(Shares::of(1024).connections_max(None), 332);
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let limit = SHARES.limit;
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert_eq!(limit, current.and_then(|soft| usize::try_from(soft).ok()).unwrap_or(usize::MAX));
    }
}
