//! TLS of a listener: which certificate a client sees, whether it must show one, and its handshake.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{READ_BUFFER_BYTES, TlsError, VERSIONS, authorities, certified, provider};

/// Time for a client to finish its handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// What clients may speak, the router's first choice first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS of a listener, ready for handshakes.
///
/// Errors: a pair that does not belong together, authorities that are none; nothing that runs has changed then.
pub(crate) fn config(tls: &config::ServerTls) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = Arc::new(Certificates::new(&tls.certificates)?);
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&VERSIONS)?;
    let mut config = match client_verifier(tls)? {
        None => builder.with_no_client_auth().with_cert_resolver(certificates),
        Some(verifier) => builder.with_client_cert_verifier(verifier).with_cert_resolver(certificates),
    };
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    if tls.client_ca.is_none() {
        config.ticketer = Ticketer::new()?;
    } else {
        // A session resumed would let a client in again and again after its certificate has expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

fn client_verifier(tls: &config::ServerTls) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let Some(ca) = &tls.client_ca else {
        // Checked in the configuration. Were it not, everybody would be let in.
        return if tls.client_certificate_required { Err(TlsError::NoAuthority) } else { Ok(None) };
    };
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(ca)?), provider());
    let verifier = if tls.client_certificate_required { verifier } else { verifier.allow_unauthenticated() };
    verifier.build().map(Some).map_err(|_| TlsError::NoAuthority)
}

/// Answers a client's handshake. Errors: it failed, or took too long; the connection is closed.
pub(crate) async fn accept(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<TlsStream<BufReader<TcpStream>>> {
    let stream = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
    let handshake = Box::pin(TlsAcceptor::from(config).accept(stream));
    timeout(HANDSHAKE_WITHIN, handshake).await?
}

/// The certificates of a listener by the names that they bear.
#[derive(Debug)]
struct Certificates {
    /// For who names no server, or an unknown one.
    first: Arc<CertifiedKey>,
    /// In lower case.
    by_name: HashMap<String, Arc<CertifiedKey>>,
    /// `*.example.com` by `example.com`.
    by_parent: HashMap<String, Arc<CertifiedKey>>,
}

impl Certificates {
    /// Of two certificates with one name the first has it.
    fn new(certificates: &[config::Certificate]) -> Result<Self, TlsError> {
        let keys: Vec<_> =
            certificates.iter().map(|pair| certified(pair).map(Arc::new)).collect::<Result<_, _>>()?;
        let first = keys.first().ok_or(TlsError::NoCertificate)?.clone();
        let mut found = Self { first, by_name: HashMap::new(), by_parent: HashMap::new() };
        for key in keys {
            found.add_names(&key)?;
        }
        Ok(found)
    }

    fn add_names(&mut self, key: &Arc<CertifiedKey>) -> Result<(), TlsError> {
        let unfit = |_| TlsError::NoCertificate;
        let certificate = webpki::EndEntityCert::try_from(key.end_entity_cert()?).map_err(unfit)?;
        for name in certificate.valid_dns_names().map(str::to_ascii_lowercase) {
            let (map, name) = match name.strip_prefix("*.") {
                Some(parent) => (&mut self.by_parent, parent.to_owned()),
                None => (&mut self.by_name, name),
            };
            map.entry(name).or_insert_with(|| key.clone());
        }
        Ok(())
    }

    /// The certificate for a name in lower case. A wildcard stands for one label.
    fn of(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        self.by_name.get(name).or_else(|| self.by_parent.get(name.split_once('.')?.1))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| self.of(name));
        Some(named.unwrap_or(&self.first).clone())
    }
}
