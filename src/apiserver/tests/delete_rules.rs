//! Delete, finalizers, owners, namespaces.

use super::*;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";

fn owned(name: &str, owner: &Value, block: bool) -> Value {
    let mut dependent = secret(name, &json!({}));
    dependent["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": block,
    }]);
    dependent
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let rig = Rig::new().await;
    let one = path(HOSTS, "a");
    let mut held = host("a");
    held["metadata"]["finalizers"] = json!(["x/a", "x/b"]);
    rig.call("POST", HOSTS, &held).await.expect(201);
    let marked = rig.call("DELETE", &one, &json!({})).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["generation"], 2);
    assert_eq!(rig.call("DELETE", &one, &json!({})).await.expect(200), marked, "once is enough");
    let more = json!({"metadata": {"finalizers": ["x/a", "x/b", "x/c"]}});
    rig.patch(&one, MERGE, &more).await.expect(422);
    let revive = json!({"metadata": {"deletionTimestamp": null}});
    assert!(rig.patch(&one, MERGE, &revive).await.expect(200)["metadata"]["deletionTimestamp"].is_string());
    rig.patch(&one, MERGE, &json!({"metadata": {"finalizers": ["x/b"]}})).await.expect(200);
    rig.get(&one).await.expect(200);
    rig.patch(&one, MERGE, &json!({"metadata": {"finalizers": []}})).await.expect(200);
    rig.get(&one).await.expect(404);
    rig.call("DELETE", &one, &json!({})).await.expect(404);
}

#[tokio::test]
async fn preconditions_are_kept() {
    let rig = Rig::new().await;
    let made = rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let one = path(HOSTS, "a");
    for (options, code) in [
        (json!({"preconditions": {"uid": "other"}}), 409),
        (json!({"preconditions": {"resourceVersion": "1"}}), 409),
        (json!({"propagationPolicy": "Sometimes"}), 422),
        (json!({"dryRun": ["Some"]}), 422),
        (json!([]), 400),
        (json!({"kind": "DeleteOptions", "preconditions": {"uid": made["metadata"]["uid"]}, "dryRun": ["All"]}), 200),
        (json!({"preconditions": {"uid": made["metadata"]["uid"]}, "gracePeriodSeconds": 0}), 200),
    ] {
        rig.call("DELETE", &one, &options).await.expect(code);
    }
    rig.get(&one).await.expect(404);
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let rig = Rig::new().await;
    for name in ["a", "b", "c"] {
        rig.call("POST", HOSTS, &host(name)).await.expect(201);
    }
    let deleted =
        rig.call("DELETE", &format!("{HOSTS}?fieldSelector=metadata.name!%3Db"), &json!({})).await.expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    assert_eq!(rig.get(HOSTS).await.expect(200)["items"][0]["metadata"]["name"], "b");
    rig.call("DELETE", "/apis/metal3.io/v1alpha1/baremetalhosts", &json!({})).await.expect(405);
}

