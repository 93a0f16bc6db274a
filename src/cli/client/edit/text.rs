//! What stands in the editor, and what was changed there. Pure.

use serde_json::Value;

use crate::cli::client::table::harmless;
use crate::runtime::changes::difference;

/// Metadata that only the server writes.
const OF_SERVER: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// What makes an object the one that it is.
const IDENTITY: [&str; 4] = ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"];
/// Longest value that is told of a field, in characters.
const VALUE_MAX: usize = 60;
/// Longest reason that is told in the file, in lines: more of it is no help.
const REASON_LINES: usize = 100;

/// What can be changed of an object. A status that is written on its own is left out.
pub(super) fn editable(object: &Value, status: bool) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in OF_SERVER {
            metadata.remove(field);
        }
    }
    if let Some(fields) = object.as_object_mut().filter(|_| !status) {
        fields.remove("status");
    }
    object
}

/// Why the editor is opened once more.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReopenReason {
    /// What was written is refused.
    Refused(String),
    /// Somebody else changed these fields, each told in a line; the text as it was saved is in this file.
    Overtaken(Vec<String>, String),
}

/// The lines at the top of the file.
pub(super) fn head(object: &Value, again: Option<&ReopenReason>) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let of = match text("/metadata/namespace") {
        "" => String::new(),
        namespace => format!(" in namespace {namespace}"),
    };
    let mut lines = vec![
        format!("{} {}{of}.", text("/kind"), text("/metadata/name")),
        "Close the editor to write what you changed. Without a change nothing happens.".to_owned(),
        "Lines up here that begin with # are ignored.".to_owned(),
    ];
    if text("/kind") == "Secret" {
        lines.push("Values under data are base64; under stringData they may be plain text.".to_owned());
    }
    match again {
        None => {}
        Some(ReopenReason::Refused(reason)) => {
            lines.push(String::new());
            lines.push("NOT WRITTEN:".to_owned());
            lines.extend(reason.lines().take(REASON_LINES).map(|line| format!("  {line}")));
            lines.push("Mend it and save, or leave the file as it is to give up.".to_owned());
        }
        Some(ReopenReason::Overtaken(fields, saved)) => {
            lines.push(String::new());
            lines.push("NOT WRITTEN: somebody else changed meanwhile what you changed:".to_owned());
            lines.extend(fields.iter().take(REASON_LINES).map(|field| format!("  {field}")));
            lines.push("Below is the object as it is now, with your changes.".to_owned());
            lines.push("To write them, save it without this line.".to_owned());
            lines.push("Leave the file as it is to give up.".to_owned());
            lines.push(format!("Your text as you saved it: {saved}"));
        }
    }
    lines.iter().map(|line| format!("{}\n", format!("# {}", harmless(line)).trim_end())).collect()
}

