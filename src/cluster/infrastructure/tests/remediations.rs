//! Metal3Remediations.

use super::*;

const OFF: &str = "reboot.metal3.io/metal3-remediation-";

/// A machine that is a node, and its remediation.
async fn unwell(site: &Site, strategy: Value) -> Played {
    site.cluster("c").await;
    let played = site.answers("c");
    site.free("h", json!({})).await;
    let machine = site.wish("m", "c", json!({})).await;
    site.node("m", "h", &played).await;
    site.change::<Machine>("m", json!({"status": {"nodeRef": {"name": "m"}}})).await;
    site.change::<BareMetalHost>("h", json!({"status": {"poweredOn": true}})).await;
    site.create::<Metal3Remediation>(json!({
        "metadata": {"name": "m", "ownerReferences": [owner(&machine)]}, "spec": {"strategy": strategy},
    }))
    .await;
    played
}

fn is_kept_off(host: &BareMetalHost) -> bool {
    host.annotations().keys().any(|key| key.starts_with(OFF))
}

fn taints(node: &Value) -> usize {
    node["spec"]["taints"].as_array().map_or(0, Vec::len)
}

async fn phase(site: &Site, wanted: &str) -> Metal3Remediation {
    let is = |remediation: Option<&Metal3Remediation>| {
        remediation.and_then(|one| one.status.as_ref()?.phase.as_deref()) == Some(wanted)
    };
    site.until("m", wanted, is).await.unwrap()
}

#[tokio::test]
async fn a_machine_is_rebooted_and_its_node_is_out_of_service_meanwhile() {
    let site = Site::new().await;
    let played = unwell(&site, json!({"type": "Reboot"})).await;
    let host = site.host("h", "is kept off", is_kept_off).await;
    let mode = host.annotations().iter().find(|(key, _)| key.starts_with(OFF)).map(|(_, value)| value.as_str());
    assert_eq!(mode, Some("{\"mode\":\"hard\"}"));
    phase(&site, "Running").await;
    // As long as the machine is on, its node is what it was.
    assert_eq!(taints(&node(&played, "m")), 0);
    let metadata = json!({"name": "p", "namespace": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "m", "containers": []}});
    played.put("/api/v1/namespaces/x/pods/p", pod);
    site.change::<BareMetalHost>("h", json!({"status": {"poweredOn": false}})).await;
    let wait = async {
        while taints(&node(&played, "m")) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.expect("the taint");
    played.remove("/api/v1/namespaces/x/pods/p");
    // Everything on it has ended: it may come back.
    site.host("h", "may be on", |host| !is_kept_off(host)).await;
    phase(&site, "Waiting").await;
    site.change::<BareMetalHost>("h", json!({"status": {"poweredOn": true}})).await;
    let done = |remediation: Option<&Metal3Remediation>| remediation.is_some_and(|one| one.finalizers().is_empty());
    site.until("m", "is done", done).await;
    assert_eq!(taints(&node(&played, "m")), 0);
    site.delete::<Metal3Remediation>("m").await;
    site.gone::<Metal3Remediation>("m").await;
}

#[tokio::test]
async fn a_machine_that_stays_unwell_is_left_to_its_owner() {
    let site = Site::new().await;
    unwell(&site, json!({"type": "Reboot", "retryLimit": 1, "timeoutSeconds": 100})).await;
    phase(&site, "Running").await;
    // The time that it has is over, twice.
    for tried in [None, Some(1)] {
        site.host("h", "is kept off", is_kept_off).await;
        let long_ago = json!({"phase": "Waiting", "lastRemediated": "2020-01-01T00:00:00Z", "retryCount": tried});
        site.change::<Metal3Remediation>("m", json!({"status": long_ago})).await;
        if tried.is_none() {
            let again =
                |one: Option<&Metal3Remediation>| one.and_then(|one| one.status.as_ref()?.retry_count) == Some(1);
            site.until("m", "is tried again", again).await;
        }
    }
    phase(&site, "Deleting machine").await;
    let host = site.get::<BareMetalHost>("h").await.unwrap();
    assert!(host.annotations().contains_key("capm3.metal3.io/unhealthy") && !is_kept_off(&host));
    let machine = site.get::<Machine>("m").await.unwrap();
    let condition = find(&machine.status.as_ref().unwrap().conditions, "OwnerRemediated").cloned().unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "WaitingForRemediation"));
    // Nothing keeps it from going, though its machine goes first.
    site.delete::<Machine>("m").await;
    site.gone::<Metal3Remediation>("m").await;
}

#[tokio::test]
async fn one_that_goes_early_leaves_the_host_on() {
    let site = Site::new().await;
    unwell(&site, json!({"type": "Reboot"})).await;
    site.host("h", "is kept off", is_kept_off).await;
    site.delete::<Metal3Remediation>("m").await;
    site.gone::<Metal3Remediation>("m").await;
    assert!(!is_kept_off(&site.get::<BareMetalHost>("h").await.unwrap()));
}
