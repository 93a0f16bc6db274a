//! TLS towards BMCs: the system's certificate authorities and the configured ones, or no check at all when asked for.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// TLS settings that all connections share: the authorities of the system are many, and sessions are resumed from them.
#[derive(Debug, Default)]
pub struct Configs {
    strict: OnceLock<Result<ClientConfig, Error>>,
    any: OnceLock<Result<ClientConfig, Error>>,
}

impl Configs {
    /// The settings with or without a check of certificates; made, and the system's authorities read, on first use.
    ///
    /// # Errors
    ///
    /// When the TLS library cannot work with its own defaults.
    pub fn get(&self, verify: bool, extra_roots: &[CertificateDer<'static>]) -> Result<ClientConfig, Error> {
        let kept = if verify { &self.strict } else { &self.any };
        kept.get_or_init(|| config(verify, extra_roots)).clone()
    }
}

/// TLS settings. With `verify` the certificate must be signed by a known authority and name the host.
fn config(verify: bool, extra_roots: &[CertificateDer<'static>]) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    if !verify {
        let verifier = Arc::new(AnyCertificate(provider));
        return Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth());
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "certificate authorities of the system");
    }
    roots.add_parsable_certificates(found.certs);
    let (_, bad) = roots.add_parsable_certificates(extra_roots.iter().cloned());
    if bad > 0 {
        tracing::warn!(bad, "configured certificate authorities that cannot be read");
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// What a certificate error means to the operator, if it is one.
pub fn explain(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(e) = next {
        // rustls hides inside io::Error, whose source() skips the error itself.
        let inner = e.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        let found = e.downcast_ref::<Error>().or_else(|| inner.and_then(|i| i.downcast_ref::<Error>()));
        if let Some(found) = found {
            return Some(match found {
                Error::InvalidCertificate(why) => format!(
                    "its TLS certificate is not accepted ({why:?}): add its CA to the trusted certificates of this system and restart slipway, give the BMC a certificate that names its address, or set spec.bmc.disableCertificateVerification: true"
                ),
                other => format!("TLS: {other}; check that the port speaks HTTPS (redfish+http:// is for plain HTTP)"),
            });
        }
        next = inner.map(|i| i as &(dyn std::error::Error + 'static)).or_else(|| e.source());
    }
    None
}

/// Takes every certificate; signatures of the handshake itself are still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
