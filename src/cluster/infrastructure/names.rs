//! Names of the contract with Cluster API and Metal3: labels, annotations, finalizers, conditions and their reasons.

/// Who tells events.
pub const COMPONENT: &str = "slipway-cluster";
/// The version that objects are stored in.
pub const API_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1beta2";
/// API group of control planes.
pub const CONTROL_PLANE_GROUP: &str = "controlplane.cluster.x-k8s.io";

/// Holds a Metal3Cluster until none of its machines is left.
pub const FINALIZER_CLUSTER: &str = "metal3cluster.infrastructure.cluster.x-k8s.io";
/// Holds a Metal3Machine until its host is let go, and its claim of data until then.
pub const FINALIZER_MACHINE: &str = "metal3machine.infrastructure.cluster.x-k8s.io";
/// Holds a Metal3Remediation until its machine is in service again.
pub const FINALIZER_REMEDIATION: &str = "metal3remediation.infrastructure.cluster.x-k8s.io";

/// Kind and group of the templates that Metal3Machines are made from.
pub const MACHINE_TEMPLATE_KIND: &str = "Metal3MachineTemplate.infrastructure.cluster.x-k8s.io";

/// UID of a node's host.
pub const LABEL_NODE_HOST: &str = "metal3.io/uuid";

/// Before the identity of a machine at its provider.
pub const PROVIDER_SCHEME: &str = "metal3://";
