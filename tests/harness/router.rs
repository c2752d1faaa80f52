//! The router itself: the real binary, on free ports, with a configuration file of its own.

use crate::client::{Response, exchange, get, post};
use crate::setup::Setup;
use crate::wait::{DEADLINE, until, within};
use parking_lot::Mutex;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// What every policy must do is tested with these: the default, which weighs seconds, and one that sums scores.
pub const POLICIES: [&str; 2] = ["expected-ttft", "prefix"];

/// Loopback addresses whose ports were free a moment ago, all different.
pub fn free_addresses<const COUNT: usize>() -> [SocketAddr; COUNT] {
    let held: [TcpListener; COUNT] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap())
}

/// The addresses in the log line that tells of serving: listeners, admin.
fn serving(line: &str) -> Option<(Vec<SocketAddr>, SocketAddr)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let listeners = line["listeners"].as_str()?.trim_matches(['[', ']']);
    let listeners = listeners.split(", ").map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((listeners, line["admin"].as_str()?.parse().ok()?))
}

/// Where the build put the binary: beside the folder of the test executables.
pub fn binary() -> PathBuf {
    let here = std::env::current_exe().expect("a test knows its own path");
    let profile = here.parent().and_then(|deps| deps.parent()).expect("a test lies in target/<profile>/deps");
    let binary = profile.join("prefixroute");
    assert!(binary.exists(), "{} is not there: run `cargo build -p prefixroute` first", binary.display());
    binary
}

/// A running router; killed when dropped, its output shown when the test failed.
pub struct Router {
    /// The HTTP/1.1 data listener.
    pub data: SocketAddr,
    /// The HTTP/2 data listener.
    pub h2c: SocketAddr,
    /// All of them: behind these two those that a setup adds.
    pub listeners: Vec<SocketAddr>,
    /// The admin listener.
    pub admin: SocketAddr,
    process: Process,
    /// Its configuration.
    pub file: PathBuf,
    _folder: TempDir,
}

impl Router {
    /// Ports are the system's choice; the line that tells of serving tells them.
    pub(crate) async fn start(setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, setup.file()).unwrap();
        setup.write_beside(folder.path());
        let router = Self::run_under(folder, file, setup.descriptors_max()).await;
        router.scraped(setup.endpoints()).await
    }

    /// A router whose configuration is this file, which lies somewhere in `folder`.
    pub async fn run(folder: TempDir, file: PathBuf) -> Self {
        Self::run_under(folder, file, None).await
    }

    /// The same under a limit of descriptors, if there is to be one.
    async fn run_under(folder: TempDir, file: PathBuf, descriptors: Option<usize>) -> Self {
        let mut command = Command::new(if descriptors.is_some() { PathBuf::from("sh") } else { binary() });
        if let Some(limit) = descriptors {
            command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &limit.to_string()]).arg(binary());
        }
        command.args(["serve", "--config"]).arg(&file).env_remove("PREFIXROUTE_LOG");
        let process = Process::start(command);
        let (listeners, admin) = until("the router's listeners", DEADLINE, || async {
            let output = process.output();
            output.lines().find_map(serving)
        })
        .await;
        let [data, h2c, ..] = listeners[..] else { panic!("two listeners in {listeners:?}") };
        Self { data, h2c, listeners, admin, process, file, _folder: folder }
    }

    /// Puts another configuration into the file.
    pub fn write(&self, text: impl AsRef<str>) {
        std::fs::write(&self.file, text.as_ref()).unwrap();
    }

    /// Asks for a reload now; what came of it.
    pub async fn reload(&self) -> Response {
        exchange(self.admin, post("/prefixroute/reload", "")).await
    }

    /// A path in the folder of its configuration.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.file.with_file_name(name)
    }

    /// Writes the file, reloads, and has every endpoint scraped once.
    pub async fn becomes(&self, setup: &Setup) -> Value {
        setup.write_beside(&self.beside(""));
        self.write(setup.file());
        let response = self.reload().await;
        assert_eq!(response.status(), 200, "{}", response.text());
        self.all_scraped(setup.endpoints()).await;
        response.json()
    }

    async fn scraped(self, endpoints: usize) -> Self {
        self.all_scraped(endpoints).await;
        self
    }

    async fn all_scraped(&self, endpoints: usize) {
        self.until_state("a scrape of every endpoint", |state| {
            let rows = state["endpoints"].as_array()?;
            let scraped = |row: &Value| {
                row["scrapes"]["ok"].as_u64() > Some(0) || row["scrapes"]["failed"].as_u64() > Some(0)
            };
            (rows.len() >= endpoints && rows.iter().all(scraped)).then_some(())
        })
        .await;
    }

    /// `/prefixroute/state` of the admin listener.
    pub async fn state(&self) -> Value {
        let response = exchange(self.admin, get("/prefixroute/state")).await;
        assert_eq!(response.status(), 200, "{response:?}");
        response.json()
    }

    /// The row of an endpoint in the state.
    pub async fn endpoint(&self, name: &str) -> Value {
        let state = self.state().await;
        row(&state, name).unwrap_or_else(|| panic!("no endpoint {name} in {state}")).clone()
    }

    /// Waits until the state shows what `look` seeks.
    pub async fn until_state<T>(&self, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
        until(what, DEADLINE, || async { look(&self.state().await) }).await
    }

    /// Waits until a figure of an endpoint has this value.
    pub async fn sees(&self, name: &str, figure: &str, value: impl Into<Value>) {
        let value = value.into();
        let what = format!("endpoint {name} with {figure} {value}");
        self.until_state(&what, |state| same(&row(state, name)?[figure], &value).then_some(())).await;
    }

    /// Waits until nothing is in flight anywhere.
    pub async fn idle(&self) {
        self.until_state("nothing in flight", |state| {
            let rows = state["endpoints"].as_array()?;
            rows.iter().all(|row| row["in_flight"] == 0).then_some(())
        })
        .await;
    }

    /// `/metrics` of the admin listener.
    pub async fn metrics(&self) -> String {
        exchange(self.admin, get("/metrics")).await.text()
    }

    /// The decision that a body would get.
    pub async fn explain(&self, body: &str) -> Response {
        exchange(self.admin, post("/prefixroute/explain", body)).await
    }

    /// A chat request on a connection of its own.
    pub async fn chat(&self, body: impl AsRef<[u8]>) -> Response {
        exchange(self.data, post("/v1/chat/completions", body)).await
    }

    /// What it wrote to stdout and stderr so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = self.proc_file("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident process");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Processor time used so far, in clock ticks of 10 ms.
    pub fn processor_ticks(&self) -> u64 {
        let stat = self.proc_file("stat");
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    fn proc_file(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.process.pid)).expect("a living router")
    }

    /// Asks it to end, as a supervisor does.
    pub async fn terminate(&self) {
        self.signal("TERM").await;
    }

    /// Sends it a signal, by its name without SIG.
    pub async fn signal(&self, name: &str) {
        self.process.signal(name).await;
    }

    /// A further process with the same file and these flags.
    pub fn successor(&self, flags: &[&str]) -> Successor {
        self.successor_with(flags, &[])
    }

    /// The same with these variables.
    pub fn successor_with(&self, flags: &[&str], variables: &[(&str, &PathBuf)]) -> Successor {
        let mut command = Command::new(binary());
        command.args(["serve", "--config"]).arg(&self.file).args(flags).env_remove("PREFIXROUTE_LOG");
        command.envs(variables.iter().copied());
        Successor(Process::start(command))
    }

    /// Descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.pid)).expect("a living router").count()
    }

    /// Waits for its end.
    pub async fn ended(&mut self, deadline: Duration) -> ExitStatus {
        within("the router to end", deadline, self.process.child.wait()).await.unwrap()
    }
}

