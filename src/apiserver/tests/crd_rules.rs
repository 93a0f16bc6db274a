//! Kinds that users define while the server runs.

use super::*;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.org/v1/namespaces/rack/widgets";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector"}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {"type": "object", "required": ["size"], "properties": {
                            "size": {"type": "integer", "minimum": 1},
                            "replicas": {"type": "integer", "default": 1},
                            "colour": {"type": "string", "enum": ["red", "blue"]},
                        }},
                        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    },
                }},
            }],
        },
    })
}

fn widget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}

fn condition<'v>(object: &'v Value, kind: &str) -> &'v Value {
    let all = object["status"]["conditions"].as_array().unwrap();
    all.iter().find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_kind_can_be_used_once_its_definition_is_written() {
    let rig = Rig::new().await;
    rig.get(WIDGETS).await.expect(404);
    rig.call("POST", CRDS, &definition()).await.expect(201);
    let stored = rig.get(&path(CRDS, "widgets.example.org")).await.expect(200);
    assert_eq!(condition(&stored, "Established")["status"], "True");
    assert_eq!(condition(&stored, "NamesAccepted")["reason"], "NoConflicts");
    assert_eq!(stored["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(stored["status"]["acceptedNames"]["listKind"], "WidgetList");

    let made = rig.call("POST", WIDGETS, &widget("a", 3)).await.expect(201);
    assert_eq!(made["spec"], json!({"size": 3, "replicas": 1}), "defaults are set");
    let answer = rig.call("POST", WIDGETS, &widget("b", 0)).await.expect(422);
    assert!(answer["message"].as_str().unwrap().contains("Widget.example.org \"b\" is invalid: spec.size"), "{answer}");
    let list = rig.get("/apis/example.org/v1/widgets").await.expect(200);
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("WidgetList"), &json!("a")));

    let resources = rig.get("/apis/example.org/v1").await.expect(200);
    let names: Vec<&str> =
        resources["resources"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    assert_eq!(resources["resources"][0]["shortNames"], json!(["wd"]));
    let index = rig.get("/openapi/v3").await.expect(200);
    let url = index["paths"]["apis/example.org/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = rig.get(url).await.expect(200);
    assert_eq!(
        document["components"]["schemas"]["org.example.v1.Widget"]["properties"]["spec"]["properties"]["size"]["minimum"],
        json!(1.0)
    );

    // A new schema is in force at once, for objects that are there as well.
    let patch = json!([
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/note",
         "value": {"type": "string", "default": "none"}},
    ]);
    rig.patch(&path(CRDS, "widgets.example.org"), "application/json-patch+json", &patch).await.expect(200);
    assert_eq!(rig.get(&path(WIDGETS, "a")).await.expect(200)["spec"]["note"], "none");
}

#[tokio::test]
async fn deleting_a_definition_deletes_its_objects_first() {
    let rig = Rig::new().await;
    rig.call("POST", CRDS, &definition()).await.expect(201);
    let mut held = widget("held", 1);
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    rig.call("POST", WIDGETS, &held).await.expect(201);
    rig.call("POST", WIDGETS, &widget("free", 1)).await.expect(201);
    let mut lines = watch_rules::watch(&rig, "/apis/example.org/v1/widgets?watch=1", "application/json").await;

    rig.call("DELETE", &path(CRDS, "widgets.example.org"), &json!({})).await.expect(200);
    let refused = rig.call("POST", WIDGETS, &widget("late", 1)).await.expect(405);
    assert_eq!(refused["message"], "create not allowed while custom resource definition is terminating");
    rig.api.sweep().await.unwrap();
    let ending = rig.get(&path(CRDS, "widgets.example.org")).await.expect(200);
    assert_eq!(condition(&ending, "Terminating")["status"], "True");
    rig.get(&path(WIDGETS, "free")).await.expect(404);
    rig.get(&path(WIDGETS, "held")).await.expect(200);

    rig.patch(&path(WIDGETS, "held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(CRDS, "widgets.example.org")).await.expect(404);
    rig.get(WIDGETS).await.expect(404);
    rig.get("/apis/example.org").await.expect(404);
    // The watch tells of the last object, and ends.
    let mut last = None;
    while let Some(event) = lines.next().await {
        last = Some(event);
    }
    let last = last.unwrap();
    assert_eq!((&last["type"], &last["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("held")));

    // The name is free again, and nothing of the old objects comes back.
    rig.call("POST", CRDS, &definition()).await.expect(201);
    assert_eq!(rig.get(WIDGETS).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn definitions_survive_a_restart_and_bad_ones_are_refused() {
    let rig = Rig::new().await;
    rig.call("POST", CRDS, &definition()).await.expect(201);
    rig.call("POST", WIDGETS, &widget("a", 1)).await.expect(201);
    let again =
        ApiServer::new(rig.api.store().clone(), &crate::modules::kinds(), CancellationToken::new()).await.unwrap();
    assert!(again.registry().find("example.org", "v1", "widgets").is_some());

    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    for (pointer, value, wanted) in [
        ("/metadata/name", json!("other.example.org"), "must be spec.names.plural+\".\"+spec.group"),
        ("/spec/group", json!("example"), "should be a domain with at least one dot"),
        ("/spec/scope", json!("World"), "supported values: \"Cluster\", \"Namespaced\""),
        ("/spec/versions/0/storage", json!(false), "must have exactly one version marked as storage version"),
        ("/spec/versions/0/schema", json!(null), "schemas are required"),
        ("/spec/versions/0/additionalPrinterColumns/0/jsonPath", json!(".a["), "jsonPath"),
        ("/spec/versions/0/subresources/scale/specReplicasPath", json!(".x.y"), "should be a json path under .spec"),
        (
            &format!("{schema}/properties/spec/properties/size"),
            json!({}),
            "must not be empty for specified object fields",
        ),
        (&format!("{schema}/properties/spec/properties/size"), json!({"type": "text"}), "Unsupported value: \"text\""),
        (
            &format!("{schema}/properties/spec/properties/size"),
            json!({"type": "string", "pattern": "("}),
            "must be a valid regular expression",
        ),
        (
            &format!("{schema}/properties/spec/properties/size"),
            json!({"type": "string", "default": 1}),
            "must be of type string",
        ),
        (&format!("{schema}/properties/spec/properties/size"), json!({"type": "array"}), "items: Required value"),
        (&format!("{schema}/properties/spec/anyOf"), json!([{"type": "object"}]), "must be empty to be structural"),
        (&format!("{schema}/properties/spec/$ref"), json!("#/x"), "$ref is not supported"),
    ] {
        let mut bad = definition();
        bad["metadata"]["name"] = "others.example.org".into();
        bad["spec"]["names"]["plural"] = "others".into();
        bad["spec"]["names"]["kind"] = "Other".into();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[field] = value;
        if pointer == "/metadata/name" {
            bad["metadata"]["name"] = "x.example.org".into();
        }
        let answer = rig.call("POST", CRDS, &bad).await.expect(422);
        assert!(answer["message"].as_str().unwrap().contains(wanted), "{pointer}: {answer}");
    }
    let strange = json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true, "schema":
        {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "string", "maxLenght": 1}}}}}]}});
    let mut unknown = definition();
    unknown["spec"]["versions"] = strange["spec"]["versions"].clone();
    let answer = rig.call("POST", &format!("{CRDS}?fieldValidation=Strict"), &unknown).await.expect(400);
    assert!(answer["message"].as_str().unwrap().contains("openAPIV3Schema.properties.a.maxLenght"), "{answer}");
    let immutable = json!({"spec": {"scope": "Cluster"}});
    let answer = rig.patch(&path(CRDS, "widgets.example.org"), MERGE, &immutable).await.expect(422);
    assert!(answer["message"].as_str().unwrap().contains("field is immutable"), "{answer}");
}

