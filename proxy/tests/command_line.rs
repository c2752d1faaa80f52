//! The command line as it is built. That this file exists also makes `cargo test` build the binary that the suites in
//! `tests/` drive.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prefixroute")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn it_tells_its_version() {
    let output = run(&["--version"]);
    assert_eq!(text(&output.stdout).trim(), concat!("prefixroute ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_has_an_example() {
    for command in ["serve", "check", "pool", "demo", "fake-server"] {
        let output = run(&[command, "--help"]);
        assert!(text(&output.stdout).contains(&format!("prefixroute {command} ")), "{command}");
    }
}

#[test]
fn a_good_file_passes_and_a_bad_one_is_named_with_its_line() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let example = format!("{folder}/../deploy/examples/replace-a-service.yaml");
    assert!(run(&["check", &example]).status.success());
    let bad = format!("{folder}/tests/fixtures/typo.yaml");
    let output = run(&["check", &bad]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("typo.yaml:2:1"), "{}", text(&output.stderr));
}

#[test]
fn configurations_of_llm_d_pass_as_they_are() {
    let example = |name: &str| format!("{}/../deploy/examples/llm-d/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let output = run(&["check", &example("default"), &example("sticky-until-saturated")]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

/// A fixture of the configuration's tests.
fn pool_file(name: &str) -> String {
    format!("{}/../config/tests/fixtures/pool/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_pool_is_its_endpoints_or_all_its_problems() {
    let lines = "sim-0-rank-0 10.0.0.1:8000\nsim-0-rank-1 10.0.0.1:8001\nsim-1-rank-0 10.0.0.2:8000\nsim-1-rank-1 10.0.0.2:8001\n";
    let flags = "--endpoint sim-0=http://10.0.0.1:8000 --endpoint sim-1=http://10.0.0.2:8000 --endpoint sim-2=http://10.0.0.3:8000\n";
    let wants_h2c = "pool default/sim-pool wants kubernetes.io/h2c; serve speaks HTTP/1.1 to engines\n";
    for (arguments, code, stdout, stderr) in [
        (vec!["pool", &pool_file("two_ports.json")], 0, lines, ""),
        (vec!["pool", &pool_file("ok.json"), "--args"], 0, flags, ""),
        (vec!["pool", &pool_file("h2c.json")], 0, "sim-0 10.0.0.1:8000\n", wants_h2c),
        (vec!["pool", &pool_file("no_pods.json")], 0, "", "pool default/sim-pool has no ready pod\n"),
    ] {
        let output = run(&arguments);
        assert_eq!((text(&output.stdout), text(&output.stderr)), (stdout, stderr), "{arguments:?}");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
    for (file, problems) in [("several_problems.json", 3), ("no_pool.json", 1), ("there_is_none.json", 1)] {
        let output = run(&["pool", &pool_file(file), "--args"]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{file}");
        assert_eq!(text(&output.stderr).lines().count(), problems, "{file}: {}", text(&output.stderr));
    }
}

#[test]
fn a_pool_is_read_from_standard_input() {
    let output = Command::new(env!("CARGO_BIN_EXE_prefixroute"))
        .args(["pool", "-"])
        .stdin(std::fs::File::open(pool_file("labels.json")).unwrap())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "sim-4 10.0.0.4:8000\n");
}

#[test]
fn what_holds_is_explained_with_origins() {
    let example = format!("{}/../deploy/examples/replace-a-service.yaml", env!("CARGO_MANIFEST_DIR"));
    let output = run(&["check", "--explain", &example]);
    assert!(output.status.success());
    let told = text(&output.stdout);
    let written = std::fs::read_to_string(&example).unwrap();
    let at = written.lines().position(|line| line.starts_with("drain: ")).unwrap() + 1;
    let drain = format!("yaml:{at}:8");
    for (value, origin) in [("drain: 30s", &*drain), ("pools[0].policy: expected-ttft", "# default")] {
        let line = told.lines().find(|line| line.starts_with(value));
        assert!(line.is_some_and(|line| line.ends_with(origin)), "{value} {origin}: {told}");
    }
}

/// The command of the documentation, on a clone without a secret.
#[test]
fn every_example_passes_where_no_secret_is() {
    let folder = format!("{}/../deploy/examples", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    let files: Vec<String> = files.map(|path| path.to_str().unwrap().to_owned()).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let edge = *files.iter().find(|file| file.ends_with("edge.yaml")).unwrap();
    let output = run(&[&["check", "--without-secrets"], files.as_slice()].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stderr);
    assert!(told.contains(&format!("{edge}: 10 secrets and certificates were not read\n")), "{told}");
    assert!(!told.contains("replace-a-service.yaml"), "nothing is said of a file without any: {told}");
    let output = run(&["check", edge]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cache_salt_secret: found ${CACHE_SALT_SECRET}, a variable"));
}

#[test]
fn the_schema_is_printed() {
    let output = run(&["check", "--schema"]);
    assert_eq!(text(&output.stdout), include_str!("../../deploy/prefixroute.schema.json"));
    assert_eq!(run(&["check"]).status.code(), Some(2), "nothing to check");
}

#[test]
fn an_unknown_command_is_a_usage_error() {
    assert_eq!(run(&["serv"]).status.code(), Some(2));
}
