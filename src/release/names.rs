//! Names of the contract: finalizer, labels, annotations, and what the objects of a cluster and of its machines are called.

/// Who tells events.
pub const COMPONENT: &str = "slipway-provider";
/// Holds a Cluster while it has Machines.
pub const FINALIZER: &str = "cluster.cluster.k8s.io";
/// Holds a GracefulRebootRequest until machines that have not begun are told no more.
pub const REBOOT_FINALIZER: &str = "slipway.dev/graceful-reboot";
/// Label of a history: UID of the Cluster or Machine that it is of.
pub const LABEL_HISTORY_OF: &str = "slipway.dev/history-of";
/// Condition of a Cluster: all is as it is to be.
pub const READY: &str = "Ready";
/// The cluster that a Machine is of.
pub const LABEL_CLUSTER: &str = "cluster.sigs.k8s.io/cluster-name";
/// A Machine is of the control plane, whatever its value.
pub const LABEL_CONTROL_PLANE: &str = "cluster.sigs.k8s.io/control-plane";
/// Annotations of a Cluster that nothing is to be done about.
pub const PAUSED: [&str; 2] = [crate::api::cluster::keys::ANNOTATION_PAUSED, "cluster.k8s.io/paused"];
/// Annotation of a Machine: interface whose address is its node's address in the cluster.
pub const ANNOTATION_INTERFACE: &str = "slipway.dev/node-interface";
/// Annotation of a Machine: network of its node's address in the cluster.
pub const ANNOTATION_CIDR: &str = "slipway.dev/node-cidr";
/// Annotation of user data: SHA-256 of what it was made of.
pub const ANNOTATION_INPUTS: &str = "slipway.dev/made-of";
/// Annotation of user data: when the token in it ends.
pub const ANNOTATION_TOKEN_EXPIRES: &str = "slipway.dev/token-expires";
/// Parameter of a step that is to give its node labels, as `key=value` with commas.
pub const PARAM_NODE_LABELS: &str = "nodeLabels";
/// Port of a cluster's API server.
pub const API_PORT: u16 = 6443;

/// Its API group and version, of a Cluster's and of a Machine's value.
pub const API_VERSION: &str = "baremetal.k8s.io/v1alpha1";
/// Kind of a Cluster's value.
pub const CLUSTER_KIND: &str = "BaremetalClusterProviderSpec";
/// Kind of a Machine's value.
pub const MACHINE_KIND: &str = "BareMetalMachineProviderSpec";

/// Account, role and binding of a machine's agent.
pub fn agent(machine: &str) -> String {
    format!("lcm-{machine}")
}

/// Account, role and binding of the Helm controller of a cluster.
pub fn helm(cluster: &str) -> String {
    format!("helm-{cluster}")
}

/// Role and binding of those who have a role in a cluster or in its namespace. The role comes first: no role's name begins with another
/// one's, so no two clusters come to one name.
pub fn iam(cluster: &str, role: &str) -> String {
    format!("iam-{role}-{cluster}")
}

/// Secret with the kubeconfig of a cluster.
pub fn kubeconfig(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// Secret with the user data of a machine's host.
pub fn user_data(machine: &str) -> String {
    format!("{machine}{USER_DATA_SUFFIX}")
}

/// What the name of such a Secret ends with.
pub const USER_DATA_SUFFIX: &str = "-lcm-user-data";
