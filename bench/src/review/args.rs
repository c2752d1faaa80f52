//! The flags of `review`.

use std::path::PathBuf;
use std::time::Duration;

use picker::hash::BlockSize;

use super::source::Source;

/// How a fleet of vLLM replicas uses its prefix caches, what it could do, and what to change first
///
/// Example: prefixroute review http://127.0.0.1:8001 http://127.0.0.1:8002 --trace trace.jsonl
#[derive(Clone, Debug, clap::Args)]
pub struct ReviewArgs {
    /// Replicas: base addresses or addresses of their metrics, NAME=URL to name one, or files with a saved /metrics
    #[arg(value_name = "URL|FILE", required = true)]
    pub sources: Vec<Source>,
    /// What they are asked, in our form or in Mooncake's; lines that cannot be read are left out and counted
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Time between two readings of the addresses; 0: read once
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub interval: Duration,
    /// Tokens in a block of the trace [default: of bodies the replicas'; of hash_ids the power of two that explains most counts]
    #[arg(long, value_name = "N", value_parser = block_size)]
    pub block_size: Option<BlockSize>,
    /// Uncached prompt tokens that a replica computes in a second [default: as the replicas' counters tell, else 12000]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub prefill_tps: Option<f64>,
    /// Divide all times of the trace by X
    #[arg(long, value_name = "X", default_value = "1", value_parser = positive)]
    pub speed: f64,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `10s`, `500ms`, `2m`, or seconds. An hour at most: nobody waits longer.
fn duration(text: &str) -> Result<Duration, String> {
    let wanted = || format!("found {text:?}, wanted 10s, 500ms, 2m or the like, an hour at most");
    let end = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit {
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        _ => return Err(wanted()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wanted())? * unit;
    if seconds > 3600.0 { Err(wanted()) } else { Duration::try_from_secs_f64(seconds).map_err(|_| wanted()) }
}

fn block_size(text: &str) -> Result<BlockSize, String> {
    let size: i64 = text.parse().map_err(|_| format!("found {text:?}, wanted a number of tokens"))?;
    BlockSize::new(size).map_err(|error| error.to_string())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| format!("found {text:?}, wanted a number above 0"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Command {
        #[command(flatten)]
        args: ReviewArgs,
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in
            [("10s", 10_000), ("500ms", 500), ("2m", 120_000), ("1.5", 1500), ("0", 0), ("60m", 3_600_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1s", "2h", "NaN", "61m", "inf"] {
            assert!(duration(text).unwrap_err().starts_with("found "), "{text}");
        }
    }

    #[test]
    fn flags_without_meaning_are_refused() {
        for flags in [
            "",
            "a.txt --markdown --json",
            "a.txt --speed 0",
            "a.txt --prefill-tps inf",
            "a.txt --block-size 0",
            "a.txt --interval soon",
        ] {
            let words = ["review"].into_iter().chain(flags.split_whitespace());
            assert!(Command::try_parse_from(words).is_err(), "{flags}");
        }
        let words = "review a.txt b=http://h:1 --speed 2 --block-size 32 --interval 1s".split(' ');
        let args = Command::try_parse_from(words).unwrap().args;
        assert_eq!((args.sources.len(), args.speed, args.block_size.unwrap().tokens()), (2, 2.0, 32));
    }
}
