//! Tests of create, update and patch through the router.

use std::sync::Arc;

use super::*;

#[tokio::test]
async fn the_server_sets_its_fields_and_keeps_them() {
    let rig = Rig::new().await;
    let mut sent = host("a");
    sent["metadata"]["uid"] = "mine".into();
    sent["metadata"]["generation"] = 7.into();
    sent["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    sent["status"] = json!({"poweredOn": true});
    let made = rig.call("POST", HOSTS, &sent).await.expect(201);
    let meta = &made["metadata"];
    assert_ne!(meta["uid"], "mine");
    assert_eq!((&meta["generation"], &meta["namespace"]), (&json!(1), &json!("rack")));
    assert_ne!(meta["creationTimestamp"], "2001-01-01T00:00:00Z");
    assert!(made.get("status").is_none());
    assert_eq!(made, rig.get(&path(HOSTS, "a")).await.expect(200));

    let mut changed = made.clone();
    changed["spec"]["online"] = false.into();
    changed["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    changed["status"] = json!({"poweredOn": true});
    let changed = rig.call("PUT", &path(HOSTS, "a"), &changed).await.expect(200);
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(changed["metadata"]["creationTimestamp"], meta["creationTimestamp"]);
    assert!(changed.get("status").is_none(), "the status has its own subresource");

    // The same again changes nothing, not even the revision.
    let same = rig.call("PUT", &path(HOSTS, "a"), &changed).await.expect(200);
    assert_eq!(same, changed);
    let mut labelled = changed.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let labelled = rig.call("PUT", &path(HOSTS, "a"), &labelled).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 2, "metadata is no new generation");

    let status = json!({"metadata": {"labels": {"a": "c"}}, "spec": {"online": true}, "status": {"poweredOn": true}});
    let status = rig.patch(&(path(HOSTS, "a") + "/status"), MERGE, &status).await.expect(200);
    assert_eq!((&status["spec"]["online"], &status["status"]["poweredOn"]), (&json!(false), &json!(true)));
    assert_eq!(status["metadata"]["labels"]["a"], "b");
    assert_eq!(status["metadata"]["generation"], 2);
    assert_eq!(status["status"]["errorMessage"], "", "required fields have defaults");
}

#[tokio::test]
async fn stale_and_contradictory_writes_are_refused() {
    let rig = Rig::new().await;
    let made = rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let one = path(HOSTS, "a");
    rig.patch(&one, MERGE, &json!({"spec": {"online": false}})).await.expect(200);
    let edit = |pointer: &str, value: Value| {
        let mut edited = made.clone();
        *edited.pointer_mut(pointer).unwrap() = value;
        edited
    };
    let mut without = made.clone();
    without["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let mut elsewhere = host("b");
    elsewhere["metadata"]["namespace"] = "other".into();
    let mut versioned = host("b");
    versioned["metadata"]["resourceVersion"] = "5".into();
    for (method, at, body, code, reason) in [
        ("PUT", one.as_str(), made.clone(), 409, "Conflict"),
        ("PUT", &one, without, 422, "Invalid"),
        ("PUT", &one, edit("/metadata/name", "b".into()), 400, "BadRequest"),
        ("PUT", &one, edit("/kind", "Image".into()), 400, "BadRequest"),
        ("PUT", &one, edit("/apiVersion", "metal3.io/v1".into()), 400, "BadRequest"),
        ("PUT", &path(HOSTS, "none"), host("none"), 404, "NotFound"),
        ("POST", HOSTS, host("a"), 409, "AlreadyExists"),
        ("POST", HOSTS, elsewhere, 400, "BadRequest"),
        ("POST", HOSTS, versioned, 400, "BadRequest"),
        ("POST", HOSTS, json!([]), 400, "BadRequest"),
        ("POST", HOSTS, json!({"spec": {"online": true}}), 400, "BadRequest"),
        ("POST", &HOSTS.replace("rack", "none"), host("a"), 404, "NotFound"),
        ("POST", "/apis/metal3.io/v1alpha1/baremetalhosts", host("a"), 405, "MethodNotAllowed"),
        ("POST", &one, host("a"), 405, "MethodNotAllowed"),
        ("OPTIONS", &one, host("a"), 405, "MethodNotAllowed"),
        ("PUT", &(one.clone() + "/scale"), made.clone(), 404, "NotFound"),
        ("POST", "/apis/none/v1/things", host("a"), 404, "NotFound"),
    ] {
        let status = rig.call(method, at, &body).await.expect(code);
        assert_eq!(
            (status["kind"].as_str(), status["reason"].as_str()),
            (Some("Status"), Some(reason)),
            "{method} {at}"
        );
    }
    let stale = json!({"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"online": true}});
    assert_eq!(rig.patch(&one, MERGE, &stale).await.expect(409)["reason"], "Conflict");
    let other = json!({"metadata": {"uid": "other"}});
    assert_eq!(rig.patch(&one, MERGE, &other).await.expect(422)["reason"], "Invalid");
    // Core kinds may be replaced without a revision.
    rig.call("POST", SECRETS, &secret("s", &json!({"a": "1"}))).await.expect(201);
    rig.call("PUT", &path(SECRETS, "s"), &secret("s", &json!({"a": "2"}))).await.expect(200);
}

#[tokio::test]
async fn what_a_schema_or_a_room_refuses_is_named_by_field() {
    let rig = Rig::new().await;
    rig.api.add_admission(
        "metal3.io/baremetalhosts",
        Arc::new(|request| match (request.operation, request.old) {
            (AdmissionOperation::Update, Some(old))
                if old["spec"]["bootMACAddress"] != request.object["spec"]["bootMACAddress"] =>
            {
                Err(vec![FieldError::forbidden("spec.bootMACAddress", "it stays")])
            }
            _ => Ok(()),
        }),
    );
    for (spec, field, reason) in [
        (json!({}), "spec.online", "FieldValueRequired"),
        (json!({"online": "x"}), "spec.online", "FieldValueTypeInvalid"),
        (json!({"online": true, "bootMACAddress": "x"}), "spec.bootMACAddress", "FieldValueInvalid"),
        (json!({"online": true, "bootMode": "BIOS"}), "spec.bootMode", "FieldValueNotSupported"),
        (json!({"online": true, "image": {}}), "spec.image.url", "FieldValueRequired"),
        (
            json!({"online": true, "rootDeviceHints": {"minSizeGigabytes": -1}}),
            "spec.rootDeviceHints.minSizeGigabytes",
            "FieldValueInvalid",
        ),
    ] {
        let mut bad = host("a");
        bad["spec"] = spec;
        let status = rig.call("POST", HOSTS, &bad).await.expect(422);
        let cause = &status["details"]["causes"][0];
        assert_eq!((cause["field"].as_str(), cause["reason"].as_str()), (Some(field), Some(reason)), "{status}");
    }
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let moved = json!({"spec": {"bootMACAddress": "52:54:00:00:00:01"}});
    let status = rig.patch(&path(HOSTS, "a"), MERGE, &moved).await.expect(422);
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueForbidden");
    let free = json!({"metadata": {"annotations": {"x": "y"}}, "spec": {"taints": [{"any": {"thing": 1}}]}});
    let kept = rig.patch(&path(HOSTS, "a"), MERGE, &free).await.expect(200);
    assert_eq!(kept["spec"]["taints"][0]["any"]["thing"], 1);
}

#[tokio::test]
async fn unknown_fields_are_ignored_warned_of_or_refused() {
    let rig = Rig::new().await;
    let mut odd = host("a");
    odd["spec"]["imgae"] = json!({});
    for (query, code, warnings) in
        [("?fieldValidation=Strict", 400, 0), ("?fieldValidation=Ignore&dryRun=All", 201, 0), ("", 201, 1)]
    {
        let answer = rig.call("POST", &format!("{HOSTS}{query}"), &odd).await;
        assert_eq!(answer.headers.get_all("warning").iter().count(), warnings, "{query}");
        assert!(answer.expect(code)["spec"].get("imgae").is_none(), "{query}");
    }
    let twice = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"},"data":{"a":"YQ==","a":"Yg=="}}"#;
    let request = http::Request::post(format!("{SECRETS}?fieldValidation=Strict"));
    let status = rig.send(admin(), request, twice).await.expect(400);
    assert!(status["message"].as_str().unwrap().contains("duplicate field \"data.a\""), "{status}");
}

#[tokio::test]
async fn names_are_made_and_dry_runs_write_nothing() {
    let rig = Rig::new().await;
    let mut unnamed = host("");
    unnamed["metadata"] = json!({"generateName": "host-"});
    let (one, two) = (rig.call("POST", HOSTS, &unnamed).await, rig.call("POST", HOSTS, &unnamed).await);
    let (one, two) = (one.expect(201), two.expect(201));
    assert!(one["metadata"]["name"].as_str().unwrap().starts_with("host-"));
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    let dry = rig.call("POST", &format!("{HOSTS}?dryRun=All"), &host("dry")).await.expect(201);
    assert!(dry["metadata"]["uid"].is_string());
    rig.get(&path(HOSTS, "dry")).await.expect(404);
    let name = one["metadata"]["name"].as_str().unwrap();
    let patch = json!({"spec": {"online": false}});
    rig.patch(&(path(HOSTS, name) + "?dryRun=All"), MERGE, &patch).await.expect(200);
    rig.call("DELETE", &(path(HOSTS, name) + "?dryRun=All"), &json!({})).await.expect(200);
    assert_eq!(rig.get(&path(HOSTS, name)).await.expect(200), one);
    let status = rig.call("POST", &format!("{HOSTS}?dryRun=Some"), &host("dry")).await.expect(422);
    assert_eq!(
        status["message"],
        "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\""
    );
}

#[tokio::test]
async fn bodies_of_every_type_and_none_of_the_wrong() {
    let rig = Rig::new().await;
    let post = |media: &str, body: Vec<u8>| {
        rig.send(admin(), http::Request::post(SECRETS).header("content-type", media), body)
    };
    let yaml = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\nstringData:\n  a: x\n";
    assert_eq!(post("application/yaml", yaml.into()).await.expect(201)["data"]["a"], "eA==");
    post("text/plain", b"{}".to_vec()).await.expect(415);
    post("application/json", vec![b' '; body::BODY_MAX + 1]).await.expect(413);
    post("application/json", b"[".repeat(100_000)).await.expect(400);
    post("application/json", b"\x00".to_vec()).await.expect(400);
    post("application/yaml", b"a: &a [*a]".to_vec()).await.expect(400);
    post("application/vnd.kubernetes.protobuf", b"k8s\0".to_vec()).await.expect(400);
    let deep = (0..101).fold(json!(1), |inner, _| json!({ "a": inner }));
    let mut host = host("deep");
    host["spec"]["raid"] = deep;
    rig.call("POST", HOSTS, &host).await.expect(400);
}

#[tokio::test]
async fn concurrent_patches_all_count() {
    let rig = Arc::new(Rig::new().await);
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move {
                let patch = json!({"metadata": {"labels": {format!("l{n}"): "x"}}});
                rig.patch(&path(HOSTS, "a"), MERGE, &patch).await.expect(200)
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let labels = rig.get(&path(HOSTS, "a")).await.expect(200)["metadata"]["labels"].clone();
    assert_eq!(labels.as_object().unwrap().len(), 8);
}

#[tokio::test]
async fn only_slipway_writes_what_is_its_own() {
    let rig = Rig::new().await;
    let intents = "/apis/slipway.dev/v1alpha1/namespaces/rack/bootintents";
    let leases = "/apis/slipway.dev/v1alpha1/dhcpleases";
    let intent = json!({"apiVersion": "slipway.dev/v1alpha1", "kind": "BootIntent", "metadata": {"name": "a"},
        "spec": {"generation": 1, "target": "ramdisk"}});
    let lease = json!({"apiVersion": "slipway.dev/v1alpha1", "kind": "DHCPLease", "metadata": {"name": "10.0.0.1"},
        "spec": {"address": "10.0.0.1", "macAddress": "x", "network": "n", "state": "bound"}});
    let own = Some(UserIdentity::in_process());
    for (collection, object, name, deletable) in [(intents, &intent, "a", 200), (leases, &lease, "10.0.0.1", 405)] {
        rig.call("POST", collection, object).await.expect(405);
        rig.send(own.clone(), http::Request::post(collection), object.to_string()).await.expect(201);
        rig.patch(&path(collection, name), MERGE, &json!({})).await.expect(405);
        rig.get(&path(collection, name)).await.expect(200);
        rig.call("DELETE", &path(collection, name), &json!({})).await.expect(deletable);
    }
}

#[tokio::test]
async fn a_fault_in_a_rule_is_an_answer_and_no_end() {
    let rig = Rig::new().await;
    rig.api.add_admission("/secrets", Arc::new(|_| panic!("a fault")));
    let status = rig.call("POST", SECRETS, &secret("s", &json!({"a": "hidden"}))).await.expect(500);
    assert_eq!(status["reason"], "InternalError");
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
}

#[tokio::test]
async fn strangers_get_no_further() {
    let rig = Rig::new().await;
    let eve = UserIdentity::new("eve", vec!["guests".into()], auth::Proof::Certificate);
    for (at, anonymous, guest) in [
        ("/version", 200, 200),
        ("/readyz", 200, 200),
        ("/api", 401, 200),
        ("/apis", 401, 200),
        ("/openapi/v3", 401, 200),
        (SECRETS, 401, 403),
        ("/api/v1/nonsense", 401, 403),
        ("/nonsense", 401, 403),
    ] {
        for (identity, code) in [(None, anonymous), (Some(eve.clone()), guest)] {
            let request = http::Request::get(at).header("authorization", "Basic x").header("x-remote-user", "root");
            let answer = rig.send(identity, request, Body::empty()).await;
            assert_eq!(answer.code, code, "{at}");
        }
        // A token that is none is no anonymous call.
        let guess = http::Request::get(at).header("authorization", "Bearer x");
        assert_eq!(rig.send(None, guess, Body::empty()).await.code, 401, "{at}");
    }
    rig.get("/nonsense").await.expect(404);
}

#[tokio::test]
async fn a_host_needs_no_spec() {
    let rig = Rig::new().await;
    for (name, spec) in [("none", None), ("null", Some(Value::Null))] {
        let mut host = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name}});
        if let Some(spec) = spec {
            host["spec"] = spec;
        }
        let made = rig.call("POST", HOSTS, &host).await.expect(201);
        assert_eq!(made["spec"], json!({"online": false}), "{name}");
        serde_json::from_value::<crate::api::metal3::BareMetalHost>(made).unwrap();
    }
    let data = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "metadata": {"name": "a"}});
    let made = rig.call("POST", &HOSTS.replace("baremetalhosts", "hardwaredata"), &data).await.expect(201);
    serde_json::from_value::<crate::api::metal3::HardwareData>(made).unwrap();
}
