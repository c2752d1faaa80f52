//! The command `fake-server`.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use picker::hash::BlockSize;

use super::{FakeServer, FakeServerError, FakeServerOptions};
use crate::engine::{EvictionOrder, ReplicaOptions, Seconds, Timing};

/// A vLLM-like server with a real block cache, no GPU.
///
/// Example: prefixroute fake-server --name sim-a --port 8001
#[derive(Clone, Debug, clap::Args)]
pub struct FakeServerArgs {
    /// Name of this server, shown in its answers' system_fingerprint
    #[arg(long, default_value = "sim")]
    pub name: String,
    /// Port to listen on; 0 takes a free one, which is printed
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Blocks the cache holds
    #[arg(long, default_value_t = 64)]
    pub cache_blocks: usize,
    /// Blocks it says the cache holds, if that is not the truth
    #[arg(long)]
    pub told_cache_blocks: Option<usize>,
    /// Tokens in a block
    #[arg(long, default_value_t = 16, allow_negative_numbers = true)]
    pub block_size: i64,
    /// Requests that run at once
    #[arg(long, default_value_t = 8)]
    pub slots: usize,
    /// What every prefill costs, in milliseconds
    #[arg(long, default_value_t = 5.0)]
    pub prefill_overhead_ms: f64,
    /// Uncached prompt tokens computed per second
    #[arg(long, default_value_t = 1000.0)]
    pub prefill_tokens_per_second: f64,
    /// Time between two tokens of an answer, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    pub inter_token_ms: f64,
    /// Which end of a prefix is evicted first
    #[arg(long, value_enum, default_value_t)]
    pub eviction: EvictionOrder,
    /// Model to serve; repeat for more, the first is the default
    #[arg(long = "model", default_value = "cc-sim")]
    pub models: Vec<String>,
}

impl FakeServerArgs {
    /// Checks what clap cannot. Errors: [`FakeServerError::Option`], naming the flag.
    pub fn options(self) -> Result<FakeServerOptions, FakeServerError> {
        let overhead = positive("--prefill-overhead-ms", self.prefill_overhead_ms, true)?;
        let rate = positive("--prefill-tokens-per-second", self.prefill_tokens_per_second, false)?;
        let inter_token = positive("--inter-token-ms", self.inter_token_ms, true)?;
        if self.slots == 0 {
            return Err(FakeServerError::Option("--slots: found 0, wanted at least 1".to_owned()));
        }
        let block_size = BlockSize::new(self.block_size)
            .map_err(|error| FakeServerError::Option(format!("--block-size: {error}")))?;
        let timing =
            Timing { prefill_overhead: Seconds::from_millis(overhead), prefill_tokens_per_second: rate };
        Ok(FakeServerOptions {
            name: self.name,
            address: SocketAddr::new(self.host, self.port),
            models: self.models,
            replica: ReplicaOptions {
                cache_blocks: self.cache_blocks,
                block_size,
                eviction: self.eviction,
                slots: self.slots,
                timing,
            },
            told_cache_blocks: self.told_cache_blocks,
            inter_token: Duration::from_secs_f64(inter_token.min(1e9) / 1e3),
        })
    }
}

fn positive(flag: &str, value: f64, zero: bool) -> Result<f64, FakeServerError> {
    if value > 0.0 || (zero && value == 0.0) {
        return Ok(value);
    }
    let wanted = if zero { "0 or more" } else { "more than 0" };
    Err(FakeServerError::Option(format!("{flag}: found {value}, wanted {wanted}")))
}

/// Serves until Ctrl-C or SIGTERM. Prints where it listens, once it does.
pub async fn run(args: FakeServerArgs, out: &mut dyn Write) -> Result<(), FakeServerError> {
    let server = FakeServer::start(args.options()?).await?;
    writeln!(out, "fake-server {} listening on {}", server.engine.options.name, server.url())?;
    out.flush()?;
    until_told_to_stop().await?;
    server.stop().await;
    Ok(())
}

#[cfg(unix)]
async fn until_told_to_stop() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn until_told_to_stop() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: FakeServerArgs,
    }

    fn options(flags: &[&str]) -> Result<FakeServerOptions, String> {
        let command = Command::try_parse_from([&["fake-server"], flags].concat()).unwrap();
        command.args.options().map_err(|error| error.to_string())
    }

    #[test]
    fn no_flags_are_the_published_server() {
        assert_eq!(options(&[]), Ok(FakeServerOptions::default()));
    }

    #[test]
    fn flags_without_meaning_are_refused() {
        for (flags, reason) in [
            (["--block-size", "-3"], "--block-size: block size must be positive, got -3"),
            (["--slots", "0"], "--slots: found 0, wanted at least 1"),
            (
                ["--prefill-tokens-per-second", "0"],
                "--prefill-tokens-per-second: found 0, wanted more than 0",
            ),
            (["--inter-token-ms", "NaN"], "--inter-token-ms: found NaN, wanted 0 or more"),
        ] {
            assert_eq!(options(&flags), Err(reason.to_owned()));
        }
        let eviction = options(&["--eviction", "head-first"]).unwrap().replica.eviction;
        assert_eq!(eviction, EvictionOrder::HeadFirst);
    }
}
