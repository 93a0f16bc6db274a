//! What Machines must be before they are stored, beyond what their schema says. Pure.
//!
//! What a Secret has that a Machine names goes to the machine, and so to whoever makes it: it is one that he may read.
//!
//! What a stored Machine breaks already does not stop another change of it, and nothing stops its deletion. Machines of other
//! providers are not judged.

use serde::Deserialize;
use serde_json::Value;

use super::shape;
use crate::api::machine_api::ProviderSpec;
use crate::apiserver::auth::Attributes;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};

/// Where a Machine says what it wants.
const PATH: &str = "spec.providerSpec.value";

/// Rules for a change of a Machine.
///
/// # Errors
///
/// Every rule that it breaks.
pub fn machine(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let may_read = |namespace: &str, secret: &str| {
        let wanted = Attributes {
            verb: "get",
            version: "v1",
            resource: "secrets",
            namespace,
            name: secret,
            ..Attributes::default()
        };
        request.identity.is_in_process() || request.rights.allow(&wanted)
    };
    let errors: Vec<FieldError> = judge(request.object, request.old, may_read).into_iter().collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn judge(new: &Value, old: Option<&Value>, may_read: impl Fn(&str, &str) -> bool) -> Option<FieldError> {
    let (new_spec, old_spec) = (spec(new), old.map(spec));
    // Who let the host go that it has would be nobody.
    if let Some(old_spec) = &old_spec
        && shape::is_ours(old_spec) != shape::is_ours(&new_spec)
        && old.is_some_and(|old| old["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()))
    {
        let detail = "a Machine that is held cannot become another provider's";
        return Some(FieldError::forbidden(format!("{PATH}.apiVersion"), detail));
    }
    if old_spec.as_ref() == Some(&new_spec) {
        return None;
    }
    let namespace = new["metadata"]["namespace"].as_str().unwrap_or_default();
    let named = |spec: &ProviderSpec| {
        let value = spec.value.as_ref().filter(|_| shape::is_ours(spec))?;
        value["userData"]["name"].as_str().map(ToOwned::to_owned)
    };
    if let Some(secret) = named(&new_spec)
        && old_spec.as_ref().and_then(named).as_ref() != Some(&secret)
        && !may_read(namespace, &secret)
    {
        let detail = format!("names the Secret {secret:?}, which you may not read, and its machine would be given");
        return Some(FieldError::forbidden(format!("{PATH}.userData"), detail));
    }
    let fault = shape::read(&new_spec, namespace, None).err().filter(shape::ShapeFault::is_refused)?;
    Some(FieldError::forbidden(PATH, fault.to_string()))
}

/// A Machine of another form is refused by its schema.
fn spec(machine: &Value) -> ProviderSpec {
    ProviderSpec::deserialize(&machine["spec"]["providerSpec"]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(value: Value, finalizers: &[&str]) -> Value {
        json!({"metadata": {"namespace": "rack", "finalizers": finalizers}, "spec": {"providerSpec": {"value": value}}})
    }

    fn claim(fields: Value) -> Value {
        let mut value =
            json!({"apiVersion": "baremetal.cluster.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"});
        json_patch::merge(&mut value, &fields);
        value
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let other = || json!({"apiVersion": "aws/v1alpha1", "kind": "X", "userData": {"namespace": "far"}});
        let odd = || claim(json!({"odd": 1}));
        let fine = || claim(json!({"userData": {"name": "u"}}));
        let prize = || claim(json!({"userData": {"name": "prize"}}));
        let more = || claim(json!({"userData": {"name": "prize"}, "hostSelector": {"matchLabels": {"a": "b"}}}));
        let elsewhere = || json!({"apiVersion": "aws/v1alpha1", "kind": "X", "userData": {"name": "prize"}});
        let far = || claim(json!({"userData": {"name": "u", "namespace": "far"}}));
        let rows: &[(Value, Option<Value>, Option<&str>)] = &[
            (machine(fine(), &[]), None, None),
            // What is to run is said in the status.
            (machine(claim(json!({})), &[]), None, None),
            (machine(odd(), &[]), None, Some("unknown field")),
            (machine(far(), &[]), None, Some("far")),
            (machine(other(), &[]), None, None),
            (json!({"metadata": {}, "spec": {}}), None, None),
            (machine(odd(), &[]), Some(machine(fine(), &[])), Some("unknown field")),
            // It was so before: whatever else changes may.
            (machine(odd(), &["f"]), Some(machine(odd(), &[])), None),
            (machine(other(), &[]), Some(machine(fine(), &[])), None),
            (machine(other(), &["f"]), Some(machine(fine(), &["f"])), Some("another provider's")),
            (machine(fine(), &["f"]), Some(machine(other(), &["f"])), Some("another provider's")),
            (machine(prize(), &[]), None, Some("may not read")),
            (machine(prize(), &[]), Some(machine(fine(), &[])), Some("may not read")),
            (machine(prize(), &[]), Some(machine(elsewhere(), &[])), Some("may not read")),
            (machine(elsewhere(), &[]), None, None),
            // Who could has said so.
            (machine(more(), &[]), Some(machine(prize(), &[])), None),
        ];
        for (new, old, said) in rows {
            let may_read = |namespace: &str, secret: &str| (namespace, secret) == ("rack", "u");
            let detail = judge(new, old.as_ref(), may_read).map(|error| format!("{error:?}"));
            match said {
                None => assert_eq!(detail, None, "{new}"),
                Some(said) => {
                    assert!(detail.as_deref().is_some_and(|detail| detail.contains(said)), "{new}: {detail:?}")
                }
            }
        }
    }
}