#[tokio::test]
async fn built_in_kinds_have_definitions_that_stay() {
    let rig = Rig::new().await;
    let hosts = path(CRDS, "baremetalhosts.metal3.io");
    let stored = rig.get(&hosts).await.expect(200);
    assert_eq!(condition(&stored, "Established")["status"], "True");
    rig.call("DELETE", &hosts, &json!({})).await.expect(403);
    let patch = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"names": {"shortNames": ["x"]}}});
    let answer = rig.patch(&hosts, MERGE, &patch).await;
    assert_eq!(answer.code, 200, "{}", answer.text);
    let warning = answer.headers["warning"].to_str().unwrap().to_owned();
    assert!(warning.contains("built into Slipway"), "{warning}");
    let after = answer.expect(200);
    assert_eq!((&after["metadata"]["labels"]["a"], &after["spec"]), (&json!("b"), &stored["spec"]));
    assert_eq!(after["metadata"]["generation"], 1);

    let mut impostor = definition();
    impostor["metadata"]["name"] = "hosts.metal3.io".into();
    impostor["spec"]["group"] = "metal3.io".into();
    impostor["spec"]["names"] = json!({"plural": "hosts", "kind": "BareMetalHost"});
    rig.call("POST", CRDS, &impostor).await.expect(201);
    let refused = rig.get(&path(CRDS, "hosts.metal3.io")).await.expect(200);
    assert_eq!(condition(&refused, "NamesAccepted")["status"], "False");
    assert_eq!(condition(&refused, "Established")["status"], "False");
    rig.get("/apis/metal3.io/v1/hosts").await.expect(404);
    rig.call("DELETE", &path(CRDS, "hosts.metal3.io"), &json!({})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(CRDS, "hosts.metal3.io")).await.expect(404);
}

