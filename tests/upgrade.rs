//! A router in place of another: the same addresses, no request lost, and the old one serves on where the new one cannot.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::client::get;
use harness::prompts::cold;
use harness::router::{Successor, free_addresses};
use harness::script::{chunk, last_chunk};
use harness::{Answer, Client, DEADLINE, Router, Setup, Signal, Step, Stub, exchange, post, until};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PATH: &str = "/v1/chat/completions";
const SOCKET: &str = "upgrade_socket: upgrade.sock\n";
/// The old process waits 10 s for a new one.
const TAKER_DEADLINE: Duration = Duration::from_secs(20);

async fn serving(router: &mut Successor) {
    until("the new router to serve", DEADLINE, || async { router.serves().then_some(()) }).await;
}

async fn said(router: &Router, text: &str) {
    until(text, TAKER_DEADLINE, || async { router.output().contains(text).then_some(()) }).await;
}

/// What a process wrote may be read after its end.
async fn tells(new: &Successor, text: &str) {
    until(text, DEADLINE, || async { new.output().contains(text).then_some(()) }).await;
}

async fn is_served(router: &Router) {
    assert_eq!(exchange(router.data, get("/v1/models")).await.status(), 200);
    assert_eq!(exchange(router.admin, get("/readyz")).await.status(), 200);
    assert_eq!(router.state().await["draining"], false);
}

