//! A definition is about a kind of its own: whatever it claims of a built-in one, it gets nothing of it.

use std::collections::BTreeMap;

use super::access_rules::{binding, named, role, rule, user};
use super::*;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/rack/leases";

/// A definition with the plural and group of a name, in a version that no built-in kind has.
fn claim(plural: &str, group: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, a trial"},
        },
        "spec": {
            "group": group, "scope": "Cluster",
            "names": {"plural": plural, "singular": format!("{plural}-one"), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v9", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

fn condition<'v>(definition: &'v Value, kind: &str) -> &'v Value {
    let all = definition["status"]["conditions"].as_array().unwrap();
    &all.iter().find(|one| one["type"] == kind).unwrap_or(&Value::Null)["status"]
}

impl Rig {
    /// Every object of the built-in kinds, but for definitions, by where it is.
    fn built_in_objects(&self) -> BTreeMap<String, Value> {
        let registry = self.api.registry();
        let built_in = registry.stored().filter(|one| one.custom.is_none() && one.kind != "CustomResourceDefinition");
        let all = built_in.flat_map(|resource| self.api.store().list(&resource.storage, None).objects);
        all.map(|one| (format!("{} {}/{}", one.resource, one.namespace, one.name), one.value())).collect()
    }

    async fn fill(&self) {
        let own = role("ClusterRole", "own", &json!([rule(&["get"], "", "configmaps")]));
        self.call("POST", CLUSTER_ROLES, &own).await.expect(201);
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
        self.call("POST", LEASES, &lease).await.expect(201);
        self.call("POST", HOSTS, &host("h")).await.expect(201);
    }
}

#[tokio::test]
async fn no_definition_takes_a_built_in_kind_or_sweeps_its_objects() {
    let rig = Rig::new().await;
    rig.fill().await;
    let only = json!([rule(&["create", "delete", "get"], "apiextensions.k8s.io", "customresourcedefinitions")]);
    rig.call("POST", CLUSTER_ROLES, &role("ClusterRole", "definer", &only)).await.expect(201);
    let bound = binding("ClusterRoleBinding", "definer", "ClusterRole/definer", &named("User", "mallory"));
    rig.call("POST", CLUSTER_BINDINGS, &bound).await.expect(201);
    let mallory = async |method: &str, path: &str, body: &Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        rig.send(user("mallory", &[]), http::Request::builder().method(method).uri(path), body).await
    };
    let before = rig.built_in_objects();
    let definitions = rig.api.store().list(crd::STORAGE, None).objects.len();

    let registry = rig.api.registry();
    let core: Vec<_> = registry.all().iter().filter(|one| one.core && !one.group.is_empty()).collect();
    let mut names: Vec<&str> = core.iter().map(|one| one.plural.as_str()).collect();
    names.sort_unstable();
    for wanted in ["clusterroles", "customresourcedefinitions", "events", "leases", "tokenreviews"] {
        assert!(names.contains(&wanted), "{names:?}");
    }
    for resource in core {
        let (plural, group) = (resource.plural.as_str(), resource.group.as_str());
        for version in ["v9", "v1"] {
            let mut definition = claim(plural, group, "Claim");
            definition["spec"]["versions"][0]["name"] = version.into();
            let at = path(CRDS, definition["metadata"]["name"].as_str().unwrap());
            mallory("POST", CRDS, &definition).await.expect(201);
            let refused = mallory("GET", &at, &Value::Null).await.expect(200);
            assert_eq!(condition(&refused, "NamesAccepted"), "False", "{at}");
            assert_eq!(condition(&refused, "Established"), "False", "{at}");
            assert_eq!(refused["status"]["acceptedNames"]["plural"], "", "{at}");
            rig.get(&format!("/apis/{group}/v9/{plural}")).await.expect(404);
            let now = rig.api.registry();
            assert!(now.find(group, "v1", plural).is_some_and(|one| one.custom.is_none()), "{at} in {version}");
            mallory("DELETE", &at, &Value::Null).await.expect(200);
            rig.api.sweep().await.unwrap();
            mallory("GET", &at, &Value::Null).await.expect(404);
            assert_eq!(rig.built_in_objects(), before, "after {at} in {version}");
        }
    }
    // Neither by another of the kind's names: each is taken.
    for (names, group) in [
        (json!({"plural": "claims", "singular": "clusterrole", "kind": "Claim"}), "rbac.authorization.k8s.io"),
        (json!({"plural": "claims", "kind": "ClusterRole"}), "rbac.authorization.k8s.io"),
        (json!({"plural": "claims", "kind": "Claim", "listKind": "ClusterRoleList"}), "rbac.authorization.k8s.io"),
        (json!({"plural": "claims", "kind": "Claim", "shortNames": ["clusterroles"]}), "rbac.authorization.k8s.io"),
        (json!({"plural": "claims", "kind": "Claim", "shortNames": ["bmh"]}), "metal3.io"),
        (json!({"plural": "claims", "kind": "BootIntent"}), "slipway.dev"),
        (json!({"plural": "lease", "kind": "Claim"}), "coordination.k8s.io"),
    ] {
        let mut definition = claim("claims", group, "Claim");
        definition["metadata"]["name"] = format!("{}.{group}", names["plural"].as_str().unwrap()).into();
        definition["spec"]["names"] = names.clone();
        let made = mallory("POST", CRDS, &definition).await.expect(201);
        let at = path(CRDS, made["metadata"]["name"].as_str().unwrap());
        let refused = mallory("GET", &at, &Value::Null).await.expect(200);
        assert_eq!(condition(&refused, "Established"), "False", "{names}");
        mallory("DELETE", &at, &Value::Null).await.expect(200);
        rig.api.sweep().await.unwrap();
    }
    // Those of Slipway's own kinds are not hers to make or to delete.
    mallory("POST", CRDS, &claim("bootintents", "slipway.dev", "Claim")).await.expect(409);
    mallory("DELETE", &path(CRDS, "bootintents.slipway.dev"), &Value::Null).await.expect(403);
    assert_eq!(rig.built_in_objects(), before);
    assert_eq!(rig.api.store().list(crd::STORAGE, None).objects.len(), definitions);
}

