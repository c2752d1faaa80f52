//! What one tenant may send: requests a second, requests in flight, tokens and bytes of prompts a minute.
//!
//! Asked twice: when the head is there, so that a body of one too many is not read, and when the body is. A request that
//! is refused for its prompt has counted as a request, as at OpenAI; one that is refused for one kind of a prompt's size
//! costs nothing of the other.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use config::TenantLimits;
use governor::Quota;
use http::{HeaderName, HeaderValue};
use picker::ledger::Micros;

use super::rate::{Rate, Short};
use crate::bounded::Bounded;

/// A time that nobody knows: until a request in flight ends.
const RETRY_UNKNOWN: Duration = Duration::from_secs(1);

/// A tenant's limits and what is used up of them.
pub(crate) struct Limits {
    in_flight: Arc<Bounded>,
    in_flight_max: Option<NonZeroU32>,
    requests: Option<Arc<Rate>>,
    tokens: Option<Arc<Rate>>,
    bytes: Option<Arc<Rate>>,
}

/// A request that counts as in flight until this is dropped.
#[derive(Debug)]
#[must_use = "the request is in flight for as long as this is held"]
pub(crate) struct InFlight(Arc<Bounded>);

/// Which limit a request would break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `requests_per_second` with `burst`.
    Requests,
    /// `concurrent_requests`.
    Concurrent,
    /// `prompt_tokens_per_minute`.
    Tokens,
    /// `prompt_bytes_per_minute`.
    Bytes,
}

/// Why a request does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// What it would break.
    pub(crate) limit: Limit,
    /// When it may pass; `None` for a prompt that is more than a minute's allowance and never does.
    pub(crate) after: Option<Duration>,
}

impl Limits {
    /// Limits as configured. What is in flight is kept, and of each limit that is as it was, what is used up of it.
    pub(crate) fn after(previous: Option<&Self>, limits: &TenantLimits) -> Self {
        let TenantLimits {
            requests_per_second,
            burst,
            concurrent_requests,
            prompt_tokens_per_minute,
            prompt_bytes_per_minute,
        } = *limits;
        let requests =
            requests_per_second.map(|mean| Quota::per_second(mean).allow_burst(burst.unwrap_or(mean)));
        let kept = |rate: fn(&Self) -> &Option<Arc<Rate>>| previous.and_then(|limits| rate(limits).as_ref());
        Self {
            in_flight: previous.map(|limits| limits.in_flight.clone()).unwrap_or_default(),
            in_flight_max: concurrent_requests,
            requests: rate(requests, kept(|limits| &limits.requests)),
            tokens: rate(prompt_tokens_per_minute.map(Quota::per_minute), kept(|limits| &limits.tokens)),
            bytes: rate(prompt_bytes_per_minute.map(Quota::per_minute), kept(|limits| &limits.bytes)),
        }
    }

    /// Lets one more request in, once its head is there. Errors: the limit that it would break.
    pub(crate) fn admit(&self, now: Micros) -> Result<InFlight, Refused> {
        let in_flight = self.enter()?;
        take(self.requests.as_deref(), Some(NonZeroU32::MIN), now, Limit::Requests)?;
        Ok(in_flight)
    }

    /// Lets its prompt in, once it is read: bytes of the body and what is thought of as its tokens. Errors: the limit that
    /// it would break; it has used up nothing of the others then.
    pub(crate) fn admit_prompt(&self, bytes: usize, tokens: u32, now: Micros) -> Result<(), Refused> {
        let (tokens, bytes) = (NonZeroU32::new(tokens), amount(bytes));
        take(self.tokens.as_deref(), tokens, now, Limit::Tokens)?;
        take(self.bytes.as_deref(), bytes, now, Limit::Bytes).inspect_err(|_| {
            if let (Some(rate), Some(tokens)) = (&self.tokens, tokens) {
                rate.give_back(tokens);
            }
        })
    }

