//! Kinds in two versions: one object, two faces.

use proptest::prelude::*;

use super::*;
use crate::api::ServedVersion;

const OLD_CLUSTERS: &str = "/apis/cluster.x-k8s.io/v1beta1/namespaces/rack/clusters";
const CLUSTERS: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/rack/clusters";
const OLD_MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta1/namespaces/rack/machines";
const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/rack/machines";
const OLD_METAL: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/rack";
const METAL: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta2/namespaces/rack";
const APPLY: &str = "application/apply-patch+yaml";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn old_cluster() -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "metadata": {"name": "c"},
        "spec": {"infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
            "kind": "Metal3Cluster", "name": "c", "uid": "7"}},
    })
}

fn without_server_fields(mut object: Value) -> Value {
    let meta = object["metadata"].as_object_mut().unwrap();
    meta.retain(|name, _| matches!(name.as_str(), "name" | "annotations" | "labels"));
    object
}

#[tokio::test]
async fn what_one_version_writes_the_other_reads_and_nothing_is_lost() {
    let rig = Rig::new().await;
    let made = rig.call("POST", OLD_CLUSTERS, &old_cluster()).await;
    let warning = made.headers["warning"].to_str().unwrap().to_owned();
    assert_eq!(
        warning,
        "299 - \"cluster.x-k8s.io/v1beta1 Cluster is deprecated; use cluster.x-k8s.io/v1beta2 Cluster\""
    );
    assert_eq!(without_server_fields(made.expect(201)), old_cluster());
    let new = rig.get(&path(CLUSTERS, "c")).await.expect(200);
    let group = "infrastructure.cluster.x-k8s.io";
    assert_eq!(new["spec"], json!({"infrastructureRef": {"apiGroup": group, "kind": "Metal3Cluster", "name": "c"}}));
    assert_eq!(without_server_fields(rig.get(&path(OLD_CLUSTERS, "c")).await.expect(200)), old_cluster());
    // What only the new version can say survives a write in the old one.
    let status = json!({"status": {
        "initialization": {"infrastructureProvisioned": true},
        "failureDomains": [{"name": "b", "controlPlane": true}, {"name": "a"}],
        "workers": {"desiredReplicas": 3},
    }});
    rig.patch(&path(CLUSTERS, "c/status"), MERGE, &status).await.expect(200);
    let old = rig.get(&path(OLD_CLUSTERS, "c")).await.expect(200);
    assert_eq!(old["status"]["infrastructureReady"], true);
    assert_eq!(old["status"]["failureDomains"], json!({"a": {}, "b": {"controlPlane": true}}));
    assert_eq!(old["status"]["v1beta2"]["workers"]["desiredReplicas"], 3);
    rig.patch(&path(OLD_CLUSTERS, "c"), MERGE, &json!({"spec": {"paused": true}})).await.expect(200);
    let new = rig.get(&path(CLUSTERS, "c")).await.expect(200);
    assert_eq!((&new["spec"]["paused"], &new["status"]), (&json!(true), &status["status"]));
    // Server-side apply of the old version, over what the new one made.
    let mut config = old_cluster();
    config["spec"]["clusterNetwork"] = json!({"serviceDomain": "x.local"});
    let applied = rig.patch(&path(OLD_CLUSTERS, "c?fieldManager=me&force=true"), APPLY, &config).await.expect(200);
    assert_eq!(applied["spec"]["paused"], true);
    let new = rig.get(&path(CLUSTERS, "c")).await.expect(200);
    assert_eq!(new["spec"]["clusterNetwork"]["serviceDomain"], "x.local");
    assert_eq!(new["status"], status["status"]);
}

