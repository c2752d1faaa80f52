//! What is remembered of a request: counted, logged and shown once, however it ends.
//!
//! The record is written when it is dropped, so a task that is cancelled or panics is counted too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use picker::decide::{Choice, Decision};
use picker::hash::Blocks;
use picker::read::Api;
use pingora_http::RequestHeader;

use super::reply::Refusal;
use super::seen::Seen;
use super::usage::Usage;
use super::visit::Visit;
use crate::admin::recent::Entry;
use crate::decision_log::Noted;
use crate::edge::access_log::{Line, Text};
use crate::endpoints::Endpoint;
use crate::metrics::Kind;
use crate::pool::Pool;
use crate::router::Router;

/// One request's record.
pub(crate) struct Record {
    router: Arc<Router>,
    pub(crate) api: Api,
    started: Instant,
    pub(crate) decision_time: Duration,
    first_byte: Option<Duration>,
    attempts: u32,
    /// The endpoint that was tried last.
    tried: Option<Arc<Endpoint>>,
    status: u16,
    trouble: Option<Kind>,
    ended: bool,
    decided: Option<Decided>,
    /// The last decision, where there is a log for it.
    noted: Option<Noted>,
    /// Bytes of the bodies of request and answer.
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    /// What the answer said that its prompt cost.
    pub(crate) usage: Option<Usage>,
    /// What access log and spans tell beside; none where there are none.
    seen: Option<Seen>,
}

/// Where the request went, and why.
struct Decided {
    decision: Decision,
    /// Blocks of the prompt; their hashes are not kept.
    blocks: usize,
    pool: Arc<Pool>,
    choice: Choice,
}

impl Record {
    /// A record of a request whose head has just been read.
    pub(crate) fn new(router: &Arc<Router>, api: Api) -> Self {
        router.metrics.request(api);
        Self {
            router: router.clone(),
            api,
            started: Instant::now(),
            decision_time: Duration::ZERO,
            first_byte: None,
            attempts: 0,
            tried: None,
            status: 0,
            trouble: None,
            ended: false,
            decided: None,
            noted: None,
            request_bytes: 0,
            response_bytes: 0,
            usage: None,
            seen: None,
        }
    }

    /// The decision was made in `took`.
    pub(crate) fn decision(&mut self, decision: &Decision, took: Duration) {
        self.decision_time = took;
        self.router.metrics.decided(took.as_secs_f64(), decision.cold);
        self.router.metrics.reading(&decision.reading);
    }

    /// Keeps a decision's reasons for the decision log.
    pub(crate) fn note(&mut self, noted: Noted) {
        self.noted = Some(noted);
    }

    /// Another endpoint is tried.
    pub(crate) fn attempt(&mut self, endpoint: &Arc<Endpoint>) {
        self.attempts += 1;
        self.tried = Some(endpoint.clone());
        if self.attempts > 1 {
            self.router.metrics.retry();
        }
    }

    /// Endpoints that were tried so far.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The endpoint answered; nothing has been forwarded yet. Gives the prompt's hashes, which are not kept here.
    pub(crate) fn answered(
        &mut self,
        status: u16,
        (pool, endpoint): (&Arc<Pool>, &Arc<Endpoint>),
        choice: &Choice,
        mut decision: Decision,
    ) -> Blocks {
        let hashes = std::mem::take(&mut decision.blocks);
        let blocks = hashes.total();
        let elapsed = self.started.elapsed();
        self.first_byte = Some(elapsed);
        self.status = status;
        self.router.metrics.first_byte(elapsed.as_secs_f64());
        let counters = &endpoint.counters;
        counters.answers[usize::from(status / 100).clamp(1, 5) - 1].add(1);
        counters.matched_blocks.add(choice.matched.into());
        counters.total_blocks.add(blocks as u64);
        self.decided = Some(Decided { decision, blocks, pool: pool.clone(), choice: *choice });
        hashes
    }

    /// The model that was asked for; empty for none that is known.
    pub(crate) fn model(&self) -> &str {
        self.decided.as_ref().and_then(|decided| decided.decision.model.as_deref()).unwrap_or_default()
    }

