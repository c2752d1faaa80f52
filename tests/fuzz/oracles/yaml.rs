//! YAML as a tree: every value has its place in the text, no key stands twice, and JSON reads as serde_json reads it.

use config::tree::{At, Bounds, Map, Node, Scalar, Value, documents_within};

use super::json::{Members, elements};

/// Small, so that small texts reach them.
const BOUNDS: Bounds = Bounds { bytes: 2_048, nodes: 400 };
const LEVELS_MAX: usize = 64;

/// Runs the oracle. Panics where it does not hold.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = documents_within("f", text, BOUNDS);
    let documents = match read {
        Ok(documents) => documents,
        Err(faults) => {
            let told = faults.to_string();
            assert!(told.starts_with("f:") && told.lines().count() == 1, "{told}");
            return;
        }
    };
    let lines: Vec<usize> = lines(text).map(|line| line.chars().count()).collect();
    let mut count = 0;
    for node in &documents.nodes {
        placed(node, &lines, LEVELS_MAX, &mut count);
    }
    assert!(count <= BOUNDS.nodes && text.len() <= BOUNDS.bytes, "{count} values");
    let told = documents.faults.to_string();
    assert_eq!(told.lines().count(), documents.faults.iter().count(), "{told}");
    if documents.faults.is_empty()
        && let [node] = &documents.nodes[..]
        && Members::of(data).is_some()
    {
        alike(node, text.trim_ascii());
    }
}

/// Lines as YAML ends them.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let ends = |text: &str| {
        text.find(['\n', '\r']).map(|end| if text[end..].starts_with("\r\n") { end + 2 } else { end + 1 })
    };
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let now = rest?;
        rest = ends(now).map(|end| &now[end..]);
        Some(&now[..now.len() - rest.map_or(0, str::len)])
    })
}

fn placed(node: &Node, lines: &[usize], levels: usize, count: &mut usize) {
    *count += 1;
    assert!(levels > 0, "too deep");
    is_place(node.at, lines);
    match &node.value {
        Value::Scalar(_) | Value::Told => {}
        Value::List(items) => items.iter().for_each(|item| placed(item, lines, levels - 1, count)),
        Value::Map(Map(entries)) => {
            for (at, entry) in entries.iter().enumerate() {
                is_place(entry.at, lines);
                assert!(entries[..at].iter().all(|other| other.key != entry.key), "{:?} twice", entry.key);
                placed(&entry.node, lines, levels - 1, count);
            }
        }
    }
}

/// In a line of the text, and not beyond its end.
fn is_place(At { line, column }: At, lines: &[usize]) {
    let chars = (line as usize).checked_sub(1).and_then(|line| lines.get(line));
    assert!(
        chars.is_some_and(|chars| (1..=chars + 1).contains(&(column as usize))),
        "{line}:{column} of {lines:?}"
    );
}

/// What is valid JSON and has no fault means the same by both.
fn alike(node: &Node, json: &str) {
    match &node.value {
        Value::Scalar(Scalar { text, plain: false }) => {
            assert_eq!(serde_json::from_str::<String>(json).ok().as_ref(), Some(text), "{json}");
        }
        Value::Scalar(Scalar { text, plain: true }) => assert_eq!(text, json),
        Value::List(items) => {
            let wanted = elements(json).expect("an array");
            assert_eq!(items.len(), wanted.len(), "{json}");
            items.iter().zip(wanted).for_each(|(item, wanted)| alike(item, wanted));
        }
        Value::Map(Map(entries)) => {
            let wanted = Members::of(json.as_bytes()).expect("an object").0;
            assert_eq!(entries.len(), wanted.len(), "{json}");
            for (entry, (key, value)) in entries.iter().zip(&wanted) {
                assert_eq!(&entry.key, key);
                alike(&entry.node, value);
            }
        }
        Value::Told => panic!("a fault that is not told"),
    }
}
