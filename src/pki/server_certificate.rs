//! The server's certificate that a running appliance shows: networks come and go while it runs, and with them addresses that agents
//! call.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::authority::{Authority, CertificateSubject};
use super::{Credential, PkiError, SERVER_LIFETIME, names_of, server_names};

/// Addresses that a certificate names beside those that it had at the start: with some thousand it would be larger than clients
/// take of a handshake, and nobody could speak to this server.
const FURTHER_MAX: usize = 256;

/// The certificate that listeners show. Cheap to clone; all clones show the same.
#[derive(Clone)]
pub struct ServerCertificate(Arc<Inner>);

struct Inner {
    authority: Arc<Authority>,
    provider: Arc<CryptoProvider>,
    /// What it named at the start, sorted.
    first: Vec<String>,
    // std's lock: held to clone a pointer, or while a certificate is made, which no connection waits for twice.
    shown: Mutex<ServedCertificate>,
}

struct ServedCertificate {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificate").field("names", &self.shown().names).finish_non_exhaustive()
    }
}

impl ServerCertificate {
    pub(super) fn new(authority: Arc<Authority>, server: &Credential) -> Result<Self, PkiError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let names = names_of(server).unwrap_or_default();
        let key = certified(server, &authority, &provider)?;
        Ok(Self(Arc::new(Inner {
            authority,
            provider,
            first: names.clone(),
            shown: Mutex::new(ServedCertificate { names, key }),
        })))
    }

    fn shown(&self) -> MutexGuard<'_, ServedCertificate> {
        self.0.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names these addresses beside what it named at the start, and no others, from the next connection on: the first
    /// [`FURTHER_MAX`] of them. Whether it was made anew for that.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn set_further(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<bool, PkiError> {
        let mut shown = self.shown();
        let mut further = BTreeSet::new();
        for address in addresses {
            let name = address.to_string();
            if further.len() < FURTHER_MAX && self.0.first.binary_search(&name).is_err() {
                further.insert(name);
            }
        }
        let mut names: Vec<String> = self.0.first.iter().cloned().chain(further).collect();
        names.sort();
        if names == shown.names {
            return Ok(false);
        }
        let subject = CertificateSubject {
            name: "slipway",
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            ..CertificateSubject::default()
        };
        let Inner { authority, provider, .. } = &*self.0;
        let server = authority.sign(subject, server_names(&names)?, SystemTime::now() + SERVER_LIFETIME)?;
        let key = certified(&server, authority, provider)?;
        tracing::info!(names = ?names, "made another certificate for the API server: its addresses have changed");
        *shown = ServedCertificate { names, key };
        Ok(true)
    }
}

fn certified(
    server: &Credential,
    authority: &Authority,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, PkiError> {
    let tls = |error: &dyn fmt::Display| PkiError::Tls(error.to_string());
    let leaf = CertificateDer::from_pem_slice(server.certificate.as_bytes()).map_err(|error| tls(&error))?;
    let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).map_err(|error| tls(&error))?;
    let key = provider.key_provider.load_private_key(key).map_err(|error| tls(&error))?;
    Ok(Arc::new(CertifiedKey::new(vec![leaf, authority.ca_der().clone()], key)))
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown().key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pki;

    #[test]
    fn a_further_address_is_named_as_long_as_it_is_there_and_the_other_names_stay() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::open(folder.path(), &["192.0.2.1".into()]).unwrap();
        let certificate = pki.server_certificate().clone();
        let shown = || {
            let der = certificate.shown().key.cert[0].clone();
            let (_, parsed) = x509_parser::prelude::parse_x509_certificate(&der).unwrap();
            let names = &parsed.subject_alternative_name().unwrap().unwrap().value.general_names;
            (der.to_vec(), names.len())
        };
        let (first, count) = shown();
        assert!(!certificate.set_further(["192.0.2.1".parse().unwrap()]).unwrap());
        assert_eq!(shown(), (first.clone(), count));
        assert!(certificate.set_further(["192.0.2.2".parse().unwrap()]).unwrap());
        assert!(!certificate.set_further(["192.0.2.2".parse().unwrap()]).unwrap());
        let (second, more) = shown();
        assert!(second != first && more == count + 1, "{count} {more}");
        assert!(certificate.shown().names.contains(&"localhost".to_owned()));
        // One goes with its network, and comes back with it.
        assert!(certificate.set_further(["192.0.2.3".parse().unwrap()]).unwrap());
        assert_eq!(shown().1, count + 1);
        assert!(!certificate.shown().names.contains(&"192.0.2.2".to_owned()));
        assert!(certificate.set_further([]).unwrap());
        assert_eq!(shown().1, count);
        // However many there are, clients take the certificate: the first ones are named.
        let many = |count: u32| (0..count).map(|at| std::net::Ipv4Addr::from((11 << 24) + at).into());
        assert!(certificate.set_further(many(6000)).unwrap());
        assert_eq!(shown().1, count + super::FURTHER_MAX);
        assert!(certificate.shown().names.contains(&"11.0.0.255".to_owned()));
        assert!(shown().0.len() < 8 << 10, "{}", shown().0.len());
        assert!(!certificate.set_further(many(6001)).unwrap());
    }
}
