//! Configurations of webhooks.

use super::access::SELECTOR;
use super::definition::WEBHOOK_CLIENT;
use super::objects::META;
use super::{Field, Type, list, plain, pointer};

const RULE: &[Field] = &[
    list(1, "operations", Type::Text),
    plain(
        2,
        "rule",
        Type::Inline(&[
            list(1, "apiGroups", Type::Text),
            list(2, "apiVersions", Type::Text),
            list(3, "resources", Type::Text),
            pointer(4, "scope", Type::Text),
        ]),
    ),
];
const CONDITION: Type = Type::Message(&[plain(1, "name", Type::Text), plain(2, "expression", Type::Text)]);

const MUTATING: &[Field] = &[
    plain(1, "name", Type::Text),
    plain(2, "clientConfig", Type::Message(WEBHOOK_CLIENT)),
    list(3, "rules", Type::Message(RULE)),
    pointer(4, "failurePolicy", Type::Text),
    pointer(5, "namespaceSelector", Type::Message(SELECTOR)),
    pointer(6, "sideEffects", Type::Text),
    pointer(7, "timeoutSeconds", Type::Int),
    list(8, "admissionReviewVersions", Type::Text),
    pointer(9, "matchPolicy", Type::Text),
    pointer(10, "reinvocationPolicy", Type::Text),
    pointer(11, "objectSelector", Type::Message(SELECTOR)),
    list(12, "matchConditions", CONDITION),
];
const VALIDATING: &[Field] = &[
    plain(1, "name", Type::Text),
    plain(2, "clientConfig", Type::Message(WEBHOOK_CLIENT)),
    list(3, "rules", Type::Message(RULE)),
    pointer(4, "failurePolicy", Type::Text),
    pointer(5, "namespaceSelector", Type::Message(SELECTOR)),
    pointer(6, "sideEffects", Type::Text),
    pointer(7, "timeoutSeconds", Type::Int),
    list(8, "admissionReviewVersions", Type::Text),
    pointer(9, "matchPolicy", Type::Text),
    pointer(10, "objectSelector", Type::Message(SELECTOR)),
    list(11, "matchConditions", CONDITION),
];

/// Fields of a kind of `admissionregistration.k8s.io/v1`.
pub(super) fn configuration(kind: &str) -> Option<&'static [Field]> {
    const OF_MUTATING: &[Field] =
        &[plain(1, "metadata", Type::Message(META)), list(2, "webhooks", Type::Message(MUTATING))];
    const OF_VALIDATING: &[Field] =
        &[plain(1, "metadata", Type::Message(META)), list(2, "webhooks", Type::Message(VALIDATING))];
    match kind {
        "MutatingWebhookConfiguration" => Some(OF_MUTATING),
        "ValidatingWebhookConfiguration" => Some(OF_VALIDATING),
        _ => None,
    }
}
