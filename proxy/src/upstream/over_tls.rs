//! Tests of exchanges over TLS: who is believed, who is let in, and which connections are used again.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use config::{Certificate, ClientTls};
use rustls::{AlertDescription, HandshakeKind, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::tls::client::PoolTls;
use crate::tls::tests::{Authority, DEADLINE, When, server_tls};
use crate::tls::{TlsError, server};

const ASK: Request<'_> = Request { head: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", body: b"", bodiless: false };
const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// An engine behind TLS. It is accepted from by hand.
struct Engine {
    listener: TcpListener,
    tls: Arc<ServerConfig>,
}

impl Engine {
    async fn new(tls: &config::ServerTls) -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), tls: server::config(tls).unwrap() }
    }

    async fn accept(&self) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.tls.clone()).accept(self.accept_clear().await).await
    }

    async fn accept_clear(&self) -> TcpStream {
        timeout(DEADLINE, self.listener.accept()).await.expect("a connection").unwrap().0
    }

    /// How a router with those settings reaches it, as `engine.example`.
    fn reached(&self, tls: &ClientTls) -> Transport {
        let tls = PoolTls::new(tls).unwrap().endpoint("engine.example").unwrap();
        Transport { address: self.address(), tls: Some(tls) }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

/// An engine that everybody believes and that believes everybody, and how it is reached.
async fn believed() -> (Engine, Transport) {
    let authority = Authority::new("one");
    let engine = Engine::new(&server_tls(vec![authority.sign(&["engine.example"])])).await;
    let transport = engine.reached(&believes(&authority));
    (engine, transport)
}

fn believes(authority: &Authority) -> ClientTls {
    ClientTls { ca: Some(authority.pem()), ..ClientTls::default() }
}

fn upstream() -> Upstream {
    Upstream::new(DEADLINE, DEADLINE)
}

async fn answer(stream: &mut TlsStream<TcpStream>, to: Request<'_>, bytes: &[u8]) {
    stream.read_exact(&mut vec![0; to.head.len() + to.body.len()]).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
}

/// A pooled connection to an engine that answered one request on it, as the engine sees it.
async fn pooled(upstream: &Upstream, engine: &Engine, transport: &Transport) -> TlsStream<TcpStream> {
    let (connection, accepted) = tokio::join!(upstream.connect(transport.clone()), engine.accept());
    let (connection, mut accepted) = (connection.unwrap(), accepted.unwrap());
    assert!(!connection.reused);
    let (reply, ()) =
        tokio::join!(upstream.exchange(connection, ASK, DEADLINE), answer(&mut accepted, ASK, EMPTY));
    upstream.release(reply.unwrap()).await;
    accepted
}

#[tokio::test]
async fn an_engine_is_believed_as_configured() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let right = ours.sign(&["engine.example"]);
    let named = |name: &str| ClientTls { server_name: Some(name.to_owned()), ..believes(&ours) };
    let insecure = ClientTls { insecure: true, ..ClientTls::default() };
    let over = ours.sign_for(&["engine.example"], When::Over);
    let later = ours.sign_for(&["engine.example"], When::Later);
    let both = [ours.pem(), others.pem()].concat();
    for (shows, certificate, tls, refused) in [
        ("the right authority", right.clone(), believes(&ours), None),
        ("two authorities", right.clone(), ClientTls { ca: Some(both), ..believes(&ours) }, None),
        ("the wrong authority", right.clone(), believes(&others), Some(HandshakeError::UnknownAuthority)),
        ("another name", ours.sign(&["other.example"]), believes(&ours), Some(HandshakeError::WrongName)),
        ("a name of the pool", ours.sign(&["other.example"]), named("other.example"), None),
        ("not the name of the pool", right.clone(), named("other.example"), Some(HandshakeError::WrongName)),
        ("a wildcard", ours.sign(&["*.of.example"]), named("a.of.example"), None),
        ("an address", ours.sign(&["10.0.0.7"]), named("10.0.0.7"), None),
        ("an address, as IPv6", ours.sign(&["::1"]), named("::1"), None),
        ("another address", ours.sign(&["10.0.0.8"]), named("10.0.0.7"), Some(HandshakeError::WrongName)),
        ("expired", over.clone(), believes(&ours), Some(HandshakeError::Expired)),
        ("not valid yet", later, believes(&ours), Some(HandshakeError::NotYet)),
        ("an authority's own", ours.own(), believes(&ours), Some(HandshakeError::Authority)),
        ("expired, and insecure", over, insecure.clone(), None),
        ("an authority's own, and insecure", ours.own(), insecure, None),
    ] {
        let engine = Engine::new(&server_tls(vec![certificate])).await;
        let upstream = upstream();
        let (connection, _) = tokio::join!(upstream.connect(engine.reached(&tls)), engine.accept());
        assert_eq!(connection.err(), refused.map(ConnectError::Tls), "{shows}");
    }
}

