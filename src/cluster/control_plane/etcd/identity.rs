//! Who asks etcd.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::cluster::certificates::read_key;

/// Name in the certificate.
const NAME: &str = "slipway";
/// How long a certificate is good: it is made for one look.
const GOOD_FOR: Duration = Duration::from_secs(3600);
/// Clocks of machines may be behind.
const SKEW: Duration = Duration::from_secs(300);

/// A certificate of a cluster's CA for etcd, and the CA.
pub(crate) struct EtcdIdentity {
    authority: Vec<CertificateDer<'static>>,
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl EtcdIdentity {
    /// One that the CA in a Secret signs now.
    ///
    /// # Errors
    ///
    /// When the Secret holds no CA that could sign.
    pub(crate) fn of_authority(secret: &Secret) -> Result<Self, String> {
        let data = |key: &str| -> Result<&str, String> {
            let data = secret.data.as_ref().and_then(|data| data.get(key)).ok_or(format!("it has no {key}"))?;
            std::str::from_utf8(&data.0).map_err(|_| format!("its {key} is no text"))
        };
        let (certificate, key) = (data("tls.crt")?, data("tls.key")?);
        let authority: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
        let authority = authority.ok().filter(|all| !all.is_empty()).ok_or("its tls.crt holds no certificate")?;
        let signing = read_key(key.as_bytes()).map_err(|reason| format!("its tls.key: {reason}"))?;
        let issuer = authority.first().map(|ca| Issuer::from_ca_cert_der(ca, signing)).ok_or("it holds no CA")?;
        let issuer = issuer.map_err(|_| "its tls.crt is no CA")?;
        let own = KeyPair::generate().map_err(|error| error.to_string())?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, NAME);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let now = SystemTime::now();
        params.not_before = now.checked_sub(SKEW).unwrap_or(now).into();
        params.not_after = now.checked_add(GOOD_FOR).unwrap_or(now).into();
        let signed = params.signed_by(&own, &issuer).map_err(|error| error.to_string())?;
        Ok(Self { authority, certificate: signed.der().clone(), key: PrivatePkcs8KeyDer::from(own.serialize_der()) })
    }

    /// What TLS goes by.
    ///
    /// # Errors
    ///
    /// When a certificate of the CA cannot be used.
    pub(crate) fn tls(&self) -> Result<rustls::ClientConfig, String> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in &self.authority {
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        let provider = rustls::crypto::ring::default_provider();
        let key = PrivateKeyDer::Pkcs8(self.key.clone_key());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![self.certificate.clone()], key)
            .map_err(|error| error.to_string())?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(tls)
    }
}