#[tokio::test]
async fn the_new_router_has_the_addresses_and_the_old_one_ends() {
    for signal_first in [false, true] {
        let stub = Stub::start().await;
        let mut old = Setup::of(&[&stub]).yaml(SOCKET).start().await;
        if signal_first {
            old.signal("QUIT").await;
        }
        let mut new = old.successor(&["--upgrade"]);
        if !signal_first {
            until("the meeting place", DEADLINE, || async {
                old.beside("upgrade.sock").exists().then_some(())
            })
            .await;
            is_served(&old).await;
            old.signal("QUIT").await;
        }
        serving(&mut new).await;
        assert_eq!(old.ended(DEADLINE).await.code(), Some(0));
        // The same addresses, the system's choice of ports among them.
        is_served(&old).await;
        assert!(!old.beside("upgrade.sock").exists());
        new.terminate().await;
        assert_eq!(new.ended(DEADLINE).await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_stream_of_the_old_router_finishes() {
    let stub = Stub::start().await;
    let mut old = Setup::of(&[&stub]).yaml(SOCKET).start().await;
    let next = Signal::default();
    let events = (0..3).flat_map(|_| [chunk("data: tick\n\n"), Step::Wait(next.clone())]);
    stub.always(Answer::stream(events.chain([chunk("data: [DONE]\n\n"), last_chunk()])));
    let mut client = Client::connect(old.data).await;
    client.send(post(PATH, cold(1))).await;
    let mut framing = client.head().await.response_framing("POST");
    client.body_until(&mut framing, b"\n\n").await;
    let mut new = old.successor(&["--upgrade"]);
    old.signal("QUIT").await;
    serving(&mut new).await;
    stub.always(Answer::json(200, "{}"));
    is_served(&old).await;
    // SIGTERM asks for what is under way.
    old.terminate().await;
    next.fire_all();
    client.body_until(&mut framing, b"[DONE]\n\n").await;
    assert!(client.piece(&mut framing).await.unwrap().is_none(), "a clean end");
    assert_eq!(old.ended(DEADLINE).await.code(), Some(0));
}

/// Each request of clients that keep their connections, and of those that do not, is answered while routers replace each other.
#[tokio::test]
async fn no_request_is_lost_under_load() {
    let stub = Stub::start().await;
    let mut old = Setup::of(&[&stub]).yaml(SOCKET).start().await;
    let (data, done) = (old.data, Arc::new(AtomicBool::new(false)));
    let answered = Arc::new(AtomicUsize::new(0));
    let clients = (0..12).map(|number| {
        let (done, answered) = (done.clone(), answered.clone());
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let mut client = Client::connect(data).await;
                while !done.load(Ordering::Relaxed) {
                    client.send(post(PATH, cold(number))).await;
                    let response = client.response("POST").await;
                    assert_eq!((response.status(), &response.broken), (200, &None), "{response:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    if number % 2 == 0 || response.header("connection") == Some("close") {
                        break;
                    }
                }
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let more = |than: usize| {
        let answered = answered.clone();
        async move {
            until("more answers", DEADLINE, || async {
                (answered.load(Ordering::Relaxed) > than + 50).then_some(())
            })
            .await;
        }
    };
    let mut successors: Vec<Successor> = Vec::new();
    for _ in 0..3 {
        more(answered.load(Ordering::Relaxed)).await;
        let mut new = old.successor(&["--upgrade"]);
        match successors.last_mut() {
            Some(last) => last.signal("QUIT").await,
            None => old.signal("QUIT").await,
        }
        serving(&mut new).await;
        let code = match successors.last_mut() {
            Some(last) => last.ended(DEADLINE).await.code(),
            None => old.ended(DEADLINE).await.code(),
        };
        assert_eq!(code, Some(0));
        successors.push(new);
    }
    more(answered.load(Ordering::Relaxed)).await;
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("no request was lost");
    }
}

#[tokio::test]
async fn a_new_router_that_cannot_start_leaves_the_old_one_serving() {
    let stub = Stub::start().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let setup = Setup::of(&[&stub]).yaml(&format!("watch: false\n{SOCKET}"));
    let mut old = setup.clone().start().await;
    // An address that somebody else has, beside those that come over.
    let address = taken.local_addr().unwrap();
    old.write(setup.clone().listener(&format!("address: {address}")).file());
    let mut new = old.successor(&["--upgrade"]);
    old.signal("QUIT").await;
    assert_eq!(new.ended(DEADLINE).await.code(), Some(2));
    tells(&new, &format!("cannot listen on {address}")).await;
    said(&old, "no upgrade: this process serves on").await;
    is_served(&old).await;
    // And the next one takes over.
    old.write(setup.file());
    let mut new = old.successor(&["--upgrade"]);
    old.signal("QUIT").await;
    serving(&mut new).await;
    assert_eq!(old.ended(DEADLINE).await.code(), Some(0));
    is_served(&old).await;
}

#[tokio::test]
async fn a_wrong_configuration_ends_the_new_router_before_anything_happens() {
    let stub = Stub::start().await;
    let setup = Setup::of(&[&stub]).yaml("watch: false");
    let old = setup.clone().yaml(SOCKET).start().await;
    old.write(setup.clone().yaml(SOCKET).yaml("frobnicate: 1").file());
    let mut new = old.successor(&["--upgrade"]);
    assert_eq!(new.ended(DEADLINE).await.code(), Some(2));
    tells(&new, "frobnicate").await;
    old.write(setup.file());
    let mut new = old.successor(&["--upgrade"]);
    assert_eq!(new.ended(DEADLINE).await.code(), Some(2));
    tells(&new, "upgrade_socket: found none").await;
    is_served(&old).await;
}

#[tokio::test]
async fn without_a_new_router_the_old_one_serves_on() {
    let stub = Stub::start().await;
    let without = Setup::of(&[&stub]).start().await;
    without.signal("QUIT").await;
    said(&without, "upgrade_socket: found none").await;
    is_served(&without).await;
    let old = Setup::of(&[&stub]).yaml(SOCKET).start().await;
    old.signal("QUIT").await;
    said(&old, "no process came").await;
    is_served(&old).await;
}

/// A drain does not wait for a new router that may come.
#[tokio::test]
async fn sigterm_ends_the_wait_for_a_new_router() {
    let stub = Stub::start().await;
    let mut old = Setup::of(&[&stub]).yaml(SOCKET).start().await;
    old.signal("QUIT").await;
    said(&old, "handing the listening sockets over").await;
    old.terminate().await;
    assert_eq!(old.ended(Duration::from_secs(5)).await.code(), Some(0));
}

/// Who holds the sockets and says nothing more has not taken over.
#[tokio::test]
async fn a_new_router_that_dies_midway_leaves_the_old_one_serving() {
    let stub = Stub::start().await;
    let old = Setup::of(&[&stub]).yaml(SOCKET).start().await;
    let listener = UnixListener::bind(old.beside("upgrade.sock")).unwrap();
    old.signal("QUIT").await;
    let (stream, _) = tokio::task::spawn_blocking(move || listener.accept()).await.unwrap().unwrap();
    drop(stream);
    said(&old, "no upgrade: this process serves on").await;
    is_served(&old).await;
}

/// A listener that the new configuration adds is bound, one that it lacks is closed.
#[tokio::test]
async fn the_new_router_listens_where_its_own_configuration_says() {
    let stub = Stub::start().await;
    let [gone, added] = free_addresses();
    let setup = Setup::of(&[&stub]).yaml(&format!("watch: false\n{SOCKET}"));
    let mut old = setup.clone().listener(&format!("address: {gone}")).start().await;
    assert_eq!(exchange(gone, get("/v1/models")).await.status(), 200);
    old.write(setup.listener(&format!("address: {added}")).file());
    let mut new = old.successor(&["--upgrade"]);
    old.signal("QUIT").await;
    serving(&mut new).await;
    assert_eq!(exchange(added, get("/v1/models")).await.status(), 200);
    assert_eq!(old.ended(DEADLINE).await.code(), Some(0));
    assert!(Client::try_connect(gone).await.is_err());
    is_served(&old).await;
}

#[tokio::test]
async fn a_folder_that_others_can_write_to_is_refused() {
    let stub = Stub::start().await;
    let old = Setup::of(&[&stub]).yaml("upgrade_socket: open/upgrade.sock").start().await;
    let folder = old.beside("open");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut new = old.successor(&["--upgrade"]);
    assert_eq!(new.ended(DEADLINE).await.code(), Some(2));
    tells(&new, "can be written to by others").await;
    is_served(&old).await;
}

/// systemd learns the new process's id before the old one ends.
#[tokio::test]
async fn the_supervisor_is_told_which_process_serves() {
    let stub = Stub::start().await;
    let mut old = Setup::of(&[&stub]).yaml(SOCKET).start().await;
    let supervisor = std::os::unix::net::UnixDatagram::bind(old.beside("notify")).unwrap();
    supervisor.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut new = old.successor_with(&["--upgrade"], &[("NOTIFY_SOCKET", &old.beside("notify"))]);
    old.signal("QUIT").await;
    serving(&mut new).await;
    let mut message = [0; 128];
    let length = supervisor.recv(&mut message).unwrap();
    let text = String::from_utf8_lossy(&message[..length]).into_owned();
    assert_eq!(text, format!("READY=1\nMAINPID={}\n", new.pid()));
    assert_eq!(old.ended(DEADLINE).await.code(), Some(0));
}
