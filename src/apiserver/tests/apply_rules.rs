//! Server-side apply and managed fields.

use super::*;

const APPLY: &str = "application/apply-patch+yaml";
const MAPS: &str = "/api/v1/namespaces/rack/configmaps";

impl Rig {
    async fn apply(&self, path: &str, manager: &str, config: &Value) -> Answer {
        let sign = if path.contains('?') { '&' } else { '?' };
        self.patch(&format!("{path}{sign}fieldManager={manager}"), APPLY, config).await
    }
}

fn map(name: &str, data: &Value) -> Value {
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    if data != &json!({}) {
        map["data"] = data.clone();
    }
    map
}

/// Managers as `name operation subresource` with their fields.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |entry: &Value| {
        let who = format!("{} {} {}", text(entry, "manager"), text(entry, "operation"), text(entry, "subresource"));
        (who.trim().to_owned(), entry["fieldsV1"].clone())
    };
    entries.iter().map(of).collect()
}

#[tokio::test]
async fn every_writer_is_known_by_its_fields() {
    let rig = Rig::new().await;
    let mut sent = host("a");
    sent["metadata"]["labels"] = json!({"x": "y"});
    let request = http::Request::post(HOSTS).header("user-agent", "curl/8.1 (x)");
    let made = rig.send(admin(), request, sent.to_string()).await.expect(201);
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!(
        (&entry["apiVersion"], &entry["fieldsType"], &entry["time"]),
        (&json!("metal3.io/v1alpha1"), &json!("FieldsV1"), &made["metadata"]["creationTimestamp"])
    );
    let of_curl = &owners(&made)[0];
    assert_eq!(of_curl.0, "curl Update");
    assert_eq!(of_curl.1["f:metadata"], json!({"f:labels": {".": {}, "f:x": {}}}));
    assert_eq!((&of_curl.1["f:spec"]["."], &of_curl.1["f:spec"]["f:online"]), (&json!({}), &json!({})));
    assert_eq!(rig.get(&path(HOSTS, "a")).await.expect(200), made);

    let patch = json!({"spec": {"online": false}, "metadata": {"labels": {"x": null}}});
    let patched = rig.patch(&(path(HOSTS, "a") + "?fieldManager=other"), MERGE, &patch).await.expect(200);
    let both = owners(&patched);
    assert_eq!(both[1], ("other Update".into(), json!({"f:spec": {"f:online": {}}})));
    assert!(both[0].1["f:spec"].get("f:online").is_none() && both[0].1.get("f:metadata").is_none(), "{both:?}");

    let status = json!({"status": {"poweredOn": true}});
    let status = rig.patch(&(path(HOSTS, "a") + "/status?fieldManager=bmc"), MERGE, &status).await.expect(200);
    let of_bmc = owners(&status).into_iter().find(|(who, _)| who == "bmc Update status").unwrap();
    assert_eq!(of_bmc.1["f:status"]["f:poweredOn"], json!({}));
    // A change by the same one again, and none at all.
    let again = rig.patch(&(path(HOSTS, "a") + "/status?fieldManager=bmc"), MERGE, &json!({})).await.expect(200);
    assert_eq!(again, status);

    // Managers survive a write that does not speak of them, and go when they are set to nothing.
    let mut bare = status.clone();
    bare["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!(rig.call("PUT", &path(HOSTS, "a"), &bare).await.expect(200), status);
    for nothing in [json!([]), json!([{}])] {
        let patch = json!({"metadata": {"managedFields": nothing}});
        let reset = rig.patch(&path(HOSTS, "a"), MERGE, &patch).await.expect(200);
        assert!(reset["metadata"].get("managedFields").is_none());
    }
    let unknown = rig.patch(&path(HOSTS, "a"), MERGE, &json!({"spec": {"online": true}})).await.expect(200);
    assert!(owners(&unknown).is_empty(), "who wrote before is not known");
    let config = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "a"},
        "spec": {"online": false}});
    let refused = rig.apply(&path(HOSTS, "a"), "me", &config).await.expect(409);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using metal3.io/v1alpha1: .spec.online"
    );
}

