//! The simulator on traces in Mooncake's form, against a twin that is too simple to be wrong.
//!
//! The twin does what the reference runs of the whole traces did: one prefill lane a replica, 5 ms and 12,000 tokens/s, a
//! cache of full blocks that is filled at arrival and evicted tail first.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use bench::engine::{EvictionOrder, ReplicaOptions, Seconds, Timing};
use bench::simulate::{self, Pacing, Report, Run, SimulateArgs, SimulateOptions, Workload, play_all};
use bench::trace::hashed::{self, HashedRequest};
use clap::Parser;
use picker::policy::Policy;
use serde_json::Value;

const REPLICAS: usize = 8;
const TOKENS_PER_SECOND: f64 = 12_000.0;
const OVERHEAD: f64 = 0.005;

/// A head of a published trace, its block size, and a cache so small that its blocks are evicted.
const TRACES: [(&str, usize, usize); 4] = [
    ("mooncake_conversation", 512, 40_000),
    ("mooncake_synthetic", 512, 60_000),
    ("miniswe_agent_bs16", 16, 3_000),
    ("taubench_airline_bs64", 64, 6_000),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/traces/{name}.jsonl"))
}

fn options(workload: &Workload, cache_tokens: usize) -> SimulateOptions {
    let block_size = workload.block_size();
    let timing = Timing { prefill_overhead: Seconds(OVERHEAD), prefill_tokens_per_second: TOKENS_PER_SECOND };
    let cache_blocks = cache_tokens / block_size.tokens();
    let eviction = EvictionOrder::TailFirst;
    let replica = ReplicaOptions { cache_blocks, block_size, eviction, slots: 1, timing };
    SimulateOptions { replicas: REPLICAS, replica, ..SimulateOptions::default() }
}

fn play(workload: &Workload, options: &SimulateOptions, policy: Policy) -> Run {
    play_all(workload, options, &[policy], &|_| ()).unwrap().remove(0)
}

/// One replica of the twin: blocks by use, the oldest first, and when its lane is free.
#[derive(Default)]
struct Twin {
    blocks: Vec<u64>,
    free_at: f64,
}

impl Twin {
    /// Cached tokens and time to first token.
    fn serve(&mut self, request: &HashedRequest, at: f64, size: usize, capacity: usize) -> (usize, f64) {
        let tokens = request.input_tokens as usize;
        let looked_up = request.hash_ids.iter().take((tokens - 1) / size);
        let cached = looked_up.take_while(|id| self.blocks.contains(id)).count() * size;
        for id in request.hash_ids[..tokens / size].iter().take(capacity).rev() {
            self.blocks.retain(|held| held != id);
            self.blocks.push(*id);
        }
        self.blocks.drain(..self.blocks.len().saturating_sub(capacity));
        self.free_at = self.free_at.max(at) + OVERHEAD + (tokens - cached) as f64 / TOKENS_PER_SECOND;
        (cached, self.free_at - at)
    }
}

#[test]
fn round_robin_is_what_the_twin_does() {
    for (name, size, cache_tokens) in TRACES {
        let trace = hashed::read(&fixture(name)).unwrap();
        let workload = Workload::of_hashes(&trace, None).unwrap();
        assert_eq!(workload.block_size().tokens(), size, "{name}");
        let pacing = Pacing { speed: 1.5, burst: 1 };
        let options = SimulateOptions { pacing, ..options(&workload, cache_tokens) };
        let run = play(&workload, &options, Policy::RoundRobin);

        let mut twins: [Twin; REPLICAS] = Default::default();
        for (number, (request, served)) in trace.iter().zip(&run.served).enumerate() {
            let twin = &mut twins[number % REPLICAS];
            let (cached, ttft) = twin.serve(request, request.at.0 / 1.5, size, cache_tokens / size);
            assert_eq!(
                (served.replica, served.cached_tokens),
                (number % REPLICAS, cached),
                "{name} {number}"
            );
            assert!((served.ttft.0 - ttft).abs() < 1e-9, "{name} {number}: {served:?}, wanted {ttft}");
        }
        let report = Report::of(&run);
        assert!(report.hit_tokens > 0 && report.of_ceiling < 0.95, "{name} tests nothing: {report:?}");
    }
}