#[tokio::test]
async fn two_versions_are_one_object() {
    let rig = Rig::new().await;
    let mut crd = definition();
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = "v1beta1".into();
    second["storage"] = false.into();
    second["deprecated"] = true.into();
    crd["spec"]["versions"].as_array_mut().unwrap().push(second);
    rig.call("POST", CRDS, &crd).await.expect(201);
    let old = WIDGETS.replace("/v1/", "/v1beta1/");
    let mut given = widget("a", 2);
    given["apiVersion"] = "example.org/v1beta1".into();
    let made = rig.call("POST", &old, &given).await;
    assert_eq!(
        made.headers["warning"],
        "299 - \"example.org/v1beta1 Widget is deprecated; use example.org/v1 Widget\""
    );
    assert_eq!(made.expect(201)["apiVersion"], "example.org/v1beta1");
    assert_eq!(rig.get(&path(WIDGETS, "a")).await.expect(200)["apiVersion"], "example.org/v1");
    assert_eq!(rig.get(&old).await.expect(200)["items"][0]["apiVersion"], "example.org/v1beta1");
    let group = rig.get("/apis/example.org").await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1");

    // The stored version changes: both are listed until the objects are migrated and the status says so.
    let place = path(CRDS, "widgets.example.org");
    let swap = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    let after = rig.patch(&place, "application/json-patch+json", &swap).await.expect(200);
    assert_eq!(after["status"]["storedVersions"], json!(["v1", "v1beta1"]));
    let drop_old = json!([{"op": "remove", "path": "/spec/versions/0"}]);
    let answer = rig.patch(&place, "application/json-patch+json", &drop_old).await.expect(422);
    assert!(answer["message"].as_str().unwrap().contains("v1 was previously a storage version"), "{answer}");
    let unchanged = rig.get(&path(WIDGETS, "a")).await.expect(200);
    let migrated = rig.call("PUT", &path(WIDGETS, "a"), &unchanged).await.expect(200);
    assert_ne!(migrated["metadata"]["resourceVersion"], unchanged["metadata"]["resourceVersion"]);
    let stored = rig.api.store().get("example.org/widgets", "rack", "a").unwrap();
    assert_eq!(stored.value()["apiVersion"], "example.org/v1beta1");
    let done = json!({"status": {"storedVersions": ["v1beta1"]}});
    rig.patch(&format!("{place}/status"), MERGE, &done).await.expect(200);
    rig.patch(&place, "application/json-patch+json", &drop_old).await.expect(200);
    rig.get(WIDGETS).await.expect(404);
    assert_eq!(rig.get(&path(&old, "a")).await.expect(200)["spec"]["size"], 2);
}