/// A definition as an older version, or a restored copy, may have left it in the store: served, and on its way out.
fn established(mut definition: Value, ending: bool) -> Value {
    definition["metadata"]["uid"] = "0b8f9f66-6f4a-4a4b-9d0c-0d7b8b1e7a11".into();
    definition["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    if ending {
        definition["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
        definition["metadata"]["finalizers"] = json!([crd::FINALIZER]);
    }
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    definition["status"] = json!({
        "acceptedNames": definition["spec"]["names"],
        "conditions": [condition("NamesAccepted"), condition("Established")],
        "storedVersions": ["v9"],
    });
    definition
}

#[tokio::test]
async fn a_stored_claim_on_a_built_in_kind_is_neither_served_nor_swept() {
    let mut rig = Rig::new().await;
    rig.fill().await;
    let before = rig.built_in_objects();
    for (plural, group, ending) in [
        ("clusterroles", "rbac.authorization.k8s.io", true),
        ("clusterrolebindings", "rbac.authorization.k8s.io", false),
        ("leases", "coordination.k8s.io", true),
    ] {
        let definition = established(claim(plural, group, "Claim"), ending);
        let change = Mutation {
            resource: crd::STORAGE.into(),
            namespace: String::new(),
            name: format!("{plural}.{group}"),
            expect: Expect::Absent,
            value: Some(definition),
        };
        rig.api.store().write(change).await.unwrap();
    }
    // One of Slipway's own kinds, from the time when it was a user's, on its way out.
    let hosts = rig.api.store().get(crd::STORAGE, "", "baremetalhosts.metal3.io").unwrap();
    let mut value = hosts.value();
    value["metadata"]["annotations"] = json!({});
    value["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    value["metadata"]["finalizers"] = json!([crd::FINALIZER]);
    let change = Mutation {
        resource: crd::STORAGE.into(),
        namespace: String::new(),
        name: "baremetalhosts.metal3.io".into(),
        expect: Expect::Revision(hosts.revision),
        value: Some(value),
    };
    rig.api.store().write(change).await.unwrap();

    rig.restart().await;
    rig.api.sweep().await.unwrap();
    for (plural, group) in [
        ("clusterroles", "rbac.authorization.k8s.io"),
        ("clusterrolebindings", "rbac.authorization.k8s.io"),
        ("leases", "coordination.k8s.io"),
    ] {
        rig.get(&format!("/apis/{group}/v9/{plural}")).await.expect(404);
    }
    assert_eq!(rig.built_in_objects(), before);
    // The ones on their way out are gone, the other one says what it is, and may go.
    rig.get(&path(CRDS, "clusterroles.rbac.authorization.k8s.io")).await.expect(404);
    rig.get(&path(CRDS, "leases.coordination.k8s.io")).await.expect(404);
    let at = path(CRDS, "clusterrolebindings.rbac.authorization.k8s.io");
    assert_eq!(condition(&rig.get(&at).await.expect(200), "Established"), "False");
    rig.call("DELETE", &at, &json!({})).await.expect(200);
    rig.api.sweep().await.unwrap();
    rig.get(&at).await.expect(404);
    assert_eq!(rig.built_in_objects(), before);
    let own = rig.get(&path(CRDS, "baremetalhosts.metal3.io")).await.expect(200);
    assert!(own["metadata"]["deletionTimestamp"].is_null(), "{own}");
    assert_eq!(own["metadata"]["annotations"]["slipway.dev/built-in"], "true");
}

#[tokio::test]
async fn a_status_gives_a_definition_no_other_kinds_name() {
    let rig = Rig::new().await;
    rig.fill().await;
    // Whoever may write the status of definitions says which names were accepted.
    let mut holder = claim("holders", "slipway.dev", "Holder");
    holder["spec"]["names"]["shortNames"] = json!(["claims"]);
    rig.call("POST", CRDS, &holder).await.expect(201);
    rig.call("POST", CRDS, &claim("claims", "slipway.dev", "Claim")).await.expect(201);
    let at = path(CRDS, "claims.slipway.dev");
    let mut forged = rig.get(&at).await.expect(200);
    forged["status"] = established(claim("bootintents", "slipway.dev", "Claim"), false)["status"].clone();
    rig.call("PUT", &format!("{at}/status"), &forged).await.expect(200);
    rig.get("/apis/slipway.dev/v9/bootintents").await.expect(404);
    let after = rig.get(&at).await.expect(200);
    assert_eq!(condition(&after, "Established"), "False");
    assert_ne!(after["status"]["acceptedNames"]["plural"], "bootintents");
}

#[tokio::test]
async fn a_kind_in_a_group_of_reviews_is_audited_as_any_other() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let log =
        audit::Audit::start(audit::AuditOptions { path: path.clone(), max_bytes: 1 << 20, max_files: 1 }).unwrap();
    rig.api.set_audit(log.clone());
    let group = "authorization.k8s.io";
    rig.call("POST", CRDS, &claim("widgets", group, "Widget")).await.expect(201);
    let widget = json!({"apiVersion": format!("{group}/v9"), "kind": "Widget", "metadata": {"name": "a"}});
    rig.call("POST", &format!("/apis/{group}/v9/widgets"), &widget).await.expect(201);
    rig.call(
        "POST",
        &format!("/apis/{group}/v1/selfsubjectaccessreviews"),
        &json!({"spec": {"resourceAttributes": {}}}),
    )
    .await
    .expect(201);
    log.close().await;
    let lines = std::fs::read_to_string(path).unwrap();
    assert!(lines.contains("\"resource\":\"widgets\"") && !lines.contains("selfsubjectaccessreviews"), "{lines}");
}
