//! What a fuzzer calls (`fuzz/`), and the unit tests with it: hostile patches and configurations against an object.

use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::kinds::registry::ResourceRegistry;
use super::kinds::resource::ServedResource;
use super::requests::body::{self, too_deep};
use super::schema::MergeType;
use super::writing::apply::manager::{Manager, ManagerOperation, decode, encode, same};
use super::writing::apply::set::Set;
use super::writing::apply::update::{ApplyRequest, VersionedObject, applied, updated};
use super::writing::apply::{markers, typed};
use super::writing::patch::RequestPatch;
use crate::api::Kind;

static REGISTRY: OnceLock<Option<ResourceRegistry>> = OnceLock::new();

/// Reads a first byte as the kind of request, the next one as the kind of object, and the rest up to a NUL byte as the
/// object that is there, what follows as the body; then does what the server does with them.
///
/// # Panics
///
/// When a promise of the rules does not hold. That is a fault to be found, as any other panic is.
pub fn patch_and_apply(kinds: fn() -> Vec<Kind>, data: &[u8]) {
    let [form, subject, rest @ ..] = data else { return };
    let registry = REGISTRY.get_or_init(|| super::kinds::built_in::registry(&kinds()).ok());
    let Some(registry) = registry.as_ref() else { return };
    let resource = match subject % 3 {
        0 => registry.find("", "v1", "configmaps"),
        1 => registry.find("", "v1", "secrets"),
        _ => registry.find("metal3.io", "v1alpha1", "baremetalhosts"),
    };
    let Some(resource) = resource else { return };
    let (live, body) = match rest.iter().position(|byte| *byte == 0) {
        Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at + 1..).unwrap_or_default()),
        None => (&b"{}"[..], rest),
    };
    let mut live = match body::parse_json(live) {
        Ok(parsed) if parsed.value.is_object() && !too_deep(&parsed.value) => parsed.value,
        _ => json!({}),
    };
    resource.schema.prune(&mut live);
    match form % 5 {
        0 => patched(resource, "application/merge-patch+json", &live, body),
        1 => patched(resource, "application/json-patch+json", &live, body),
        2 => patched(resource, "application/strategic-merge-patch+json", &live, body),
        3 => protobuf_of(rest),
        _ => configured(resource, &live, body),
    }
}

/// A body in protobuf, of the kind that it names itself.
fn protobuf_of(bytes: &[u8]) {
    if let Ok(value) = super::requests::protobuf::parse(&[&b"k8s\0"[..], bytes].concat()) {
        assert!(value.is_object() && body::check_values(&value).is_ok(), "what is read is within its bounds");
    }
}

fn patched(resource: &ServedResource, media: &str, live: &Value, body: &[u8]) {
    let Ok(patch) = RequestPatch::parse(resource, media, body) else { return };
    let mut new = live.clone();
    if patch.apply(resource, &mut new).is_err() {
        return;
    }
    assert!(!too_deep(&new), "a patched object can be stored");
    resource.schema.prune(&mut new);
    with_types(resource, |types| {
        let managers = updated(types, live, &new, Vec::new(), "fuzzer", "", Timestamp::UNIX_EPOCH);
        check_round_trip(managers);
    });
}

fn configured(resource: &ServedResource, live: &Value, body: &[u8]) {
    let Ok(config) = body::parse_config(body).map(|parsed| parsed.value) else { return };
    if !config.is_object() || too_deep(&config) {
        return;
    }
    let kind = MergeType::root(&resource.schema);
    let empty = markers::empty(&resource.kind, resource.core, &resource.api_version());
    let manager = Manager {
        name: "fuzzer".into(),
        operation: ManagerOperation::Apply,
        api_version: resource.api_version(),
        subresource: String::new(),
    };
    with_types(resource, |types| {
        let mut request =
            ApplyRequest { live, empty: &empty, config: &config, managers: &[], manager: &manager, force: false };
        // Without force there may be conflicts with what was there before.
        applied(types, &request, Timestamp::UNIX_EPOCH).ok();
        request.force = true;
        let Ok(first) = applied(types, &request, Timestamp::UNIX_EPOCH) else { return };
        let object = first.object.unwrap_or_else(|| live.clone());
        assert!(typed::fault(kind, &object, true).is_none(), "what is applied is of its type");
        // Applying the same again changes nothing.
        let again = ApplyRequest { live: &object, managers: &first.managers, force: false, ..request };
        let second = applied(types, &again, Timestamp::UNIX_EPOCH).expect("it is its own");
        assert!(second.object.is_none() && same(&second.managers, &first.managers), "the same again is no change");
        check_round_trip(first.managers);
    });
}

