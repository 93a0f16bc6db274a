//! Labels and annotations of hosts, and of machines that have one, by which Metal3's tools know them.

/// The host of a machine, as `<namespace>/<name>`.
pub const ANNOTATION_HOST: &str = "metal3.io/BareMetalHost";
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
