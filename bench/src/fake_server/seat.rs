//! The engine behind the HTTP face: one replica under a short lock, and the real clock.
//!
//! A [`Seat`] is a request's place in the engine. It is given back exactly once, when the seat is dropped:
//! after the answer, or when the client goes away and its handler or its stream is dropped with it. No lock
//! is held across an await.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::FakeServerOptions;
use super::fault::Fault;
use crate::engine::{Admission, Figures, Prompt, Replica, Ticket};

/// A sleep below this is skipped: the timer's step is a millisecond.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// What all requests of a server share.
pub(crate) struct Engine {
    pub(crate) options: FakeServerOptions,
    /// `system_fingerprint` of its answers; tells servers apart.
    pub(crate) fingerprint: String,
    /// Seconds since the epoch.
    pub(crate) started_at: f64,
    state: Mutex<State>,
    answers: AtomicU64,
    stopping: watch::Receiver<bool>,
}

struct State {
    replica: Replica,
    /// Those who wait for a lane.
    queue: HashMap<Ticket, oneshot::Sender<()>>,
    counters: Counters,
}

/// What a server has counted, besides what its replica counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) answered: u64,
}

/// Seconds since the epoch.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Engine {
    pub(crate) fn new(options: FakeServerOptions, stopping: watch::Receiver<bool>) -> Self {
        let state = State {
            replica: Replica::new(options.replica),
            queue: HashMap::new(),
            counters: Counters::default(),
        };
        Self {
            fingerprint: format!("vllm-0.32.0-{}", options.name),
            options,
            started_at: unix_seconds(),
            state: Mutex::new(state),
            answers: AtomicU64::new(0),
            stopping,
        }
    }

    /// A number for an answer's id.
    pub(crate) fn next_answer(&self) -> u64 {
        self.answers.fetch_add(1, Ordering::Relaxed)
    }

    /// A request arrives: its prompts are looked up and cached, and it takes a lane or queues.
    pub(crate) fn sit(self: &Arc<Self>, prompts: &[Prompt]) -> Seat {
        let mut state = self.state.lock();
        let admission = state.replica.arrive(prompts);
        state.counters.prompt_tokens += admission.prompt_tokens as u64;
        let lane = (!admission.runs).then(|| {
            let (sender, receiver) = oneshot::channel();
            state.queue.insert(admission.ticket, sender);
            receiver
        });
        drop(state);
        Seat { engine: Arc::clone(self), admission, lane }
    }

    /// What the replica exports now.
    pub(crate) fn figures(&self) -> Figures {
        self.state.lock().replica.figures()
    }

    /// What was counted so far.
    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// Gives a place back and wakes who gets the lane. If that one is leaving too, its own seat passes the
    /// lane on.
    fn stand_up(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        state.queue.remove(&ticket);
        if let Some(sender) = state.replica.leave(ticket).and_then(|next| state.queue.remove(&next)) {
            // Nobody listens only if that request is being dropped.
            let _ = sender.send(());
        }
    }

    /// Waits until something is done, or until the server is stopped.
    async fn unless_stopped<T>(&self, done: impl Future<Output = T>) -> Result<T, Fault> {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            done = done => Ok(done),
            _ = stopping.wait_for(|stop| *stop) => Err(Fault::Stopped),
        }
    }

    /// Lets time pass.
    pub(crate) async fn compute(&self, time: Duration) -> Result<(), Fault> {
        if time < SLEEP_MIN {
            return Ok(());
        }
        self.unless_stopped(tokio::time::sleep(time)).await
    }
}

/// A request's place in the engine.
pub(crate) struct Seat {
    engine: Arc<Engine>,
    pub(crate) admission: Admission,
    /// Tells that the lane is there; none once it is.
    lane: Option<oneshot::Receiver<()>>,
}

impl Seat {
    /// Waits for a lane and for the prefill. Errors: the server is being stopped.
    pub(crate) async fn first_token(&mut self) -> Result<(), Fault> {
        if let Some(lane) = self.lane.as_mut() {
            // The sender outlives the wait: only this seat's own end removes it.
            let _ = self.engine.unless_stopped(lane).await?;
            self.lane = None;
        }
        self.engine.compute(self.admission.prefill.to_duration()).await
    }

    /// The answer is complete: it counts, and the lane is free before the client sees its end.
    pub(crate) fn finish(self, generated_tokens: usize) {
        let mut state = self.engine.state.lock();
        state.counters.answered += 1;
        state.counters.generation_tokens += generated_tokens as u64;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.engine.stand_up(self.admission.ticket);
    }
}
