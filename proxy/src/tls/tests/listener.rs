//! Handshakes of clients: who sees which certificate, who is let in, and what is spoken.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use pingora_core::protocols::{ALPN, Ssl};
use rustls::pki_types::ServerName;
use rustls::{HandshakeKind, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::client::Client;
use crate::client::patience::{Patience, Terms};
use crate::tls::{TlsError, VERSIONS, server};

type Shaken = (io::Result<Client>, io::Result<TlsStream<TcpStream>>);

async fn shake(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> Shaken {
    let (ours, theirs) = connected().await;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let terms = Terms { head: DEADLINE, head_bytes_max: 1024 };
    let client_of = |stream| Client::over_tls(stream, Patience::fresh(Arc::default(), terms, DEADLINE));
    let accepted = async { server::accept(theirs, server).await.map(client_of) };
    tokio::join!(accepted, TlsConnector::from(client).connect(name, ours))
}

fn served(tls: &config::ServerTls) -> Arc<ServerConfig> {
    server::config(tls).unwrap()
}

#[tokio::test]
async fn a_client_sees_the_certificate_of_the_name_that_it_asks_for() {
    let authority = Authority::new("one");
    let names: [&[&str]; 4] =
        [&["a.example"], &["b.example", "c.example"], &["*.wild.example"], &["Exact.wild.example"]];
    let certificates: Vec<_> = names.iter().map(|names| authority.sign(names)).collect();
    let server = served(&server_tls(certificates.clone()));
    for (shows, name, which) in [
        ("the first by name", "a.example", 0),
        ("another by name", "b.example", 1),
        ("a second name of one", "c.example", 1),
        ("in capitals", "C.Example", 1),
        ("a wildcard", "x.wild.example", 2),
        ("an exact name before a wildcard", "exact.wild.example", 3),
        ("a wildcard is one label", "x.y.wild.example", 0),
        ("a wildcard is not its parent", "wild.example", 0),
        ("an unknown name gets the first", "unknown.example", 0),
        ("an address names no server", "127.0.0.1", 0),
    ] {
        let (_, client) = shake(server.clone(), visitor(&[], None, &VERSIONS), name).await;
        let client = client.unwrap();
        assert_eq!(client.get_ref().1.peer_certificates().unwrap()[0], leaf(&certificates[which]), "{shows}");
    }
}

#[tokio::test]
async fn a_client_and_the_router_agree_on_what_is_spoken() {
    let server = served(&server_tls(vec![Authority::new("one").sign(&["a.example"])]));
    let all: &[&str] = &["h2", "http/1.1"];
    for (shows, offers, spoken) in [
        ("both", all, Some(Some(ALPN::H2))),
        ("both, HTTP/1.1 first", &["http/1.1", "h2"], Some(Some(ALPN::H2))),
        ("HTTP/1.1 alone", &["http/1.1"], Some(Some(ALPN::H1))),
        ("nothing", &[], Some(None)),
        ("something else", &["smtp"], None),
    ] {
        for versions in [&VERSIONS[..1], &VERSIONS[1..]] {
            let (accepted, _) = shake(server.clone(), visitor(offers, None, versions), "a.example").await;
            assert_eq!(accepted.ok().map(|client| client.selected_alpn_proto()), spoken, "{shows}");
        }
    }
}

#[tokio::test]
async fn clients_certificates_are_asked_for_as_configured() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let client = |authority: &Authority| Some(authority.sign(&["client.example"]));
    let over = Some(ours.sign_for(&["client.example"], When::Over));
    for (shows, required, certificate, is_let_in) in [
        ("required and right", true, client(&ours), true),
        ("required and absent", true, None, false),
        ("required and of another authority", true, client(&others), false),
        ("required and expired", true, over.clone(), false),
        ("optional and right", false, client(&ours), true),
        ("optional and absent", false, None, true),
        ("optional and of another authority", false, client(&others), false),
        ("optional and expired", false, over, false),
    ] {
        let server = served(&config::ServerTls {
            client_ca: Some(ours.pem()),
            client_certificate_required: required,
            ..server_tls(vec![ours.sign(&["a.example"])])
        });
        for versions in [&VERSIONS[..1], &VERSIONS[1..]] {
            let visitor = visitor(&[], certificate.as_ref(), versions);
            let (accepted, _) = shake(server.clone(), visitor, "a.example").await;
            assert_eq!(accepted.is_ok(), is_let_in, "{shows}");
        }
    }
}

/// Whether a client's second connection resumed its first.
async fn resumes(server: Arc<ServerConfig>, visitor: Arc<ClientConfig>) -> bool {
    let mut kind = None;
    for _ in 0..2 {
        let (accepted, client) = shake(server.clone(), visitor.clone(), "a.example").await;
        let (mut accepted, mut client) = (accepted.unwrap(), client.unwrap());
        // Tickets come with the first bytes.
        accepted.write_all(b"x").await.unwrap();
        accepted.flush().await.unwrap();
        client.read_u8().await.unwrap();
        kind = client.get_ref().1.handshake_kind();
    }
    kind == Some(HandshakeKind::Resumed)
}

#[tokio::test]
async fn sessions_are_resumed_unless_clients_show_certificates() {
    let authority = Authority::new("one");
    let tls = server_tls(vec![authority.sign(&["a.example"])]);
    let asks = config::ServerTls { client_ca: Some(authority.pem()), ..tls.clone() };
    let shown = authority.sign(&["client.example"]);
    for versions in [&VERSIONS[..1], &VERSIONS[1..]] {
        assert!(resumes(served(&tls), visitor(&[], None, versions)).await);
        assert!(!resumes(served(&asks), visitor(&[], Some(&shown), versions)).await);
    }
}

#[tokio::test]
async fn a_reload_changes_new_handshakes_only() {
    let authority = Authority::new("one");
    let [before, after] = [authority.sign(&["a.example"]), authority.sign(&["a.example"])];
    let current = Arc::new(ArcSwap::new(served(&server_tls(vec![before.clone()]))));
    let visitor = visitor(&[], None, &VERSIONS);
    let (router, client) = shake(current.load_full(), visitor.clone(), "a.example").await;
    let (mut old_router, mut old_client) = (router.unwrap(), client.unwrap());
    current.store(served(&server_tls(vec![after.clone()])));
    let (_, new_client) = shake(current.load_full(), visitor, "a.example").await;
    assert_eq!(old_client.get_ref().1.peer_certificates().unwrap()[0], leaf(&before));
    assert_eq!(new_client.unwrap().get_ref().1.peer_certificates().unwrap()[0], leaf(&after));
    old_client.write_all(b"still here").await.unwrap();
    let mut seen = [0; 10];
    old_router.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"still here");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let authority = Authority::new("one");
    let [one, other] = [authority.sign(&["a.example"]), authority.sign(&["a.example"])];
    let pair = |chain: &[u8], key: &[u8]| Certificate { chain: chain.to_vec(), key: Secret::new(key) };
    let alone = |pair| server_tls(vec![pair]);
    let key = one.key.expose();
    for (shows, tls, reason) in [
        (
            "half replaced",
            alone(pair(&one.chain, other.key.expose())),
            "key: found one of another certificate",
        ),
        (
            "a second half replaced",
            server_tls(vec![one.clone(), pair(&other.chain, key)]),
            "key: found one of another certificate",
        ),
        ("no chain", alone(pair(b"", key)), "certificate: found none, wanted PEM of a chain"),
        ("a key for a chain", alone(pair(key, key)), "certificate: found none, wanted PEM of a chain"),
        ("no key", alone(pair(&one.chain, b"x")), "key: found none, wanted PEM of a private key"),
        ("nothing", server_tls(Vec::new()), "certificate: found none, wanted PEM of a chain"),
        (
            "nobody to vouch for clients",
            config::ServerTls { client_certificate_required: true, ..alone(one.clone()) },
            "authorities: found none, wanted PEM of one or more",
        ),
        (
            "authorities that are none",
            config::ServerTls { client_ca: Some(b"x".to_vec()), ..alone(one.clone()) },
            "authorities: found none, wanted PEM of one or more",
        ),
    ] {
        let error: TlsError = server::config(&tls).unwrap_err();
        assert_eq!(error.to_string(), reason, "{shows}");
    }
}

