//! A configuration's file that changes under a router, in the ways in which files change.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::row;
use harness::wait::pace;
use harness::{Router, Setup, Stub, prompts, until};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

/// A change is at work within this, on a quiet machine within 2 s.
const AT_WORK_WITHIN: Duration = Duration::from_secs(5);

async fn stubs() -> [Stub; 3] {
    [Stub::start().await, Stub::start().await, Stub::start().await]
}

/// Waits until the router has these endpoints; how long that took.
async fn becomes(router: &Router, names: &[&str]) -> Duration {
    let started = Instant::now();
    until(&format!("endpoints {names:?}"), AT_WORK_WITHIN, || async {
        let state = router.state().await;
        let has_all = names.iter().all(|name| row(&state, name).is_some());
        (has_all && state["endpoints"].as_array()?.len() == names.len()).then_some(())
    })
    .await;
    started.elapsed()
}

/// What kubelet does: a new folder, and a link that is swapped to it.
fn swap(folder: &Path, version: usize, text: &str) {
    let data = folder.join(format!("..v{version}"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("config.yaml"), text).unwrap();
    symlink(format!("..v{version}"), folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    if version > 1 {
        fs::remove_dir_all(folder.join(format!("..v{}", version - 1))).unwrap();
    }
}

// D38
#[tokio::test]
async fn a_config_map_that_is_swapped_is_seen_every_time() {
    let [a, b, c] = stubs().await;
    let folder = tempfile::tempdir().unwrap();
    swap(folder.path(), 1, &Setup::of(&[&a]).file());
    symlink("..data/config.yaml", folder.path().join("config.yaml")).unwrap();
    let (place, file) = (folder.path().to_owned(), folder.path().join("config.yaml"));
    let router = Router::run(folder, file).await;
    becomes(&router, &["a"]).await;
    let steps: [(Setup, &[&str]); 3] = [
        (Setup::of(&[&a, &b]), &["a", "b"]),
        (Setup::of(&[&a, &b, &c]), &["a", "b", "c"]),
        (Setup::of(&[&a]), &["a"]),
    ];
    for (version, (setup, names)) in (2..).zip(steps) {
        swap(&place, version, &setup.file());
        becomes(&router, names).await;
    }
    assert_eq!(router.state().await["config"]["version"], 4);
}

#[tokio::test]
async fn an_editor_that_renames_is_seen_every_time() {
    let [a, b, _] = stubs().await;
    let router = Setup::of(&[&a]).start().await;
    for names in [&["a", "b"][..], &["a"], &["a", "b"]] {
        let setup = if names.len() == 2 { Setup::of(&[&a, &b]) } else { Setup::of(&[&a]) };
        let beside = router.file.with_extension("swp");
        fs::write(&beside, setup.file()).unwrap();
        fs::rename(&beside, &router.file).unwrap();
        becomes(&router, names).await;
    }
}

#[tokio::test]
async fn half_a_file_is_waited_out() {
    let [a, b, _] = stubs().await;
    let router = Setup::of(&[&a]).start().await;
    // The first half is a configuration without endpoints.
    let text = Setup::of(&[&a, &b]).file();
    let half = text.find("    endpoints:").unwrap();
    fs::write(&router.file, &text[..half]).unwrap();
    pace(Duration::from_secs(1)).await;
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
    fs::write(&router.file, &text).unwrap();
    becomes(&router, &["a", "b"]).await;
    assert_eq!(router.state().await["config"]["version"], 2, "nothing between");
}

#[tokio::test]
async fn a_file_that_is_gone_leaves_the_last_good_one_at_work() {
    let [a, b, _] = stubs().await;
    let router = Setup::of(&[&a]).start().await;
    fs::remove_file(&router.file).unwrap();
    router.until_state("the fault", |state| (state["config"]["in_sync"] == false).then_some(())).await;
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
    router.write(Setup::of(&[&a, &b]).file());
    becomes(&router, &["a", "b"]).await;
    assert_eq!(router.state().await["config"]["in_sync"], true);
}

#[tokio::test]
async fn a_file_that_is_not_watched_waits_for_a_word() {
    let [a, b, _] = stubs().await;
    let quiet = |setup: Setup| setup.yaml("watch: false").file();
    let router = Setup::of(&[&a]).yaml("watch: false").start().await;
    router.write(quiet(Setup::of(&[&a, &b])));
    pace(Duration::from_secs(2)).await;
    assert!(row(&router.state().await, "b").is_none());
    assert_eq!(router.reload().await.status(), 200);
    becomes(&router, &["a", "b"]).await;
}

#[tokio::test]
async fn a_change_while_starting_is_not_lost() {
    let [a, b, _] = stubs().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, Setup::of(&[&a]).file()).unwrap();
    let changing = file.clone();
    let later = Setup::of(&[&a, &b]).file();
    // As soon as the process is there: it has read the file already, or is about to, or is in the midst of it.
    let (router, ()) = tokio::join!(Router::run(folder, file), async move {
        pace(Duration::from_millis(3)).await;
        fs::write(&changing, later).unwrap();
    });
    becomes(&router, &["a", "b"]).await;
}