#[tokio::test]
async fn kinds_with_a_number_can_be_scaled() {
    let rig = Rig::new().await;
    rig.call("POST", CRDS, &definition()).await.expect(201);
    rig.call("POST", WIDGETS, &widget("a", 1)).await.expect(201);
    let place = format!("{WIDGETS}/a/scale");
    let mut scale = rig.get(&place).await.expect(200);
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(1)));
    scale["spec"]["replicas"] = 4.into();
    let scaled = rig.call("PUT", &place, &scale).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 4);
    rig.call("PUT", &place, &scale).await.expect(409);
    rig.patch(&place, MERGE, &json!({"spec": {"replicas": 5}})).await.expect(200);
    let widget = rig.get(&path(WIDGETS, "a")).await.expect(200);
    assert_eq!((&widget["spec"]["replicas"], &widget["metadata"]["generation"]), (&json!(5), &json!(3)));
    rig.patch(&place, MERGE, &json!({"spec": {"replicas": -1}})).await.expect(422);
    rig.call("DELETE", &place, &json!({})).await.expect(405);
}

#[tokio::test]
async fn fields_that_a_definition_names_can_be_selected_by() {
    let rig = Rig::new().await;
    let mut crd = definition();
    crd["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.size"}, {"jsonPath": ".spec.colour"}]);
    rig.call("POST", CRDS, &crd).await.expect(201);
    for (name, size) in [("a", 1), ("b", 2)] {
        rig.call("POST", WIDGETS, &widget(name, size)).await.expect(201);
    }
    for (selector, count) in [("spec.size=2", 1), ("spec.size!=2", 1), ("spec.colour=", 2), ("spec.colour=red", 0)] {
        let list = rig.get(&format!("{WIDGETS}?fieldSelector={selector}")).await.expect(200);
        assert_eq!(list["items"].as_array().unwrap().len(), count, "{selector}");
    }
    rig.get(&format!("{WIDGETS}?fieldSelector=spec.replicas=1")).await.expect(400);
    crd["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".metadata.name"}]);
    rig.call("POST", &format!("{CRDS}?dryRun=All"), &crd).await.expect(422);
}

