//! The paths of a kind in an OpenAPI document.

use serde_json::{Map, Value, json};

use super::{META, SCALE, kind_of, reference};
use crate::api::StoragePolicy;
use crate::apiserver::kinds::resource::ServedResource;

fn query(name: &str, kind: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "description": description,
        "schema": {"type": kind, "uniqueItems": true}})
}

fn path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
}

/// Where a resource is, and what can be done there.
pub(super) fn paths(resource: &ServedResource) -> Map<String, Value> {
    let mut found = Map::new();
    add_paths(resource, &mut found);
    found
}

fn add_paths(resource: &ServedResource, paths: &mut Map<String, Value>) {
    let root = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let has = |verb: &str| resource.verbs().contains(&verb);
    let object = reference(&resource.schema_name());
    let list = reference(&format!("{}List", resource.schema_name()));
    let status = reference(&format!("{META}.Status"));
    let json_content = |schema: &Value| json!({"application/json": {"schema": schema}});
    let respond = |schema: &Value| json!({"200": {"description": "OK", "content": json_content(schema)}});
    let body = |schema: &Value| json!({"required": true, "content": json_content(schema)});
    let write_parameters = || {
        json!([
            query("dryRun", "string", "All: do everything but write."),
            query("fieldManager", "string", "Name of the client program."),
            query("fieldValidation", "string", "What to do with unknown and duplicate fields: Ignore, Warn or Strict."),
        ])
    };
    let list_parameters = || {
        json!([
            query("allowWatchBookmarks", "boolean", "Whether a watch may send BOOKMARK events."),
            query("fieldSelector", "string", "Restricts the objects by their fields."),
            query("labelSelector", "string", "Restricts the objects by their labels."),
            query("limit", "integer", "A wish; all objects may be sent."),
            query("resourceVersion", "string", "The least revision of the answer; where a watch starts."),
            query("resourceVersionMatch", "string", "NotOlderThan or Exact."),
            query("sendInitialEvents", "boolean", "Whether a watch begins with what there is."),
            query("timeoutSeconds", "integer", "How long a watch lasts."),
            query("watch", "boolean", "Watch instead of list."),
        ])
    };
    let operation = |action: &str, parameters: Value, responses: Value| {
        json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind_of(resource),
            "operationId": format!("{action}{}{}", resource.version, resource.kind),
            "parameters": parameters,
            "responses": responses,
        })
    };
    let mut patches = vec!["application/json-patch+json", "application/merge-patch+json"];
    if resource.core {
        patches.push("application/strategic-merge-patch+json");
    }
    let patch_content: Map<String, Value> = patches
        .into_iter()
        .map(|media| (media.to_owned(), json!({"schema": reference(&format!("{META}.Patch"))})))
        .collect();

    let mut collection = Map::new();
    if has("list") {
        collection.insert("get".into(), operation("list", list_parameters(), respond(&list)));
    }
    if has("create") {
        let mut post = operation("post", write_parameters(), respond(&object));
        post["requestBody"] = body(&object);
        collection.insert("post".into(), post);
    }
    if has("deletecollection") {
        collection.insert("delete".into(), operation("deletecollection", list_parameters(), respond(&status)));
    }
    let writing = |item: &mut Map<String, Value>| {
        let mut put = operation("put", write_parameters(), respond(&object));
        put["requestBody"] = body(&object);
        item.insert("put".into(), put);
        let mut patch = operation("patch", write_parameters(), respond(&object));
        patch["requestBody"] = json!({"required": true, "content": patch_content});
        item.insert("patch".into(), patch);
    };
    let mut item = Map::new();
    item.insert("get".into(), operation("get", json!([]), respond(&object)));
    if has("update") {
        writing(&mut item);
    }
    if has("delete") {
        let mut delete = operation("delete", json!([query("dryRun", "string", "")]), respond(&status));
        delete["requestBody"] = json!({"content": json_content(&reference(&format!("{META}.DeleteOptions")))});
        item.insert("delete".into(), delete);
    }

    let base = if resource.namespaced {
        let everywhere = operation("list", list_parameters(), respond(&list));
        if has("list") {
            paths.insert(format!("{root}/{}", resource.plural), json!({ "get": everywhere }));
        }
        format!("{root}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        format!("{root}/{}", resource.plural)
    };
    let namespace = || resource.namespaced.then(|| path_parameter("namespace"));
    collection.insert("parameters".into(), namespace().into_iter().collect());
    let item_parameters: Value = std::iter::once(path_parameter("name")).chain(namespace()).collect();
    item.insert("parameters".into(), item_parameters.clone());
    paths.insert(base.clone(), Value::Object(collection));
    if resource.policy == StoragePolicy::Review {
        return;
    }
    if &*resource.storage == crate::apiserver::auth::accounts::STORAGE {
        let request = reference("io.k8s.api.authentication.v1.TokenRequest");
        let mut post = operation("post", write_parameters(), respond(&request));
        post["requestBody"] = body(&request);
        let parameters = item_parameters.clone();
        paths.insert(format!("{base}/{{name}}/token"), json!({"post": post, "parameters": parameters}));
    }
    paths.insert(format!("{base}/{{name}}"), Value::Object(item));
    let mut subresource = |name: &str, shown: &Value, kind: Option<Value>| {
        let mut item = Map::new();
        item.insert("get".into(), operation("get", json!([]), respond(shown)));
        if has("update") {
            let mut put = operation("put", write_parameters(), respond(shown));
            put["requestBody"] = body(shown);
            item.insert("put".into(), put);
            let mut patch = operation("patch", write_parameters(), respond(shown));
            patch["requestBody"] = json!({"required": true, "content": patch_content});
            item.insert("patch".into(), patch);
        }
        if let Some(kind) = kind {
            item.values_mut().for_each(|operation| operation["x-kubernetes-group-version-kind"] = kind.clone());
        }
        item.insert("parameters".into(), item_parameters.clone());
        paths.insert(format!("{base}/{{name}}/{name}"), Value::Object(item));
    };
    if resource.status {
        subresource("status", &object, None);
    }
    if resource.scale.is_some() {
        let kind = json!({"group": "autoscaling", "kind": "Scale", "version": "v1"});
        subresource("scale", &reference(SCALE), Some(kind));
    }
}
