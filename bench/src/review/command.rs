//! The command `review`: reads, judges, prints.

use std::io::{self, Write};

use indicatif::ProgressBar;
use picker::hash::BlockSize;

use super::source::{self, Place};
use super::traffic::{self, Stage, Wanted};
use super::{Review, ReviewArgs, document, json, sections};
use crate::replay;

/// Uncached prompt tokens a second where nobody tells: that of `bench/README.md`'s tables.
const TOKENS_PER_SECOND: f64 = 12_000.0;

/// Why there is no review, or none worth the name.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The HTTP client.
    #[error("cannot make an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// No source could be read; the review, which says why, is printed all the same.
    #[error("review: found no page that can be read among {0}, wanted one at least")]
    NothingRead(usize),
    /// The result could not be written.
    #[error("review: {0}")]
    Io(#[from] io::Error),
}

/// Reads all there is, and writes text, Markdown or JSON to `out`.
pub async fn run(args: ReviewArgs, out: &mut dyn Write) -> Result<(), ReviewError> {
    let review = review(&args).await?;
    let (title, parts) = (sections::title(&review), sections::all(&review));
    let text = match (args.json, args.markdown) {
        (true, _) => json::text(&review),
        (_, true) => document::markdown(&title, &parts),
        (..) => document::text(&title, &parts),
    };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    if review.replicas.is_empty() { Err(ReviewError::NothingRead(review.asked)) } else { Ok(()) }
}

/// The review itself. Errors: the HTTP client; all else becomes a line among its faults.
pub async fn review(args: &ReviewArgs) -> Result<Review, ReviewError> {
    let bar = waiting(args);
    let gathered = source::gather(&args.sources, args.interval, &replay::client()?).await;
    bar.finish_and_clear();
    let mut review = Review::new(args.sources.len(), gathered);
    if let Some(path) = &args.trace {
        let bar = ProgressBar::new_spinner().with_message("playing the trace");
        let (traffic, faults) = traffic::look_at(path, &wanted(args, &review), &|_| bar.tick());
        bar.finish_and_clear();
        review.traffic = traffic;
        review.faults.extend(faults);
    }
    Ok(review)
}

/// On a terminal's stderr: the interval is a wait.
fn waiting(args: &ReviewArgs) -> ProgressBar {
    let live = args.sources.iter().any(|source| matches!(source.place, Place::Url(_)));
    if !live || args.interval.is_zero() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(format!("reading again in {:?}", args.interval));
    bar.tick();
    bar
}

/// The trace is cut into the replicas' own blocks and played on caches of their size.
fn wanted(args: &ReviewArgs, review: &Review) -> Wanted {
    let told = review.replicas.iter().find_map(|replica| replica.snapshot.capacity);
    let told = told.and_then(|capacity| BlockSize::new(capacity.block_size as i64).ok());
    let (tokens_per_second, paced) = pace(args, review);
    let stage = |(caches, tokens): (usize, f64)| Stage {
        caches,
        cache_tokens: tokens / caches as f64,
        tokens_per_second,
        paced,
        speed: args.speed,
    };
    Wanted {
        body_block: args.block_size.or(told).unwrap_or(BlockSize::ENGINE),
        hashed_block: args.block_size,
        stage: review.caches().map(stage),
    }
}

fn pace(args: &ReviewArgs, review: &Review) -> (f64, &'static str) {
    match (args.prefill_tps, review.pace()) {
        (Some(given), _) => (given, "as --prefill-tps says"),
        (_, Some(measured)) => (measured, "as measured: computed tokens over seconds of prefill"),
        _ => (TOKENS_PER_SECOND, "assumed: no counter tells it, --prefill-tps would"),
    }
}
