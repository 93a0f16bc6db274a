//! Slipway's own certificates: a CA made on the first start, the server's certificate, client certificates, and the
//! administrator's kubeconfig.
//!
//! All keys are ECDSA P-256. Validity begins in the year 2000, because nodes may have no correct clock (their agents
//! trust the CA by its fingerprint). Files with keys have mode 0600.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Years that the CA lasts.
const CA_YEARS: u64 = 50;
/// Years that other certificates last.
const YEARS: u64 = 10;
/// A certificate with less than this left is made anew.
const RENEW_BEFORE: Duration = Duration::from_secs(365 * 24 * 3600);
const YEAR: Duration = Duration::from_secs(31_557_600);

/// User of the administrator's certificate.
pub const ADMIN_USER: &str = "slipway-admin";
/// Group of the administrator's certificate.
pub const ADMIN_GROUP: &str = "system:masters";

/// Certificates cannot be read, made or written.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} is unusable ({reason}); restore it, or move the folder away to start with a new CA")]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A name for the server's certificate is neither an address nor a DNS name.
    #[error("{0:?} is neither an IP address nor a DNS name")]
    Name(String),
    /// TLS refuses the certificates.
    #[error("TLS: {0}")]
    Tls(String),
}

/// A certificate and its key as PEM.
#[derive(Clone)]
pub struct Credential {
    /// Certificate.
    pub certificate: String,
    /// PKCS #8 key.
    pub key: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The certificates of one appliance.
pub struct Pki {
    ca: CertificateDer<'static>,
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    server: Credential,
    admin: Credential,
    token_key: Vec<u8>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").field("ca", &self.ca_fingerprint()).finish_non_exhaustive()
    }
}

impl Pki {
    /// Reads the certificates of a folder, making what is missing. The server's certificate is made anew when its
    /// names are not these (plus localhost) or it nears its end; names are DNS names or IP addresses.
    ///
    /// # Errors
    ///
    /// [`PkiError`] when a file is unreadable or damaged: an existing CA is never replaced.
    pub fn open(folder: &Path, names: &[String]) -> Result<Self, PkiError> {
        Self::open_at(folder, names, SystemTime::now())
    }

    fn open_at(folder: &Path, names: &[String], now: SystemTime) -> Result<Self, PkiError> {
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| PkiError::File { path, source }
        };
        fs::create_dir_all(folder).map_err(file(folder))?;
        // The appliance and `slipway kubeconfig` may both be the first: one makes, the other finds.
        let path = folder.join(".lock");
        let lock = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(file(&path))?;
        lock.lock().map_err(file(&path))?;
        let authority = match read_credential(folder, "ca")? {
            Some(authority) => authority,
            None => {
                let authority = make_authority(now)?;
                write_credential(folder, "ca", &authority)?;
                authority
            }
        };
        let path = folder.join("ca.crt");
        let content = |reason: String| PkiError::Content { path: path.clone(), reason };
        let ca = CertificateDer::from_pem_slice(authority.certificate.as_bytes())
            .map_err(|error| content(error.to_string()))?;
        let key = KeyPair::from_pem(&authority.key)
            .map_err(|error| PkiError::Content { path: folder.join("ca.key"), reason: error.to_string() })?;
        if public_key(&ca) != Some(key.subject_public_key_info()) {
            return Err(content("it does not belong to ca.key".into()));
        }
        let issuer = Issuer::from_ca_cert_der(&ca, key).map_err(|error| content(error.to_string()))?;

        let wanted = server_names(names)?;
        let server = match read_credential(folder, "server")? {
            Some(server) if is_current(&server, &ca, now) && names_of(&server) == sorted(&wanted) => server,
            _ => {
                let server = make(&issuer, now, "slipway", None, wanted, ExtendedKeyUsagePurpose::ServerAuth)?;
                write_credential(folder, "server", &server)?;
                tracing::info!(names = ?names, "the server's certificate was made");
                server
            }
        };
        let admin = match read_credential(folder, "admin")? {
            Some(admin) if is_current(&admin, &ca, now) => admin,
            _ => {
                let admin = make_client(&issuer, now, ADMIN_USER, ADMIN_GROUP)?;
                write_credential(folder, "admin", &admin)?;
                admin
            }
        };
        let token_key = read_token_key(&folder.join("tokens.key"))?;
        Ok(Self { ca, ca_pem: authority.certificate, issuer, server, admin, token_key })
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

