//! Label selectors and field selectors. Pure.

mod labels;
mod shared;

use serde_json::Value;
use shared::SelectedValue;

use crate::api::is_dns_subdomain;
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::kinds::events;
use crate::apiserver::kinds::resource::ServedResource;
use crate::store::Object;

/// Requirements in one field selector; more is not a question but an attack.
const FIELDS_MAX: usize = 64;

/// Which objects a list or watch is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectSelector {
    labels: labels::LabelSelector,
    fields: Vec<FieldRequirement>,
}

type Pointers<'s> =
    std::iter::FilterMap<std::slice::Iter<'s, FieldRequirement>, fn(&'s FieldRequirement) -> Option<&'s str>>;

#[derive(Clone, Debug, PartialEq)]
struct FieldRequirement {
    field: SelectorField,
    value: String,
    equal: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum SelectorField {
    Name,
    Namespace,
    /// JSON pointer into the stored form.
    At(String),
}

impl ObjectSelector {
    /// Reads the query parameters `labelSelector` and `fieldSelector`.
    pub fn parse(resource: &ServedResource, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = labels::parse(labels).map_err(ApiError::bad_request)?;
        let terms = terms(fields);
        if terms.len() > FIELDS_MAX {
            return Err(ApiError::bad_request(format!("more than {FIELDS_MAX} field selectors")));
        }
        let fields = terms.into_iter().map(|term| parse_field(resource, fields, term));
        let mut fields = fields.collect::<Result<Vec<FieldRequirement>, _>>()?;
        // What is known without a look inside comes first.
        fields.sort_by_key(|requirement| matches!(requirement.field, SelectorField::At(_)));
        Ok(Self { labels, fields })
    }

    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_empty()
    }

    /// Keys and values that an object is held against at most.
    pub fn parts(&self) -> usize {
        self.labels.parts() + self.fields.len()
    }

    /// Narrows the selector to one name.
    pub(in crate::apiserver) fn only(&mut self, name: &str) {
        self.fields.push(FieldRequirement { field: SelectorField::Name, value: name.to_owned(), equal: true });
    }

    /// Whether a stored object is selected.
    pub fn matches(&self, object: &Object) -> bool {
        self.holds(object, |pointers| {
            let value = object.value();
            pointers.map(|pointer| SelectedValue::at(&value, pointer)).collect()
        })
    }

    /// The same, of an object that many look at now.
    pub fn matches_shared(&self, object: &Object) -> bool {
        self.holds(object, |pointers| shared::at(object, pointers))
    }

    /// Whether it looks inside of objects.
    pub fn looks_inside(&self) -> bool {
        self.pointers().next().is_some()
    }

    fn pointers<'s>(&'s self) -> Pointers<'s> {
        let inside: fn(&'s FieldRequirement) -> Option<&'s str> = |requirement| match &requirement.field {
            SelectorField::At(pointer) => Some(pointer.as_str()),
            SelectorField::Name | SelectorField::Namespace => None,
        };
        self.fields.iter().filter_map(inside)
    }

    fn holds<'s>(&'s self, object: &Object, look: impl FnOnce(Pointers<'s>) -> Vec<SelectedValue>) -> bool {
        let outside = |requirement: &FieldRequirement| match requirement.field {
            SelectorField::Name => (object.name == requirement.value) == requirement.equal,
            SelectorField::Namespace => (object.namespace == requirement.value) == requirement.equal,
            SelectorField::At(_) => true,
        };
        if !self.labels.matches(object.labels()) || !self.fields.iter().all(outside) {
            return false;
        }
        // Most selectors do not look inside.
        if !self.looks_inside() {
            return true;
        }
        let inside = self.fields.iter().filter(|requirement| matches!(requirement.field, SelectorField::At(_)));
        inside.zip(look(self.pointers())).all(|(requirement, found)| found.is(&requirement.value) == requirement.equal)
    }
}

/// Whether a `metav1.LabelSelector` chooses these labels; an empty one chooses everything.
pub(in crate::apiserver) fn selects(selector: &Value, labels: &Value) -> bool {
    let exact =
        selector["matchLabels"].as_object().into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten().all(|one| {
        let found = one["key"].as_str().and_then(|key| labels.get(key));
        let listed = one["values"].as_array().is_some_and(|values| found.is_some_and(|found| values.contains(found)));
        match one["operator"].as_str().unwrap_or_default() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => false,
        }
    });
    exact && expressions
}

