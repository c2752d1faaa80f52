//! What the operator types, and what it exits with.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use config::inference_pool::{self, InferencePool};
use config::{Faults, Flags, Setting};
use proxy::reload::{self, Source};
use proxy::serve::{Prepared, Signals};
use proxy::upgrade::{self, Inherited};
use tokio::runtime::{Builder, Runtime};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// The variable that sets what is logged, as `info` or `prefixroute=debug,warn`.
const LOG_VARIABLE: &str = "PREFIXROUTE_LOG";
const LOG_DEFAULT: &str = "info,pingora_core=off,pingora_pool=off,pingora_http=off,h2=off";

/// Log lines that wait to be written; some 2 MB of them.
const LOG_LINES_MAX: usize = 8_192;
/// Time for what still runs after the last request.
const ENDED_WITHIN: Duration = Duration::from_secs(1);

/// Wrong input or usage.
const EXIT_USAGE: u8 = 2;

#[derive(Parser)]
#[command(
    name = "prefixroute",
    version,
    about = "A prefix-cache aware reverse proxy in front of LLM servers"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The proxy. Flags alone suffice; flags override the file
    #[command(
        after_help = "Examples:\n  prefixroute serve --endpoint a=http://127.0.0.1:8001 --endpoint b=http://127.0.0.1:8002\n  prefixroute serve --config prefixroute.yaml --upgrade"
    )]
    Serve(ServeArgs),
    /// Validates configuration: every fault as file:line:column: path: reason
    #[command(
        after_help = "Examples:\n  prefixroute check prefixroute.yaml\n  prefixroute check --explain prefixroute.yaml\n  prefixroute check --without-secrets deploy/examples/*.yaml\n  prefixroute check --schema > prefixroute.schema.json"
    )]
    Check(CheckArgs),
    /// Validates an InferencePool and lists the endpoints of its Pods: YAML or JSON of kubectl, lists and streams
    #[command(
        after_help = "Examples:\n  kubectl get inferencepools,pods -o json | prefixroute pool -\n  prefixroute serve $(prefixroute pool fleet.yaml --args)"
    )]
    Pool {
        /// File to read, `-` for standard input
        #[arg(value_name = "FILE")]
        file: String,
        /// Prints the flags for `serve` on one line
        #[arg(long)]
        args: bool,
    },
    /// The whole story in a minute: three fake replicas, round-robin against prefix through the real proxy
    #[cfg(feature = "lab")]
    #[command(after_help = "Example:\n  prefixroute demo --hold")]
    Demo(bench::demo::DemoArgs),
    /// A vLLM-like server with a real block cache, no GPU
    #[cfg(feature = "lab")]
    #[command(after_help = "Example:\n  prefixroute fake-server --name a --port 8001")]
    FakeServer(bench::fake_server::FakeServerArgs),
    /// Writes a workload: a line of JSON for each request
    #[cfg(feature = "lab")]
    #[command(after_help = "Example:\n  prefixroute trace -o hot.jsonl --requests 200 --rate 40 --hot 0.7")]
    Trace(bench::trace::TraceArgs),
    /// What each policy makes of a trace, on a virtual clock
    #[cfg(feature = "lab")]
    #[command(after_help = "Example:\n  prefixroute simulate trace.jsonl --policy prefix --show-decisions 5")]
    Simulate(bench::simulate::SimulateArgs),
    /// Why a request went where it went, from the decision log
    #[cfg(feature = "lab")]
    #[command(after_help = "Example:\n  prefixroute explain decisions.jsonl --request 7f3a")]
    Explain(bench::decisions::explain::ExplainArgs),
    /// Weights for a traffic, and what they gain on the part that they were not chosen on
    #[cfg(feature = "lab")]
    #[command(
        after_help = "Example:\n  prefixroute tune decisions.jsonl --replicas 8 --cache-tokens 400000 --slots 16"
    )]
    Tune(bench::tune::TuneArgs),
    /// What computing prompts on replicas of their own costs and saves, and how many of them a traffic needs
    #[cfg(feature = "lab")]
    #[command(
        after_help = "Examples:\n  prefixroute disagg --prompt-tokens 8000 --hit-rate 0.5 --explain\n  prefixroute disagg models/llama/config.json --tp 8 --nics 8 --rate 12 --output-tokens 500"
    )]
    Disagg(bench::disagg::DisaggArgs),
    /// How vLLM replicas use their prefix caches, what they could do, and what to change first
    #[cfg(feature = "lab")]
    #[command(
        after_help = "Examples:\n  prefixroute review http://127.0.0.1:8001 http://127.0.0.1:8002 --trace trace.jsonl\n  prefixroute review a.txt b.txt --markdown"
    )]
    Review(bench::review::ReviewArgs),
    /// Sends a trace to a router or to servers: percentiles, goodput, what was cached, policies side by side
    #[cfg(feature = "lab")]
    #[command(
        after_help = "Examples:\n  prefixroute replay trace.jsonl --url http://127.0.0.1:8080 --server a=http://127.0.0.1:8001 --server b=http://127.0.0.1:8002\n  prefixroute replay mooncake.jsonl --limit 500 --speed 10 --compare prefix,round-robin --server a=http://127.0.0.1:8001 --server b=http://127.0.0.1:8002\n  prefixroute replay trace.jsonl --clients 16 --url old=http://10.0.0.1 --url new=http://10.0.0.2 --slo-ttft 500ms --json"
    )]
    Replay(Box<bench::replay::ReplayArgs>),
}

