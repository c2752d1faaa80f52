//! Connections of clients: accepted one by one, greeted by what their listener speaks, served to their end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Protocol;
use pingora_core::apps::ServerApp;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::client::Client;
use crate::client::patience::{Patience, Terms};
use crate::descriptors::{SHARES, is_readable};
use crate::drain::Connected;
use crate::listen::backlog;
use crate::room::Room;
use crate::router::Router;
use crate::tls::server;

/// Rest after an accept that failed, for want of descriptors mostly.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// See [`Gate::rests_for`].
const FRESH_RESTS_FOR: Duration = Duration::from_secs(3);
const PROBE_RESTS_FOR: Duration = Duration::from_secs(1);
/// A full room, and an accept that fails, are told of once in so long.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// What is spoken on a listener.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spoken {
    pub(crate) protocol: Protocol,
    /// The listener's place, where it speaks TLS: the configuration at work has the certificates.
    pub(crate) tls: Option<usize>,
}

/// Whom a listener lets in, and how many of them.
#[derive(Clone)]
pub(crate) enum Gate {
    /// Clients: `limits.connections_max` of them over all listeners, counted for the router's drain.
    Clients(Arc<Router>),
    /// Operators and their probes: a share of their own, so that a flood of clients leaves them theirs.
    Admin(Arc<Router>),
}

impl Gate {
    fn router(&self) -> &Arc<Router> {
        match self {
            Self::Clients(router) | Self::Admin(router) => router,
        }
    }

    fn room(&self) -> &Arc<Room> {
        match self {
            Self::Clients(router) => &router.clients_room,
            Self::Admin(router) => &router.admin_room,
        }
    }

    /// Connections that may be open, by the configuration of the moment.
    fn max(&self) -> usize {
        match self {
            Self::Clients(router) => SHARES.connections_max(router.live().config.limits.connections_max),
            Self::Admin(_) => SHARES.admin,
        }
    }

    fn counted(&self) -> Option<Connected> {
        match self {
            Self::Clients(router) => Some(Connected::new(router)),
            Self::Admin(_) => None,
        }
    }

    /// Waits until another may come in.
    async fn has_place(&self, listener: &TcpListener, complaint: &mut Complaint) {
        let filled = || {
            if complaint.is_due() {
                let (of, connections) = (self.name(), self.max());
                tracing::warn!(of, connections, descriptors = SHARES.limit, "full: further clients wait");
            }
        };
        self.room().has_place(|| self.max(), || is_readable(listener), filled).await;
    }

    /// How long a new connection may be silent before it is asked to leave: a client's handshake or first bytes may be slow,
    /// a probe's are not.
    fn rests_for(&self) -> Duration {
        match self {
            Self::Clients(_) => FRESH_RESTS_FOR,
            Self::Admin(_) => PROBE_RESTS_FOR,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Clients(_) => "clients",
            Self::Admin(_) => "admin",
        }
    }
}

/// Accepts until told to stop, while there is a place, then what waits already. Who comes beyond the places waits in the listen
/// backlog.
pub(crate) async fn accept<A: ServerApp + Send + Sync + 'static>(
    listener: TcpListener,
    app: impl Fn(SocketAddr) -> Arc<A>,
    gate: Gate,
    spoken: Spoken,
    down: watch::Receiver<bool>,
) {
    let mut stop = down.clone();
    let (mut of_room, mut of_accept) = (Complaint::default(), Complaint::default());
    let begin = |stream, peer| {
        let (app, down, gate) = (app(peer), down.clone(), gate.clone());
        let held = (gate.room().enter(), gate.counted());
        tokio::spawn(async move {
            let _held = held;
            let Some(client) = greet(stream, spoken, &gate).await else { return };
            connection(client, app, &down).await;
        });
    };
    loop {
        let next = async {
            gate.has_place(&listener, &mut of_room).await;
            listener.accept().await
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            _ = stop.wait_for(|down| *down) => break,
        };
        match accepted {
            Ok((stream, peer)) => begin(stream, peer),
            // That client has left already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if of_accept.is_due() {
                    tracing::warn!(%error, "accept failed");
                }
                gate.room().ask_one();
                sleep(ACCEPT_REST).await;
            }
        }
    }
    backlog(listener).for_each(|(stream, peer)| begin(stream, peer));
}

/// When something was told of last that may happen many times a second.
#[derive(Default)]
struct Complaint(Option<Instant>);

impl Complaint {
    /// Whether it is to be told again.
    fn is_due(&mut self) -> bool {
        let due = self.0.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY);
        if due {
            self.0 = Some(Instant::now());
        }
        due
    }
}

/// One connection of a client, to its end.
async fn connection<A: ServerApp>(client: Client, app: Arc<A>, down: &watch::Receiver<bool>) {
    let mut next = app.process_new(Box::new(client), down).await;
    while let Some(stream) = next {
        next = app.process_new(stream, down).await;
    }
}

/// What comes before the first request: a handshake, and HTTP/2's preface. `None` when it failed or took too long: pingora
/// would wait for a preface without a deadline.
async fn greet(stream: TcpStream, spoken: Spoken, gate: &Gate) -> Option<Client> {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
    let router = gate.router();
    let patience =
        || Patience::fresh(gate.room().clone(), Terms::of(&router.live().config), gate.rests_for());
    let mut client = match spoken.tls {
        None => Client::new(stream, patience()),
        Some(place) => {
            let tls = router.live().tls.get(place).cloned().flatten()?;
            let failed = |error: &io::Error| {
                router.metrics.handshake_failed();
                tracing::debug!(%error, "TLS handshake failed");
            };
            let stream = server::accept(stream, tls).await.inspect_err(failed).ok()?;
            Client::over_tls(stream, patience())
        }
    };
    let is_http2 = spoken.protocol == Protocol::H2c || client.chose_http2();
    if is_http2 && !client.speaks_http2().await {
        return None;
    }
    Some(client)
}

/// Notices a client whose host has vanished without a word.
fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(3)
}
