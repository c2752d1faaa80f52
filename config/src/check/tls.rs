//! Certificates, keys and authorities: what `rustls` would refuse while serving is a fault here.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;

use crate::defaults::CERTIFICATES_MAX;
use crate::faults::Reason;
use crate::read::form::{Choice, Switch, Text};
use crate::read::{Key, Placed, REQUIRED, Section, live};
use crate::{Certificate, ClientTls, Secret, ServerTls};

const PEM: &str = "PEM with at least one certificate";

const CERTIFICATES: Key =
    live("certificates", "Who names no server, or an unknown one, gets the first").default_is(REQUIRED);
const CERT: Key = live("cert", "PEM of the certificate and those that vouch for it, its own first");
const KEY: Key = live("key", "PEM of the certificate's private key");
const CLIENT_CA: Key = live("client_ca", "PEM of the authorities whose certificates clients may show")
    .default_is("none: clients show none");
const CLIENT_CERTIFICATE: Key =
    live("client_certificate", "Whether a client must show one").default_is("required, with client_ca");
const WHETHER: Choice<bool> = Choice {
    names: &["optional", "required"],
    from_name: |name| match name {
        "optional" => Some(false),
        "required" => Some(true),
        _ => None,
    },
    name: |required| if *required { "required" } else { "optional" },
};

/// TLS of a listener. Nothing where it is at fault.
pub(super) fn server(section: &mut Section<'_, '_>) -> Option<ServerTls> {
    section.require_list(CERTIFICATES.name);
    let certificates = section.sections(CERTIFICATES, 1..=CERTIFICATES_MAX, |item| {
        let chain = item.required_file(CERT);
        let key = item.required_secret(KEY);
        pair(item, chain, key)
    });
    let client_ca = authorities(section, CLIENT_CA);
    let required = section.optional(CLIENT_CERTIFICATE, &WHETHER);
    if let Some(required) = required.as_ref().filter(|_| !section.has(CLIENT_CA.name)) {
        section.reader.fault_of(required, Reason::thing("it without client_ca", "both"));
    }
    let client_certificate_required = required.map_or(client_ca.is_some(), |required| required.value);
    let certificates = certificates?.value;
    (!certificates.is_empty()).then_some(ServerTls { certificates, client_ca, client_certificate_required })
}

const CA: Key =
    live("ca", "PEM of the authorities that may vouch for an engine").default_is("the system's own");
const CLIENT_CERT: Key = live("cert", "PEM of the certificate that the router shows to engines");
const CLIENT_KEY: Key = live("key", "PEM of that certificate's private key");
const SERVER_NAME: Key =
    live("server_name", "The name that engines' certificates must bear").default_is("the URL's host");
const INSECURE: Key = live("insecure", "Whether any certificate will do: for tests only");
const NAME: Text<String> =
    Text { wanted: "a host", pattern: "^[A-Za-z0-9_.:-]+$", read: server_name, show: String::clone };

/// TLS to engines.
pub(super) fn client(section: &mut Section<'_, '_>) -> ClientTls {
    let ca = authorities(section, CA);
    let chain = section.file(CLIENT_CERT);
    let key = section.secret(CLIENT_KEY);
    for (one, other) in [(CLIENT_CERT.name, CLIENT_KEY.name), (CLIENT_KEY.name, CLIENT_CERT.name)] {
        if section.has(one) && !section.has(other) {
            let path = section.path(other);
            section.lacks(&path, format_args!("it beside {one}"));
        }
    }
    let certificate = pair(section, chain, key);
    let server_name = section.optional(SERVER_NAME, &NAME).map(|name| name.value);
    let insecure = section.value(INSECURE, &Switch, false);
    if insecure.value && section.has(CA.name) {
        section.reader.fault_of(&insecure, Reason::thing("true beside ca", "one of the two"));
    }
    ClientTls { ca, certificate, server_name, insecure: insecure.value }
}

fn server_name(text: &str) -> Result<String, Reason> {
    ServerName::try_from(text).map(|_| text.to_owned()).map_err(|_| Reason::text(text, "a host"))
}

/// A certificate with the key that belongs to it.
fn pair(
    section: &mut Section<'_, '_>,
    chain: Option<Placed<Vec<u8>>>,
    key: Option<Placed<Secret>>,
) -> Option<Certificate> {
    let chain_ders = chain.as_ref().and_then(|chain| told(section, chain, certificates(&chain.value)));
    let key_der = key.as_ref().and_then(|key| told(section, key, private_key(&key.value)));
    let (chain, key) = (chain?, key?);
    let certified = certified(chain_ders?, key_der?);
    match certified {
        Ok(()) => Some(Certificate { chain: chain.value, key: key.value }),
        Err(Wrong::Key(reason)) => told(section, &key, Err(reason)),
        Err(Wrong::Chain(reason)) => told(section, &chain, Err(reason)),
    }
}

fn told<T, U>(section: &mut Section<'_, '_>, at: &Placed<U>, found: Result<T, Reason>) -> Option<T> {
    found.map_err(|reason| section.reader.fault_of(at, reason)).ok()
}

/// Which of the two is wrong.
enum Wrong {
    Key(Reason),
    Chain(Reason),
}

fn certified(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<(), Wrong> {
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let key = provider.key_provider.load_private_key(key);
    let key = key.map_err(|_| {
        Wrong::Key(Reason::thing("a private key of an unknown kind", "RSA, ECDSA or Ed25519"))
    })?;
    CertifiedKey::new(chain, key).keys_match().map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            Wrong::Key(Reason::thing("the key of another certificate", "that of cert"))
        }
        _ => Wrong::Chain(Reason::thing("a certificate that does not parse", PEM)),
    })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Reason> {
    let ders: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match ders {
        Ok(ders) if !ders.is_empty() => Ok(ders),
        Ok(_) => Err(Reason::thing("no certificate", PEM)),
        Err(_) => Err(Reason::thing("PEM that does not parse", PEM)),
    }
}

fn private_key(pem: &Secret) -> Result<PrivateKeyDer<'static>, Reason> {
    PrivateKeyDer::from_pem_slice(pem.expose()).map_err(|_| Reason::thing("no private key", "PEM with one"))
}

/// PEM of authorities, each of which `rustls` takes.
fn authorities(section: &mut Section<'_, '_>, key: Key) -> Option<Vec<u8>> {
    let pem = section.file(key)?;
    let mut store = RootCertStore::empty();
    let ders = told(section, &pem, certificates(&pem.value))?;
    for der in ders {
        if store.add(der).is_err() {
            let reason = Reason::thing("a certificate that does not parse", PEM);
            section.reader.fault_of(&pem, reason);
            return None;
        }
    }
    Some(pem.value)
}
