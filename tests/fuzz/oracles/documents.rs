//! Documents of Kubernetes and llm-d: they hold or have faults, each with its place, and what they give can be used.
//!
//! The first byte chooses, `1` an EndpointPickerConfig, `2` an InferencePool with its Pods; the rest is the text.

use std::path::Path;

use config::{Faults, Flags, Outside, inference_pool, load, scheduler, tree};

struct Nothing;

impl Outside for Nothing {
    fn variable(&self, _: &str) -> Result<String, String> {
        Err("a variable that is not set".to_owned())
    }

    fn file(&self, _: &Path) -> Result<Vec<u8>, String> {
        Err("No such file or directory".to_owned())
    }
}

/// Runs the oracle. Panics where it does not hold.
pub(crate) fn run(data: &[u8]) {
    let Some((first, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    if first & 1 == 1 { endpoint_picker(text) } else { pool(text) }
}

/// What is read of a document by itself is what a router loads.
fn endpoint_picker(text: &str) {
    let read = scheduler::read("f", text);
    if let Err(faults) = &read {
        have_places(faults);
    }
    let loaded = load(Some(("f", text)), &Flags::default(), &Nothing);
    match (&read, &loaded) {
        (Ok(scheduler), Ok(loaded)) => assert_eq!(loaded.config.pools[0].policy, scheduler.policy),
        (Err(_), Ok(_)) => {
            let node = tree::document("f", text).ok().and_then(|(node, _)| node);
            let is_theirs = node.as_ref().is_some_and(scheduler::is_scheduler);
            assert!(!is_theirs, "faults are faults in both");
        }
        (_, Err(faults)) => have_places(faults),
    }
}

/// A pool's endpoints are such as a router takes.
fn pool(text: &str) {
    let pool = match inference_pool::resolve("f", text) {
        Ok(pool) => pool,
        Err(faults) => return have_places(&faults),
    };
    let endpoints: Vec<String> = pool.endpoints.iter().map(ToString::to_string).collect();
    let count = endpoints.len();
    if count > 0 {
        let loaded = load(None, &Flags { endpoints, ..Flags::default() }, &Nothing);
        let loaded = loaded.unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(loaded.config.pools[0].endpoints.len(), count);
    }
}

fn have_places(faults: &Faults) {
    let told = faults.to_string();
    assert!(faults.iter().next().is_some(), "no fault");
    assert_eq!(told.lines().count(), faults.iter().count(), "{told}");
    assert!(told.lines().all(|line| line.starts_with("f:")), "{told}");
}
