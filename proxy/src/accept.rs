//! Connections of clients: accepted one by one, greeted by what their listener speaks, served to their end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Protocol;
use pingora_core::apps::ServerApp;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::drain::Connected;
use crate::listen::backlog;
use crate::router::Router;
use crate::tls::server;

/// Rest after an accept that failed, for want of descriptors mostly.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Time for a client of an h2c listener to send the preface.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of HTTP/2's client preface (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What is spoken on a listener.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spoken {
    pub(crate) protocol: Protocol,
    /// The listener's place, where it speaks TLS: the configuration at work has the certificates.
    pub(crate) tls: Option<usize>,
}

/// Accepts until told to stop, then what waits already. With a router, connections are counted for its drain.
pub(crate) async fn accept<A: ServerApp + Send + Sync + 'static>(
    listener: TcpListener,
    app: impl Fn(SocketAddr) -> Arc<A>,
    counted: Option<Arc<Router>>,
    spoken: Spoken,
    down: watch::Receiver<bool>,
) {
    let mut stop = down.clone();
    let begin = |stream, peer| {
        let (app, down, connected) = (app(peer), down.clone(), counted.as_ref().map(Connected::new));
        let router = counted.clone();
        tokio::spawn(async move {
            let _connected = connected;
            let Some(client) = greet(stream, spoken, router.as_deref()).await else { return };
            connection(client, app, &down).await;
        });
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|down| *down) => break,
        };
        match accepted {
            Ok((stream, peer)) => begin(stream, peer),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                sleep(ACCEPT_REST).await;
            }
        }
    }
    backlog(listener).for_each(|(stream, peer)| begin(stream, peer));
}

/// One connection of a client, to its end.
async fn connection<A: ServerApp>(client: Client, app: Arc<A>, down: &watch::Receiver<bool>) {
    let mut next = app.process_new(Box::new(client), down).await;
    while let Some(stream) = next {
        next = app.process_new(stream, down).await;
    }
}

/// What comes before the first request: a handshake, or HTTP/2's preface. `None` when it failed or took too long.
async fn greet(stream: TcpStream, spoken: Spoken, router: Option<&Router>) -> Option<Client> {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
    if let (Some(place), Some(router)) = (spoken.tls, router) {
        let tls = router.live().tls.get(place).cloned().flatten()?;
        let failed = |error: &io::Error| {
            router.metrics.handshake_failed();
            tracing::debug!(%error, "TLS handshake failed");
        };
        return server::accept(stream, tls).await.inspect_err(failed).ok();
    }
    if spoken.protocol == Protocol::H2c && timeout(PREFACE_WITHIN, speaks_http2(&stream)).await != Ok(true) {
        return None;
    }
    Some(Client::new(stream))
}

/// Notices a client whose host has vanished without a word.
fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(3)
}

/// Waits for HTTP/2's preface, and leaves it in the stream. Done here, under a deadline: pingora's own look has none.
async fn speaks_http2(stream: &TcpStream) -> bool {
    const LOOK_AGAIN: Duration = Duration::from_millis(10);
    let mut seen = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut seen).await {
            Ok(length @ 1..) if seen[..length] == PREFACE[..length] => {
                if length == PREFACE.len() {
                    return true;
                }
                // What is there already does not wake us again.
                sleep(LOOK_AGAIN).await;
            }
            _ => return false,
        }
    }
}
