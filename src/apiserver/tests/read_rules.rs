//! Get, list, tables.

use super::*;

#[tokio::test]
async fn lists_are_whole_selected_and_at_a_revision() {
    let rig = Rig::new().await;
    let empty = rig.get(HOSTS).await.expect(200);
    assert_eq!((&empty["kind"], &empty["items"]), (&json!("BareMetalHostList"), &json!([])));
    rig.api.make_namespace("other").await.unwrap();
    for (namespace, name, tier) in [("rack", "a", "x"), ("rack", "b", "y"), ("other", "a", "x")] {
        let mut one = host(name);
        one["metadata"]["labels"] = json!({ "tier": tier });
        rig.call("POST", &HOSTS.replace("rack", namespace), &one).await.expect(201);
    }
    let everywhere = "/apis/metal3.io/v1alpha1/baremetalhosts";
    for (at, count) in [
        (everywhere.to_owned(), 3),
        (HOSTS.to_owned(), 2),
        (format!("{everywhere}?labelSelector=tier%3Dx"), 2),
        (format!("{everywhere}?fieldSelector=metadata.name%3Da,metadata.namespace%3Drack"), 1),
        (format!("{HOSTS}?&limit=1"), 2),
        (format!("{HOSTS}?resourceVersion=0"), 2),
        (format!("{HOSTS}?resourceVersion=1&resourceVersionMatch=NotOlderThan"), 2),
    ] {
        let list = rig.get(&at).await.expect(200);
        assert_eq!(list["items"].as_array().unwrap().len(), count, "{at}");
        assert_eq!(list["metadata"]["resourceVersion"], rig.api.store().revision().to_string());
        assert!(list["items"].as_array().unwrap().iter().all(|item| item["kind"] == "BareMetalHost"));
    }
    for (query, code) in [
        ("continue=x", 400),
        ("resourceVersion=x", 400),
        ("resourceVersion=1&resourceVersionMatch=Exact", 410),
        ("resourceVersion=999999", 504),
        ("resourceVersion=1&resourceVersionMatch=Odd", 400),
        ("labelSelector=a%20b", 400),
        ("fieldSelector=spec.online%3Dtrue", 400),
    ] {
        rig.get(&format!("{HOSTS}?{query}")).await.expect(code);
    }
}

#[tokio::test]
async fn tables_and_partial_objects_come_when_asked_for() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let ask = async |accept: &str, at: &str| {
        rig.send(admin(), http::Request::get(at).header("accept", accept), Body::empty()).await
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    for (at, include) in [
        (HOSTS.to_owned(), "Metadata"),
        (path(HOSTS, "a"), "Metadata"),
        (format!("{HOSTS}?includeObject=Object"), "Object"),
        (format!("{HOSTS}?includeObject=None"), "None"),
    ] {
        let answer = ask(table, &at).await.expect(200);
        assert_eq!((&answer["kind"], &answer["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
        assert_eq!(answer["columnDefinitions"][1]["priority"], 1);
        let row = &answer["rows"][0];
        assert_eq!(row["cells"].as_array().unwrap().len(), 8);
        match include {
            "Metadata" => assert_eq!(row["object"]["kind"], "PartialObjectMetadata"),
            "Object" => assert_eq!(row["object"]["spec"]["online"], true),
            _ => assert!(row.get("object").is_none()),
        }
    }
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = ask(partial, HOSTS).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0].get("spec").is_none());
    ask("application/vnd.kubernetes.protobuf", HOSTS).await.expect(406);
}

#[tokio::test]
async fn an_event_is_one_in_both_groups() {
    let rig = Rig::new().await;
    let new = "/apis/events.k8s.io/v1/namespaces/rack/events";
    let core = "/api/v1/namespaces/rack/events";
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "regarding": {"kind": "BareMetalHost", "name": "a"},
        "note": "hello", "reason": "R", "action": "A", "type": "Normal", "reportingController": "slipway",
        "reportingInstance": "i"});
    assert_eq!(rig.call("POST", new, &event).await.expect(201)["note"], "hello");
    let old = rig.get(&path(core, "e")).await.expect(200);
    assert_eq!((&old["message"], &old["involvedObject"]["name"]), (&json!("hello"), &json!("a")));
    assert_eq!(old["apiVersion"], "v1");
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}});
    assert_eq!(rig.patch(&path(new, "e"), MERGE, &series).await.expect(200)["regarding"]["name"], "a");
    let found = rig.get(&format!("{core}?fieldSelector=involvedObject.name%3Da")).await.expect(200);
    assert_eq!(found["items"][0]["series"]["count"], 2);
    let list = rig.get(new).await.expect(200);
    assert_eq!((&list["kind"], &list["items"][0]["note"]), (&json!("EventList"), &json!("hello")));
    // An hour after it was last seen it is forgotten.
    for (now, code) in [("2026-01-01T01:00:30Z", 200), ("2126-01-01T00:00:00Z", 404)] {
        rig.api.forget_events(now.parse().unwrap()).await;
        rig.get(&path(core, "e")).await.expect(code);
    }
}

#[tokio::test]
async fn discovery_and_documents_are_served() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/api").await.expect(200)["kind"], "APIVersions");
    assert_eq!(rig.get("/apis/metal3.io").await.expect(200)["preferredVersion"]["version"], "v1alpha1");
    rig.get("/apis/none").await.expect(404);
    rig.get("/api/v2").await.expect(404);
    let index = rig.get("/openapi/v3").await.expect(200);
    for entry in index["paths"].as_object().unwrap().values() {
        rig.get(entry["serverRelativeURL"].as_str().unwrap()).await.expect(200);
    }
    assert_eq!(rig.get("/openapi/v2").await.expect(200)["swagger"], "2.0");
    rig.call("POST", "/apis", &json!({})).await.expect(405);
}
