//! What nobody reads, and what does not answer: logs and files that must hold up neither requests nor operators.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::router::{binary, free_addresses};
use harness::{DEADLINE, Setup, Stub, exchange, get, post, prompts, until, within};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A router whose log goes to `stderr`; killed when dropped.
struct Bare {
    child: Child,
    data: SocketAddr,
    admin: SocketAddr,
}

impl Bare {
    async fn start(stub: &Stub, stderr: Stdio) -> Self {
        let [data, admin] = free_addresses();
        let mut command = Command::new(binary());
        command.args(["serve", &format!("--endpoint=a=http://{}", stub.address())]);
        command.args([format!("--listen={data}"), format!("--admin={admin}")]);
        command.env("PREFIXROUTE_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = command.spawn().unwrap();
        let router = Self { child, data, admin };
        until("the router", DEADLINE, || async {
            let client = harness::Client::try_connect(admin).await.ok()?;
            drop(client);
            (exchange(admin, get("/readyz")).await.status() == 200).then_some(())
        })
        .await;
        router
    }

    /// More lines than any pipe or queue holds, and everybody is served.
    async fn serves_on(&self, shows: &str) {
        for seed in 0..1_500 {
            let request = post("/v1/chat/completions", prompts::cold(seed % 7));
            assert_eq!(exchange(self.data, request).await.status(), 200, "{shows}: {seed}");
        }
        for path in ["/healthz", "/readyz", "/metrics", "/prefixroute/state"] {
            assert_eq!(exchange(self.admin, get(path)).await.status(), 200, "{shows}: {path}");
        }
    }

    /// Ends as a supervisor would end it.
    async fn ends(mut self, shows: &str) {
        let kill = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(kill.unwrap().success());
        let ended = until(shows, DEADLINE, || std::future::ready(self.child.try_wait().unwrap()));
        let status = ended.await;
        assert_eq!(status.code(), Some(0), "{shows}");
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_nobody() {
    let stub = Stub::start().await;
    let router = Bare::start(&stub, Stdio::piped()).await;
    router.serves_on("an unread pipe").await;
    router.ends("an unread pipe").await;
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_lost_alone() {
    let stub = Stub::start().await;
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let router = Bare::start(&stub, full.into()).await;
    router.serves_on("a full disk").await;
    router.ends("a full disk").await;
    let mut router = Bare::start(&stub, Stdio::piped()).await;
    drop(router.child.stderr.take());
    router.serves_on("a reader that is gone").await;
    router.ends("a reader that is gone").await;
}

/// A pipe without another end, at a path.
fn pipe(at: &std::path::Path) {
    assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
}

#[tokio::test]
async fn a_file_that_does_not_answer_holds_up_no_page() {
    let stub = Stub::start().await;
    let setup = Setup::of(&[&stub]);
    let mut router = setup.clone().yaml("drain: 1s").start().await;
    let beside = router.file.with_file_name("pipe");
    pipe(&beside);
    router.write(setup.clone().yaml("access_log: pipe").file());
    let response = within("a refusal", DEADLINE, router.reload()).await;
    assert_eq!(response.status(), 422, "{}", response.text());
    router.write(setup.clone().yaml("tenants: [{name: t, keys: [\"file:pipe\"]}]").file());
    let (admin, reloading) = (router.admin, exchange(router.admin, post("/prefixroute/reload", "")));
    let looking = async {
        for path in ["/healthz", "/readyz", "/metrics", "/prefixroute/state"] {
            let page = within(path, Duration::from_secs(3), exchange(admin, get(path))).await;
            assert_eq!(page.status(), 200, "{path}");
        }
    };
    let (refused, ()) =
        within("a refusal in time", Duration::from_secs(20), async { tokio::join!(reloading, looking) })
            .await;
    assert_eq!((refused.status(), &refused.json()["outcome"]), (422, &json!("refused")));
    assert!(refused.text().contains("not read within"), "{}", refused.text());
    assert_eq!(router.chat(prompts::cold(1)).await.status(), 200);
    // Whoever opens the other end lets the reading end; then the file is read again.
    drop(File::options().write(true).open(&beside).unwrap());
    router.write(setup.yaml("drain: 1s").file());
    let mended = || async { (router.reload().await.status() == 200).then_some(()) };
    until("the file to be read again", DEADLINE, mended).await;
    router.terminate().await;
    assert!(router.ended(DEADLINE).await.success());
}
