//! Kinds whose objects a webhook brings from one version into another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::hook_server::HookServer;
use super::*;
use crate::config::WebhooksConfig;
use crate::live::Live;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn widgets(version: &str) -> String {
    format!("/apis/example.org/{version}/namespaces/rack/widgets")
}

/// Of kind Widget: `spec.size` in v1, which is stored, is `spec.dimensions.size` in v2.
fn definition(server: &HookServer, path: &str) -> Value {
    let version = |name: &str, storage: bool, spec: Value| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": {"type": "object",
                "properties": {"done": {"type": "boolean"}}}}}}})
    };
    let size = json!({"type": "integer"});
    let config = json!({"url": format!("https://127.0.0.1:{}/{path}", server.port), "caBundle": server.bundle});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}},
            "versions": [
                version("v1", true, json!({"type": "object", "properties": {"size": size}})),
                version("v2", false, json!({"type": "object", "properties": {"dimensions": {"type": "object",
                    "properties": {"size": size, "unit": {"type": "string", "default": "mm"}}}}})),
            ],
        },
    })
}

fn widget(version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("example.org/{version}"), "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// What the webhook does with an object.
fn change(object: &Value, desired: &str) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = desired.into();
    let spec = object["spec"].take();
    object["spec"] = match desired {
        "example.org/v2" => json!({"dimensions": {"size": spec["size"]}}),
        _ => json!({"size": spec["dimensions"]["size"]}),
    };
    object["metadata"]["annotations"] = json!({"example.org/seen": desired});
    // Whatever else it says of the metadata is not taken.
    object["metadata"]["finalizers"] = json!(["example.org/hold"]);
    object
}

