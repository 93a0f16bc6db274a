//! TLS to the appliance, pinned to its CA.
//!
//! The boot script gives the SHA-256 of the CA certificate; the server sends that certificate after its own.
//! The chain is checked in full (signature, key usage, name) against that CA alone. The node's clock may say
//! anything, so the time that the check assumes is the server certificate's own.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest, Sha256};

/// Most certificates looked at in a server's chain.
const MAX_CHAIN: usize = 8;

/// The server did not send the CA certificate that this boot was told of.
#[derive(Debug, thiserror::Error)]
#[error("the server does not hold the certificate authority that this boot was told of (slipway.ca)")]
pub struct WrongCa;

/// Accepts only servers whose certificate was issued by the CA with this SHA-256 (of the DER).
#[derive(Debug)]
struct PinnedCa {
    pin: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = &intermediates[..intermediates.len().min(MAX_CHAIN)];
        let ca = chain
            .iter()
            .find(|certificate| Sha256::digest(certificate.as_ref())[..] == self.pin)
            .ok_or_else(|| Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(WrongCa)))))?;
        let (_, leaf) = x509_parser::parse_x509_certificate(end_entity.as_ref())
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let since = u64::try_from(leaf.validity().not_before.timestamp())
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(since));
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, chain, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A client configuration that talks only to servers of the CA whose certificate has this SHA-256.
///
/// # Errors
/// Only when the TLS library was built without a protocol version.
pub fn client_config(pin: [u8; 32]) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(PinnedCa { pin, provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Why the server's certificate was not accepted, when that is the error or one of its causes.
pub fn untrusted(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(Error::InvalidCertificate(reason)) = error.downcast_ref::<Error>() {
            return Some(match reason {
                CertificateError::Other(OtherError(reason)) => reason.to_string(),
                reason => format!("the server's certificate is not good: {reason}"),
            });
        }
        // What an I/O error holds is not its source.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

    struct Made {
        ca: CertificateDer<'static>,
        leaf: CertificateDer<'static>,
    }

    fn make(name: &str, address: &str, from: i32, to: i32) -> Made {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let ca = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let mut params = CertificateParams::new(vec![address.to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let leaf = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        Made { ca: ca.der().clone(), leaf: leaf.der().clone() }
    }

    fn verify(pin: &CertificateDer<'_>, leaf: &CertificateDer<'_>, chain: &[CertificateDer<'_>], name: &str) -> bool {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let pinned = PinnedCa { pin: Sha256::digest(pin.as_ref()).into(), provider };
        let name = ServerName::try_from(name.to_owned()).unwrap();
        // A clock that was never set, and one that is years ahead.
        let [unset, ahead] = [17, 2_500_000_000].map(|seconds| {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
            pinned.verify_server_cert(leaf, chain, &name, &[], now).is_ok()
        });
        assert_eq!(unset, ahead, "what the clock says changes nothing");
        unset
    }

    #[test]
    fn only_the_pinned_ca_its_own_certificates_and_the_right_address_pass() {
        let ours = make("ours", "172.22.0.1", 2024, 2034);
        let other = make("ours", "172.22.0.1", 2024, 2034);
        assert!(verify(&ours.ca, &ours.leaf, std::slice::from_ref(&ours.ca), "172.22.0.1"));
        // Certificates that have run out or are not yet good pass too: the node has no clock to say so.
        let old = make("old", "172.22.0.1", 1999, 2000);
        assert!(verify(&old.ca, &old.leaf, std::slice::from_ref(&old.ca), "172.22.0.1"));
        assert!(!verify(&ours.ca, &ours.leaf, std::slice::from_ref(&ours.ca), "172.22.0.2"), "address");
        assert!(!verify(&ours.ca, &ours.leaf, &[], "172.22.0.1"), "no CA sent");
        assert!(!verify(&ours.ca, &other.leaf, std::slice::from_ref(&other.ca), "172.22.0.1"), "other CA");
        assert!(!verify(&ours.ca, &other.leaf, std::slice::from_ref(&ours.ca), "172.22.0.1"), "signed by another");
        assert!(!verify(&ours.ca, &ours.ca, std::slice::from_ref(&ours.ca), "172.22.0.1"), "the CA itself");
        let garbage = CertificateDer::from(vec![0x30, 0x03, 1, 2, 3]);
        assert!(!verify(&garbage, &garbage, std::slice::from_ref(&garbage), "172.22.0.1"), "garbage");
    }

    #[test]
    fn an_untrusted_certificate_is_known_among_the_causes() {
        let wrong = Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(WrongCa))));
        let nested = std::io::Error::other(std::io::Error::other(wrong));
        assert_eq!(untrusted(&nested), Some(WrongCa.to_string()));
        assert!(untrusted(&Error::InvalidCertificate(CertificateError::UnknownIssuer)).is_some());
        assert_eq!(untrusted(&std::io::Error::other("refused")), None);
        assert_eq!(untrusted(&Error::HandshakeNotComplete), None);
    }
}
