//! Tests of get, list and tables through the router.

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
        (format!("{HOSTS}?&limit=1"), 1),
        (format!("{HOSTS}?limit=1&resourceVersion=0"), 2),
        (format!("{HOSTS}?limit=0"), 2),
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
        ("resourceVersion=999999", 504),
        ("resourceVersion=1&resourceVersionMatch=Odd", 422),
        ("resourceVersion=999999&resourceVersionMatch=Exact", 504),
        ("limit=x", 400),
        ("labelSelector=a%20b", 400),
        ("fieldSelector=spec.online%3Dtrue", 400),
    ] {
        rig.get(&format!("{HOSTS}?{query}")).await.expect(code);
    }
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_list_in_parts_is_one_list_at_one_revision() {
    let rig = Rig::new().await;
    for name in ["a", "b", "c", "d", "e"] {
        rig.call("POST", HOSTS, &host(name)).await.expect(201);
    }
    let first = rig.get(&format!("{HOSTS}?limit=2")).await.expect(200);
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a".into(), "b".into()], &json!(3)));
    // What is written between the parts is not seen in them.
    rig.call("DELETE", &path(HOSTS, "c"), &json!({})).await.expect(200);
    rig.patch(&path(HOSTS, "d"), MERGE, &json!({"spec": {"online": false}})).await.expect(200);
    rig.patch(&path(HOSTS, "d"), MERGE, &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    rig.call("POST", HOSTS, &host("cc")).await.expect(201);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let second = rig.get(&format!("{HOSTS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!((names(&second), &second["metadata"]["remainingItemCount"]), (vec!["c".into(), "d".into()], &json!(1)));
    assert_eq!(second["metadata"]["resourceVersion"], revision);
    assert_eq!(
        (&second["items"][1]["spec"]["online"], &second["items"][1]["metadata"]["labels"]),
        (&json!(true), &json!(null))
    );
    let token = second["metadata"]["continue"].as_str().unwrap().to_owned();
    let last = rig.get(&format!("{HOSTS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(
        (names(&last), last["metadata"].get("continue"), last["metadata"].get("remainingItemCount")),
        (vec!["e".into()], None, None)
    );

    let exact = rig.get(&format!("{HOSTS}?resourceVersion={revision}&resourceVersionMatch=Exact")).await.expect(200);
    assert_eq!(names(&exact), ["a", "b", "c", "d", "e"]);
    assert_eq!(names(&rig.get(HOSTS).await.expect(200)), ["a", "b", "cc", "d", "e"]);
    let selected = rig.get(&format!("{HOSTS}?limit=1&fieldSelector=metadata.name!%3Da")).await.expect(200);
    assert!(selected["metadata"]["continue"].is_string() && selected["metadata"].get("remainingItemCount").is_none());
}

#[tokio::test]
async fn a_list_whose_history_is_gone_says_how_to_go_on() {
    let rig = Rig::new().await;
    for name in ["a", "b", "c"] {
        rig.call("POST", HOSTS, &host(name)).await.expect(201);
    }
    let first = rig.get(&format!("{HOSTS}?limit=1")).await.expect(200);
    for n in 0..150 {
        rig.patch(&path(HOSTS, "c"), MERGE, &json!({"metadata": {"labels": {"n": n.to_string()}}})).await.expect(200);
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let gone = rig.get(&format!("{HOSTS}?limit=1&continue={token}")).await.expect(410);
    assert_eq!((&gone["reason"], &gone["code"]), (&json!("Expired"), &json!(410)));
    let fresh = gone["metadata"]["continue"].as_str().unwrap();
    let rest = rig.get(&format!("{HOSTS}?continue={fresh}")).await.expect(200);
    assert_eq!(names(&rest), ["b", "c"]);
    assert_eq!(rest["metadata"]["resourceVersion"], rig.api.store().revision().to_string());
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = rig.get(&format!("{HOSTS}?resourceVersion={revision}&resourceVersionMatch=Exact")).await.expect(410);
    assert_eq!(exact["message"], "The resourceVersion for the provided list is too old.");
}

#[tokio::test]
async fn a_read_of_what_is_to_come_waits_for_it() {
    let rig = Rig::new().await;
    let next = rig.api.store().revision() + 1;
    let at = format!("{HOSTS}?resourceVersion={next}&resourceVersionMatch=NotOlderThan");
    let (list, _) = tokio::join!(rig.get(&at), async {
        tokio::task::yield_now().await;
        rig.call("POST", HOSTS, &host("a")).await.expect(201)
    });
    assert_eq!(names(&list.expect(200)), ["a"]);
    let late = rig.get(&format!("{}?resourceVersion=999999", path(HOSTS, "a"))).await.expect(504);
    assert_eq!(late["message"], format!("Timeout: Too large resource version: 999999, current: {next}"));
    assert_eq!(
        (&late["details"]["retryAfterSeconds"], &late["details"]["causes"][0]["reason"]),
        (&json!(1), &json!("ResourceVersionTooLarge"))
    );
}

#[tokio::test]
async fn people_and_slow_lines_get_the_text_they_ask_for() {
    let rig = Rig::new().await;
    for n in 0..40 {
        let mut one = host(&format!("h{n}"));
        one["metadata"]["annotations"] = json!({"filler": "x".repeat(5000)});
        rig.call("POST", HOSTS, &one).await.expect(201);
    }
    let ask = async |at: &str, name: &str, value: &str| {
        rig.send(admin(), http::Request::get(at).header(name, value), Body::empty()).await
    };
    let yaml = ask(HOSTS, "accept", "application/yaml").await;
    assert_eq!(
        (yaml.code, &yaml.headers["content-type"]),
        (200, &"application/yaml".parse::<http::HeaderValue>().unwrap())
    );
    let json = rig.get(HOSTS).await.expect(200);
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml.text).unwrap(), json);
    let one = ask(&path(HOSTS, "h1"), "accept", "application/yaml").await;
    assert!(one.text.starts_with("apiVersion: metal3.io/v1alpha1\nkind: BareMetalHost\n"), "{}", one.text);
    for (at, agent) in [(format!("{HOSTS}?pretty=true"), "x"), (HOSTS.to_owned(), "curl/8")] {
        let pretty = ask(&at, "user-agent", agent).await;
        assert!(pretty.text.starts_with("{\n  \"kind\": \"BareMetalHostList\",\n  \"apiVersion\""), "{at}");
        assert_eq!(pretty.json(), json);
    }
    // Large answers are compressed for those who take it, small ones and watches are not.
    for (at, encoded) in [(HOSTS.to_owned(), true), (path(HOSTS, "h1"), false), (format!("{HOSTS}?limit=2"), false)] {
        let answer = ask(&at, "accept-encoding", "gzip").await;
        assert_eq!(answer.headers.get("content-encoding").is_some(), encoded, "{at}");
    }
    // Nor what somebody asks for who has many of them under way.
    let begin = async |who: &str| {
        let mut request = http::Request::get(HOSTS).header("accept-encoding", "gzip").body(Body::empty()).unwrap();
        request.extensions_mut().insert(UserIdentity::new(
            who,
            vec!["system:masters".into()],
            auth::Proof::Certificate,
        ));
        let answer = rig.api.router().oneshot(request).await.unwrap();
        (answer.headers().contains_key("content-encoding"), answer)
    };
    let mut under_way = Vec::new();
    for number in 0..20 {
        let (encoded, answer) = begin("many").await;
        assert_eq!(encoded, number < 16, "{number}");
        under_way.push(answer);
    }
    assert!(begin("few").await.0);
    drop(under_way);
    assert!(begin("many").await.0);
}

#[tokio::test]
async fn only_get_reads() {
    let rig = Rig::new().await;
    for method in ["HEAD", "OPTIONS"] {
        let answer = rig.send(admin(), http::Request::builder().method(method).uri(HOSTS), Body::empty()).await;
        assert_eq!(answer.code, 405, "{method}");
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
        assert_eq!(row["cells"].as_array().unwrap().len(), 9);
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
    // What is told to be available is.
    for accept in ["application/vnd.kubernetes.protobuf", "text/html"] {
        let refused = ask(accept, HOSTS).await.expect(406);
        let (_, available) = refused["message"].as_str().unwrap().rsplit_once(": ").unwrap();
        for media in available.split(", ") {
            let answer = ask(media, HOSTS).await;
            let written = answer.headers["content-type"].to_str().unwrap();
            assert_eq!((answer.code, written), (200, media), "{available}");
        }
    }
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
async fn events_are_bounded_by_time_and_number() {
    let rig = Rig::new().await;
    let core = "/api/v1/namespaces/rack/events";
    let seen = |name: &str, at: &str| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name},
        "involvedObject": {"kind": "X", "name": "x", "namespace": "rack"}, "reason": "R", "message": "m", "count": 1,
        "firstTimestamp": at, "lastTimestamp": at})
    };
    for name in ["e1", "e2", "e3"] {
        rig.call("POST", core, &seen(name, "2126-01-01T00:00:00Z")).await.expect(201);
    }
    // A client that sees the same again counts up, as client-go's recorder does, and the event lives on.
    let again = json!({"count": 2, "lastTimestamp": "2126-01-01T00:30:00Z"});
    let strategic = "application/strategic-merge-patch+json";
    assert_eq!(rig.patch(&path(core, "e1"), strategic, &again).await.expect(200)["count"], 2);
    rig.api.bound_events(2).await;
    assert_eq!(names(&rig.get(core).await.expect(200)), ["e1", "e3"]);
    rig.api.keep_events(Duration::from_secs(60));
    rig.api.forget_events("2126-01-01T00:30:30Z".parse().unwrap()).await;
    assert_eq!(names(&rig.get(core).await.expect(200)), ["e1"]);
}

#[tokio::test]
async fn whoever_makes_many_events_loses_their_own() {
    let rig = Rig::new().await;
    for name in ["tenant", "other"] {
        rig.api.make_namespace(name).await.unwrap();
    }
    let make = async |namespace: &str, count: usize| {
        for number in 0..count {
            let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("e{number:02}")},
                "involvedObject": {"kind": "X", "name": "x", "namespace": namespace}, "reason": "R", "message": "m"});
            let at = format!("/api/v1/namespaces/{namespace}/events");
            rig.call("POST", &at, &event).await.expect(201);
        }
    };
    make("rack", 4).await;
    make("other", 9).await;
    make("tenant", 30).await;
    rig.api.bound_events(20).await;
    let left =
        async |namespace: &str| names(&rig.get(&format!("/api/v1/namespaces/{namespace}/events")).await.expect(200));
    assert_eq!((left("rack").await.len(), left("other").await.len()), (4, 8));
    // The newest of each stay.
    assert_eq!(left("tenant").await, ["e22", "e23", "e24", "e25", "e26", "e27", "e28", "e29"]);
}