#[tokio::test]
async fn dependents_go_with_their_last_owner() {
    let rig = Rig::new().await;
    let owner = rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let second = rig.call("POST", HOSTS, &host("b")).await.expect(201);
    rig.call("POST", SECRETS, &owned("one", &owner, false)).await.expect(201);
    let mut both = owned("both", &owner, false);
    let other = owned("x", &second, false)["metadata"]["ownerReferences"][0].clone();
    both["metadata"]["ownerReferences"].as_array_mut().unwrap().push(other);
    rig.call("POST", SECRETS, &both).await.expect(201);
    let mut foreign = owned("foreign", &owner, false);
    foreign["metadata"]["ownerReferences"][0]["kind"] = "Node".into();
    rig.call("POST", SECRETS, &foreign).await.expect(201);
    rig.api.sweep().await.unwrap();
    assert_eq!(rig.get(SECRETS).await.expect(200)["items"].as_array().unwrap().len(), 3, "the owners live");

    rig.call("DELETE", &path(HOSTS, "a"), &json!({})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(SECRETS, "one")).await.expect(404);
    let left = rig.get(&path(SECRETS, "both")).await.expect(200);
    assert_eq!(left["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    rig.get(&path(SECRETS, "foreign")).await.expect(200);

    // A new object of the same name is another owner.
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    rig.call("POST", SECRETS, &owned("late", &owner, false)).await.expect(201);
    rig.api.sweep().await.unwrap();
    rig.get(&path(SECRETS, "late")).await.expect(404);
}

#[tokio::test]
async fn propagation_is_as_asked() {
    let rig = Rig::new().await;
    for (policy, dependent_stays) in [("Background", false), ("Foreground", false), ("Orphan", true)] {
        let owner = rig.call("POST", HOSTS, &host("a")).await.expect(201);
        rig.call("POST", SECRETS, &owned("s", &owner, true)).await.expect(201);
        rig.call("DELETE", &path(HOSTS, "a"), &json!({ "propagationPolicy": policy })).await.expect(200);
        rig.get(&path(HOSTS, "a")).await.expect(if policy == "Background" { 404 } else { 200 });
        rig.api.sweep().await.unwrap();
        rig.api.sweep().await.unwrap();
        rig.get(&path(HOSTS, "a")).await.expect(404);
        let code = if dependent_stays { 200 } else { 404 };
        let left = rig.get(&path(SECRETS, "s")).await.expect(code);
        if dependent_stays {
            assert!(left["metadata"].get("ownerReferences").is_none(), "{left}");
            rig.call("DELETE", &path(SECRETS, "s"), &json!({})).await.expect(200);
        }
    }
    // A dependent that is held blocks a foreground deletion.
    let owner = rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let mut held = owned("s", &owner, true);
    held["metadata"]["finalizers"] = json!(["x/y"]);
    rig.call("POST", SECRETS, &held).await.expect(201);
    rig.call("DELETE", &path(HOSTS, "a"), &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(HOSTS, "a")).await.expect(200);
    rig.patch(&path(SECRETS, "s"), MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(HOSTS, "a")).await.expect(404);
}

#[tokio::test]
async fn a_namespace_ends_when_it_is_empty() {
    let rig = Rig::new().await;
    let mut held = host("a");
    held["metadata"]["finalizers"] = json!(["x/y"]);
    rig.call("POST", HOSTS, &held).await.expect(201);
    rig.call("POST", SECRETS, &secret("s", &json!({}))).await.expect(201);
    let ending = rig.call("DELETE", &path(NAMESPACES, "rack"), &json!({})).await.expect(200);
    assert_eq!(ending["status"]["phase"], "Terminating");
    rig.call("POST", SECRETS, &secret("t", &json!({}))).await.expect(403);
    rig.api.sweep().await.unwrap();
    rig.get(&path(SECRETS, "s")).await.expect(404);
    let waiting = rig.get(&path(NAMESPACES, "rack")).await.expect(200);
    let told: Vec<String> = waiting["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            [&one["type"], &one["status"], &one["reason"], &one["message"]].map(|v| v.as_str().unwrap()).join(" ")
        })
        .collect();
    assert_eq!(
        told,
        [
            "NamespaceDeletionDiscoveryFailure False ResourcesDiscovered All resources successfully discovered",
            "NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions All legacy kube types successfully parsed",
            "NamespaceDeletionContentFailure False ContentDeleted All content successfully deleted, may be waiting on \
             finalization",
            "NamespaceContentRemaining True SomeResourcesRemain Some resources are remaining: baremetalhosts.metal3.io has \
             1 resource instances",
            "NamespaceFinalizersRemaining True SomeFinalizersRemain Some content in the namespace has finalizers \
             remaining: x/y in 1 resource instances",
        ]
    );
    rig.api.sweep().await.unwrap();
    assert_eq!(rig.get(&path(NAMESPACES, "rack")).await.expect(200), waiting, "nothing new, nothing written");
    rig.patch(&path(HOSTS, "a"), MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(NAMESPACES, "rack")).await.expect(404);
    for name in ["default", "kube-system"] {
        rig.call("DELETE", &path(NAMESPACES, name), &json!({})).await.expect(403);
    }
}

#[tokio::test]
async fn what_cannot_be_collected_keeps_nothing_else_from_going() {
    let rig = Rig::new().await;
    // A namespace that stays for ever, with an owner that never was.
    let lost = json!({"metadata": {"ownerReferences":
        [{"apiVersion": "v1", "kind": "Namespace", "name": "nope", "uid": "x-y"}]}});
    rig.patch(&path(NAMESPACES, "default"), MERGE, &lost).await.expect(200);
    // Something of no namespace, with an owner that must be in one: which one is not said.
    let secret = rig.call("POST", SECRETS, &secret("a", &json!({}))).await.expect(201);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [],
        "metadata": {"name": "r", "ownerReferences":
            [{"apiVersion": "v1", "kind": "Secret", "name": "a", "uid": secret["metadata"]["uid"]}]}});
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    rig.call("POST", roles, &role).await.expect(201);
    let doomed = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}});
    rig.call("POST", NAMESPACES, &doomed).await.expect(201);
    rig.call("DELETE", &path(NAMESPACES, "doomed"), &json!({})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&path(NAMESPACES, "doomed")).await.expect(404);
    rig.get(&path(NAMESPACES, "default")).await.expect(200);
    rig.get(&path(roles, "r")).await.expect(200);
}

#[tokio::test]
async fn options_of_another_kind_are_no_options() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    for kind in ["Nonsense", "Status"] {
        let refused =
            rig.call("DELETE", &path(HOSTS, "a"), &json!({"apiVersion": "v1", "kind": kind})).await.expect(400);
        assert!(
            refused["message"].as_str().unwrap().starts_with(&format!("no kind {kind:?} is registered")),
            "{refused}"
        );
    }
    for options in [json!({"kind": "DeleteOptions", "apiVersion": "metal3.io/v1alpha1"}), json!({"kind": ""})] {
        rig.call("DELETE", &format!("{}?dryRun=All", path(HOSTS, "a")), &options).await.expect(200);
    }
}

