//! TLS with certificates that are made on the spot.
#![allow(clippy::unwrap_used, clippy::panic)]

mod listener;
mod router;

use std::sync::Arc;
use std::time::Duration;

use config::{Certificate, Secret};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, SupportedProtocolVersion};
use tokio::net::{TcpListener, TcpStream};

use super::client::AnyCertificate;
use super::provider;

/// For what cannot take long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// When a certificate holds.
#[derive(Clone, Copy)]
pub(crate) enum When {
    Now,
    Over,
    Later,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(["authority.example".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// PEM of its own certificate.
    pub(crate) fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// Its own certificate, as a server would show it.
    pub(crate) fn own(&self) -> Certificate {
        Certificate { chain: self.pem(), key: Secret::new(self.0.key().serialize_pem()) }
    }

    /// A certificate for hosts and addresses.
    pub(crate) fn sign(&self, names: &[&str]) -> Certificate {
        self.sign_for(names, When::Now)
    }

    pub(crate) fn sign_for(&self, names: &[&str], when: When) -> Certificate {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = match when {
            When::Now => (params.not_before, params.not_after),
            When::Over => (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1)),
            When::Later => (date_time_ymd(3001, 1, 1), date_time_ymd(3002, 1, 1)),
        };
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &*self.0).unwrap().pem().into_bytes();
        Certificate { chain, key: Secret::new(key.serialize_pem()) }
    }
}

/// TLS of a listener that asks clients for nothing.
pub(crate) fn server_tls(certificates: Vec<Certificate>) -> config::ServerTls {
    config::ServerTls { certificates, client_ca: None, client_certificate_required: false }
}

/// The first certificate of a chain.
fn leaf(certificate: &Certificate) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(&certificate.chain).unwrap()
}

/// A client that takes every certificate, offers those protocols, and may show a certificate.
fn visitor(
    protocols: &[&str],
    shows: Option<&Certificate>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions).unwrap();
    let any = Arc::new(AnyCertificate(provider()));
    let builder = builder.dangerous().with_custom_certificate_verifier(any);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let key = PrivateKeyDer::from_pem_slice(pair.key.expose()).unwrap();
            builder.with_client_auth_cert(vec![leaf(pair)], key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Two ends of a connection.
async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(client, listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}
