//! The objects of a new cluster, as `cluster create` makes them: pure.

use serde_json::{Value, json};

use super::nodes;

/// What a new cluster is to be.
#[derive(Clone, Debug)]
pub(super) struct ClusterRequest {
    pub name: String,
    pub namespace: String,
    /// Kubernetes, as `v1.34.4`.
    pub version: String,
    pub control_plane: u32,
    pub workers: u32,
    /// Where its API server is reached.
    pub endpoint: (String, u16),
    /// Whether the nodes of the control plane hold the endpoint's address themselves.
    pub virtual_ip: bool,
    /// URL of the registry that stands for all others.
    pub registry: Option<String>,
    pub pods: String,
    pub services: String,
    /// `url`, `checksum`, `checksumType`, `diskFormat` of a Metal3Machine.
    pub image: Value,
    /// Labels that hosts of the control plane must have.
    pub control_plane_hosts: Vec<(String, String)>,
    /// Labels that hosts of the workers must have.
    pub worker_hosts: Vec<(String, String)>,
    /// Login on the nodes with these keys.
    pub ssh: Option<NodeUserWanted>,
}

/// A user of the nodes.
#[derive(Clone, Debug)]
pub(super) struct NodeUserWanted {
    pub user: String,
    pub keys: Vec<String>,
}

const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";

/// All objects, in an order in which each finds what it names.
pub(super) fn objects(wanted: &ClusterRequest) -> Vec<Value> {
    let mut objects = vec![
        infrastructure(wanted),
        machines(wanted, &control_plane_name(wanted), &wanted.control_plane_hosts),
        control_plane(wanted),
        cluster(wanted),
    ];
    if wanted.workers > 0 {
        objects.push(machines(wanted, &workers_name(wanted), &wanted.worker_hosts));
        objects.push(worker_configuration(wanted));
        objects.push(deployment(wanted));
    }
    objects
}

fn control_plane_name(wanted: &ClusterRequest) -> String {
    format!("{}-control-plane", wanted.name)
}

fn workers_name(wanted: &ClusterRequest) -> String {
    format!("{}-workers", wanted.name)
}

fn object(wanted: &ClusterRequest, group: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{group}/v1beta2"),
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": wanted.namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": wanted.name},
        },
        "spec": spec,
    })
}

fn reference(group: &str, kind: &str, name: &str) -> Value {
    json!({"apiGroup": group, "kind": kind, "name": name})
}

fn cluster(wanted: &ClusterRequest) -> Value {
    let spec = json!({
        "clusterNetwork": {
            "pods": {"cidrBlocks": [wanted.pods]},
            "services": {"cidrBlocks": [wanted.services]},
        },
        "controlPlaneRef": reference(CONTROL_PLANE, "KubeadmControlPlane", &control_plane_name(wanted)),
        "infrastructureRef": reference(INFRASTRUCTURE, "Metal3Cluster", &wanted.name),
    });
    object(wanted, CORE, "Cluster", &wanted.name, spec)
}

fn infrastructure(wanted: &ClusterRequest) -> Value {
    let (host, port) = &wanted.endpoint;
    // Nobody in the cluster tells nodes from each other but by their labels.
    let spec = json!({"controlPlaneEndpoint": {"host": host, "port": port}, "cloudProviderEnabled": false});
    object(wanted, INFRASTRUCTURE, "Metal3Cluster", &wanted.name, spec)
}

fn machines(wanted: &ClusterRequest, name: &str, hosts: &[(String, String)]) -> Value {
    let mut spec = json!({"image": wanted.image});
    if !hosts.is_empty() {
        let labels: serde_json::Map<String, Value> =
            hosts.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
        spec["hostSelector"] = json!({"matchLabels": labels});
    }
    object(wanted, INFRASTRUCTURE, "Metal3MachineTemplate", name, json!({"template": {"spec": spec}}))
}

/// How a node calls itself: cloud-init fills in what the machine's meta data says.
fn node_registration() -> Value {
    json!({
        "name": "{{ ds.meta_data.name }}",
        "kubeletExtraArgs": [{"name": "node-labels", "value": "metal3.io/uuid={{ ds.meta_data.uuid }}"}],
    })
}

/// What all nodes of the cluster have in common.
fn of_every_node(wanted: &ClusterRequest, mut configuration: Value) -> Value {
    if let Some(registry) = &wanted.registry {
        configuration["files"] = json!([nodes::mirror(registry)]);
    }
    if let Some(NodeUserWanted { user, keys }) = &wanted.ssh {
        configuration["users"] =
            json!([{"name": user, "sshAuthorizedKeys": keys, "sudo": "ALL=(ALL) NOPASSWD:ALL", "shell": "/bin/bash"}]);
    }
    configuration
}

