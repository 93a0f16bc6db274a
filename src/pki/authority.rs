//! The CA, and what it signs for clients.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, date_time_ymd,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::files::KeyFolder;
use super::{
    ADMIN_GROUP, ADMIN_USER, Credential, PkiError, Series, YEAR, kubeconfig, read_credential, write_credential,
};

/// How long the CA lasts.
const CA_LIFETIME: Duration = Duration::from_secs(50 * YEAR);

/// The CA of one appliance, with its key.
pub struct Authority {
    ca: CertificateDer<'static>,
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    series: Series,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("series", &self.series).finish_non_exhaustive()
    }
}

/// Whom a certificate is for.
pub(super) struct CertificateSubject<'s> {
    /// Common name.
    pub name: &'s str,
    /// Organization.
    pub group: Option<&'s str>,
    /// Organizational unit.
    pub unit: Option<&'s str>,
    /// What it is for.
    pub usage: ExtendedKeyUsagePurpose,
}

impl Default for CertificateSubject<'_> {
    fn default() -> Self {
        Self { name: "", group: None, unit: None, usage: ExtendedKeyUsagePurpose::ClientAuth }
    }
}

impl Authority {
    /// The CA of a folder, which is made when it is missing.
    ///
    /// # Errors
    ///
    /// As [`super::Pki::open`].
    pub fn open(folder: &Path) -> Result<Self, PkiError> {
        let folder = KeyFolder::at(folder);
        folder.make_private()?;
        // Files come whole, and the CA's certificate after its key: what is complete is read without a lock.
        if let (Some(authority), Some(series)) = (read_credential(&folder, "ca")?, Series::read(&folder)?) {
            return Self::of(&folder, authority, series);
        }
        let _lock = folder.lock()?;
        Self::complete(&folder, SystemTime::now())
    }

    /// As [`Authority::open`], and ends every client certificate that was made before.
    ///
    /// # Errors
    ///
    /// As [`super::Pki::open`].
    pub fn revoking(folder: &Path) -> Result<Self, PkiError> {
        let mut authority = Self::open(folder)?;
        let folder = KeyFolder::at(folder);
        let _lock = folder.lock()?;
        authority.series = Series::begin(&folder)?;
        Ok(authority)
    }

    /// Reads what there is and makes the rest. The folder is locked.
    pub(super) fn complete(folder: &KeyFolder, now: SystemTime) -> Result<Self, PkiError> {
        let authority = match read_credential(folder, "ca")? {
            Some(authority) => authority,
            None => {
                let authority = make_authority(now)?;
                write_credential(folder, "ca", &authority)?;
                authority
            }
        };
        let series = match Series::read(folder)? {
            Some(series) => series,
            None => Series::begin(folder)?,
        };
        Self::of(folder, authority, series)
    }

    fn of(folder: &KeyFolder, authority: Credential, series: Series) -> Result<Self, PkiError> {
        let content = |reason: String| PkiError::Content { path: folder.file("ca.crt"), reason };
        let ca = CertificateDer::from_pem_slice(authority.certificate.as_bytes())
            .map_err(|error| content(error.to_string()))?;
        let key = KeyPair::from_pem(&authority.key)
            .map_err(|error| PkiError::Content { path: folder.file("ca.key"), reason: error.to_string() })?;
        if public_key(&ca) != Some(key.subject_public_key_info()) {
            return Err(content("it does not belong to ca.key".into()));
        }
        let issuer = Issuer::from_ca_cert_der(&ca, key).map_err(|error| content(error.to_string()))?;
        Ok(Self { ca, ca_pem: authority.certificate, issuer, series })
    }

    /// The CA certificate.
    pub fn ca_der(&self) -> &CertificateDer<'static> {
        &self.ca
    }

    /// The CA certificate as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// SHA-256 of the CA certificate's DER form: what agents are given to trust.
    pub fn ca_fingerprint(&self) -> [u8; 32] {
        Sha256::digest(&self.ca).into()
    }

    /// The series of the certificates that are made now.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// A new client certificate for a user of one group, with a new key. It is not kept.
    ///
    /// # Errors
    ///
    /// [`PkiError::Make`].
    pub fn client(&self, user: &str, group: &str, lifetime: Duration) -> Result<Credential, PkiError> {
        let unit = self.series.unit();
        let subject =
            CertificateSubject { name: user, group: Some(group), unit: Some(&unit), ..CertificateSubject::default() };
        self.sign(subject, Vec::new(), SystemTime::now() + lifetime)
    }

    /// A new certificate for an administrator.
    ///
    /// # Errors
    ///
    /// [`PkiError::Make`].
    pub fn administrator(&self, lifetime: Duration) -> Result<Credential, PkiError> {
        self.client(ADMIN_USER, ADMIN_GROUP, lifetime)
    }

    /// A kubeconfig with a new certificate for an administrator; `endpoint` is a URL as `https://10.0.0.1:8443`.
    ///
    /// # Errors
    ///
    /// [`PkiError::Make`].
    pub fn kubeconfig(&self, endpoint: &str, lifetime: Duration) -> Result<String, PkiError> {
        Ok(kubeconfig(endpoint, &self.ca_pem, ADMIN_USER, &self.administrator(lifetime)?))
    }

    pub(super) fn sign(
        &self,
        subject: CertificateSubject<'_>,
        names: Vec<SanType>,
        ends: SystemTime,
    ) -> Result<Credential, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = base_params(ends);
        params.distinguished_name.push(DnType::CommonName, subject.name);
        let parts = [(DnType::OrganizationName, subject.group), (DnType::OrganizationalUnitName, subject.unit)];
        for (kind, part) in parts {
            if let Some(part) = part {
                params.distinguished_name.push(kind, part);
            }
        }
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![subject.usage];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Credential { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn base_params(ends: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = ends.into();
    params.distinguished_name = DistinguishedName::new();
    params
}

fn make_authority(now: SystemTime) -> Result<Credential, PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = base_params(now + CA_LIFETIME);
    params.distinguished_name.push(DnType::CommonName, "Slipway CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?;
    Ok(Credential { certificate: certificate.pem(), key: key.serialize_pem() })
}

pub(super) fn public_key(der: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
    let (_, info) = SubjectPublicKeyInfo::from_der(certificate.public_key().raw).ok()?;
    Some(info.raw.to_vec())
}