/// A process that is to take a router's place.
pub struct Successor(Process);

impl Successor {
    /// Its id.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Whether it has said that it serves.
    pub fn serves(&self) -> bool {
        self.output().lines().any(|line| serving(line).is_some())
    }

    /// What it wrote to stdout and stderr so far.
    pub fn output(&self) -> String {
        self.0.output()
    }

    /// Asks it to end, as a supervisor does.
    pub async fn terminate(&self) {
        self.signal("TERM").await;
    }

    /// Sends it a signal, by its name without SIG.
    pub async fn signal(&self, name: &str) {
        self.0.signal(name).await;
    }

    /// Waits for its end.
    pub async fn ended(&mut self, deadline: Duration) -> ExitStatus {
        within("the new router to end", deadline, self.0.child.wait()).await.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.output();
            let from = output.len().saturating_sub(4000);
            eprintln!("--- end of the router's output:\n{}", output.get(from..).unwrap_or(&output));
        }
    }
}

/// The row of an endpoint in a state.
pub fn row<'a>(state: &'a Value, name: &str) -> Option<&'a Value> {
    state["endpoints"].as_array()?.iter().find(|row| row["name"] == name)
}

/// Whether two JSON values are the same, 4 and 4.0 included.
fn same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => (left - right).abs() < 1e-9,
        _ => left == right,
    }
}

/// A child process whose output is collected as it comes.
struct Process {
    child: Child,
    pid: u32,
    output: Arc<Mutex<String>>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the router can be started");
        let output = Arc::default();
        collect(child.stdout.take().unwrap(), &output);
        collect(child.stderr.take().unwrap(), &output);
        let pid = child.id().expect("a process that runs has an id");
        Self { child, pid, output }
    }

    fn output(&self) -> String {
        self.output.lock().clone()
    }

    async fn signal(&self, name: &str) {
        let signal = Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]).status();
        assert!(signal.await.expect("a kill command").success());
    }
}

fn collect(mut from: impl AsyncRead + Unpin + Send + 'static, into: &Arc<Mutex<String>>) {
    let into = into.clone();
    tokio::spawn(async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            into.lock().push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    });
}

/// What a run of the binary that is meant to end left behind.
#[derive(Debug)]
pub struct Run {
    /// Its exit code; -1 when a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs the binary to its end.
pub async fn run(arguments: &[&str]) -> Run {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output =
        within("the command to end", DEADLINE, command.output()).await.expect("the command can be started");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let code = output.status.code().unwrap_or(-1);
    Run { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}
