//! What goes by itself, and what must not: dependents, namespaces, definitions, while others write and the disk is full.

use super::*;

const NAMESPACES: &str = "/api/v1/namespaces";
const MAPS: &str = "/api/v1/namespaces/rack/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn map(name: &str, metadata: &Value) -> Value {
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    map["metadata"]["name"] = name.into();
    map
}

fn reference(api_version: &str, kind: &str, name: &str, uid: &Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true})
}

fn owned(name: &str, references: &[Value]) -> Value {
    map(name, &json!({ "ownerReferences": references }))
}

impl Rig {
    async fn make(&self, collection: &str, object: &Value) -> Value {
        self.call("POST", collection, object).await.expect(201)
    }

    async fn make_namespace(&self, name: &str) {
        self.make(NAMESPACES, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }

    async fn is_there(&self, collection: &str, name: &str) -> bool {
        self.get(&path(collection, name)).await.code == 200
    }

    async fn delete_with(&self, collection: &str, name: &str, policy: &str) {
        self.call("DELETE", &path(collection, name), &json!({ "propagationPolicy": policy })).await.expect(200);
    }

    /// Sweeps until there is nothing left to do.
    async fn sweep_all(&self) {
        for _ in 0..6 {
            self.api.sweep().await.unwrap();
        }
        self.api.owner_graph().check_everything();
        self.api.sweep().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_left_behind_stays_although_others_write_it_meanwhile() {
    let rig = Arc::new(Rig::new().await);
    for round in 0..3 {
        let owner = format!("owner-{round}");
        let uid = rig.make(MAPS, &map(&owner, &json!({}))).await["metadata"]["uid"].clone();
        let names: Vec<String> = (0..3).map(|number| format!("d-{round}-{number}")).collect();
        for name in &names {
            rig.make(MAPS, &owned(name, &[reference("v1", "ConfigMap", &owner, &uid)])).await;
        }
        rig.delete_with(MAPS, &owner, "Orphan").await;
        let stop = CancellationToken::new();
        let writers: Vec<_> = names
            .iter()
            .map(|name| {
                let (rig, stop, one) = (Arc::clone(&rig), stop.clone(), path(MAPS, name));
                tokio::spawn(async move {
                    let mut count = 0;
                    while !stop.is_cancelled() {
                        count += 1;
                        rig.patch(&one, MERGE, &json!({"data": {"count": count.to_string()}})).await.expect(200);
                    }
                })
            })
            .collect();
        eventually(async || {
            rig.api.sweep().await.unwrap();
            !rig.is_there(MAPS, &owner).await
        })
        .await;
        stop.cancel();
        for writer in writers {
            writer.await.unwrap();
        }
        rig.sweep_all().await;
        for name in &names {
            let left = rig.get(&path(MAPS, name)).await.expect(200);
            assert!(left["metadata"].get("ownerReferences").is_none(), "{left}");
        }
    }
}

#[tokio::test]
async fn an_owner_is_gone_only_when_that_very_object_is() {
    let rig = Rig::new().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "configmaps.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "configmaps", "singular": "configmap", "kind": "ConfigMap", "listKind": "ConfigMapList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    rig.make(CRDS, &definition).await;
    rig.make_namespace("other").await;
    let uid = rig.make(MAPS, &map("owner", &json!({}))).await["metadata"]["uid"].clone();
    let here = reference("v1", "ConfigMap", "owner", &uid);
    // Looked at first: of the same name and uid, but of another group, where there is no such object.
    rig.make(MAPS, &owned("a", &[reference("example.org/v1", "ConfigMap", "owner", &uid)])).await;
    rig.make(MAPS, &owned("b", std::slice::from_ref(&here))).await;
    // Views are there again a while after each start.
    rig.make(MAPS, &owned("view", &[reference("slipway.dev/v1alpha1", "DHCPLease", "lease", &"u-1".into())])).await;
    // Not served, in a version that is not served, and what is asked and never kept.
    for (name, version, kind) in [
        ("unserved", "example.com/v1", "Thing"),
        ("version", "example.org/v2", "ConfigMap"),
        ("review", "authentication.k8s.io/v1", "TokenReview"),
    ] {
        rig.make(MAPS, &owned(name, &[reference(version, kind, "owner", &"u-2".into())])).await;
    }
    let elsewhere = "/api/v1/namespaces/other/configmaps";
    rig.make(elsewhere, &owned("c", &[here])).await;
    rig.sweep_all().await;
    for (collection, name, stays) in [
        (MAPS, "a", false),
        (MAPS, "b", true),
        (MAPS, "view", true),
        (MAPS, "unserved", true),
        (MAPS, "version", true),
        (MAPS, "review", true),
        (elsewhere, "c", true),
    ] {
        assert_eq!(rig.is_there(collection, name).await, stays, "{name}");
    }
    rig.delete_with(MAPS, "owner", "Background").await;
    rig.sweep_all().await;
    for (collection, name) in [(MAPS, "b"), (elsewhere, "c")] {
        assert!(!rig.is_there(collection, name).await, "{name}");
    }
    assert!(rig.is_there(MAPS, "view").await);
}

#[tokio::test]
async fn a_circle_of_owners_that_wait_for_each_other_ends() {
    let rig = Rig::new().await;
    let names = ["a", "b", "c"];
    let mut uids = Vec::new();
    for name in names {
        uids.push(rig.make(MAPS, &map(name, &json!({}))).await["metadata"]["uid"].clone());
    }
    for (index, name) in names.iter().enumerate() {
        let next = (index + 1) % names.len();
        let owner = reference("v1", "ConfigMap", names[next], &uids[next]);
        let owners = json!({"metadata": {"ownerReferences": [owner]}});
        rig.patch(&path(MAPS, name), MERGE, &owners).await.expect(200);
    }
    for name in names {
        rig.delete_with(MAPS, name, "Foreground").await;
    }
    rig.sweep_all().await;
    for name in names {
        assert!(!rig.is_there(MAPS, name).await, "{name}");
    }
}

#[tokio::test]
async fn what_was_begun_is_ended_after_a_restart() {
    let mut rig = Rig::new().await;
    for (owner, policy) in [("left", "Orphan"), ("awaited", "Foreground")] {
        let uid = rig.make(MAPS, &map(owner, &json!({}))).await["metadata"]["uid"].clone();
        rig.make(MAPS, &owned(&format!("of-{owner}"), &[reference("v1", "ConfigMap", owner, &uid)])).await;
        rig.delete_with(MAPS, owner, policy).await;
    }
    rig.make_namespace("mine").await;
    rig.make("/api/v1/namespaces/mine/configmaps", &map("m", &json!({}))).await;
    rig.call("DELETE", &path(NAMESPACES, "mine"), &json!({})).await.expect(200);
    rig.restart().await;
    rig.sweep_all().await;
    for (name, stays) in [("left", false), ("of-left", true), ("awaited", false), ("of-awaited", false)] {
        assert_eq!(rig.is_there(MAPS, name).await, stays, "{name}");
    }
    assert!(!rig.is_there(NAMESPACES, "mine").await);
}

#[tokio::test]
async fn many_finalizers_in_one_namespace_keep_no_other_from_its_end() {
    let rig = Rig::new().await;
    for name in ["crowded", "zz-empty"] {
        rig.make_namespace(name).await;
    }
    let finalizer = |map: usize, number: usize| format!("{map}.{}.example/{number}", "x".repeat(60));
    for number in 0..50 {
        let finalizers: Vec<String> = (0..256).map(|one| finalizer(number, one)).collect();
        let held = map(&format!("m{number}"), &json!({ "finalizers": finalizers }));
        rig.make("/api/v1/namespaces/crowded/configmaps", &held).await;
    }
    for name in ["crowded", "zz-empty"] {
        rig.call("DELETE", &path(NAMESPACES, name), &json!({})).await.expect(200);
    }
    rig.sweep_all().await;
    assert!(!rig.is_there(NAMESPACES, "zz-empty").await);
    let crowded = rig.get(&path(NAMESPACES, "crowded")).await.expect(200);
    let conditions = crowded["status"]["conditions"].as_array().unwrap();
    let told = conditions.iter().find(|one| one["type"] == "NamespaceFinalizersRemaining").unwrap();
    let message = told["message"].as_str().unwrap();
    assert!(message.len() < 8000 && message.contains("more"), "{message}");
}

#[tokio::test]
async fn a_namespace_does_not_end_over_objects_of_a_kind_that_is_not_served() {
    let rig = Rig::new().await;
    rig.make_namespace("mine").await;
    let change = |value| Mutation {
        resource: "example.org/things".into(),
        namespace: "mine".into(),
        name: "one".into(),
        expect: Expect::Any,
        value,
    };
    let thing = json!({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "one"}});
    rig.api.store().write(change(Some(thing))).await.unwrap();
    rig.call("DELETE", &path(NAMESPACES, "mine"), &json!({})).await.expect(200);
    rig.sweep_all().await;
    // Whoever made a namespace of this name would have them once the kind is served.
    let namespace = rig.get(&path(NAMESPACES, "mine")).await.expect(200);
    let conditions = namespace["status"]["conditions"].as_array().unwrap();
    let told = conditions.iter().find(|one| one["type"] == "NamespaceDeletionDiscoveryFailure").unwrap();
    assert_eq!((&told["status"], &told["reason"]), (&"True".into(), &"DiscoveryFailed".into()));
    assert!(told["message"].as_str().unwrap().contains("example.org/things has 1"), "{told}");
    rig.api.store().write(change(None)).await.unwrap();
    rig.sweep_all().await;
    assert!(!rig.is_there(NAMESPACES, "mine").await);
}

#[tokio::test]
async fn on_a_full_disk_goes_what_gives_room_back_and_the_rest_later() {
    let rig = Rig::new().await;
    let mine = "/api/v1/namespaces/mine/configmaps";
    rig.make_namespace("mine").await;
    rig.make(mine, &map("a-held", &json!({"finalizers": ["x/y"]}))).await;
    rig.make(mine, &map("b-plain", &json!({}))).await;
    let uid = rig.make(MAPS, &map("owner", &json!({}))).await["metadata"]["uid"].clone();
    let owner = reference("v1", "ConfigMap", "owner", &uid);
    let mut held = owned("a-held", std::slice::from_ref(&owner));
    held["metadata"]["finalizers"] = json!(["x/y"]);
    rig.make(MAPS, &held).await;
    rig.make(MAPS, &owned("b-plain", &[owner])).await;
    rig.call("DELETE", &path(NAMESPACES, "mine"), &json!({})).await.expect(200);
    rig.delete_with(MAPS, "owner", "Background").await;

    rig.api.store().pretend_full(true);
    let error = rig.api.sweep().await.unwrap_err();
    assert_eq!(error.code, http::StatusCode::INSUFFICIENT_STORAGE);
    for collection in [mine, MAPS] {
        let held = rig.get(&path(collection, "a-held")).await.expect(200);
        assert!(held["metadata"]["deletionTimestamp"].is_null(), "{held}");
        assert!(!rig.is_there(collection, "b-plain").await, "{collection}");
    }
    rig.api.store().pretend_full(false);
    rig.api.sweep().await.unwrap();
    for collection in [mine, MAPS] {
        let held = rig.get(&path(collection, "a-held")).await.expect(200);
        assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
        rig.patch(&path(collection, "a-held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    }
    rig.sweep_all().await;
    assert!(!rig.is_there(NAMESPACES, "mine").await);
}

#[tokio::test]
async fn events_that_are_too_many_go_together() {
    let rig = Rig::new().await;
    let events = "/api/v1/namespaces/rack/events";
    for number in 0..200 {
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("e{number}")},
            "involvedObject": {"kind": "ConfigMap", "namespace": "rack", "name": "m"}, "reason": "R", "message": "m"});
        rig.make(events, &event).await;
    }
    let before = rig.api.store().meters().commits.get();
    rig.api.bound_events(20).await;
    assert_eq!(rig.api.store().list("/events", None).objects.len(), 20);
    let groups = rig.api.store().meters().commits.get() - before;
    assert!(groups < 60, "{groups} groups for 180 events");
}

#[tokio::test]
async fn one_namespace_that_has_much_to_collect_keeps_no_other_waiting() {
    const OTHERS: &str = "/api/v1/namespaces/other/configmaps";
    let rig = Rig::new().await;
    rig.make_namespace("other").await;
    let mut owners = Vec::new();
    for (collection, count) in [(MAPS, 1500), (OTHERS, 1)] {
        let uid = rig.make(collection, &map("owner", &json!({}))).await["metadata"]["uid"].clone();
        for number in 0..count {
            let one = owned(&format!("d{number}"), &[reference("v1", "ConfigMap", "owner", &uid)]);
            rig.make(collection, &one).await;
        }
        owners.push(collection);
    }
    rig.sweep_all().await;
    for collection in owners {
        rig.delete_with(collection, "owner", "Foreground").await;
    }
    // However much there is, one round has a turn for each.
    rig.api.sweep_once().await.unwrap();
    assert!(!rig.is_there(OTHERS, "d0").await);
    rig.sweep_all().await;
    assert!(!rig.is_there(OTHERS, "owner").await && !rig.is_there(MAPS, "owner").await);
    assert!(!rig.is_there(MAPS, "d0").await && !rig.is_there(MAPS, "d1499").await);
}

/// Who may define kinds has nothing removed that names an owner of a kind which was not there before.
#[tokio::test]
async fn what_is_older_than_the_kind_of_its_owner_stays() {
    let rig = Rig::new().await;
    let uid = json!("00000000-0000-4000-8000-000000000001");
    let owner = reference("example.org/v1", "Later", "o", &uid);
    let older = rig.make(MAPS, &owned("older", std::slice::from_ref(&owner))).await;
    let made = older["metadata"]["creationTimestamp"].as_str().unwrap().to_owned();
    // It is written in seconds.
    eventually(async || jiff::Timestamp::now().to_string()[..19] > made[..19]).await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let names = json!({"plural": "laters", "kind": "Later"});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "laters.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced", "names": names,
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]},
    });
    rig.make(CRDS, &definition).await;
    let laters = "/apis/example.org/v1/namespaces/rack/laters";
    eventually(async || rig.get(laters).await.code == 200).await;
    // Of one that is younger the owner could have been seen.
    rig.make(MAPS, &owned("younger", &[owner])).await;
    rig.sweep_all().await;
    assert!(rig.is_there(MAPS, "older").await && !rig.is_there(MAPS, "younger").await);
}
