//! Accounts, roles, bindings and reviews.

use super::objects::{META, REFERENCE};
use super::{Field, Type, list, plain, pointer};

pub(super) const ACCOUNT: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    list(2, "secrets", Type::Message(REFERENCE)),
    list(3, "imagePullSecrets", Type::Message(&[plain(1, "name", Type::Text)])),
    pointer(4, "automountServiceAccountToken", Type::Bool),
];

const RULE: &[Field] = &[
    list(1, "verbs", Type::Text),
    list(2, "apiGroups", Type::Text),
    list(3, "resources", Type::Text),
    list(4, "resourceNames", Type::Text),
    list(5, "nonResourceURLs", Type::Text),
];
/// A selector of labels.
pub(super) const SELECTOR: &[Field] = &[
    plain(1, "matchLabels", Type::Map(&Type::Text)),
    list(
        2,
        "matchExpressions",
        Type::Message(&[plain(1, "key", Type::Text), plain(2, "operator", Type::Text), list(3, "values", Type::Text)]),
    ),
];
/// Role, and ClusterRole, which has a field more.
const ROLE: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    list(2, "rules", Type::Message(RULE)),
    pointer(3, "aggregationRule", Type::Message(&[list(1, "clusterRoleSelectors", Type::Message(SELECTOR))])),
];
const BINDING: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    list(
        2,
        "subjects",
        Type::Message(&[
            plain(1, "kind", Type::Text),
            plain(2, "apiGroup", Type::Text),
            plain(3, "name", Type::Text),
            plain(4, "namespace", Type::Text),
        ]),
    ),
    plain(
        3,
        "roleRef",
        Type::Message(&[plain(1, "apiGroup", Type::Text), plain(2, "kind", Type::Text), plain(3, "name", Type::Text)]),
    ),
];

const RESOURCE: Type = Type::Message(&[
    plain(1, "namespace", Type::Text),
    plain(2, "verb", Type::Text),
    plain(3, "group", Type::Text),
    plain(4, "version", Type::Text),
    plain(5, "resource", Type::Text),
    plain(6, "subresource", Type::Text),
    plain(7, "name", Type::Text),
]);
const PATH: Type = Type::Message(&[plain(1, "path", Type::Text), plain(2, "verb", Type::Text)]);
/// The spec of a review of one's own access has the first two fields only.
const ACCESS: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(
        2,
        "spec",
        Type::Message(&[
            pointer(1, "resourceAttributes", RESOURCE),
            pointer(2, "nonResourceAttributes", PATH),
            plain(3, "user", Type::Text),
            list(4, "groups", Type::Text),
            plain(6, "uid", Type::Text),
        ]),
    ),
];
const RULES: &[Field] =
    &[plain(1, "metadata", Type::Message(META)), plain(2, "spec", Type::Message(&[plain(1, "namespace", Type::Text)]))];
const SELF: &[Field] = &[plain(1, "metadata", Type::Message(META))];
const TOKEN: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "spec", Type::Message(&[plain(1, "token", Type::Text), list(2, "audiences", Type::Text)])),
];
const TOKEN_REQUEST: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(
        2,
        "spec",
        Type::Message(&[
            list(1, "audiences", Type::Text),
            pointer(
                3,
                "boundObjectRef",
                Type::Message(&[
                    plain(1, "kind", Type::Text),
                    plain(2, "apiVersion", Type::Text),
                    plain(3, "name", Type::Text),
                    plain(4, "uid", Type::Text),
                ]),
            ),
            pointer(4, "expirationSeconds", Type::Int),
        ]),
    ),
];

/// Fields of a kind of `rbac.authorization.k8s.io/v1`.
pub(super) fn role_kind(kind: &str) -> Option<&'static [Field]> {
    match kind {
        "Role" | "ClusterRole" => Some(ROLE),
        "RoleBinding" | "ClusterRoleBinding" => Some(BINDING),
        _ => None,
    }
}

/// Fields of a review.
pub(super) fn review(kind: &str) -> Option<&'static [Field]> {
    match kind {
        "SelfSubjectAccessReview" | "LocalSubjectAccessReview" | "SubjectAccessReview" => Some(ACCESS),
        "SelfSubjectRulesReview" => Some(RULES),
        "SelfSubjectReview" => Some(SELF),
        "TokenReview" => Some(TOKEN),
        "TokenRequest" => Some(TOKEN_REQUEST),
        _ => None,
    }
}