    /// Requests in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// Whether tokens are counted, so that they have to be estimated.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// What every answer tells: limit, what is left and when it is full again, in OpenAI's names. Empty for a tenant
    /// without a limit on requests a second or tokens a minute.
    pub(crate) fn headers(&self, now: Micros) -> Vec<(HeaderName, HeaderValue)> {
        const REQUESTS: [HeaderName; 3] = [
            HeaderName::from_static("x-ratelimit-limit-requests"),
            HeaderName::from_static("x-ratelimit-remaining-requests"),
            HeaderName::from_static("x-ratelimit-reset-requests"),
        ];
        const TOKENS: [HeaderName; 3] = [
            HeaderName::from_static("x-ratelimit-limit-tokens"),
            HeaderName::from_static("x-ratelimit-remaining-tokens"),
            HeaderName::from_static("x-ratelimit-reset-tokens"),
        ];
        let mut headers = Vec::new();
        for (rate, names) in [(&self.requests, REQUESTS), (&self.tokens, TOKENS)] {
            let Some(rate) = rate else { continue };
            let reset = HeaderValue::try_from(span(rate.full_in(now)));
            let values = [rate.size().into(), rate.left(now).into(), reset.unwrap_or(0.into())];
            headers.extend(names.into_iter().zip(values));
        }
        headers
    }