#[tokio::test]
async fn what_is_applied_is_owned_and_what_is_dropped_goes() {
    let rig = Rig::new().await;
    let one = path(MAPS, "m");
    let made = rig.apply(&one, "a", &map("m", &json!({"x": "1", "y": "1"}))).await.expect(201);
    assert_eq!(made["data"], json!({"x": "1", "y": "1"}));
    assert_eq!(owners(&made), [("a Apply".into(), json!({"f:data": {"f:x": {}, "f:y": {}}}))]);
    // The same again is no change.
    let same = rig.apply(&one, "a", &map("m", &json!({"x": "1", "y": "1"}))).await.expect(200);
    assert_eq!(same, made);
    // Another with the same value shares it, and then it stays when the first drops it.
    rig.apply(&one, "b", &map("m", &json!({"x": "1", "z": "2"}))).await.expect(200);
    let dropped = rig.apply(&one, "a", &map("m", &json!({}))).await.expect(200);
    assert_eq!(dropped["data"], json!({"x": "1", "z": "2"}));
    assert_eq!(owners(&dropped)[0].0, "b Apply");
    let last = rig.apply(&one, "b", &map("m", &json!({"z": "2"}))).await.expect(200);
    assert_eq!(last["data"], json!({"z": "2"}));
    assert_eq!(rig.get(&one).await.expect(200), last);
}

#[tokio::test]
async fn conflicts_are_told_and_may_be_forced() {
    let rig = Rig::new().await;
    let one = path(MAPS, "m");
    let made = map("m", &json!({"a": "1", "b": "1", "c": "1"}));
    rig.call("POST", &format!("{MAPS}?fieldManager=kubectl-client-side-apply"), &made).await.expect(201);
    rig.apply(&one, "other", &map("m", &json!({"c": "1"}))).await.expect(200);
    let refused = rig.apply(&one, "me", &map("m", &json!({"a": "2"}))).await.expect(409);
    assert_eq!(
        (&refused["reason"], &refused["message"]),
        (
            &json!("Conflict"),
            &json!("Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .data.a")
        )
    );
    assert_eq!(
        refused["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "field": ".data.a",
            "message": "conflict with \"kubectl-client-side-apply\" using v1"}])
    );
    let refused = rig.apply(&one, "me", &map("m", &json!({"a": "2", "b": "2", "c": "2"}))).await.expect(409);
    assert_eq!(
        refused["message"],
        "Apply failed with 4 conflicts: conflicts with \"kubectl-client-side-apply\" using v1:\n- .data.a\n- .data.b\n\
         - .data.c\nconflicts with \"other\":\n- .data.c"
    );
    let forced = rig.apply(&(one.clone() + "?force=true"), "me", &map("m", &json!({"a": "2", "c": "2"}))).await;
    let forced = forced.expect(200);
    assert_eq!(forced["data"], json!({"a": "2", "b": "1", "c": "2"}));
    let expected = [
        ("me Apply".to_owned(), json!({"f:data": {"f:a": {}, "f:c": {}}})),
        ("kubectl-client-side-apply Update".to_owned(), json!({"f:data": {".": {}, "f:b": {}}})),
    ];
    assert_eq!(owners(&forced), expected);
}

#[tokio::test]
async fn applies_are_checked() {
    let rig = Rig::new().await;
    let one = path(HOSTS, "a");
    let good = host("a");
    let with = |pointer: &str, value: Value| {
        let mut config = host("a");
        config["spec"]["image"] = json!({"url": "http://x", "checksum": "x"});
        config["metadata"]["uid"] = "".into();
        config["metadata"]["managedFields"] = Value::Null;
        *config.pointer_mut(pointer).unwrap() = value;
        config
    };
    for (query, config, code, message) in [
        (
            "",
            good.clone(),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            "?fieldManager=a%07",
            good.clone(),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Invalid value: \"a\\a\": invalid character U+0007 (at position 1)",
        ),
        (
            "?fieldManager=a&fieldValidation=x",
            good.clone(),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"x\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
        ),
        ("?fieldManager=a", json!({}), 400, "invalid object type: /, Kind="),
        ("?fieldManager=a", with("/apiVersion", "v1".into()), 400, "invalid object type: /v1, Kind=BareMetalHost"),
        ("?fieldManager=a", with("/metadata/managedFields", json!([])), 400, "metadata.managedFields must be nil"),
        (
            "?fieldManager=a",
            with("/metadata/name", "b".into()),
            400,
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            "?fieldManager=a",
            with("/metadata/uid", "u".into()),
            409,
            "Operation cannot be fulfilled on baremetalhosts.metal3.io \"a\": uid mismatch: the provided object specified uid u, and no existing object was found",
        ),
        (
            "?fieldManager=a",
            with("/spec", json!({"online": "x", "what": 1})),
            500,
            "failed to create typed patch object (/a; metal3.io/v1alpha1, Kind=BareMetalHost): errors:\n  .spec.online: expected boolean, got &{x}\n  .spec.what: field not declared in schema",
        ),
        (
            "?fieldManager=a",
            with("/spec/image/url", json!(1)),
            500,
            "failed to create typed patch object (/a; metal3.io/v1alpha1, Kind=BareMetalHost): .spec.image.url: expected string, got &value.valueUnstructured{Value:1}",
        ),
    ] {
        let status = rig.patch(&(one.clone() + query), APPLY, &config).await.expect(code);
        assert_eq!(status["message"], message, "{query}");
    }
    let forced = rig.patch(&(one.clone() + "?force=true"), MERGE, &json!({})).await.expect(422);
    assert!(
        forced["message"].as_str().unwrap().ends_with("force: Forbidden: may not be specified for non-apply patch")
    );
    rig.get(&one).await.expect(404);
    rig.apply(&(one.clone() + "?dryRun=All"), "a", &good).await.expect(201);
    rig.get(&one).await.expect(404);
    rig.apply(&(one.clone() + "/status"), "a", &good).await.expect(404);
    let elsewhere = HOSTS.replace("rack", "none");
    rig.apply(&path(&elsewhere, "a"), "a", &good).await.expect(404);

    // YAML, and what a reader of YAML does about keys that are there twice.
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: dup}\ndata:\n  a: '1'\n  a: '2'\n";
    let send = |query: &str| {
        let request = http::Request::patch(format!("{MAPS}/dup?fieldManager=a{query}")).header("content-type", APPLY);
        rig.send(admin(), request, yaml)
    };
    let strict = send("&fieldValidation=Strict").await.expect(400);
    assert_eq!(
        strict["message"],
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 6: key \"a\" \
         already set in map"
    );
    assert_eq!(send("&fieldValidation=Ignore").await.headers.get_all("warning").iter().count(), 0);
    let warned = send("").await;
    assert_eq!(warned.headers.get_all("warning").iter().count(), 1);
    assert_eq!(warned.expect(200)["data"], json!({"a": "2"}));
}