fn control_plane(wanted: &ClusterRequest) -> Value {
    let name = control_plane_name(wanted);
    let (endpoint, port) = &wanted.endpoint;
    let mut configuration = of_every_node(
        wanted,
        json!({
            "initConfiguration": {"nodeRegistration": node_registration()},
            "joinConfiguration": {"nodeRegistration": node_registration()},
        }),
    );
    if wanted.virtual_ip {
        nodes::hold(&mut configuration, endpoint, *port);
    }
    let spec = json!({
        "replicas": wanted.control_plane,
        "version": wanted.version,
        "machineTemplate": {
            "spec": {"infrastructureRef": reference(INFRASTRUCTURE, "Metal3MachineTemplate", &name)},
        },
        "kubeadmConfigSpec": configuration,
    });
    object(wanted, CONTROL_PLANE, "KubeadmControlPlane", &name, spec)
}

fn worker_configuration(wanted: &ClusterRequest) -> Value {
    let configuration = json!({"joinConfiguration": {"nodeRegistration": node_registration()}});
    let spec = json!({"template": {"spec": of_every_node(wanted, configuration)}});
    object(wanted, BOOTSTRAP, "KubeadmConfigTemplate", &workers_name(wanted), spec)
}

fn deployment(wanted: &ClusterRequest) -> Value {
    let name = workers_name(wanted);
    let labels = json!({"cluster.x-k8s.io/cluster-name": wanted.name, "cluster.x-k8s.io/deployment-name": name});
    let spec = json!({
        "clusterName": wanted.name,
        "replicas": wanted.workers,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "clusterName": wanted.name,
                "version": wanted.version,
                "bootstrap": {"configRef": reference(BOOTSTRAP, "KubeadmConfigTemplate", &name)},
                "infrastructureRef": reference(INFRASTRUCTURE, "Metal3MachineTemplate", &name),
            },
        },
    });
    object(wanted, CORE, "MachineDeployment", &name, spec)
}

/// `v1.34.4`; the `v` may be left out.
pub(super) fn version(text: &str) -> Result<String, String> {
    let plain = text.strip_prefix('v').unwrap_or(text);
    let parts: Vec<&str> = plain.split('-').next().unwrap_or_default().split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.len() < 6 && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() == 3 && parts.iter().all(is_number) {
        return Ok(format!("v{plain}"));
    }
    Err(format!("{text:?} is no version of Kubernetes: write it as v1.34.4"))
}

/// `HOST` or `HOST:PORT`; an IPv6 address with a port in brackets.
pub(super) fn endpoint(text: &str) -> Result<(String, u16), String> {
    let fault =
        || format!("{text:?} is no endpoint: write a name or an address, and with :PORT another port than 6443");
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok((text.to_owned(), 6443));
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, 6443),
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(fault)?),
    };
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_name = |host: &str| {
        !host.is_empty()
            && host.len() <= 253
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
    };
    match inside {
        Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => Ok((address.to_owned(), port)),
        None if is_name(host) => Ok((host.to_owned(), port)),
        _ => Err(fault()),
    }
}

/// `http://HOST[:PORT]` or `https://HOST[:PORT]`
pub(super) fn registry(text: &str) -> Result<String, String> {
    let fault = || format!("{text:?} is no registry: write it as http://172.22.0.1");
    let url = reqwest::Url::parse(text).map_err(|_| fault())?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty() && url.has_host();
    if matches!(url.scheme(), "http" | "https") && is_bare {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err(fault())
    }
}

/// `KEY=VALUE`
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is no label: write KEY=VALUE"))?;
    if key.is_empty() {
        Err(format!("{text:?} has no key: write KEY=VALUE"))
    } else {
        Ok((key.to_owned(), value.to_owned()))
    }
}

