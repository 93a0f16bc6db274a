//! Validation of names, labels and keys.
//!
//! What names, labels and keys may be, and what is wrong with one that is not, in the words of Kubernetes'
//! `apimachinery/pkg/util/validation`, because people search for them.

use super::selectors::{is_label_key, is_label_text};
use crate::api::{is_dns_label, is_dns_part, is_dns_subdomain};

/// Characters of a subdomain.
const SUBDOMAIN_MAX: usize = 253;
/// Characters of a label.
const LABEL_MAX: usize = 63;

/// What is wrong, one sentence for each fault.
pub(crate) type NameFaults = Vec<String>;

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// A name as RFC 1123 has them for hosts with a domain: most objects.
pub(crate) fn subdomain(name: &str) -> NameFaults {
    let mut faults = Vec::new();
    if name.len() > SUBDOMAIN_MAX {
        faults.push(too_long(SUBDOMAIN_MAX));
    }
    if !name.split('.').all(is_dns_part) {
        faults.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    faults
}

/// A name without dots: namespaces.
pub(in crate::apiserver) fn label(name: &str) -> NameFaults {
    if is_dns_label(name) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    if name.len() > LABEL_MAX {
        faults.push(too_long(LABEL_MAX));
    }
    if !is_dns_part(name) {
        faults.push(if is_dns_subdomain(name) {
            "must not contain dots".into()
        } else {
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .into()
        });
    }
    faults
}

/// A label that begins with a letter, as RFC 1035 has them: versions.
pub(in crate::apiserver) fn label_1035(name: &str) -> NameFaults {
    let mut faults = Vec::new();
    if name.len() > LABEL_MAX {
        faults.push(too_long(LABEL_MAX));
    }
    if !is_dns_part(name) || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        faults.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
    }
    faults
}

/// What a qualified name's own part consists of.
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// A name with or without a prefix that is a domain: keys of labels and annotations, finalizers.
pub(in crate::apiserver) fn qualified(name: &str) -> NameFaults {
    if is_label_key(name) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let own = match name.split('/').collect::<Vec<_>>()[..] {
        [own] => own,
        [prefix, own] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".into());
            } else {
                faults.extend(subdomain(prefix).into_iter().map(|fault| format!("prefix part {fault}")));
            }
            own
        }
        _ => {
            return vec![format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if own.is_empty() {
        faults.push("name part must be non-empty".into());
    } else if own.len() > LABEL_MAX {
        faults.push(format!("name part {}", too_long(LABEL_MAX)));
    }
    if own.is_empty() || !is_label_text(own) {
        faults.push(format!("name part {QUALIFIED}"));
    }
    faults
}

/// A label's value.
pub(in crate::apiserver) fn label_value(value: &str) -> NameFaults {
    let mut faults = Vec::new();
    if value.len() > LABEL_MAX {
        faults.push(too_long(LABEL_MAX));
    }
    if !is_label_text(value) {
        faults.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .into(),
        );
    }
    faults
}

/// A key of a ConfigMap or Secret.
pub(in crate::apiserver) fn config_key(key: &str) -> NameFaults {
    let mut faults = Vec::new();
    if key.len() > SUBDOMAIN_MAX {
        faults.push(too_long(SUBDOMAIN_MAX));
    }
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        faults.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .into(),
        );
    }
    if key == "." || key == ".." {
        faults.push(format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        faults.push("must not start with '..'".into());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_told_in_kubernetes_words() {
        type Rule = fn(&str) -> NameFaults;
        let long = "a".repeat(254);
        for (rule, name, wanted) in [
            (subdomain as Rule, "a.b-c", &[][..]),
            (subdomain, &"a".repeat(100), &[]),
            (subdomain, "A", &["lowercase RFC 1123 subdomain"]),
            (subdomain, "a..b", &["lowercase RFC 1123 subdomain"]),
            (subdomain, "", &["lowercase RFC 1123 subdomain"]),
            (subdomain, &long, &["no more than 253 characters"]),
            (label, "a-b", &[]),
            (label, "a.b", &["must not contain dots"]),
            (label, "A.b", &["lowercase RFC 1123 label"]),
            (label, &long, &["no more than 63 characters"]),
            (qualified, "example.com/Name_1", &[]),
            (qualified, "name", &[]),
            (qualified, "a b", &["name part must consist of"]),
            (qualified, "/a", &["prefix part must be non-empty"]),
            (qualified, "A/a", &["prefix part a lowercase RFC 1123 subdomain"]),
            (qualified, "a/", &["name part must be non-empty", "name part must consist of"]),
            (qualified, "a/b/c", &["a qualified name must consist of"]),
            (qualified, &long, &["name part must be no more than 63 characters"]),
            (label_value, "", &[]),
            (label_value, "a b", &["a valid label must be an empty string"]),
            (label_value, &long, &["no more than 63 characters"]),
            (config_key, ".dockerconfigjson", &[]),
            (config_key, "a/b", &["a valid config key must consist of"]),
            (config_key, "..", &["must not be '..'"]),
            (config_key, "..a", &["must not start with '..'"]),
        ] {
            let faults = rule(name);
            assert_eq!(faults.len(), wanted.len(), "{name}: {faults:?}");
            assert!(faults.iter().zip(wanted).all(|(fault, part)| fault.contains(part)), "{name}: {faults:?}");
        }
    }
}