#[derive(Args)]
struct ServeArgs {
    /// Configuration in YAML
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// A replica; repeat for each. Replaces the file's list
    #[arg(long = "endpoint", value_name = "NAME=URL")]
    endpoints: Vec<String>,
    /// prefix, prefix-only, least-queue, round-robin, random, sticky, guarded, affinity or expected-ttft
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Port on 127.0.0.1, instead of --listen
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// Address that clients connect to [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address of metrics, health and state [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Takes the place of a running router, which gets SIGQUIT: its listeners come over `upgrade_socket`
    #[arg(long)]
    upgrade: bool,
}

#[derive(Args)]
struct CheckArgs {
    /// Prints the effective configuration, each value with its origin: default, file:line:column
    #[arg(long, conflicts_with = "schema")]
    explain: bool,
    /// Prints the JSON Schema of configuration files, for editors
    #[arg(long, conflicts_with = "files")]
    schema: bool,
    /// Reads no variables and no files of keys and certificates: checks all else where they are not at hand
    #[arg(long, conflicts_with = "schema")]
    without_secrets: bool,
    /// Files to check
    #[arg(required_unless_present = "schema", value_name = "FILE")]
    files: Vec<String>,
}

/// Runs the command line to its end.
pub(crate) fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve(args),
        Command::Check(args) => check(&args),
        Command::Pool { file, args } => pool(&file, args),
        #[cfg(feature = "lab")]
        Command::Demo(args) => lab::demo(args),
        #[cfg(feature = "lab")]
        Command::FakeServer(args) => lab::fake_server(args),
        #[cfg(feature = "lab")]
        Command::Trace(args) => lab::trace(args),
        #[cfg(feature = "lab")]
        Command::Simulate(args) => lab::simulate(args),
        #[cfg(feature = "lab")]
        Command::Explain(args) => lab::explain(&args),
        #[cfg(feature = "lab")]
        Command::Tune(args) => lab::tune(&args),
        #[cfg(feature = "lab")]
        Command::Disagg(args) => lab::disagg(&args),
        #[cfg(feature = "lab")]
        Command::Review(args) => lab::review(args),
        #[cfg(feature = "lab")]
        Command::Replay(args) => lab::replay(&args),
    }
}

fn serve(args: ServeArgs) -> ExitCode {
    let ServeArgs { config: file, endpoints, policy, port, listen, admin, upgrade } = args;
    let flags = Flags { endpoints, policy, port, listen, admin };
    let read = match file {
        Some(file) => reload::Read::from_file(Source::new(file, flags)),
        None => config::load(None, &flags, &config::System).map(reload::Read::once),
    };
    let read = match read {
        Ok(read) => read,
        Err(faults) => return wrong(&faults.to_string()),
    };
    let _log = log();
    let (Ok(data), Ok(control)) = (data_runtime(), control_runtime()) else {
        return failed("cannot start threads");
    };
    let inherited = if upgrade { upgrade::take(read.upgrade_socket()) } else { Ok(Inherited::default()) };
    let inherited = match inherited {
        Ok(inherited) => inherited,
        Err(error) => return wrong(&error.to_string()),
    };
    let signals = match Signals::listen(control.handle()) {
        Ok(signals) => signals,
        Err(error) => return failed(&format!("cannot wait for signals: {error}")),
    };
    let ended = match proxy::serve::prepare(read, inherited, data.handle(), control.handle()) {
        Err(error) => wrong(&error.to_string()),
        Ok(prepared) => serve_prepared(prepared, signals, &control),
    };
    // A file that does not answer holds up a thread, but not the end.
    data.shutdown_timeout(ENDED_WITHIN);
    control.shutdown_timeout(ENDED_WITHIN);
    ended
}

