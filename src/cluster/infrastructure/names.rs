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

/// The host of a Metal3Machine, as `<namespace>/<name>`.
pub const ANNOTATION_HOST: &str = "metal3.io/BareMetalHost";
/// Kind and group of the templates that Metal3Machines are made from.
pub const MACHINE_TEMPLATE_KIND: &str = "Metal3MachineTemplate.infrastructure.cluster.x-k8s.io";
/// Hosts that are given to nobody.
pub const ANNOTATION_UNHEALTHY: &str = "capm3.metal3.io/unhealthy";
/// The same, of old.
pub const ANNOTATION_UNHEALTHY_OLD: &str = "capi.metal3.io/unhealthy";
/// Keeps a host from being moved to another server before it is paused.
pub const ANNOTATION_BLOCK_MOVE: &str = "clusterctl.cluster.x-k8s.io/block-move";
/// The value of a host's pause that is of a cluster, and ends with the cluster's.
pub const PAUSED_BY_CLUSTER: &str = "metal3.io/capm3";

/// Which control plane or deployment a host is kept for.
pub const LABEL_REUSE: &str = "infrastructure.cluster.x-k8s.io/node-reuse";
/// Where a host is.
pub const LABEL_FAILURE_DOMAIN: &str = "infrastructure.cluster.x-k8s.io/failure-domain";
/// UID of a node's host.
pub const LABEL_NODE_HOST: &str = "metal3.io/uuid";

/// Before the identity of a machine at its provider.
pub const PROVIDER_SCHEME: &str = "metal3://";

/// The kind of the objects that take hosts.
pub const MACHINE_KIND: &str = "Metal3Machine";
