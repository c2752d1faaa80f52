//! How long a connection may go without a request's head, and who is asked to leave when others wait.
//!
//! Kept by the stream itself, which sees each byte come: a head has its time from its first byte on, whatever came
//! before; on a new connection from the moment that it was accepted. The timer is set only when a read finds nothing, so a
//! request that is there costs none.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use config::Config;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep, sleep};

use crate::room::Room;

/// A client that has been silent for less since its last answer is not asked to leave: its next request may be on its way.
const RESTS_FOR: Duration = Duration::from_secs(1);

/// What clients may take, by the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// For a head, from its first byte on.
    pub(crate) head: Duration,
    /// Bytes of a head.
    pub(crate) head_bytes_max: usize,
}

impl Terms {
    /// Those of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        Self { head: config.timeouts.request_head, head_bytes_max: config.limits.headers_bytes_max }
    }
}

/// Why nothing more is read from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Impatience {
    /// It said nothing for as long as it may, or when it was asked to leave.
    Silent,
    /// Its head has begun and did not end in time.
    Slow,
    /// Its head is longer than it may be.
    Large,
}

/// Waits for a head, or for what comes before the first one.
#[derive(Debug)]
pub(crate) struct Patience {
    room: Arc<Room>,
    terms: Terms,
    stage: Stage,
    timer: Pin<Box<Sleep>>,
    /// What the timer is to be set to, once somebody waits for it.
    due: Option<Instant>,
    /// Bytes of the head so far.
    seen: usize,
    over: Option<Impatience>,
}

#[derive(Debug)]
enum Stage {
    /// Nobody waits for a head.
    Off,
    /// Not a byte yet, until then at the latest. With a fresh connection the head's own time is over then, too.
    Silent { until: Instant, fresh: bool, asked: Option<Pin<Box<OwnedNotified>>> },
    /// It has begun.
    Begun,
}

impl Patience {
    /// For a connection that has just been accepted.
    /// It is not asked to leave before `rests_for`.
    pub(crate) fn fresh(room: Arc<Room>, terms: Terms, rests_for: Duration) -> Self {
        let until = Instant::now() + terms.head;
        let stage = Stage::Silent { until, fresh: true, asked: None };
        let timer = Box::pin(sleep(rests_for.min(terms.head)));
        Self { room, terms, stage, timer, due: None, seen: 0, over: None }
    }

    /// Waits for the next head, `silent` at most until it begins. On a fresh connection the time runs already.
    pub(super) fn expect(&mut self, silent: Duration, terms: Terms) {
        self.terms = terms;
        if !matches!(self.stage, Stage::Off) {
            return;
        }
        let now = Instant::now();
        self.stage = Stage::Silent { until: now + silent, fresh: false, asked: None };
        self.due = Some(now + RESTS_FOR.min(silent));
        self.seen = 0;
    }

    /// The head is there.
    pub(super) fn rest(&mut self) {
        self.stage = Stage::Off;
    }

    /// Why nothing more is read.
    pub(super) fn over(&self) -> Option<Impatience> {
        self.over
    }

    /// Bytes were handed on.
    pub(super) fn heard(&mut self, bytes: usize) {
        match self.stage {
            Stage::Silent { until, fresh, .. } if bytes > 0 => {
                self.due = Some(if fresh { until } else { Instant::now() + self.terms.head });
                self.seen = bytes;
                self.stage = Stage::Begun;
            }
            Stage::Begun => self.seen = self.seen.saturating_add(bytes),
            Stage::Silent { .. } | Stage::Off => {}
        }
    }

    /// Whether more may be asked of the client: what was handed on so far is all of one head.
    pub(super) fn is_too_much(&mut self) -> bool {
        let large = matches!(self.stage, Stage::Begun) && self.seen > self.terms.head_bytes_max;
        if large {
            self.over = Some(Impatience::Large);
        }
        large
    }

    /// Ready when there is no more patience. To be asked when a read found nothing; `has_bytes` asks the system whether
    /// there is something all the same, so that nobody is asked to leave whose request lies there.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, has_bytes: impl Fn() -> bool) -> Poll<()> {
        if let Some(due) = self.due.take() {
            self.timer.as_mut().reset(due);
        }
        let impatience = match &mut self.stage {
            Stage::Off => return Poll::Pending,
            Stage::Begun => {
                ready!(self.timer.as_mut().poll(context));
                Impatience::Slow
            }
            Stage::Silent { until, asked, .. } => {
                let may_leave = || self.room.is_full() && !has_bytes();
                ready!(poll_silent(*until, asked, &mut self.timer, (&self.room, may_leave), context));
                Impatience::Silent
            }
        };
        self.over = Some(impatience);
        Poll::Ready(())
    }
}

/// Ready when a client has been silent for as long as it may, or is asked to leave.
fn poll_silent(
    until: Instant,
    asked: &mut Option<Pin<Box<OwnedNotified>>>,
    timer: &mut Pin<Box<Sleep>>,
    (room, may_leave): (&Room, impl Fn() -> bool),
    context: &mut Context<'_>,
) -> Poll<()> {
    let listens = || Box::pin(room.silent().notified_owned());
    loop {
        if let Some(asking) = asked {
            if asking.as_mut().poll(context).is_pending() {
                return timer.as_mut().poll(context);
            }
            if may_leave() {
                return Poll::Ready(());
            }
            // It has been asked too late: there is room, or a request.
        } else {
            ready!(timer.as_mut().poll(context));
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        *asked = Some(listens());
    }
}
