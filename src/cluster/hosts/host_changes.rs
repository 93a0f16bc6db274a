//! What is written into a host by whoever takes it: a merge patch of the very version of the host that was judged, so that of many
//! who try one has it. Pure.

use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::api::metal3::BareMetalHost;

/// A reference that leaves nothing of the one before it.
pub fn consumer(kind: &str, api_version: &str, namespace: Option<String>, name: &str) -> Value {
    json!({
        "kind": kind, "apiVersion": api_version, "namespace": namespace, "name": name,
        "uid": null, "resourceVersion": null, "fieldPath": null,
    })
}

/// A merge patch in the making.
#[derive(Debug, Default)]
pub struct HostChanges {
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    spec: Map<String, Value>,
}

impl HostChanges {
    /// Gives it a label, or takes it with null.
    pub fn label(&mut self, key: &str, value: Value) {
        self.labels.insert(key.to_owned(), value);
    }

    /// Gives it an annotation, or takes it with null.
    pub fn annotation(&mut self, key: &str, value: Value) {
        self.annotations.insert(key.to_owned(), value);
    }

    /// Sets a field of its spec, or takes it with null.
    pub fn spec(&mut self, field: &str, value: Value) {
        self.spec.insert(field.to_owned(), value);
    }

    /// The patch, for this very version of the host; none when nothing changes.
    pub fn of(self, host: &BareMetalHost) -> Option<Value> {
        let mut metadata = Map::new();
        metadata.extend((!self.labels.is_empty()).then(|| ("labels".to_owned(), self.labels.into())));
        metadata.extend((!self.annotations.is_empty()).then(|| ("annotations".to_owned(), self.annotations.into())));
        if metadata.is_empty() && self.spec.is_empty() {
            return None;
        }
        metadata.insert("resourceVersion".into(), json!(host.resource_version()));
        let mut patch = json!({ "metadata": metadata });
        if !self.spec.is_empty() {
            patch["spec"] = self.spec.into();
        }
        Some(patch)
    }
}
