//! `cluster.x-k8s.io`: Cluster and Machine, as Cluster API publishes them, in both of its versions.
//!
//! What is alike in the two versions, and in other groups that follow Cluster API's contract, stands here; each version
//! has a file of its own, and [`convert`] says how one becomes the other.

pub mod convert;
pub mod keys;
pub mod v1beta1;
pub mod v1beta2;
mod workers;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(in crate::api) use workers::version_counts;
pub use workers::{
    CLUSTER_VERSIONS_MAX, DeletionOrder, DeploymentPhase, MachineNaming, NewReplicaStatus, OldReplicaStatus,
    RolloutType, TemplateMeta, VERSIONS_MAX, VersionCount,
};
use workers::{NOT_OF_CHECKS, cluster_version_counts};

/// The API group.
pub const GROUP: &str = "cluster.x-k8s.io";
/// Label of everything that belongs to a cluster: its name.
pub const LABEL_CLUSTER: &str = "cluster.x-k8s.io/cluster-name";

/// What the name of a condition may be.
const CONDITION_TYPE: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
/// What the name of most objects may be.
pub(super) const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// What the name of a namespace may be.
const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Where a cluster's API server is reached.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ApiEndpoint {
    /// Host name or address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub host: String,
    /// Port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,
}

/// Networks inside a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNetwork {
    /// Port that API servers listen at; 6443 when unset.
    #[serde(default, rename = "apiServerPort", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub api_server_port: Option<i32>,
    /// Where the addresses of services come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<NetworkRanges>,
    /// Where the addresses of pods come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<NetworkRanges>,
    /// Domain of the services' names; `cluster.local` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_domain: Option<String>,
}

/// Ranges of addresses.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct NetworkRanges {
    /// Ranges as `address/length`.
    #[serde(rename = "cidrBlocks")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 43)))]
    pub cidr_blocks: Vec<String>,
}

/// A condition that counts when the condition of the whole is reckoned.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConditionGate {
    /// Type of the condition.
    #[schemars(length(min = 1, max = 316), regex(pattern = CONDITION_TYPE))]
    pub condition_type: String,
    /// Which status is the good one; `Positive`, that is True, when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polarity: Option<Polarity>,
}

/// Which status of a condition is the good one.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polarity {
    /// True.
    #[default]
    Positive,
    /// False.
    Negative,
}

/// An address of a machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct MachineAddress {
    /// What kind of address.
    #[serde(rename = "type")]
    pub type_: AddressType,
    /// The address.
    #[schemars(length(min = 1, max = 256))]
    pub address: String,
}

/// What kind of address of a machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressType {
    /// Name that the machine gives itself.
    #[default]
    Hostname,
    /// Address from outside.
    ExternalIP,
    /// Address inside.
    InternalIP,
    /// Name in DNS from outside.
    ExternalDNS,
    /// Name in DNS inside.
    InternalDNS,
}

/// A condition as Cluster API had it before Kubernetes had a type for it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OldCondition {
    /// Its name.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 256))]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// How grave it is when the status is False: `Error`, `Warning` or `Info`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub severity: Option<String>,
    /// When the status changed last.
    pub last_transition_time: Time,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub message: Option<String>,
}

/// What a status in v1beta2 keeps of v1beta1.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct DeprecatedStatus {
    /// Of v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<OldStatus>,
}

/// Fields of a status in v1beta1 that v1beta2 no longer has.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OldStatus {
    /// Conditions of the old form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<OldCondition>,
    /// Fault that nobody will mend, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The same, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub failure_message: Option<String>,
}

/// Fields of a status in v1beta2 that v1beta1 shows apart.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct NewConditions {
    /// Conditions of the new form, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// Somewhere that fails as a whole, in v1beta1: a member of a map by name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomainSpec {
    /// Whether machines of the control plane may be there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control_plane: bool,
    /// What else there is to say of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// Somewhere that fails as a whole, in v1beta2: an entry of a list.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Whether machines of the control plane may be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<bool>,
    /// What else there is to say of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// How many machines there are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaCounts {
    /// Machines wished for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// Machines that are there, those that come or go included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Machines that are as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// Machines that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines that have been ready for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Versions that machines have, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "cluster_version_counts")]
    pub versions: Vec<VersionCount>,
}

/// How far the deletion of a Machine is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeletionStatus {
    /// When the wait for others began that hold it before its node is drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_pre_drain_hook_start_time: Option<Time>,
    /// When the drain of its node began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_start_time: Option<Time>,
    /// When the wait for its node's volumes began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_node_volume_detach_start_time: Option<Time>,
    /// When the wait for others began that hold it before what it runs on is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_pre_terminate_hook_start_time: Option<Time>,
}

/// Requirements of a selector of machines, of labels and of expressions each: every look at a cluster holds all of its machines
/// against them. And values of one of them.
pub const SELECTOR_REQUIREMENTS: usize = 64;
/// See [`SELECTOR_REQUIREMENTS`].
pub const SELECTOR_VALUES: usize = 256;

/// That a selector has not more requirements. With more values it selects nothing: to count those costs an API server more than it
/// allows.
pub(super) fn bounded_selector() -> serde_json::Value {
    let most = SELECTOR_REQUIREMENTS;
    serde_json::json!([
        {
            "rule": format!("!has(self.matchLabels) || size(self.matchLabels) <= {most}"),
            "message": format!("must have at most {most} labels"),
        },
        {
            "rule": format!("!has(self.matchExpressions) || size(self.matchExpressions) <= {most}"),
            "message": format!("must have at most {most} expressions"),
        },
    ])
}

/// Conditions as a list by type.
pub(super) fn conditions(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    by_key::<Condition>(generator, "type", 32)
}

/// Failure domains as a list by name.
pub(super) fn failure_domains(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = by_key::<FailureDomain>(generator, "name", 100);
    schema.insert("minItems".into(), 1.into());
    schema
}

/// Gates as a list by the condition's type.
pub(super) fn gates(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    by_key::<ConditionGate>(generator, "conditionType", 32)
}

pub(super) fn by_key<T: JsonSchema>(
    generator: &mut schemars::SchemaGenerator,
    key: &str,
    most: u32,
) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": generator.subschema_for::<T>(),
        "maxItems": most,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    })
}
