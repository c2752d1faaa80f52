//! TLS around the raw clients and the stubs: certificates made on the spot, and tunnels that they speak through.
//!
//! A tunnel is a loopback port whose bytes go on under TLS, so `Client` and `H2Client` stay as they are; an engine behind
//! TLS is a port that takes TLS off in front of a `Stub`.

use crate::wait::{DEADLINE, within};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub cert: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// An authority of that name.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(["authority.example".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// PEM of its own certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for hosts and addresses.
    pub fn sign(&self, names: &[&str]) -> Pair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &*self.0).unwrap().pem();
        Pair { cert, key: key.serialize_pem() }
    }

    fn store(&self) -> Arc<RootCertStore> {
        let mut store = RootCertStore::empty();
        store.add(self.0.der().clone()).unwrap();
        Arc::new(store)
    }
}

impl Pair {
    /// The certificate as the other side sees it.
    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }
}

/// A client's side of TLS.
#[derive(Clone)]
pub struct Visitor {
    config: ClientConfig,
    name: ServerName<'static>,
}

impl Visitor {
    /// Believes an authority, asks for a name, and shows a certificate if it has one.
    pub fn new(believes: &Authority, name: &str, shows: Option<&Pair>) -> Self {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_root_certificates(believes.store());
        let config = match shows {
            None => builder.with_no_client_auth(),
            Some(pair) => builder.with_client_auth_cert(vec![pair.der()], pair.key_der()).unwrap(),
        };
        Self { config, name: ServerName::try_from(name.to_owned()).unwrap() }
    }

    /// Offers these protocols by ALPN.
    pub fn offering(mut self, protocols: &[&str]) -> Self {
        self.config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        self
    }

    /// Shakes hands. Error: one side did not want to; in TLS 1.3 a client learns that only with the first bytes.
    pub async fn shake(&self, to: SocketAddr) -> Result<TlsStream<TcpStream>> {
        let stream = within("a connection", DEADLINE, TcpStream::connect(to)).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::new(self.config.clone()));
        within("a handshake", DEADLINE, connector.connect(self.name.clone(), stream)).await
    }

    /// Whether the other side lets it in: a handshake, and then no alert where an answer should be.
    pub async fn is_let_in(&self, to: SocketAddr) -> bool {
        let Ok(mut stream) = self.shake(to).await else { return false };
        let asked =
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n");
        asked.await.is_ok() && within("an answer", DEADLINE, stream.read_u8()).await.is_ok()
    }

    /// Shakes hands, and gives the certificate that it saw and a port behind which the connection goes on.
    pub async fn tunnel(&self, to: SocketAddr) -> Result<Tunnel> {
        let secure = self.shake(to).await?;
        let (_, session) = secure.get_ref();
        let seen = session.peer_certificates().and_then(|chain| chain.first());
        let certificate = seen.ok_or_else(|| Error::other("no certificate"))?.clone().into_owned();
        let protocol = session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            if let Ok((plain, _)) = listener.accept().await {
                join(plain, secure).await;
            }
        });
        Ok(Tunnel { address, certificate, protocol })
    }
}

/// One connection under TLS.
#[derive(Debug)]
pub struct Tunnel {
    /// Where a client connects to, once.
    pub address: SocketAddr,
    /// What the server showed.
    pub certificate: CertificateDer<'static>,
    /// What both chose by ALPN.
    pub protocol: Option<String>,
}

/// TLS in front of a stub. What it shows can be changed at any time.
pub struct Front {
    /// Where the router connects to.
    pub address: SocketAddr,
    /// Handshakes that did not come about.
    pub failed: Arc<Mutex<usize>>,
    accepting: JoinHandle<()>,
}

impl Front {
    /// Shows a certificate, and wants one of an authority if one is given.
    pub async fn of(stub: SocketAddr, shows: &Pair, wants: Option<&Authority>) -> Self {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.unwrap();
        let builder = match wants {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(authority.store(), provider());
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = builder.with_single_cert(vec![shows.der()], shows.key_der()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let failed = Arc::default();
        let accepting =
            tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), stub, Arc::clone(&failed)));
        Self { address, failed, accepting }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, stub: SocketAddr, failed: Arc<Mutex<usize>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, failed) = (acceptor.clone(), failed.clone());
        tokio::spawn(async move {
            let Ok(secure) = acceptor.accept(stream).await else {
                *failed.lock() += 1;
                return;
            };
            if let Ok(plain) = TcpStream::connect(stub).await {
                join(plain, secure).await;
            }
        });
    }
}

/// Passes bytes both ways until both ends have closed.
async fn join(mut plain: TcpStream, mut secure: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = plain.set_nodelay(true);
    // How it ended shows at the ends.
    let _ = copy_bidirectional(&mut plain, &mut secure).await;
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
