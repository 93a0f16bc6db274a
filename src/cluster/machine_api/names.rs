//! Names of the contract of the Machine API: finalizer, annotations, labels, phases, words for faults.

/// Who tells events.
pub const COMPONENT: &str = "slipway-cluster";
/// Holds a Machine until its host is let go.
pub const FINALIZER: &str = "machine.cluster.k8s.io";
/// Annotation of a Machine that nothing is to be done about, beside Cluster API's own.
pub const ANNOTATION_PAUSED: &str = "cluster.k8s.io/paused";
/// Hardware profile of a Machine's host.
pub const LABEL_INSTANCE_TYPE: &str = "metal3.io/instance-type";
/// State of a Machine's host, with `_` for spaces.
pub const ANNOTATION_INSTANCE_STATE: &str = "metal3.io/instance-state";

/// Without a host.
pub const PENDING: &str = "Pending";
/// Its host is made ready.
pub const PROVISIONING: &str = "Provisioning";
/// Its host runs what it should.
pub const RUNNING: &str = "Running";
/// It goes.
pub const TERMINATING: &str = "Terminating";
/// Somebody must mend it.
pub const FAILED: &str = "Failed";

/// What it says makes no sense.
pub const INVALID_CONFIGURATION: &str = "InvalidConfiguration";
/// Its host is not what it should be any more.
pub const UPDATE_ERROR: &str = "UpdateError";
