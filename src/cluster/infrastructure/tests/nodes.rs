//! Nodes that machines leave behind.

use super::*;

#[tokio::test]
async fn nodes_that_a_hosts_machines_left_behind_stand_in_nobodys_way() {
    let site = Site::new().await;
    site.cluster("c").await;
    site.change::<Cluster>("c", json!({"status": {"initialization": {"controlPlaneInitialized": true}}})).await;
    let cluster = site.answers("c");
    let left = |name: &str, machine: &str, uid: &str| {
        put_node(&cluster, name, json!({"metal3.io/uuid": uid}));
        let mut node = node(&cluster, name);
        node["spec"]["providerID"] = format!("metal3://{NAMESPACE}/h/{machine}").into();
        cluster.put(&format!("/api/v1/nodes/{name}"), node);
    };
    site.free("h", json!({"spec": {"online": false}})).await;
    let uid = site.get::<BareMetalHost>("h").await.and_then(|host| host.uid()).expect("a UID");
    left("before", "before", &uid);
    put_node(&cluster, "others", json!({"metal3.io/uuid": "other"}));
    site.wish("m", "c", json!({})).await;
    site.host("h", "is told what to run", |host| host.spec.image.is_some()).await;
    assert_eq!(cluster.get("/api/v1/nodes/before"), None, "it went before anything runs that may have its name");
    assert!(cluster.get("/api/v1/nodes/others").is_some());
    // Whoever deletes slowly, or was not asked then, is in nobody's way either.
    left("late", "before", &uid);
    site.node("m", "h", &cluster).await;
    assert_eq!(node(&cluster, "m")["spec"]["providerID"], format!("metal3://{NAMESPACE}/h/m"));
    let gone = async {
        while cluster.get("/api/v1/nodes/late").is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), gone).await.expect("it is deleted in time");
}
