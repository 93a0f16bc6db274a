//! Keys in backups: what of the folder cannot be made anew.

use std::path::Path;

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use super::PkiError;
use super::authority::public_key;
use super::files::KeyFolder;
use super::series;

/// Names of the files: certificate and key of the CA, the key that signs tokens, all as PEM, and the series of client certificates.
pub const KEPT_FILES: [&str; 4] = ["ca.crt", "ca.key", "tokens.key", series::FILE];

/// Their texts. Without the series, which a backup may lack, a new one is begun, and client certificates made so far end.
pub struct KeptPki {
    ca: String,
    key: String,
    tokens: String,
    series: Option<String>,
}

impl KeptPki {
    /// Takes the files by their names, and checks that they are what they should be, and that the key is the CA's.
    ///
    /// # Errors
    ///
    /// In words, with the file's name.
    pub fn new(text: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let [ca, key, tokens, series] = KEPT_FILES;
        let needed = |name: &str| text(name).ok_or_else(|| format!("{name} is missing"));
        let kept = Self { ca: needed(ca)?, key: needed(key)?, tokens: needed(tokens)?, series: text(series) };
        let der = CertificateDer::from_pem_slice(kept.ca.as_bytes()).map_err(|error| format!("ca.crt: {error}"))?;
        let key = KeyPair::from_pem(&kept.key).map_err(|error| format!("ca.key: {error}"))?;
        if public_key(&der) != Some(key.subject_public_key_info()) {
            return Err("ca.crt does not belong to ca.key".into());
        }
        KeyPair::from_pem(&kept.tokens)
            .ok()
            .filter(|key| key.is_compatible(&PKCS_ECDSA_P256_SHA256))
            .ok_or("tokens.key holds no ECDSA P-256 key")?;
        if kept.series.as_deref().is_some_and(|text| series::unit(text).is_none()) {
            return Err(format!("{} names no series", series::FILE));
        }
        Ok(kept)
    }

    /// Names and texts.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts = [Some(&self.ca), Some(&self.key), Some(&self.tokens), self.series.as_ref()];
        KEPT_FILES.into_iter().zip(texts).filter_map(|(name, text)| text.map(|text| (name, text.as_str())))
    }

    /// SHA-256 of the CA's certificate, as DER.
    pub fn fingerprint(&self) -> [u8; 32] {
        CertificateDer::from_pem_slice(self.ca.as_bytes()).map(|ca| Sha256::digest(&ca).into()).unwrap_or_default()
    }

    /// Writes them into a folder, on disk when this returns.
    ///
    /// # Errors
    ///
    /// [`PkiError::File`].
    pub fn write(&self, folder: &Path) -> Result<(), PkiError> {
        let folder = KeyFolder::at(folder);
        folder.make_private()?;
        for (name, text) in self.files() {
            folder.write(name, text, if name.ends_with(".crt") { 0o644 } else { 0o600 })?;
        }
        Ok(())
    }
}

/// Reads what cannot be made anew.
///
/// # Errors
///
/// [`PkiError`] when a file is missing or unusable.
pub fn read_kept(folder: &Path) -> Result<KeptPki, PkiError> {
    let files = KeyFolder::at(folder);
    let mut texts = std::collections::HashMap::new();
    for name in KEPT_FILES {
        if let Some(text) = files.read(name)? {
            texts.insert(name, text);
        }
    }
    KeptPki::new(|name| texts.get(name).cloned())
        .map_err(|reason| PkiError::Content { path: folder.to_owned(), reason })
}
