//! What operators read in `deploy/README.md` is what the router does: its metrics, its headers, its access log.
//!
//! The keys are held by `config/tests/documents.rs`, the statuses by `proxy/src/request/reply.rs`.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::{DEADLINE, Setup, Stub, exchange, post, prompts, until};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const README: &str = include_str!("../deploy/README.md");

/// Cells of each row of the table behind a mark, without backquotes.
fn rows(mark: &str) -> Vec<Vec<String>> {
    let (_, rest) = README.split_once(&format!("<!-- {mark}: ")).expect("a mark before the table");
    let (table, _) = rest.split_once(&format!("<!-- end of {mark} -->")).expect("a mark behind the table");
    let lines = table.lines().filter(|line| line.starts_with("| `"));
    let cell = |cell: &str| cell.trim().replace('`', "");
    lines.map(|line| line.trim_matches('|').split('|').map(cell).collect()).collect()
}

/// A router with everything that shows a series or writes a line, and a request that has ended.
async fn busy() -> (Stub, harness::Router) {
    let stub = Stub::start().await;
    let setup = Setup::of(&[&stub]).yaml("tenants: [{name: t, keys: [\"file:key\"]}]\naccess_log: stdout");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(folder.path().join("key"), "sk-t").unwrap();
    std::fs::write(&file, setup.file()).unwrap();
    let router = harness::Router::run(folder, file).await;
    let mut request = post("/v1/chat/completions", prompts::cold(1));
    let head = request.windows(2).position(|pair| pair == b"\r\n").expect("a request line") + 2;
    request.splice(head..head, b"x-api-key: sk-t\r\n".iter().copied());
    assert_eq!(exchange(router.data, request).await.status(), 200);
    (stub, router)
}

/// Kind and labels of each family on a page; the histograms' own label aside.
fn families(page: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut found: BTreeMap<String, (String, BTreeSet<String>)> =
        types.map(|(name, kind)| (name.to_owned(), (kind.to_owned(), BTreeSet::new()))).collect();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        let labels =
            rest.split_once('}').expect("closed").0.split(',').map(|pair| pair.split_once('=').unwrap().0);
        let family = found.get_mut(name).unwrap_or_else(|| panic!("{name} has no type"));
        family.1.extend(labels.filter(|label| *label != "le").map(str::to_owned));
    }
    found
}

#[tokio::test]
async fn every_metric_is_told_with_its_type_and_labels() {
    let (_stub, router) = busy().await;
    let told: BTreeMap<_, _> = rows("metrics")
        .into_iter()
        .map(|row| {
            let labels = row[2].split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
            (row[0].clone(), (row[1].clone(), labels))
        })
        .collect();
    assert_eq!(told.len(), rows("metrics").len(), "each once");
    let found = families(&router.metrics().await);
    for (name, family) in &found {
        assert_eq!(told.get(name), Some(family), "{name} as the router has it");
    }
    let lacking: Vec<_> = told.keys().filter(|name| !found.contains_key(*name)).collect();
    assert!(lacking.is_empty(), "told, and not there: {lacking:?}");
}

#[tokio::test]
async fn every_field_of_the_access_log_is_told_in_its_order() {
    let (_stub, router) = busy().await;
    let line = until("a line of the access log", DEADLINE, || async {
        router.output().lines().find(|line| line.contains("\"request_bytes\"")).map(str::to_owned)
    })
    .await;
    let told: Vec<_> = rows("fields").into_iter().map(|row| row[0].clone()).collect();
    // Values hold no commas before a quoted name and a colon.
    let inner = line.trim_start_matches('{').trim_end_matches('}');
    let fields =
        inner.split(",\"").map(|field| field.trim_start_matches('"').split('"').next().unwrap().to_owned());
    assert_eq!(told, fields.collect::<Vec<_>>());
}

/// Sources that read or write headers, without their tests.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.file_name().and_then(|name| name.to_str()) {
            _ if path.is_dir() => sources(&path, found),
            // Names of what clients and engines say in bodies and on pages.
            Some("tests.rs") => {}
            _ => {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push(text.split("\n#[cfg(test)]\n").next().unwrap().to_owned());
            }
        }
    }
}

/// Every header that the sources name: by the constants of `http`, and by texts that can be nothing else.
fn named(source: &str) -> BTreeSet<String> {
    let constants = source.split("header::").skip(1).map(|rest| {
        let end =
            rest.find(|letter: char| !(letter.is_ascii_uppercase() || letter == '_')).unwrap_or(rest.len());
        rest[..end].to_ascii_lowercase().replace('_', "-")
    });
    let is_name = |text: &&str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let texts = source.split("HeaderName::from_static(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let ours = source.split('"').filter(|text| text.starts_with("x-"));
    let listed = source
        .split_once("const HOP_BY_HOP")
        .and_then(|(_, rest)| rest.split_once("];"))
        .unwrap_or_default()
        .0;
    let hops = listed.split('"').skip(1).step_by(2);
    let parent =
        source.split("const TRACEPARENT: &str = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let all = constants.filter(|name| !name.is_empty());
    all.chain(texts.chain(ours).chain(hops).chain(parent).filter(is_name).map(str::to_owned)).collect()
}

#[test]
fn every_header_is_told() {
    let proxy: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("proxy/src");
    let mut texts = Vec::new();
    ["request", "edge"].into_iter().for_each(|folder| sources(&proxy.join(folder), &mut texts));
    let known: BTreeSet<_> = texts.iter().flat_map(|text| named(text)).collect();
    assert!(known.len() > 40, "{known:?}");
    let told: BTreeSet<_> = rows("headers").into_iter().map(|row| row[0].clone()).collect();
    let untold: Vec<_> = known.difference(&told).collect();
    assert!(untold.is_empty(), "not told: {untold:?}");
    let strange: Vec<_> = told.difference(&known).collect();
    assert!(strange.is_empty(), "told, and nowhere in the sources: {strange:?}");
}