/// Parts between commas that no backslash precedes; empty parts are left out.
fn terms(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms.retain(|term| !term.is_empty());
    terms
}

/// The name that a field selector asks for and no other (`RequiresExactMatch`); empty when there is none such, or when
/// the selector cannot be read.
pub(in crate::apiserver) fn exact_name(fields: &str) -> &str {
    let mut name = "";
    for term in terms(fields) {
        let Some((field, value)) = term.split_once('=') else { return "" };
        let value = value.strip_prefix('=').unwrap_or(value);
        // What is escaped is no name of an object.
        if field == "metadata.name" && name.is_empty() && !value.contains('\\') {
            name = value;
        }
    }
    // Nor is what no path could name.
    if name.contains(['/', '%']) || matches!(name, "." | "..") { "" } else { name }
}

fn parse_field(resource: &ServedResource, whole: &str, term: &str) -> Result<FieldRequirement, ApiError> {
    let at = term.find(['=', '!']).unwrap_or(term.len());
    let (field, rest) = term.split_at(at);
    let operators = [("!=", false), ("==", true), ("=", true)];
    let found = operators.into_iter().find_map(|(operator, equal)| Some((rest.strip_prefix(operator)?, equal)));
    let Some((value, equal)) = found else {
        let (whole, term) = (shorten(whole, 128), shorten(term, 128));
        return Err(ApiError::bad_request(format!("invalid selector: '{whole}'; can't understand '{term}'")));
    };
    let field = field_of(resource, field)?;
    // Values escape commas, equal signs and backslashes with a backslash.
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match (char, (char == '\\').then(|| chars.next())) {
            (_, Some(Some(escaped @ ('\\' | ',' | '=')))) => plain.push(escaped),
            (_, Some(_)) => return Err(ApiError::bad_request("invalid escape sequence")),
            ('=', None) => {
                let rune = format!("invalid field selector: {}", shorten(value, 128));
                return Err(ApiError::bad_request(rune));
            }
            (char, None) => plain.push(char),
        }
    }
    Ok(FieldRequirement { field, value: plain, equal })
}

