//! TLS to the appliance, by its own CA, whatever the node's clock says.
//!
//! The chain is checked in full (signature, key usage, name) against the CA of the configuration and no other. A node's clock may be
//! wrong by years, so the time that the check assumes is the server certificate's own. What is fetched from elsewhere is checked by
//! the node's certificates and by the time that the appliance told.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// The certificates of a PEM text, of which there is one at least.
pub(super) fn roots(pem: &str) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("cannot be read: {error}"))?;
        store.add(certificate).map_err(|error| format!("cannot be used: {error}"))?;
    }
    if store.is_empty() { Err("has no certificate in PEM".into()) } else { Ok(store) }
}

/// Believes whom the appliance's CA believes, at the time of the certificate.
#[derive(Debug)]
struct OwnCa(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for OwnCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let encoding = || Error::InvalidCertificate(CertificateError::BadEncoding);
        let (_, leaf) = x509_parser::parse_x509_certificate(end_entity.as_ref()).map_err(|_| encoding())?;
        let since = u64::try_from(leaf.validity().not_before.timestamp()).map_err(|_| encoding())?;
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(since));
        self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// How the appliance is spoken to.
pub(super) fn appliance(ca: &str) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(ca)?), provider.clone())
        .build()
        .map_err(|error| error.to_string())?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OwnCa(verifier)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// How others are spoken to, at the time that `clock` tells.
pub(super) fn elsewhere(clock: Arc<dyn TimeProvider>) -> Result<ClientConfig, String> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_details(provider, clock)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

    fn made(from: i32, to: i32) -> (String, CertificateDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "appliance");
        let ca = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let mut params = CertificateParams::new(vec!["192.0.2.1".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let leaf = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        (ca.pem(), leaf.der().clone())
    }

    #[test]
    fn the_appliance_is_believed_whatever_the_clock_says_and_nobody_else_is() {
        let (ca, leaf) = made(2024, 2034);
        let (_, other) = made(2024, 2034);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots(&ca).unwrap()), provider).build().unwrap();
        let own = OwnCa(verifier);
        for clock in [17, 1_200_000_000, 4_000_000_000] {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(clock));
            let judge = |leaf: &CertificateDer<'_>, name: &str| {
                own.verify_server_cert(leaf, &[], &ServerName::try_from(name.to_owned()).unwrap(), &[], now).is_ok()
            };
            assert!(judge(&leaf, "192.0.2.1"), "{clock}");
            assert!(!judge(&leaf, "192.0.2.2"), "another address");
            assert!(!judge(&other, "192.0.2.1"), "another CA of the same name");
            assert!(!judge(&CertificateDer::from(vec![0x30, 3, 1, 2, 3]), "192.0.2.1"), "garbage");
        }
    }
}
