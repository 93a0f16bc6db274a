//! What somebody with `edit` in one namespace might try.

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::site::{Site, cluster, machine, of};
use crate::api::kaas::PublicKey;
use crate::api::lcm::{LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;

const FAR: &str = "far";

async fn far<K>(client: &Client, object: Value) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let mut object = object;
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let api = Api::<K>::namespaced(client.clone(), FAR);
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

/// A second namespace, with a key, a Secret and a host in it that are nobody's business here.
async fn two() -> Site {
    let site = Site::new().await;
    site.releases().await;
    site.namespace(FAR).await;
    far::<PublicKey>(
        &site.client,
        json!({"metadata": {"name": "theirs"}, "spec": {"publicKey": "ssh-ed25519 FFFF far"}}),
    )
    .await;
    far::<Secret>(&site.client, json!({"metadata": {"name": "prize"}, "stringData": {"userData": "prize"}})).await;
    far::<BareMetalHost>(
        &site.client,
        json!({"metadata": {"name": "h", "labels": of("m")}, "spec": {"online": false}}),
    )
    .await;
    site
}

#[tokio::test]
async fn nothing_of_another_namespace_is_had_by_its_name() {
    let site = two().await;
    // A key of another namespace: the name means one's own.
    site.create::<Cluster>(cluster("edge", json!({"publicKeys": [{"name": "theirs"}]}))).await;
    site.says("edge", "Provider", "InvalidPublicKey", "there is no PublicKey \"theirs\" in this namespace").await;
    site.there("edge", "has no key", |lcm: &LCMCluster| lcm.spec.ssh_authorized_keys.is_empty()).await;
    let named =
        site.try_create::<Cluster>(cluster("f", json!({"publicKeys": [{"name": "theirs", "namespace": FAR}]}))).await;
    assert!(named.is_err(), "{named:?}");
    // User data of another namespace.
    let refused = site
        .try_create::<Machine>(machine("m", "edge", true, json!({"userData": {"name": "prize", "namespace": FAR}})))
        .await;
    assert!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("only those of the Machine's own")),
        "{refused:?}"
    );
    site.create::<Machine>(machine("m", "edge", true, json!({"userData": {"name": "prize"}}))).await;
    site.machine_says("m", "waiting for the Secret \"prize\"").await;
    assert!(site.get::<Secret>("m-lcm-user-data").await.is_none());
    // A host of another namespace, even where the Machine says that it has it.
    let mut other = machine("n", "edge", true, json!({"hostSelector": {"matchLabels": of("m")}}));
    other["metadata"]["annotations"] = json!({"metal3.io/BareMetalHost": format!("{FAR}/h")});
    site.create::<Machine>(other).await;
    let none = |machine: &Machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|one| one.reason.as_deref() == Some("NoBareMetalHost"))
    };
    site.there("n", "finds no host", none).await;
    let host = Api::<BareMetalHost>::namespaced(site.client.clone(), FAR).get("h").await.unwrap();
    assert!(host.spec.consumer_ref.is_none() && host.spec.image.is_none(), "{}", json!(host.spec));
    // A cluster of another namespace.
    let theirs: Machine = far(&site.client, machine("t", "edge", true, json!({}))).await;
    assert!(
        Api::<LCMMachine>::namespaced(site.client.clone(), FAR).get_opt(&theirs.name_any()).await.unwrap().is_none()
    );
}

