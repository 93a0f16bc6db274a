//! `v1`, events, leases, and what all objects have.

use super::{Field, Type, list, plain, pointer, required};

const OWNER: &[Field] = &[
    plain(1, "kind", Type::Text),
    plain(3, "name", Type::Text),
    plain(4, "uid", Type::Text),
    plain(5, "apiVersion", Type::Text),
    pointer(6, "controller", Type::Bool),
    pointer(7, "blockOwnerDeletion", Type::Bool),
];

pub(super) const META: &[Field] = &[
    plain(1, "name", Type::Text),
    plain(2, "generateName", Type::Text),
    plain(3, "namespace", Type::Text),
    plain(5, "uid", Type::Text),
    plain(6, "resourceVersion", Type::Text),
    plain(7, "generation", Type::Int),
    plain(8, "creationTimestamp", Type::Time),
    pointer(9, "deletionTimestamp", Type::Time),
    pointer(10, "deletionGracePeriodSeconds", Type::Int),
    plain(11, "labels", Type::Map(&Type::Text)),
    plain(12, "annotations", Type::Map(&Type::Text)),
    list(13, "ownerReferences", Type::Message(OWNER)),
    list(14, "finalizers", Type::Text),
    list(17, "managedFields", Type::Message(MANAGED)),
];

const MANAGED: &[Field] = &[
    plain(1, "manager", Type::Text),
    plain(2, "operation", Type::Text),
    plain(3, "apiVersion", Type::Text),
    pointer(4, "time", Type::Time),
    plain(6, "fieldsType", Type::Text),
    pointer(7, "fieldsV1", Type::Json),
    plain(8, "subresource", Type::Text),
];

pub(super) const NAMESPACE: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "spec", Type::Message(&[list(1, "finalizers", Type::Text)])),
    plain(
        3,
        "status",
        Type::Message(&[plain(1, "phase", Type::Text), list(2, "conditions", Type::Message(NAMESPACE_CONDITION))]),
    ),
];

const NAMESPACE_CONDITION: &[Field] = &[
    required(1, "type", Type::Text),
    required(2, "status", Type::Text),
    pointer(4, "lastTransitionTime", Type::Time),
    plain(5, "reason", Type::Text),
    plain(6, "message", Type::Text),
];

pub(super) const SECRET: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "data", Type::Map(&Type::Bytes)),
    plain(3, "type", Type::Text),
    plain(4, "stringData", Type::Map(&Type::Text)),
    pointer(5, "immutable", Type::Bool),
];

pub(super) const CONFIG_MAP: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "data", Type::Map(&Type::Text)),
    plain(3, "binaryData", Type::Map(&Type::Bytes)),
    pointer(4, "immutable", Type::Bool),
];

pub(super) const REFERENCE: &[Field] = &[
    plain(1, "kind", Type::Text),
    plain(2, "namespace", Type::Text),
    plain(3, "name", Type::Text),
    plain(4, "uid", Type::Text),
    plain(5, "apiVersion", Type::Text),
    plain(6, "resourceVersion", Type::Text),
    plain(7, "fieldPath", Type::Text),
];
const SOURCE: &[Field] = &[plain(1, "component", Type::Text), plain(2, "host", Type::Text)];
const SERIES: &[Field] = &[plain(1, "count", Type::Int), plain(2, "lastObservedTime", Type::MicroTime)];

pub(super) const EVENT: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "involvedObject", Type::Message(REFERENCE)),
    plain(3, "reason", Type::Text),
    plain(4, "message", Type::Text),
    plain(5, "source", Type::Message(SOURCE)),
    plain(6, "firstTimestamp", Type::Time),
    plain(7, "lastTimestamp", Type::Time),
    plain(8, "count", Type::Int),
    plain(9, "type", Type::Text),
    plain(10, "eventTime", Type::MicroTime),
    pointer(11, "series", Type::Message(SERIES)),
    plain(12, "action", Type::Text),
    pointer(13, "related", Type::Message(REFERENCE)),
    plain(14, "reportingComponent", Type::Text),
    plain(15, "reportingInstance", Type::Text),
];

pub(super) const NEW_EVENT: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "eventTime", Type::MicroTime),
    pointer(3, "series", Type::Message(SERIES)),
    plain(4, "reportingController", Type::Text),
    plain(5, "reportingInstance", Type::Text),
    plain(6, "action", Type::Text),
    plain(7, "reason", Type::Text),
    plain(8, "regarding", Type::Message(REFERENCE)),
    pointer(9, "related", Type::Message(REFERENCE)),
    plain(10, "note", Type::Text),
    plain(11, "type", Type::Text),
    plain(12, "deprecatedSource", Type::Message(SOURCE)),
    plain(13, "deprecatedFirstTimestamp", Type::Time),
    plain(14, "deprecatedLastTimestamp", Type::Time),
    plain(15, "deprecatedCount", Type::Int),
];

pub(super) const DELETE_OPTIONS: &[Field] = &[
    pointer(1, "gracePeriodSeconds", Type::Int),
    pointer(
        2,
        "preconditions",
        Type::Message(&[pointer(1, "uid", Type::Text), pointer(2, "resourceVersion", Type::Text)]),
    ),
    pointer(3, "orphanDependents", Type::Bool),
    pointer(4, "propagationPolicy", Type::Text),
    list(5, "dryRun", Type::Text),
];

pub(super) const LEASE: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(
        2,
        "spec",
        Type::Message(&[
            pointer(1, "holderIdentity", Type::Text),
            pointer(2, "leaseDurationSeconds", Type::Int),
            pointer(3, "acquireTime", Type::MicroTime),
            pointer(4, "renewTime", Type::MicroTime),
            pointer(5, "leaseTransitions", Type::Int),
            pointer(6, "strategy", Type::Text),
            pointer(7, "preferredHolder", Type::Text),
        ]),
    ),
];

/// `autoscaling/v1`, of the subresource of that name.
pub(super) const SCALE: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "spec", Type::Message(&[plain(1, "replicas", Type::Int)])),
    plain(3, "status", Type::Message(&[required(1, "replicas", Type::Int), plain(2, "selector", Type::Text)])),
];
