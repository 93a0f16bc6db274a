//! Labels, annotations and finalizers that the objects of Cluster API have in common.

/// Label of machines of a control plane; its value is empty.
pub const LABEL_CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
/// Label of control plane machines: the name of the object that keeps them.
pub const LABEL_CONTROL_PLANE_NAME: &str = "cluster.x-k8s.io/control-plane-name";
/// Label of machines of a MachineSet: its name.
pub const LABEL_SET: &str = "cluster.x-k8s.io/set-name";
/// Label of sets and machines of a MachineDeployment: its name.
pub const LABEL_DEPLOYMENT: &str = "cluster.x-k8s.io/deployment-name";
/// Label that tells the revisions of a MachineDeployment apart.
pub const LABEL_TEMPLATE_HASH: &str = "machine-template-hash";

/// Annotation of an object that nothing is to be done about.
pub const ANNOTATION_PAUSED: &str = "cluster.x-k8s.io/paused";
/// Annotation of an object that was made from a template: the template's name.
pub const ANNOTATION_CLONED_FROM: &str = "cluster.x-k8s.io/cloned-from-name";
/// The same: kind and group of the template, as `Metal3MachineTemplate.infrastructure.cluster.x-k8s.io`.
pub const ANNOTATION_CLONED_KIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";
/// Annotation of an object whose readiness somebody else says.
pub const ANNOTATION_MANAGED_BY: &str = "cluster.x-k8s.io/managed-by";
/// Annotation of a machine that is to go first when there are too many.
pub const ANNOTATION_DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";
/// Annotation of a machine that is not to be remediated.
pub const ANNOTATION_SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// Annotation of a machine that is to be remediated whatever its node says.
pub const ANNOTATION_REMEDIATE: &str = "cluster.x-k8s.io/remediate-machine";
/// Annotation of a machine whose node is not to be drained.
pub const ANNOTATION_NO_DRAIN: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
/// Annotation of a machine whose node's volumes are not to be waited for.
pub const ANNOTATION_NO_VOLUME_WAIT: &str = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
/// Annotations that begin so hold a machine's deletion before its node is drained.
pub const PRE_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";
/// Annotations that begin so hold a machine's deletion before what it runs on is deleted.
pub const PRE_TERMINATE_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";

/// Annotation of a machine, or of its bootstrap object: when the certificates of its API server end.
pub const ANNOTATION_EXPIRY: &str = "machine.cluster.x-k8s.io/certificates-expiry";

/// Finalizer of a Cluster.
pub const FINALIZER_CLUSTER: &str = "cluster.cluster.x-k8s.io";
/// Finalizer of a Machine.
pub const FINALIZER_MACHINE: &str = "machine.cluster.x-k8s.io";
/// Finalizer of a MachineSet.
pub const FINALIZER_SET: &str = "cluster.x-k8s.io/machineset";
/// Finalizer of a MachineDeployment.
pub const FINALIZER_DEPLOYMENT: &str = "cluster.x-k8s.io/machinedeployment";

/// Type of the Secrets that Cluster API makes.
pub const SECRET_TYPE: &str = "cluster.x-k8s.io/secret";

/// Annotation of a node: the cluster that it is of.
pub const NODE_CLUSTER: &str = "cluster.x-k8s.io/cluster-name";
/// Annotation of a node: the namespace of its machine.
pub const NODE_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
/// Annotation of a node: its machine.
pub const NODE_MACHINE: &str = "cluster.x-k8s.io/machine";
/// Annotation of a node: the kind of what its machine belongs to.
pub const NODE_OWNER_KIND: &str = "cluster.x-k8s.io/owner-kind";
/// Annotation of a node: the name of what its machine belongs to.
pub const NODE_OWNER_NAME: &str = "cluster.x-k8s.io/owner-name";
/// Annotation of a node: the labels that it has of its machine.
pub const NODE_LABELS: &str = "cluster.x-k8s.io/labels-from-machine";
/// Annotation of a node: the taints that it has of its machine, as `key:effect`.
pub const NODE_TAINTS: &str = "cluster.x-k8s.io/taints-from-machine";
/// Key of the taint of a node that has no labels of its machine yet.
pub const TAINT_UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";
/// Key of the taint of a node whose machine is to be replaced.
pub const TAINT_OUTDATED: &str = "node.cluster.x-k8s.io/outdated-revision";
/// Annotation of sets and deployments: which revision they are of.
pub const ANNOTATION_REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
/// Label of a pod that is left alone when its node is drained: `skip` or `wait-completed`.
pub const LABEL_DRAIN: &str = "cluster.x-k8s.io/drain";