/// Serves to the end.
fn serve_prepared(prepared: Prepared, signals: Signals, control: &Runtime) -> ExitCode {
    control.block_on(prepared.looks_around());
    match prepared.serve() {
        Err(error) => failed(&error.to_string()),
        // The log says how many were cut.
        Ok(running) => match control.block_on(running.until_signalled(signals)) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    }
}

/// Faults of all files come at once; what holds is explained only where there are none.
fn check(CheckArgs { explain, schema, without_secrets, files }: &CheckArgs) -> ExitCode {
    if *schema {
        return print(&config::schema());
    }
    let settings = if *without_secrets { settings_without_secrets } else { settings };
    let checked = files.iter().map(|file| settings(file));
    let (checked, faults): (Vec<_>, Vec<_>) = checked.partition(Result::is_ok);
    let faults: Vec<String> =
        faults.into_iter().filter_map(Result::err).map(|faults| faults.to_string()).collect();
    if !faults.is_empty() {
        return wrong(&faults.join("\n"));
    }
    let explained = checked.iter().flatten().filter(|_| *explain);
    print(&explained.map(|settings| config::explain(settings)).collect::<String>())
}

fn pool(file: &str, args: bool) -> ExitCode {
    let read =
        read_objects(file).map_err(|error| format!("{file}: found {error}, wanted a file that can be read"));
    let resolved =
        read.and_then(|text| inference_pool::resolve(file, &text).map_err(|faults| faults.to_string()));
    match resolved {
        Ok(pool) => show(&pool, args),
        Err(faults) => wrong(&faults),
    }
}

/// The text of Kubernetes objects; somewhat more than is allowed of one that is longer.
fn read_objects(file: &str) -> std::io::Result<String> {
    let source: Box<dyn Read> =
        if file == "-" { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(file)?) };
    std::io::read_to_string(source.take(config::defaults::OBJECTS_BYTES_MAX as u64 + 1))
}

/// Endpoints on stdout, a line for each or all as flags; what the operator should know beside, on stderr.
fn show(pool: &InferencePool, args: bool) -> ExitCode {
    let InferencePool { namespace, name, h2c, endpoints } = pool;
    let lines: String = match args {
        true => {
            endpoints.iter().map(|endpoint| format!("--endpoint {endpoint}")).collect::<Vec<_>>().join(" ")
                + "\n"
        }
        false => {
            endpoints.iter().map(|endpoint| format!("{} {}\n", endpoint.name, endpoint.address)).collect()
        }
    };
    if *h2c {
        say(&format!("pool {namespace}/{name} wants kubernetes.io/h2c; serve speaks HTTP/1.1 to engines"));
    }
    if endpoints.is_empty() {
        say(&format!("pool {namespace}/{name} has no ready pod"));
    }
    print(&lines)
}

/// What a file comes to, or every fault, one a line.
fn settings(file: &str) -> Result<Vec<Setting>, Faults> {
    let text = config::read_file(file.as_ref())?;
    config::load(Some((file, &text)), &Flags::default(), &config::System).map(|loaded| loaded.settings)
}

/// The same where secrets are not at hand; says so of a file that has some.
fn settings_without_secrets(file: &str) -> Result<Vec<Setting>, Faults> {
    let text = config::read_file(file.as_ref())?;
    let checked = config::check_without_secrets((file, &text), &Flags::default(), &config::System)?;
    if checked.unread > 0 {
        say(&format!("{file}: {} secrets and certificates were not read", checked.unread));
    }
    Ok(checked.settings)
}

fn data_runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().thread_name("data").enable_all().build()
}

