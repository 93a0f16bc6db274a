//! Label selectors and field selectors. Pure.

use serde_json::Value;

use super::events;
use super::registry::Resource;
use super::status::{ApiError, shorten};

/// Requirements in one selector; more is not a question but an attack.
const REQUIREMENTS_MAX: usize = 256;

/// Which objects a list or watch is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

#[derive(Clone, Debug, PartialEq)]
struct FieldRequirement {
    pointer: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Reads the query parameters `labelSelector` and `fieldSelector`.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = parse_labels(labels).map_err(|reason| {
            ApiError::bad_request(format!("unable to parse requirement: {reason} in {:?}", shorten(labels, 128)))
        })?;
        let fields =
            split(fields, ',').into_iter().map(|part| parse_field(resource, part)).collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether a stored object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(&object["metadata"]["labels"]))
            && self.fields.iter().all(|requirement| requirement.matches(object))
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let value = labels.get(&self.key).and_then(Value::as_str);
        let number = || value?.parse::<i64>().ok();
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Operator::Exists => value.is_some(),
            Operator::Absent => value.is_none(),
            Operator::Above(bound) => number().is_some_and(|number| number > *bound),
            Operator::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl FieldRequirement {
    fn matches(&self, object: &Value) -> bool {
        let found = object.pointer(&self.pointer).and_then(Value::as_str).unwrap_or_default();
        (found == self.value) == self.equal
    }
}

/// Parts between separators that are not inside parentheses; empty parts are left out.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, char) in text.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            other if other == separator && depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, &'static str> {
    let parts = split(text, ',');
    if parts.len() > REQUIREMENTS_MAX {
        return Err("too many requirements");
    }
    parts.into_iter().map(parse_label).collect()
}

fn parse_label(part: &str) -> Result<Requirement, &'static str> {
    let make = |key: &str, operator| {
        let key = key.trim();
        if is_label_key(key) { Ok(Requirement { key: key.to_owned(), operator }) } else { Err("a label key is wrong") }
    };
    let values = |text: &str| -> Result<Vec<String>, &'static str> {
        let values: Vec<String> = text.split(',').map(|value| value.trim().to_owned()).collect();
        if values.iter().all(|value| is_label_value(value)) { Ok(values) } else { Err("a label value is wrong") }
    };
    if let Some(key) = part.strip_prefix('!') {
        return make(key, Operator::Absent);
    }
    if let Some(list) = part.strip_suffix(')') {
        let (head, list) = list.split_once('(').ok_or("unbalanced parenthesis")?;
        let (key, word) = head.trim().split_once(char::is_whitespace).ok_or("expected in or notin")?;
        return match word.trim() {
            "in" => make(key, Operator::In(values(list)?)),
            "notin" => make(key, Operator::NotIn(values(list)?)),
            _ => Err("expected in or notin"),
        };
    }
    let one = |value: &str| values(value.trim());
    if let Some((key, value)) = part.split_once("!=") {
        return make(key, Operator::NotIn(one(value)?));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return make(key, Operator::In(one(value)?));
    }
    let bound = |value: &str| value.trim().parse().map_err(|_| "expected a whole number");
    if let Some((key, value)) = part.split_once('>') {
        return make(key, Operator::Above(bound(value)?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return make(key, Operator::Below(bound(value)?));
    }
    make(part, Operator::Exists)
}

fn parse_field(resource: &Resource, part: &str) -> Result<FieldRequirement, ApiError> {
    let (field, value, equal) = if let Some((field, value)) = part.split_once("!=") {
        (field, value, false)
    } else if let Some((field, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (field, value, true)
    } else {
        return Err(ApiError::bad_request(format!("invalid field selector: {:?}", shorten(part, 128))));
    };
    let field = field.trim();
    let pointer = match field {
        "metadata.name" => Some("/metadata/name".into()),
        "metadata.namespace" => Some("/metadata/namespace".into()),
        _ => match &*resource.storage {
            "/events" => events::selector_path(field),
            "/namespaces" if field == "status.phase" => Some("/status/phase".into()),
            "/secrets" if field == "type" => Some("/type".into()),
            _ => None,
        },
    };
    let pointer =
        pointer.ok_or_else(|| ApiError::bad_request(format!("field label not supported: {}", shorten(field, 128))))?;
    // Values escape commas, equal signs and backslashes with a backslash.
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.trim().chars();
    while let Some(char) = chars.next() {
        if char == '\\' { plain.extend(chars.next()) } else { plain.push(char) }
    }
    Ok(FieldRequirement { pointer, value: plain, equal })
}

/// A qualified name: `[prefix/]name` (KEP-free rule of apimachinery's `IsQualifiedName`).
pub(super) fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

fn is_label_name(name: &str) -> bool {
    !name.is_empty() && is_label_value(name)
}

/// At most 63 characters, alphanumeric at both ends.
pub(super) fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// An RFC 1123 subdomain of at most 253 characters.
pub(super) fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_part)
}

