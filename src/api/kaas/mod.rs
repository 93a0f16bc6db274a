//! `kaas.mirantis.com/v1alpha1`: releases, hosts as users describe them, keys and upgrades, as Mirantis Container Cloud publishes it.
//!
//! The names and fields are theirs (<https://docs.mirantis.com/container-cloud/latest/api.html>).

mod cluster_release;
mod cluster_update_plan;
mod credential;
mod graceful_reboot;
mod inventory;
mod kaas_release;
mod public_key;
mod stages;
mod update_group;

pub use cluster_release::{
    AllowedDistribution, AllowedNodeLabel, ClusterRelease, ClusterReleaseSpec, DistributionImage, ReleaseChart,
    ReleaseHelm, ReleaseNote, ReleaseNotes,
};
pub use cluster_update_plan::{
    ClusterUpdatePlan, ClusterUpdatePlanSpec, ClusterUpdatePlanStatus, MAX_PLAN_STEPS, UpdatePlanDuration,
    UpdatePlanImpact, UpdatePlanState, UpdatePlanStep, UpdatePlanStepStatus,
};
pub use credential::{
    BareMetalHostCredential, BareMetalHostCredentialSpec, BareMetalHostCredentialStatus, CredentialPassword,
    PasswordSecret, SEALED_PASSWORDS,
};
pub use graceful_reboot::{GracefulRebootRequest, GracefulRebootRequestSpec, GracefulRebootRequestStatus, MAX_REBOOTS};
pub use inventory::{
    BareMetalHostInventory, BareMetalHostInventorySpec, BareMetalHostInventoryStatus, InventoryBmc,
    InventoryProvisioning,
};
pub use kaas_release::{
    AvailableUpgrade, KaaSRelease, KaaSReleaseSpec, ManagementCharts, RegionalCharts, SupportedClusterRelease,
    SupportedProviders,
};
pub use public_key::{PublicKey, PublicKeySpec};
pub use stages::{
    ClusterDeploymentStatus, ClusterUpgradeStatus, LcmStage, MAX_STAGES, MachineDeploymentStatus, MachineUpgradeStatus,
    StageHistory, StageState,
};
pub use update_group::{UpdateGroup, UpdateGroupSpec, control_group, default_group};

/// API group.
pub const GROUP: &str = "kaas.mirantis.com";
/// The KaaSRelease that is in force has it: `true`.
pub const LABEL_ACTIVE: &str = "kaas.mirantis.com/active";
/// Who provides the machines of a cluster: `baremetal`.
pub const LABEL_PROVIDER: &str = "kaas.mirantis.com/provider";
/// The UpdateGroup that a Machine is of, by its name.
pub const LABEL_UPDATE_GROUP: &str = "kaas.mirantis.com/update-group";