    /// The key that signs bearer tokens, PKCS #8. Whoever has it can be anybody; without its file all tokens end.
    pub fn token_key(&self) -> &[u8] {
        &self.token_key
    }

    /// The administrator's certificate.
    pub fn admin(&self) -> &Credential {
        &self.admin
    }

    /// A new client certificate for a user of one group. It is not kept.
    ///
    /// # Errors
    ///
    /// [`PkiError::Make`].
    pub fn client(&self, user: &str, group: &str) -> Result<Credential, PkiError> {
        make_client(&self.issuer, SystemTime::now(), user, group)
    }

    /// What the HTTPS listener needs: the server's certificate, client certificates of our CA wanted but not needed.
    ///
    /// # Errors
    ///
    /// [`PkiError::Tls`].
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        let tls = |error: &dyn std::fmt::Display| PkiError::Tls(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.clone()).map_err(|error| tls(&error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls(&error))?;
        let leaf = CertificateDer::from_pem_slice(self.server.certificate.as_bytes()).map_err(|error| tls(&error))?;
        let key = PrivateKeyDer::from_pem_slice(self.server.key.as_bytes()).map_err(|error| tls(&error))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![leaf, self.ca.clone()], key)
            .map_err(|error| tls(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A kubeconfig for the administrator; `endpoint` is a URL as `https://10.0.0.1:8443`.
    pub fn kubeconfig(&self, endpoint: &str) -> String {
        kubeconfig(endpoint, &self.ca_pem, ADMIN_USER, &self.admin)
    }
}

/// What of a folder of certificates cannot be made anew: the CA, and the key that signs tokens. All as PEM.
pub struct Kept([String; 3]);

/// Names of the files of [`Kept`], in its order.
pub const KEPT_FILES: [&str; 3] = ["ca.crt", "ca.key", "tokens.key"];

impl Kept {
    /// Checks that the files are what they should be, and that the key is the CA's.
    ///
    /// # Errors
    ///
    /// In words, with the file's name.
    pub fn new(texts: [String; 3]) -> Result<Self, String> {
        let [ca, key, tokens] = &texts;
        let ca = CertificateDer::from_pem_slice(ca.as_bytes()).map_err(|error| format!("ca.crt: {error}"))?;
        let key = KeyPair::from_pem(key).map_err(|error| format!("ca.key: {error}"))?;
        if public_key(&ca) != Some(key.subject_public_key_info()) {
            return Err("ca.crt does not belong to ca.key".into());
        }
        KeyPair::from_pem(tokens)
            .ok()
            .filter(|key| key.is_compatible(&PKCS_ECDSA_P256_SHA256))
            .ok_or("tokens.key holds no ECDSA P-256 key")?;
        Ok(Self(texts))
    }

    /// Names and texts.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        KEPT_FILES.into_iter().zip(self.0.iter().map(String::as_str))
    }

    /// As [`Pki::ca_fingerprint`].
    pub fn fingerprint(&self) -> [u8; 32] {
        CertificateDer::from_pem_slice(self.0[0].as_bytes()).map(|ca| Sha256::digest(&ca).into()).unwrap_or_default()
    }

    /// Writes them into a folder, on disk when this returns.
    ///
    /// # Errors
    ///
    /// [`PkiError::File`].
    pub fn write(&self, folder: &Path) -> Result<(), PkiError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| PkiError::File { path: folder.to_owned(), source })?;
        for (name, text) in self.files() {
            write_file(&folder.join(name), text, if name.ends_with(".crt") { 0o644 } else { 0o600 })?;
        }
        Ok(())
    }
}

/// Reads what cannot be made anew.
///
/// # Errors
///
/// [`PkiError`] when a file is missing or unusable.
pub fn read_kept(folder: &Path) -> Result<Kept, PkiError> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|source| PkiError::File { path, source })
    };
    let [ca, key, tokens] = KEPT_FILES;
    Kept::new([read(ca)?, read(key)?, read(tokens)?])
        .map_err(|reason| PkiError::Content { path: folder.to_owned(), reason })
}

fn data(pem: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(pem)
}