#[tokio::test]
async fn status_is_applied_apart() {
    let rig = Rig::new().await;
    let one = path(HOSTS, "a");
    let mut config = host("a");
    config["status"] = json!({"poweredOn": true});
    let made = rig.apply(&one, "ctl", &config).await.expect(201);
    assert!(made.get("status").is_none());
    assert!(owners(&made)[0].1.get("f:status").is_none(), "{made}");
    config.as_object_mut().unwrap().remove("spec");
    let made = rig.apply(&(one.clone() + "/status"), "ctl", &config).await.expect(200);
    assert_eq!(made["status"]["poweredOn"], true);
    let names: Vec<String> = owners(&made).into_iter().map(|(who, _)| who).collect();
    assert_eq!(names, ["ctl Apply", "ctl Apply status"]);
    // Dropping a field in one does not touch the other.
    config["status"] = json!({"errorMessage": "x"});
    let left = rig.apply(&(one + "/status"), "ctl", &config).await.expect(200);
    assert_eq!((&left["spec"]["online"], &left["status"]["errorMessage"]), (&json!(true), &json!("x")));
}

#[tokio::test]
async fn lists_are_merged_as_their_kind_says() {
    let rig = Rig::new().await;
    let one = path(MAPS, "m");
    let mut config = map("m", &json!({}));
    config["metadata"]["finalizers"] = json!(["a/x"]);
    rig.apply(&one, "a", &config).await.expect(201);
    config["metadata"]["finalizers"] = json!(["b/x"]);
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "u"});
    config["metadata"]["ownerReferences"] = json!([owner]);
    let both = rig.apply(&one, "b", &config).await.expect(200);
    assert_eq!(both["metadata"]["finalizers"], json!(["a/x", "b/x"]));
    assert_eq!(
        owners(&both)[1].1,
        json!({"f:metadata": {"f:finalizers": {"v:\"b/x\"": {}}, "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}}}})
    );
    let without = rig.apply(&one, "a", &map("m", &json!({}))).await.expect(200);
    assert_eq!(without["metadata"]["finalizers"], json!(["b/x"]));
    let gone = rig.apply(&one, "b", &map("m", &json!({}))).await.expect(200);
    assert!(gone["metadata"].get("finalizers").is_none() && gone["metadata"].get("ownerReferences").is_none());
}

#[tokio::test]
async fn kubectl_may_set_again_what_it_applied_in_the_old_way() {
    let rig = Rig::new().await;
    let one = path(MAPS, "m");
    let last = |data: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
    let mut old_way = map("m", &json!({"a": "1", "b": "1"}));
    old_way["metadata"]["annotations"] = json!({
        "kubectl.kubernetes.io/last-applied-configuration": last(&json!({"a": "1", "b": "1"})).to_string(),
    });
    rig.call("POST", &format!("{MAPS}?fieldManager=kubectl-client-side-apply"), &old_way).await.expect(201);
    // Somebody else changes b: that one stays a conflict.
    rig.patch(&(one.clone() + "?fieldManager=other"), MERGE, &json!({"data": {"b": "2"}})).await.expect(200);
    let refused = rig.apply(&one, "kubectl", &map("m", &json!({"a": "3", "b": "3"}))).await.expect(409);
    assert_eq!(refused["message"], "Apply failed with 1 conflict: conflict with \"other\" using v1: .data.b");
    let taken = rig.apply(&one, "kubectl", &map("m", &json!({"a": "3"}))).await.expect(200);
    assert_eq!(taken["data"]["a"], "3");
    let kept = &taken["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert_eq!(serde_json::from_str::<Value>(kept.as_str().unwrap()).unwrap(), last(&json!({"a": "3"})));
    rig.apply(&one, "me", &map("m", &json!({"a": "4"}))).await.expect(409);
}

#[tokio::test]
async fn versions_of_a_kind_share_their_managers() {
    let rig = Rig::new().await;
    let (old, new) = ("/api/v1/namespaces/rack/events", "/apis/events.k8s.io/v1/namespaces/rack/events");
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "R", "message": "m",
        "type": "Normal", "involvedObject": {"kind": "Secret", "name": "s", "namespace": "rack"}});
    rig.apply(&path(old, "e"), "a", &event).await.expect(201);
    let config = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "n"});
    let refused = rig.apply(&path(new, "e"), "b", &config).await.expect(409);
    assert_eq!(refused["message"], "Apply failed with 1 conflict: conflict with \"a\": .message");
    let forced = rig.apply(&(path(new, "e") + "?force=true"), "b", &config).await.expect(200);
    assert_eq!(forced["note"], "n");
    let first = rig.get(&path(old, "e")).await.expect(200);
    assert_eq!(first["message"], "n");
    assert!(owners(&first)[0].1.get("f:message").is_none(), "{first}");
}

