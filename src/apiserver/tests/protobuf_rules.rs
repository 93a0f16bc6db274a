//! What Go clients send as protobuf.

use super::*;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/rack/leases";

impl Rig {
    async fn protobuf(&self, method: &str, path: &str, object: &Value) -> Answer {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/vnd.kubernetes.protobuf")
            .header("accept", "application/vnd.kubernetes.protobuf,application/json");
        self.send(admin(), request, protobuf::tests::whole(object)).await
    }
}

#[tokio::test]
async fn a_lease_is_taken_and_renewed() {
    let rig = Rig::new().await;
    let lease = |holder: &str, revision: &Value| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "namespace": "rack", "resourceVersion": revision},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 0,
                "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:01.000000Z"}})
    };
    let made = rig.protobuf("POST", LEASES, &lease("a", &"".into())).await.expect(201);
    assert_eq!(made["spec"], lease("a", &"".into())["spec"]);
    let revision = &made["metadata"]["resourceVersion"];
    let renewed = rig.protobuf("PUT", &path(LEASES, "l"), &lease("", revision)).await.expect(200);
    assert_eq!(renewed["spec"]["holderIdentity"], "");
    // Who comes second does not lead.
    rig.protobuf("PUT", &path(LEASES, "l"), &lease("b", revision)).await.expect(409);
    rig.protobuf("POST", LEASES, &lease("b", &"".into())).await.expect(409);
}

#[tokio::test]
async fn a_definition_makes_its_kind() {
    let rig = Rig::new().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "maximum": 3, "default": 1},
                    "any": {"type": "object", "additionalProperties": {"type": "string", "enum": ["x"]}}}}}}}},
            {"name": "v0", "served": false, "storage": false,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
        ]},
    });
    let made = rig.protobuf("POST", &format!("{CRDS}?fieldValidation=Strict"), &definition).await.expect(201);
    assert_eq!(made["spec"]["versions"], definition["spec"]["versions"]);
    let widgets = "/apis/example.org/v1/namespaces/rack/widgets";
    let widget = |name: &str, spec: Value| json!({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec});
    let made = rig.call("POST", widgets, &widget("a", json!({"any": {"k": "x"}}))).await.expect(201);
    assert_eq!(made["spec"]["size"], 1);
    rig.call("POST", widgets, &widget("b", json!({"size": 4}))).await.expect(422);
    rig.call("POST", widgets, &widget("b", json!({"any": {"k": "y"}}))).await.expect(422);
    // The same again, with the managers that the server keeps, is no change.
    let live = rig.get(&path(CRDS, "widgets.example.org")).await.expect(200);
    let same = rig.protobuf("PUT", &path(CRDS, "widgets.example.org"), &live).await.expect(200);
    assert_eq!(same, live);
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused() {
    let rig = Rig::new().await;
    let lease = protobuf::tests::whole(&json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}));
    for length in [0, 3, 4, 6, lease.len() - 1] {
        let request = http::Request::post(LEASES).header("content-type", "application/vnd.kubernetes.protobuf");
        let answer = rig.send(admin(), request, lease[..length].to_vec()).await;
        assert_eq!(answer.code, 400, "{length}: {}", answer.text);
    }
}