/// An RFC 1123 label of at most 63 characters.
pub(super) fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_dns_part(name)
}

fn is_dns_part(part: &str) -> bool {
    let good = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    bytes.first().is_some_and(good)
        && bytes.last().is_some_and(good)
        && bytes.iter().all(|byte| good(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::registry::Registry;
    use serde_json::json;

    #[test]
    fn labels_select_as_kubernetes_says() {
        let registry = Registry::new(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let object = json!({"metadata": {"name": "n", "namespace": "ns",
            "labels": {"app": "web", "example.org/tier": "2", "empty": ""}}, "type": "Opaque"});
        for (labels, fields, wanted) in [
            ("", "", true),
            ("app=web", "", true),
            ("app==web,example.org/tier", "", true),
            ("app!=web", "", false),
            ("missing!=x", "", true),
            ("app in (api, web)", "", true),
            ("app notin (api)", "", true),
            ("app in (api),empty=", "", false),
            ("!app", "", false),
            ("!missing,empty=", "", true),
            ("example.org/tier>1", "", true),
            ("example.org/tier<2", "", false),
            ("", "metadata.name=n", true),
            ("", "metadata.name!=n", false),
            ("", "metadata.namespace==ns,type=Opaque", true),
        ] {
            let selector = Selector::parse(secrets, labels, fields).unwrap();
            assert_eq!(selector.matches(&object), wanted, "{labels:?} {fields:?}");
        }
        for (labels, fields) in [
            ("app in web", ""),
            ("a b", ""),
            ("app=(", ""),
            ("app=ü", ""),
            ("=x", ""),
            ("a/b/c=x", ""),
            ("tier>x", ""),
            ("app in (a", ""),
            ("", "spec.x=1"),
            ("", "metadata.name"),
        ] {
            let error = Selector::parse(secrets, labels, fields).unwrap_err();
            assert_eq!(error.code, http::StatusCode::BAD_REQUEST, "{labels:?} {fields:?}");
        }
    }

    #[test]
    fn events_are_selected_by_what_they_are_about_in_both_forms() {
        let registry = Registry::new(&[]).unwrap();
        let event = json!({"metadata": {"name": "n"}, "involvedObject": {"name": "h", "uid": "u"}, "reason": "R"});
        for (group, field) in
            [("", "involvedObject.name=h,involvedObject.uid=u"), ("events.k8s.io", "regarding.name=h")]
        {
            let resource = registry.find(group, "v1", "events").unwrap();
            assert!(Selector::parse(resource, "", field).unwrap().matches(&event), "{field}");
        }
    }

    #[test]
    fn names_are_bounded() {
        for (name, wanted) in
            [("a", true), ("a-b.c1", true), ("", false), ("-a", false), ("a.", false), ("A", false), ("a_b", false)]
        {
            assert_eq!(is_dns_subdomain(name), wanted, "{name}");
        }
        assert!(!is_dns_label("a.b"));
        assert!(!is_dns_subdomain(&"a.".repeat(200)));
    }
}
