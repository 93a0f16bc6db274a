//! Objects that are made from templates. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject, TypeMeta};
use serde_json::{Value, json};

use super::objects::FoundObject;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::{ANNOTATION_CLONED_FROM, ANNOTATION_CLONED_KIND};

/// What the kind of a template ends with.
const SUFFIX: &str = "Template";

/// What an object that is made from a template is to have besides.
#[derive(Clone, Debug, Default)]
pub struct Clone<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its cluster.
    pub cluster: &'a str,
    /// What it belongs to.
    pub owner: Option<OwnerReference>,
    /// Labels beside those of the template.
    pub labels: BTreeMap<String, String>,
    /// Annotations beside those of the template.
    pub annotations: BTreeMap<String, String>,
}

/// The kind that a template is of: `Metal3Machine` of `Metal3MachineTemplate`.
pub fn kind(template: &str) -> &str {
    template.strip_suffix(SUFFIX).unwrap_or(template)
}

/// An object as a template says.
///
/// # Errors
///
/// When the template has no `spec.template.spec`.
pub fn instance(template: &FoundObject, clone: Clone<'_>) -> Result<DynamicObject, String> {
    let inner = &template.object.data["spec"]["template"];
    if !inner["spec"].is_object() {
        let (kind, name) = (&template.resource.kind, template.object.name_any());
        return Err(format!("{kind} {name:?} has no spec.template.spec"));
    }
    let texts =
        |value: &Value| -> BTreeMap<String, String> { serde_json::from_value(value.clone()).unwrap_or_default() };
    let mut labels = texts(&inner["metadata"]["labels"]);
    labels.extend(clone.labels);
    labels.insert(LABEL_CLUSTER.to_owned(), clone.cluster.to_owned());
    let mut annotations = texts(&inner["metadata"]["annotations"]);
    annotations.extend(clone.annotations);
    annotations.insert(ANNOTATION_CLONED_FROM.to_owned(), template.object.name_any());
    annotations.insert(ANNOTATION_CLONED_KIND.to_owned(), origin(&template.resource));
    Ok(DynamicObject {
        types: Some(TypeMeta {
            api_version: template.resource.api_version.clone(),
            kind: kind(&template.resource.kind).to_owned(),
        }),
        metadata: ObjectMeta {
            name: Some(clone.name.to_owned()),
            namespace: template.object.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: clone.owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: json!({ "spec": inner["spec"] }),
    })
}

/// Kind and group of a template, as the annotation has them.
pub fn origin(template: &ApiResource) -> String {
    format!("{}.{}", template.kind, template.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(data: Value) -> FoundObject {
        let resource = ApiResource {
            group: "infrastructure.cluster.x-k8s.io".into(),
            version: "v1beta2".into(),
            api_version: "infrastructure.cluster.x-k8s.io/v1beta2".into(),
            kind: "Metal3MachineTemplate".into(),
            plural: "metal3machinetemplates".into(),
        };
        let mut object = DynamicObject::new("workers", &resource).within("rack").data(data);
        object.metadata.labels = Some([("own".to_owned(), "x".to_owned())].into());
        FoundObject { resource, object }
    }

    #[test]
    fn an_object_is_as_its_template_says() {
        let found = template(json!({"spec": {"template": {
            "metadata": {"labels": {"a": "1", "b": "1"}, "annotations": {"c": "1"}},
            "spec": {"image": {"url": "http://x"}},
        }}}));
        let labels = BTreeMap::from([("b".to_owned(), "2".to_owned())]);
        let made = instance(&found, Clone { name: "m", cluster: "c", labels, ..Clone::default() }).unwrap();
        assert_eq!(made.types.as_ref().map(|types| types.kind.as_str()), Some("Metal3Machine"));
        assert_eq!((made.name_any().as_str(), made.namespace().as_deref()), ("m", Some("rack")));
        assert_eq!(made.data, json!({"spec": {"image": {"url": "http://x"}}}));
        let text = |map: &BTreeMap<String, String>, key: &str| map.get(key).cloned();
        assert_eq!(text(made.labels(), "a").as_deref(), Some("1"));
        assert_eq!(text(made.labels(), "b").as_deref(), Some("2"));
        assert_eq!(text(made.labels(), LABEL_CLUSTER).as_deref(), Some("c"));
        assert_eq!(text(made.labels(), "own"), None, "the template's own labels are its own");
        assert_eq!(text(made.annotations(), ANNOTATION_CLONED_FROM).as_deref(), Some("workers"));
        assert_eq!(
            text(made.annotations(), ANNOTATION_CLONED_KIND).as_deref(),
            Some("Metal3MachineTemplate.infrastructure.cluster.x-k8s.io")
        );
        for bad in [json!({}), json!({"spec": {"template": {}}}), json!({"spec": 7})] {
            assert!(instance(&template(bad), Clone::default()).unwrap_err().contains("workers"));
        }
    }
}