#[tokio::test]
async fn who_scales_owns_the_number() {
    let rig = Rig::new().await;
    rig.call("POST", CRDS, &definition()).await.expect(201);
    rig.call("POST", WIDGETS, &widget("a", 2)).await.expect(201);
    let place = format!("{WIDGETS}/a/scale");
    rig.patch(&format!("{place}?fieldManager=hand"), MERGE, &json!({"spec": {"replicas": 3}})).await.expect(200);
    let managers = async || {
        let object = rig.get(&path(WIDGETS, "a")).await.expect(200);
        let entries = object["metadata"]["managedFields"].as_array().unwrap().clone();
        (object["spec"]["replicas"].clone(), entries.into_iter().filter(|one| one["subresource"] == "scale").collect())
    };
    let (replicas, scalers): (Value, Vec<Value>) = managers().await;
    assert_eq!((replicas, scalers.len()), (json!(3), 1));
    assert_eq!(scalers[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert!(scalers[0]["manager"] == "hand" && scalers[0]["operation"] == "Update" && scalers[0]["time"].is_null());

    // Applying a Scale is applying its one field.
    let apply = "application/apply-patch+yaml";
    let scale = |replicas: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": replicas}});
    let refused = rig.patch(&format!("{place}?fieldManager=robot"), apply, &scale(5)).await.expect(409);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"hand\" with subresource \"scale\" using example.org/v1: .spec.replicas"
    );
    let applied = rig.patch(&format!("{place}?fieldManager=robot&force=true"), apply, &scale(5)).await.expect(200);
    assert_eq!((&applied["kind"], &applied["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    let (replicas, scalers) = managers().await;
    assert_eq!((replicas, scalers.len()), (json!(5), 1));
    assert!(scalers[0]["manager"] == "robot" && scalers[0]["operation"] == "Apply");
    rig.patch(&format!("{place}?fieldManager=robot"), apply, &scale(6)).await.expect(200);
    rig.patch(&format!("{place}?fieldManager=robot"), apply, &scale(-6)).await.expect(422);
    rig.patch(&place, apply, &scale(6)).await.expect(422);
    let mut wrong = scale(6);
    wrong["kind"] = "Widget".into();
    rig.patch(&format!("{place}?fieldManager=robot"), apply, &wrong).await.expect(400);
    rig.patch(&format!("{WIDGETS}/none/scale?fieldManager=robot"), apply, &scale(1)).await.expect(404);
}

#[tokio::test]
async fn a_kind_that_comes_again_has_no_history() {
    let rig = Rig::new().await;
    rig.call("POST", CRDS, &definition()).await.expect(201);
    for name in ["a", "b", "c"] {
        rig.call("POST", WIDGETS, &widget(name, 1)).await.expect(201);
    }
    let part = rig.get(&format!("{WIDGETS}?limit=1")).await.expect(200);
    let (token, revision) = (part["metadata"]["continue"].as_str().unwrap(), &part["metadata"]["resourceVersion"]);
    let revision = revision.as_str().unwrap();
    rig.call("DELETE", &path(CRDS, "widgets.example.org"), &json!({})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(CRDS, "widgets.example.org")).await.expect(404);
    let mut other = definition();
    other["spec"]["scope"] = "Cluster".into();
    rig.call("POST", CRDS, &other).await.expect(201);

    let all = "/apis/example.org/v1/widgets";
    for query in [format!("continue={token}&limit=1"), format!("resourceVersion={revision}&resourceVersionMatch=Exact")]
    {
        let expired = rig.get(&format!("{all}?{query}")).await.expect(410);
        assert_eq!(expired["reason"], "Expired", "{query}");
    }
    let watched = rig.get(&format!("{all}?watch=true&resourceVersion={revision}&timeoutSeconds=1")).await;
    let event: Value = serde_json::from_str(watched.text.lines().next().unwrap_or(&watched.text)).unwrap();
    let status = if event["type"] == "ERROR" { &event["object"] } else { &event };
    assert_eq!(status["code"], 410, "{event}");
    // From now on there is one.
    let now = rig.get(all).await.expect(200);
    assert_eq!(now["items"], json!([]));
    rig.call("POST", all, &widget("d", 1)).await.expect(201);
    let since = now["metadata"]["resourceVersion"].as_str().unwrap();
    let watched = rig.get(&format!("{all}?watch=true&resourceVersion={since}&timeoutSeconds=1")).await;
    assert!(watched.text.contains("\"ADDED\""), "{}", watched.text);
}

#[tokio::test]
async fn a_rule_that_cannot_work_is_refused_with_its_definition() {
    let rig = Rig::new().await;
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    for (rule, reason) in [
        ("self.nope > 1", "undefined field 'nope'"),
        ("spec.size > 1", "undeclared reference to 'spec' (in container '')"),
        ("self.size", "cel expression must evaluate to a bool"),
    ] {
        let mut crd = definition();
        crd.pointer_mut(spec).unwrap()["x-kubernetes-validations"] = json!([{ "rule": rule }]);
        let refused = rig.call("POST", CRDS, &crd).await.expect(422);
        let cause = &refused["details"]["causes"][0];
        let field = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
        assert_eq!(cause["field"], field, "{rule}");
        assert_eq!(cause["message"], format!("Invalid value: {rule:?}: compilation failed: {reason}"));
    }
    let mut crd = definition();
    crd.pointer_mut(spec).unwrap()["x-kubernetes-validations"] = json!([{"rule": "self.size < 9 || has(self.colour)"}]);
    rig.call("POST", CRDS, &crd).await.expect(201);
    rig.call("POST", WIDGETS, &widget("a", 10)).await.expect(422);
}