#[test]
fn the_ceiling_is_one_cache_without_a_bound() {
    for (name, size, cache_tokens) in TRACES {
        let trace = hashed::read(&fixture(name)).unwrap();
        let workload = Workload::of_hashes(&trace, None).unwrap();
        let mut seen: HashSet<u64> = HashSet::new();
        let mut cached = 0;
        for request in &trace {
            let tokens = request.input_tokens as usize;
            let looked_up = request.hash_ids.iter().take((tokens - 1) / size);
            cached += looked_up.take_while(|id| seen.contains(id)).count() * size;
            seen.extend(&request.hash_ids[..tokens / size]);
        }
        let endless = SimulateOptions { replicas: 1, ..options(&workload, 1 << 30) };
        let endless = SimulateOptions { belief_blocks: Some(100), ..endless };
        let one = Report::of(&play(&workload, &endless, Policy::Random));
        assert_eq!((one.hit_tokens, one.of_ceiling), (cached as u64, 1.0), "{name}");
        let many = Report::of(&play(&workload, &options(&workload, cache_tokens), Policy::Random));
        assert!((many.of_ceiling - many.hit_tokens as f64 / cached as f64).abs() < 1e-12, "{name}");
    }
}

/// The session of a request reaches the figures: in turn over eight replicas, every request is elsewhere than the last.
#[test]
fn sessions_are_groups() {
    let trace = hashed::read(&fixture("taubench_airline_bs64")).unwrap();
    let workload = Workload::of_hashes(&trace, None).unwrap();
    let sessions: HashSet<_> = trace.iter().map(|request| request.session.clone().unwrap()).collect();
    let alone = SimulateOptions { replicas: 1, ..options(&workload, 20_000) };
    let alone = Report::of(&play(&workload, &alone, Policy::Prefix));
    assert_eq!((alone.groups_on_one, alone.groups, alone.moves), (sessions.len(), sessions.len(), 0));
    let turns = Report::of(&play(&workload, &options(&workload, 20_000), Policy::RoundRobin));
    assert!(turns.moves > trace.len() / 2 && turns.groups_on_one < sessions.len(), "{turns:?}");
    let prefix = Report::of(&play(&workload, &options(&workload, 20_000), Policy::Prefix));
    assert!(prefix.moves < turns.moves && prefix.hit_rate > turns.hit_rate, "{prefix:?}");
}

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: SimulateArgs,
}

/// What `simulate` prints, or its error and whether it is the operator's.
fn printed(path: &Path, flags: &str) -> Result<String, (String, bool)> {
    let words = ["simulate", path.to_str().unwrap()].into_iter().chain(flags.split_whitespace());
    let mut out = Vec::new();
    simulate::run(&Command::try_parse_from(words).unwrap().args, &mut out)
        .map_err(|error| (error.to_string(), error.is_usage()))?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn the_command_reads_either_form() {
    let flags = "--replicas 8 --slots 1 --prefill-tps 12000 --eviction tail-first --cache-tokens 6000 --json";
    let text = printed(&fixture("taubench_airline_bs64"), flags).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["requests"], &json["block_size"], &json["skipped_lines"]),
        (&250.into(), &64.into(), &0.into())
    );
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), Policy::ALL.len());
    for figure in [
        "hit_rate",
        "of_ceiling",
        "imbalance",
        "worst_window",
        "request_imbalance",
        "ttft_p50_ms",
        "ttft_p95_ms",
        "ttft_p99_ms",
        "queue_p95_ms",
        "stall_p95_ms",
        "decode_p95_ms",
        "apart",
        "groups_on_one",
        "groups",
        "moves",
        "lost",
    ] {
        assert!(runs.iter().all(|run| run[figure].is_number()), "{figure}");
    }
    let table = printed(&fixture("mooncake_conversation"), "--show-decisions 1 --policy prefix").unwrap();
    assert!(table.starts_with("   1  -  prefix -> replica-"), "{table}");
    assert!(table.contains("; prefix 3 x 0.00 + queue 2 x 1.00 + "), "{table}");
    assert!(table.contains("of ceiling") && table.contains("worst window"), "{table}");
}

/// A file with this text, removed at the end.
struct File(PathBuf);

