//! Clients over TLS: which certificate they see, what is spoken, who is let in, and certificates that change under them.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::{binary, run};
use harness::script::{chunk, last_chunk};
use harness::tls::{Authority, Pair, Visitor};
use harness::{
    Answer, Client, DEADLINE, H2Client, Router, Setup, Signal, Step, Stub, get, post, prompts, until,
};
use std::net::SocketAddr;

const CHAT: &str = "/v1/chat/completions";
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
const NAME: &str = "edge.example";

/// A listener over TLS beside the clear ones, and files for its certificates.
fn setup(stub: &Stub, pairs: &[&Pair], rest: &str) -> Setup {
    let rows: String =
        (0..pairs.len()).map(|at| format!("    - {{cert: {at}.crt, key: \"file:{at}.key\"}}\n")).collect();
    let rest: String = rest.lines().map(|line| format!("  {line}\n")).collect();
    let setup =
        Setup::of(&[stub]).listener(&format!("address: 127.0.0.1:0\ntls:\n  certificates:\n{rows}{rest}"));
    let files = (0..).zip(pairs);
    files.fold(setup, |setup, (at, pair)| {
        setup.beside(&format!("{at}.crt"), pair.cert.as_str()).beside(&format!("{at}.key"), pair.key.as_str())
    })
}

fn secure(router: &Router) -> SocketAddr {
    router.listeners[2]
}

async fn over(visitor: &Visitor, router: &Router) -> Client {
    Client::connect(visitor.tunnel(secure(router)).await.unwrap().address).await
}

