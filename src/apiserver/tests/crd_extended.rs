//! Definitions of upstream that are applied over those of built-in kinds.

use super::*;

const HOSTS_DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/baremetalhosts.metal3.io";
const APPLY: &str = "application/apply-patch+yaml";

/// As the next release of upstream may publish it: another description, new fields, and more that is not ours to give.
fn upstream(live: &Value) -> Value {
    let mut spec = live["spec"].clone();
    let version = &mut spec["versions"][0];
    let schema = &mut version["schema"]["openAPIV3Schema"];
    schema["description"] = "BareMetalHost is the Schema for the baremetalhosts API".into();
    schema["properties"]["spec"]["properties"]["nextWish"] =
        json!({"type": "string", "pattern": "^a+$", "maxLength": 3, "default": "aaa"});
    schema["properties"]["status"]["properties"]["nextState"] =
        json!({"type": "object", "required": ["phase"], "properties": {"phase": {"type": "string"}}});
    schema["properties"]["spec"]["properties"]["online"]["default"] = true.into();
    version["subresources"]["scale"] =
        json!({"specReplicasPath": ".spec.nextWish", "statusReplicasPath": ".status.nextWish"});
    spec["names"]["shortNames"] = json!(["secrets"]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "baremetalhosts.metal3.io", "annotations": {"controller-gen.kubebuilder.io/version": "v9"}},
        "spec": spec,
    })
}

impl Rig {
    async fn apply_definition(&self, manager: &str, config: &Value) -> Answer {
        let path = format!("{HOSTS_DEFINITION}?fieldManager={manager}");
        self.send(admin(), http::Request::patch(path).header("content-type", APPLY), config.to_string()).await
    }
}

#[tokio::test]
async fn upstreams_newer_fields_are_kept() {
    let mut rig = Rig::new().await;
    let before = rig.get(HOSTS_DEFINITION).await.expect(200);
    assert_eq!(before["metadata"]["managedFields"][0]["manager"], "slipway");
    let config = upstream(&before);
    // Nobody has to force anything on a fresh appliance.
    let applied = rig.apply_definition("upstream", &config).await;
    assert!(applied.headers["warning"].to_str().unwrap().contains("fields that are new are added"), "{}", applied.text);
    let applied = applied.expect(200);
    let again = rig.apply_definition("upstream", &config).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], applied["metadata"]["resourceVersion"]);
    let mut managers: Vec<_> =
        applied["metadata"]["managedFields"].as_array().unwrap().iter().map(|one| one["manager"].as_str()).collect();
    managers.sort_unstable();
    assert_eq!(managers, [Some("slipway"), Some("upstream")]);
    // No more than fields was added.
    let mut wanted = before["spec"].clone();
    let properties = &mut wanted["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    properties["spec"]["properties"]["nextWish"] = json!({"type": "string", "maxLength": 3});
    properties["status"]["properties"]["nextState"] =
        config["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["nextState"]
            .clone();
    assert_eq!(applied["spec"], wanted);

    let mut host = host("a");
    host["spec"]["nextWish"] = "b".into();
    rig.call("POST", &format!("{HOSTS}?fieldValidation=Strict"), &host).await.expect(201);
    let status = json!({"status": {"nextState": {"phase": "x"}}});
    rig.patch(&(path(HOSTS, "a") + "/status"), MERGE, &status).await.expect(200);
    rig.patch(&(path(HOSTS, "a") + "/status"), MERGE, &json!({"status": {"nextState": {"phase": null}}}))
        .await
        .expect(422);
    let strict = path(HOSTS, "a") + "?fieldValidation=Strict";
    rig.patch(&strict, MERGE, &json!({"spec": {"nextWish": "long"}})).await.expect(422);
    rig.patch(&strict, MERGE, &json!({"spec": {"other": "x"}})).await.expect(422);
    let index = rig.get("/openapi/v3").await.expect(200);
    let document = rig.get(index["paths"]["apis/metal3.io/v1alpha1"]["serverRelativeURL"].as_str().unwrap()).await;
    assert!(document.text.contains("nextWish"));

    rig.restart().await;
    let kept = rig.get(&path(HOSTS, "a")).await.expect(200);
    assert_eq!((&kept["spec"]["nextWish"], &kept["status"]["nextState"]["phase"]), (&json!("b"), &json!("x")));
    let labelled = json!({"metadata": {"labels": {"x": "y"}}});
    let kept = rig.patch(&path(HOSTS, "a"), MERGE, &labelled).await.expect(200);
    assert_eq!(kept["status"]["nextState"]["phase"], "x");
    assert_eq!(rig.get(HOSTS_DEFINITION).await.expect(200)["spec"], wanted);

    // An older definition takes its fields back, as with upstream: what is in them goes with the next write.
    let mut old = rig.get(HOSTS_DEFINITION).await.expect(200);
    old["spec"] = before["spec"].clone();
    old["metadata"]["annotations"] = json!({});
    let old = rig.call("PUT", HOSTS_DEFINITION, &old).await.expect(200);
    assert_eq!(old["metadata"]["annotations"], json!({"slipway.dev/built-in": "true"}));
    let shrunk = rig.patch(&path(HOSTS, "a"), MERGE, &json!({"metadata": {"labels": {"x": "z"}}})).await.expect(200);
    assert!(shrunk["spec"].get("nextWish").is_none(), "{shrunk}");
    let status = json!({"status": {"poweredOn": true}});
    let shrunk = rig.patch(&(path(HOSTS, "a") + "/status"), MERGE, &status).await.expect(200);
    assert!(shrunk["status"].get("nextState").is_none(), "{shrunk}");
}

#[tokio::test]
async fn an_extension_gives_nothing_else() {
    let rig = Rig::new().await;
    let before = rig.get(HOSTS_DEFINITION).await.expect(200);
    rig.apply_definition("mallory", &upstream(&before)).await.expect(200);
    // Neither names nor a subresource, and what is checked stays so.
    let resources = rig.get("/apis/metal3.io/v1alpha1").await.expect(200).to_string();
    assert!(!resources.contains("baremetalhosts/scale") && !resources.contains("\"secrets\""), "{resources}");
    let wrong = json!({"spec": {"online": "maybe"}});
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    rig.patch(&path(HOSTS, "a"), MERGE, &wrong).await.expect(422);
    // Slipway's own kinds are extended by nobody.
    let intents = HOSTS_DEFINITION.replace("baremetalhosts.metal3.io", "bootintents.slipway.dev");
    let own = rig.get(&intents).await.expect(200);
    let patch = json!([{"op": "add", "value": {"type": "string"},
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/mine"}]);
    let after = rig.patch(&intents, "application/json-patch+json", &patch).await.expect(200);
    assert_eq!(after["spec"], own["spec"]);
    // Nor is the mark anybody's to give or take.
    let patch = json!({"metadata": {"annotations": {"slipway.dev/built-in": null, "slipway.dev/extended": "true"}}});
    let marked = rig.patch(&intents, MERGE, &patch).await.expect(200);
    assert_eq!(marked["metadata"]["annotations"], json!({"slipway.dev/built-in": "true"}));
    rig.call("DELETE", HOSTS_DEFINITION, &json!({})).await.expect(403);
}
