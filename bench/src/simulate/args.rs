//! The flags of `simulate`.

use std::path::PathBuf;

use clap::builder::{ArgPredicate, PossibleValuesParser, TypedValueParser};
use picker::belief::ENDPOINTS_MAX;
use picker::hash::{BlockSize, BlockSizeError};
use picker::policy::Policy;

use super::builtin::Demo3Args;
use super::{Changes, Columns, Pacing, SimulateError, SimulateOptions, Split};
use crate::engine::{EvictionOrder, Link, ReplicaOptions, Seconds, Timing};
use crate::trace::lines::BadLines;

/// What each policy makes of a trace: hit rate, first-token times, balance
///
/// Reads what the command trace writes, Mooncake's form (timestamp, input_length, output_length, hash_ids), and the router's
/// decision log, of which it also plays where each request went.
///
/// Example: prefixroute simulate trace.jsonl --policy prefix --show-decisions 5
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// What is played, and on what.
    #[command(flatten)]
    pub play: PlayArgs,
    /// Play one policy only
    #[arg(long, value_name = "NAME", value_parser = policy_parser())]
    pub policy: Option<Policy>,
    /// Also play the best assignment that a search of N plays, or of 300, finds with all arrivals known, from the best of the plays
    /// beside it on, and tell each policy's regret
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "300",
        help_heading = "Figures"
    )]
    pub oracle: Option<usize>,
    /// Requests over which the worst imbalance is looked for
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Figures")]
    pub window: usize,
    /// Print the first N decisions of each policy, with their reasons
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Figures")]
    pub show_decisions: usize,
    /// Print all columns, as for traces in Mooncake's form
    #[arg(long, help_heading = "Figures")]
    pub full: bool,
    /// Print JSON in place of a table
    #[arg(long, help_heading = "Figures")]
    pub json: bool,
}

