//! `lcm.mirantis.com/v1alpha1`: what an appliance and the agents on installed nodes tell each other, as Mirantis Container Cloud
//! publishes it.
//!
//! The names and fields are theirs (<https://docs.mirantis.com/container-cloud/latest/api.html>); what is added stands beside them:
//! conditions with times and reasons, and `spec.agentVersion` under its right spelling.

mod cluster;
mod cluster_state;
mod helm_bundle;
mod machine;
mod state_item;

pub use cluster::{LCMCluster, LCMClusterSpec, LCMClusterStatus, LcmEndpoint, LcmUpdateGroup, LcmUpdateGroupStatus};
pub use cluster_state::{
    LCMClusterState, LCMClusterStateSpec, LCMClusterStateStatus, LocksState, MaintenanceScope, Request,
};
pub use helm_bundle::{
    HelmBundle, HelmBundleSpec, HelmBundleStatus, HelmRelease, HelmReleaseStatus, HelmRepository, MAX_CHARTS,
};
pub use machine::{
    AgentUpgradeStatus, HostInfo, LCMMachine, LCMMachineSpec, LCMMachineStatus, MachineRole, NodeState, RebootStatus,
    StateItemStatus,
};
pub use state_item::{AgentConfig, MAX_ITEMS, Phase, StateItem, StepRunner, UNHASHED_PARAMS};

/// API group.
pub const GROUP: &str = "lcm.mirantis.com";
/// What a Secret of a cluster is: `kubeconfig`, `agentData` or `deployment`.
pub const ANNOTATION_SECRET_TYPE: &str = "lcm.mirantis.com/cluster-secret-type";
/// The cluster that a Secret is of.
pub const ANNOTATION_CLUSTER_NAME: &str = "lcm.mirantis.com/cluster-name";
/// Place of a machine in the order in which machines are worked on; lower ones come first.
pub const ANNOTATION_INDEX: &str = "lcm.mirantis.com/index";
/// The machine was deployed once, so it is drained before it changes.
pub const ANNOTATION_WAS_DEPLOYED: &str = "lcm.mirantis.com/was-deployed";
/// The machine was ready once, so it needs no token to join.
pub const ANNOTATION_WAS_READY: &str = "lcm.mirantis.com/was-ready";
/// The machine is to be drained and rebooted: `true`.
pub const ANNOTATION_GRACEFUL_REBOOT: &str = "lcm.mirantis.com/graceful-reboot";
/// The condition of an LCMMachine that says how far it is with leaving its cluster.
pub const CONDITION_LEAVING: &str = "Leaving";
/// Condition of an LCMCluster and of an LCMMachine: whether applications in the cluster have let go of it, where they are asked to.
pub const CONDITION_LOCKS: &str = "WorkloadLocks";
/// Reason of that condition: nobody is asked.
pub const LOCKS_NOT_ASKED: &str = "NotAsked";
/// They are asked, and have not answered yet.
pub const LOCKS_ASKED: &str = "Asked";
/// One of them holds it.
pub const LOCKS_ACTIVE: &str = "Active";
/// All have let go.
pub const LOCKS_INACTIVE: &str = "Inactive";
/// The reason of that condition while applications hold its node by workload locks: no time ends that wait.
pub const REASON_HELD: &str = "HeldByApplications";
/// The GracefulRebootRequest for which a machine was told to reboot last, by its UID.
pub const ANNOTATION_REBOOT_REQUEST: &str = "slipway.dev/reboot-request";