/// Everything there is, without what differs by itself.
async fn all_secrets(rig: &Rig) -> Vec<(String, Value)> {
    let list = rig.get(SECRETS).await.expect(200);
    let items = list["items"].as_array().unwrap().iter();
    items.map(|one| (one["metadata"]["name"].as_str().unwrap().to_owned(), one["metadata"].clone())).collect()
}

/// A look at what changed finds what a look at everything finds.
#[tokio::test]
async fn nothing_is_missed_by_looking_at_changes_only() {
    use rand::{Rng, SeedableRng};
    let rig = Rig::new().await;
    rig.api.sweep().await.unwrap();
    for seed in 0..5_u64 {
        let mut dice = rand::rngs::StdRng::seed_from_u64(seed);
        let mut made: Vec<Value> = Vec::new();
        for step in 0..24 {
            if made.is_empty() || dice.random_bool(0.6) {
                // It depends on up to two of those before it, of which some are gone.
                let mut one = secret(&format!("s{step}"), &json!({}));
                let owners: Vec<Value> = (0..dice.random_range(0..3_usize).min(made.len()))
                    .map(|_| owned("x", &made[dice.random_range(0..made.len())], dice.random_bool(0.5)))
                    .map(|one| one["metadata"]["ownerReferences"][0].clone())
                    .collect();
                let mut seen = std::collections::HashSet::new();
                let owners: Vec<Value> = owners.into_iter().filter(|one| seen.insert(one["uid"].to_string())).collect();
                one["metadata"]["ownerReferences"] = owners.into();
                if dice.random_bool(0.15) {
                    one["metadata"]["finalizers"] = json!(["x/y"]);
                }
                made.push(rig.call("POST", SECRETS, &one).await.expect(201));
            } else {
                let one = made[dice.random_range(0..made.len())]["metadata"]["name"].as_str().unwrap().to_owned();
                if dice.random_bool(0.3) {
                    rig.patch(&path(SECRETS, &one), MERGE, &json!({"metadata": {"finalizers": null}})).await;
                }
                let policy = ["Background", "Foreground", "Orphan"][dice.random_range(0..3_usize)];
                rig.call("DELETE", &path(SECRETS, &one), &json!({ "propagationPolicy": policy })).await;
            }
            if dice.random_bool(0.4) {
                rig.api.sweep().await.unwrap();
            }
        }
        // As often as the chains are long: each look may bring the next.
        for _ in 0..24 {
            rig.api.sweep().await.unwrap();
        }
        let found = all_secrets(&rig).await;
        rig.api.owner_graph().check_everything();
        rig.api.sweep().await.unwrap();
        assert_eq!(all_secrets(&rig).await, found, "seed {seed}");
        for (name, _) in found {
            rig.patch(
                &path(SECRETS, &name),
                MERGE,
                &json!({"metadata": {"finalizers": null, "ownerReferences": null}}),
            )
            .await;
            rig.call("DELETE", &path(SECRETS, &name), &json!({})).await;
        }
        assert!(all_secrets(&rig).await.is_empty(), "seed {seed}");
    }
}

#[tokio::test]
async fn of_a_collection_goes_what_a_list_with_these_parameters_has() {
    let rig = Rig::new().await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        rig.call("POST", MAPS, &json!({"metadata": {"name": name, "labels": {"n": name}}})).await.expect(201);
    }
    let at = rig.get(MAPS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let first = rig.get(&format!("{MAPS}?limit=4")).await.expect(200);
    let rest = first["metadata"]["continue"].as_str().unwrap();
    rig.call("POST", MAPS, &json!({"metadata": {"name": "ab"}})).await.expect(201);
    for (query, code, left) in [
        ("continue=abc".to_owned(), 400, vec!["a", "ab", "b", "c", "d", "e", "f"]),
        ("limit=x".to_owned(), 400, vec!["a", "ab", "b", "c", "d", "e", "f"]),
        ("resourceVersion=1&resourceVersionMatch=exactly".to_owned(), 422, vec!["a", "ab", "b", "c", "d", "e", "f"]),
        (format!("continue={rest}&limit=1"), 200, vec!["a", "ab", "b", "c", "d", "f"]),
        (format!("continue={rest}"), 200, vec!["a", "ab", "b", "c", "d"]),
        ("limit=1".to_owned(), 200, vec!["ab", "b", "c", "d"]),
        ("limit=1&labelSelector=n%3Dc".to_owned(), 200, vec!["ab", "b", "d"]),
        // What came later stays.
        (format!("resourceVersion={at}&resourceVersionMatch=Exact"), 200, vec!["ab"]),
        (String::new(), 200, vec![]),
    ] {
        rig.call("DELETE", &format!("{MAPS}?{query}"), &json!({})).await.expect(code);
        let list = rig.get(MAPS).await.expect(200);
        let names = list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), left, "{query}");
    }
}
