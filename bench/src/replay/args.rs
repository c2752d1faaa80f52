//! The flags of `replay`, and what they come to.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use picker::hash::BlockSize;
use picker::policy::Policy;
use reqwest::Url;
use reqwest::header::HeaderValue;

use super::ReplayError;
use super::body::Edits;
use super::plan::Hashed;
use super::send::Pace;
use super::servers::Server;
use super::tally::Slo;
use crate::address::shown;
use crate::prompt::Api;

/// The longest time that a flag may say.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Sends a trace to real servers or routers and tells what came of it
///
/// Takes what `trace` writes (at, group, body) and Mooncake's form (timestamp, input_length, output_length, hash_ids), whose
/// blocks become words: equal ids, equal text, in every run. Each request goes to the path of its API.
///
/// Requests leave at their times in the trace, whether or not others were answered, and every time counts from when a request
/// was due: what waits behind a slow answer is not left out of the percentiles. How late the sender itself was is told beside
/// them. With --clients N a client sends when it has its answer, and times count from sending.
///
/// To compare, give several --url NAME=URL, or --compare with policies: a router of each in this process, before the servers
/// of --server. Each plays the whole trace alone, in turn; --rounds repeats that, every second round backwards, so that a
/// machine which slows down slows all. Each play has a cache_salt of its own: nobody hits what another has sent, and what is
/// left of others is the oldest in every cache. Requests in alternation would share caches and queues, and each policy would
/// be measured in the others' load.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayArgs {
    /// A trace, in our form or in Mooncake's
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Where requests go; several are compared
    #[arg(long = "url", value_name = "[NAME=]URL", required_unless_present = "compare")]
    pub urls: Vec<String>,
    /// Policies to compare, with commas between them, or all
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', conflicts_with = "urls", requires = "servers",
        value_parser = PossibleValuesParser::new(Policy::NAMES.into_iter().chain(["all"])))]
    pub compare: Vec<String>,
    /// A server whose hit counters are read before and after; repeat for each
    #[arg(long = "server", alias = "metrics", value_name = "[NAME=]URL")]
    pub servers: Vec<String>,
    /// Print JSON in place of text
    #[arg(long)]
    pub json: bool,

    /// Send the first N requests only
    #[arg(long, value_name = "N", help_heading = "Trace")]
    pub limit: Option<usize>,
    /// Leave out lines that cannot be read, and count them
    #[arg(long, help_heading = "Trace")]
    pub skip_bad: bool,
    /// Tokens in a block of hash_ids [default: the smallest power of two that explains their counts]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Trace")]
    pub block_size: Option<i64>,
    /// Tokens that the engine makes of a word of hash_ids' text: 1 for fake-server, about 1 for common models
    #[arg(
        long,
        value_name = "F",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        help_heading = "Trace"
    )]
    pub tokens_per_word: f64,
    /// API for hash_ids: a chat has the tokens of its template besides
    #[arg(long, value_enum, default_value_t = HashedApi::Chat, help_heading = "Trace")]
    pub api: HashedApi,

    /// Divide all times of the trace by X
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        help_heading = "Load"
    )]
    pub speed: f64,
    /// Requests under way at most; those beyond wait, and their waiting counts
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Load")]
    pub in_flight: usize,
    /// Closed loop: N clients, each sends when it has its answer; the trace's times do not count
    #[arg(long, value_name = "N", conflicts_with_all = ["speed", "in_flight"], help_heading = "Load")]
    pub clients: Option<usize>,
    /// Play the trace N times, each time under a salt of its own [default: 1; 2 where there is something to compare]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub rounds: Option<usize>,

    /// Send bodies as they are; by default those that say nothing of a stream ask for one
    #[arg(long, help_heading = "Requests")]
    pub no_stream: bool,
    /// Tokens of every answer at most [default: what the trace says]
    #[arg(long, value_name = "N", help_heading = "Requests")]
    pub max_tokens: Option<u32>,
    /// Ask for answers of full length (vLLM's ignore_eos)
    #[arg(long, help_heading = "Requests")]
    pub ignore_eos: bool,
    /// Model to ask for [default: what the trace says; of hash_ids cc-sim]
    #[arg(long, value_name = "NAME", help_heading = "Requests")]
    pub model: Option<String>,
    /// cache_salt of every request, so that caches are cold to it [default: none; where there are several plays, one each]
    #[arg(long, value_name = "TEXT", help_heading = "Requests")]
    pub salt: Option<String>,
    /// Key for the header authorization: env:NAME or file:PATH
    #[arg(long, value_name = "REFERENCE", help_heading = "Requests")]
    pub key: Option<String>,
    /// What a request may take in all, as 600s
    #[arg(long, value_name = "TIME", default_value = "600s", value_parser = time, help_heading = "Requests")]
    pub timeout: Duration,

    /// A good request has its first token within that time, as 500ms; goodput is then told
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "no_stream", help_heading = "Figures")]
    pub slo_ttft: Option<Duration>,
    /// A good request takes that time from token to token at most, in the mean, as 50ms
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "no_stream", help_heading = "Figures")]
    pub slo_tpot: Option<Duration>,
    /// A good request is answered whole within that time
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Figures")]
    pub slo_latency: Option<Duration>,
    /// How long the servers' counters may trail the answers
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time, help_heading = "Figures")]
    pub server_wait: Duration,

    /// How the routers of --compare cut prompts: bytes, as serve does by default, or words, as fake-server counts
    #[arg(long, value_enum, default_value_t = Cut::Bytes, requires = "compare", help_heading = "Routers")]
    pub router_tokenizer: Cut,
}

