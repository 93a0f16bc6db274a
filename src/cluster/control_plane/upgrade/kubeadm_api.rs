//! kubeadm's ClusterConfiguration in the version of its API that the kubeadm of a version of Kubernetes writes. Pure.
//!
//! kubeadm 1.31 writes `kubeadm.k8s.io/v1beta4`, and 1.36 reads nothing older. Nobody runs `kubeadm upgrade` where machines are
//! replaced, so what is in the cluster is raised here, before the first machine of the new version reads it. It is never put back
//! into an older one, which has no words for all of it.
//! What differs: <https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/>.

use serde_json::{Map, Value, json};

use crate::cluster::contract::KubeVersion;

/// Since this version of Kubernetes it is v1beta4.
const BETA4_SINCE: (u32, u32) = (1, 31);
const BETA4: &str = "kubeadm.k8s.io/v1beta4";
/// Those before, in which arguments are maps.
const OLDER: [&str; 2] = ["kubeadm.k8s.io/v1beta2", "kubeadm.k8s.io/v1beta3"];

/// Programs that kubeadm starts, and where their arguments are.
const PROGRAMS: [(&str, &str); 4] = [
    ("apiServer", "/extraArgs"),
    ("controllerManager", "/extraArgs"),
    ("scheduler", "/extraArgs"),
    ("etcd", "/local/extraArgs"),
];

/// Whether arguments of programs are maps in what this says of itself.
pub(super) fn has_maps(config: &Map<String, Value>) -> bool {
    config.get("apiVersion").and_then(Value::as_str).is_some_and(|api| OLDER.contains(&api))
}

/// Raises a ClusterConfiguration to what the kubeadm of a version of Kubernetes writes; one that is so already stays as it is.
pub(super) fn raise(config: &mut Map<String, Value>, version: KubeVersion) {
    if (version.major, version.minor) < BETA4_SINCE || !has_maps(config) {
        return;
    }
    config.insert("apiVersion".into(), BETA4.into());
    for (part, path) in PROGRAMS {
        if let Some(args) = config.get_mut(part).and_then(|part| part.pointer_mut(path)) {
            list(args);
        }
    }
    // How long a machine waits is said in its own configuration since.
    remove(config, "apiServer", "timeoutForControlPlane");
    // There is only one kind of DNS server, and one kind of image, since v1beta3.
    remove(config, "dns", "type");
    config.remove("useHyperKubeImage");
}

fn remove(config: &mut Map<String, Value>, part: &str, field: &str) {
    config.get_mut(part).and_then(Value::as_object_mut).map(|part| part.remove(field));
}