#[tokio::test]
async fn clear_text_is_closed() {
    let server = served(&server_tls(vec![Authority::new("one").sign(&["a.example"])]));
    let (mut client, accepted) = connected().await;
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert!(server::accept(accepted, server).await.is_err());
    let mut seen = Vec::new();
    let _ = client.read_to_end(&mut seen).await;
    assert!(!seen.starts_with(b"HTTP/"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_closed() {
    let server = served(&server_tls(vec![Authority::new("one").sign(&["a.example"])]));
    let (_client, accepted) = connected().await;
    let error = server::accept(accepted, server).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_client_that_leaves_has_left_with_or_without_a_word() {
    let server = served(&server_tls(vec![Authority::new("one").sign(&["a.example"])]));
    for says_so in [true, false] {
        let (router, client) = shake(server.clone(), visitor(&[], None, &VERSIONS), "a.example").await;
        let (mut router, mut client) = (router.unwrap(), client.unwrap());
        if says_so {
            client.shutdown().await.unwrap();
        } else {
            client.get_mut().0.shutdown().await.unwrap();
        }
        assert_eq!(router.read(&mut [0]).await.unwrap(), 0, "says so: {says_so}");
    }
}

async fn poll_once<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll_fn(|context| Poll::Ready(poll(context))).await
}

/// TLS takes bytes that the socket does not: they leave while the router waits for its client.
#[tokio::test]
async fn what_was_written_leaves_while_the_client_is_waited_for() {
    let server = served(&server_tls(vec![Authority::new("one").sign(&["a.example"])]));
    let (router, client) = shake(server, visitor(&[], None, &VERSIONS), "a.example").await;
    let (mut router, mut client) = (router.unwrap(), client.unwrap());
    let mut written = 0;
    // Until neither the socket nor TLS takes more.
    while let Poll::Ready(length) =
        poll_once(|context| Pin::new(&mut router).poll_write(context, &[1; 8_000])).await
    {
        written += length.unwrap();
    }
    let read_all_then_speak = async {
        client.read_exact(&mut vec![0; written]).await.unwrap();
        client.write_all(b"x").await.unwrap();
    };
    let both = async { tokio::join!(router.read_u8(), read_all_then_speak).0.unwrap() };
    assert_eq!(timeout(DEADLINE, both).await, Ok(b'x'));
}
