//! The Secrets of a cluster's certificates.
//!
//! Each is made once, and the one that is there counts: users may bring theirs before. None is ever changed here.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, PostParams};

use super::pair::{self, CertificatePurpose, Pair, PairRequest};
use crate::api::bootstrap::v1beta2::ClusterConfiguration;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::SECRET_TYPE;
use crate::runtime::Conflict;

/// Key of a certificate in its Secret.
const CERTIFICATE: &str = "tls.crt";
/// Key of a private key in its Secret.
const KEY: &str = "tls.key";
/// Where kubeadm has certificates.
const FOLDER: &str = "/etc/kubernetes/pki";

/// Certificates cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Somebody has to make it, and has not.
    #[error("there is no Secret {0:?}")]
    Missing(String),
    /// It cannot be what it is for.
    #[error("the Secret {name:?} cannot be used: {reason}")]
    Bad {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// It cannot be made.
    #[error("the Secret {name:?} cannot be made: {reason}")]
    Unmade {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

impl Conflict for CertificateError {
    fn is_conflict(&self) -> bool {
        match self {
            // Somebody else made it in between, or wrote it.
            Self::Api(kube::Error::Api(status)) => status.is_conflict() || status.is_already_exists(),
            Self::Api(_) | Self::Missing(_) | Self::Bad { .. } | Self::Unmade { .. } => false,
        }
    }
}

impl CertificateError {
    /// Whether nothing is wrong but that it is early.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }
}

/// A cluster, as far as its Secrets go.
#[derive(Clone, Copy, Debug)]
pub struct ClusterCertificates<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub cluster: &'a str,
}

/// A cluster's certificates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Certificates(BTreeMap<CertificatePurpose, Pair>);

/// Whether etcd runs elsewhere.
fn is_external(config: Option<&ClusterConfiguration>) -> bool {
    config.and_then(|config| config.etcd.as_ref()).is_some_and(|etcd| etcd.external.is_some())
}

/// What the control plane of a cluster needs.
pub fn needed(config: Option<&ClusterConfiguration>) -> Vec<CertificatePurpose> {
    let mut purposes = vec![
        CertificatePurpose::Ca,
        CertificatePurpose::Etcd,
        CertificatePurpose::Proxy,
        CertificatePurpose::ServiceAccount,
    ];
    if is_external(config) {
        purposes.push(CertificatePurpose::EtcdClient);
    }
    purposes
}

/// How certificates are made for a cluster.
pub fn wish(config: Option<&ClusterConfiguration>) -> PairRequest {
    let days = config.and_then(|config| config.ca_certificate_validity_period_days);
    PairRequest {
        days: days.and_then(|days| u32::try_from(days).ok()),
        algorithm: config.and_then(|config| config.encryption_algorithm),
    }
}

/// Reads certificates of a cluster.
///
/// # Errors
///
/// When one is not there, or cannot be what it is for.
pub async fn read(
    client: &Client,
    place: ClusterCertificates<'_>,
    purposes: &[CertificatePurpose],
    config: Option<&ClusterConfiguration>,
) -> Result<Certificates, CertificateError> {
    let mut found = Certificates::default();
    for purpose in purposes {
        let pair = look(client, place, *purpose, is_external(config)).await?;
        found.0.insert(*purpose, pair.ok_or_else(|| CertificateError::Missing(purpose.secret(place.cluster)))?);
    }
    Ok(found)
}

/// Reads the certificates of a cluster's control plane, and makes what is not there yet for `owner`.
///
/// # Errors
///
/// When one cannot be what it is for, or only users can bring it and have not.
pub async fn provide(
    client: &Client,
    place: ClusterCertificates<'_>,
    owner: &OwnerReference,
    config: Option<&ClusterConfiguration>,
) -> Result<Certificates, CertificateError> {
    let mut found = Certificates::default();
    for purpose in needed(config) {
        let pair = match look(client, place, purpose, is_external(config)).await? {
            Some(pair) => pair,
            None => make(client, place, owner, purpose, config).await?,
        };
        found.0.insert(purpose, pair);
    }
    Ok(found)
}

async fn look(
    client: &Client,
    place: ClusterCertificates<'_>,
    purpose: CertificatePurpose,
    external: bool,
) -> Result<Option<Pair>, CertificateError> {
    let name = purpose.secret(place.cluster);
    let secrets = Api::<Secret>::namespaced(client.clone(), place.namespace);
    let Some(secret) = secrets.get_opt(&name).await? else { return Ok(None) };
    let judged = pair_of(&secret).and_then(|pair| {
        pair::judge(purpose, &pair, external, SystemTime::now())?;
        Ok(pair)
    });
    judged.map(Some).map_err(|reason| CertificateError::Bad { name, reason })
}

async fn make(
    client: &Client,
    place: ClusterCertificates<'_>,
    owner: &OwnerReference,
    purpose: CertificatePurpose,
    config: Option<&ClusterConfiguration>,
) -> Result<Pair, CertificateError> {
    let name = purpose.secret(place.cluster);
    let brought =
        purpose == CertificatePurpose::EtcdClient || (purpose == CertificatePurpose::Etcd && is_external(config));
    if brought {
        return Err(CertificateError::Missing(name));
    }
    let pair = pair::make(purpose, wish(config), SystemTime::now())
        .map_err(|reason| CertificateError::Unmade { name: name.clone(), reason })?;
    let content = [(CERTIFICATE, &pair.certificate), (KEY, &pair.key)];
    let content = content.map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec()))).into();
    // Whoever was faster counts: the next look finds theirs.
    create(client, place, &name, owner, content).await?;
    tracing::info!(namespace = place.namespace, secret = name, "made a certificate of a cluster");
    Ok(pair)
}

