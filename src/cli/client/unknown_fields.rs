//! Fields that a kind does not have, as somebody applied them: in fewer words than the server's, and with what may have been meant.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::suggest::nearest;
use crate::api::definitions;

/// How a server begins what it says of a configuration that does not fit its schema.
const BEGINNING: &str = "failed to create typed patch object (";
/// How it ends what it says of an unknown field.
const UNKNOWN: &str = ": field not declared in schema";

/// What a server said of a configuration that does not fit its schema, for people. `None` when it said something else.
pub(super) fn explained(message: &str) -> Option<String> {
    let (head, faults) = message.strip_prefix(BEGINNING)?.split_once("): ")?;
    let (object, kind) = head.split_once("; ")?;
    let (version, kind) = kind.split_once(", Kind=")?;
    let schema = schema(version, kind);
    let faults = faults.strip_prefix("errors:\n").unwrap_or(faults).lines().map(str::trim);
    let faults: Vec<String> = faults
        .map(|fault| match fault.strip_suffix(UNKNOWN) {
            Some(path) => unknown(path, schema.as_ref()),
            None => wrong_type(fault.trim_start_matches('.')),
        })
        .collect();
    let name = object.rsplit('/').next().unwrap_or(object);
    Some(match &faults[..] {
        [fault] => format!("{kind} {name:?}: {fault}"),
        faults => format!("{kind} {name:?} does not fit its schema:\n* {}", faults.join("\n* ")),
    })
}

/// How a server begins what it says of a patch, or of an object, with fields that its kind does not have.
const STRICT: &str = "strict decoding error: ";

/// What is said of a value of another type, without Go's words for it, and what YAML made of it.
fn wrong_type(fault: &str) -> String {
    const GO: &str = "&value.valueUnstructured{Value:";
    let Some((before, value)) = fault.split_once(GO) else { return fault.to_owned() };
    let value = value.strip_suffix('}').unwrap_or(value);
    let how = match value {
        _ if !before.contains("expected string") => "",
        "true" => "; in YAML on, yes and true without quotes are a boolean: put the value in quotes",
        "false" => "; in YAML off, no and false without quotes are a boolean: put the value in quotes",
        _ => "; put the value in quotes",
    };
    let is_plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte));
    let shown = if is_plain { value } else { "a map or a list" };
    let how = if is_plain { how } else { "" };
    format!("{before}{shown}{how}")
}

/// The object that a request was about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    /// `metal3.io/v1alpha1`
    pub version: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

/// What a server said of unknown fields of a patch, for people: it repeats the whole object before that. `None` when it said
/// something else.
pub(super) fn of_patch(message: &str, about: Option<About<'_>>) -> Option<String> {
    let (_, faults) = message.rsplit_once(STRICT)?;
    let schema = about.and_then(|about| schema(about.version, about.kind));
    let fault = |fault: &str| match fault.strip_prefix("unknown field \"").and_then(|rest| rest.strip_suffix('"')) {
        Some(path) => unknown(path, schema.as_ref()),
        None => fault.to_owned(),
    };
    let faults: Vec<String> = faults.split(", ").map(fault).collect();
    let head = about.map(|about| format!("{} {:?}", about.kind, about.name));
    Some(match (&faults[..], head) {
        ([fault], Some(head)) => format!("{head}: {fault}"),
        ([fault], None) => fault.clone(),
        (faults, head) => {
            format!("{} does not fit its schema:\n* {}", head.unwrap_or_else(|| "it".into()), faults.join("\n* "))
        }
    })
}

/// What is said of an unknown field.
fn unknown(path: &str, schema: Option<&JSONSchemaProps>) -> String {
    let path = path.trim_start_matches('.');
    let mut names = names(path);
    let field = names.pop().unwrap_or_default();
    let parent = schema.and_then(|schema| names.iter().try_fold(schema, |schema, name| below(schema, name)));
    let known = parent.and_then(|parent| element(parent).properties.as_ref());
    let meant = known.and_then(|known| nearest(&field, known.keys().map(String::as_str)));
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    format!("{path}: there is no such field{meant}")
}

/// The fields of a path; which element of a list is meant does not matter.
fn names(path: &str) -> Vec<String> {
    let mut within = false;
    let outside = path.chars().filter(|letter| match letter {
        '[' | ']' => {
            within = *letter == '[';
            false
        }
        _ => !within,
    });
    outside.collect::<String>().split('.').map(str::to_owned).collect()
}

