//! The objects that users write for a cluster, as JSON.

use serde_json::{Value, json};

/// How kubeadm is told to name a node, and to say which host it runs on.
fn registration() -> Value {
    json!({"nodeRegistration": {"name": "{{ ds.meta_data.name }}",
        "kubeletExtraArgs": [{"name": "node-labels", "value": "metal3.io/uuid={{ ds.meta_data.uuid }}"}]}})
}

fn reference(group: &str, kind: &str, name: &str) -> Value {
    json!({"apiGroup": format!("{group}.cluster.x-k8s.io"), "kind": kind, "name": name})
}

/// A cluster whose API server is reached at this address.
pub(super) fn cluster(name: &str, (host, port): (&str, u16)) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": name},
            "spec": {
                "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12"]}, "pods": {"cidrBlocks": ["192.168.0.0/18"]}},
                "infrastructureRef": reference("infrastructure", "Metal3Cluster", name),
                "controlPlaneRef": reference("controlplane", "KubeadmControlPlane", name),
            },
        }),
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Cluster", "metadata": {"name": name},
            "spec": {"controlPlaneEndpoint": {"host": host, "port": port}},
        }),
    ]
}

/// What machines of a cluster run, and what their config drives say: the name of the machine, and an address.
pub(super) fn machine_template(cluster: &str, name: &str) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3MachineTemplate", "metadata": {"name": name},
            "spec": {"template": {"spec": {
                "image": {"url": format!("http://images.test/{name}.raw"), "checksum": "aa", "diskFormat": "raw"},
                "dataTemplate": {"name": name},
            }}},
        }),
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3DataTemplate", "metadata": {"name": name},
            "spec": {
                "clusterName": cluster,
                "metaData": {"objectNames": [{"key": "name", "object": "machine"}],
                    "ipAddressesFromPool": [{"key": "address", "name": "nodes"}]},
                "networkData": {
                    "links": {"ethernets": [{"type": "phy", "id": "eno1", "macAddress": {"string": "52:54:00:00:00:01"}}]},
                    "networks": {"ipv4": [{"id": "nodes", "link": "eno1", "ipAddressFromIPPool": "nodes"}]},
                },
            },
        }),
    ]
}

/// Addresses for machines.
pub(super) fn pool() -> Value {
    json!({"apiVersion": "ipam.metal3.io/v1alpha1", "kind": "IPPool", "metadata": {"name": "nodes"},
        "spec": {"namePrefix": "nodes", "prefix": 24, "pools": [{"start": "10.20.0.10", "end": "10.20.0.99"}]}})
}

/// A control plane of so many machines, made from the template of this name.
pub(super) fn control_plane(name: &str, replicas: i32, version: &str, template: &str) -> Value {
    json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "version": version,
            "machineTemplate": {"spec": {"infrastructureRef": reference("infrastructure", "Metal3MachineTemplate", template)}},
            "kubeadmConfigSpec": {"initConfiguration": registration(), "joinConfiguration": registration()},
        },
    })
}

/// So many workers of a cluster, made from the template of this name, and how they join.
pub(super) fn workers(cluster: &str, replicas: i32, version: &str, template: &str) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfigTemplate", "metadata": {"name": cluster},
            "spec": {"template": {"spec": {"joinConfiguration": registration()}}},
        }),
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": {"name": cluster},
            "spec": {
                "clusterName": cluster, "replicas": replicas,
                "template": {"metadata": {"labels": {"tier": "workers"}}, "spec": {
                    "clusterName": cluster, "version": version,
                    "bootstrap": {"configRef": reference("bootstrap", "KubeadmConfigTemplate", cluster)},
                    "infrastructureRef": reference("infrastructure", "Metal3MachineTemplate", template),
                }},
            },
        }),
    ]
}

/// A cluster with a control plane of so many machines, all of whose objects have its name.
pub(super) fn cluster_of(name: &str, endpoint: (&str, u16), replicas: i32, version: &str) -> Vec<Value> {
    let mut all = cluster(name, endpoint);
    all.extend(machine_template(name, name));
    all.push(control_plane(name, replicas, version, name));
    all
}