/// The API that prompts of known blocks are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HashedApi {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// How a router cuts prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cut {
    /// Four bytes a token.
    Bytes,
    /// Words, in blocks of 16.
    Words,
}

/// Who is sent a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) name: String,
    pub(super) via: Via,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// Somebody who listens there.
    Url(String),
    /// A router that is started for it.
    Policy,
}

fn wrong(flag: &str, found: impl std::fmt::Display, wanted: &str) -> ReplayError {
    ReplayError::Option(format!("{flag}: found {found}, wanted {wanted}"))
}

impl ReplayArgs {
    /// Those who are sent the trace, in the order of the flags.
    pub(super) fn lanes(&self) -> Result<Vec<Lane>, ReplayError> {
        if !self.compare.is_empty() {
            let all = self.compare.iter().any(|name| name == "all");
            let names = if all { Policy::NAMES.map(str::to_owned).to_vec() } else { self.compare.clone() };
            return Ok(names.into_iter().map(|name| Lane { name, via: Via::Policy }).collect());
        }
        let lane = |(name, url)| Lane { name, via: Via::Url(url) };
        Ok(named("--url", &self.urls)?.into_iter().map(lane).collect())
    }

    /// Servers, by names that a router of `--compare` takes for its endpoints.
    pub(super) fn servers(&self) -> Result<Vec<Server>, ReplayError> {
        let plain = |letter: char| {
            if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '-' }
        };
        let server = |(name, url): (String, String)| match self.compare.is_empty() {
            true => Server { name, url },
            false => Server { name: name.chars().map(plain).collect(), url },
        };
        Ok(named("--server", &self.servers)?.into_iter().map(server).collect())
    }

    pub(super) fn rounds(&self, lanes: usize) -> Result<usize, ReplayError> {
        match self.rounds {
            Some(0) => Err(wrong("--rounds", 0, "at least 1")),
            Some(rounds) => Ok(rounds),
            None => Ok(if lanes > 1 { 2 } else { 1 }),
        }
    }

    pub(super) fn pace(&self) -> Result<Pace, ReplayError> {
        if !(self.speed > 0.0 && self.speed.is_finite()) {
            return Err(wrong("--speed", self.speed, "a number above 0"));
        }
        match (self.clients, self.in_flight) {
            (Some(0), _) => Err(wrong("--clients", 0, "at least 1")),
            (_, 0) => Err(wrong("--in-flight", 0, "at least 1")),
            (Some(clients), _) => Ok(Pace::Closed { clients }),
            (None, in_flight_max) => Ok(Pace::Open { speed: self.speed, in_flight_max }),
        }
    }

    pub(super) fn hashed(&self) -> Result<Hashed, ReplayError> {
        let block = self.block_size.map(BlockSize::new).transpose();
        let block = block.map_err(|error| ReplayError::Option(format!("--block-size: {error}")))?;
        if !(self.tokens_per_word > 0.0 && self.tokens_per_word.is_finite()) {
            return Err(wrong("--tokens-per-word", self.tokens_per_word, "a number above 0"));
        }
        let api = match self.api {
            HashedApi::Chat => Api::Chat,
            HashedApi::Completions => Api::Completions,
        };
        Ok(Hashed { block, tokens_per_word: self.tokens_per_word, api })
    }

    pub(super) fn edits(&self) -> Result<Edits, ReplayError> {
        if self.max_tokens == Some(0) {
            return Err(wrong("--max-tokens", 0, "at least 1"));
        }
        if self.limit == Some(0) {
            return Err(wrong("--limit", 0, "at least 1"));
        }
        Ok(Edits {
            stream: !self.no_stream,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            model: self.model.clone(),
            salt: self.salt.clone(),
        })
    }

    pub(super) fn slo(&self) -> Slo {
        Slo { ttft: self.slo_ttft, tpot: self.slo_tpot, latency: self.slo_latency }
    }

    /// The header `authorization`. Errors name the reference, never what it holds.
    pub(super) fn authorization(&self) -> Result<Option<HeaderValue>, ReplayError> {
        let Some(reference) = &self.key else { return Ok(None) };
        let key = match reference.split_once(':') {
            Some(("env", name)) => {
                std::env::var(name).map_err(|error| wrong("--key", error, "a variable with a key"))?
            }
            Some(("file", path)) => {
                std::fs::read_to_string(path).map_err(|error| wrong("--key", error, "a file with a key"))?
            }
            _ => {
                return Err(ReplayError::Option("--key: wanted env:NAME or file:PATH, not a key".to_owned()));
            }
        };
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim()))
            .map_err(|_| wrong("--key", "letters that no header may have", "a key"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// `NAME=URL` or `URL`, whose name is then what stands behind `://`. Names are told apart.
fn named(flag: &str, given: &[String]) -> Result<Vec<(String, String)>, ReplayError> {
    let mut all: Vec<(String, String)> = Vec::new();
    for text in given {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains(['/', ':']) => (name.to_owned(), base(flag, url)?),
            _ => {
                let url = base(flag, text)?;
                let shown = shown(&url);
                (shown.split_once("://").map_or(&*shown, |(_, behind)| behind).to_owned(), url)
            }
        };
        if all.iter().any(|(known, _)| *known == name) {
            return Err(wrong(flag, format_args!("the name {name} twice"), "a name for each, as NAME=URL"));
        }
        all.push((name, url));
    }
    Ok(all)
}

/// A base address without a slash at its end; a `/v1`, as clients' libraries want it, is taken off.
fn base(flag: &str, text: &str) -> Result<String, ReplayError> {
    let wanted = "a base address such as http://127.0.0.1:8080";
    let found = shown(text);
    let url = Url::parse(text).map_err(|error| wrong(flag, format_args!("{found} ({error})"), wanted))?;
    if !["http", "https"].contains(&url.scheme()) || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong(flag, found, wanted));
    }
    let text = url.as_str().trim_end_matches('/');
    Ok(text.strip_suffix("/v1").unwrap_or(text).to_owned())
}