/// Makes a Secret of a cluster.
pub(super) async fn create(
    client: &Client,
    place: ClusterCertificates<'_>,
    name: &str,
    owner: &OwnerReference,
    content: BTreeMap<String, ByteString>,
) -> Result<(), kube::Error> {
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(place.namespace.to_owned()),
            labels: Some([(LABEL_CLUSTER.to_owned(), place.cluster.to_owned())].into()),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(content),
        ..Secret::default()
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), place.namespace);
    secrets.create(&PostParams::default(), &secret).await.map(drop)
}

fn pair_of(secret: &Secret) -> Result<Pair, String> {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.map(|bytes| String::from_utf8(bytes.0.clone()).map_err(|_| format!("{key}: it is no text"))).transpose()
    };
    let certificate = text(CERTIFICATE)?.ok_or_else(|| format!("it has no {CERTIFICATE}"))?;
    Ok(Pair { certificate, key: text(KEY)?.unwrap_or_default() })
}

/// A file of a node: its path, who may read it, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile<'a> {
    /// Where it is.
    pub path: String,
    /// Who may do what with it.
    pub permissions: &'static str,
    /// What is in it.
    pub content: &'a str,
}

impl Certificates {
    /// Those of a purpose.
    pub fn of(&self, purpose: CertificatePurpose) -> Option<&Pair> {
        self.0.get(&purpose)
    }

    /// The files that a node of the control plane has of them.
    pub fn files(&self, config: Option<&ClusterConfiguration>) -> Vec<CertificateFile<'_>> {
        let folder = config.and_then(|config| config.certificates_dir.as_deref()).unwrap_or(FOLDER);
        let folder = folder.trim_end_matches('/');
        let external = config.and_then(|config| config.etcd.as_ref()?.external.as_ref());
        let own = |name: &str| (format!("{folder}/{name}.crt"), format!("{folder}/{name}.key"));
        let mut files = Vec::new();
        for (purpose, pair) in &self.0 {
            let (certificate, key) = match (purpose, external) {
                (CertificatePurpose::Ca, _) => own("ca"),
                (CertificatePurpose::Etcd, None) => own("etcd/ca"),
                // The key of an authority that is kept elsewhere has no place on a node.
                (CertificatePurpose::Etcd, Some(etcd)) => (etcd.ca_file.clone(), String::new()),
                (CertificatePurpose::Proxy, _) => own("front-proxy-ca"),
                (CertificatePurpose::ServiceAccount, _) => (format!("{folder}/sa.pub"), format!("{folder}/sa.key")),
                (CertificatePurpose::EtcdClient, Some(etcd)) => (etcd.cert_file.clone(), etcd.key_file.clone()),
                (CertificatePurpose::EtcdClient, None) => continue,
            };
            files.push(CertificateFile { path: certificate, permissions: "0640", content: &pair.certificate });
            if !key.is_empty() && !pair.key.is_empty() {
                files.push(CertificateFile { path: key, permissions: "0600", content: &pair.key });
            }
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn all() -> Certificates {
        let pair = |text: &str| Pair { certificate: format!("{text}-c"), key: format!("{text}-k") };
        let purposes = [
            CertificatePurpose::Ca,
            CertificatePurpose::Etcd,
            CertificatePurpose::Proxy,
            CertificatePurpose::ServiceAccount,
            CertificatePurpose::EtcdClient,
        ];
        Certificates(purposes.into_iter().map(|purpose| (purpose, pair(purpose.suffix()))).collect())
    }

    #[test]
    fn nodes_have_the_files_that_kubeadm_looks_for() {
        let certificates = all();
        let files = certificates.files(None);
        let paths: Vec<(&str, &str, &str)> =
            files.iter().map(|file| (file.path.as_str(), file.permissions, file.content)).collect();
        assert_eq!(
            paths,
            [
                ("/etc/kubernetes/pki/ca.crt", "0640", "ca-c"),
                ("/etc/kubernetes/pki/ca.key", "0600", "ca-k"),
                ("/etc/kubernetes/pki/etcd/ca.crt", "0640", "etcd-c"),
                ("/etc/kubernetes/pki/etcd/ca.key", "0600", "etcd-k"),
                ("/etc/kubernetes/pki/front-proxy-ca.crt", "0640", "proxy-c"),
                ("/etc/kubernetes/pki/front-proxy-ca.key", "0600", "proxy-k"),
                ("/etc/kubernetes/pki/sa.pub", "0640", "sa-c"),
                ("/etc/kubernetes/pki/sa.key", "0600", "sa-k"),
            ]
        );
        let config: ClusterConfiguration = serde_json::from_value(json!({
            "certificatesDir": "/pki/",
            "etcd": {"external": {"endpoints": ["https://e"], "caFile": "/e/ca", "certFile": "/e/crt", "keyFile": "/e/key"}},
        }))
        .unwrap();
        let paths: Vec<String> = certificates.files(Some(&config)).into_iter().map(|file| file.path).collect();
        assert_eq!(
            paths,
            [
                "/pki/ca.crt",
                "/pki/ca.key",
                "/e/ca",
                "/pki/front-proxy-ca.crt",
                "/pki/front-proxy-ca.key",
                "/pki/sa.pub",
                "/pki/sa.key",
                "/e/crt",
                "/e/key"
            ]
        );
        assert_eq!((needed(None).len(), needed(Some(&config)).len()), (4, 5));
    }
}
