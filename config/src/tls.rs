//! TLS as configured: PEM in memory, checked so far that `rustls` will take it.

use crate::Secret;

/// TLS of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// At least one; who names no server, or an unknown one, gets the first.
    pub certificates: Vec<Certificate>,
    /// PEM of the authorities whose certificates clients may show.
    pub client_ca: Option<Vec<u8>>,
    /// Whether a client must show one.
    pub client_certificate_required: bool,
}

/// A certificate and its key, which belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// PEM of the chain, the server's own first.
    pub chain: Vec<u8>,
    /// PEM of the private key.
    pub key: Secret,
}

/// TLS to engines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// PEM of the authorities that may vouch for an engine; the system's own where absent.
    pub ca: Option<Vec<u8>>,
    /// What the router shows of itself.
    pub certificate: Option<Certificate>,
    /// The name that engines' certificates must bear; their URL's host where absent.
    pub server_name: Option<String>,
    /// Whether any certificate will do: for tests only, and said in the log.
    pub insecure: bool,
}