/// A time with its unit: 500ms, 2s, 1.5s, 10m.
fn time(text: &str) -> Result<Duration, String> {
    let wanted = || format!("found {text}, wanted a time such as 500ms, 2s or 10m, at most 24 hours");
    let unit = text.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(wanted)?;
    let (number, unit) = text.split_at(unit);
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wanted()),
    };
    let number: f64 = number.parse().map_err(|_| wanted())?;
    let time = Duration::try_from_secs_f64(number * seconds).map_err(|_| wanted())?;
    if time > TIME_MAX { Err(wanted()) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: ReplayArgs,
    }

    fn args(flags: &str) -> Result<ReplayArgs, String> {
        let words = ["replay", "t.jsonl"].into_iter().chain(flags.split_whitespace());
        Ok(Command::try_parse_from(words).map_err(|error| error.to_string())?.args)
    }

    /// Everything that is checked after clap.
    fn checked(flags: &str) -> Result<(), String> {
        let args = args(flags)?;
        let all = || {
            args.lanes()?;
            args.servers()?;
            args.rounds(1)?;
            args.pace()?;
            args.hashed()?;
            args.edits()?;
            args.authorization()
        };
        all().map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_without_meaning_are_refused() {
        for (flags, reason) in [
            ("--url http://a --speed 0", "--speed: found 0, wanted a number above 0"),
            ("--url http://a --clients 0", "--clients: found 0, wanted at least 1"),
            ("--url http://a --in-flight 0", "--in-flight: found 0, wanted at least 1"),
            ("--url http://a --rounds 0", "--rounds: found 0, wanted at least 1"),
            ("--url http://a --limit 0", "--limit: found 0, wanted at least 1"),
            ("--url http://a --max-tokens 0", "--max-tokens: found 0, wanted at least 1"),
            ("--url http://a --tokens-per-word -1", "--tokens-per-word: found -1, wanted a number above 0"),
            ("--url http://a --block-size 0", "--block-size: block size must be positive, got 0"),
            ("--url a:80", "--url: found a:80, wanted a base address such as http://127.0.0.1:8080"),
            (
                "--url 127.0.0.1:80",
                "--url: found 127.0.0.1:80 (relative URL without a base), wanted a base address such as http://127.0.0.1:8080",
            ),
            (
                "--url n=http://a --url n=http://b",
                "--url: found the name n twice, wanted a name for each, as NAME=URL",
            ),
            ("--url http://a --key sk-secret", "--key: wanted env:NAME or file:PATH, not a key"),
            (
                "--url http://a --key env:NO_SUCH_VARIABLE",
                "--key: found environment variable not found, wanted a variable with a key",
            ),
        ] {
            assert_eq!(checked(flags), Err(reason.to_owned()), "{flags}");
        }
        for flags in [
            "",
            "--compare prefix",
            "--compare best --server http://a",
            "--url http://a --compare prefix --server http://b",
            "--url http://a --clients 2 --speed 3",
            "--url http://a --slo-ttft 5",
            "--url http://a --slo-ttft 5s --no-stream",
            "--url http://a --router-tokenizer words",
        ] {
            assert!(args(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn addresses_have_names() {
        let lanes = args("--url https://a/v1").unwrap().lanes().unwrap();
        let lane = |name: &str, url: &str| Lane { name: name.to_owned(), via: Via::Url(url.to_owned()) };
        assert_eq!(lanes, [lane("a", "https://a")]);
        let lanes = args("--url http://a:1/v1/ --url b=http://c:2/x").unwrap().lanes().unwrap();
        assert_eq!(lanes, [lane("a:1", "http://a:1"), lane("b", "http://c:2/x")]);
        let lanes = args("--url http://user:SECRET@a:1").unwrap().lanes().unwrap();
        assert_eq!(lanes, [lane("a:1", "http://user:SECRET@a:1")]);
        let error = checked("--url ftp://user:SECRET@a:1").unwrap_err();
        assert_eq!(error, "--url: found ftp://a:1, wanted a base address such as http://127.0.0.1:8080");
        let of_routers = args("--compare prefix --server http://d:3 --server http://[::1]:3").unwrap();
        let names: Vec<_> = of_routers.servers().unwrap().into_iter().map(|server| server.name).collect();
        assert_eq!(names, ["d-3", "---1--3"]);
        let servers = args("--url http://a --metrics s=http://d:3").unwrap().servers().unwrap();
        assert_eq!((servers[0].name.as_str(), servers[0].url.as_str()), ("s", "http://d:3"));
    }

    #[test]
    fn policies_are_named_or_all() {
        let lanes =
            |list: &str| args(&format!("--compare {list} --server http://a")).unwrap().lanes().unwrap();
        assert_eq!(lanes("all").len(), Policy::NAMES.len());
        let names: Vec<String> = lanes("prefix,random").into_iter().map(|lane| lane.name).collect();
        assert_eq!(names, ["prefix", "random"]);
        let args = args("--url http://a").unwrap();
        assert_eq!((args.rounds(1).unwrap(), args.rounds(2).unwrap()), (1, 2));
    }

    #[test]
    fn a_key_is_read_and_never_shown() {
        let folder = std::env::temp_dir().join(format!("replay-key-{}", std::process::id()));
        std::fs::write(&folder, "sk-secret\n").unwrap();
        let args = args(&format!("--url http://a --key file:{}", folder.display())).unwrap();
        let value = args.authorization().unwrap().unwrap();
        std::fs::remove_file(folder).unwrap();
        assert_eq!(value.to_str().unwrap(), "Bearer sk-secret");
        assert!(!format!("{value:?}{args:?}").contains("secret"));
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in
            [("500ms", 500), ("2s", 2000), ("1.5s", 1500), ("10m", 600_000), ("24h", 86_400_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["5", "s", "-1s", "5 years", "25h", "NaNs", ""] {
            assert!(time(text).unwrap_err().starts_with(&format!("found {text}, wanted a time")), "{text}");
        }
    }
}