/// What is played, and on what: of `simulate` and `tune`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlayArgs {
    /// A trace, in our form or in Mooncake's
    #[arg(value_name = "TRACE", required_unless_present = "demo3", conflicts_with = "demo3")]
    pub trace: Option<PathBuf>,
    /// Leave out lines that cannot be read, and count them
    #[arg(long)]
    pub skip_bad: bool,
    /// The workload that needs no file.
    #[command(flatten)]
    pub demo3: Demo3Args,

    /// Replicas
    #[arg(
        long,
        value_name = "N",
        default_value_if("demo3", ArgPredicate::IsPresent, "8"),
        default_value_t = 3,
        help_heading = "Fleet"
    )]
    pub replicas: usize,
    /// Blocks that each replica's cache holds
    #[arg(
        long,
        value_name = "N",
        default_value_if("demo3", ArgPredicate::IsPresent, "4000"),
        default_value_t = 64,
        help_heading = "Fleet"
    )]
    pub cache_blocks: usize,
    /// Tokens that each replica's cache holds, in place of --cache-blocks
    #[arg(long, value_name = "N", conflicts_with = "cache_blocks", help_heading = "Fleet")]
    pub cache_tokens: Option<usize>,
    /// Blocks that the router can believe of each replica [default: as many as its cache holds; of a trace of bodies 31250,
    /// as the published tables]
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    pub belief_blocks: Option<usize>,
    /// The router knows what every cache holds, as engines' KV events would tell it, in place of what it believes
    #[arg(long)]
    pub exact: bool,
    /// Tokens in a block [default: 16; of hash_ids the smallest power of two that explains their counts]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Fleet")]
    pub block_size: Option<i64>,
    /// Requests whose prompts a replica computes at once
    #[arg(
        long,
        value_name = "N",
        default_value_if("demo3", ArgPredicate::IsPresent, "1"),
        default_value_t = 8,
        help_heading = "Fleet"
    )]
    pub slots: usize,
    /// What every prefill costs, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 5.0,
        allow_negative_numbers = true,
        help_heading = "Fleet"
    )]
    pub prefill_overhead: f64,
    /// Uncached prompt tokens computed per second
    #[arg(
        long,
        value_name = "N",
        default_value_if("demo3", ArgPredicate::IsPresent, "12000"),
        default_value_t = 1000.0,
        allow_negative_numbers = true,
        help_heading = "Fleet"
    )]
    pub prefill_tps: f64,
    /// Tokens of an answer that come per second after its first; inf: an answer ends with its first token
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50.0,
        allow_negative_numbers = true,
        help_heading = "Fleet"
    )]
    pub decode_tps: f64,
    /// Which end of a prefix a replica evicts first; vLLM and fake-server: tail-first
    #[arg(long, value_enum, default_value_if("demo3", ArgPredicate::IsPresent, "tail-first"), default_value_t = EvictionOrder::HeadFirst, help_heading = "Fleet")]
    pub eviction: EvictionOrder,
    /// Seconds between two scrapes of a replica's figures; 0: always fresh
    #[arg(
        long,
        value_name = "S",
        default_value_t = 0.0,
        allow_negative_numbers = true,
        help_heading = "Fleet"
    )]
    pub metrics_age: f64,
    /// The first replica computes at F times the rate of the others
    #[arg(
        long,
        value_name = "F",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        help_heading = "Fleet"
    )]
    pub slow_replica: f64,
    /// Second at which one more replica joins, empty
    #[arg(long, value_name = "S", allow_negative_numbers = true, help_heading = "Fleet")]
    pub add_replica_at: Option<f64>,
    /// Second at which the last of the first replicas is lost; what it has in flight is sent to others
    #[arg(long, value_name = "S", allow_negative_numbers = true, help_heading = "Fleet")]
    pub lose_replica_at: Option<f64>,

    /// Replicas that only compute prompts
    #[arg(long, value_name = "N", requires = "decode_replicas", help_heading = "Prefill apart from decode")]
    pub prefill_replicas: Option<usize>,
    /// Replicas that answer, in place of --replicas
    #[arg(
        long,
        value_name = "N",
        requires = "prefill_replicas",
        conflicts_with = "replicas",
        help_heading = "Prefill apart from decode"
    )]
    pub decode_replicas: Option<usize>,
    /// Tokens not believed to be cached from which a prompt is computed apart; 0: none is
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0,
        requires = "prefill_replicas",
        help_heading = "Prefill apart from decode"
    )]
    pub threshold: usize,
    /// Gigabits per second of the link of each prefill replica
    #[arg(
        long,
        value_name = "G",
        default_value_t = 100.0,
        requires = "prefill_replicas",
        allow_negative_numbers = true,
        help_heading = "Prefill apart from decode"
    )]
    pub link_gbps: f64,
    /// Bytes that the KV cache of a token takes: of Llama 3.1 8B in 16 bit, unless it is said; `disagg` tells that of others
    #[arg(
        long,
        value_name = "B",
        default_value_t = 131_072.0,
        requires = "prefill_replicas",
        allow_negative_numbers = true,
        help_heading = "Prefill apart from decode"
    )]
    pub kv_bytes_per_token: f64,

    /// Divide all times of the trace by X
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        help_heading = "Load"
    )]
    pub speed: f64,
    /// Let N requests arrive at once, when the first of them does
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    pub burst: usize,
    /// Tokens of every answer [default: what the trace says]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub output_tokens: Option<u32>,
    /// Seed of ties and of the policy random
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Load")]
    pub seed: u64,

    /// Leave the first N requests out of all figures
    #[arg(
        long,
        value_name = "N",
        default_value_if("demo3", ArgPredicate::IsPresent, "5000"),
        default_value_t = 0,
        help_heading = "Figures"
    )]
    pub warm: usize,
}

fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::NAMES).try_map(|name| Policy::from_name(&name).ok_or("no such policy"))
}

impl SimulateArgs {
    /// The policies that were asked for.
    pub fn policies(&self) -> &[Policy] {
        self.policy.as_ref().map_or(&Policy::ALL[..], std::slice::from_ref)
    }

    /// The columns of the table; of Mooncake's form, or where prompts are computed apart, always all.
    pub(super) fn columns(&self, hashed: bool) -> Columns {
        let apart = self.play.prefill_replicas.is_some() && self.play.threshold > 0;
        if self.full || hashed || apart { Columns::Full } else { Columns::Published }
    }

