//! A cluster's certificates and keys: how they are made, and what those must be that users bring. Pure.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PublicKeyData,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{PemObject, SectionKind};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::key;
use crate::api::bootstrap::kubeadm::EncryptionAlgorithm;
use crate::hex::hex;

/// Days for which an authority is good when nobody says otherwise.
const CA_DAYS: u32 = 3650;
/// The clock of a machine may be behind, by a time zone at least.
const BEFORE: Duration = Duration::from_secs(24 * 3600);
/// How long the certificate of an administrator is good.
const CLIENT_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Most certificates in one text.
const CHAIN_MAX: usize = 32;

/// What a Secret of a cluster is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificatePurpose {
    /// The cluster's authority.
    Ca,
    /// The authority of etcd.
    Etcd,
    /// The authority of the front proxy.
    Proxy,
    /// The key that tokens of service accounts are signed with.
    ServiceAccount,
    /// The API server's certificate as a client of an etcd that runs elsewhere.
    EtcdClient,
}

impl CertificatePurpose {
    /// What the name of the Secret ends with.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Ca => "ca",
            Self::Etcd => "etcd",
            Self::Proxy => "proxy",
            Self::ServiceAccount => "sa",
            Self::EtcdClient => "apiserver-etcd-client",
        }
    }

    /// Name of the Secret of a cluster.
    pub fn secret(self, cluster: &str) -> String {
        format!("{cluster}-{}", self.suffix())
    }
}

/// A certificate, or a public key, and the private key, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pair {
    /// The certificate; of service accounts the public key.
    pub certificate: String,
    /// The private key; empty where it is not needed.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

/// How what is made is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairRequest {
    /// Days for which authorities are good.
    pub days: Option<u32>,
    /// Algorithm of the keys. There are no RSA keys to be had here: who wants one brings it.
    pub algorithm: Option<EncryptionAlgorithm>,
}

impl PairRequest {
    fn key(self) -> Result<KeyPair, String> {
        let algorithm = match self.algorithm {
            Some(EncryptionAlgorithm::EcdsaP384) => &PKCS_ECDSA_P384_SHA384,
            _ => &PKCS_ECDSA_P256_SHA256,
        };
        KeyPair::generate_for(algorithm).map_err(|error| error.to_string())
    }
}

/// Makes what a cluster needs for a purpose.
///
/// # Errors
///
/// When the random generator fails; of what only users can bring.
pub fn make(purpose: CertificatePurpose, wish: PairRequest, now: SystemTime) -> Result<Pair, String> {
    match purpose {
        CertificatePurpose::Ca | CertificatePurpose::Etcd | CertificatePurpose::Proxy => make_authority(wish, now),
        CertificatePurpose::ServiceAccount => {
            let key = wish.key()?;
            Ok(Pair { certificate: key.public_key_pem(), key: key.serialize_pem() })
        }
        CertificatePurpose::EtcdClient => Err("it is for whoever keeps etcd to make".to_owned()),
    }
}

fn make_authority(wish: PairRequest, now: SystemTime) -> Result<Pair, String> {
    let key = wish.key()?;
    let mut params = CertificateParams::default();
    params.not_before = (now - BEFORE).into();
    let days = u64::from(wish.days.unwrap_or(CA_DAYS));
    params.not_after = (now + Duration::from_secs(days * 24 * 3600)).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
    let certificate = params.self_signed(&key).map_err(|error| error.to_string())?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Signs a certificate for an administrator of the cluster, with a new key.
///
/// # Errors
///
/// When the authority cannot sign.
pub fn administrator(ca: &Pair, now: SystemTime) -> Result<Pair, String> {
    let chain = certificates(&ca.certificate)?;
    let authority = chain.first().ok_or("it holds no certificate")?;
    let issuer =
        Issuer::from_ca_cert_der(authority, key::read(ca.key.as_bytes())?).map_err(|error| error.to_string())?;
    let own = PairRequest::default().key()?;
    let mut params = CertificateParams::default();
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + CLIENT_LIFETIME).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kubernetes-admin");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&own, &issuer).map_err(|error| error.to_string())?;
    Ok(Pair { certificate: certificate.pem(), key: own.serialize_pem() })
}

