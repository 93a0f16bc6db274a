//! Client certificates in the TLS handshake: signed by our CA, and for clients. When they end is not judged here but with
//! every request (`apiserver::auth`): a connection may outlive its certificate, a session that TLS resumes is not verified
//! again, and a caller who is answered can be told what to do.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::FromDer;

/// Verifies everything but the time.
#[derive(Debug)]
pub struct Timeless {
    /// Verifies everything.
    pub inner: Arc<dyn ClientCertVerifier>,
    /// Second since 1970 from which the CA's certificate holds.
    pub ca_begins: u64,
}

/// Second since 1970 from which a certificate holds.
pub fn begins(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, read) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
    u64::try_from(read.validity().not_before.timestamp()).ok()
}

impl ClientCertVerifier for Timeless {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let at = begins(end_entity).map(|begins| begins.max(self.ca_begins));
        let at = at.map_or(now, |second| UnixTime::since_unix_epoch(Duration::from_secs(second)));
        self.inner.verify_client_cert(end_entity, intermediates, at)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