#[tokio::test]
async fn accounts_and_secrets_of_users_are_not_taken_over() {
    let site = Site::new().await;
    site.releases().await;
    site.free("m", of("m")).await;
    let taken = site.create::<ServiceAccount>(json!({"metadata": {"name": "lcm-m"}})).await;
    let keys = site.create::<ServiceAccount>(json!({"metadata": {"name": "helm-edge"}})).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "NameTaken", "the ServiceAccount \"helm-edge\" is not of the Cluster edge").await;
    assert!(site.get::<LCMCluster>("edge").await.is_none() && site.get::<RoleBinding>("helm-edge").await.is_none());
    assert_eq!(site.get::<ServiceAccount>("helm-edge").await.unwrap().resource_version(), keys.resource_version());
    site.delete::<ServiceAccount>("helm-edge").await;
    // Somebody looks at the cluster again when it changes.
    site.change::<Cluster>("edge", json!({"metadata": {"labels": {"again": "1"}}})).await;
    site.says("edge", "Provider", "Provided", "").await;

    site.create::<Machine>(machine("m", "edge", true, json!({}))).await;
    site.machine_says("m", "the ServiceAccount \"lcm-m\" is not of the Machine m").await;
    let host: BareMetalHost = site.get("m").await.unwrap();
    assert!(host.spec.image.is_none(), "a host runs nothing before its agent could report");
    assert!(site.get::<RoleBinding>("lcm-m").await.is_none() && site.get::<Role>("lcm-m").await.is_none());
    assert_eq!(site.get::<ServiceAccount>("lcm-m").await.unwrap().resource_version(), taken.resource_version());
    // Neither is a Secret of the name that user data has.
    site.create::<Secret>(json!({"metadata": {"name": "m-lcm-user-data"}, "stringData": {"userData": "evil"}})).await;
    site.delete::<ServiceAccount>("lcm-m").await;
    site.change::<Machine>("m", json!({"metadata": {"labels": {"again": "1"}}})).await;
    site.machine_says("m", "the Secret \"m-lcm-user-data\" is not of the Machine m").await;
    let host: BareMetalHost = site.get("m").await.unwrap();
    assert!(host.spec.image.is_none(), "a host is told no user data of somebody else's making");
    site.delete::<Secret>("m-lcm-user-data").await;
    site.change::<Machine>("m", json!({"metadata": {"labels": {"again": "2"}}})).await;
    site.there("m", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
}

#[tokio::test]
async fn an_account_that_could_do_more_is_not_an_agents() {
    let site = Site::new().await;
    site.releases().await;
    site.free("m", of("m")).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    // It waits for its user data, and meanwhile somebody makes what it will need, in its name.
    let machine: Machine = site.create(machine("m", "edge", true, json!({"userData": {"name": "later"}}))).await;
    site.there("lcm-m", "is made", |_: &RoleBinding| true).await;
    let wide = json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]});
    let roles = site.api::<Role>();
    roles.patch("lcm-m", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(&wide)).await.unwrap();
    site.change::<Machine>("m", json!({"metadata": {"labels": {"again": "1"}}})).await;
    let narrow = |role: &Role| !json!(role.rules).to_string().contains("secrets");
    site.there("lcm-m", "allows what an agent needs, and no more", narrow).await;
    let groups = json!({"metadata": {"annotations": {"slipway.dev/groups": "system:masters"}}});
    site.change::<ServiceAccount>("lcm-m", groups).await;
    site.change::<Machine>("m", json!({"metadata": {"labels": {"again": "2"}}})).await;
    site.machine_says("m", "slipway.dev/groups").await;
    assert!(machine.uid().is_some() && site.get::<Secret>("m-lcm-user-data").await.is_none());
}

#[tokio::test]
async fn the_user_data_of_one_node_is_not_anothers() {
    let site = Site::new().await;
    site.releases().await;
    site.free("m", of("m")).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.create::<Machine>(machine("m", "edge", true, json!({}))).await;
    site.there("m", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    site.create::<Machine>(machine("n", "edge", false, json!({"userData": {"name": "m-lcm-user-data"}}))).await;
    site.machine_says("n", "name another Secret").await;
    assert!(site.get::<Secret>("n-lcm-user-data").await.is_none());
    // A machine stays in its cluster: its token is for that.
    site.create::<Cluster>(cluster("other", json!({"loadBalancerHost": "192.0.2.6"}))).await;
    let moved = json!({"metadata": {"labels": {"cluster.sigs.k8s.io/cluster-name": "other"}}});
    let refused = site.try_change::<Machine>("m", moved).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("stays in it")), "{refused:?}");
}