/// Whether a pair can be what it is for. `external`: etcd runs elsewhere, and its authority's key stays there.
///
/// # Errors
///
/// Why it cannot.
pub fn judge(purpose: CertificatePurpose, pair: &Pair, external: bool, now: SystemTime) -> Result<(), String> {
    if purpose == CertificatePurpose::ServiceAccount {
        let key = key::read(pair.key.as_bytes()).map_err(|reason| format!("tls.key: {reason}"))?;
        return match public_key(&pair.certificate) {
            None => Err("tls.crt: it holds no public key in PEM".to_owned()),
            Some(public) if key.subject_public_key_info() == public => Ok(()),
            Some(_) => Err("tls.crt is not the public key of tls.key".to_owned()),
        };
    }
    let chain = certificates(&pair.certificate).map_err(|reason| format!("tls.crt: {reason}"))?;
    let first = chain.first().ok_or("tls.crt: it holds no certificate in PEM")?;
    let certificate = parsed(first).ok_or("tls.crt: its first certificate is broken")?;
    let seconds = |time: i64| {
        u64::try_from(time).map_or(SystemTime::UNIX_EPOCH, |time| SystemTime::UNIX_EPOCH + Duration::from_secs(time))
    };
    if seconds(certificate.validity().not_after.timestamp()) <= now {
        return Err(format!("tls.crt: it ended on {}", certificate.validity().not_after));
    }
    if purpose != CertificatePurpose::EtcdClient && !certificate.is_ca() {
        return Err("tls.crt: it is not the certificate of an authority".to_owned());
    }
    if pair.key.is_empty() && external && purpose == CertificatePurpose::Etcd {
        return Ok(());
    }
    let key = key::read(pair.key.as_bytes()).map_err(|reason| format!("tls.key: {reason}"))?;
    if certificate.public_key().raw != key.subject_public_key_info() {
        return Err("tls.key is not the key of tls.crt".to_owned());
    }
    Ok(())
}

/// The digests of the public keys of authorities, as kubeadm wants them.
///
/// # Errors
///
/// When the text holds something else.
pub fn hashes(pem: &str) -> Result<Vec<String>, String> {
    let hash = |der: &CertificateDer<'static>| {
        let certificate = parsed(der).ok_or("it holds a broken certificate")?;
        let digits = hex(&Sha256::digest(certificate.public_key().raw));
        Ok(format!("sha256:{digits}"))
    };
    certificates(pem)?.iter().map(hash).collect()
}

/// When the first certificate of a text ends; `None` when there is none.
pub fn ends(pem: &str) -> Option<SystemTime> {
    let chain = certificates(pem).ok()?;
    let certificate = parsed(chain.first()?)?;
    let end = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(end))
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).take(CHAIN_MAX).collect();
    found.map_err(|_| "it is no PEM".to_owned())
}

fn parsed<'d>(der: &'d CertificateDer<'_>) -> Option<X509Certificate<'d>> {
    X509Certificate::from_der(der).ok().map(|(_, certificate)| certificate)
}

