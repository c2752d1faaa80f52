//! Sends a plan, at the times of its trace or as fast as answers come.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::ReplayError;
use super::exchange::{Record, Target, exchange};
use super::plan::Plan;

/// When a request goes out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// At its time in the trace, whether or not others were answered: a slow server meets the queue that it made.
    Open {
        /// Times are divided by it.
        speed: f64,
        /// Requests under way at once. Those beyond it wait, and their waiting counts.
        in_flight_max: usize,
    },
    /// When one of so many clients is free, whatever its time: load gives way to a slow server.
    Closed {
        /// At least 1.
        clients: usize,
    },
}

/// Takes a record and the number of its request.
pub type Sink<'a> = dyn FnMut(usize, Record) + Send + 'a;

struct Sender<'a> {
    plan: Arc<Plan>,
    target: Arc<Target>,
    client: Client,
    under_way: JoinSet<(usize, Record)>,
    sink: &'a mut Sink<'a>,
}

/// Sends every request and hands its record to `sink` when it has ended, in that order.
///
/// Bodies are made as they go out, so what is in memory is bounded by the requests under way. Returns how long all took.
pub async fn send<'a>(
    plan: &Arc<Plan>,
    target: &Arc<Target>,
    pace: Pace,
    sink: &'a mut Sink<'a>,
) -> Result<Duration, ReplayError> {
    let (plan, target) = (Arc::clone(plan), Arc::clone(target));
    let start = Instant::now();
    let mut sender = Sender { plan, target, client: super::client()?, under_way: JoinSet::new(), sink };
    match pace {
        Pace::Open { speed, in_flight_max } => sender.open(start, speed, in_flight_max).await?,
        Pace::Closed { clients } => sender.closed(clients).await?,
    }
    while let Some(ended) = sender.under_way.join_next().await {
        sender.keep(ended)?;
    }
    Ok(start.elapsed())
}

impl Sender<'_> {
    async fn open(&mut self, start: Instant, speed: f64, in_flight_max: usize) -> Result<(), ReplayError> {
        for number in 0..self.plan.len() {
            let due = start + self.plan.at(number).div_f64(speed);
            while let Ok(Some(ended)) = tokio::time::timeout_at(due, self.under_way.join_next()).await {
                self.keep(ended)?;
            }
            tokio::time::sleep_until(due).await;
            self.make_room(in_flight_max).await?;
            self.start(number, Some(due));
        }
        Ok(())
    }

    async fn closed(&mut self, clients: usize) -> Result<(), ReplayError> {
        for number in 0..self.plan.len() {
            self.make_room(clients).await?;
            self.start(number, None);
        }
        Ok(())
    }

    /// Waits until fewer are under way.
    async fn make_room(&mut self, most: usize) -> Result<(), ReplayError> {
        while self.under_way.len() >= most.max(1) {
            let Some(ended) = self.under_way.join_next().await else { return Ok(()) };
            self.keep(ended)?;
        }
        Ok(())
    }

    fn start(&mut self, number: usize, due: Option<Instant>) {
        let (plan, target, client) = (Arc::clone(&self.plan), Arc::clone(&self.target), self.client.clone());
        self.under_way.spawn(async move {
            let group = plan.group(number).map(str::to_owned);
            let Some(outgoing) = plan.outgoing(number) else { return (number, Record::default()) };
            (number, exchange(&client, &target, number, outgoing, group, due).await)
        });
    }

    fn keep(&mut self, ended: Result<(usize, Record), JoinError>) -> Result<(), ReplayError> {
        let (number, record) = ended?;
        (self.sink)(number, record);
        Ok(())
    }
}

/// Sends every request and returns the records in the order of the trace. `progress` is called with the number of requests
/// that have ended.
pub async fn collect(
    plan: &Arc<Plan>,
    target: &Arc<Target>,
    pace: Pace,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Record>, ReplayError> {
    let mut records = Vec::with_capacity(plan.len());
    let mut sink = |number, record| {
        records.push((number, record));
        progress(records.len());
    };
    send(plan, target, pace, &mut sink).await?;
    records.sort_unstable_by_key(|(number, _)| *number);
    Ok(records.into_iter().map(|(_, record)| record).collect())
}
