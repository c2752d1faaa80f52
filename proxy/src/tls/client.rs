//! TLS to engines: whom they must be vouched for by, what the router shows of itself, and its handshake.
//!
//! Without authorities of its own a pool believes the system's: an operator who has put the company's authority there
//! need not repeat it, which a list compiled into the program could not offer. An image without any says so at once.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::handshake::HandshakeError;
use super::{READ_BUFFER_BYTES, TlsError, VERSIONS, authorities, certified, provider};

/// Sessions that may be resumed at one engine. Each serves once, and an engine gives two or so with each handshake.
const SESSIONS_MAX: usize = 8;

/// How the engines of a pool are spoken to.
pub(crate) struct PoolTls {
    config: ClientConfig,
    server_name: Option<ServerName<'static>>,
}

/// How one engine is spoken to. Connections under one are never used under another.
#[derive(Debug)]
pub(crate) struct EndpointTls {
    id: NonZeroU64,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl PoolTls {
    /// Reads the system's authorities where the pool names none: only to be made for a pool that needs it.
    ///
    /// Errors: no authorities, or a pair that does not belong together.
    pub(crate) fn new(tls: &config::ClientTls) -> Result<Self, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&VERSIONS)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier(tls)?);
        let mut config = match &tls.certificate {
            Some(pair) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified(pair)?)))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server_name = tls.server_name.as_deref().map(server_name).transpose()?;
        Ok(Self { config, server_name })
    }

    /// For the engine at a URL's host. Errors: a host that no certificate can bear.
    pub(crate) fn endpoint(&self, host: &str) -> Result<Arc<EndpointTls>, TlsError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX);
        let name = self.server_name.clone().map_or_else(|| server_name(host), Ok)?;
        // Each engine knows its own sessions only.
        let mut config = self.config.clone();
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Ok(Arc::new(EndpointTls { id, config: Arc::new(config), name }))
    }
}

impl EndpointTls {
    /// Tells these settings from all others, for as long as the process lives.
    pub(crate) const fn id(&self) -> NonZeroU64 {
        self.id
    }

    /// Makes a connection secure.
    pub(crate) async fn handshake(
        &self,
        stream: TcpStream,
    ) -> Result<TlsStream<BufReader<TcpStream>>, HandshakeError> {
        let stream = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
        let connector = TlsConnector::from(self.config.clone());
        connector.connect(self.name.clone(), stream).await.map_err(|error| HandshakeError::of(&error))
    }
}

/// A final dot is no part of a certificate's name.
fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let name = host.strip_suffix('.').unwrap_or(host).to_owned();
    ServerName::try_from(name).map_err(|_| TlsError::Name(host.to_owned()))
}

fn verifier(tls: &config::ClientTls) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    if tls.insecure {
        tracing::warn!("engines' certificates are not checked: `insecure`");
        return Ok(Arc::new(AnyCertificate(provider())));
    }
    let roots = tls.ca.as_deref().map_or_else(system_authorities, authorities)?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    Ok(verifier.map_err(|_| TlsError::NoAuthority)?)
}

fn system_authorities() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    // Some systems carry one or two that are older than today's rules.
    let (added, _) =
        store.add_parsable_certificates(found.map_err(|error| TlsError::System(error.to_string()))?);
    if added == 0 { Err(TlsError::System("none".to_owned())) } else { Ok(store) }
}

/// Takes every certificate. The other side still has to hold the key of the one that it shows.
#[derive(Debug)]
pub(super) struct AnyCertificate(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
