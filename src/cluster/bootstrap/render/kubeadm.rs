//! kubeadm's own configuration, as the kubeadm of a version of Kubernetes reads it. Pure.
//!
//! Before Kubernetes 1.31 it is `kubeadm.k8s.io/v1beta3`, from then on `v1beta4`. The objects here have nearly the fields of
//! v1beta4: what differs is changed, and what a version does not know is left out.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{UserDataError, yaml};
use crate::api::bootstrap::v1beta2::{ClusterConfiguration, InitConfiguration, JoinConfiguration};
use crate::api::cluster::convert::duration;
use crate::cluster::contract::KubeVersion;

/// The oldest version of Kubernetes whose kubeadm is known.
const OLDEST: KubeVersion = KubeVersion { major: 1, minor: 22, patch: 0 };
/// The first version of Kubernetes whose kubeadm reads v1beta4.
const BETA4: KubeVersion = KubeVersion { major: 1, minor: 31, patch: 0 };

/// A version of kubeadm's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeadmApi {
    /// Arguments are maps.
    V1Beta3,
    /// Arguments are lists; there are timeouts.
    V1Beta4,
}

impl KubeadmApi {
    /// What the kubeadm of a version of Kubernetes reads.
    ///
    /// # Errors
    ///
    /// When the version is none, or too old.
    pub fn of(version: &str) -> Result<Self, UserDataError> {
        let parsed: KubeVersion = version.parse().map_err(UserDataError::Version)?;
        if parsed < OLDEST {
            return Err(UserDataError::Version(format!("Kubernetes {parsed} is too old: {OLDEST} is the oldest one")));
        }
        Ok(if parsed < BETA4 { Self::V1Beta3 } else { Self::V1Beta4 })
    }

    fn document(self, kind: &str, part: &impl Serialize) -> Result<Map<String, Value>, UserDataError> {
        let part = serde_json::to_value(part).map_err(|error| UserDataError::Text(error.to_string()))?;
        let Value::Object(mut part) = part else { return Ok(Map::new()) };
        let version = match self {
            Self::V1Beta3 => "kubeadm.k8s.io/v1beta3",
            Self::V1Beta4 => "kubeadm.k8s.io/v1beta4",
        };
        part.insert("apiVersion".into(), version.into());
        part.insert("kind".into(), kind.into());
        Ok(part)
    }

    /// What this version does not know, or knows otherwise, of a program that kubeadm starts.
    fn program(self, program: Option<&mut Value>, args: &str) {
        if let (Self::V1Beta3, Some(Value::Object(program))) = (self, program) {
            program.remove("extraEnvs");
            if let Some(list) = program.get_mut(args) {
                *list = map_of(list);
            }
        }
    }

    fn node(self, document: &mut Map<String, Value>) {
        self.program(document.get_mut("nodeRegistration"), "kubeletExtraArgs");
        if let (Self::V1Beta3, Some(Value::Object(node))) = (self, document.get_mut("nodeRegistration")) {
            node.remove("imagePullSerial");
        }
        // Each name in seconds, and without them; v1beta3 has no such part.
        let Some(Value::Object(timeouts)) = document.remove("timeouts") else { return };
        if self == Self::V1Beta4 {
            let spans = timeouts.iter().filter_map(|(name, seconds)| {
                Some((name.strip_suffix("Seconds")?.to_owned(), span(seconds.as_u64()?)))
            });
            document.insert("timeouts".into(), spans.collect::<Map<_, _>>().into());
        }
    }
}

/// What a cluster's configuration has from elsewhere: the Cluster and the Machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFacts {
    /// Name of the Cluster.
    pub name: String,
    /// Version of Kubernetes, as the Machine has it.
    pub version: String,
    /// Host and port of the API server, if the Cluster has it.
    pub endpoint: Option<String>,
    /// Domain of the services.
    pub dns_domain: Option<String>,
    /// Where the addresses of services come from.
    pub services: Vec<String>,
    /// Where the addresses of pods come from.
    pub pods: Vec<String>,
}

