//! What the defaults in definitions may take of the memory.

use super::*;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOMBS: &str = "/apis/example.org/v1/namespaces/rack/bombs";

/// A definition of a plural with a schema of `spec`.
fn definition(plural: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.org")},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": plural, "singular": format!("{plural}-one"), "kind": format!("Kind-{plural}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec},
            }}}],
        },
    })
}

/// A schema of a list whose items have a text.
fn items(text: &Value) -> Value {
    json!({"type": "object", "properties": {"l": {"type": "array", "items":
        {"type": "object", "properties": {"a": text}}}}})
}

fn bomb(name: &str, count: usize) -> Value {
    let empty: Vec<Value> = (0..count).map(|_| json!({})).collect();
    json!({"apiVersion": "example.org/v1", "kind": "Kind-bombs", "metadata": {"name": name}, "spec": {"l": empty}})
}

#[tokio::test]
async fn defaults_that_came_later_make_no_object_huge() {
    let mut rig = Rig::new().await;
    rig.call("POST", CRDS, &definition("bombs", &items(&json!({"type": "string"})))).await.expect(201);
    rig.call("POST", BOMBS, &bomb("b", 3000)).await.expect(201);
    let mut held = bomb("held", 3000);
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    rig.call("POST", BOMBS, &held).await.expect(201);
    let large = definition("bombs", &items(&json!({"type": "string", "default": "x".repeat(10_000)})));
    let patch = json!({"spec": {"versions": large["spec"]["versions"]}});
    rig.patch(&path(CRDS, "bombs.example.org"), MERGE, &patch).await.expect(200);
    for at in [path(BOMBS, "b"), BOMBS.to_owned()] {
        let text = rig.get(&at).await.text;
        assert!(text.contains("xxxx") && text.len() < 3 << 20, "{} bytes of {at}", text.len());
    }
    let refused = rig.call("POST", BOMBS, &bomb("c", 3000)).await.expect(413);
    assert!(refused["message"].as_str().unwrap().contains("the defaults of its schema"), "{refused}");
    rig.call("POST", BOMBS, &bomb("d", 3)).await.expect(201);
    // As a table, too.
    let request = http::Request::get(format!("{BOMBS}?includeObject=Object"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = rig.send(admin(), request, Body::empty()).await;
    assert!(table.code == 200 && table.text.len() < 4 << 20, "{} bytes", table.text.len());
    // Its end, and that of its definition, is not held up by what it would be.
    rig.call("DELETE", &path(CRDS, "bombs.example.org"), &json!({})).await.expect(200);
    rig.restart().await;
    rig.api.sweep().await.unwrap();
    rig.get(&path(BOMBS, "b")).await.expect(404);
    rig.patch(&path(BOMBS, "held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(CRDS, "bombs.example.org")).await.expect(404);
}

#[tokio::test]
async fn a_default_is_bounded_with_the_defaults_within_it() {
    let rig = Rig::new().await;
    let mut spec = items(&json!({"type": "string", "default": "x".repeat(1000)}));
    spec["properties"]["l"]["default"] = json!(vec![json!({}); 3000]);
    let refused = rig.call("POST", CRDS, &definition("bombs", &spec)).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("completed with the defaults within it"), "{refused}");
    spec["properties"]["l"]["default"] = json!(vec![json!({}); 30]);
    rig.call("POST", CRDS, &definition("bombs", &spec)).await.expect(201);
}