    fn enter(&self) -> Result<InFlight, Refused> {
        match self.in_flight.take(self.in_flight_max) {
            true => Ok(InFlight(self.in_flight.clone())),
            false => Err(Refused { limit: Limit::Concurrent, after: Some(RETRY_UNKNOWN) }),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Limit {
    /// Every limit, in the order of [`Limit`].
    pub(crate) const ALL: [Self; 4] = [Self::Requests, Self::Concurrent, Self::Tokens, Self::Bytes];

    /// Their keys in the file, in the same order: for a metric's label.
    pub(crate) const NAMES: [&'static str; 4] =
        ["requests_per_second", "concurrent_requests", "prompt_tokens_per_minute", "prompt_bytes_per_minute"];
}

impl Refused {
    /// 429, which clients try again; 413 for what can never pass, which they do not (openai-python 2 repeats 408, 409, 429
    /// and 5xx).
    pub(crate) fn status(self) -> u16 {
        if self.after.is_some() { 429 } else { 413 }
    }

    /// What the client is told.
    pub(crate) fn message(self) -> &'static str {
        match (self.limit, self.after.is_some()) {
            (Limit::Requests, _) => "too many requests a second for this key",
            (Limit::Concurrent, _) => "too many requests at once for this key",
            (Limit::Tokens, true) => "too many tokens of prompts a minute for this key",
            (Limit::Bytes, true) => "too many bytes of prompts a minute for this key",
            (Limit::Tokens, false) => "the prompt has more tokens than this key may send in a minute",
            (Limit::Bytes, false) => "the body has more bytes than this key may send in a minute",
        }
    }

    /// `Retry-After` in whole seconds, rounded up, at least 1; none where trying again is of no use.
    pub(crate) fn retry_after_seconds(self) -> Option<u64> {
        let after = self.after?;
        Some((after.as_secs() + u64::from(after.subsec_nanos() > 0)).max(1))
    }
}

/// The rate of a quota: the previous one where it is the same.
fn rate(quota: Option<Quota>, previous: Option<&Arc<Rate>>) -> Option<Arc<Rate>> {
    let quota = quota?;
    let kept = previous.filter(|rate| rate.quota() == quota).cloned();
    Some(kept.unwrap_or_else(|| Arc::new(Rate::new(quota))))
}

fn take(rate: Option<&Rate>, amount: Option<NonZeroU32>, now: Micros, limit: Limit) -> Result<(), Refused> {
    let (Some(rate), Some(amount)) = (rate, amount) else { return Ok(()) };
    rate.take(amount, now).map_err(|short| match short {
        Short::For(time) => Refused { limit, after: Some(time) },
        Short::Forever => Refused { limit, after: None },
    })
}

fn amount(bytes: usize) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// A time as OpenAI writes it: `0s`, `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`. Milliseconds, rounded up.
fn span(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    let (seconds, rest) = (millis / 1_000, millis % 1_000);
    if seconds == 0 && rest > 0 {
        return format!("{rest}ms");
    }
    let fraction = if rest > 0 { format!(".{rest:03}") } else { String::new() };
    let last = format!("{}{}s", seconds % 60, fraction.trim_end_matches('0'));
    match (seconds / 3_600, seconds / 60 % 60) {
        (0, 0) => last,
        (0, minutes) => format!("{minutes}m{last}"),
        (hours, minutes) => format!("{hours}h{minutes}m{last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_000_000);

    fn limits(requests: u32, burst: u32, concurrent: u32, tokens: u32, bytes: u32) -> TenantLimits {
        TenantLimits {
            requests_per_second: NonZeroU32::new(requests),
            burst: NonZeroU32::new(burst),
            concurrent_requests: NonZeroU32::new(concurrent),
            prompt_tokens_per_minute: NonZeroU32::new(tokens),
            prompt_bytes_per_minute: NonZeroU32::new(bytes),
        }
    }

    fn shown(limits: &Limits, now: Micros) -> Vec<String> {
        let line = |(name, value): (HeaderName, HeaderValue)| {
            format!("{}: {}", name.as_str().trim_start_matches("x-ratelimit-"), value.to_str().expect("text"))
        };
        limits.headers(now).into_iter().map(line).collect()
    }

    #[test]
    fn each_limit_refuses_by_its_name() {
        let long = Duration::from_secs(6);
        for (shows, limits, requests, prompt, wanted) in [
            ("no limit", limits(0, 0, 0, 0, 0), 1_000, (usize::MAX, u32::MAX), None),
            ("requests", limits(2, 0, 0, 0, 0), 3, (9, 9), Some((Limit::Requests, Some(long / 12)))),
            ("a burst of its own", limits(2, 5, 0, 0, 0), 5, (9, 9), None),
            (
                "one more than the burst",
                limits(2, 5, 0, 0, 0),
                6,
                (9, 9),
                Some((Limit::Requests, Some(long / 12))),
            ),
            ("at once", limits(0, 0, 2, 0, 0), 3, (9, 9), Some((Limit::Concurrent, Some(RETRY_UNKNOWN)))),
            ("tokens", limits(0, 0, 0, 100, 0), 2, (9, 55), Some((Limit::Tokens, Some(long)))),
            ("bytes", limits(0, 0, 0, 0, 100), 2, (55, 9), Some((Limit::Bytes, Some(long)))),
            ("tokens that never fit", limits(0, 0, 0, 100, 0), 1, (9, 101), Some((Limit::Tokens, None))),
            ("bytes that never fit", limits(0, 0, 0, 0, 100), 1, (101, 9), Some((Limit::Bytes, None))),
            ("exactly a minute's", limits(0, 0, 0, 100, 100), 1, (100, 100), None),
            ("nothing is always allowed", limits(0, 0, 0, 1, 1), 100, (0, 0), None),
        ] {
            let limits = Limits::after(None, &limits);
            let mut held = Vec::new();
            let mut ask = || {
                held.push(limits.admit(NOW)?);
                limits.admit_prompt(prompt.0, prompt.1, NOW)
            };
            let refused = (0..requests).find_map(|_| ask().err());
            assert_eq!(refused.map(|refused| (refused.limit, refused.after)), wanted, "{shows}");
        }
    }

    #[test]
    fn a_refusal_says_whether_to_come_again() {
        for (shows, after, status, seconds) in [
            ("at once", Some(Duration::ZERO), 429, Some(1)),
            ("soon", Some(Duration::from_millis(1)), 429, Some(1)),
            ("rounded up", Some(Duration::from_millis(1_001)), 429, Some(2)),
            ("whole seconds stay", Some(Duration::from_secs(7)), 429, Some(7)),
            ("never", None, 413, None),
        ] {
            let refused = Refused { limit: Limit::Tokens, after };
            assert_eq!((refused.status(), refused.retry_after_seconds()), (status, seconds), "{shows}");
        }
        let never = Refused { limit: Limit::Tokens, after: None };
        assert_ne!(never.message(), Refused { after: Some(Duration::ZERO), ..never }.message());
    }

    #[test]
    fn answers_tell_what_is_left() {
        let limits = Limits::after(None, &limits(2, 10, 0, 600, 9_999));
        let full = ["limit-requests: 10", "remaining-requests: 10", "reset-requests: 0s"];
        assert_eq!(shown(&limits, NOW)[..3], full);
        let _held = limits.admit(NOW).expect("the first");
        limits.admit_prompt(10, 100, NOW).expect("a small prompt");
        let wanted = [
            "limit-requests: 10",
            "remaining-requests: 9",
            "reset-requests: 500ms",
            "limit-tokens: 600",
            "remaining-tokens: 500",
            "reset-tokens: 10s",
        ];
        assert_eq!(shown(&limits, NOW), wanted);
        assert_eq!(shown(&Limits::after(None, &self::limits(0, 0, 3, 0, 9)), NOW), [""; 0]);
    }

    #[test]
    fn times_are_written_as_openai_does() {
        for (millis, wanted) in [
            (0, "0s"),
            (1, "1ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (8_640, "8.64s"),
            (1_005, "1.005s"),
            (60_000, "1m0s"),
            (360_000, "6m0s"),
            (3_600_000, "1h0m0s"),
            (3_661_500, "1h1m1.5s"),
            (30_000, "30s"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), wanted);
        }
        assert_eq!(span(Duration::from_nanos(1)), "1ms", "rounded up");
    }

    #[test]
    fn a_prompt_refused_for_its_bytes_costs_no_tokens() {
        let limits = Limits::after(None, &limits(0, 0, 0, 100, 100));
        assert_eq!(limits.admit_prompt(101, 80, NOW).map_err(|refused| refused.limit), Err(Limit::Bytes));
        assert_eq!(limits.admit_prompt(10, 100, NOW), Ok(()));
    }

    #[test]
    fn a_reload_keeps_what_is_in_flight_and_used_up() {
        let before = Limits::after(None, &limits(2, 0, 2, 100, 100));
        let held = before.admit(NOW).expect("the first");
        before.admit_prompt(100, 100, NOW).expect("all of it");
        for (shows, changed, tokens, bytes) in [
            ("nothing changed", limits(2, 0, 2, 100, 100), false, false),
            ("another limit changed", limits(9, 0, 1, 100, 200), false, true),
            ("its own changed", limits(2, 0, 2, 200, 100), true, false),
        ] {
            let after = Limits::after(Some(&before), &changed);
            assert_eq!(after.in_flight(), 1, "{shows}");
            assert_eq!(after.admit_prompt(0, 1, NOW).is_ok(), tokens, "{shows}");
            assert_eq!(after.admit_prompt(1, 0, NOW).is_ok(), bytes, "{shows}");
        }
        let fewer = Limits::after(Some(&before), &limits(0, 0, 1, 0, 0));
        assert_eq!(fewer.admit(NOW).map_err(|refused| refused.limit).err(), Some(Limit::Concurrent));
        drop(held);
        assert_eq!((before.in_flight(), fewer.in_flight()), (0, 0));
    }

    proptest::proptest! {
        /// However requests come, are refused and end: none is left in flight.
        #[test]
        fn nothing_is_left_in_flight(steps in proptest::collection::vec((0u8..3, 0u64..2_000_000, 0usize..200), 0..60)) {
            let limits = Limits::after(None, &limits(3, 4, 5, 100, 0));
            let (mut held, mut now) = (Vec::new(), 0);
            for (step, later, size) in steps {
                now += later;
                match step {
                    0 => held.extend(limits.admit(Micros(now))),
                    1 => held.truncate(held.len().saturating_sub(1)),
                    _ => drop(limits.admit_prompt(size, size as u32, Micros(now))),
                }
                proptest::prop_assert_eq!(limits.in_flight() as usize, held.len());
                proptest::prop_assert!(held.len() <= 5);
            }
            drop(held);
            proptest::prop_assert_eq!(limits.in_flight(), 0);
        }
    }
}
