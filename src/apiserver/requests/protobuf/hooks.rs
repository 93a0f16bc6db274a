//! Configurations of webhooks.

use super::access::SELECTOR;
use super::definition::WEBHOOK_CLIENT;
use super::objects::META;
use super::{ProtobufField, ProtobufType, list, plain, pointer};

const RULE: &[ProtobufField] = &[
    list(1, "operations", ProtobufType::Text),
    plain(
        2,
        "rule",
        ProtobufType::Inline(&[
            list(1, "apiGroups", ProtobufType::Text),
            list(2, "apiVersions", ProtobufType::Text),
            list(3, "resources", ProtobufType::Text),
            pointer(4, "scope", ProtobufType::Text),
        ]),
    ),
];
const CONDITION: ProtobufType =
    ProtobufType::Message(&[plain(1, "name", ProtobufType::Text), plain(2, "expression", ProtobufType::Text)]);

const MUTATING: &[ProtobufField] = &[
    plain(1, "name", ProtobufType::Text),
    plain(2, "clientConfig", ProtobufType::Message(WEBHOOK_CLIENT)),
    list(3, "rules", ProtobufType::Message(RULE)),
    pointer(4, "failurePolicy", ProtobufType::Text),
    pointer(5, "namespaceSelector", ProtobufType::Message(SELECTOR)),
    pointer(6, "sideEffects", ProtobufType::Text),
    pointer(7, "timeoutSeconds", ProtobufType::Int),
    list(8, "admissionReviewVersions", ProtobufType::Text),
    pointer(9, "matchPolicy", ProtobufType::Text),
    pointer(10, "reinvocationPolicy", ProtobufType::Text),
    pointer(11, "objectSelector", ProtobufType::Message(SELECTOR)),
    list(12, "matchConditions", CONDITION),
];
const VALIDATING: &[ProtobufField] = &[
    plain(1, "name", ProtobufType::Text),
    plain(2, "clientConfig", ProtobufType::Message(WEBHOOK_CLIENT)),
    list(3, "rules", ProtobufType::Message(RULE)),
    pointer(4, "failurePolicy", ProtobufType::Text),
    pointer(5, "namespaceSelector", ProtobufType::Message(SELECTOR)),
    pointer(6, "sideEffects", ProtobufType::Text),
    pointer(7, "timeoutSeconds", ProtobufType::Int),
    list(8, "admissionReviewVersions", ProtobufType::Text),
    pointer(9, "matchPolicy", ProtobufType::Text),
    pointer(10, "objectSelector", ProtobufType::Message(SELECTOR)),
    list(11, "matchConditions", CONDITION),
];

/// Fields of a kind of `admissionregistration.k8s.io/v1`.
pub(super) fn configuration(kind: &str) -> Option<&'static [ProtobufField]> {
    const OF_MUTATING: &[ProtobufField] =
        &[plain(1, "metadata", ProtobufType::Message(META)), list(2, "webhooks", ProtobufType::Message(MUTATING))];
    const OF_VALIDATING: &[ProtobufField] =
        &[plain(1, "metadata", ProtobufType::Message(META)), list(2, "webhooks", ProtobufType::Message(VALIDATING))];
    match kind {
        "MutatingWebhookConfiguration" => Some(OF_MUTATING),
        "ValidatingWebhookConfiguration" => Some(OF_VALIDATING),
        _ => None,
    }
}
