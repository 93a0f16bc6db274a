//! Definitions as the types say them: what the written ones are held against.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::Value;

use super::{Declared, cluster, narrowed};

/// Of a kind with one version.
pub(super) fn one<T: CustomResourceExt>() -> CustomResourceDefinition {
    let mut definition = T::crd();
    if definition.spec.group.ends_with(".k8s.io") {
        // API servers of Kubernetes ask that of every definition in such a group (KEP-1111).
        let approval = "unapproved, published before the group was protected".to_owned();
        let annotations = definition.metadata.annotations.get_or_insert_default();
        annotations.insert("api-approved.kubernetes.io".to_owned(), approval);
    }
    let labels = labels_of_movers(&definition.spec.group, &definition.spec.names.kind);
    if !labels.is_empty() {
        definition.metadata.labels = Some(labels.into_iter().map(|label| (label.to_owned(), String::new())).collect());
    }
    let of_metal3 = definition.spec.group == "metal3.io";
    let kind = &definition.spec.names.kind;
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let Some(schema) = schema else { continue };
        publish(schema);
        describe(schema);
        narrowed::narrow(&version.name, kind, schema);
        if of_metal3 {
            leave_spec_out(schema);
        }
    }
    definition
}

/// What `kubectl explain` says of a kind. The types say it of their `spec`; the derived sentence only names a type of this program.
fn describe(schema: &mut JSONSchemaProps) {
    let spec = schema.properties.as_ref().and_then(|properties| properties.get("spec"));
    let Some(text) = spec.and_then(|spec| spec.description.as_deref()) else { return };
    let of_spec = [": what it should be.", ": what they should be.", ": what is wanted."];
    let subject = of_spec.iter().find_map(|end| text.strip_suffix(end));
    schema.description = Some(subject.map_or_else(|| text.to_owned(), |subject| format!("{subject}.")));
}

/// The labels by which `clusterctl move` finds the kinds whose objects it takes to another API server
/// (<https://cluster-api.sigs.k8s.io/clusterctl/provider-contract>, "move"). It takes what a Cluster owns, and everything of the
/// kinds that nothing owns here: templates, and hosts with what they own.
fn labels_of_movers(group: &str, kind: &str) -> Vec<&'static str> {
    const FOUND: &str = "clusterctl.cluster.x-k8s.io";
    const TAKEN: &str = "clusterctl.cluster.x-k8s.io/move";
    const TAKEN_WITH_ALL: &str = "clusterctl.cluster.x-k8s.io/move-hierarchy";
    let is_of_clusters = group == cluster::GROUP || group.ends_with(".cluster.x-k8s.io");
    match (group, kind) {
        ("metal3.io", "BareMetalHost") => vec![FOUND, TAKEN, TAKEN_WITH_ALL],
        ("metal3.io", "HardwareData") => vec![FOUND, TAKEN],
        ("metal3.io" | "ipam.metal3.io", _) => vec![FOUND],
        (_, kind) if is_of_clusters && kind.ends_with("Template") => vec![FOUND, TAKEN],
        _ if is_of_clusters => vec![FOUND],
        _ => vec![],
    }
}

/// Metal3 requires no `spec`. One that says nothing is filled in where the types want one
/// ([`completed_by`](Declared::completed_by)).
fn leave_spec_out(schema: &mut JSONSchemaProps) {
    let spec = schema.properties.as_ref().and_then(|properties| properties.get("spec"));
    let needs = spec.and_then(|spec| spec.required.as_deref()).unwrap_or_default();
    if needs.iter().all(|field| field == "online")
        && let Some(required) = &mut schema.required
    {
        required.retain(|field| field != "spec");
        if required.is_empty() {
            schema.required = None;
        }
    }
}

/// Of a kind that is stored as `New` and served as `Old` too.
pub(super) fn both<New: CustomResourceExt, Old: CustomResourceExt>() -> CustomResourceDefinition {
    let mut definition = one::<New>();
    serve::<Old>(&mut definition);
    // How Cluster API's tools find which version keeps which of its contracts.
    let labels = ["v1beta1", "v1beta2"].map(|version| (format!("{}/{version}", cluster::GROUP), version.to_owned()));
    definition.metadata.labels.get_or_insert_default().extend(labels);
    definition
}

/// Of a kind that is stored as `New` and served as `Old` and `Oldest` too.
pub(super) fn three<New: CustomResourceExt, Old: CustomResourceExt, Oldest: CustomResourceExt>()
-> CustomResourceDefinition {
    let mut definition = both::<New, Old>();
    serve::<Oldest>(&mut definition);
    definition
}

fn serve<Also: CustomResourceExt>(definition: &mut CustomResourceDefinition) {
    definition.spec.versions.extend(one::<Also>().spec.versions.into_iter().map(|mut version| {
        version.storage = false;
        version
    }));
}

/// The generated schemas call every optional field nullable, and have nulls in their defaults. The published ones do
/// not: a null there means that the field is not given.
fn publish(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(default) = &mut schema.default {
        drop_nulls(&mut default.0);
    }
    if let Some(choices) = &mut schema.enum_ {
        choices.retain(|choice| !choice.0.is_null());
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        publish(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        // A key of a map that has null is there.
        let nullable = values.nullable;
        publish(values);
        values.nullable = nullable;
    }
    schema.properties.iter_mut().flatten().for_each(|(_, property)| publish(property));
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, member| !member.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}

impl Declared {
    /// Its definition, as its types say it.
    pub(crate) fn generated(&self) -> CustomResourceDefinition {
        (self.generate)()
    }
}

#[cfg(test)]
mod tests {
    use crate::modules::declared;

    #[test]
    fn no_description_names_a_type_of_this_program() {
        for kind in declared() {
            let definition = kind.generated();
            for version in definition.spec.versions {
                let schema = version.schema.and_then(|schema| schema.open_api_v3_schema).expect("a schema");
                let text = schema.description.unwrap_or_default();
                let says_something = text.len() > 10 && !text.contains("derived") && !text.contains(": what");
                assert!(says_something, "{} {}: {text:?}", kind.name(), version.name);
            }
        }
    }
}