/// The public key that a text holds, by itself or in a certificate.
fn public_key(pem: &str) -> Option<Vec<u8>> {
    let (kind, der) = <(SectionKind, Vec<u8>)>::from_pem_slice(pem.as_bytes()).ok()?;
    match kind {
        SectionKind::PublicKey => Some(der).filter(|der| !der.is_empty()),
        SectionKind::Certificate => Some(parsed(&CertificateDer::from(der))?.public_key().raw.to_vec()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const CAS: [CertificatePurpose; 3] = [CertificatePurpose::Ca, CertificatePurpose::Etcd, CertificatePurpose::Proxy];

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
    }

    #[test]
    fn what_is_made_is_good_until_it_ends() {
        for purpose in CAS.into_iter().chain([CertificatePurpose::ServiceAccount]) {
            let pair = make(purpose, PairRequest::default(), now()).unwrap();
            assert_eq!(judge(purpose, &pair, false, now()), Ok(()), "{purpose:?}");
            if purpose != CertificatePurpose::ServiceAccount {
                assert_eq!(ends(&pair.certificate), Some(now() + DAY * CA_DAYS));
                let ended = judge(purpose, &pair, false, now() + DAY * CA_DAYS).unwrap_err();
                assert!(ended.contains("ended on"), "{ended}");
            }
        }
        assert!(make(CertificatePurpose::EtcdClient, PairRequest::default(), now()).is_err());
        let wish = PairRequest { days: Some(30), algorithm: Some(EncryptionAlgorithm::EcdsaP384) };
        let pair = make(CertificatePurpose::Ca, wish, now()).unwrap();
        assert_eq!(ends(&pair.certificate), Some(now() + DAY * 30));
        assert!(key::read(pair.key.as_bytes()).unwrap().is_compatible(&PKCS_ECDSA_P384_SHA384));
    }

    #[test]
    fn what_users_bring_is_judged() {
        let ca = make(CertificatePurpose::Ca, PairRequest::default(), now()).unwrap();
        let other = make(CertificatePurpose::Ca, PairRequest::default(), now()).unwrap();
        let sa = make(CertificatePurpose::ServiceAccount, PairRequest::default(), now()).unwrap();
        let client = administrator(&ca, now()).unwrap();
        let pair = |certificate: &str, key: &str| Pair { certificate: certificate.into(), key: key.into() };
        for (purpose, given, external, wanted) in [
            (CertificatePurpose::Ca, pair(&ca.certificate, &other.key), false, "not the key of tls.crt"),
            (CertificatePurpose::Ca, pair(&ca.certificate, ""), false, "tls.key: it holds no private key"),
            (CertificatePurpose::Ca, pair("", &ca.key), false, "no certificate"),
            (
                CertificatePurpose::Ca,
                pair("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &ca.key),
                false,
                "broken",
            ),
            (CertificatePurpose::Ca, client.clone(), false, "authority"),
            (CertificatePurpose::Etcd, pair(&ca.certificate, ""), false, "tls.key"),
            (CertificatePurpose::Etcd, pair(&ca.certificate, ""), true, ""),
            (CertificatePurpose::Ca, pair(&ca.certificate, ""), true, "tls.key"),
            (CertificatePurpose::EtcdClient, client, false, ""),
            (CertificatePurpose::ServiceAccount, pair(&sa.certificate, &ca.key), false, "not the public key"),
            (CertificatePurpose::ServiceAccount, pair("x", &sa.key), false, "no public key"),
            (CertificatePurpose::ServiceAccount, pair(&ca.certificate, &ca.key), false, ""),
        ] {
            let verdict = judge(purpose, &given, external, now()).err().unwrap_or_default();
            assert!(
                verdict.contains(wanted) && verdict.is_empty() == wanted.is_empty(),
                "{purpose:?} {wanted}: {verdict}"
            );
        }
    }

    #[test]
    fn an_authority_of_rsa_signs_too() {
        let key = key::read(key::tests::rsa_pkcs1().as_bytes()).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = (now() + DAY).into();
        let certificate = params.self_signed(&key).unwrap().pem();
        let ca = Pair { certificate, key: key::tests::rsa_pkcs1() };
        assert_eq!(judge(CertificatePurpose::Ca, &ca, false, now()), Ok(()));
        let client = administrator(&ca, now()).unwrap();
        let (chain, authority) = (certificates(&client.certificate).unwrap(), certificates(&ca.certificate).unwrap());
        let signed = parsed(&chain[0]).unwrap();
        assert_eq!(signed.issuer(), parsed(&authority[0]).unwrap().subject());
        assert_eq!(signed.subject().to_string(), "CN=kubernetes-admin, O=system:masters");
        signed.verify_signature(Some(parsed(&authority[0]).unwrap().public_key())).unwrap();
    }

    #[test]
    fn hashes_are_of_public_keys() {
        let ca = make(CertificatePurpose::Ca, PairRequest::default(), now()).unwrap();
        let key = key::read(ca.key.as_bytes()).unwrap();
        let digits: String = hex(&Sha256::digest(key.subject_public_key_info()));
        assert_eq!(hashes(&ca.certificate).unwrap(), [format!("sha256:{digits}")]);
        assert_eq!(hashes(&ca.certificate.repeat(2)).unwrap().len(), 2);
        assert_eq!(hashes("x").unwrap(), [""; 0]);
    }
}
