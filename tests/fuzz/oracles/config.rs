//! Configurations: they load or have faults, each with its place; what loads can be explained and checked without secrets.
//!
//! The text up to a NUL is the configuration; what follows it is the further file that it may name.

use std::path::Path;

use config::{Fault, Flags, Outside, check_without_secrets, explain, load};

/// What variables and files of keys hold; it must never be shown.
const SECRET: &str = "hunter2-hunter2-hunter2";
const FAULTS_MAX: usize = 256;

struct Given<'a> {
    further: &'a str,
}

impl Outside for Given<'_> {
    fn variable(&self, name: &str) -> Result<String, String> {
        if name.len() < 9 { Ok(SECRET.to_owned()) } else { Err("a variable that is not set".to_owned()) }
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") => Ok(self.further.into()),
            Some("key") => Ok(SECRET.into()),
            _ => Err("No such file or directory".to_owned()),
        }
    }
}

/// Runs the oracle. Panics where it does not hold.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, further) = text.split_once('\0').unwrap_or((text, "endpoints: []"));
    let outside = Given { further };
    let shows = |shown: &str| shown.contains(SECRET) && !text.contains(SECRET) && !further.contains(SECRET);
    match load(Some(("f", text)), &Flags::default(), &outside) {
        Ok(loaded) => {
            let explained = explain(&loaded.settings);
            assert_eq!(explained.lines().count(), loaded.settings.len(), "{explained}");
            assert!(
                explained.lines().all(|line| line.contains(": ") && line.contains("  # ")),
                "{explained}"
            );
            assert!(!shows(&explained) && !shows(&format!("{:?}", loaded.config)), "a secret is shown");
            let lines = 1 + text.matches(['\n', '\r']).count();
            for setting in &loaded.settings {
                assert!(is_origin(&setting.origin, lines), "{setting:?}");
            }
            let checked = check_without_secrets(("f", text), &Flags::default(), &outside).expect("it loads");
            assert_eq!(checked.settings, loaded.settings);
        }
        Err(faults) => {
            let told: Vec<&Fault> = faults.iter().collect();
            assert!((1..=FAULTS_MAX).contains(&told.len()));
            let shown = faults.to_string();
            assert_eq!(shown.lines().count(), told.len(), "{shown}");
            assert!(told.iter().all(|fault| is_place(&fault.place)), "{shown}");
            assert!(!shows(&shown), "a secret is shown");
        }
    }
}

/// `default`, or a place in a file.
fn is_origin(origin: &str, lines: usize) -> bool {
    let line = origin.strip_prefix("f:").and_then(|place| place.split_once(':')?.0.parse::<usize>().ok());
    line.is_none_or(|line| (1..=lines).contains(&line)) && !origin.is_empty() && !origin.contains('\n')
}

/// `f`, `f:line:column`, or a further file by its name.
fn is_place(place: &str) -> bool {
    let number =
        |text: Option<&str>| text.is_none_or(|text| text.parse::<u32>().is_ok_and(|number| number > 0));
    let mut parts = place.rsplit(':');
    let is_numbered = place == "f" || number(parts.next()) && number(parts.next());
    !place.is_empty() && (is_numbered || place.contains(".yaml"))
}
