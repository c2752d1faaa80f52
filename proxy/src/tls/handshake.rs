//! Why a handshake with an engine failed, in words for an operator: nothing that the other side wrote is repeated.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Why an engine cannot be spoken to over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("tls: its certificate is of an authority that is not believed")]
    UnknownAuthority,
    /// What `openssl req -x509` makes, unless told otherwise.
    #[error("tls: its certificate is an authority's own, wanted one that an authority signed")]
    Authority,
    #[error("tls: its certificate bears another name")]
    WrongName,
    #[error("tls: its certificate has expired")]
    Expired,
    #[error("tls: its certificate is not valid yet")]
    NotYet,
    #[error("tls: its certificate is not fit")]
    BadCertificate,
    /// It refused the router's certificate, or the lack of one, among other things.
    #[error("tls: it refused with {0:?}")]
    Refused(AlertDescription),
    #[error("tls: it speaks something else")]
    NotTls,
    #[error("tls: it speaks no version or cipher of ours")]
    Incompatible,
    #[error("tls: closed in the handshake")]
    Closed,
    #[error("tls: the handshake failed")]
    Failed,
}

impl HandshakeError {
    /// Why a handshake ended with that error.
    pub(crate) fn of(error: &io::Error) -> Self {
        match tls_error(error) {
            Some(Error::InvalidCertificate(reason)) => Self::of_certificate(reason),
            Some(Error::AlertReceived(alert)) => Self::Refused(*alert),
            Some(Error::InvalidMessage(_)) => Self::NotTls,
            Some(Error::PeerIncompatible(_)) => Self::Incompatible,
            Some(_) => Self::Failed,
            None => Self::Closed,
        }
    }

    fn of_certificate(reason: &CertificateError) -> Self {
        use CertificateError as Reason;
        match reason {
            Reason::UnknownIssuer => Self::UnknownAuthority,
            Reason::NotValidForName | Reason::NotValidForNameContext { .. } => Self::WrongName,
            Reason::Expired | Reason::ExpiredContext { .. } => Self::Expired,
            Reason::NotValidYet | Reason::NotValidYetContext { .. } => Self::NotYet,
            Reason::Other(other) if other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) => {
                Self::Authority
            }
            _ => Self::BadCertificate,
        }
    }

    /// The other side's refusal of who we are. In TLS 1.3 it comes after our side of the handshake is done, when the
    /// request has left already; none of it has been read by then.
    pub(crate) fn refusal(error: &io::Error) -> Option<Self> {
        use AlertDescription as Alert;
        match tls_error(error)? {
            Error::AlertReceived(
                alert @ (Alert::HandshakeFailure
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired),
            ) => Some(Self::Refused(*alert)),
            _ => None,
        }
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}