/// Fields that upstream selects by, for each kind; its refusal differs by whether the kind has any of its own.
fn field_of(resource: &ServedResource, field: &str) -> Result<SelectorField, ApiError> {
    let own = match (&*resource.storage, field) {
        (_, "metadata.name") => return Ok(SelectorField::Name),
        (_, "metadata.namespace") if resource.namespaced => return Ok(SelectorField::Namespace),
        ("/events", _) => events::selector_path(field),
        ("/namespaces", "name") => return Ok(SelectorField::Name),
        ("/namespaces", "status.phase") => Some("/status/phase".into()),
        ("/secrets", "type") => Some("/type".into()),
        _ => {
            let path = resource.selectable.iter().find(|path| path.strip_prefix('.') == Some(field));
            path.map(|path| path.replace('.', "/"))
        }
    };
    let has_own = !resource.core || matches!(&*resource.storage, "/events" | "/namespaces" | "/secrets");
    let shown = shorten(field, 128);
    own.map(SelectorField::At).ok_or_else(|| {
        ApiError::bad_request(if has_own {
            format!("field label not supported: {shown}")
        } else {
            format!("{shown:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        })
    })
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
pub(crate) fn is_label_value(value: &str) -> bool {
    value.len() <= 63 && is_label_text(value)
}

/// Of any length, alphanumeric at both ends.
pub(super) fn is_label_text(value: &str) -> bool {
    let bytes = value.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(value: &Value) -> Object {
        let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default().to_owned();
        Object::new("/x".into(), text("namespace"), text("name"), 1, value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_is_looked_at_once_is_the_same_for_all() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let of =
            |name: &str, kind: &str| object(&json!({"metadata": {"name": name, "namespace": "shared"}, "type": kind}));
        let long = "x".repeat(20_000);
        for kind in ["Opaque", "", &long] {
            let object = of("looked-at", kind);
            for (fields, selected) in [
                ("type=Opaque", kind == "Opaque"),
                ("type!=Opaque", kind != "Opaque"),
                ("type=", kind.is_empty()),
                ("metadata.name=other,type=Opaque", false),
                ("type=Opaque,metadata.name=looked-at", kind == "Opaque"),
            ] {
                let selector = ObjectSelector::parse(secrets, "", fields).unwrap();
                assert_eq!(selector.matches(&object), selected, "{fields}");
                // All are of one revision here: in the store none is.
                let other =
                    Object::new("/x".into(), "shared".into(), format!("{}-{fields}", kind.len()), 1, &object.json());
                let other = other.unwrap();
                for _ in 0..3 {
                    assert_eq!(selector.matches_shared(&other), selector.matches(&other), "{fields}");
                }
            }
        }
    }

    #[test]
    fn a_selector_of_one_name_is_for_that_name() {
        for (fields, name) in [
            ("metadata.name=a", "a"),
            ("metadata.name==a", "a"),
            ("type=Opaque,metadata.name=a", "a"),
            ("metadata.name!=a", ""),
            ("metadata.namespace=x", ""),
            ("type=x\\,metadata.name=a", ""),
            ("type=x\\\\,metadata.name=a", "a"),
            ("metadata.name=a\\,b", ""),
            ("metadata.name=a,metadata.name=b", "a"),
            ("metadata.name=..", ""),
            ("metadata.name=a/b", ""),
            ("metadata.name=a,nonsense", ""),
            ("", ""),
        ] {
            assert_eq!(exact_name(fields), name, "{fields}");
        }
    }

    #[test]
    fn both_selectors_must_hold() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let object =
            object(&json!({"metadata": {"name": "n", "namespace": "ns", "labels": {"app": "web"}}, "type": "a,b"}));
        for (labels, fields, wanted) in [
            ("", "", true),
            ("app=web", "metadata.name=n", true),
            ("app=api", "metadata.name=n", false),
            ("app=web", "metadata.name!=n", false),
            ("", "metadata.namespace==ns,type=a\\,b", true),
            ("", "type!=a\\,b", false),
            ("", "type=", false),
        ] {
            let selector = ObjectSelector::parse(secrets, labels, fields).unwrap();
            assert_eq!(selector.matches(&object), wanted, "{labels:?} {fields:?}");
        }
    }

    #[test]
    fn unknown_fields_are_refused_in_upstreams_words() {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        for (group, version, plural, fields, wanted) in [
            ("", "v1", "secrets", "spec.x=1", "field label not supported: spec.x"),
            ("", "v1", "events", "involvedObject.x=1", "field label not supported: involvedObject.x"),
            ("metal3.io", "v1alpha1", "baremetalhosts", "spec.online=true", "field label not supported: spec.online"),
            (
                "",
                "v1",
                "configmaps",
                "data.a=1",
                "\"data.a\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
            (
                "",
                "v1",
                "secrets",
                "metadata.name",
                "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
            ),
            (
                "",
                "v1",
                "secrets",
                "metadata.name!x",
                "invalid selector: 'metadata.name!x'; can't understand 'metadata.name!x'",
            ),
            ("", "v1", "secrets", "type=a\\x", "invalid escape sequence"),
            ("", "v1", "secrets", "type=a=b", "invalid field selector: a=b"),
        ] {
            let resource = registry.find(group, version, plural).unwrap();
            let error = ObjectSelector::parse(resource, "", fields).unwrap_err();
            assert_eq!((error.code.as_u16(), error.message.as_str()), (400, wanted), "{fields:?}");
        }
    }

    #[test]
    fn events_are_selected_by_what_they_are_about_in_both_forms() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let event =
            object(&json!({"metadata": {"name": "n"}, "involvedObject": {"name": "h", "uid": "u"}, "reason": "R"}));
        for (group, field) in [
            ("", "involvedObject.name=h,involvedObject.uid=u,reason=R"),
            ("events.k8s.io", "regarding.name=h"),
            ("", "involvedObject.name=h,involvedObject.kind="),
        ] {
            let resource = registry.find(group, "v1", "events").unwrap();
            assert!(ObjectSelector::parse(resource, "", field).unwrap().matches(&event), "{field}");
        }
    }
}