/// The schema of a field. `None`: of that kind nothing is known.
fn below<'a>(schema: &'a JSONSchemaProps, name: &str) -> Option<&'a JSONSchemaProps> {
    let schema = element(schema);
    match (schema.properties.as_ref().and_then(|fields| fields.get(name)), schema.additional_properties.as_ref()) {
        (Some(field), _) => Some(field),
        (None, Some(JSONSchemaPropsOrBool::Schema(value))) => Some(value),
        (None, _) => None,
    }
}

/// Of a list the schema of its elements.
fn element(schema: &JSONSchemaProps) -> &JSONSchemaProps {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(element)) => element,
        _ => schema,
    }
}

/// The schema of a kind that this program knows.
fn schema(version: &str, kind: &str) -> Option<JSONSchemaProps> {
    let (group, version) = version.split_once('/')?;
    let mut definitions = definitions::written().into_values();
    let found = definitions.find(|one| one.spec.group == group && one.spec.names.kind == kind)?;
    let version = found.spec.versions.into_iter().find(|one| one.name == version)?;
    version.schema?.open_api_v3_schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_field_is_told_with_what_was_meant() {
        let of = |faults: &str| {
            explained(&format!("{BEGINNING}default/web-1; metal3.io/v1alpha1, Kind=BareMetalHost): {faults}"))
        };
        for (faults, wanted) in [
            (
                ".spec.bootMacAddress: field not declared in schema",
                "BareMetalHost \"web-1\": spec.bootMacAddress: there is no such field; did you mean bootMACAddress?",
            ),
            (
                ".spec.qqqqqqqqqqqq: field not declared in schema",
                "BareMetalHost \"web-1\": spec.qqqqqqqqqqqq: there is no such field",
            ),
            (
                ".spec.networkInterfaces[name=\"a.b\"].macAdress: field not declared in schema",
                "BareMetalHost \"web-1\": spec.networkInterfaces[name=\"a.b\"].macAdress: there is no such field; did you mean macAddress?",
            ),
            (
                "errors:\n  .spec.online: expected boolean, got string\n  .spec.imege: field not declared in schema",
                "BareMetalHost \"web-1\" does not fit its schema:\n* spec.online: expected boolean, got string\n\
                 * spec.imege: there is no such field; did you mean image?",
            ),
        ] {
            assert_eq!(of(faults).as_deref(), Some(wanted), "{faults}");
        }
        for (fault, wanted) in [
            (
                "spec.mode: expected string, got &value.valueUnstructured{Value:false}",
                "spec.mode: expected string, got false; in YAML off, no and false without quotes are a boolean: put the value in quotes",
            ),
            (
                "a: expected string, got &value.valueUnstructured{Value:1.5}",
                "a: expected string, got 1.5; put the value in quotes",
            ),
            ("a: expected boolean, got &value.valueUnstructured{Value:1}", "a: expected boolean, got 1"),
            (
                "a: expected string, got &value.valueUnstructured{Value:map[string]interface {}{\"a\":1}}",
                "a: expected string, got a map or a list",
            ),
            ("a: no", "a: no"),
        ] {
            assert_eq!(wrong_type(fault), wanted);
        }
        let other =
            explained(&format!("{BEGINNING}/a; example.org/v1, Kind=Own): .spec.a.b: field not declared in schema"));
        assert_eq!(other.as_deref(), Some("Own \"a\": spec.a.b: there is no such field"));
        for text in ["", "no", "failed to create typed patch object (x): y", "failed to create typed patch object ("] {
            assert_eq!(explained(text), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_field_of_a_patch_is_told_without_the_object() {
        let about = Some(About { version: "metal3.io/v1alpha1", kind: "BareMetalHost", name: "web-1" });
        let said = |faults: &str| {
            format!("\"\" is invalid: patch: Invalid value: \"{{\\\"a\\\":1}}\": strict decoding error: {faults}")
        };
        for (faults, about, wanted) in [
            (
                "unknown field \"spec.onlin\"",
                about,
                "BareMetalHost \"web-1\": spec.onlin: there is no such field; did you mean online?",
            ),
            ("unknown field \"spec.onlin\"", None, "spec.onlin: there is no such field"),
            (
                "unknown field \"spec.onlin\", unknown field \"spec.bmc.adress\"",
                about,
                "BareMetalHost \"web-1\" does not fit its schema:\n* spec.onlin: there is no such field; did you mean online?\n\
                 * spec.bmc.adress: there is no such field; did you mean address?",
            ),
        ] {
            assert_eq!(of_patch(&said(faults), about).as_deref(), Some(wanted), "{faults}");
        }
        assert_eq!(of_patch("\"\" is invalid: a: no", about), None);
    }
}