impl File {
    fn of(name: &str, text: &str) -> Self {
        let name = format!("prefixroute-simulate-{}-{name}.jsonl", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn bad_traces_are_the_operators_fault() {
    const GOOD: &str = r#"{"timestamp":20,"input_length":9,"output_length":7,"hash_ids":[0]}"#;
    for (name, line, want) in [
        ("broken", r#"{"timestamp":20,"#, ".jsonl:2:16: "),
        (
            "back",
            r#"{"timestamp":19,"input_length":9,"output_length":7,"hash_ids":[0]}"#,
            ".jsonl:2:2: timestamp: found 19",
        ),
        ("missing", r#"{"timestamp":20,"input_length":9,"hash_ids":[0]}"#, "missing field `output_length`"),
        (
            "range",
            r#"{"timestamp":20,"input_length":9,"output_length":7,"hash_ids":[-1]}"#,
            "wanted a hash id|expected a hash id",
        ),
        (
            "count",
            r#"{"timestamp":20,"input_length":9,"output_length":7,"hash_ids":[0,1,2]}"#,
            "request 1: found 1 hash ids, wanted 3 for 9 tokens in blocks of 4; --skip-bad leaves it out",
        ),
    ] {
        let file = File::of(name, &format!("{GOOD}\n{line}\n"));
        let (error, usage) = printed(&file.0, "").unwrap_err();
        assert!(want.split('|').any(|want| error.contains(want)) && usage, "{name}: {error}");
    }
    let (error, usage) = printed(&File::of("empty", "\n").0, "").unwrap_err();
    assert!(error.ends_with(": found no request") && usage, "{error}");

    let skipped = File::of("skipped", &format!("{GOOD}\nnonsense\n{GOOD}\n"));
    assert!(printed(&skipped.0, "").unwrap_err().0.contains(".jsonl:2:2: "));
    let text = printed(&skipped.0, "--skip-bad --policy random").unwrap();
    assert!(text.starts_with("1 bad line left out, the first of them:\n  "), "{text}");
    let json: Value = serde_json::from_str(&printed(&skipped.0, "--skip-bad --json").unwrap()).unwrap();
    assert_eq!((&json["requests"], &json["skipped_lines"]), (&2.into(), &1.into()));

    let (error, usage) = printed(&skipped.0, "--block-size 4 --skip-bad").unwrap_err();
    assert!(error.contains(": found no good line among 3, the first is ") && usage, "{error}");
    let odd = r#"{"timestamp":20,"input_length":900,"output_length":7,"hash_ids":[0]}"#;
    let some = File::of("some", &format!("{GOOD}\n{GOOD}\n{odd}\n"));
    let error = printed(&some.0, "--block-size 16").unwrap_err().0;
    assert!(error.ends_with(
        "request 3: found 1 hash ids, wanted 57 for 900 tokens in blocks of 16; --skip-bad leaves it out"
    ));
    let json: Value =
        serde_json::from_str(&printed(&some.0, "--block-size 16 --skip-bad --json").unwrap()).unwrap();
    assert_eq!((&json["requests"], &json["skipped_lines"]), (&2.into(), &1.into()));
    let good = r#"{"at":0,"group":"g","body":{"prompt":"a b c"}}"#;
    let without_text =
        File::of("without-text", &format!("{good}\n{}\n", r#"{"at":0,"group":"g","body":{"model":"m"}}"#));
    let error = printed(&without_text.0, "").unwrap_err().0;
    let want = "request 2: found none of messages, prompt and input";
    assert!(error.ends_with(&format!("{want}; --skip-bad leaves it out")), "{error}");
    let text = printed(&without_text.0, "--skip-bad").unwrap();
    assert!(text.starts_with(&format!("1 bad line left out, the first of them:\n  {want}\n")), "{text}");
    let (error, usage) = printed(&skipped.0, "--skip-bad --replicas 0").unwrap_err();
    assert!(error.ends_with("replicas: found 0, wanted 1 to 1024") && usage, "{error}");
}

/// The second lesson's own figures, to the digits that it prints.
#[test]
fn the_built_in_workload_gives_its_published_figures() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/demo3/expected.json");
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let runs = expected["runs"].as_array().unwrap();
    let runs: Vec<_> =
        runs.iter().filter(|run| run["config"] == "default" && run["seed"].as_u64() <= Some(3)).collect();
    assert_eq!(runs.len(), 6);
    for run in runs {
        let variant = if run["variant"] == "keyed-by-conversation" { "keyed" } else { "new-text" };
        let flags = format!("--demo3={variant} --demo3-seed {} --policy round-robin --json", run["seed"]);
        let words = ["simulate"].into_iter().chain(flags.split(' '));
        let mut out = Vec::new();
        simulate::run(&Command::try_parse_from(words).unwrap().args, &mut out).unwrap();
        let json: Value = serde_json::from_slice(&out).unwrap();
        let got = &json["runs"][0];
        for (figure, want, digits) in [
            ("hit_rate", &run["round_robin"][0], 5e-7),
            ("imbalance", &run["round_robin"][1], 5e-5),
            ("worst_window", &run["round_robin"][3], 5e-5),
        ] {
            let (got, want) = (got[figure].as_f64().unwrap(), want.as_f64().unwrap());
            assert!((got - want).abs() <= digits, "{flags}: {figure} {got}, wanted {want}");
        }
        let best = got["hit_rate"].as_f64().unwrap() / got["of_ceiling"].as_f64().unwrap();
        assert!((best - run["oracle_infinite"].as_f64().unwrap()).abs() <= 5e-7, "{flags}: {best}");
    }
}
