//! `v1`, events, leases, and what all objects have.

use super::{ProtobufField, ProtobufType, list, plain, pointer, required};

const OWNER: &[ProtobufField] = &[
    plain(1, "kind", ProtobufType::Text),
    plain(3, "name", ProtobufType::Text),
    plain(4, "uid", ProtobufType::Text),
    plain(5, "apiVersion", ProtobufType::Text),
    pointer(6, "controller", ProtobufType::Bool),
    pointer(7, "blockOwnerDeletion", ProtobufType::Bool),
];

pub(super) const META: &[ProtobufField] = &[
    plain(1, "name", ProtobufType::Text),
    plain(2, "generateName", ProtobufType::Text),
    plain(3, "namespace", ProtobufType::Text),
    plain(5, "uid", ProtobufType::Text),
    plain(6, "resourceVersion", ProtobufType::Text),
    plain(7, "generation", ProtobufType::Int),
    plain(8, "creationTimestamp", ProtobufType::Time),
    pointer(9, "deletionTimestamp", ProtobufType::Time),
    pointer(10, "deletionGracePeriodSeconds", ProtobufType::Int),
    plain(11, "labels", ProtobufType::Map(&ProtobufType::Text)),
    plain(12, "annotations", ProtobufType::Map(&ProtobufType::Text)),
    list(13, "ownerReferences", ProtobufType::Message(OWNER)),
    list(14, "finalizers", ProtobufType::Text),
    list(17, "managedFields", ProtobufType::Message(MANAGED)),
];

const MANAGED: &[ProtobufField] = &[
    plain(1, "manager", ProtobufType::Text),
    plain(2, "operation", ProtobufType::Text),
    plain(3, "apiVersion", ProtobufType::Text),
    pointer(4, "time", ProtobufType::Time),
    plain(6, "fieldsType", ProtobufType::Text),
    pointer(7, "fieldsV1", ProtobufType::Json),
    plain(8, "subresource", ProtobufType::Text),
];

pub(super) const NAMESPACE: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(2, "spec", ProtobufType::Message(&[list(1, "finalizers", ProtobufType::Text)])),
    plain(
        3,
        "status",
        ProtobufType::Message(&[
            plain(1, "phase", ProtobufType::Text),
            list(2, "conditions", ProtobufType::Message(NAMESPACE_CONDITION)),
        ]),
    ),
];

const NAMESPACE_CONDITION: &[ProtobufField] = &[
    required(1, "type", ProtobufType::Text),
    required(2, "status", ProtobufType::Text),
    pointer(4, "lastTransitionTime", ProtobufType::Time),
    plain(5, "reason", ProtobufType::Text),
    plain(6, "message", ProtobufType::Text),
];

pub(super) const SECRET: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(2, "data", ProtobufType::Map(&ProtobufType::Bytes)),
    plain(3, "type", ProtobufType::Text),
    plain(4, "stringData", ProtobufType::Map(&ProtobufType::Text)),
    pointer(5, "immutable", ProtobufType::Bool),
];

pub(super) const CONFIG_MAP: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(2, "data", ProtobufType::Map(&ProtobufType::Text)),
    plain(3, "binaryData", ProtobufType::Map(&ProtobufType::Bytes)),
    pointer(4, "immutable", ProtobufType::Bool),
];

pub(super) const REFERENCE: &[ProtobufField] = &[
    plain(1, "kind", ProtobufType::Text),
    plain(2, "namespace", ProtobufType::Text),
    plain(3, "name", ProtobufType::Text),
    plain(4, "uid", ProtobufType::Text),
    plain(5, "apiVersion", ProtobufType::Text),
    plain(6, "resourceVersion", ProtobufType::Text),
    plain(7, "fieldPath", ProtobufType::Text),
];
const SOURCE: &[ProtobufField] = &[plain(1, "component", ProtobufType::Text), plain(2, "host", ProtobufType::Text)];
const SERIES: &[ProtobufField] =
    &[plain(1, "count", ProtobufType::Int), plain(2, "lastObservedTime", ProtobufType::MicroTime)];

pub(super) const EVENT: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(2, "involvedObject", ProtobufType::Message(REFERENCE)),
    plain(3, "reason", ProtobufType::Text),
    plain(4, "message", ProtobufType::Text),
    plain(5, "source", ProtobufType::Message(SOURCE)),
    plain(6, "firstTimestamp", ProtobufType::Time),
    plain(7, "lastTimestamp", ProtobufType::Time),
    plain(8, "count", ProtobufType::Int),
    plain(9, "type", ProtobufType::Text),
    plain(10, "eventTime", ProtobufType::MicroTime),
    pointer(11, "series", ProtobufType::Message(SERIES)),
    plain(12, "action", ProtobufType::Text),
    pointer(13, "related", ProtobufType::Message(REFERENCE)),
    plain(14, "reportingComponent", ProtobufType::Text),
    plain(15, "reportingInstance", ProtobufType::Text),
];

pub(super) const NEW_EVENT: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(2, "eventTime", ProtobufType::MicroTime),
    pointer(3, "series", ProtobufType::Message(SERIES)),
    plain(4, "reportingController", ProtobufType::Text),
    plain(5, "reportingInstance", ProtobufType::Text),
    plain(6, "action", ProtobufType::Text),
    plain(7, "reason", ProtobufType::Text),
    plain(8, "regarding", ProtobufType::Message(REFERENCE)),
    pointer(9, "related", ProtobufType::Message(REFERENCE)),
    plain(10, "note", ProtobufType::Text),
    plain(11, "type", ProtobufType::Text),
    plain(12, "deprecatedSource", ProtobufType::Message(SOURCE)),
    plain(13, "deprecatedFirstTimestamp", ProtobufType::Time),
    plain(14, "deprecatedLastTimestamp", ProtobufType::Time),
    plain(15, "deprecatedCount", ProtobufType::Int),
];

pub(super) const DELETE_OPTIONS: &[ProtobufField] = &[
    pointer(1, "gracePeriodSeconds", ProtobufType::Int),
    pointer(
        2,
        "preconditions",
        ProtobufType::Message(&[
            pointer(1, "uid", ProtobufType::Text),
            pointer(2, "resourceVersion", ProtobufType::Text),
        ]),
    ),
    pointer(3, "orphanDependents", ProtobufType::Bool),
    pointer(4, "propagationPolicy", ProtobufType::Text),
    list(5, "dryRun", ProtobufType::Text),
];

pub(super) const LEASE: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(
        2,
        "spec",
        ProtobufType::Message(&[
            pointer(1, "holderIdentity", ProtobufType::Text),
            pointer(2, "leaseDurationSeconds", ProtobufType::Int),
            pointer(3, "acquireTime", ProtobufType::MicroTime),
            pointer(4, "renewTime", ProtobufType::MicroTime),
            pointer(5, "leaseTransitions", ProtobufType::Int),
            pointer(6, "strategy", ProtobufType::Text),
            pointer(7, "preferredHolder", ProtobufType::Text),
        ]),
    ),
];

/// `autoscaling/v1`, of the subresource of that name.
pub(super) const SCALE: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(2, "spec", ProtobufType::Message(&[plain(1, "replicas", ProtobufType::Int)])),
    plain(
        3,
        "status",
        ProtobufType::Message(&[required(1, "replicas", ProtobufType::Int), plain(2, "selector", ProtobufType::Text)]),
    ),
];
