//! Endpoints that no configuration names: the addresses of a name, the entries of a file.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::row;
use harness::{Setup, Stub, prompts};

#[tokio::test]
async fn the_addresses_of_a_name_are_endpoints() {
    let [stub, written] = [Stub::start().await, Stub::start().await];
    let port = stub.address().port();
    let discovery = format!("discovery: {{dns: \"127.0.0.1:{port}\", interval: 100ms}}");
    let router = Setup::of(&[&written]).pool(&discovery).pool("policy: round-robin").start().await;
    let name = format!("127.0.0.1-{port}");
    router.sees(&name, "usable", true).await;
    for seed in 0..10 {
        assert_eq!(router.chat(prompts::cold(seed)).await.status(), 200);
    }
    assert_eq!((stub.count(), written.count()), (5, 5), "beside the one that is written");
    // A reload keeps what was found; without the name it goes.
    router.becomes(&Setup::of(&[&written]).pool(&discovery).pool("policy: random")).await;
    assert!(row(&router.state().await, &name).is_some());
    router.becomes(&Setup::of(&[&written])).await;
    assert!(row(&router.state().await, &name).is_none());
}

#[tokio::test]
async fn the_entries_of_a_file_are_endpoints_and_the_file_is_watched() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let entry = |name: &str, stub: &Stub| {
        format!("  - {{name: {name}, address: 127.0.0.1, port: \"{}\"}}\n", stub.address().port())
    };
    let setup = Setup::default().pool("discovery: {file: found.yaml}");
    let router =
        setup.clone().beside("found.yaml", format!("endpoints:\n{}", entry("one", &a))).start().await;
    router.sees("one", "usable", true).await;
    assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), "one");
    let both = format!("endpoints:\n{}{}", entry("one", &a), entry("two", &b));
    std::fs::write(router.beside("found.yaml"), both).unwrap();
    router.sees("two", "usable", true).await;
    assert_eq!(router.chat(prompts::cold(1)).await.endpoint(), "one", "its belief stays");
    std::fs::write(router.beside("found.yaml"), "endpoints: [{name: three}]\n").unwrap();
    router.until_state("the fault", |state| (state["config"]["in_sync"] == false).then_some(())).await;
    let faults = router.state().await["config"]["faults"].to_string();
    assert!(faults.contains("found.yaml:1:13"), "{faults}");
    assert_eq!(router.chat(prompts::cold(2)).await.status(), 200);
}