    /// What is played on, with what is measured and shown. Errors: [`SimulateError::Option`], naming the flag.
    pub fn options(&self, block_size: BlockSize) -> Result<SimulateOptions, SimulateError> {
        let window = at_least_one("--window", self.window)?;
        let options = self.play.options(block_size)?;
        Ok(SimulateOptions { window, decisions_shown: self.show_decisions, ..options })
    }
}

impl PlayArgs {
    /// The block size that was asked for. Errors: [`SimulateError::Option`], naming the flag.
    pub fn block_size(&self) -> Result<Option<BlockSize>, SimulateError> {
        let wrong = |error: BlockSizeError| SimulateError::Option(format!("--block-size: {error}"));
        self.block_size.map(BlockSize::new).transpose().map_err(wrong)
    }

    /// What becomes of bad lines.
    pub(super) fn bad_lines(&self) -> BadLines {
        if self.skip_bad { BadLines::Skip } else { BadLines::Refuse }
    }

    /// Checks what clap cannot, for a trace in blocks of this size. Errors: [`SimulateError::Option`], naming the flag.
    pub fn options(&self, block_size: BlockSize) -> Result<SimulateOptions, SimulateError> {
        Ok(SimulateOptions {
            replicas: self.replicas()?,
            replica: self.replica(block_size)?,
            belief_blocks: self.belief_blocks,
            exact: self.exact,
            weights: None,
            seed: self.seed,
            metrics_age: Seconds(not_negative("--metrics-age", self.metrics_age)?),
            changes: self.changes()?,
            pacing: self.pacing()?,
            decode_tokens_per_second: positive("--decode-tps", self.decode_tps)?,
            output_tokens: self.output_tokens,
            split: self.split()?,
            warm: self.warm,
            ..SimulateOptions::default()
        })
    }

    /// Those that answer. A fleet of `--replicas` is checked when it is played, with what joins it.
    fn replicas(&self) -> Result<usize, SimulateError> {
        match self.decode_replicas {
            Some(count) if !(1..=ENDPOINTS_MAX).contains(&count) => {
                Err(wrong("--decode-replicas", count, &format!("1 to {ENDPOINTS_MAX}")))
            }
            count => Ok(count.unwrap_or(self.replicas)),
        }
    }

    fn replica(&self, block_size: BlockSize) -> Result<ReplicaOptions, SimulateError> {
        let overhead = not_negative("--prefill-overhead", self.prefill_overhead)?;
        let timing = Timing {
            prefill_overhead: Seconds::from_millis(overhead),
            prefill_tokens_per_second: positive("--prefill-tps", self.prefill_tps)?,
        };
        let in_blocks = |tokens: usize| tokens / block_size.tokens();
        let cache_blocks = self.cache_tokens.map_or(self.cache_blocks, in_blocks);
        let slots = at_least_one("--slots", self.slots)?;
        Ok(ReplicaOptions { cache_blocks, block_size, eviction: self.eviction, slots, timing })
    }

    fn changes(&self) -> Result<Changes, SimulateError> {
        let second = |flag, at: Option<f64>| at.map(|at| not_negative(flag, at).map(Seconds)).transpose();
        Ok(Changes {
            add_at: second("--add-replica-at", self.add_replica_at)?,
            lose_at: second("--lose-replica-at", self.lose_replica_at)?,
            first_rate: finite("--slow-replica", positive("--slow-replica", self.slow_replica)?)?,
        })
    }

    fn pacing(&self) -> Result<Pacing, SimulateError> {
        let speed = finite("--speed", positive("--speed", self.speed)?)?;
        Ok(Pacing { speed, burst: at_least_one("--burst", self.burst)? })
    }

    fn split(&self) -> Result<Option<Split>, SimulateError> {
        const BYTES: &str = "--kv-bytes-per-token";
        let Some(prefill_replicas) = self.prefill_replicas else {
            return Ok(None);
        };
        Ok(Some(Split {
            prefill_replicas: at_least_one("--prefill-replicas", prefill_replicas)?,
            threshold_tokens: self.threshold,
            link: Link::of(positive("--link-gbps", self.link_gbps)?),
            kv_bytes_per_token: finite(BYTES, positive(BYTES, self.kv_bytes_per_token)?)?,
        }))
    }
}