fn with_types(resource: &ServedResource, call: impl FnOnce(&VersionedObject<'_>)) {
    let (api_version, reset) = (resource.api_version(), Set::default());
    call(&VersionedObject {
        api_version: &api_version,
        schema: &resource.schema,
        convert: &|_, _| None,
        reset: &reset,
    });
}

fn check_round_trip(mut managers: Vec<super::writing::apply::manager::ManagedFieldsEntry>) {
    let written = encode(&mut managers);
    let read = decode(&written).expect("what is written can be read");
    assert!(same(&read, &managers), "managers are read as they were written");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pieces that mean something.
    fn piece() -> impl Strategy<Value = String> {
        let words = [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "null",
            "true",
            "1",
            "-1.5",
            "\"a\"",
            "\"data\"",
            "\"metadata\"",
            "\"spec\"",
            "\"finalizers\"",
            "\"ownerReferences\"",
            "\"uid\"",
            "\"$patch\"",
            "\"delete\"",
            "\"replace\"",
            "\"labels\"",
            "\"$setElementOrder/finalizers\"",
            "\"$deleteFromPrimitiveList/finalizers\"",
            "\"$retainKeys\"",
            "\"op\"",
            "\"path\"",
            "\"/data/a\"",
            "\"/metadata\"",
            "\"add\"",
            "\"copy\"",
            "\"move\"",
            "\"from\"",
            "\"value\"",
            "\"taints\"",
            "\"conditions\"",
            "- ",
            "\n",
            "&a ",
            "*a",
            "a: ",
        ];
        proptest::sample::select(words.to_vec()).prop_map(str::to_owned)
    }

    /// A whole document of a few known fields.
    fn document() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just(json!(null)),
            Just(json!(1)),
            Just(json!("a")),
            Just(json!(["a", "b", "a"])),
            Just(json!([{"uid": "a"}, {"uid": "b", "name": "n"}])),
            Just(json!({})),
        ];
        let names =
            ["a", "data", "metadata", "spec", "labels", "finalizers", "ownerReferences", "image", "url", "$patch"];
        let object = leaf.prop_recursive(4, 24, 4, move |inner| {
            let name = proptest::sample::select(names.to_vec()).prop_map(str::to_owned);
            proptest::collection::btree_map(name, inner, 0..4).prop_map(|map| json!(map))
        });
        object.prop_map(|value| value.to_string())
    }

    proptest! {
        #[test]
        fn whatever_comes_is_answered(
            form in any::<u8>(), subject in any::<u8>(),
            live in prop_oneof![document(), proptest::collection::vec(piece(), 0..12).prop_map(|pieces| pieces.concat())],
            body in prop_oneof![
                3 => document(),
                1 => proptest::collection::vec(piece(), 0..24).prop_map(|pieces| pieces.concat()),
            ],
        ) {
            patch_and_apply(crate::modules::kinds, &[&[form, subject], live.as_bytes(), b"\0", body.as_bytes()].concat());
        }

        #[test]
        fn whatever_bytes_come(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            patch_and_apply(crate::modules::kinds, &data);
        }
    }

    #[test]
    fn known_inputs_are_answered() {
        for (form, live, body) in [
            (0, r#"{"data":{"a":"b"}}"#, r#"{"data":{"a":null}}"#),
            (1, r#"{"data":{"a":"b"}}"#, r#"[{"op":"move","from":"/data","path":"/data/a"}]"#),
            (2, r#"{"metadata":{"finalizers":["a"]}}"#, r#"{"metadata":{"$setElementOrder/finalizers":["b",1]}}"#),
            (3, r#"{"metadata":{"finalizers":["a","a"]}}"#, "metadata: {finalizers: [a, b]}\n"),
            (
                3,
                r#"{"metadata":{"ownerReferences":[{"uid":"a"},{"uid":"a"}]}}"#,
                r#"{"metadata":{"ownerReferences":[{"uid":"a","name":"n"}]}}"#,
            ),
            (3, r#"{"data":{"a":1}}"#, r#"{"data":{}}"#),
            (3, r#"{"data":null}"#, r#"{"data":{"a":null}}"#),
        ] {
            for subject in 0..3 {
                patch_and_apply(
                    crate::modules::kinds,
                    &[&[form, subject], live.as_bytes(), b"\0", body.as_bytes()].concat(),
                );
            }
        }
    }
}
