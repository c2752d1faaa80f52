//! What a pool remembers, how it reads load, and how long its engines may take.

use picker::hash::BlockSize;

use crate::check::scoring::Scheduled;
use crate::check::{SIZE, TIMEOUT, first_written};
use crate::defaults::{self, CAPACITY_BLOCKS_MAX, DURATION_MAX};
use crate::faults::Reason;
use crate::quantity::show_duration;
use crate::read::form::{Choice, Durations, Integers};
use crate::read::{Key, Placed, Section, live};
use crate::scheduler::Scheduler;
use crate::{Index, Load, Timeouts, Tokenizer};

pub(super) const INDEX: Key = live("index", "What the router remembers of the engines' caches");
const TOKENIZER: Key = live("tokenizer", "How a prompt is cut into tokens: 4 bytes each, or words");
const BLOCK: Key = live("block_tokens", "Tokens in a block").default_is("64; with `words` 16");
const CAPACITY: Key =
    live("capacity_blocks", "Blocks remembered for each endpoint until its engine tells its own cache size");
const TOKENIZERS: Choice<Tokenizer> =
    Choice { names: &Tokenizer::NAMES, from_name: Tokenizer::from_name, name: |tokenizer| tokenizer.name() };

pub(super) fn index(section: &mut Section<'_, '_>, scheduled: Option<&Scheduled>) -> Index {
    let tokenizer = section.value(TOKENIZER, &TOKENIZERS, defaults::TOKENIZER).value;
    let block = match tokenizer {
        Tokenizer::Bytes => defaults::BLOCK_OF_BYTES,
        Tokenizer::Words => defaults::BLOCK_OF_WORDS,
    };
    let said = |says: fn(&Scheduler) -> Option<usize>| {
        scheduled.and_then(|scheduled| Some((says(&scheduled.says)?, scheduled.file.as_str())))
    };
    let said_block = said(|says| says.block.map(BlockSize::tokens));
    let tokens = count(section, BLOCK, defaults::BLOCK_TOKENS_MAX as usize, block.tokens(), said_block);
    let said_capacity = said(|says| says.capacity_blocks);
    let capacity = count(section, CAPACITY, CAPACITY_BLOCKS_MAX, defaults::CAPACITY_BLOCKS, said_capacity);
    Index {
        tokenizer,
        block: i64::try_from(tokens).ok().and_then(|tokens| BlockSize::new(tokens).ok()).unwrap_or(block),
        capacity_blocks: usize::try_from(capacity).unwrap_or(CAPACITY_BLOCKS_MAX),
    }
}

/// A count from 1, whose default a further file may say.
fn count(
    section: &mut Section<'_, '_>,
    key: Key,
    max: usize,
    default: usize,
    said: Option<(usize, &str)>,
) -> u64 {
    let default = said.map_or(default, |(said, _)| said);
    let count = section.value(key, &Integers { min: 1, max: wide(max) }, wide(default));
    if let Some((_, file)) = said {
        section.reader.says(&count, file);
    }
    count.value
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

pub(super) const LOAD: Key = live("load", "How the endpoints' load is read from their `/metrics`");
const INTERVAL: Key = live("scrape_interval", "Time from one reading to the next");
const TIMEOUT_KEY: Key = live("scrape_timeout", "A reading that takes longer has failed");
const STALE: Key =
    live("stale_after", "An older figure is unknown, not zero; at least twice `scrape_interval`");
const PAGE: Key = live("page_bytes_max", "A longer page is a failed reading");

pub(super) fn load(section: &mut Section<'_, '_>) -> Load {
    let intervals = Durations { min: defaults::SCRAPE_INTERVAL_MIN, max: DURATION_MAX };
    let interval = section.value(INTERVAL, &intervals, defaults::SCRAPE_INTERVAL);
    let scrape_timeout = section.value(TIMEOUT_KEY, &TIMEOUT, defaults::SCRAPE_TIMEOUT).value;
    let stale = section.value(STALE, &TIMEOUT, defaults::STALE_AFTER);
    let page_bytes_max = section.value(PAGE, &SIZE, defaults::PAGE_BYTES_MAX).value;
    check_stale_after(section, &interval, &stale);
    Load { scrape_interval: interval.value, scrape_timeout, stale_after: stale.value, page_bytes_max }
}

/// With less, one late page would make every figure unknown, for ever. Values at fault are defaults already.
fn check_stale_after(
    section: &mut Section<'_, '_>,
    interval: &Placed<std::time::Duration>,
    stale: &Placed<std::time::Duration>,
) {
    let min = interval.value.saturating_mul(defaults::STALE_AFTER_INTERVALS_MIN);
    if let Some(place) = first_written(&[stale, interval]).filter(|_| stale.value < min) {
        let wanted = format!("at least {}, twice {}", show_duration(min), interval.path);
        section.reader.fault(place, &stale.path, Reason::thing(show_duration(stale.value), wanted));
    }
}

pub(super) const TIMEOUTS: Key = live("timeouts", "How long each step of a request may take at an endpoint");
const CONNECT: Key =
    live("connect", "Time for a connection to stand, TLS included; then the next best endpoint is tried");
const FIRST_BYTE: Key =
    live("first_byte", "Time to the first byte of an answer; a queued prefill may be long");
const IDLE: Key = live("idle", "Time between two chunks of an answer");
const UPSTREAM_IDLE: Key =
    live("upstream_idle", "Life of an unused connection to an endpoint; uvicorn closes its side after 5 s");

pub(super) fn timeouts(section: &mut Section<'_, '_>) -> Timeouts {
    Timeouts {
        connect: section.value(CONNECT, &TIMEOUT, defaults::CONNECT_TIMEOUT).value,
        first_byte: section.value(FIRST_BYTE, &TIMEOUT, defaults::FIRST_BYTE_TIMEOUT).value,
        idle: section.value(IDLE, &TIMEOUT, defaults::IDLE_TIMEOUT).value,
        upstream_idle: section.value(UPSTREAM_IDLE, &TIMEOUT, defaults::UPSTREAM_IDLE_TIMEOUT).value,
    }
}