/// Whether a document has a schema of this kind, with its fields.
fn is_described(schemas: &Value, kind: &Value) -> bool {
    let of =
        |schema: &&Value| schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|all| all.contains(kind));
    let schema = schemas.as_object().unwrap().values().find(of);
    schema
        .is_some_and(|schema| schema["properties"]["metadata"].is_object() || schema["properties"]["kind"].is_object())
}

/// Every reference of a document leads somewhere.
fn resolve(value: &Value, schemas: &Value, prefix: &str) {
    match value {
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix(prefix)) {
                assert!(schemas.get(name).is_some(), "{name} is not there");
            }
            fields.values().for_each(|field| resolve(field, schemas, prefix));
        }
        Value::Array(items) => items.iter().for_each(|item| resolve(item, schemas, prefix)),
        _ => {}
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
    let old = rig.get("/openapi/v2").await.expect(200);
    assert_eq!(old["swagger"], "2.0");
    resolve(&old, &old["definitions"], "#/definitions/");
    let mut versions = vec![(String::new(), "v1".to_owned(), "api/v1".to_owned())];
    for group in rig.get("/apis").await.expect(200)["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let path = format!("apis/{}", text(&version["groupVersion"]));
            versions.push((text(&group["name"]), text(&version["version"]), path));
        }
    }
    let mut kinds = Vec::new();
    for (group, version, path) in &versions {
        let document = rig.get(index["paths"][path]["serverRelativeURL"].as_str().expect(path)).await.expect(200);
        let schemas = &document["components"]["schemas"];
        resolve(&document, schemas, "#/components/schemas/");
        let listed = rig.get(&format!("/{path}")).await.expect(200);
        for resource in listed["resources"].as_array().unwrap() {
            let (name, kind) = (resource["name"].as_str().unwrap(), resource["kind"].as_str().unwrap());
            let paths = document["paths"].as_object().unwrap();
            assert!(paths.keys().any(|path| path.contains(&format!("/{}", name.split('/').next().unwrap()))), "{name}");
            // What a subresource takes may be another group's.
            if !name.contains('/') {
                let known = json!({ "group": group, "version": version, "kind": kind });
                assert!(is_described(schemas, &known) && is_described(&old["definitions"], &known), "{known}");
                kinds.push(kind.to_owned());
            }
        }
    }
    for kind in crate::modules::kinds() {
        let name = kind.crd.spec.names.kind;
        assert!(kinds.contains(&name), "{name} is not found");
    }
    let document = rig.get(index["paths"]["apis/metal3.io/v1alpha1"]["serverRelativeURL"].as_str().unwrap()).await;
    let document = document.expect(200);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let image = schemas.values().find_map(|schema| schema["properties"]["spec"]["properties"].get("image"));
    assert_eq!(image.unwrap()["properties"]["checksumType"]["enum"][1], "sha256", "{image:?}");
    rig.call("POST", "/apis", &json!({})).await.expect(405);
}