/// A machine without any says so, and does not believe everybody.
#[tokio::test]
async fn without_authorities_of_its_own_a_pool_believes_the_systems() {
    let engine = Engine::new(&server_tls(vec![Authority::new("ours").sign(&["engine.example"])])).await;
    let transport = match PoolTls::new(&ClientTls::default()) {
        Ok(tls) => {
            Transport { tls: Some(tls.endpoint("engine.example").unwrap()), ..engine.address().into() }
        }
        Err(error) => return assert!(matches!(error, TlsError::System(_)), "{error}"),
    };
    let upstream = upstream();
    let (connection, _) = tokio::join!(upstream.connect(transport), engine.accept());
    assert_eq!(connection.err(), Some(ConnectError::Tls(HandshakeError::UnknownAuthority)));
}

#[tokio::test]
async fn the_urls_host_is_the_name_unless_the_pool_has_one() {
    let authority = Authority::new("one");
    for (host, certificate) in [
        ("engine.example", "engine.example"),
        ("engine.example.", "engine.example"),
        ("vllm_0", "vllm_0"),
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
    ] {
        let engine = Engine::new(&server_tls(vec![authority.sign(&[certificate])])).await;
        let mut transport = engine.reached(&believes(&authority));
        transport.tls = Some(PoolTls::new(&believes(&authority)).unwrap().endpoint(host).unwrap());
        let upstream = upstream();
        let (connection, _) = tokio::join!(upstream.connect(transport), engine.accept());
        assert_eq!(connection.err(), None, "{host}");
    }
}

#[test]
fn what_cannot_be_used_is_refused() {
    let authority = Authority::new("one");
    let [one, other] = [authority.sign(&["router.example"]), authority.sign(&["router.example"])];
    let shows = |chain: Certificate, key: Certificate| {
        let certificate = Some(Certificate { chain: chain.chain, key: key.key });
        ClientTls { certificate, ..believes(&authority) }
    };
    for (tls, reason) in [
        (shows(one.clone(), one.clone()), None),
        (shows(one, other), Some("key: found one of another certificate")),
        (
            ClientTls { ca: Some(b"x".to_vec()), ..ClientTls::default() },
            Some("authorities: found none, wanted PEM of one or more"),
        ),
        (
            ClientTls { server_name: Some("a b".to_owned()), ..believes(&authority) },
            Some(r#"server name: found "a b", wanted a host name or an address"#),
        ),
    ] {
        let error = PoolTls::new(&tls).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), reason);
    }
}

#[tokio::test]
async fn an_engine_that_speaks_no_tls_is_told_apart() {
    let (engine, transport) = believed().await;
    let upstream = upstream();
    let clear = async {
        let mut stream = engine.accept_clear().await;
        stream.read_u8().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    };
    let (connection, _stream) = tokio::join!(upstream.connect(transport.clone()), clear);
    assert_eq!(connection.err(), Some(ConnectError::Tls(HandshakeError::NotTls)));
    let close = async { drop(engine.accept_clear().await) };
    let (connection, ()) = tokio::join!(upstream.connect(transport), close);
    assert_eq!(connection.err(), Some(ConnectError::Tls(HandshakeError::Closed)));
}

#[tokio::test]
async fn a_handshake_counts_as_connecting() {
    let (engine, transport) = believed().await;
    let upstream = Upstream::new(Duration::from_millis(50), DEADLINE);
    let (connection, _silent) = tokio::join!(upstream.connect(transport), engine.accept_clear());
    assert_eq!(connection.err(), Some(ConnectError::Timeout));
}