/// A network as `ADDRESS/LENGTH`.
pub(super) fn network(text: &str) -> Result<String, String> {
    text.parse::<ipnetwork::IpNetwork>()
        .ok()
        .filter(|_| text.contains('/'))
        .map(|network| network.to_string())
        .ok_or_else(|| format!("{text:?} is no network: write it as 10.244.0.0/16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(workers: u32) -> ClusterRequest {
        ClusterRequest {
            name: "prod".into(),
            namespace: "rack".into(),
            version: "v1.34.4".into(),
            control_plane: 3,
            workers,
            endpoint: ("172.22.0.200".into(), 6443),
            virtual_ip: false,
            registry: None,
            pods: "10.244.0.0/16".into(),
            services: "10.96.0.0/12".into(),
            image: json!({"url": "http://172.22.0.1/node.qcow2", "checksum": "00", "checksumType": "sha256"}),
            control_plane_hosts: Vec::new(),
            worker_hosts: vec![("role".into(), "worker".into())],
            ssh: Some(NodeUserWanted { user: "admin".into(), keys: vec!["ssh-ed25519 AAAA me".into()] }),
        }
    }

    fn named<'o>(objects: &'o [Value], kind: &str) -> Vec<&'o Value> {
        objects.iter().filter(|object| object["kind"] == kind).collect()
    }

    #[test]
    fn what_an_object_names_is_there() {
        let objects = objects(&wanted(2));
        let there = |reference: &Value| {
            objects.iter().any(|object| {
                object["kind"] == reference["kind"]
                    && object["metadata"]["name"] == reference["name"]
                    && object["apiVersion"].as_str().unwrap().split('/').next() == reference["apiGroup"].as_str()
            })
        };
        fn references(value: &Value, found: &mut Vec<Value>) {
            match value {
                Value::Object(map) if map.contains_key("apiGroup") => found.push(value.clone()),
                Value::Object(map) => map.values().for_each(|value| references(value, found)),
                Value::Array(list) => list.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        objects.iter().for_each(|object| references(object, &mut found));
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(there), "{found:?}");
        assert!(objects.iter().all(|object| object["metadata"]["namespace"] == "rack"));
    }

    #[test]
    fn hosts_and_logins_are_those_that_were_asked_for() {
        let objects = objects(&wanted(2));
        let templates = named(&objects, "Metal3MachineTemplate");
        assert!(templates[0]["spec"]["template"]["spec"]["hostSelector"].is_null());
        assert_eq!(templates[1]["spec"]["template"]["spec"]["hostSelector"]["matchLabels"]["role"], "worker");
        for (kind, pointer) in [
            ("KubeadmControlPlane", "/spec/kubeadmConfigSpec/users/0"),
            ("KubeadmConfigTemplate", "/spec/template/spec/users/0"),
        ] {
            assert_eq!(named(&objects, kind)[0].pointer(pointer).unwrap()["name"], "admin");
        }
    }

    #[test]
    fn every_node_has_the_registry_and_those_of_the_control_plane_hold_the_address() {
        let wanted = ClusterRequest { virtual_ip: true, registry: Some("http://172.22.0.1".into()), ..wanted(2) };
        let objects = objects(&wanted);
        let paths = |kind: &str, pointer: &str| {
            let files = named(&objects, kind)[0].pointer(pointer).unwrap().as_array().unwrap();
            files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mirror = "/etc/containerd/certs.d/_default/hosts.toml";
        assert_eq!(paths("KubeadmConfigTemplate", "/spec/template/spec/files"), [mirror]);
        assert_eq!(
            paths("KubeadmControlPlane", "/spec/kubeadmConfigSpec/files"),
            [mirror, "/etc/keepalived/keepalived.conf", "/etc/keepalived/apiserver"]
        );
    }

    #[test]
    fn a_cluster_may_have_no_workers() {
        let objects = objects(&wanted(0));
        assert_eq!(objects.len(), 4);
        assert!(named(&objects, "MachineDeployment").is_empty());
    }

    #[test]
    fn versions_endpoints_labels_and_networks_are_read() {
        assert_eq!(version("1.34.4").unwrap(), "v1.34.4");
        assert_eq!(version("v1.35.0-rc.1").unwrap(), "v1.35.0-rc.1");
        assert!(["1.34", "latest", "v", "v1..2", "1.2.3.4"].iter().all(|text| version(text).is_err()));
        assert_eq!(endpoint("10.0.0.9").unwrap(), ("10.0.0.9".to_owned(), 6443));
        assert_eq!(endpoint("api.example.org:443").unwrap(), ("api.example.org".to_owned(), 443));
        assert_eq!(endpoint("fd00::9").unwrap(), ("fd00::9".to_owned(), 6443));
        assert_eq!(endpoint("[fd00::9]:443").unwrap(), ("fd00::9".to_owned(), 443));
        assert!(["", ":6443", "a b", "host:0", "host:x", "https://host"].iter().all(|text| endpoint(text).is_err()));
        assert_eq!(registry("http://172.22.0.1/").unwrap(), "http://172.22.0.1");
        assert!(registry("https://images.example.org:5000").is_ok());
        assert!(
            ["172.22.0.1", "ftp://a", "http://a/b", "http://u@a", "http://"].iter().all(|url| registry(url).is_err())
        );
        assert_eq!(label("rack=7").unwrap(), ("rack".to_owned(), "7".to_owned()));
        assert!(label("rack").is_err() && label("=7").is_err());
        assert!(network("10.0.0.0/8").is_ok() && network("10.0.0.0").is_err() && network("x/8").is_err());
    }
}
