//! `providerSpec.value` of a Cluster of bare metal: `BaremetalClusterProviderSpec` of `baremetal.k8s.io/v1alpha1`. Pure.
//!
//! By `apiVersion` a value says whose Cluster it is in: one of another group is another provider's, and nothing is done about it.
//! Values are read strictly, as those of Machines are. A published field of which nothing is made here has no effect where that
//! harms nobody ([`IDLE`]), and is refused where whoever set it would rely on what he does not have ([`REFUSED`]).

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::network::{self, Networks};
use crate::api::lcm::MAX_CHARTS;
use crate::api::machine_api::{Cluster, MachineApiClusterSpec};
use crate::release::catalogue::charts::ChartOverride;
use crate::release::names::{API_VERSION, CLUSTER_KIND};

/// Letters of a fault that are shown.
const SHOWN: usize = 500;
/// Where a Cluster says what it wants.
pub const PATH: &str = "spec.providerSpec.value";
/// Keys that a cluster names, at most.
const KEYS_MAX: usize = 100;
/// Longest name of a cluster: Machines have it in a label.
const NAME_MAX: usize = 63;
/// Most workers that are worked on at once.
const WORKERS_MAX: i32 = 500;

/// Fields without effect, and why that harms nobody.
pub const IDLE: &[(&str, &str)] = &[
    ("credentials", "hosts name their own credentials"),
    ("dedicatedMetallbPools", "pools of MetalLB are those of its chart's values"),
    ("region", "an appliance is of one region; upstream dropped it"),
];

/// Fields that are refused once they say something, and what to do instead.
pub const REFUSED: &[(&str, &str)] = &[
    (
        "bootstrapToken",
        "tokens are made by the appliance; one that stands in an object would be read by everybody with `view`",
    ),
    ("containerRegistries", "nodes would pull from elsewhere: name the registry in a step of the release"),
    ("kaas", "an appliance is no management cluster: name `release`"),
    ("proxy", "nodes would go past it: set the proxy in a step of the release"),
    ("secureOverlay", "traffic between nodes would not be encrypted: use a release whose network does that"),
    ("tls", "services would not have these certificates: set them in the values of their charts"),
    ("useBGPAnnouncement", "the address would not be announced: set that up in a step of the release"),
];

/// What a Cluster wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterWish {
    /// ClusterRelease, by its name.
    pub release: String,
    /// What is other than in the release, by the names of charts.
    pub charts: Vec<ChartOverride>,
    /// PublicKeys of its namespace.
    pub public_keys: Vec<String>,
    /// Whether control plane nodes run nothing else.
    pub dedicated_control_plane: bool,
    /// Where its API server is reached: a name or an address.
    pub host: String,
    /// Workers that prepare and are deployed at once.
    pub max_worker_prepare_count: Option<i32>,
    /// Workers that are drained at once.
    pub max_worker_upgrade_count: Option<i32>,
    /// Whether nothing is changed but keys.
    pub maintenance: bool,
    /// Networks of pods and services.
    pub networks: Networks,
    /// Fields of the value that have no effect here.
    pub idle: Vec<&'static str>,
}

/// Why a Cluster makes no sense: the field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct ProviderSpecFault {
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

