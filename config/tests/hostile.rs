//! Whatever the text is: a configuration or faults, in bounded time, and no panic.
#![allow(clippy::unwrap_used, clippy::panic)]

mod given;

use std::time::{Duration, Instant};

use config::{Flags, load};
use given::{EVERY_KEY, Given, file};
use proptest::prelude::*;

/// Far above what any text of the largest size took when this was written, unoptimised and on a busy machine.
const AT_MOST: Duration = Duration::from_secs(10);

#[test]
fn the_worst_texts_are_faults_and_cheap() {
    let aliases =
        |level: usize| format!("a{level}: &a{level} [{}]\n", format!("*a{}, ", level - 1).repeat(10));
    let bomb: String = (1..9).map(aliases).collect();
    let replayed = format!("pools: [{{endpoints: [&e {{name: a, url: u}}{}]}}]\n", ", *e".repeat(100_000));
    let unknown: String = (0..90_000).map(|number| format!("k{number}: 1\n")).collect();
    for (shows, text) in [
        ("lists in lists", "[".repeat(500_000)),
        ("maps in maps", "{a: ".repeat(200_000)),
        ("blocks in blocks", "- ".repeat(500_000)),
        ("keys in keys", "? ".repeat(500_000)),
        ("lists under a key", format!("drain: {}", "[".repeat(500_000))),
        ("a bomb of aliases", format!("drain: &a0 [x]\n{bomb}")),
        ("an alias for each endpoint", replayed),
        ("unknown keys", unknown),
        ("the same key", "drain: 1s\n".repeat(100_000)),
        ("pools without names", format!("pools:\n{}", "- a\n".repeat(200_000))),
        ("documents", "---\n".repeat(200_000)),
        ("comments", "#\n".repeat(500_000)),
        ("a long value", format!("drain: {}", "1".repeat(1_000_000))),
        ("a long key", format!("{}: 1", "k".repeat(1_000_000))),
        ("a longer file", " ".repeat(2_000_000)),
        ("NUL", "\0".to_owned()),
    ] {
        let start = Instant::now();
        let faults = file(&text).map(|_| ()).expect_err(shows);
        assert!(start.elapsed() < AT_MOST, "{shows}: {:?}", start.elapsed());
        assert!(faults.len() < 256 * 600, "{shows}: {}", faults.len());
        assert!(faults.lines().count() <= 256, "{shows}");
    }
}

/// Text that is often YAML: fragments of it, joined at random.
fn yaml_like() -> impl Strategy<Value = String> {
    let lines: Vec<&str> = EVERY_KEY.lines().collect();
    let odd = vec![
        "- ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "'",
        "\"",
        "|\n",
        "---\n",
        "\t",
        "!!int ",
        "<<: ",
        "é",
        "0",
        "~",
        "  ",
        "    ",
        "null",
        "${CHAT_KEY}",
        "file:tls/edge.key",
        "-1",
    ];
    let piece = prop_oneof![
        4 => prop::sample::select(lines).prop_map(|line| format!("{line}\n")),
        1 => prop::sample::select(odd).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// The file with every key, with a few lines cut, repeated, moved or filled with something else.
fn mutated() -> impl Strategy<Value = String> {
    let change = (0..EVERY_KEY.lines().count(), 0..5_usize, "[ -~]{0,12}");
    prop::collection::vec(change, 1..6).prop_map(|changes| {
        let mut lines: Vec<String> = EVERY_KEY.lines().map(str::to_owned).collect();
        for (at, kind, text) in changes {
            let at = at % lines.len();
            match kind {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 => lines.swap(at, 0),
                3 => lines[at].push_str(&text),
                _ => lines[at] = format!("{}{text}", lines[at].split(':').next().unwrap()),
            }
        }
        lines.join("\n")
    })
}

/// Each fault on a line of its own, with a place, and never what a secret holds.
fn holds(text: &str, flags: &Flags) {
    let start = Instant::now();
    if let Err(faults) = load(Some(("f", text)), flags, &Given::cheap()) {
        let shown = faults.to_string();
        assert_eq!(shown.lines().count(), faults.iter().count(), "{shown}");
        assert!(shown.lines().all(|line| line.starts_with("f:") || line.starts_with("--")), "{shown}");
        assert!(!shown.contains("sk-chat-1"), "{shown}");
    }
    assert!(start.elapsed() < AT_MOST);
}

proptest! {
    /// Any bytes that are text, and any flags.
    #[test]
    fn no_text_panics(text in prop_oneof![yaml_like(), any::<String>(), mutated()], flag in any::<String>()) {
        let given = Flags {
            endpoints: vec![flag.clone()],
            policy: Some(flag.clone()),
            listen: Some(flag.clone()),
            admin: Some(flag),
            port: None,
        };
        holds(&text, &given);
        holds(&text, &Flags::default());
    }

    /// Any bytes, as far as they are UTF-8, in the place of a part of the file.
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), at in 0..EVERY_KEY.len()) {
        let start = (0..=at).rev().find(|at| EVERY_KEY.is_char_boundary(*at)).unwrap();
        let text = format!("{}{}{}", &EVERY_KEY[..start], String::from_utf8_lossy(&bytes), &EVERY_KEY[start..]);
        holds(&text, &Flags::default());
    }
}
