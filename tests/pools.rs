//! Several pools behind one address: models, aliases, adapters, and the one list of them all.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::{Answer, DEADLINE, Response, Router, Setup, Stub, exchange, get, post, prompts, until};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// Two pools: `small` with stub a serves model `s`, also as `gpt-mini`; the other has b, and serves what it is asked for.
async fn two_pools(a: &Stub, b: &Stub) -> Router {
    let other = format!(
        "name: other\nmodels_interval: off\nendpoints: [{{name: b, url: \"http://{}\"}}]",
        b.address()
    );
    Setup::of(&[a]).pool("name: small\nmodels: [s]\naliases: {gpt-mini: s}").and_pool(&other).start().await
}

fn asking(model: &str) -> String {
    json!({"model": model, "messages": [{"role": "user", "content": prompts::text(1, 4000)}]}).to_string()
}

/// A page of `/v1/models`.
fn list(models: &[&str]) -> Answer {
    Answer::json(200, &format!(r#"{{"object":"list","data":[{}]}}"#, models.join(",")))
}

/// `GET` is answered with a list, all else with an answer.
fn lists(stub: &Stub, models: &[&'static str]) {
    let models = models.to_vec();
    stub.script(move |request| match request.head.method() {
        "GET" => list(&models),
        _ => Answer::json(200, "{}"),
    });
}

/// Requests that are no look at the list of models.
fn posts(stub: &Stub) -> usize {
    stub.seen(|seen| seen.requests.iter().filter(|request| request.head.method() == "POST").count())
}

#[tokio::test]
async fn the_model_chooses_the_pool() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let router = two_pools(&a, &b).await;
    for (model, endpoint) in [("s", "a"), ("gpt-mini", "a"), ("t", "b"), ("", "b"), ("S", "b")] {
        let response = router.chat(asking(model)).await;
        assert_eq!((response.status(), response.endpoint().as_str()), (200, endpoint), "{model:?}");
    }
    let response = router.chat(r#"{"messages":[]}"#).await;
    assert_eq!(response.endpoint(), "b", "no model at all");
    let response = router.chat(r#"{"model":"s","model":"t"}"#).await;
    assert_eq!(response.endpoint(), "b", "the last counts, as in the engine");
    let explained = router.explain(&asking("gpt-mini")).await.json();
    assert_eq!((&explained["pool"], &explained["endpoint"]), (&json!("small"), &json!("a")), "{explained}");
}

#[tokio::test]
async fn an_alias_changes_the_models_bytes_and_no_others() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let router = two_pools(&a, &b).await;
    for (sent, wanted) in [
        (
            r#"{"model":"gpt-mini", "seed":9007199254740993,"x":-0.0}"#,
            r#"{"model":"s", "seed":9007199254740993,"x":-0.0}"#,
        ),
        (r#" { "a":"\/\u00e9","model" : "gpt\u002dmini" }"#, r#" { "a":"\/\u00e9","model" : "s" }"#),
        (r#"{"mod\u0065l":"gpt-mini","messages":[]}"#, r#"{"mod\u0065l":"s","messages":[]}"#),
        (r#"{"model":"zzz","model":"gpt-mini"}"#, r#"{"model":"zzz","model":"s"}"#),
        (r#"{"model":"s","messages":[]}"#, r#"{"model":"s","messages":[]}"#),
    ] {
        assert_eq!(router.chat(sent).await.status(), 200, "{sent}");
        a.last().assert_framed_once(wanted.as_bytes());
    }
    // By either name it is one prompt.
    router.chat(asking("gpt-mini")).await;
    let (matched, total) = router.chat(asking("s")).await.matched();
    assert!(total > 10 && matched == total, "{matched}/{total}");
}

#[tokio::test]
async fn a_model_that_nobody_serves_is_404_and_names_no_others() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let other = format!(
        "name: other\nmodels: [secret-t]\nmodels_interval: off\nendpoints: [{{name: b, url: \"http://{}\"}}]",
        b.address()
    );
    let router = Setup::of(&[&a]).pool("name: small\nmodels: [secret-s]").and_pool(&other).start().await;
    for body in [asking("nope"), "{}".to_owned(), "no json".to_owned()] {
        let response = router.chat(&body).await;
        response.assert_router_error(404);
        assert_eq!(response.json()["error"]["code"], "model_not_found");
        assert!(!response.text().contains("secret"), "{}", response.text());
    }
    assert_eq!((a.count(), b.count()), (0, 0));
    assert_eq!(router.chat(asking("secret-t")).await.endpoint(), "b");
}

// D13
#[tokio::test]
async fn an_adapter_is_asked_for_where_it_is() {
    const BASE: &str = r#"{"id":"base","object":"model","root":"base","parent":null}"#;
    const ADAPTER: &str = r#"{"id":"org/ad:1","object":"model","root":"/l","parent":"base"}"#;
    let [a, b] = [Stub::start().await, Stub::start().await];
    [&a, &b].into_iter().for_each(|stub| lists(stub, &[BASE]));
    let router = Setup::of(&[&a, &b]).pool("models_interval: 100ms\npolicy: round-robin").start().await;
    let listed = |router: &Router, id: &'static str| {
        let data = router.data;
        async move { exchange(data, get("/v1/models")).await.text().contains(id).then_some(()) }
    };
    until("the base model", DEADLINE, || listed(&router, "base")).await;
    lists(&b, &[BASE, ADAPTER]);
    until("the adapter", DEADLINE, || listed(&router, "org/ad:1")).await;
    let before = [posts(&a), posts(&b)];
    for _ in 0..20 {
        assert_eq!(router.chat(asking("org/ad:1")).await.endpoint(), "b");
    }
    for _ in 0..20 {
        router.chat(asking("base")).await;
    }
    let after = [posts(&a), posts(&b)];
    assert!(after[0] - before[0] >= 5 && after[1] - before[1] >= 25, "base uses both: {before:?} {after:?}");
    for _ in 0..5 {
        let before = posts(&a) + posts(&b);
        router.chat(asking("nope")).await;
        assert_eq!(posts(&a) + posts(&b), before + 1, "one replica judges");
    }
    lists(&b, &[BASE]);
    let gone = || async {
        (!exchange(router.data, get("/v1/models")).await.text().contains("org/ad:1")).then_some(())
    };
    until("the adapter to be unloaded", DEADLINE, gone).await;
}

// D46
#[tokio::test]
async fn the_list_of_models_is_that_of_all_who_live() {
    const BASE: &str = r#"{"id":"base","object":"model","max_model_len":32768,"root":"base","parent":null,"permission":[{"id":"p-1.0e3"}]}"#;
    const LORA: &str = r#"{"id":"lora_1","parent":"base"}"#;
    let [a, b, c] = [Stub::start().await, Stub::start().await, Stub::start().await];
    lists(&b, &[BASE]);
    lists(&c, &[r#"{"id":"base","other":1}"#, LORA]);
    a.refuse().await;
    let router = Setup::of(&[&a, &b, &c]).pool("models_interval: 100ms\naliases: {gpt: base}").start().await;
    let models = || exchange(router.data, get("/v1/models"));
    until("both lists", DEADLINE, || async { models().await.text().contains("lora_1").then_some(()) }).await;
    let check = |response: &Response, shows: &str| {
        assert_eq!(response.status(), 200, "{shows}");
        let list: Value = response.json();
        let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
        assert!(response.text().contains(BASE), "{shows}: members and their bytes stay: {}", response.text());
        assert_eq!(ids.iter().filter(|id| **id == "base").count(), 1, "{shows}");
        assert!(ids.contains(&json!("gpt")), "{shows}: {list}");
        assert_eq!(list["object"], "list", "{shows}");
    };
    for _ in 0..20 {
        check(&models().await, "a is down");
    }
    let one = exchange(router.data, get("/v1/models/lora_1")).await;
    assert_eq!((one.status(), one.text().as_str()), (200, LORA));
    exchange(router.data, get("/v1/models/nope")).await.assert_router_error(404);
    c.script(|_| Answer::steps([harness::Step::Hang]));
    for _ in 0..20 {
        check(&models().await, "c hangs");
    }
    b.refuse().await;
    c.refuse().await;
    router.sees("b", "usable", false).await;
    router.sees("c", "usable", false).await;
    models().await.assert_router_error(503);
}

#[tokio::test]
async fn an_engine_gets_its_own_key_and_headers() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let endpoint = |name: &str, stub: &Stub, rest: &str| {
        format!("  - {{name: {name}, url: \"http://{}\"{rest}}}", stub.address())
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("engine.key"), "s3cret-engine\n").unwrap();
    let file = folder.path().join("config.yaml");
    let text = format!(
        "listeners: [{{address: \"127.0.0.1:0\"}}, {{address: \"127.0.0.1:0\", protocol: h2c}}]\nadmin: 127.0.0.1:0\npools:\n  - models_interval: off\n    policy: round-robin\n    endpoints:\n    {}\n    {}\n",
        endpoint("a", &a, ", key: \"file:engine.key\", headers: {X-Team: blue}"),
        endpoint("b", &b, ""),
    );
    std::fs::write(&file, text).unwrap();
    let router = Router::run(folder, file).await;
    router.sees("a", "usable", true).await;
    router.sees("b", "usable", true).await;
    let request = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer client\r\nx-team: red\r\nContent-Length: 2\r\n\r\n{}";
    for _ in 0..2 {
        assert_eq!(exchange(router.data, request).await.status(), 200);
    }
    let (keyed, plain) = (a.last().head, b.last().head);
    assert_eq!(
        (keyed.all("authorization"), keyed.all("x-team")),
        (vec!["Bearer s3cret-engine"], vec!["blue"])
    );
    assert_eq!((plain.all("authorization"), plain.all("x-team")), (vec!["Bearer client"], vec!["red"]));
    let state = router.state().await.to_string() + &router.metrics().await + &router.output();
    assert!(!state.contains("s3cret"), "shown");
}

#[tokio::test]
async fn weights_share_what_nothing_else_decides() {
    let [a, b] = [Stub::start().await, Stub::start().await];
    let setup = |weight: f64| {
        let b = format!("{{name: b, url: \"http://{}\", weight: {weight}}}", b.address());
        Setup::default().pool("name: none\nmodels: [none]").and_pool(&format!(
            "name: weighed\npolicy: random\nmodels_interval: off\nendpoints: [{{name: a, url: \"http://{}\"}}, {b}]",
            a.address()
        ))
    };
    let router = setup(3.0).start().await;
    router.sees("b", "usable", true).await;
    router.sees("a", "usable", true).await;
    for seed in 0..200 {
        exchange(router.data, post(PATH, prompts::cold(seed))).await;
    }
    assert!((120..=180).contains(&b.count()), "{} of 200", b.count());
    router.write(setup(0.0).file());
    assert_eq!(router.reload().await.status(), 200);
    let before = b.count();
    for seed in 0..20 {
        assert_eq!(router.chat(prompts::cold(seed)).await.endpoint(), "a");
    }
    assert_eq!(b.count(), before, "weight 0 gets nothing new");
}