#[tokio::test]
async fn many_writers_become_few() {
    let rig = Rig::new().await;
    let one = path(MAPS, "m");
    rig.call("POST", &format!("{MAPS}?fieldManager=first"), &map("m", &json!({"a": "1"}))).await.expect(201);
    let mut now = json!({});
    for n in 0..14 {
        let patch = json!({"data": {format!("k{n}"): "x"}});
        now = rig.patch(&format!("{one}?fieldManager=m{n:02}"), MERGE, &patch).await.expect(200);
    }
    let names: Vec<String> = owners(&now).into_iter().map(|(who, _)| who).collect();
    assert_eq!(names.len(), 10);
    assert!(names.contains(&"ancient-changes Update".to_owned()), "{names:?}");
}

#[tokio::test]
async fn managed_fields_may_be_patched() {
    let rig = Rig::new().await;
    let one = path(MAPS, "m");
    let made = rig.call("POST", &format!("{MAPS}?fieldManager=old"), &map("m", &json!({"a": "1"}))).await.expect(201);
    let mut entry = made["metadata"]["managedFields"][0].clone();
    entry["manager"] = "kubectl".into();
    entry["operation"] = "Apply".into();
    let patch = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": [entry]},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
    ]);
    let moved =
        rig.patch(&(one.clone() + "?fieldManager=csa"), "application/json-patch+json", &patch).await.expect(200);
    assert_eq!(owners(&moved)[0].0, "kubectl Apply");
    rig.patch(&one, "application/json-patch+json", &patch).await.expect(409);
    let partial =
        http::Request::get(&one).header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let partial = rig.send(admin(), partial, Body::empty()).await.expect(200);
    assert_eq!(partial["metadata"], moved["metadata"]);
}

#[tokio::test]
async fn a_null_that_is_applied_to_a_field_that_takes_none_is_refused() {
    let rig = Rig::new().await;
    let mut config = host("a");
    config["metadata"]["creationTimestamp"] = Value::Null;
    rig.apply(&path(HOSTS, "a"), "m", &config).await.expect(201);
    for (field, named) in [("/spec", "spec"), ("/spec/bmc", "spec.bmc")] {
        let (parent, name) = field.rsplit_once('/').unwrap();
        let mut config = host("a");
        config.pointer_mut(parent).unwrap()[name] = Value::Null;
        for at in ["a", "b"] {
            config["metadata"]["name"] = at.into();
            let answer = rig.apply(&path(HOSTS, at), "m", &config).await.expect(422);
            let message = answer["message"].as_str().unwrap();
            // Over a map that is there a null merges nothing: what was applied before goes.
            let wanted = match (at, named) {
                ("a", "spec") => "spec.online: Required value".to_owned(),
                _ => format!("{named}: Invalid value: \"null\""),
            };
            assert!(message.contains(&wanted), "{message}");
        }
        // A patch takes the field away, and in a body it is one that is not given.
        if named != "spec" {
            config["metadata"]["name"] = "c".into();
            rig.call("POST", &format!("{HOSTS}?dryRun=All"), &config).await.expect(201);
        }
    }
}