#[tokio::test]
async fn the_router_shows_its_certificate_where_it_has_one() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let asks = config::ServerTls {
        client_ca: Some(ours.pem()),
        client_certificate_required: true,
        ..server_tls(vec![ours.sign(&["engine.example"])])
    };
    let refused = |alert| Some(ExchangeError::Tls(HandshakeError::Refused(alert)));
    for (shows, certificate, failure) in [
        ("the right one", Some(ours.sign(&["router.example"])), None),
        ("none", None, refused(AlertDescription::CertificateRequired)),
        ("another authority's", Some(others.sign(&["router.example"])), refused(AlertDescription::UnknownCA)),
    ] {
        // A body that is watched while it is written, and one that is not.
        for body in [&[][..], &[b'x'; 1_000_000]] {
            let request = Request { body, ..ASK };
            let engine = Engine::new(&asks).await;
            let transport =
                engine.reached(&ClientTls { certificate: certificate.clone(), ..believes(&ours) });
            let upstream = upstream();
            let serve = async {
                let Ok(mut accepted) = engine.accept().await else { return };
                answer(&mut accepted, request, EMPTY).await;
            };
            let ask = async {
                let connection = upstream.connect(transport).await.unwrap();
                upstream.exchange(connection, request, DEADLINE).await.err()
            };
            assert_eq!(tokio::join!(ask, serve).0, failure, "{shows}");
        }
    }
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let (engine, transport) = believed().await;
    let upstream = upstream();
    let mut accepted = pooled(&upstream, &engine, &transport).await;
    // Like a ticket, nothing that an engine says: only TLS does.
    accepted.get_mut().1.refresh_traffic_keys().unwrap();
    accepted.flush().await.unwrap();
    for _ in 0..3 {
        arrival(&upstream, &transport).await;
        let connection = upstream.connect(transport.clone()).await.unwrap();
        assert!(connection.reused);
        let exchange = upstream.exchange(connection, ASK, DEADLINE);
        let (reply, ()) = tokio::join!(exchange, answer(&mut accepted, ASK, EMPTY));
        upstream.release(reply.unwrap()).await;
    }
}

/// Lets the runtime learn of what has come over the loopback.
async fn arrival(upstream: &Upstream, transport: &Transport) {
    for _ in 0..10 {
        tokio::task::yield_now().await;
        let _ = upstream.pool.lock().waiting.get_mut(&transport.key()).map(|idle| idle[0].wire.is_silent());
    }
}

/// An engine may send tickets at any time: here before the first request, when nothing but them can have come.
#[tokio::test]
async fn a_ticket_is_no_speech() {
    let (engine, transport) = believed().await;
    let upstream = upstream();
    let (connection, accepted) = tokio::join!(upstream.connect(transport.clone()), engine.accept());
    let (mut connection, mut accepted) = (connection.unwrap(), accepted.unwrap());
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(connection.wire.is_silent());
    }
    accepted.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
    accepted.flush().await.unwrap();
    let speaks = async {
        while connection.wire.is_silent() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, speaks).await.unwrap();
}