/// A kubeconfig with everything embedded, for the bearer of a certificate.
pub fn kubeconfig(endpoint: &str, ca_pem: &str, user: &str, credential: &Credential) -> String {
    let (certificate, key) = (data(&credential.certificate), data(&credential.key));
    let proof = format!("    client-certificate-data: {certificate}\n    client-key-data: {key}\n");
    render_kubeconfig(endpoint, ca_pem, user, &proof)
}

/// A kubeconfig with everything embedded, for the bearer of a token.
pub fn token_kubeconfig(endpoint: &str, ca_pem: &str, user: &str, token: &str) -> String {
    render_kubeconfig(endpoint, ca_pem, user, &format!("    token: {}\n", json!(token)))
}

/// JSON strings are YAML, so no text can break out of its place.
fn render_kubeconfig(endpoint: &str, ca_pem: &str, user: &str, proof: &str) -> String {
    let text = |text: &str| json!(text).to_string();
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: slipway\n  \
           cluster:\n    \
             server: {endpoint}\n    \
             certificate-authority-data: {ca}\n\
         users:\n\
         - name: {user}\n  \
           user:\n\
         {proof}\
         contexts:\n\
         - name: slipway\n  \
           context:\n    \
             cluster: slipway\n    \
             user: {user}\n\
         current-context: slipway\n",
        endpoint = text(endpoint),
        ca = data(ca_pem),
        user = text(user),
    )
}

fn base_params(now: SystemTime, years: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = (now + YEAR * years as u32).into();
    params.distinguished_name = DistinguishedName::new();
    params
}

fn make_authority(now: SystemTime) -> Result<Credential, PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = base_params(now, CA_YEARS);
    params.distinguished_name.push(DnType::CommonName, "Slipway CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?;
    Ok(Credential { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn make_client(issuer: &Issuer<'_, KeyPair>, now: SystemTime, user: &str, group: &str) -> Result<Credential, PkiError> {
    make(issuer, now, user, Some(group), Vec::new(), ExtendedKeyUsagePurpose::ClientAuth)
}

fn make(
    issuer: &Issuer<'_, KeyPair>,
    now: SystemTime,
    name: &str,
    group: Option<&str>,
    names: Vec<SanType>,
    usage: ExtendedKeyUsagePurpose,
) -> Result<Credential, PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = base_params(now, YEARS);
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer)?;
    Ok(Credential { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The names given and those of this machine to itself.
fn server_names(names: &[String]) -> Result<Vec<SanType>, PkiError> {
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut wanted = Vec::new();
    for name in names.iter().chain(&own) {
        let entry = match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => {
                let plain = !name.is_empty()
                    && name.len() <= 253
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.*".contains(&byte));
                let entry = name.as_str().try_into().ok().filter(|_| plain);
                SanType::DnsName(entry.ok_or_else(|| PkiError::Name(name.clone()))?)
            }
        };
        if !wanted.contains(&entry) {
            wanted.push(entry);
        }
    }
    Ok(wanted)
}

fn sorted(names: &[SanType]) -> Option<Vec<String>> {
    let mut texts: Vec<String> = names
        .iter()
        .filter_map(|name| match name {
            SanType::DnsName(name) => Some(name.as_str().to_owned()),
            SanType::IpAddress(address) => Some(address.to_string()),
            _ => None,
        })
        .collect();
    texts.sort();
    Some(texts)
}

/// Names in a certificate, sorted; `None` when it cannot be read.
fn names_of(credential: &Credential) -> Option<Vec<String>> {
    let der = CertificateDer::from_pem_slice(credential.certificate.as_bytes()).ok()?;
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&der).ok()?;
    let mut texts = Vec::new();
    for name in &certificate.subject_alternative_name().ok()??.value.general_names {
        match name {
            GeneralName::DNSName(name) => texts.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let address = match bytes.len() {
                    4 => IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?),
                    _ => IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?),
                };
                texts.push(address.to_string());
            }
            _ => {}
        }
    }
    texts.sort();
    Some(texts)
}