/// The documents of the node that begins a cluster, in YAML: the cluster's and the node's.
///
/// # Errors
///
/// When no kubeadm is known for the version.
pub fn init(
    facts: &ClusterFacts,
    cluster: &ClusterConfiguration,
    init: &InitConfiguration,
) -> Result<String, UserDataError> {
    let api = KubeadmApi::of(&facts.version)?;
    let node = init_document(api, init)?;
    Ok(format!("---\n{}---\n{}", yaml(&cluster_document(api, facts, cluster, init)?)?, yaml(&node)?))
}

fn cluster_document(
    api: KubeadmApi,
    facts: &ClusterFacts,
    cluster: &ClusterConfiguration,
    init: &InitConfiguration,
) -> Result<Map<String, Value>, UserDataError> {
    let mut document = api.document("ClusterConfiguration", cluster)?;
    for program in ["apiServer", "controllerManager", "scheduler"] {
        api.program(document.get_mut(program), "extraArgs");
    }
    api.program(document.get_mut("etcd").and_then(|etcd| etcd.get_mut("local")), "extraArgs");
    for period in ["certificateValidityPeriod", "caCertificateValidityPeriod"] {
        let days = document.remove(&format!("{period}Days")).and_then(|days| days.as_u64());
        if let (KubeadmApi::V1Beta4, Some(days)) = (api, days) {
            document.insert(period.into(), span(days.saturating_mul(24 * 3600)));
        }
    }
    let wait = init.timeouts.as_ref().and_then(|timeouts| timeouts.control_plane_component_health_check_seconds);
    if api == KubeadmApi::V1Beta3 {
        document.remove("encryptionAlgorithm");
        if let Some(wait) = wait.and_then(|wait| u64::try_from(wait).ok()) {
            let server = document.entry("apiServer").or_insert_with(|| json!({}));
            if let Value::Object(server) = server {
                server.insert("timeoutForControlPlane".into(), span(wait));
            }
        }
    }
    document.insert("clusterName".into(), facts.name.as_str().into());
    document.insert("kubernetesVersion".into(), facts.version.as_str().into());
    if let Some(endpoint) = &facts.endpoint {
        document.entry("controlPlaneEndpoint").or_insert_with(|| endpoint.as_str().into());
    }
    let some = |list: &[String]| (!list.is_empty()).then(|| Value::from(list.join(",")));
    let networks = [
        ("dnsDomain", facts.dns_domain.as_deref().map(Value::from)),
        ("podSubnet", some(&facts.pods)),
        ("serviceSubnet", some(&facts.services)),
    ];
    let networks: Map<String, Value> =
        networks.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    if !networks.is_empty() {
        document.insert("networking".into(), networks.into());
    }
    Ok(document)
}

fn init_document(api: KubeadmApi, init: &InitConfiguration) -> Result<Map<String, Value>, UserDataError> {
    let mut document = api.document("InitConfiguration", init)?;
    api.node(&mut document);
    if let Some(Value::Array(tokens)) = document.get_mut("bootstrapTokens") {
        for token in tokens.iter_mut().filter_map(Value::as_object_mut) {
            if let Some(seconds) = token.remove("ttlSeconds").and_then(|seconds| seconds.as_u64()) {
                token.insert("ttl".into(), span(seconds));
            }
        }
    }
    Ok(document)
}

/// The document of a node that joins a cluster, in YAML.
///
/// # Errors
///
/// When no kubeadm is known for the version.
pub fn join(version: &str, join: &JoinConfiguration) -> Result<String, UserDataError> {
    let api = KubeadmApi::of(version)?;
    let mut document = api.document("JoinConfiguration", join)?;
    api.node(&mut document);
    // It is there even when it is empty.
    let discovery = document.entry("discovery").or_insert_with(|| json!({}));
    if let Some(Value::Object(file)) = discovery.get_mut("file") {
        // That is a file of its own.
        file.remove("kubeConfig");
    }
    let wait = join.timeouts.as_ref().and_then(|timeouts| u64::try_from(timeouts.tls_bootstrap_seconds?).ok());
    if let (KubeadmApi::V1Beta3, Some(wait), Value::Object(discovery)) = (api, wait, discovery) {
        discovery.insert("timeout".into(), span(wait));
    }
    Ok(format!("---\n{}", yaml(&document)?))
}

