//! TLS with clients and with engines: what the configuration asks for, as `rustls` takes it.
//!
//! The sessions on top are pingora's, the handshakes and certificates are ours: pingora's own settings cannot choose among
//! several certificates, change them while it runs, or keep one engine's connections apart from another's. The provider is
//! *ring*, which pingora links in; it is named at each use, so nothing hangs on what the process has set as its default.

pub(crate) mod client;
pub(crate) mod handshake;
pub(crate) mod server;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SupportedProtocolVersion, version};

/// Read from a socket at once: an encrypted record is 16 KiB at most, and `rustls` by itself asks for 4 KiB at a time.
pub(crate) const READ_BUFFER_BYTES: usize = 16 * 1024;
/// Older ones are broken.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

/// Why TLS as configured cannot be had. Holds nothing of a key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A chain without a certificate.
    #[error("certificate: found none, wanted PEM of a chain")]
    NoCertificate,
    /// A key that is none.
    #[error("key: found none, wanted PEM of a private key")]
    NoKey,
    /// A pair that was half replaced, perhaps.
    #[error("key: found one of another certificate")]
    KeyMismatch,
    /// No authority, where one is needed to tell who is who.
    #[error("authorities: found none, wanted PEM of one or more")]
    NoAuthority,
    /// Nothing to believe engines by.
    #[error("authorities of the system: found {0}, wanted some, or `ca`")]
    System(String),
    /// No name that a certificate could bear.
    #[error("server name: found {0:?}, wanted a host name or an address")]
    Name(String),
    /// What `rustls` cannot use.
    #[error("certificate or key: {0}")]
    Unfit(#[from] rustls::Error),
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(ring::default_provider()));
    PROVIDER.clone()
}

/// A chain and its key, which must belong together.
fn certified(certificate: &config::Certificate) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(&certificate.chain).ok_or(TlsError::NoCertificate)?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key.expose()).map_err(|_| TlsError::NoKey)?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch,
        error => error.into(),
    })
}

/// The authorities in PEM.
fn authorities(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for authority in certificates(pem).ok_or(TlsError::NoAuthority)? {
        store.add(authority)?;
    }
    Ok(store)
}

/// The certificates in PEM; `None` if there are none, or a broken one.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!found.is_empty()).then_some(found)
}
