//! The corpora without libFuzzer: every input is given to its oracle by an ordinary test.

use std::path::Path;

/// Gives every input of `corpus/TARGET` and `found/TARGET` to an oracle; of one that panics, the name stands before it.
pub(crate) fn replay(target: &str, oracle: fn(&[u8])) {
    let fuzz =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace").join("tests/fuzz");
    let mut count = 0;
    for folder in ["corpus", "found"] {
        let Ok(entries) = std::fs::read_dir(fuzz.join(folder).join(target)) else { continue };
        for entry in entries {
            let path = entry.expect("a folder that can be read").path();
            let input = std::fs::read(&path).expect("an input that can be read");
            let held = std::panic::catch_unwind(|| oracle(&input));
            assert!(held.is_ok(), "{} breaks the oracle", path.display());
            count += 1;
        }
    }
    assert!(count > 0, "no input for {target}");
}
