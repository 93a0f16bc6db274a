//! Slipway's own certificates: a CA made on the first start, the server's certificate, client certificates, and the
//! administrator's kubeconfig.
//!
//! All keys are ECDSA P-256. Validity begins in the year 2000, because nodes may have no correct clock (their agents
//! trust the CA by its fingerprint). Files with keys have mode 0600.
//!
//! No administrator's key is kept: who can read the CA's key makes a certificate whenever one is needed. It lasts for some
//! weeks, and ends before that when another [`Series`] is begun.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

mod authority;
mod files;
mod kept;
mod kubeconfig;
mod series;
mod server_certificate;
pub mod users;
mod verifier;

pub use authority::Authority;
pub use kept::{KEPT_FILES, KeptPki, read_kept};
pub use kubeconfig::{kubeconfig, token_kubeconfig};
pub use series::Series;
pub use server_certificate::ServerCertificate;

use authority::CertificateSubject;
use files::KeyFolder;

/// How long the server's certificate lasts.
const SERVER_LIFETIME: Duration = Duration::from_secs(10 * YEAR);
/// A server's certificate with less than this left is made anew.
const RENEW_BEFORE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Seconds.
const YEAR: u64 = 31_557_600;
/// How long a client certificate lasts, unless `[api] admin_certificate` says otherwise.
pub const CLIENT_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

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
    /// A file is another user's.
    #[error("{path} cannot be used: {advice}")]
    Owner {
        /// The file, or the folder that it is in.
        path: PathBuf,
        /// Whose it is, and what to do.
        advice: String,
    },
    /// Another process has the folder, and does not give it back.
    #[error("{path} is locked by {holder}: wait until it has ended, or end it")]
    Locked {
        /// The lock.
        path: PathBuf,
        /// Who has it.
        holder: String,
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
    authority: Arc<Authority>,
    #[cfg(test)]
    server: Credential,
    certificate: ServerCertificate,
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
    /// [`PkiError`] when a file is unreadable or damaged (an existing CA is never replaced), or another process has the
    /// folder for more than five seconds.
    pub fn open(folder: &Path, names: &[String]) -> Result<Self, PkiError> {
        Self::open_at(folder, names, SystemTime::now())
    }

    fn open_at(folder: &Path, names: &[String], now: SystemTime) -> Result<Self, PkiError> {
        let folder = KeyFolder::at(folder);
        folder.make_private()?;
        // The appliance and `slipway kubeconfig` may both be the first: one makes, the other finds.
        let _lock = folder.lock()?;
        let authority = Authority::complete(&folder, now)?;
        let wanted = server_names(names)?;
        let server = match read_credential(&folder, "server")? {
            Some(server) if is_current(&server, authority.ca_der(), now) && names_of(&server) == sorted(&wanted) => {
                server
            }
            _ => {
                let subject = CertificateSubject {
                    name: "slipway",
                    usage: ExtendedKeyUsagePurpose::ServerAuth,
                    ..CertificateSubject::default()
                };
                let server = authority.sign(subject, wanted, now + SERVER_LIFETIME)?;
                write_credential(&folder, "server", &server)?;
                tracing::info!(names = ?names, "made the API server's certificate");
                server
            }
        };
        // Older versions kept an administrator's key for ten years.
        if folder.remove("admin.key")? | folder.remove("admin.crt")? {
            tracing::info!(
                "removed the administrator's key of an older version: `slipway kubeconfig` makes one for each call"
            );
        }
        let token_key = read_token_key(&folder)?;
        let authority = Arc::new(authority);
        let certificate = ServerCertificate::new(authority.clone(), &server)?;
        Ok(Self {
            authority,
            #[cfg(test)]
            server,
            certificate,
            token_key,
        })
    }

    /// Who signs client certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The CA certificate.
    pub fn ca_der(&self) -> &CertificateDer<'static> {
        self.authority.ca_der()
    }

    /// The CA certificate as PEM.
    pub fn ca_pem(&self) -> &str {
        self.authority.ca_pem()
    }

    /// SHA-256 of the CA certificate's DER form: what agents are given to trust.
    pub fn ca_fingerprint(&self) -> [u8; 32] {
        self.authority.ca_fingerprint()
    }

    /// The key that signs bearer tokens, PKCS #8. Whoever has it can be anybody; without its file all tokens end.
    pub fn token_key(&self) -> &[u8] {
        &self.token_key
    }

    /// The server's certificate.
    pub fn server_certificate(&self) -> &ServerCertificate {
        &self.certificate
    }

    /// What the HTTPS listener needs: the server's certificate, client certificates of our CA wanted but not needed. When
    /// a client certificate ends, and whether it was revoked, is for whoever serves the request to judge.
    ///
    /// # Errors
    ///
    /// [`PkiError::Tls`].
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        let tls = |error: &dyn std::fmt::Display| PkiError::Tls(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.ca_der().clone()).map_err(|error| tls(&error))?;
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls(&error))?;
        let ca_begins = verifier::begins(self.ca_der()).unwrap_or_default();
        let verifier = Arc::new(verifier::Timeless { inner, ca_begins });
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls(&error))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(self.certificate.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Whether the server's certificate can have this name: an IP address or a DNS name.
pub fn is_name(name: &str) -> bool {
    server_name(name).is_some()
}

fn server_name(name: &str) -> Option<SanType> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Some(SanType::IpAddress(address));
    }
    let plain = !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.*".contains(&byte));
    name.try_into().ok().filter(|_| plain).map(SanType::DnsName)
}