/// Pollers, admin pages and signals: apart from the data path, so that they answer when it is busy.
fn control_runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name("control").enable_all().build()
}

/// Begins to log. Lines go through a queue to a thread: of those that find it full, because nobody reads or a disk is full, none
/// holds up a request. Dropped, it writes what is left.
fn log() -> WorkerGuard {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT));
    let terminal = std::io::stderr().is_terminal();
    let queue = NonBlockingBuilder::default().buffered_lines_limit(LOG_LINES_MAX).lossy(true);
    let (writer, guard) = queue.thread_name("log").finish(std::io::stderr());
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
    if terminal {
        lines.with_ansi(true).with_target(false).init();
    } else {
        lines.json().flatten_event(true).init();
    }
    guard
}

fn wrong(message: &str) -> ExitCode {
    say(message);
    ExitCode::from(EXIT_USAGE)
}

fn failed(message: &str) -> ExitCode {
    say(message);
    ExitCode::FAILURE
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn say(message: &str) {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "{message}");
}

#[cfg(feature = "lab")]
mod lab {
    //! The laboratory's commands.

    use bench::decisions::explain::{ExplainArgs, ExplainError};
    use bench::demo::{DemoArgs, DemoError};
    use bench::disagg::{DisaggArgs, DisaggError};
    use bench::fake_server::{FakeServerArgs, FakeServerError};
    use bench::replay::{Cut, ReplayArgs, ReplayError};
    use bench::review::ReviewArgs;
    use bench::simulate::{SimulateArgs, SimulateError};
    use bench::trace::{TraceArgs, TraceError};
    use bench::tune::TuneArgs;
    use proxy::lab::InProcess;

    use super::*;

    pub(super) fn demo(args: DemoArgs) -> ExitCode {
        let usage = |error: &DemoError| matches!(error, DemoError::Trace(_));
        run(bench::demo::run(args, &InProcess::words(), &mut std::io::stdout()), usage)
    }

    pub(super) fn fake_server(args: FakeServerArgs) -> ExitCode {
        let usage = |error: &FakeServerError| {
            matches!(error, FakeServerError::Option(_) | FakeServerError::Listen { .. })
        };
        run(bench::fake_server::run(args, &mut std::io::stdout()), usage)
    }

    pub(super) fn trace(args: TraceArgs) -> ExitCode {
        ended(bench::trace::run(args, &mut std::io::stdout()), TraceError::is_usage)
    }

    pub(super) fn simulate(args: SimulateArgs) -> ExitCode {
        ended(bench::simulate::run(&args, &mut std::io::stdout()), SimulateError::is_usage)
    }

    pub(super) fn explain(args: &ExplainArgs) -> ExitCode {
        ended(bench::decisions::explain::run(args, &mut std::io::stdout()), ExplainError::is_usage)
    }

    pub(super) fn tune(args: &TuneArgs) -> ExitCode {
        ended(bench::tune::run(args, &mut std::io::stdout()), SimulateError::is_usage)
    }

    pub(super) fn disagg(args: &DisaggArgs) -> ExitCode {
        ended(bench::disagg::run(args, &mut std::io::stdout()), DisaggError::is_usage)
    }

    pub(super) fn review(args: ReviewArgs) -> ExitCode {
        run(bench::review::run(args, &mut std::io::stdout()), |_| false)
    }

    pub(super) fn replay(args: &ReplayArgs) -> ExitCode {
        let router = match args.router_tokenizer {
            Cut::Bytes => InProcess::defaults(),
            Cut::Words => InProcess::words(),
        };
        run(bench::replay::run(args, &router, &mut std::io::stdout()), ReplayError::is_usage)
    }

    /// Runs a command to its end. `usage` tells errors of the operator's from those of the run.
    fn run<E: std::fmt::Display>(
        task: impl Future<Output = Result<(), E>>,
        usage: impl Fn(&E) -> bool,
    ) -> ExitCode {
        match data_runtime().map(|runtime| runtime.block_on(task)) {
            Ok(result) => ended(result, usage),
            Err(error) => failed(&error.to_string()),
        }
    }

    fn ended<E: std::fmt::Display>(result: Result<(), E>, usage: impl Fn(&E) -> bool) -> ExitCode {
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if usage(&error) => wrong(&error.to_string()),
            Err(error) => failed(&error.to_string()),
        }
    }
}
