//! Whatever a document of Kubernetes or llm-d says: it holds or has faults, in bounded time, and nothing panics.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::{Duration, Instant};

use config::{inference_pool, scheduler};
use proptest::prelude::*;

const SCHEDULER: &str = include_str!("../../deploy/examples/llm-d/sticky-until-saturated.yaml");
const POOL: &str = include_str!("fixtures/pool/two_ports.json");

/// Far above what any text of the largest size took when this was written, unoptimised and on a busy machine.
const AT_MOST: Duration = Duration::from_secs(20);

#[test]
fn the_worst_texts_are_faults_and_cheap() {
    let head = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n";
    let pool = "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\n";
    let labels: String = (0..90_000).map(|number| format!("l{number}: a, ")).collect();
    let spec = "spec: {selector: {matchLabels: {a: b}}, targetPorts: [{number: 1}]}\n";
    let pods = "---\nkind: Pod\nmetadata: {name: a}\n".repeat(30_000);
    for (shows, text) in [
        ("plugins", format!("{head}plugins:\n{}", "- type: a\n".repeat(90_000))),
        (
            "fields",
            format!("{head}{}", (0..90_000).map(|number| format!("k{number}: 1\n")).collect::<String>()),
        ),
        (
            "references",
            format!("{head}schedulingProfiles: [{{name: a, plugins: [{}]}}]\n", "a, ".repeat(200_000)),
        ),
        ("gates", format!("{head}featureGates: [{}]\n", "a, ".repeat(200_000))),
        ("labels", format!("{pool}spec: {{selector: {{matchLabels: {{{labels}}}}}}}\n")),
        ("ports", format!("{pool}spec: {{targetPorts: [{}]}}\n", "{number: 0}, ".repeat(70_000))),
        ("one pod often", format!("{pool}{spec}{pods}")),
        ("lists in lists", "{kind: List, items: [".repeat(40_000)),
        ("pools", format!("{pool}---\n").repeat(9_000)),
    ] {
        let start = Instant::now();
        assert!(scheduler::read("f", &text).is_err(), "{shows}");
        let told = inference_pool::resolve("f", &text).expect_err(shows).to_string();
        assert!(start.elapsed() < AT_MOST, "{shows}: {:?}", start.elapsed());
        assert!(told.lines().count() <= 256, "{shows}");
    }
}

/// A text with a few lines cut, repeated, or filled with something else.
fn mutated(text: &'static str) -> impl Strategy<Value = String> {
    let change = (0..text.lines().count(), 0..4_usize, "[ -~]{0,12}");
    prop::collection::vec(change, 1..6).prop_map(move |changes| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (at, kind, text) in changes {
            let at = at % lines.len();
            match kind {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 => lines[at].push_str(&text),
                _ => lines[at] = format!("{}: {text}", lines[at].split(':').next().unwrap()),
            }
        }
        lines.join("\n")
    })
}

proptest! {
    /// Each fault on a line of its own, with its place.
    #[test]
    fn no_text_panics(text in prop_oneof![mutated(SCHEDULER), mutated(POOL), any::<String>()]) {
        let faults = [scheduler::read("f", &text).err(), inference_pool::resolve("f", &text).err()];
        for faults in faults.into_iter().flatten() {
            let told = faults.to_string();
            prop_assert_eq!(told.lines().count(), faults.iter().count());
            prop_assert!(told.lines().all(|line| line.starts_with("f:")), "{}", told);
        }
    }
}