/// The names given and those of this machine to itself.
fn server_names(names: &[String]) -> Result<Vec<SanType>, PkiError> {
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut wanted = Vec::new();
    for name in names.iter().chain(&own) {
        let entry = server_name(name).ok_or_else(|| PkiError::Name(name.clone()))?;
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

/// Certificate and key, when both files are there.
fn read_credential(folder: &KeyFolder, name: &str) -> Result<Option<Credential>, PkiError> {
    let read = |file: String| if name == "ca" { folder.read(&file) } else { folder.read_replaceable(&file) };
    match (read(format!("{name}.crt"))?, read(format!("{name}.key"))?) {
        (Some(certificate), Some(key)) => Ok(Some(Credential { certificate, key })),
        // Half a CA is a loss to be told; half of anything else is made anew.
        (Some(_), None) if name == "ca" => {
            Err(PkiError::Content { path: folder.file("ca.key"), reason: "it is missing".into() })
        }
        _ => Ok(None),
    }
}

/// The key that signs tokens, made when it is not there.
fn read_token_key(folder: &KeyFolder) -> Result<Vec<u8>, PkiError> {
    const NAME: &str = "tokens.key";
    let pem = match folder.read(NAME)? {
        Some(pem) => pem,
        None => {
            let pem = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?.serialize_pem();
            folder.write(NAME, &pem, 0o600)?;
            pem
        }
    };
    KeyPair::from_pem(&pem)
        .ok()
        .filter(|key| key.is_compatible(&PKCS_ECDSA_P256_SHA256))
        .map(|key| key.serialize_der())
        .ok_or_else(|| PkiError::Content { path: folder.file(NAME), reason: "it holds no ECDSA P-256 key".into() })
}

/// Writes the key, then the certificate, each whole or not at all.
fn write_credential(folder: &KeyFolder, name: &str, credential: &Credential) -> Result<(), PkiError> {
    folder.write(&format!("{name}.key"), &credential.key, 0o600)?;
    folder.write(&format!("{name}.crt"), &credential.certificate, 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
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
        let keys = KeyFolder::at(folder.path());
        for name in ["admin.key", "admin.crt"] {
            keys.write(name, "of an older version", 0o600).unwrap();
        }
        for (names, later, server_stays) in [
            (&["10.0.0.1", "rack.example"][..], DAY, true),
            (&["10.0.0.2"], DAY, false),
            (&["rack.example", "10.0.0.1"], DAY * 8 * 365, true),
            (&["rack.example", "10.0.0.1"], DAY * 95 * 365 / 10, false),
        ] {
            write_credential(&keys, "server", &first.server).unwrap();
            let next = open(folder.path(), names, now + later).unwrap();
            assert_eq!(next.ca_fingerprint(), first.ca_fingerprint());
            assert_eq!(next.server.certificate == first.server.certificate, server_stays, "{names:?} {later:?}");
            assert!(next.authority().series().accepts(Some(&first.authority().series().unit())));
            next.server_config().unwrap();
        }
        for name in ["ca", "server"] {
            let mode = fs::metadata(folder.path().join(format!("{name}.key"))).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert!(!folder.path().join("admin.key").exists() && !folder.path().join("admin.crt").exists());
    }

    #[test]
    fn a_damaged_authority_is_an_error_and_a_damaged_certificate_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = open(folder.path(), &[], now).unwrap();
        fs::write(folder.path().join("server.crt"), "junk").unwrap();
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
    fn what_can_be_made_anew_is_made_anew_however_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = open(folder.path(), &[], now).unwrap();
        for name in ["server.crt", "server.key", series::FILE] {
            for damage in [&b""[..], b"junk", &[0; 300], &[0xff, 0xfe, 0x80]] {
                let path = folder.path().join(name);
                let before = fs::read(&path).unwrap();
                fs::write(&path, damage).unwrap();
                let again = open(folder.path(), &[], now).unwrap_or_else(|error| panic!("{name} {damage:?}: {error}"));
                assert_eq!(again.ca_fingerprint(), first.ca_fingerprint(), "{name}");
                assert!(is_current(&again.server, again.ca_der(), now), "{name}");
                assert_ne!(fs::read(&path).unwrap(), before, "{name}");
            }
        }
        // Without these every certificate and token would be another: who runs the appliance decides.
        for name in ["ca.crt", "ca.key", "tokens.key"] {
            let path = folder.path().join(name);
            let before = fs::read(&path).unwrap();
            fs::write(&path, [0xff, 0xfe, 0x80]).unwrap();
            open(folder.path(), &[], now).unwrap_err();
            fs::write(&path, before).unwrap();
        }
        open(folder.path(), &[], now).unwrap();
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
        let text = pki.authority().kubeconfig(endpoint, CLIENT_LIFETIME).unwrap();
        let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("slipway"));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some(endpoint));
        assert_eq!(config.auth_infos[0].name, ADMIN_USER);
        let other = kube::config::Kubeconfig::from_yaml(&token_kubeconfig(endpoint, "", "bot", "a.b\nc: d")).unwrap();
        use secrecy::ExposeSecret;
        let token = other.auth_infos[0].auth_info.as_ref().unwrap().token.as_ref().unwrap();
        assert_eq!(token.expose_secret(), "a.b\nc: d");
    }

    #[test]
    fn a_client_certificate_says_who_until_when_and_of_which_series() {
        let folder = tempfile::tempdir().unwrap();
        let pki = open(folder.path(), &[], SystemTime::now()).unwrap();
        let authority = pki.authority();
        let made = || authority.administrator(DAY).unwrap();
        let (one, other) = (made(), made());
        assert_ne!(one.key, other.key);
        let der = CertificateDer::from_pem_slice(one.certificate.as_bytes()).unwrap();
        let identity = crate::apiserver::UserIdentity::from_certificate(&der).unwrap();
        assert_eq!((identity.user.as_str(), identity.groups), (ADMIN_USER, vec![ADMIN_GROUP.to_owned()]));
        let certificate = identity.certificate.unwrap();
        assert!(authority.series().accepts(certificate.series.as_deref()));
        let ends = (SystemTime::now() + DAY).duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(certificate.ends.abs_diff(i64::try_from(ends).unwrap()) < 600);
        // Who only reads the CA finds the same, and may begin a new series.
        let read = Authority::open(folder.path()).unwrap();
        assert_eq!(read.ca_pem(), authority.ca_pem());
        assert!(read.series().accepts(certificate.series.as_deref()));
        let next = Authority::revoking(folder.path()).unwrap();
        assert!(!next.series().accepts(certificate.series.as_deref()));
        assert_eq!(next.ca_pem(), authority.ca_pem());
        let again = open(folder.path(), &[], SystemTime::now()).unwrap();
        assert!(again.authority().series().accepts(Some(&next.series().unit())));
    }
}