fn fault(field: impl AsRef<str>, reason: impl Into<String>) -> ProviderSpecFault {
    ProviderSpecFault { field: format!("{PATH}.{}", field.as_ref()), reason: reason.into() }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct RefusedClusterSpec {
    #[serde(default)]
    release: Option<String>,
    #[serde(default)]
    helm_releases: Option<Vec<WireChart>>,
    #[serde(default)]
    public_keys: Option<Vec<WireKey>>,
    #[serde(default)]
    dedicated_control_plane: Option<bool>,
    #[serde(default)]
    load_balancer_host: Option<String>,
    #[serde(default)]
    max_worker_prepare_count: Option<i32>,
    #[serde(default)]
    max_worker_upgrade_count: Option<i32>,
    #[serde(default)]
    maintenance: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with name, enabled and values")]
struct WireChart {
    #[serde(default)]
    name: String,
    #[serde(default)]
    enabled: Option<bool>,
    #[serde(default)]
    values: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with a name")]
struct WireKey {
    #[serde(default)]
    name: String,
}

/// Whether a Cluster is this provider's.
pub fn is_ours(spec: &MachineApiClusterSpec) -> bool {
    let value = spec.provider_spec.value.as_ref();
    value.and_then(|value| value.get("apiVersion")).and_then(Value::as_str) == Some(API_VERSION)
}

/// What a Cluster wants; `None` where it is another provider's.
///
/// # Errors
///
/// Why it makes no sense.
pub fn read(cluster: &Cluster) -> Result<Option<ClusterWish>, ProviderSpecFault> {
    let Some(value) = cluster.spec.provider_spec.value.as_ref().filter(|_| is_ours(&cluster.spec)) else {
        return Ok(None);
    };
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    if name.len() > NAME_MAX {
        let reason = format!("has more than {NAME_MAX} letters: Machines name their cluster in a label");
        return Err(ProviderSpecFault { field: "metadata.name".into(), reason });
    }
    let idle = known(value)?;
    let wire = RefusedClusterSpec::deserialize(value)
        .map_err(|error| ProviderSpecFault { field: PATH.into(), reason: shorten(&error.to_string()) })?;
    let release = wire.release.unwrap_or_default();
    if !is_name(&release) {
        return Err(fault("release", "must be the name of a ClusterRelease: `slipway release list` shows them"));
    }
    let host = wire.load_balancer_host.unwrap_or_default();
    if !is_host(&host) {
        let reason = "must be the address or the name at which the cluster's API server is reached; there are no Subnets here to take one from";
        return Err(fault("loadBalancerHost", reason));
    }
    for (field, count) in [
        ("maxWorkerPrepareCount", wire.max_worker_prepare_count),
        ("maxWorkerUpgradeCount", wire.max_worker_upgrade_count),
    ] {
        if count.is_some_and(|count| !(1..=WORKERS_MAX).contains(&count)) {
            return Err(fault(field, format!("must be from 1 to {WORKERS_MAX}")));
        }
    }
    let networks = network::read(cluster.spec.cluster_network.as_ref(), &host)
        .map_err(|(field, reason)| ProviderSpecFault { field: field.into(), reason })?;
    Ok(Some(ClusterWish {
        release,
        charts: charts(wire.helm_releases.unwrap_or_default())?,
        public_keys: keys(wire.public_keys.unwrap_or_default())?,
        dedicated_control_plane: wire.dedicated_control_plane.unwrap_or(true),
        host,
        max_worker_prepare_count: wire.max_worker_prepare_count,
        max_worker_upgrade_count: wire.max_worker_upgrade_count,
        maintenance: wire.maintenance.unwrap_or_default(),
        networks,
        idle,
    }))
}

fn charts(wire: Vec<WireChart>) -> Result<Vec<ChartOverride>, ProviderSpecFault> {
    if wire.len() > MAX_CHARTS {
        return Err(fault("helmReleases", format!("has more than {MAX_CHARTS} entries")));
    }
    let mut names = BTreeSet::new();
    let mut charts = Vec::new();
    for (at, chart) in wire.into_iter().enumerate() {
        let field = |name: &str| format!("helmReleases[{at}].{name}");
        if chart.name.is_empty() {
            return Err(fault(field("name"), "must name a Helm release of the ClusterRelease"));
        }
        if !names.insert(chart.name.clone()) {
            return Err(fault(field("name"), format!("{:?} is there twice", shorten(&chart.name))));
        }
        if chart.values.as_ref().is_some_and(|values| !values.is_object()) {
            return Err(fault(field("values"), "must be an object"));
        }
        charts.push(ChartOverride { name: chart.name, enabled: chart.enabled, values: chart.values });
    }
    Ok(charts)
}

fn keys(wire: Vec<WireKey>) -> Result<Vec<String>, ProviderSpecFault> {
    if wire.len() > KEYS_MAX {
        return Err(fault("publicKeys", format!("has more than {KEYS_MAX} entries")));
    }
    let mut names = Vec::new();
    for (at, key) in wire.into_iter().enumerate() {
        if !is_name(&key.name) {
            return Err(fault(
                format!("publicKeys[{at}].name"),
                "must be the name of a PublicKey of the Cluster's namespace",
            ));
        }
        if !names.contains(&key.name) {
            names.push(key.name);
        }
    }
    Ok(names)
}

/// That the value has no fields but those of its shape; those of them that have no effect.
fn known(value: &Value) -> Result<Vec<&'static str>, ProviderSpecFault> {
    const FIELDS: &[&str] = &[
        "apiVersion",
        "kind",
        "metadata",
        "release",
        "helmReleases",
        "publicKeys",
        "dedicatedControlPlane",
        "loadBalancerHost",
        "maxWorkerPrepareCount",
        "maxWorkerUpgradeCount",
        "maintenance",
    ];
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind != CLUSTER_KIND {
        return Err(fault("kind", format!("is {:?}, and a value of {API_VERSION} is a {CLUSTER_KIND}", shorten(kind))));
    }
    let mut idle = Vec::new();
    for (field, content) in value.as_object().into_iter().flatten() {
        if FIELDS.contains(&field.as_str()) {
            continue;
        }
        if let Some((field, _)) = IDLE.iter().find(|(one, _)| one == field) {
            idle.push(*field);
        } else if let Some((field, reason)) = REFUSED.iter().find(|(one, _)| one == field) {
            if says_something(content) {
                return Err(fault(field, *reason));
            }
        } else {
            return Err(fault(shorten(field), "there is no such field"));
        }
    }
    Ok(idle)
}

/// What clients write of a field that is not set says nothing.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => all.values().any(says_something),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// Whether an object may be called so: names become parts of paths.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && crate::apiserver::subdomain(name).is_empty()
}

/// An address, or a name of DNS; without a port.
fn is_host(host: &str) -> bool {
    match host.parse::<std::net::IpAddr>() {
        Ok(address) => !address.is_unspecified() && !address.is_multicast() && !address.is_loopback(),
        Err(_) => is_name(host),
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The Cluster that upstream publishes, with this merged into its value.
    pub fn cluster(change: Value) -> Cluster {
        let mut value = json!({
            "apiVersion": API_VERSION, "kind": CLUSTER_KIND, "release": "mosk-21-0-0-25-2",
            "publicKeys": [{"name": "ops-key"}], "dedicatedControlPlane": true, "dedicatedMetallbPools": false,
            "loadBalancerHost": "192.0.2.5", "helmReleases": [{"name": "stacklight", "enabled": true, "values": {}}],
        });
        json_patch::merge(&mut value, &change);
        serde_json::from_value(json!({
            "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "edge", "namespace": "proj"},
            "spec": {
                "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/16"]}, "pods": {"cidrBlocks": ["10.244.0.0/16"]}},
                "providerSpec": {"value": value},
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_cluster_that_upstream_publishes_is_read_whole() {
        let wish = read(&cluster(json!({}))).unwrap().unwrap();
        let wanted = ClusterWish {
            release: "mosk-21-0-0-25-2".into(),
            charts: vec![ChartOverride { name: "stacklight".into(), enabled: Some(true), values: Some(json!({})) }],
            public_keys: vec!["ops-key".into()],
            dedicated_control_plane: true,
            host: "192.0.2.5".into(),
            networks: Networks { pods: "10.244.0.0/16".into(), services: "10.96.0.0/16".into() },
            idle: vec!["dedicatedMetallbPools"],
            ..ClusterWish::default()
        };
        assert_eq!(wish, wanted);
        // Control planes are dedicated unless it is said otherwise.
        let change =
            json!({"dedicatedControlPlane": null, "helmReleases": [{"name": "a"}, {"name": "b", "enabled": false}]});
        let wish = read(&cluster(change)).unwrap().unwrap();
        assert!(wish.dedicated_control_plane);
        assert_eq!(wish.charts.iter().map(|chart| chart.enabled).collect::<Vec<_>>(), [None, Some(false)]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let many: Vec<Value> = (0..=KEYS_MAX).map(|at| json!({"name": format!("k{at}")})).collect();
        for (change, wanted) in [
            (json!({}), ""),
            (json!({"odd": 1}), "value.odd: there is no such field"),
            (json!({"kind": "BareMetalClusterProviderSpec"}), "value.kind: is \"BareMetal"),
            (json!({"release": null}), "value.release: must be"),
            (json!({"release": "../x"}), "value.release: must be"),
            (json!({"release": 1}), "expected a string"),
            (json!({"loadBalancerHost": ""}), "no Subnets"),
            (json!({"loadBalancerHost": "192.0.2.5:6443"}), "value.loadBalancerHost"),
            (json!({"loadBalancerHost": "127.0.0.1"}), "value.loadBalancerHost"),
            (json!({"loadBalancerHost": "0.0.0.0"}), "value.loadBalancerHost"),
            (json!({"loadBalancerHost": "api.edge.test"}), ""),
            (json!({"loadBalancerHost": "10.96.0.9"}), "a network of the cluster"),
            (json!({"maxWorkerPrepareCount": 0}), "from 1 to 500"),
            (json!({"maxWorkerUpgradeCount": 501}), "from 1 to 500"),
            (json!({"maxWorkerUpgradeCount": 3, "maxWorkerPrepareCount": 500}), ""),
            (json!({"publicKeys": [{"name": "a/b"}]}), "publicKeys[0].name"),
            (json!({"publicKeys": [{"name": "a", "namespace": "other"}]}), "unknown field `namespace`"),
            (json!({"publicKeys": many}), "more than 100"),
            (json!({"helmReleases": [{"name": "a"}, {"name": "a"}]}), "twice"),
            (json!({"helmReleases": [{"values": {}}]}), "helmReleases[0].name"),
            (json!({"helmReleases": [{"name": "a", "values": [1]}]}), "must be an object"),
            (json!({"helmReleases": [{"name": "a", "chartURL": "http://evil.test"}]}), "unknown field"),
            (json!({"proxy": "corporate"}), "value.proxy: nodes would go past it"),
            (
                json!({"proxy": "", "tls": {}, "containerRegistries": [], "secureOverlay": false, "kaas": {"management": {"enabled": false}}}),
                "",
            ),
            (json!({"tls": {"keycloak": {"certificate": {"name": "c"}}}}), "value.tls"),
            (json!({"kaas": {"management": {"enabled": true}}}), "value.kaas"),
            (json!({"secureOverlay": true}), "value.secureOverlay"),
            (json!({"bootstrapToken": "abc"}), "value.bootstrapToken"),
        ] {
            match read(&cluster(change.clone())) {
                Ok(Some(_)) => assert_eq!(wanted, "", "{change}"),
                Ok(None) => panic!("not ours: {change}"),
                Err(fault) => {
                    let said = fault.to_string();
                    assert!(!wanted.is_empty() && said.contains(wanted), "{change}: {said}");
                }
            }
        }
        let mut long = cluster(json!({}));
        long.metadata.name = Some("x".repeat(64));
        assert!(read(&long).unwrap_err().to_string().contains("metadata.name"));
    }

    #[test]
    fn clusters_of_other_providers_are_nobodys_here() {
        for value in
            [json!({"apiVersion": "aws.k8s.io/v1alpha1", "odd": 1}), json!({"apiVersion": 1}), json!({}), Value::Null]
        {
            let mut other = cluster(json!({}));
            other.spec.provider_spec.value = Some(value);
            assert_eq!(read(&other), Ok(None));
        }
    }

    #[test]
    fn each_published_field_is_decided_once() {
        let all: Vec<&str> = IDLE.iter().chain(REFUSED).map(|(field, _)| *field).collect();
        let unique: BTreeSet<&&str> = all.iter().collect();
        assert_eq!(unique.len(), all.len());
        for field in all {
            assert!(
                cluster(json!({}))
                    .spec
                    .provider_spec
                    .value
                    .unwrap()
                    .get(field)
                    .is_none_or(|value| !says_something(value))
            );
        }
    }
}