    /// What logs and spans tell of the request itself. To be called before it ends.
    pub(crate) fn saw(&mut self, visit: &Visit, head: &RequestHeader) {
        if visit.live.access_log.is_some() || self.noted.is_some() || self.router.traces.is_some() {
            self.seen = Some(Seen::new(visit, head, self.started.elapsed()));
        }
    }

    /// The router answers by itself, and well.
    pub(crate) fn answered_here(&mut self, status: u16) {
        self.status = status;
    }

    /// The exchange ended badly.
    pub(crate) fn trouble(&mut self, kind: Kind) {
        self.refused(kind.into());
    }

    /// The router answered by itself.
    pub(crate) fn refused(&mut self, refusal: Refusal) {
        self.trouble = Some(refusal.kind);
        self.ended = true;
        if self.status == 0 {
            self.status = refusal.status();
        }
    }

    /// The answer went out whole.
    pub(crate) fn done(&mut self) {
        self.ended = true;
    }

    fn log(&self) {
        let endpoint = self.tried.as_ref().map_or("-", |endpoint| endpoint.name.as_str());
        let matched = self.decided.as_ref().map_or(0, |decided| decided.choice.matched);
        let blocks = self.decided.as_ref().map_or(0, |decided| decided.blocks);
        let ttfb_ms = self.first_byte.map_or(0.0, |time| time.as_secs_f64() * 1e3);
        let total_ms = self.started.elapsed().as_secs_f64() * 1e3;
        let (api, status, attempts) = (self.api.name(), self.status, self.attempts);
        match self.trouble {
            Some(kind) if !kind.is_quiet() => {
                let trouble = kind.name();
                tracing::info!(
                    api, status, trouble, endpoint, matched, blocks, attempts, ttfb_ms, total_ms, "request"
                );
            }
            trouble => tracing::debug!(
                api,
                status,
                trouble = trouble.map(Kind::name),
                endpoint,
                matched,
                blocks,
                attempts,
                ttfb_ms,
                total_ms,
                "request"
            ),
        }
    }
}

impl Record {
    fn log_for_others(&self) {
        let Some(seen) = &self.seen else { return };
        let decided = self.decided.as_ref();
        let line = Line {
            status: self.status,
            pool: decided.map(|decided| decided.pool.config.name.as_str()),
            model: decided
                .and_then(|decided| decided.decision.model.as_deref())
                .map(|it| Text(it.as_bytes())),
            endpoint: self.tried.as_ref().map(|endpoint| endpoint.name.as_str()),
            api: self.api.name(),
            stream: decided.is_some_and(|decided| decided.decision.stream),
            matched_blocks: decided.map_or(0, |decided| decided.choice.matched),
            blocks: decided.map_or(0, |decided| decided.blocks as u32),
            prompt_tokens: self.usage.map(|usage| usage.prompt_tokens.into()),
            cached_tokens: self.usage.and_then(|usage| usage.cached_tokens).map(u64::from),
            attempts: self.attempts,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            decision_us: decided.map(|_| self.decision_time),
            ttfb_ms: self.first_byte,
            total_ms: Some(self.started.elapsed()),
            trouble: self.trouble.map(Kind::name),
            ..seen.line()
        };
        if let Some(log) = &seen.access_log {
            log.write(line.json());
        }
        if let (Some(log), Some(noted)) = (&seen.decision_log, &self.noted) {
            log.write(noted.line(&line, self.usage));
        }
        if let Some(traces) = &self.router.traces {
            traces.record(&line, seen.parent());
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.ended {
            self.trouble(Kind::Aborted);
        }
        if let Some(kind) = self.trouble {
            self.router.metrics.error(kind);
        }
        self.log();
        self.log_for_others();
        if let (Some(Decided { decision, blocks, pool, choice }), Some(endpoint)) =
            (self.decided.take(), self.tried.take())
        {
            let (at_ms, took) = (self.router.clock.millis(), self.decision_time);
            let (status, trouble) = (self.status, self.trouble.map(Kind::name));
            let api = self.api;
            let entry = Entry { at_ms, api, status, trouble, took, pool, endpoint, choice, blocks, decision };
            self.router.recent.push(entry);
        }
    }
}
