//! Merge markers of the core kinds: which lists are sets, maps or whole.
//!
//! How the lists and maps of the core kinds are merged, and what an empty object of each has: the Go types' tags,
//! which the schemas of the client library leave out.

use serde_json::{Value, json};

/// What a marker says of a field.
enum Marker {
    /// `patchStrategy:"merge" patchMergeKey:"…"`
    ByKey(&'static str),
    /// `patchStrategy:"merge"` on plain values
    Set,
    /// `structType=atomic` or `mapType=atomic`
    Whole,
}

use Marker::{ByKey, Set, Whole};

/// Fields of every object.
const METADATA: [(&str, Marker); 3] =
    [("finalizers", Set), ("ownerReferences", ByKey("uid")), ("ownerReferences/*", Whole)];

/// Fields of a kind; `*` stands for the entries of a list.
fn of_kind(kind: &str) -> &'static [(&'static str, Marker)] {
    match kind {
        "Namespace" => &[("status/conditions", ByKey("type"))],
        "Event" => &[("involvedObject", Whole), ("related", Whole), ("regarding", Whole)],
        "ServiceAccount" => &[("secrets", ByKey("name")), ("secrets/*", Whole), ("imagePullSecrets/*", Whole)],
        "RoleBinding" | "ClusterRoleBinding" => &[("roleRef", Whole), ("subjects/*", Whole)],
        "ClusterRole" => &[("aggregationRule/clusterRoleSelectors/*", Whole)],
        "CustomResourceDefinition" => &[("status/conditions", ByKey("type"))],
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => &[
            ("webhooks", ByKey("name")),
            ("webhooks/*/matchConditions", ByKey("name")),
            ("webhooks/*/namespaceSelector", Whole),
            ("webhooks/*/objectSelector", Whole),
        ],
        _ => &[],
    }
}

/// Marks the schema of a whole object, before it is compiled.
pub fn mark(kind: &str, core: bool, schema: &mut Value) {
    for (path, marker) in &METADATA {
        set(schema, &format!("metadata/{path}"), marker);
    }
    if core {
        for (path, marker) in of_kind(kind) {
            set(schema, path, marker);
        }
    }
}

fn set(schema: &mut Value, path: &str, marker: &Marker) {
    let mut at = schema;
    for step in path.split('/') {
        let next = if step == "*" { at.get_mut("items") } else { at["properties"].get_mut(step) };
        match next {
            Some(next) => at = next,
            None => return,
        }
    }
    match marker {
        ByKey(key) => {
            at["x-kubernetes-patch-strategy"] = "merge".into();
            at["x-kubernetes-patch-merge-key"] = (*key).into();
        }
        Set => at["x-kubernetes-patch-strategy"] = "merge".into(),
        Whole => at["x-kubernetes-map-type"] = "atomic".into(),
    }
}

/// An object of a kind without anything: parts that the Go types always have are there, so that nobody owns them.
pub fn empty(kind: &str, core: bool, api_version: &str) -> Value {
    let mut object = match kind {
        "Namespace" if core => json!({"spec": {}, "status": {}}),
        "Lease" if core => json!({"spec": {}}),
        "Event" if core => json!({"involvedObject": {}, "source": {}}),
        "CustomResourceDefinition" if core => json!({"spec": {"names": {}}, "status": {"acceptedNames": {}}}),
        _ => json!({}),
    };
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object
}