/// A webhook that converts until it is told to fail, and a server that may call it.
async fn rig() -> (Rig, HookServer, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&fails);
    let server = HookServer::converting(move |request| {
        if told.load(Ordering::SeqCst) {
            return json!({"result": {"status": "Failed", "message": "out of order"}, "convertedObjects": []});
        }
        let desired = request["desiredAPIVersion"].as_str().unwrap();
        let objects: Vec<Value> =
            request["objects"].as_array().unwrap().iter().map(|object| change(object, desired)).collect();
        json!({"result": {"status": "Success"}, "convertedObjects": objects})
    })
    .await;
    let rig = Rig::new().await;
    rig.api.set_webhooks(Live::from(WebhooksConfig {
        allow: vec![format!("127.0.0.1:{}", server.port).parse().unwrap()],
        ..WebhooksConfig::default()
    }));
    let made = rig.call("POST", DEFINITIONS, &definition(&server, "convert")).await;
    assert!(made.headers.get("warning").is_none(), "{:?}", made.headers);
    made.expect(201);
    (rig, server, fails)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_written_and_read_in_either_version() {
    let (rig, server, fails) = rig().await;
    rig.call("POST", &widgets("v1"), &widget("v1", "a", json!({"size": 1}))).await.expect(201);
    assert!(server.paths().is_empty(), "what is stored as it came needs nobody");
    let shown = rig.get(&format!("{}/a", widgets("v2"))).await.expect(200);
    assert_eq!(shown["spec"], json!({"dimensions": {"size": 1, "unit": "mm"}}), "with the defaults of that version");
    assert_eq!(shown["metadata"]["annotations"]["example.org/seen"], "example.org/v2");
    assert_eq!(shown["metadata"].get("finalizers"), None);
    rig.get(&format!("{}/a", widgets("v2"))).await.expect(200);
    assert_eq!(server.paths().len(), 1, "it is known by now");

    let made =
        rig.call("POST", &widgets("v2"), &widget("v2", "b", json!({"dimensions": {"size": 2}}))).await.expect(201);
    assert_eq!(made["spec"]["dimensions"]["size"], 2);
    let stored = rig.get(&format!("{}/b", widgets("v1"))).await.expect(200);
    assert_eq!(stored["spec"], json!({"size": 2}));
    let patched =
        rig.patch(&format!("{}/b", widgets("v2")), MERGE, &json!({"spec": {"dimensions": {"size": 3}}})).await;
    assert_eq!(patched.expect(200)["metadata"]["generation"], 2);
    let status = json!({"status": {"done": true}});
    rig.patch(&format!("{}/b/status", widgets("v2")), MERGE, &status).await.expect(200);
    let stored = rig.get(&format!("{}/b", widgets("v1"))).await.expect(200);
    assert_eq!((&stored["spec"]["size"], &stored["status"]["done"]), (&json!(3), &json!(true)));

    let list = rig.get(&widgets("v2")).await.expect(200);
    let sizes: Vec<&Value> =
        list["items"].as_array().unwrap().iter().map(|item| &item["spec"]["dimensions"]["size"]).collect();
    assert_eq!(sizes, [&json!(1), &json!(3)]);

    fails.store(true, Ordering::SeqCst);
    let refused = rig.call("POST", &widgets("v2"), &widget("v2", "c", json!({}))).await;
    assert_eq!(refused.code, 500);
    let wanted = "conversion webhook for example.org/v2, Kind=Widget failed: out of order";
    assert_eq!(refused.json()["message"], wanted);
    rig.call("POST", &widgets("v1"), &widget("v1", "d", json!({"size": 4}))).await.expect(201);
    let refused = rig.get(&widgets("v2")).await;
    assert_eq!((refused.code, refused.json()["message"].as_str().unwrap().contains("out of order")), (500, true));
    rig.get(&widgets("v1")).await.expect(200);
    // Who cannot be asked is in nobody's way out.
    rig.call("DELETE", &format!("{}/d", widgets("v2")), &json!({})).await.expect(200);
    rig.call("DELETE", &widgets("v2"), &json!({})).await.expect(200);
    assert_eq!(rig.get(&widgets("v1")).await.expect(200)["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_its_version_and_ends_when_it_cannot() {
    let (rig, _server, fails) = rig().await;
    rig.call("POST", &widgets("v1"), &widget("v1", "a", json!({"size": 1}))).await.expect(201);
    let mut request = http::Request::get(format!("{}?watch=true", widgets("v2"))).body(Body::empty()).unwrap();
    request.extensions_mut().insert(admin().unwrap());
    let mut body = rig.api.router().oneshot(request).await.unwrap().into_body();
    let mut text = String::new();
    let mut next = async || loop {
        if let Some((line, rest)) = text.split_once('\n') {
            let event: Value = serde_json::from_str(line).unwrap();
            text = rest.to_owned();
            return event;
        }
        let frame = tokio::time::timeout(DEADLINE, body.frame()).await.unwrap().expect("a frame").unwrap();
        text.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap()));
    };
    let event = next().await;
    assert_eq!((&event["type"], &event["object"]["spec"]["dimensions"]["size"]), (&json!("ADDED"), &json!(1)));
    rig.patch(&format!("{}/a", widgets("v1")), MERGE, &json!({"spec": {"size": 7}})).await.expect(200);
    let event = next().await;
    assert_eq!((&event["type"], &event["object"]["spec"]["dimensions"]["size"]), (&json!("MODIFIED"), &json!(7)));
    assert_eq!(event["object"]["apiVersion"], "example.org/v2");
    fails.store(true, Ordering::SeqCst);
    rig.call("POST", &widgets("v1"), &widget("v1", "b", json!({"size": 2}))).await.expect(201);
    let event = next().await;
    assert_eq!(event["type"], "ERROR");
    assert!(event["object"]["message"].as_str().unwrap().contains("out of order"), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_in_one_version_stays_its_managers_when_another_is_written() {
    let (rig, _server, _) = rig().await;
    let apply = |version: &str, manager: &str| format!("{}/a?fieldManager={manager}", widgets(version));
    let config = widget("v1", "a", json!({"size": 1}));
    rig.patch(&apply("v1", "one"), "application/apply-patch+yaml", &config).await.expect(201);
    rig.patch(&format!("{}/a", widgets("v2")), MERGE, &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    let shown = rig.get(&format!("{}/a", widgets("v1"))).await.expect(200);
    let managers = shown["metadata"]["managedFields"].as_array().unwrap();
    let one = managers.iter().find(|entry| entry["manager"] == "one").expect("the manager");
    assert_eq!(one["fieldsV1"]["f:spec"], json!({"f:size": {}}), "{shown}");
    let conflict = widget("v1", "a", json!({"size": 2}));
    rig.patch(&apply("v1", "two"), "application/apply-patch+yaml", &conflict).await.expect(409);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_says_who_converts_and_is_warned_when_nobody_may_be_asked() {
    let (rig, server, _) = rig().await;
    let mut odd = definition(&server, "convert");
    odd["metadata"]["name"] = "gadgets.example.org".into();
    odd["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
    for (webhook, wanted) in [
        (json!(null), "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook"),
        (
            json!({"clientConfig": {}, "conversionReviewVersions": ["v1"]}),
            "spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required",
        ),
        (
            json!({"clientConfig": {"url": "https://a"}, "conversionReviewVersions": ["v1beta1"]}),
            "must include at least one of v1",
        ),
    ] {
        odd["spec"]["conversion"]["webhook"] = webhook;
        let refused = rig.call("POST", DEFINITIONS, &odd).await;
        assert_eq!(refused.code, 422, "{}", refused.text);
        assert!(refused.text.contains(wanted), "{}", refused.text);
    }
    let service = json!({"service": {"namespace": "a", "name": "b"}});
    odd["spec"]["conversion"]["webhook"] = json!({"clientConfig": service, "conversionReviewVersions": ["v1"]});
    let made = rig.call("POST", DEFINITIONS, &odd).await;
    let warning = made.headers["warning"].to_str().unwrap().to_owned();
    assert!(warning.contains("the conversion webhook cannot be called") && warning.contains("a/b"), "{warning}");
    made.expect(201);
    let gadgets = "/apis/example.org/v2/namespaces/rack/gadgets";
    let gadget = json!({"apiVersion": "example.org/v2", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {}});
    let refused = rig.call("POST", gadgets, &gadget).await;
    assert!(refused.code == 500 && refused.text.contains("[api.webhooks.services]"), "{}", refused.text);
}