async fn handshakes_failed(router: &Router) -> f64 {
    let page = router.metrics().await;
    let line = page.lines().find(|line| line.starts_with("prefixroute_") && line.contains("handshake"));
    let line = line.unwrap_or_else(|| panic!("no count of handshakes in {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until so many handshakes are counted as failed.
async fn counted(router: &Router, failed: usize) {
    until(&format!("{failed} failed handshakes"), DEADLINE, || async {
        (handshakes_failed(router).await == failed as f64).then_some(())
    })
    .await;
}

/// The laboratory's client believes the authorities of `SSL_CERT_FILE`, and says of others that it does not.
#[tokio::test]
async fn a_trace_is_replayed_over_tls() {
    let authority = Authority::new("one");
    let stub = Stub::answering(Answer::json(200, "{}")).await;
    let trace = r#"{"at":0,"group":"g","body":{"model":"m","messages":[{"role":"user","content":"a"}]}}"#;
    let setup = setup(&stub, &[&authority.sign(&["127.0.0.1"])], "");
    let setup = setup.beside("authority.pem", authority.pem()).beside("trace.jsonl", trace);
    let router = setup.beside("other.pem", Authority::new("other").pem()).start().await;
    let replay = async |believes: &str| {
        let mut command = tokio::process::Command::new(binary());
        command.arg("replay").arg(router.beside("trace.jsonl")).args(["--no-stream", "--url"]);
        command.arg(format!("https://{}", secure(&router))).env("SSL_CERT_FILE", router.beside(believes));
        let ran = command.output().await.unwrap();
        (ran.status.success(), String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap())
    };
    let (well, text) = replay("authority.pem").await;
    assert!(well && text.contains(": 0 failed, "), "{text}");
    let (well, text) = replay("other.pem").await;
    assert!(!well && text.contains("1 failed: no connection; ") && text.contains("UnknownIssuer"), "{text}");
}

#[tokio::test]
async fn both_protocols_are_spoken_as_clients_choose() {
    let authority = Authority::new("one");
    let stub = Stub::start().await;
    let router = setup(&stub, &[&authority.sign(&[NAME])], "").start().await;
    let visitor = Visitor::new(&authority, NAME, None);
    for (offers, spoken) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let tunnel = visitor.clone().offering(offers).tunnel(secure(&router)).await.unwrap();
        assert_eq!(tunnel.protocol.as_deref(), spoken, "{offers:?}");
        let body = prompts::chat_of_size(1, 200_000);
        let response = if spoken == Some("h2") {
            H2Client::connect(tunnel.address).await.post(CHAT, body.clone(), true).await
        } else {
            Client::connect(tunnel.address).await.exchange(post(CHAT, &body)).await
        };
        assert_eq!((response.status(), response.endpoint().as_str()), (200, "a"), "{offers:?}");
        assert!(stub.last().body == body, "{offers:?}");
    }
    assert!(visitor.offering(&["smtp"]).tunnel(secure(&router)).await.is_err());
    let mut clear = Client::connect(secure(&router)).await;
    let _ = clear.try_send(get("/v1/models")).await;
    assert!(!clear.rest().await.starts_with(b"HTTP"), "no clear text on a TLS listener");
    counted(&router, 2).await;
}

#[tokio::test]
async fn clients_see_the_certificate_of_the_name_that_they_ask_for() {
    let authority = Authority::new("one");
    let pairs = [
        authority.sign(&[NAME, "127.0.0.1"]),
        authority.sign(&["api.example"]),
        authority.sign(&["*.wild.example"]),
    ];
    let stub = Stub::start().await;
    let router = setup(&stub, &[&pairs[0], &pairs[1], &pairs[2]], "").start().await;
    for (name, which) in [(NAME, 0), ("api.example", 1), ("x.wild.example", 2), ("127.0.0.1", 0)] {
        let tunnel = Visitor::new(&authority, name, None).tunnel(secure(&router)).await.unwrap();
        assert_eq!(tunnel.certificate, pairs[which].der(), "{name}");
    }
    assert!(Visitor::new(&authority, "unknown.example", None).shake(secure(&router)).await.is_err());
    assert!(Visitor::new(&Authority::new("other"), NAME, None).shake(secure(&router)).await.is_err());
}

#[tokio::test]
async fn who_must_show_a_certificate_and_has_none_is_not_let_in() {
    let [ours, others] = [Authority::new("ours"), Authority::new("others")];
    let (right, wrong) = (ours.sign(&["client.example"]), others.sign(&["client.example"]));
    let stub = Stub::start().await;
    for (required, rows) in [
        ("required", [(None, false), (Some(&right), true), (Some(&wrong), false)]),
        ("optional", [(None, true), (Some(&right), true), (Some(&wrong), false)]),
    ] {
        let rest = format!("client_ca: clients.crt\nclient_certificate: {required}");
        let router =
            setup(&stub, &[&ours.sign(&[NAME])], &rest).beside("clients.crt", ours.pem()).start().await;
        let mut refused = 0;
        for (shows, is_let_in) in rows {
            let visitor = Visitor::new(&ours, NAME, shows).offering(&["http/1.1"]);
            assert_eq!(visitor.is_let_in(secure(&router)).await, is_let_in, "{required} {shows:?}");
            refused += usize::from(!is_let_in);
        }
        counted(&router, refused).await;
        let reached = stub.count();
        assert_eq!(exchange_clear(&router).await, 200, "the clear listener is as it was");
        assert_eq!(stub.count(), reached + 1);
    }
}

async fn exchange_clear(router: &Router) -> u16 {
    harness::exchange(router.data, get("/v1/x")).await.status()
}

/// A stream over TLS whose first event has come.
async fn begun(visitor: &Visitor, router: &Router) -> (Client, harness::wire::Framing) {
    let mut client = over(visitor, router).await;
    client.send(post(CHAT, prompts::with(&prompts::cold(1), r#","stream":true"#))).await;
    let head = client.head().await;
    assert_eq!(head.status(), 200);
    let mut framing = head.response_framing("POST");
    client.body_until(&mut framing, EVENT.as_bytes()).await;
    (client, framing)
}

#[tokio::test]
async fn events_are_passed_on_one_by_one_and_a_client_that_leaves_is_noticed() {
    let authority = Authority::new("one");
    let signal = Signal::default();
    let stub = Stub::answering(Answer::stream([
        chunk(EVENT),
        Step::Wait(signal.clone()),
        chunk(EVENT),
        Step::Wait(signal.clone()),
        chunk("data: [DONE]\n\n"),
        last_chunk(),
    ]))
    .await;
    let router = setup(&stub, &[&authority.sign(&[NAME])], "").start().await;
    let visitor = Visitor::new(&authority, NAME, None).offering(&["http/1.1"]);
    let (mut client, mut framing) = begun(&visitor, &router).await;
    signal.fire();
    client.body_until(&mut framing, EVENT.as_bytes()).await;
    signal.fire();
    client.body_until(&mut framing, b"[DONE]\n\n").await;
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
    // The connection goes on.
    stub.always(Answer::json(200, "{}"));
    assert_eq!(client.exchange(post(CHAT, prompts::cold(2))).await.status(), 200);
    stub.always(Answer::stream([chunk(EVENT), Step::Hang]));
    let requests = stub.count();
    begun(&visitor, &router).await.0.close();
    stub.abandoned(requests, DEADLINE).await;
    router.idle().await;
    // An engine that breaks breaks the answer too, visibly.
    stub.always(Answer::stream([chunk(EVENT), Step::Reset]));
    let (mut client, mut framing) = begun(&visitor, &router).await;
    assert!(client.piece(&mut framing).await.is_err(), "no clean end");
}

/// Waits until a new client sees this certificate.
async fn shows(visitor: &Visitor, router: &Router, pair: &Pair) {
    until("the certificate", DEADLINE, || async {
        let tunnel = visitor.tunnel(secure(router)).await.ok()?;
        (tunnel.certificate == pair.der()).then_some(())
    })
    .await;
}

fn write(router: &Router, name: &str, text: &str) {
    let beside = router.beside("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, router.beside(name)).unwrap();
}

#[tokio::test]
async fn a_certificate_that_changes_is_shown_to_new_clients_and_cuts_no_stream() {
    let authority = Authority::new("one");
    let [old, new, newest] = [(); 3].map(|()| authority.sign(&[NAME]));
    let signal = Signal::default();
    let stub = Stub::answering(Answer::stream([
        chunk(EVENT),
        Step::Wait(signal.clone()),
        chunk("data: [DONE]\n\n"),
        last_chunk(),
    ]))
    .await;
    let router = setup(&stub, &[&old], "").start().await;
    let visitor = Visitor::new(&authority, NAME, None).offering(&["http/1.1"]);
    let (mut client, mut framing) = begun(&visitor, &router).await;
    let in_sync = |wanted: bool| {
        router.until_state("what the reload came to", move |state| {
            (state["config"]["in_sync"] == wanted).then(|| state["config"].clone())
        })
    };
    // Half of it: the old pair serves on, and the state says why.
    write(&router, "0.crt", &new.cert);
    let state = in_sync(false).await;
    let fault = state["faults"].to_string();
    assert!(
        fault.contains("listeners[2].tls.certificates[0].key") && fault.contains("config.yaml:"),
        "{fault}"
    );
    assert!(!fault.contains("PRIVATE") && !fault.contains("BEGIN"), "{fault}");
    shows(&visitor, &router, &old).await;
    // The other half.
    write(&router, "0.key", &new.key);
    in_sync(true).await;
    shows(&visitor, &router, &new).await;
    assert!(router.output().contains("listeners[2]") || router.output().contains("certificate"), "told of");
    // At once, when asked.
    write(&router, "0.crt", &newest.cert);
    write(&router, "0.key", &newest.key);
    let outcome = router.reload().await.json();
    assert_eq!(outcome["outcome"], "applied", "{outcome}");
    assert!(!outcome.to_string().contains("BEGIN"), "{outcome}");
    let tunnel = visitor.tunnel(secure(&router)).await.unwrap();
    assert_eq!(tunnel.certificate, newest.der());
    signal.fire_all();
    client.body_until(&mut framing, b"[DONE]\n\n").await;
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
    assert_eq!(client.exchange(post(CHAT, "{}")).await.status(), 200, "and its connection goes on");
}

#[tokio::test]
async fn what_listens_is_not_changed_live() {
    let authority = Authority::new("one");
    let stub = Stub::start().await;
    let pair = authority.sign(&[NAME]);
    let router = setup(&stub, &[&pair], "").start().await;
    router.write(Setup::of(&[&stub]).listener("address: 127.0.0.1:0").file());
    let refused = router.reload().await;
    assert_eq!(refused.status(), 422, "TLS to clear text: {}", refused.text());
    assert!(refused.text().contains("listeners"), "{}", refused.text());
    shows(&Visitor::new(&authority, NAME, None), &router, &pair).await;
}

/// Starts with a listener of that TLS, which must be refused in one line that names the place.
async fn refuses(shows: &str, files: &[(&str, &str)], rest: &str, place: &str) {
    let stub = Stub::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    let text =
        format!("address: 127.0.0.1:0\ntls:\n  certificates: [{{cert: 0.crt, key: \"file:0.key\"}}]\n{rest}");
    std::fs::write(&path, Setup::of(&[&stub]).listener(&text).file()).unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let run = run(&["serve", "--config", path.to_str().unwrap()]).await;
    assert_eq!(run.code, 2, "{shows}: {run:?}");
    let wanted = format!("listeners[2].tls.{place}");
    let line = run.stderr.lines().find(|line| line.contains(&wanted));
    let line = line.unwrap_or_else(|| panic!("{shows}: no {wanted} in {run:?}"));
    assert!(line.contains("config.yaml:"), "{shows}: {line}");
    assert!(!run.stderr.contains("PRIVATE") && !run.stderr.contains("BEGIN"), "{shows}: {run:?}");
}

#[tokio::test]
async fn broken_certificates_are_refused_at_start_by_their_place() {
    let authority = Authority::new("one");
    let [pair, other] = [authority.sign(&[NAME]), authority.sign(&[NAME])];
    let (cert, key) = (pair.cert.as_str(), pair.key.as_str());
    let cut = &cert[..cert.len() / 2];
    let both = [("0.crt", cert), ("0.key", key)];
    for (shows, files, rest, place) in [
        ("no file", vec![("0.key", key)], "", "certificates[0].cert"),
        ("no key's file", vec![("0.crt", cert)], "", "certificates[0].key"),
        ("half a certificate", vec![("0.crt", cut), ("0.key", key)], "", "certificates[0].cert"),
        ("text", vec![("0.crt", "text"), ("0.key", key)], "", "certificates[0].cert"),
        ("empty", vec![("0.crt", ""), ("0.key", key)], "", "certificates[0].cert"),
        ("a key in its place", vec![("0.crt", key), ("0.key", key)], "", "certificates[0].cert"),
        ("no key", vec![("0.crt", cert), ("0.key", cert)], "", "certificates[0].key"),
        ("another's key", vec![("0.crt", cert), ("0.key", &other.key)], "", "certificates[0].key"),
        ("no authority", both.to_vec(), "  client_ca: none.crt\n", "client_ca"),
        ("an authority that is a key", both.to_vec(), "  client_ca: 0.key\n", "client_ca"),
        (
            "required without an authority",
            both.to_vec(),
            "  client_certificate: required\n",
            "client_certificate",
        ),
    ] {
        refuses(shows, &files, rest, place).await;
    }
}
