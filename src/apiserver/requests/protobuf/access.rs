//! Accounts, roles, bindings and reviews.

use super::objects::{META, REFERENCE};
use super::{ProtobufField, ProtobufType, list, plain, pointer};

pub(super) const ACCOUNT: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    list(2, "secrets", ProtobufType::Message(REFERENCE)),
    list(3, "imagePullSecrets", ProtobufType::Message(&[plain(1, "name", ProtobufType::Text)])),
    pointer(4, "automountServiceAccountToken", ProtobufType::Bool),
];

const RULE: &[ProtobufField] = &[
    list(1, "verbs", ProtobufType::Text),
    list(2, "apiGroups", ProtobufType::Text),
    list(3, "resources", ProtobufType::Text),
    list(4, "resourceNames", ProtobufType::Text),
    list(5, "nonResourceURLs", ProtobufType::Text),
];
/// A selector of labels.
pub(super) const SELECTOR: &[ProtobufField] = &[
    plain(1, "matchLabels", ProtobufType::Map(&ProtobufType::Text)),
    list(
        2,
        "matchExpressions",
        ProtobufType::Message(&[
            plain(1, "key", ProtobufType::Text),
            plain(2, "operator", ProtobufType::Text),
            list(3, "values", ProtobufType::Text),
        ]),
    ),
];
/// Role, and ClusterRole, which has a field more.
const ROLE: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    list(2, "rules", ProtobufType::Message(RULE)),
    pointer(
        3,
        "aggregationRule",
        ProtobufType::Message(&[list(1, "clusterRoleSelectors", ProtobufType::Message(SELECTOR))]),
    ),
];
const BINDING: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    list(
        2,
        "subjects",
        ProtobufType::Message(&[
            plain(1, "kind", ProtobufType::Text),
            plain(2, "apiGroup", ProtobufType::Text),
            plain(3, "name", ProtobufType::Text),
            plain(4, "namespace", ProtobufType::Text),
        ]),
    ),
    plain(
        3,
        "roleRef",
        ProtobufType::Message(&[
            plain(1, "apiGroup", ProtobufType::Text),
            plain(2, "kind", ProtobufType::Text),
            plain(3, "name", ProtobufType::Text),
        ]),
    ),
];

const RESOURCE: ProtobufType = ProtobufType::Message(&[
    plain(1, "namespace", ProtobufType::Text),
    plain(2, "verb", ProtobufType::Text),
    plain(3, "group", ProtobufType::Text),
    plain(4, "version", ProtobufType::Text),
    plain(5, "resource", ProtobufType::Text),
    plain(6, "subresource", ProtobufType::Text),
    plain(7, "name", ProtobufType::Text),
]);
const PATH: ProtobufType =
    ProtobufType::Message(&[plain(1, "path", ProtobufType::Text), plain(2, "verb", ProtobufType::Text)]);
/// The spec of a review of one's own access has the first two fields only.
const ACCESS: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(
        2,
        "spec",
        ProtobufType::Message(&[
            pointer(1, "resourceAttributes", RESOURCE),
            pointer(2, "nonResourceAttributes", PATH),
            plain(3, "user", ProtobufType::Text),
            list(4, "groups", ProtobufType::Text),
            plain(6, "uid", ProtobufType::Text),
        ]),
    ),
];
const RULES: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(2, "spec", ProtobufType::Message(&[plain(1, "namespace", ProtobufType::Text)])),
];
const SELF: &[ProtobufField] = &[plain(1, "metadata", ProtobufType::Message(META))];
const TOKEN: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(
        2,
        "spec",
        ProtobufType::Message(&[plain(1, "token", ProtobufType::Text), list(2, "audiences", ProtobufType::Text)]),
    ),
];
const TOKEN_REQUEST: &[ProtobufField] = &[
    plain(1, "metadata", ProtobufType::Message(META)),
    plain(
        2,
        "spec",
        ProtobufType::Message(&[
            list(1, "audiences", ProtobufType::Text),
            pointer(
                3,
                "boundObjectRef",
                ProtobufType::Message(&[
                    plain(1, "kind", ProtobufType::Text),
                    plain(2, "apiVersion", ProtobufType::Text),
                    plain(3, "name", ProtobufType::Text),
                    plain(4, "uid", ProtobufType::Text),
                ]),
            ),
            pointer(4, "expirationSeconds", ProtobufType::Int),
        ]),
    ),
];

/// Fields of a kind of `rbac.authorization.k8s.io/v1`.
pub(super) fn role_kind(kind: &str) -> Option<&'static [ProtobufField]> {
    match kind {
        "Role" | "ClusterRole" => Some(ROLE),
        "RoleBinding" | "ClusterRoleBinding" => Some(BINDING),
        _ => None,
    }
}

/// Fields of a review.
pub(super) fn review(kind: &str) -> Option<&'static [ProtobufField]> {
    match kind {
        "SelfSubjectAccessReview" | "LocalSubjectAccessReview" | "SubjectAccessReview" => Some(ACCESS),
        "SelfSubjectRulesReview" => Some(RULES),
        "SelfSubjectReview" => Some(SELF),
        "TokenReview" => Some(TOKEN),
        "TokenRequest" => Some(TOKEN_REQUEST),
        _ => None,
    }
}