fn wrong(flag: &str, found: impl std::fmt::Display, wanted: &str) -> SimulateError {
    SimulateError::Option(format!("{flag}: found {found}, wanted {wanted}"))
}

fn not_negative(flag: &str, value: f64) -> Result<f64, SimulateError> {
    if value >= 0.0 && value.is_finite() { Ok(value) } else { Err(wrong(flag, value, "0 or more")) }
}

/// Infinite is allowed.
fn positive(flag: &str, value: f64) -> Result<f64, SimulateError> {
    if value > 0.0 { Ok(value) } else { Err(wrong(flag, value, "more than 0")) }
}

fn finite(flag: &str, value: f64) -> Result<f64, SimulateError> {
    if value.is_finite() { Ok(value) } else { Err(wrong(flag, value, "a number")) }
}

fn at_least_one(flag: &str, value: usize) -> Result<usize, SimulateError> {
    if value > 0 { Ok(value) } else { Err(wrong(flag, value, "at least 1")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: SimulateArgs,
    }

    fn args(flags: &[&str]) -> Result<SimulateArgs, String> {
        let command = Command::try_parse_from([&["simulate", "trace.jsonl"], flags].concat());
        Ok(command.map_err(|error| error.to_string())?.args)
    }

    fn options(flags: &[&str]) -> Result<SimulateOptions, String> {
        let args = args(flags)?;
        let size = args.play.block_size().map_err(|error| error.to_string())?;
        args.options(size.unwrap_or(BlockSize::ENGINE)).map_err(|error| error.to_string())
    }

    /// Behaviour 45.
    #[test]
    fn no_flags_are_the_published_fleet() {
        assert_eq!(options(&[]), Ok(SimulateOptions::default()));
    }

    #[test]
    fn every_flag_reaches_the_fleet() {
        let flags = "--decode-replicas 5 --prefill-replicas 2 --threshold 300 --link-gbps 25 --kv-bytes-per-token 70272 --cache-tokens 30 \
                     --belief-blocks 9 --exact --block-size 4 --slots 2 --prefill-overhead 1 --prefill-tps 50 --decode-tps 20 \
                     --eviction tail-first --seed 3 --show-decisions 6 --metrics-age 2 --slow-replica 0.5 \
                     --add-replica-at 8 --lose-replica-at 9 --speed 1.5 --burst 16 --output-tokens 70 --warm 11 --window 12";
        let timing = Timing { prefill_overhead: Seconds(0.001), prefill_tokens_per_second: 50.0 };
        let replica = ReplicaOptions {
            cache_blocks: 7,
            block_size: BlockSize::new(4).unwrap(),
            eviction: EvictionOrder::TailFirst,
            slots: 2,
            timing,
        };
        let want = SimulateOptions {
            replicas: 5,
            replica,
            belief_blocks: Some(9),
            exact: true,
            weights: None,
            seed: 3,
            decisions_shown: 6,
            metrics_age: Seconds(2.0),
            changes: Changes { add_at: Some(Seconds(8.0)), lose_at: Some(Seconds(9.0)), first_rate: 0.5 },
            pacing: Pacing { speed: 1.5, burst: 16 },
            decode_tokens_per_second: 20.0,
            output_tokens: Some(70),
            split: Some(Split {
                prefill_replicas: 2,
                threshold_tokens: 300,
                link: Link::of(25.0),
                kv_bytes_per_token: 70_272.0,
            }),
            warm: 11,
            window: 12,
        };
        assert_eq!(options(&flags.split_whitespace().collect::<Vec<_>>()), Ok(want));
    }

    #[test]
    fn flags_without_meaning_are_refused() {
        for (flags, reason) in [
            ("--block-size 0", "--block-size: block size must be positive, got 0"),
            ("--slots 0", "--slots: found 0, wanted at least 1"),
            ("--prefill-tps -1", "--prefill-tps: found -1, wanted more than 0"),
            ("--prefill-tps NaN", "--prefill-tps: found NaN, wanted more than 0"),
            ("--prefill-overhead inf", "--prefill-overhead: found inf, wanted 0 or more"),
            ("--metrics-age -2", "--metrics-age: found -2, wanted 0 or more"),
            ("--decode-tps 0", "--decode-tps: found 0, wanted more than 0"),
            ("--slow-replica 0", "--slow-replica: found 0, wanted more than 0"),
            ("--speed inf", "--speed: found inf, wanted a number"),
            ("--burst 0", "--burst: found 0, wanted at least 1"),
            ("--window 0", "--window: found 0, wanted at least 1"),
            ("--add-replica-at NaN", "--add-replica-at: found NaN, wanted 0 or more"),
            ("--prefill-replicas 0 --decode-replicas 2", "--prefill-replicas: found 0, wanted at least 1"),
            ("--prefill-replicas 1 --decode-replicas 0", "--decode-replicas: found 0, wanted 1 to 1024"),
            (
                "--prefill-replicas 1 --decode-replicas 2 --link-gbps 0",
                "--link-gbps: found 0, wanted more than 0",
            ),
            (
                "--prefill-replicas 1 --decode-replicas 2 --kv-bytes-per-token -1",
                "--kv-bytes-per-token: found -1, wanted more than 0",
            ),
        ] {
            assert_eq!(options(&flags.split(' ').collect::<Vec<_>>()), Err(reason.to_owned()));
        }
        for flags in [
            "--prefill-replicas 1",
            "--decode-replicas 1",
            "--cache-blocks 1 --cache-tokens 2",
            "--threshold 300",
            "--link-gbps 25",
            "--kv-bytes-per-token 70272",
            "--oracle 20",
        ] {
            assert!(args(&flags.split(' ').collect::<Vec<_>>()).is_err(), "{flags}");
        }
        let unknown = args(&["--policy", "best"]).unwrap_err();
        assert!(Policy::NAMES.iter().all(|name| unknown.contains(name)), "{unknown}");
    }

    #[test]
    fn the_oracle_takes_no_trace_for_its_plays() {
        for (words, want) in [
            ("simulate --oracle t.jsonl", Some(300)),
            ("simulate t.jsonl --oracle", Some(300)),
            ("simulate --oracle=20 t.jsonl", Some(20)),
            ("simulate t.jsonl", None),
        ] {
            let SimulateArgs { oracle, play, .. } = Command::try_parse_from(words.split(' ')).unwrap().args;
            assert_eq!((oracle, play.trace), (want, Some(PathBuf::from("t.jsonl"))), "{words}");
        }
    }

    #[test]
    fn the_built_in_workload_has_its_lessons_fleet() {
        let args = |flags: &str| {
            let words = ["simulate", "--demo3"].into_iter().chain(flags.split_whitespace());
            Command::try_parse_from(words).unwrap().args.options(BlockSize::new(100).unwrap()).unwrap()
        };
        let default = args("");
        let replica = default.replica;
        assert_eq!((default.replicas, replica.cache_blocks, replica.slots, default.warm), (8, 4000, 1, 5000));
        assert_eq!(
            (replica.timing.prefill_tokens_per_second, replica.eviction),
            (12_000.0, EvictionOrder::TailFirst)
        );
        let other = args("--replicas 3 --cache-tokens 50000 --slots 2 --warm 0");
        assert_eq!(
            (other.replicas, other.replica.cache_blocks, other.replica.slots, other.warm),
            (3, 500, 2, 0)
        );
        assert!(Command::try_parse_from(["simulate"]).is_err(), "a trace or --demo3");
        assert!(Command::try_parse_from(["simulate", "--demo3", "t.jsonl"]).is_err(), "not both");
    }

    #[test]
    fn the_table_of_bodies_is_the_published_one_unless_asked() {
        for (flags, hashed, want) in [
            (vec![], false, Columns::Published),
            (vec!["--full"], false, Columns::Full),
            (vec!["--prefill-replicas=1", "--decode-replicas=1"], false, Columns::Published),
            (vec!["--prefill-replicas=1", "--decode-replicas=1", "--threshold=9"], false, Columns::Full),
            (vec![], true, Columns::Full),
        ] {
            assert_eq!(args(&flags).unwrap().columns(hashed), want);
        }
    }
}
