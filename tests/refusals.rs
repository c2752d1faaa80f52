//! Input that `serve` refuses: one clear line on stderr, exit 2, nothing started.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::Client;
use harness::router::{free_addresses, run};
use std::path::PathBuf;
use tempfile::TempDir;

/// Starts with flags that must be refused: one clear line, exit 2, and nothing listens.
async fn refuses(arguments: &[&str], naming: &[&str]) {
    let [data, admin] = free_addresses().map(|address| address.to_string());
    let listening = ["serve", "--listen", &data, "--admin", &admin];
    let run = run(&[listening.as_slice(), arguments].concat()).await;
    assert_eq!(run.code, 2, "{arguments:?}: {run:?}");
    assert_eq!(run.stderr.trim_end().lines().count(), 1, "one line: {run:?}");
    for word in naming {
        assert!(run.stderr.contains(word), "{word:?} in {run:?}");
    }
    assert!(Client::try_connect(data.parse().unwrap()).await.is_err(), "something listens on {data}");
}

#[tokio::test]
async fn a_duplicate_name_is_refused() {
    let endpoint = ["--endpoint", "same=http://127.0.0.1:1", "--endpoint", "same=http://127.0.0.1:2"];
    refuses(&endpoint, &["same"]).await;
}

#[tokio::test]
async fn a_url_without_a_host_is_refused() {
    refuses(&["--endpoint", "a=http://"], &["http://"]).await;
    refuses(&["--endpoint", "a=http://:8000"], &["http://:8000"]).await;
}

#[tokio::test]
async fn a_url_that_says_more_than_an_address_is_refused() {
    for url in ["ftp://h:1", "http://h:1/path", "http://h:1?q=1", "http://user@h:1", "h:1", "http://h:99999"]
    {
        refuses(&["--endpoint", &format!("a={url}")], &["a"]).await;
    }
}

#[tokio::test]
async fn an_unknown_policy_is_refused_with_the_known_ones() {
    refuses(&["--endpoint", "a=http://127.0.0.1:1", "--policy", "fastest"], &["fastest", "round-robin"])
        .await;
}

#[tokio::test]
async fn a_port_in_use_is_refused_and_nothing_else_starts() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = taken.local_addr().unwrap().to_string();
    let [free] = free_addresses().map(|address| address.to_string());
    for (data, admin) in [(&in_use, &free), (&free, &in_use)] {
        let run =
            run(&["serve", "--endpoint", "a=http://127.0.0.1:1", "--listen", data, "--admin", admin]).await;
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.lines().any(|line| line.contains(&in_use)), "{run:?}");
        assert!(Client::try_connect(free.parse().unwrap()).await.is_err(), "something listens on {free}");
    }
}

fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

#[tokio::test]
async fn faults_of_a_file_are_one_line_each_with_their_place() {
    for (text, places) in [
        ("pools:\n- endpoints:\n  - url: http://127.0.0.1:1\nsped: 3\n", &[":4:1: sped"][..]),
        (
            "pools:\n- endpoints:\n  - url: http://\n  policy: fastest\nsped: 3\n",
            &[":3:10: pools[0].endpoints[0].url", ":4:11: pools[0].policy", ":5:1: sped"],
        ),
        ("pools:\n- load:\n    scrape_interval: often\n", &[":3:22: pools[0].load.scrape_interval"]),
    ] {
        let (_folder, path) = file(text);
        let path = path.to_str().unwrap();
        let run = run(&["serve", "--config", path]).await;
        assert_eq!(run.code, 2, "{run:?}");
        let lines: Vec<_> = run.stderr.lines().collect();
        assert_eq!(lines.len(), places.len(), "{run:?}");
        for place in places {
            let wanted = format!("{path}{place}");
            assert!(lines.iter().any(|line| line.contains(&wanted)), "{wanted} in {run:?}");
        }
    }
}

#[tokio::test]
async fn a_missing_or_broken_file_is_refused() {
    refuses(&["--config", "/nonexistent/config.yaml"], &["/nonexistent/config.yaml"]).await;
    let (_folder, path) = file("endpoints: [\n");
    refuses(&["--config", path.to_str().unwrap()], &["config.yaml"]).await;
}

/// Flags alone suffice, and `--help` shows an example.
#[tokio::test]
async fn help_has_an_example() {
    let run = run(&["serve", "--help"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("prefixroute serve --endpoint"), "{run:?}");
}

#[tokio::test]
async fn an_unknown_flag_is_a_usage_error() {
    assert_eq!(run(&["serve", "--no-such-flag"]).await.code, 2);
    assert_eq!(run(&["no-such-command"]).await.code, 2);
}