#[tokio::test]
async fn sessions_are_resumed_at_one_engine_only() {
    let authority = Authority::new("one");
    let tls = server_tls(vec![authority.sign(&["engine.example"])]);
    let (engine, upstream) = (Engine::new(&tls).await, upstream());
    let transport = engine.reached(&believes(&authority));
    let first = pooled(&upstream, &engine, &transport).await;
    let again = async |transport: Transport| {
        let (connection, accepted) = tokio::join!(upstream.connect_anew(transport), engine.accept());
        connection.unwrap();
        accepted.unwrap().get_ref().1.handshake_kind()
    };
    assert_eq!(first.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
    assert_eq!(again(transport).await, Some(HandshakeKind::Resumed));
    assert_eq!(again(engine.reached(&believes(&authority))).await, Some(HandshakeKind::Full));
}

#[tokio::test]
async fn connections_under_other_settings_are_not_used() {
    let authority = Authority::new("one");
    let engine = Engine::new(&server_tls(vec![authority.sign(&["engine.example"])])).await;
    let transport = engine.reached(&believes(&authority));
    let upstream = upstream();
    let _accepted = pooled(&upstream, &engine, &transport).await;
    let others = engine.reached(&believes(&authority));
    let (connection, _) = tokio::join!(upstream.connect(others), engine.accept());
    assert!(!connection.unwrap().reused, "other settings");
    let clear = Transport::from(transport.address);
    let (connection, _) = tokio::join!(upstream.connect(clear), engine.accept_clear());
    assert!(!connection.unwrap().reused, "clear text");
    assert!(upstream.connect(transport).await.unwrap().reused, "the same settings");
}

#[tokio::test]
async fn a_pooled_connection_that_the_engine_closed_is_replaced() {
    for (shows, says_so) in [("with a word", true), ("without one", false)] {
        let (engine, transport) = believed().await;
        let upstream = upstream();
        let mut accepted = pooled(&upstream, &engine, &transport).await;
        // Taken while it still lives; the engine closes when the request is under way.
        let connection = upstream.connect(transport.clone()).await.unwrap();
        assert!(connection.reused);
        let serve = async {
            if says_so {
                accepted.shutdown().await.unwrap();
            }
            drop(accepted);
            answer(&mut engine.accept().await.unwrap(), ASK, EMPTY).await;
        };
        let (reply, ()) = tokio::join!(upstream.exchange(connection, ASK, DEADLINE), serve);
        assert!(reply.is_ok(), "{shows}");
    }
}

#[tokio::test]
async fn a_closed_connection_is_not_taken() {
    for says_so in [true, false] {
        let (engine, transport) = believed().await;
        let upstream = upstream();
        let mut accepted = pooled(&upstream, &engine, &transport).await;
        if says_so {
            accepted.shutdown().await.unwrap();
        }
        drop(accepted);
        let closed = async {
            let silent = |idle: &mut Vec<Idle>| idle[0].wire.is_silent();
            while upstream.pool.lock().waiting.get_mut(&transport.key()).is_some_and(silent) {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, closed).await.unwrap();
        let (connection, _) = tokio::join!(upstream.connect(transport), engine.accept());
        assert!(!connection.unwrap().reused, "says so: {says_so}");
    }
}

/// What follows a head is not lost where its first bytes are read twice.
#[tokio::test]
async fn answers_of_all_sizes_come_whole() {
    let (engine, transport) = believed().await;
    let upstream = upstream();
    let connection = async { upstream.connect(transport.clone()).await.unwrap() };
    let (mut connection, accepted) = tokio::join!(connection, engine.accept());
    let mut accepted = accepted.unwrap();
    for size in [1, 1_000, 100_000, 5_000_000] {
        let body: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
        let exchange = async {
            let mut reply = upstream.exchange(connection, ASK, DEADLINE).await.unwrap();
            let mut whole = Vec::new();
            while let Some(chunk) = reply.session.read_body_bytes().await.unwrap() {
                whole.extend_from_slice(&chunk);
            }
            upstream.release(reply).await;
            whole
        };
        let message = [head.as_bytes(), &body].concat();
        let (whole, ()) = tokio::join!(exchange, answer(&mut accepted, ASK, &message));
        assert!(whole == body, "{size}: {} bytes came", whole.len());
        connection = upstream.connect(transport.clone()).await.unwrap();
        assert!(connection.reused);
    }
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_is_whole_only_with_a_word() {
    for says_so in [true, false] {
        let (engine, transport) = believed().await;
        let upstream = upstream();
        let serve = async {
            let mut accepted = engine.accept().await.unwrap();
            answer(&mut accepted, ASK, b"HTTP/1.1 200 OK\r\n\r\nsome").await;
            if says_so {
                accepted.shutdown().await.unwrap();
            }
        };
        let exchange = async {
            let connection = upstream.connect(transport).await.unwrap();
            let mut reply = upstream.exchange(connection, ASK, DEADLINE).await.unwrap();
            let first = reply.session.read_body_bytes().await;
            (first.unwrap(), reply.session.read_body_bytes().await)
        };
        let ((first, rest), ()) = tokio::join!(exchange, serve);
        assert_eq!(first, Some(Bytes::from_static(b"some")));
        assert_eq!(rest.ok(), says_so.then_some(None), "says so: {says_so}");
    }
}

/// The engine refuses a large body before it has read it.
#[tokio::test]
async fn an_early_answer_is_heard_while_the_body_is_written() {
    let (engine, transport) = believed().await;
    let upstream = upstream();
    let body = vec![b'x'; 30_000_000];
    let exchange = async {
        let connection = upstream.connect(transport).await.unwrap();
        let reply = upstream.exchange(connection, Request { body: &body, ..ASK }, DEADLINE).await.unwrap();
        assert!(reply.partial);
        reply.session.get_status()
    };
    let serve = async {
        let mut accepted = engine.accept().await.unwrap();
        accepted.read_u8().await.unwrap();
        accepted.write_all(b"HTTP/1.1 413 Content Too Large\r\n\r\n").await.unwrap();
        accepted.flush().await.unwrap();
        accepted
    };
    let (status, _accepted) = tokio::join!(exchange, serve);
    assert_eq!(status, Some(http::StatusCode::PAYLOAD_TOO_LARGE));
}