/// What an object says it lost on the way to another version is written by whoever writes the object.
#[tokio::test]
async fn nobody_forges_by_what_an_object_says_it_lost() {
    let rig = Rig::new().await;
    let lost = |lost: Value| json!({"metadata": {"annotations": {"slipway.dev/conversion-data": lost.to_string()}}});
    let forged = json!([
        {"path": ["metadata", "namespace"], "back": "rack", "was": "victim"},
        {"path": ["metadata", "name"], "back": "c", "was": "victim"},
        {"path": ["metadata", "ownerReferences"], "was": [{"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "1"}]},
        {"path": ["status"], "was": {"phase": "Provisioned"}},
        {"path": ["kind"], "back": "Cluster", "was": "Machine"},
    ]);
    let mut made = old_cluster();
    json_patch::merge(&mut made, &lost(forged.clone()));
    rig.call("POST", OLD_CLUSTERS, &made).await.expect(201);
    let is_unforged = async |status: &Value| {
        let new = rig.get(&path(CLUSTERS, "c")).await.expect(200);
        assert_eq!((&new["metadata"]["namespace"], &new["metadata"]["name"]), (&json!("rack"), &json!("c")));
        assert_eq!((&new["metadata"]["ownerReferences"], &new["kind"]), (&Value::Null, &json!("Cluster")));
        assert_eq!(&new["status"], status);
        new
    };
    is_unforged(&Value::Null).await;
    rig.patch(&path(OLD_CLUSTERS, "c"), MERGE, &lost(forged)).await.expect(200);
    is_unforged(&Value::Null).await;
    // Nor the spec by who writes the status, and the other way round.
    let status = json!({"phase": "Pending"});
    let mut told = lost(json!([{"path": ["spec", "paused"], "was": true}]));
    told["status"] = status.clone();
    rig.patch(&path(OLD_CLUSTERS, "c/status"), MERGE, &told).await.expect(200);
    assert_eq!(is_unforged(&status).await["spec"]["paused"], Value::Null);
    let told = lost(json!([{"path": ["status", "phase"], "back": "Pending", "was": "Provisioned"}]));
    rig.patch(&path(OLD_CLUSTERS, "c"), MERGE, &told).await.expect(200);
    is_unforged(&status).await;
    // What comes back into the spec is judged as what is sent.
    let told = lost(
        json!([{"path": ["spec", "infrastructureRef", "apiGroup"], "back": "infrastructure.cluster.x-k8s.io", "was": 7}]),
    );
    let refused = rig.patch(&path(OLD_CLUSTERS, "c"), MERGE, &told).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("apiGroup"), "{refused}");
}

#[tokio::test]
async fn each_version_has_its_columns_and_its_metadata() {
    let rig = Rig::new().await;
    rig.call("POST", OLD_CLUSTERS, &old_cluster()).await.expect(201);
    let table = async |path: &str| {
        let request = http::Request::get(path).header("accept", TABLE);
        rig.send(admin(), request, Body::empty()).await.expect(200)
    };
    let columns = |table: &Value| -> Vec<String> {
        let columns = table["columnDefinitions"].as_array().unwrap();
        let shown = columns.iter().filter(|column| column["priority"] == 0);
        shown.map(|column| column["name"].as_str().unwrap().to_owned()).collect()
    };
    let old = table(OLD_CLUSTERS).await;
    assert_eq!(columns(&old), ["Name", "ClusterClass", "Phase", "Age", "Version"]);
    let new = table(CLUSTERS).await;
    assert_eq!(columns(&new)[..5], ["Name", "ClusterClass", "Available", "CP Desired", "CP Available"]);
    assert_eq!(
        columns(&table(OLD_MACHINES).await),
        ["Name", "Cluster", "NodeName", "ProviderID", "Phase", "Age", "Version"]
    );
    assert_eq!(
        columns(&table(MACHINES).await)[..6],
        ["Name", "Cluster", "Node Name", "Failure domain", "Ready", "Available"]
    );
    let metal = |base: &str, plural: &str| format!("{base}/{plural}");
    assert_eq!(
        columns(&table(&metal(OLD_METAL, "metal3clusters")).await),
        ["Name", "Age", "Ready", "Error", "Cluster", "Endpoint"]
    );
    assert_eq!(
        columns(&table(&metal(METAL, "metal3clusters")).await),
        ["Name", "Age", "Provisioned", "Error", "Cluster", "Endpoint"]
    );
    assert_eq!(
        columns(&table(&metal(OLD_METAL, "metal3machines")).await),
        ["Name", "Age", "ProviderID", "Ready", "Cluster", "Phase"]
    );
    assert_eq!(
        columns(&table(&metal(METAL, "metal3machines")).await),
        ["Name", "Age", "ProviderID", "Provisioned", "Cluster"]
    );
    assert_eq!(columns(&table(&metal(METAL, "metal3machinetemplates")).await), ["Name", "Age"]);
    // What a row and a list of metadata show of the object is what this version shows.
    assert!(old["rows"][0]["object"]["metadata"]["annotations"].is_null(), "{old}");
    assert!(new["rows"][0]["object"]["metadata"]["annotations"].is_object(), "{new}");
    let request = http::Request::get(OLD_CLUSTERS)
        .header("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let partial = rig.send(admin(), request, Body::empty()).await.expect(200);
    assert!(partial["items"][0]["metadata"]["annotations"].is_null(), "{partial}");
}

#[tokio::test]
async fn defaults_and_rules_hold_in_both_versions() {
    let rig = Rig::new().await;
    let machine = |version: &str, name: &str, reference: Value| {
        json!({
            "apiVersion": format!("cluster.x-k8s.io/{version}"), "kind": "Machine", "metadata": {"name": name},
            "spec": {"clusterName": "c", "version": "1.35.0", "bootstrap": {"dataSecretName": "s"},
                "infrastructureRef": reference},
        })
    };
    let old = machine(
        "v1beta1",
        "a",
        json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
        "kind": "Metal3Machine", "name": "a", "namespace": "rack"}),
    );
    let made = rig.call("POST", OLD_MACHINES, &old).await.expect(201);
    assert_eq!((&made["spec"]["version"], &made["spec"]["nodeDeletionTimeout"]), (&json!("v1.35.0"), &json!("10s")));
    let read = rig.get(&path(MACHINES, "a")).await.expect(200);
    assert_eq!(read["spec"]["deletion"], json!({"nodeDeletionTimeoutSeconds": 10}));
    // Nothing was lost, so nothing is noted.
    assert!(read["metadata"]["annotations"].is_null(), "{read}");
    let new = machine(
        "v1beta2",
        "b",
        json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Machine",
        "name": "b"}),
    );
    let made = rig.call("POST", MACHINES, &new).await.expect(201);
    assert_eq!(made["spec"]["deletion"], json!({"nodeDeletionTimeoutSeconds": 10}));
    let read = rig.get(&path(OLD_MACHINES, "b")).await.expect(200);
    assert_eq!(read["spec"]["infrastructureRef"]["namespace"], "rack");
    let mut bare = new.clone();
    bare["metadata"]["name"] = "d".into();
    bare["spec"]["bootstrap"] = json!({});
    let refused = rig.call("POST", MACHINES, &bare).await.expect(422);
    let message = "spec.bootstrap: Invalid value: \"object\": either configRef or dataSecretName is required";
    assert!(refused["message"].as_str().unwrap().contains(message), "{refused}");

    let cluster = |version: &str, spec: Value| {
        json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": "Metal3Cluster",
            "metadata": {"generateName": "c-"}, "spec": spec})
    };
    let (old_clusters, clusters) = (format!("{OLD_METAL}/metal3clusters"), format!("{METAL}/metal3clusters"));
    let endpoint = json!({"host": "10.0.0.1"});
    let made = rig.call("POST", &clusters, &cluster("v1beta2", json!({"controlPlaneEndpoint": endpoint}))).await;
    let wanted = json!({"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}, "cloudProviderEnabled": false});
    assert_eq!(made.expect(201)["spec"], wanted);
    for (collection, version) in [(&old_clusters, "v1beta1"), (&clusters, "v1beta2")] {
        let refused = rig.call("POST", collection, &cluster(version, json!({}))).await.expect(422);
        let message = "spec.controlPlaneEndpoint: Invalid value: \"object\": is required";
        assert!(refused["message"].as_str().unwrap().contains(message), "{refused}");
    }
    let spec = json!({"controlPlaneEndpoint": endpoint, "noCloudProvider": true, "cloudProviderEnabled": true});
    rig.call("POST", &old_clusters, &cluster("v1beta1", spec)).await.expect(422);
    let spec = json!({"controlPlaneEndpoint": endpoint, "noCloudProvider": true});
    let made = rig.call("POST", &old_clusters, &cluster("v1beta1", spec)).await.expect(201);
    let name = made["metadata"]["name"].as_str().unwrap();
    assert_eq!(rig.get(&path(&clusters, name)).await.expect(200)["spec"]["cloudProviderEnabled"], false);

    let metal = |version: &str, spec: Value| {
        json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": "Metal3Machine",
            "metadata": {"generateName": "m-"}, "spec": spec})
    };
    let (old_machines, machines) = (format!("{OLD_METAL}/metal3machines"), format!("{METAL}/metal3machines"));
    for (code, format, spec) in [
        (422, None, json!({})),
        (422, None, json!({"image": {"url": "http://x/y"}})),
        (422, Some("qcow2"), json!({"image": {"url": "http://x/y"}})),
        (201, Some("live-iso"), json!({"image": {"url": "http://x/y"}})),
        (201, Some("raw"), json!({"image": {"url": "http://x/y", "checksum": "aa"}})),
        (201, None, json!({"image": {"url": "oci://x/y"}})),
        (422, None, json!({"image": {"url": "oci://x/y", "checksum": "aa"}})),
        (201, None, json!({"customDeploy": {"method": "x"}})),
        (422, Some("floppy"), json!({"image": {"url": "http://x/y", "checksum": "aa"}})),
    ] {
        for (collection, version, field) in [(&old_machines, "v1beta1", "format"), (&machines, "v1beta2", "diskFormat")]
        {
            let mut spec = spec.clone();
            if let Some(format) = format {
                spec["image"][field] = format.into();
            }
            let answer = rig.call("POST", collection, &metal(version, spec.clone())).await;
            assert_eq!(answer.code, code, "{version} {spec}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn both_versions_are_watched_and_deleted_alike() {
    let rig = Rig::new().await;
    rig.call("POST", OLD_CLUSTERS, &old_cluster()).await.expect(201);
    let request = http::Request::get(format!(
        "{CLUSTERS}?watch=true&timeoutSeconds=1&sendInitialEvents=true\
        &resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    ));
    let watched = rig.send(admin(), request, Body::empty()).await;
    let first: Value = serde_json::from_str(watched.text.lines().next().unwrap()).unwrap();
    assert_eq!(first["object"]["apiVersion"], "cluster.x-k8s.io/v1beta2");
    assert_eq!(first["object"]["spec"]["infrastructureRef"]["apiGroup"], "infrastructure.cluster.x-k8s.io");
    // Owners are found whatever version they are named by.
    let owner = rig.get(&path(OLD_CLUSTERS, "c")).await.expect(200);
    let mut owned = secret("s", &json!({}));
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
        "name": "c", "uid": owner["metadata"]["uid"]}]);
    rig.call("POST", SECRETS, &owned).await.expect(201);
    rig.call("DELETE", &path(CLUSTERS, "c"), &json!({})).await.expect(200);
    rig.get(&path(OLD_CLUSTERS, "c")).await.expect(404);
    rig.api.sweep().await.unwrap();
    rig.get(&path(SECRETS, "s")).await.expect(404);
}

#[tokio::test]
async fn definitions_say_which_contract_a_version_keeps() {
    let rig = Rig::new().await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let crd = rig.get(&path(crds, "metal3clusters.infrastructure.cluster.x-k8s.io")).await.expect(200);
    assert_eq!(crd["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1beta2");
    assert_eq!(crd["status"]["storedVersions"], json!(["v1beta2"]));
    assert_eq!(crd["spec"]["names"]["categories"], json!(["cluster-api"]));
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let stored: Vec<_> = versions.iter().map(|version| (version["name"].clone(), version["storage"].clone())).collect();
    assert_eq!(stored, [(json!("v1beta2"), json!(true)), (json!("v1beta1"), json!(false))]);
}

/// Any value that a schema allows, or nearly.
fn of_schema(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(Value::Array(choices)) = schema.get("enum") {
        return prop::sample::select(choices.clone()).boxed();
    }
    match schema["type"].as_str().unwrap_or_default() {
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "integer" => (0..100_i64).prop_map(Value::from).boxed(),
        "array" => prop::collection::vec(of_schema(&schema["items"]), 0..3).prop_map(Value::from).boxed(),
        "object" => {
            let named: Vec<BoxedStrategy<Option<(String, Value)>>> = schema["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, schema)| {
                    let name = name.clone();
                    prop::option::of(of_schema(schema).prop_map(move |value| (name.clone(), value))).boxed()
                })
                .collect();
            let others = match schema.get("additionalProperties") {
                Some(more) => prop::collection::btree_map("[a-c]", of_schema(more), 0..3).boxed(),
                None => Just(std::collections::BTreeMap::new()).boxed(),
            };
            (named, others)
                .prop_map(|(named, others)| Value::Object(named.into_iter().flatten().chain(others).collect()))
                .boxed()
        }
        // References, durations, names and what is neither.
        _ => prop_oneof!["[a-c]{0,2}", "[1-9]{1,2}[smh]", Just("g.io/v1".to_owned()), Just("rack".to_owned())]
            .prop_map(Value::from)
            .boxed(),
    }
}

/// Any object of a version of any kind that has two: the kind's versions, the version's name, the object.
fn any_object(stored: bool) -> impl Strategy<Value = (ServedVersion, Value)> {
    let kinds: Vec<BoxedStrategy<(ServedVersion, Value)>> = crate::modules::kinds()
        .into_iter()
        .flat_map(|kind| kind.also_served.into_iter().map(move |also_served| (also_served, kind.crd.spec.clone())))
        .filter_map(|(also_served, spec)| {
            let is_it = |name: &str, storage: bool| if stored { storage } else { name == also_served.version };
            let version = spec.versions.iter().find(|version| is_it(&version.name, version.storage))?;
            let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
            let schema = serde_json::to_value(schema).unwrap();
            let (api_version, kind) = (format!("{}/{}", spec.group, version.name), spec.names.kind);
            let objects = of_schema(&schema).prop_map(move |mut object| {
                object["apiVersion"] = api_version.as_str().into();
                object["kind"] = kind.as_str().into();
                object["metadata"] = json!({"name": "n", "namespace": "rack"});
                (also_served, object)
            });
            Some(objects.boxed())
        })
        .collect();
    // The test itself: there are some.
    assert!(kinds.len() >= 9, "{}", kinds.len());
    prop::strategy::Union::new(kinds)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_old_object_survives_being_stored((version, object) in any_object(false)) {
        let stored = versions::to_stored(object.clone(), &version);
        prop_assert_eq!(versions::from_stored(&stored, &version), object);
    }

    #[test]
    fn any_new_object_survives_an_old_client((version, object) in any_object(true)) {
        let shown = versions::from_stored(&object, &version);
        prop_assert_eq!(versions::to_stored(shown, &version), object);
    }

    /// Many turns of both kinds of clients, who change nothing, change nothing.
    #[test]
    fn turns_do_not_add_up((version, object) in any_object(false)) {
        let stored = versions::to_stored(object, &version);
        let shown = versions::from_stored(&stored, &version);
        let again = versions::to_stored(shown, &version);
        prop_assert_eq!(again, stored);
    }
}

/// What is built in could be applied by a user, too: the definitions are right as they are printed.
#[tokio::test]
async fn definitions_of_the_house_keep_the_rules_for_definitions() {
    let rig = Rig::new().await;
    for kind in crate::modules::kinds() {
        let mut crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.copy.example.org", kind.crd.spec.names.plural)}, "spec": kind.crd.spec});
        crd["spec"]["group"] = "copy.example.org".into();
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";
        rig.call("POST", crds, &crd).await.expect(201);
    }
}

/// What a controller could not read it would not follow: a deleted object would stay.
#[tokio::test]
async fn dates_that_controllers_cannot_read_are_refused_of_kinds_of_this_program() {
    let rig = Rig::new().await;
    let bootstrap = "/apis/bootstrap.cluster.x-k8s.io";
    let tokens = |date: &str| json!([{"token": "abcdef.0123456789abcdef", "expires": date}]);
    let configs = |version: &str| format!("{bootstrap}/{version}/namespaces/rack/kubeadmconfigs");
    let config = |version: &str, date: &str| {
        json!({"apiVersion": format!("bootstrap.cluster.x-k8s.io/{version}"), "kind": "KubeadmConfig",
            "metadata": {"name": "c"}, "spec": {"initConfiguration": {"bootstrapTokens": tokens(date)}}})
    };
    for version in ["v1beta1", "v1beta2"] {
        let all = configs(version);
        let refused = rig.call("POST", &all, &config(version, "9999-12-31T23:59:59Z")).await.expect(422);
        let message = refused["message"].as_str().unwrap();
        let place = "spec.initConfiguration.bootstrapTokens[0].expires in body must be of type date-time, before 9999";
        assert!(message.contains(place), "{message}");
        rig.call("POST", &all, &config(version, "9999-12-30T22:00:00Z")).await.expect(201);
        let patch = json!({"spec": {"initConfiguration": {"bootstrapTokens": tokens("9999-12-31T00:00:00Z")}}});
        rig.patch(&path(&all, "c"), MERGE, &patch).await.expect(422);
        rig.call("DELETE", &path(&all, "c"), &json!({})).await.expect(200);
    }
    let machines = "/apis/cluster.k8s.io/v1alpha1/namespaces/rack/machines";
    let machine = |date: &str| {
        json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m"}, "spec": {
            "taints": [{"key": "a", "effect": "NoExecute", "timeAdded": date}]}})
    };
    rig.call("POST", machines, &machine("9999-12-31T23:59:59Z")).await.expect(422);
    rig.call("POST", machines, &machine("2026-01-01T00:00:00Z")).await.expect(201);
}