/// A text without the lines at its top that [`head`] wrote.
pub(super) fn body(text: &str) -> &str {
    let mut rest = text;
    while rest.starts_with('#') {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    rest
}

/// The object in a text, without fields that are null; `None` when there is nothing in it.
pub(super) fn read(text: &str) -> Result<Option<Value>, String> {
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    documents.retain(|document| !document.is_null());
    match (documents.pop(), documents.is_empty()) {
        (None, _) => Ok(None),
        (Some(mut object @ Value::Object(_)), true) => {
            without_nulls(&mut object);
            Ok(Some(object))
        }
        (Some(_), true) => Err("this is no object: it begins with apiVersion, kind and metadata".into()),
        (Some(_), false) => Err("there is more than one document: lines of --- divide them".into()),
    }
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(entries) => entries.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// The merge patch that makes what was written of what was there; `None` when they are alike.
pub(super) fn changes(base: &Value, written: &Value, status: bool) -> Result<Option<Value>, String> {
    let mut base = base.clone();
    without_nulls(&mut base);
    for pointer in IDENTITY {
        if base.pointer(pointer) != written.pointer(pointer) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            return Err(format!(
                "{field} cannot be changed: that would be another object. Make it with `slipway apply`"
            ));
        }
    }
    if !status && written.get("status").is_some() {
        return Err(
            "the status is written on its own: take it out here, and see `slipway patch --subresource status`".into()
        );
    }
    if let Some(field) = OF_SERVER.iter().find(|field| written["metadata"].get(**field).is_some()) {
        return Err(format!("metadata.{field} is written by the server only: take it out"));
    }
    Ok(difference(&base, written))
}

/// Fields that a patch changes and that are other by now than they were, unless they are as the patch wants them: each
/// with what it is now.
pub(super) fn overtaken(patch: &Value, base: &Value, now: &Value, secret: bool) -> Vec<String> {
    let mut found = Vec::new();
    compare(patch, Some(base), Some(now), &mut String::new(), &mut |field, value| {
        let value = match value {
            None => "is gone".to_owned(),
            Some(_) if secret => "has another value".to_owned(),
            Some(value) => format!("is now {}", shortened(&value.to_string())),
        };
        found.push(format!("{field} {value}"));
    });
    found
}

fn compare(
    patch: &Value,
    base: Option<&Value>,
    now: Option<&Value>,
    path: &mut String,
    found: &mut dyn FnMut(&str, Option<&Value>),
) {
    let inner = |value: Option<&Value>| value.is_none_or(Value::is_object);
    if let (Value::Object(fields), true, true) = (patch, inner(base), inner(now)) {
        for (field, value) in fields {
            let length = path.len();
            if length > 0 {
                path.push('.');
            }
            path.push_str(field);
            compare(value, base.and_then(|base| base.get(field)), now.and_then(|now| now.get(field)), path, found);
            path.truncate(length);
        }
        return;
    }
    let wanted = Some(patch).filter(|patch| !patch.is_null());
    if base != now && now != wanted {
        found(path, now);
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The object as it is now, with what a patch changes.
pub(super) fn merged(now: &Value, patch: &Value) -> Value {
    let mut merged = now.clone();
    json_patch::merge(&mut merged, patch);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host(spec: Value) -> Value {
        json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "web-1", "namespace": "rack", "uid": "u", "resourceVersion": "7", "managedFields": [1],
                "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}},
            "spec": spec, "status": {"poweredOn": true}})
    }

    #[test]
    fn only_what_can_be_changed_is_shown() {
        let metadata = json!({"name": "web-1", "namespace": "rack", "labels": {"a": "b"}});
        let shown = editable(&host(json!({"online": true})), false);
        assert_eq!((&shown["metadata"], shown.get("status")), (&metadata, None));
        assert!(editable(&host(json!({})), true).get("status").is_some());
    }

    #[test]
    fn what_was_changed_is_a_patch_of_that() {
        let base = editable(&host(json!({"online": true, "image": {"url": "x"}, "taints": [1]})), false);
        let with = |change: fn(&mut Value)| {
            let mut written = base.clone();
            change(&mut written);
            changes(&base, &written, false)
        };
        for (name, found, wanted) in [
            ("nothing", with(|_| ()), Ok(None)),
            ("a value", with(|it| it["spec"]["online"] = false.into()), Ok(Some(json!({"spec": {"online": false}})))),
            (
                "a field less",
                with(|it| _ = it["spec"].as_object_mut().unwrap().remove("image")),
                Ok(Some(json!({"spec": {"image": null}}))),
            ),
            ("a list", with(|it| it["spec"]["taints"] = json!([1, 2])), Ok(Some(json!({"spec": {"taints": [1, 2]}})))),
            (
                "a label",
                with(|it| it["metadata"]["labels"]["c"] = "d".into()),
                Ok(Some(json!({"metadata": {"labels": {"c": "d"}}}))),
            ),
            ("the name", with(|it| it["metadata"]["name"] = "web-2".into()), Err("metadata.name cannot be changed")),
            ("the kind", with(|it| it["kind"] = "Secret".into()), Err("kind cannot be changed")),
            (
                "the namespace",
                with(|it| _ = it["metadata"].as_object_mut().unwrap().remove("namespace")),
                Err("metadata.namespace"),
            ),
            ("the status", with(|it| it["status"] = json!({})), Err("--subresource status")),
            (
                "a revision",
                with(|it| it["metadata"]["resourceVersion"] = "1".into()),
                Err("metadata.resourceVersion is written by the server"),
            ),
        ] {
            match (found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{name}"),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{name}: {reason}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
    }

    #[test]
    fn fields_that_others_changed_meanwhile_are_told() {
        let base = json!({"spec": {"online": true, "image": {"url": "x"}}});
        for (patch, now, wanted) in [
            // Something else was changed.
            (json!({"spec": {"online": false}}), json!({"spec": {"online": true, "image": {"url": "y"}}}), vec![]),
            (json!({"spec": {"online": false}}), json!({"spec": {"image": {"url": "x"}}}), vec!["spec.online is gone"]),
            // Both want the same.
            (json!({"spec": {"online": false}}), json!({"spec": {"online": false}}), vec![]),
            (json!({"spec": {"image": null}}), json!({"spec": {"online": true}}), vec![]),
            (
                json!({"spec": {"image": null}}),
                json!({"spec": {"online": true, "image": {"url": "y"}}}),
                vec!["spec.image is now {\"url\":\"y\"}"],
            ),
            (
                json!({"spec": {"bmc": {"address": "a"}}}),
                json!({"spec": {"online": true, "bmc": {"address": "b"}}}),
                vec!["spec.bmc.address is now \"b\""],
            ),
            (json!({"spec": {"image": {"url": "z"}}}), json!({"spec": {"image": 1}}), vec!["spec.image is now 1"]),
        ] {
            assert_eq!(overtaken(&patch, &base, &now, false), wanted, "{patch} {now}");
        }
        let told = overtaken(&json!({"spec": {"online": false}}), &base, &json!({"spec": {"online": "s3cret"}}), true);
        assert_eq!(told, ["spec.online has another value"]);
        assert_eq!(shortened(&"é".repeat(61)), format!("{}…", "é".repeat(60)));
    }

    #[test]
    fn a_text_is_one_object_below_what_was_told() {
        let object = editable(&host(json!({"online": true})), false);
        let again = ReopenReason::Refused("spec: no\u{1b}[2J\nspec.b: bad".into());
        let head = head(&object, Some(&again));
        assert!(head.lines().all(|line| line.starts_with('#')), "{head}");
        assert!(head.contains("#   spec: no^[[2J\n#   spec.b: bad\n"), "{head}");
        assert_eq!(body(&format!("{head}a: 1\n# mine\n")), "a: 1\n# mine\n");
        assert_eq!(body("# only"), "");
        for (text, wanted) in [
            ("a: 1\nb: null\nc: [{d: null}]\n", Ok(Some(json!({"a": 1, "c": [{}]})))),
            ("---\na: 1\n", Ok(Some(json!({"a": 1})))),
            ("", Ok(None)),
            ("# nothing\n\n", Ok(None)),
            ("words", Err("no object")),
            ("a: 1\n---\nb: 1\n", Err("more than one document")),
            ("a: [", Err("")),
            ("a: 1\na: 2\n", Err("")),
        ] {
            match (read(text), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{text}"),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{text}: {reason}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