/// Whether a certificate is signed by this CA, belongs to its key, and lasts for a while.
fn is_current(credential: &Credential, ca: &CertificateDer<'_>, now: SystemTime) -> bool {
    let check = || {
        let der = CertificateDer::from_pem_slice(credential.certificate.as_bytes()).ok()?;
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&der).ok()?;
        let (_, ca) = x509_parser::certificate::X509Certificate::from_der(ca).ok()?;
        let key = KeyPair::from_pem(&credential.key).ok()?;
        let until = (now + RENEW_BEFORE).duration_since(UNIX_EPOCH).ok()?.as_secs();
        let lasts = certificate.validity().not_after.timestamp() > i64::try_from(until).ok()?;
        let signed = certificate.issuer() == ca.subject() && authority_key_matches(&certificate, &ca);
        let paired = certificate.public_key().raw == key.subject_public_key_info();
        Some(lasts && signed && paired)
    };
    check().unwrap_or(false)
}

/// Whether the certificate names this CA's key as its signer's (RFC 5280 section 4.2.1.1).
fn authority_key_matches(
    certificate: &x509_parser::certificate::X509Certificate<'_>,
    ca: &x509_parser::certificate::X509Certificate<'_>,
) -> bool {
    use x509_parser::extensions::ParsedExtension;
    let subject = ca.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    });
    let authority = certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0),
        _ => None,
    });
    subject.is_some() && subject == authority
}

fn public_key(der: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
    let (_, info) = SubjectPublicKeyInfo::from_der(certificate.public_key().raw).ok()?;
    Some(info.raw.to_vec())
}

/// Certificate and key, when both files are there.
fn read_credential(folder: &Path, name: &str) -> Result<Option<Credential>, PkiError> {
    let read = |extension: &str| {
        let path = folder.join(format!("{name}.{extension}"));
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(PkiError::File { path, source }),
        }
    };
    match (read("crt")?, read("key")?) {
        (Some(certificate), Some(key)) => Ok(Some(Credential { certificate, key })),
        // Half a CA is a loss to be told; half of anything else is made anew.
        (Some(_), None) if name == "ca" => {
            Err(PkiError::Content { path: folder.join("ca.key"), reason: "it is missing".into() })
        }
        _ => Ok(None),
    }
}

/// The key that signs tokens, made when it is not there.
fn read_token_key(path: &Path) -> Result<Vec<u8>, PkiError> {
    let pem = match fs::read_to_string(path) {
        Ok(pem) => pem,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let pem = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?.serialize_pem();
            write_file(path, &pem, 0o600)?;
            pem
        }
        Err(source) => return Err(PkiError::File { path: path.to_owned(), source }),
    };
    KeyPair::from_pem(&pem)
        .ok()
        .filter(|key| key.is_compatible(&PKCS_ECDSA_P256_SHA256))
        .map(|key| key.serialize_der())
        .ok_or_else(|| PkiError::Content { path: path.to_owned(), reason: "it holds no ECDSA P-256 key".into() })
}

/// Writes the key, then the certificate, each whole or not at all.
fn write_credential(folder: &Path, name: &str, credential: &Credential) -> Result<(), PkiError> {
    write_file(&folder.join(format!("{name}.key")), &credential.key, 0o600)?;
    write_file(&folder.join(format!("{name}.crt")), &credential.certificate, 0o644)
}

fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let fail = |source| PkiError::File { path: path.to_owned(), source };
    let temporary = path.with_extension(format!("{}.new", path.extension().unwrap_or_default().display()));
    fs::remove_file(&temporary).or_else(ignore_missing).map_err(fail)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
    fs::rename(&temporary, path).map_err(fail)?;
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::File::open(parent).and_then(|folder| folder.sync_all()).map_err(fail)
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn open(folder: &Path, names: &[&str], now: SystemTime) -> Result<Pki, PkiError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Pki::open_at(folder, &names, now)
    }

    #[test]
    fn many_first_callers_get_one_ca() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Pki::open(folder.path(), &["10.0.0.1".to_owned()]).map(|pki| pki.ca_fingerprint());
        let found: Vec<_> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            callers.into_iter().map(|caller| caller.join().unwrap().unwrap()).collect()
        });
        assert!(found.iter().all(|fingerprint| *fingerprint == found[0]));
    }

    #[test]
    fn the_authority_stays_and_the_rest_is_renewed_when_needed() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = open(folder.path(), &["rack.example", "10.0.0.1"], now).unwrap();
        for (names, later, server_stays, admin_stays) in [
            (&["10.0.0.1", "rack.example"][..], DAY, true, true),
            (&["10.0.0.2"], DAY, false, true),
            (&["rack.example", "10.0.0.1"], DAY * 8 * 365, true, true),
            (&["rack.example", "10.0.0.1"], DAY * 95 * 365 / 10, false, false),
        ] {
            write_credential(folder.path(), "server", &first.server).unwrap();
            write_credential(folder.path(), "admin", &first.admin).unwrap();
            let next = open(folder.path(), names, now + later).unwrap();
            assert_eq!(next.ca_fingerprint(), first.ca_fingerprint());
            assert_eq!(next.server.certificate == first.server.certificate, server_stays, "{names:?} {later:?}");
            assert_eq!(next.admin.certificate == first.admin.certificate, admin_stays, "{names:?} {later:?}");
            next.server_config().unwrap();
        }
        for name in ["ca", "server", "admin"] {
            let mode = fs::metadata(folder.path().join(format!("{name}.key"))).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_damaged_authority_is_an_error_and_a_damaged_certificate_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = open(folder.path(), &[], now).unwrap();
        fs::write(folder.path().join("server.crt"), "junk").unwrap();
        fs::remove_file(folder.path().join("admin.key")).unwrap();
        assert_eq!(open(folder.path(), &[], now).unwrap().ca_fingerprint(), first.ca_fingerprint());
        let other = tempfile::tempdir().unwrap();
        open(other.path(), &[], now).unwrap();
        // Certificates of another authority are made anew.
        fs::copy(other.path().join("server.crt"), folder.path().join("server.crt")).unwrap();
        fs::copy(other.path().join("server.key"), folder.path().join("server.key")).unwrap();
        let again = open(folder.path(), &[], now).unwrap();
        assert!(is_current(&again.server, again.ca_der(), now));
        // Its key is not.
        fs::copy(other.path().join("ca.key"), folder.path().join("ca.key")).unwrap();
        assert!(matches!(open(folder.path(), &[], now), Err(PkiError::Content { .. })));
        fs::remove_file(folder.path().join("ca.key")).unwrap();
        assert!(matches!(open(folder.path(), &[], now), Err(PkiError::Content { .. })));
        fs::write(folder.path().join("ca.key"), "junk").unwrap();
        assert!(matches!(open(folder.path(), &[], now), Err(PkiError::Content { .. })));
    }

    #[test]
    fn the_token_key_stays_and_a_damaged_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = open(folder.path(), &[], now).unwrap();
        assert_eq!(open(folder.path(), &[], now).unwrap().token_key(), first.token_key());
        let path = folder.path().join("tokens.key");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "junk").unwrap();
        assert!(matches!(open(folder.path(), &[], now), Err(PkiError::Content { .. })));
        fs::remove_file(&path).unwrap();
        assert_ne!(open(folder.path(), &[], now).unwrap().token_key(), first.token_key());
    }

    #[test]
    fn names_are_checked() {
        for name in ["", "a b", "a/b", "ü.example", "x\ny"] {
            assert!(matches!(server_names(&[name.to_owned()]), Err(PkiError::Name(_))), "{name:?}");
        }
        let names = server_names(&["localhost".into(), "fe80::1".into()]).unwrap();
        assert_eq!(sorted(&names).unwrap(), ["127.0.0.1", "::1", "fe80::1", "localhost"]);
    }

    #[test]
    fn the_kubeconfig_is_read_by_clients_and_no_text_escapes() {
        let folder = tempfile::tempdir().unwrap();
        let pki = open(folder.path(), &[], SystemTime::now()).unwrap();
        let endpoint = "https://a\"\n- evil: [1]:8443";
        let config = kube::config::Kubeconfig::from_yaml(&pki.kubeconfig(endpoint)).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("slipway"));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some(endpoint));
        assert_eq!(config.auth_infos[0].name, ADMIN_USER);
        let other = kube::config::Kubeconfig::from_yaml(&token_kubeconfig(endpoint, "", "bot", "a.b\nc: d")).unwrap();
        use secrecy::ExposeSecret;
        let token = other.auth_infos[0].auth_info.as_ref().unwrap().token.as_ref().unwrap();
        assert_eq!(token.expose_secret(), "a.b\nc: d");
        let identity = crate::apiserver::Identity::from_certificate(
            &CertificateDer::from_pem_slice(pki.admin().certificate.as_bytes()).unwrap(),
        );
        let identity = identity.unwrap();
        assert_eq!((identity.user.as_str(), identity.groups), (ADMIN_USER, vec![ADMIN_GROUP.to_owned()]));
    }
}
