//! ServiceAccounts: names, columns and rules of the kind, and of the Secrets that keep tokens.

use serde_json::Value;

use crate::apiserver::answers::columns::PrinterColumn;
use crate::apiserver::answers::status::FieldError;

/// Name in the store.
pub const STORAGE: &str = "/serviceaccounts";
/// Type of a Secret that keeps a token.
pub const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
/// Annotation of such a Secret: whose token.
pub const SECRET_ACCOUNT: &str = "kubernetes.io/service-account.name";
/// Annotation of such a Secret: uid of the account.
pub const SECRET_UID: &str = "kubernetes.io/service-account.uid";
/// The account that every namespace has.
pub const DEFAULT: &str = "default";
/// Annotation of a ServiceAccount: further groups of its tokens, with commas between them. Who sets it must be allowed
/// to impersonate each.
pub const GROUPS: &str = "slipway.dev/groups";

const PREFIX: &str = "system:serviceaccount:";
const ALL_ACCOUNTS: &str = "system:serviceaccounts";

/// User name of an account.
pub fn user_name(namespace: &str, name: &str) -> String {
    format!("{PREFIX}{namespace}:{name}")
}

/// Namespace and name of the account that a user name is of.
pub fn split_user_name(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Groups of every account of a namespace.
pub fn groups(namespace: &str) -> Vec<String> {
    vec![ALL_ACCOUNTS.into(), format!("{ALL_ACCOUNTS}:{namespace}")]
}

/// Further groups that an account of this metadata was given.
pub fn given_groups(metadata: &Value) -> Vec<String> {
    let list = metadata["annotations"][GROUPS].as_str().unwrap_or_default();
    list.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned).collect()
}

pub(super) fn columns() -> Vec<PrinterColumn> {
    let secrets = PrinterColumn::cell("Secrets", "string", 0, |object, _| {
        object["secrets"].as_array().map_or(0, Vec::len).into()
    });
    vec![PrinterColumn::name(), secrets, PrinterColumn::age()]
}

/// A Secret that keeps a token says whose.
pub fn check_secret(secret: &Value, errors: &mut Vec<FieldError>) {
    if secret["type"] == SECRET_TYPE
        && secret["metadata"]["annotations"][SECRET_ACCOUNT].as_str().is_none_or(str::is_empty)
    {
        errors.push(FieldError::required(format!("metadata.annotations[{SECRET_ACCOUNT}]"), ""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_those_of_kubernetes() {
        assert_eq!(user_name("a", "b"), "system:serviceaccount:a:b");
        for (user, wanted) in [
            ("system:serviceaccount:a:b", Some(("a", "b"))),
            ("system:serviceaccount:a:", None),
            ("system:serviceaccount::b", None),
            ("system:serviceaccount:a:b:c", None),
            ("system:serviceaccount:a", None),
            ("eve", None),
        ] {
            assert_eq!(split_user_name(user), wanted, "{user}");
        }
        assert_eq!(groups("a"), ["system:serviceaccounts", "system:serviceaccounts:a"]);
        let account = json!({"annotations": {GROUPS: "ops, ,night"}});
        assert_eq!(given_groups(&account), ["ops", "night"]);
        assert!(given_groups(&json!({})).is_empty());
    }
}