/// Arguments as a list, by their names; what is a list already stays one.
fn list(args: &mut Value) {
    let Value::Object(map) = args else { return };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut pairs: Vec<(&String, String)> = map.iter().map(|(name, value)| (name, text(value))).collect();
    pairs.sort();
    *args = pairs.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::bootstrap::v1beta2::{ClusterConfiguration, InitConfiguration};
    use crate::cluster::bootstrap::render::kubeadm::{ClusterFacts, init};

    fn raised(config: Value, version: &str) -> Value {
        let Value::Object(mut map) = config else { panic!("no object") };
        raise(&mut map, version.parse().unwrap());
        map.into()
    }

    #[test]
    fn what_is_in_the_cluster_fits_the_version() {
        for (api, version, wanted) in [
            ("v1beta3", "v1.30.9", "v1beta3"),
            ("v1beta3", "v1.31.0", "v1beta4"),
            ("v1beta3", "v1.36.0", "v1beta4"),
            ("v1beta2", "v1.26.0", "v1beta2"),
            ("v1beta2", "v1.31.0", "v1beta4"),
            ("v1beta4", "v1.30.0", "v1beta4"),
            ("v1beta4", "v1.36.0", "v1beta4"),
            ("v1", "v1.40.0", "v1"),
        ] {
            let is = raised(json!({"apiVersion": format!("kubeadm.k8s.io/{api}")}), version);
            assert_eq!(is, json!({"apiVersion": format!("kubeadm.k8s.io/{wanted}")}), "{api} {version}");
        }
    }

    #[test]
    fn nothing_is_lost_that_the_newer_one_has_words_for() {
        let volumes = json!([{"name": "a", "hostPath": "/a", "mountPath": "/b", "readOnly": true}]);
        let networking = json!({"dnsDomain": "cluster.local", "podSubnet": "10.244.0.0/16"});
        let older = json!({
            "apiVersion": "kubeadm.k8s.io/v1beta3", "kind": "ClusterConfiguration", "clusterName": "c",
            "certificatesDir": "/etc/kubernetes/pki", "controlPlaneEndpoint": "10.0.0.1:6443", "imageRepository": "site",
            "kubernetesVersion": "v1.30.0", "networking": networking, "featureGates": {"A": true},
            "apiServer": {"extraArgs": {"b": "2", "a": "x=y", "c": ""}, "extraVolumes": volumes, "certSANs": ["n"],
                "timeoutForControlPlane": "4m0s"},
            "controllerManager": {"extraArgs": {"v": 4}}, "scheduler": {},
            "dns": {"imageTag": "v1.11.1", "type": "CoreDNS"}, "useHyperKubeImage": false,
            "etcd": {"local": {"dataDir": "/var/lib/etcd", "extraArgs": {"quota": "8"}, "serverCertSANs": ["s"]}},
        });
        let newer = json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "c",
            "certificatesDir": "/etc/kubernetes/pki", "controlPlaneEndpoint": "10.0.0.1:6443", "imageRepository": "site",
            "kubernetesVersion": "v1.30.0", "networking": networking, "featureGates": {"A": true},
            "apiServer": {"extraArgs": [{"name": "a", "value": "x=y"}, {"name": "b", "value": "2"}, {"name": "c", "value": ""}],
                "extraVolumes": volumes, "certSANs": ["n"]},
            "controllerManager": {"extraArgs": [{"name": "v", "value": "4"}]}, "scheduler": {},
            "dns": {"imageTag": "v1.11.1"},
            "etcd": {"local": {"dataDir": "/var/lib/etcd", "extraArgs": [{"name": "quota", "value": "8"}], "serverCertSANs": ["s"]}},
        });
        assert_eq!(raised(older, "v1.31.0"), newer);
        assert_eq!(raised(newer.clone(), "v1.32.0"), newer);
        let external =
            json!({"external": {"endpoints": ["https://e"], "caFile": "/c", "certFile": "/d", "keyFile": "/k"}});
        let older = json!({"apiVersion": "kubeadm.k8s.io/v1beta3", "etcd": external});
        assert_eq!(raised(older, "v1.31.0"), json!({"apiVersion": "kubeadm.k8s.io/v1beta4", "etcd": external}));
    }

    #[test]
    fn what_is_malformed_stays_so() {
        for odd in [
            json!({"apiServer": 1, "etcd": [], "dns": "x", "scheduler": {"extraArgs": "x"}}),
            json!({"apiServer": null, "etcd": {"local": null}, "scheduler": {"extraArgs": [1]}}),
        ] {
            let mut older = odd.clone();
            older["apiVersion"] = "kubeadm.k8s.io/v1beta3".into();
            let mut newer = odd;
            newer["apiVersion"] = BETA4.into();
            assert_eq!(raised(older, "v1.31.0"), newer);
        }
    }

    #[test]
    fn it_is_what_a_new_cluster_of_that_version_gets() {
        let cluster: ClusterConfiguration = serde_json::from_value(json!({
            "imageRepository": "site", "apiServer": {"extraArgs": [{"name": "a", "value": "1"}, {"name": "v", "value": "2"}]},
            "etcd": {"local": {"extraArgs": [{"name": "quota", "value": "8"}]}},
        }))
        .unwrap();
        let first = |version: &str| -> Value {
            let facts = ClusterFacts { name: "c".into(), version: version.into(), ..ClusterFacts::default() };
            let told: InitConfiguration =
                serde_json::from_value(json!({"timeouts": {"controlPlaneComponentHealthCheckSeconds": 300}})).unwrap();
            let text = init(&facts, &cluster, &told).unwrap();
            serde_saphyr::from_str(text.split("---\n").nth(1).unwrap()).unwrap()
        };
        let mut upgraded = raised(first("v1.30.0"), "v1.31.0");
        upgraded["kubernetesVersion"] = "v1.31.0".into();
        assert_eq!(upgraded, first("v1.31.0"));
    }
}