/// Seconds as Go writes a duration.
fn span(seconds: u64) -> Value {
    duration(seconds).into()
}

/// Arguments as a map; of several with the same name the last one counts.
fn map_of(list: &Value) -> Value {
    let args = list.as_array().into_iter().flatten();
    args.filter_map(|arg| Some((arg.get("name")?.as_str()?.to_owned(), arg.get("value")?.clone())))
        .collect::<Map<String, Value>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Value> {
        text.split("---\n").filter(|one| !one.is_empty()).map(|one| serde_saphyr::from_str(one).unwrap()).collect()
    }

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn facts(version: &str) -> ClusterFacts {
        ClusterFacts {
            name: "c".into(),
            version: version.into(),
            endpoint: Some("10.0.0.1:6443".into()),
            dns_domain: Some("cluster.test".into()),
            services: vec!["10.96.0.0/12".into(), "fd00::/112".into()],
            pods: vec!["10.244.0.0/16".into()],
        }
    }

    fn cluster() -> ClusterConfiguration {
        of(json!({
            "apiServer": {"extraArgs": [{"name": "v", "value": "2"}, {"name": "audit", "value": ""}], "certSANs": ["c.test"],
                "extraEnvs": [{"name": "A", "value": "1"}],
                "extraVolumes": [{"name": "x", "hostPath": "/x", "mountPath": "/y", "readOnly": true, "pathType": "File"}]},
            "scheduler": {"extraArgs": [{"name": "v", "value": "2"}]},
            "etcd": {"local": {"dataDir": "/d", "imageTag": "3.6", "extraArgs": [{"name": "q", "value": "1"}]}},
            "dns": {"imageTag": "1.12"}, "imageRepository": "reg.test/k8s", "featureGates": {"X": true},
            "certificateValidityPeriodDays": 30, "caCertificateValidityPeriodDays": 3650, "encryptionAlgorithm": "ECDSA-P256",
        }))
    }

    fn node() -> Value {
        json!({
            "nodeRegistration": {"name": "n", "criSocket": "unix:///x", "taints": [], "imagePullPolicy": "Never",
                "imagePullSerial": false, "kubeletExtraArgs": [{"name": "node-labels", "value": "a=b"}],
                "ignorePreflightErrors": ["Swap"]},
            "timeouts": {"controlPlaneComponentHealthCheckSeconds": 1200, "kubernetesAPICallSeconds": 60,
                "etcdAPICallSeconds": 5, "tlsBootstrapSeconds": 90, "discoverySeconds": 3600, "kubeletHealthCheckSeconds": 0},
            "patches": {"directory": "/p"}, "skipPhases": ["addon/coredns"],
        })
    }

    #[test]
    fn the_cluster_for_v1beta4() {
        let init_configuration: InitConfiguration = of(node());
        let documents = read(&init(&facts("v1.35.0"), &cluster(), &init_configuration).unwrap());
        let mut wanted = serde_json::to_value(cluster()).unwrap();
        let more = json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "c",
            "kubernetesVersion": "v1.35.0", "controlPlaneEndpoint": "10.0.0.1:6443",
            "networking": {"dnsDomain": "cluster.test", "serviceSubnet": "10.96.0.0/12,fd00::/112", "podSubnet": "10.244.0.0/16"},
            "certificateValidityPeriod": "720h0m0s", "caCertificateValidityPeriod": "87600h0m0s",
        });
        let map = wanted.as_object_mut().unwrap();
        map.remove("certificateValidityPeriodDays");
        map.remove("caCertificateValidityPeriodDays");
        map.extend(more.as_object().unwrap().clone());
        assert_eq!(documents[0], wanted);
        let mut wanted = node();
        wanted["apiVersion"] = "kubeadm.k8s.io/v1beta4".into();
        wanted["kind"] = "InitConfiguration".into();
        wanted["timeouts"] = json!({"controlPlaneComponentHealthCheck": "20m0s", "kubernetesAPICall": "1m0s",
            "etcdAPICall": "5s", "tlsBootstrap": "1m30s", "discovery": "1h0m0s", "kubeletHealthCheck": "0s"});
        assert_eq!(documents[1..], [wanted]);
    }

    #[test]
    fn the_cluster_for_v1beta3() {
        let init_configuration: InitConfiguration = of(node());
        let documents = read(&init(&facts("v1.30.9"), &cluster(), &init_configuration).unwrap());
        let (cluster, node) = (&documents[0], &documents[1]);
        assert_eq!(
            (&cluster["apiVersion"], &node["apiVersion"]),
            (&node["apiVersion"], &json!("kubeadm.k8s.io/v1beta3"))
        );
        assert_eq!(
            cluster["apiServer"],
            json!({"extraArgs": {"v": "2", "audit": ""}, "certSANs": ["c.test"], "timeoutForControlPlane": "20m0s",
                "extraVolumes": [{"name": "x", "hostPath": "/x", "mountPath": "/y", "readOnly": true, "pathType": "File"}]})
        );
        assert_eq!(cluster["etcd"]["local"]["extraArgs"], json!({"q": "1"}));
        for field in [
            "encryptionAlgorithm",
            "certificateValidityPeriod",
            "caCertificateValidityPeriod",
            "certificateValidityPeriodDays",
            "caCertificateValidityPeriodDays",
        ] {
            assert_eq!(cluster.get(field), None, "{field}");
        }
        assert_eq!(node["nodeRegistration"]["kubeletExtraArgs"], json!({"node-labels": "a=b"}));
        assert_eq!((node["nodeRegistration"].get("imagePullSerial"), node.get("timeouts")), (None, None));
    }

    #[test]
    fn a_node_that_joins() {
        let mut given = node();
        given["discovery"] = json!({
            "bootstrapToken": {"token": "t", "apiServerEndpoint": "h:1", "caCertHashes": ["sha256:x"]},
            "file": {"kubeConfigPath": "/k", "kubeConfig": {"user": {"exec": {"command": "c"}}}}, "tlsBootstrapToken": "s",
        });
        given["controlPlane"] = json!({"localAPIEndpoint": {"bindPort": 7443}});
        let new = read(&join("v1.36.1", &of(given.clone())).unwrap());
        assert_eq!(new[0]["kind"], "JoinConfiguration");
        assert_eq!(new[0]["controlPlane"], given["controlPlane"]);
        assert_eq!(new[0]["discovery"]["bootstrapToken"], given["discovery"]["bootstrapToken"]);
        assert_eq!(new[0]["discovery"]["file"], json!({"kubeConfigPath": "/k"}));
        assert_eq!(new[0]["timeouts"]["tlsBootstrap"], "1m30s");
        let old = read(&join("v1.29.0", &of(given)).unwrap());
        assert_eq!((&old[0]["discovery"]["timeout"], old[0].get("timeouts")), (&json!("1m30s"), None));
        let empty = read(&join("v1.35.0", &JoinConfiguration::default()).unwrap());
        assert_eq!(
            empty[0],
            json!({"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration", "discovery": {}})
        );
    }

    #[test]
    fn the_version_of_kubernetes_decides() {
        for (version, wanted) in [
            ("v1.22.0", KubeadmApi::V1Beta3),
            ("v1.30.99", KubeadmApi::V1Beta3),
            ("v1.31.0-rc.1", KubeadmApi::V1Beta4),
            ("1.31.0", KubeadmApi::V1Beta4),
            ("v1.40.0+x", KubeadmApi::V1Beta4),
        ] {
            assert_eq!(KubeadmApi::of(version).unwrap(), wanted, "{version}");
        }
        assert!(KubeadmApi::of("v1.21.14").unwrap_err().to_string().contains("v1.22.0 is the oldest"));
        assert!(KubeadmApi::of("latest").unwrap_err().to_string().contains("\"latest\""));
    }

    #[test]
    fn a_token_has_a_span() {
        let given = json!({"bootstrapTokens": [{"token": "abcdef.0123456789abcdef", "ttlSeconds": 0}]});
        let text = init(&facts("v1.35.0"), &ClusterConfiguration::default(), &of(given)).unwrap();
        assert_eq!(read(&text)[1]["bootstrapTokens"], json!([{"token": "abcdef.0123456789abcdef", "ttl": "0s"}]));
    }
}
