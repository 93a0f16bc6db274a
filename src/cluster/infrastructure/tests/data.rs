//! Meta data and network data: who makes them is played.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};

use super::*;

const FINALIZER: &str = "metal3machine.infrastructure.cluster.x-k8s.io";

fn resource(kind: &str, plural: &str) -> ApiResource {
    let (group, version) = ("infrastructure.cluster.x-k8s.io".to_owned(), "v1beta2".to_owned());
    let api_version = format!("{group}/{version}");
    ApiResource { group, version, api_version, kind: kind.into(), plural: plural.into() }
}

impl Site {
    /// The objects of a kind, which is defined if nobody here keeps it.
    async fn kind(&self, kind: &str, plural: &str) -> Api<DynamicObject> {
        let group = "infrastructure.cluster.x-k8s.io";
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}"), "labels": {"cluster.x-k8s.io/v1beta2": "v1beta2"}},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
                "versions": [{
                    "name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        let api = Api::namespaced_with(self.client.clone(), NAMESPACE, &resource(kind, plural));
        if api.list(&ListParams::default()).await.is_err() {
            let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
            let definitions = Api::<CustomResourceDefinition>::all(self.client.clone());
            definitions.create(&PostParams::default(), &definition).await.unwrap();
            let wait = async {
                while api.list(&ListParams::default()).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(120), wait).await.expect("the kind is served");
        }
        api
    }
}

async fn there(api: &Api<DynamicObject>, name: &str) -> DynamicObject {
    let wait = async {
        loop {
            if let Some(object) = api.get_opt(name).await.unwrap() {
                return object;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.expect("the object")
}

async fn say(api: &Api<DynamicObject>, name: &str, status: Value) {
    let patch = json!({ "status": status });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test]
async fn data_is_claimed_waited_for_and_let_go_after_the_host() {
    // What becomes of the data wakes the machine, which does not look by itself.
    let site = Site::with(1, Pauses { node: SHORT, data: Duration::from_secs(3600) }).await;
    let claims = site.kind("Metal3DataClaim", "metal3dataclaims").await;
    let datas = site.kind("Metal3Data", "metal3datas").await;
    site.cluster("c").await;
    site.free("h", json!({})).await;
    site.wish("m", "c", json!({"spec": {"dataTemplate": {"name": "t"}}})).await;
    let claim = there(&claims, "m").await;
    assert_eq!(claim.data["spec"]["template"], json!({"name": "t", "namespace": NAMESPACE}));
    assert!(claim.finalizers().iter().any(|one| one == FINALIZER));
    // The host is the machine's, and is told nothing yet.
    let host = site.host("h", "is the machine's", |host| is_of(host, "m")).await;
    assert!(host.spec.image.is_none());
    site.says("m", "Metal3DataReady", "WaitingForMetal3Data").await;
    say(&claims, "m", json!({"errorMessage": "no such template"})).await;
    let waits = |machine: &Metal3Machine| json!(machine.status).to_string().contains("no such template");
    site.machine("m", "repeats the error", waits).await;
    let mut data = DynamicObject::new("t-0", &resource("Metal3Data", "metal3datas")).data(json!({"spec": {
        "index": 0, "claim": {"name": "m", "namespace": NAMESPACE}, "template": {"name": "t", "namespace": NAMESPACE},
        "metaData": {"name": "m-metadata"}, "networkData": {"name": "m-networkdata"},
    }}));
    data.metadata.namespace = Some(NAMESPACE.into());
    datas.create(&PostParams::default(), &data).await.unwrap();
    say(&claims, "m", json!({"errorMessage": null, "renderedData": {"name": "t-0", "namespace": NAMESPACE}})).await;
    let waits = |machine: &Metal3Machine| json!(machine.status).to_string().contains("Waiting for the Metal3Data");
    site.machine("m", "waits for its data", waits).await;
    assert!(site.get::<BareMetalHost>("h").await.unwrap().spec.image.is_none());
    say(&datas, "t-0", json!({"ready": true})).await;
    let host = site.host("h", "is told what to run", |host| host.spec.image.is_some()).await;
    assert_eq!(json!(host.spec.meta_data), json!({"name": "m-metadata", "namespace": NAMESPACE}));
    assert_eq!(json!(host.spec.network_data), json!({"name": "m-networkdata", "namespace": NAMESPACE}));
    let machine = site.get::<Metal3Machine>("m").await.unwrap().status.unwrap();
    assert_eq!(machine.rendered_data.map(|data| data.name).as_deref(), Some("t-0"));
    // As long as the host runs it may use what was claimed.
    site.state("h", "deprovisioning").await;
    site.delete::<Metal3Machine>("m").await;
    site.host("h", "loses its data", |host| host.spec.network_data.is_none() && host.spec.meta_data.is_none()).await;
    let kept = there(&claims, "m").await;
    assert!(kept.metadata.deletion_timestamp.is_none() && kept.finalizers().iter().any(|one| one == FINALIZER));
    site.state("h", "available").await;
    site.gone::<Metal3Machine>("m").await;
    let claim = claims.get_opt("m").await.unwrap();
    assert!(claim.is_none_or(|claim| !claim.finalizers().iter().any(|one| one == FINALIZER)));
}
