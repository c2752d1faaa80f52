//! What a pool does on a bad day: further tries, endpoints that are left out, limits, and who waits.

use std::num::NonZeroU32;

use crate::check::headers;
use crate::check::{TIMEOUT, first_written};
use crate::defaults::{self, ATTEMPTS_LIMIT, DURATION_MAX};
use crate::faults::Reason;
use crate::quantity::show_duration;
use crate::read::form::{Durations, Integers, OrWord, Switch, Text};
use crate::read::{Key, Section, live};
use crate::{Health, PoolLimits, Queue, Retry};

pub(super) const RETRY: Key =
    live("retry", "What happens when an endpoint fails before the first byte of an answer");
const ATTEMPTS: Key = live("attempts_max", "Endpoints that one request is tried at");
const BUDGET: Key = live(
    "budget_percent",
    "Of requests that an endpoint had, those that are sent once more, in hundredths of all; some are always. Connects that fail do not count",
);
const UNANSWERED: Key = live(
    "unanswered",
    "Whether a request that an endpoint had, and did not answer, is sent to another: it may be generated twice",
);

pub(super) fn retry(section: &mut Section<'_, '_>) -> Retry {
    let attempts = Integers { min: 1, max: ATTEMPTS_LIMIT };
    let attempts = section.value(ATTEMPTS, &attempts, u64::from(defaults::ATTEMPTS_MAX.get())).value;
    let percent = Integers { min: 0, max: 100 };
    Retry {
        attempts_max: positive(attempts).unwrap_or(defaults::ATTEMPTS_MAX),
        budget_percent: narrow(section.value(BUDGET, &percent, defaults::RETRY_BUDGET_PERCENT.into()).value),
        unanswered: section.value(UNANSWERED, &Switch, false).value,
    }
}

pub(super) const HEALTH: Key =
    live("health", "When an endpoint is left out, and how it comes back; when all are, all are tried");
const FAILURES: Key = live(
    "failures",
    "Failures in a row (500, 502, 504, broken answers, time-outs) that leave it out. Of one prompt, one failure counts",
);
const STALL: Key =
    live("stall", "Time without a first token, while streams wait for one, that leaves it out");
const COOLDOWN: Key =
    live("cooldown", "Time until one request tries it; it doubles with each one that fails");
const COOLDOWN_MAX: Key = live("cooldown_max", "The longest that comes to; at least `cooldown`");
const PATH: Key = live("path", "A path such as `/health` that answers 200 while all is well; twice another answer leaves it out until the next 200")
    .default_is("none: engines are not asked");
const INTERVAL: Key = live("interval", "Time from one look at `path` to the next");
const WANTED_PATH: &str = "a path such as /health";
const PATHS: Text<String> =
    Text { wanted: WANTED_PATH, pattern: "^/[!-~]*$", read: path, show: String::clone };

pub(super) fn health(section: &mut Section<'_, '_>) -> Health {
    let failures = Integers { min: 1, max: defaults::FAILURES_LIMIT };
    let failures = section.value(FAILURES, &failures, u64::from(defaults::FAILURES.get())).value;
    let stalls = Durations { min: defaults::STALL_MIN, max: DURATION_MAX };
    let stall = section.value(STALL, &OrWord { form: stalls, word: "off" }, Some(defaults::STALL)).value;
    let cooldown = section.value(COOLDOWN, &TIMEOUT, defaults::COOLDOWN);
    let longest = section.value(COOLDOWN_MAX, &TIMEOUT, cooldown.value.max(defaults::COOLDOWN_MAX));
    if let Some(place) = first_written(&[&longest, &cooldown])
        && longest.value < cooldown.value
    {
        let wanted = format!("at least {}, {}", show_duration(cooldown.value), cooldown.path);
        section.reader.fault(place, &longest.path, Reason::thing(show_duration(longest.value), wanted));
    }
    let path = section.optional(PATH, &PATHS).map(|path| path.value);
    let intervals = Durations { min: defaults::HEALTH_INTERVAL_MIN, max: DURATION_MAX };
    let interval = section.value(INTERVAL, &intervals, defaults::HEALTH_INTERVAL);
    Health {
        failures: positive(failures).unwrap_or(defaults::FAILURES),
        stall,
        cooldown: cooldown.value,
        cooldown_max: longest.value,
        path,
        interval: interval.value,
    }
}

/// As it stands in a request line.
fn path(text: &str) -> Result<String, Reason> {
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    let holds = text.starts_with('/') && printable && text.len() <= defaults::PATH_BYTES_MAX;
    if holds { Ok(text.to_owned()) } else { Err(Reason::text(text, WANTED_PATH)) }
}

pub(super) const LIMITS: Key =
    live("limits", "Requests of this router that may be in flight; beyond, they wait, or are answered 429");
const REQUESTS: Key = live("requests_max", "In the whole pool").default_is("unlimited");
const ENDPOINT_REQUESTS: Key = live("endpoint_requests_max", "At each endpoint").default_is("unlimited");

pub(super) fn limits(section: &mut Section<'_, '_>) -> PoolLimits {
    let counts = Integers { min: 1, max: u32::MAX.into() };
    let mut limit = |key| section.optional(key, &counts).and_then(|limit| positive(limit.value));
    PoolLimits { requests_max: limit(REQUESTS), endpoint_requests_max: limit(ENDPOINT_REQUESTS) }
}

pub(super) const QUEUE: Key =
    live("queue", "Who waits when `limits` are reached, the highest priority first");
const QUEUE_REQUESTS: Key = live(
    "requests_max",
    "Requests that may wait; with 0 nobody does. When it is full, the last of a lower priority gives way",
);
const QUEUE_TIMEOUT: Key = live("timeout", "How long one may wait; then it is answered 429");
const PRIORITY_HEADER: Key = live(
    "priority_header",
    "A header of clients with their priority, an integer from 0 to 100, in place of the tenant's; it passes",
)
.default_is("none: the tenant's `priority` holds");

pub(super) fn queue(section: &mut Section<'_, '_>) -> Queue {
    let counts = Integers { min: 0, max: defaults::QUEUE_LIMIT };
    Queue {
        requests_max: narrow(section.value(QUEUE_REQUESTS, &counts, 0).value),
        timeout: section.value(QUEUE_TIMEOUT, &TIMEOUT, defaults::QUEUE_TIMEOUT).value,
        priority_header: section.optional(PRIORITY_HEADER, &headers::NAME).map(|name| name.value),
    }
}

/// An integer that its bounds keep small.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn positive(number: u64) -> Option<NonZeroU32> {
    NonZeroU32::new(narrow(number))
}
