//! Health checks: who has failed, what is done, and when nothing is.

use serde_json::{Value, json};

use super::site::{NAMESPACE, Site, is_of, says};
use crate::api::cluster::keys::{ANNOTATION_REMEDIATE, ANNOTATION_SKIP_REMEDIATION};
use crate::api::cluster::v1beta2::{Machine, MachineHealthCheck};

fn check(spec: Value) -> Value {
    let mut check = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
        "metadata": {"name": "h", "namespace": NAMESPACE},
        "spec": {"clusterName": "c", "selector": {"matchLabels": {"tier": "web"}}},
    });
    json_patch::merge(&mut check["spec"], &spec);
    check
}

async fn is(site: &Site, name: &str, type_: &str, wanted: &str) -> Machine {
    let what = format!("{name} says {type_} {wanted}");
    site.until::<Machine>(&what, name, |machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        says(&conditions, type_) == wanted
    })
    .await
}

#[tokio::test]
async fn a_machine_that_fails_is_given_to_its_owner_while_few_fail() {
    let site = Site::new().await;
    site.made_cluster().await;
    for name in ["a", "b", "exempt"] {
        site.machine(name, json!({"tier": "web"})).await;
        if name == "exempt" {
            let exempt = json!({"metadata": {"annotations": {ANNOTATION_SKIP_REMEDIATION: ""}}});
            site.patch::<Machine>(name, exempt).await;
        }
        site.running(name).await;
    }
    let conditions = json!([{"type": "Ready", "status": "False", "timeoutSeconds": 0}]);
    let spec = json!({"checks": {"unhealthyNodeConditions": conditions},
        "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "50%"}}});
    site.apply(check(spec)).await;
    is(&site, "a", "HealthCheckSucceeded", "True HealthCheckSucceeded").await;
    let fail = |name: &str| {
        let path = format!("/api/v1/nodes/{name}");
        let mut node = site.played.get(&path).unwrap();
        node["status"]["conditions"][0]["status"] = "False".into();
        node["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
        site.played.put(&path, node);
    };
    fail("a");
    is(&site, "a", "HealthCheckSucceeded", "False UnhealthyNode").await;
    is(&site, "a", "OwnerRemediated", "False WaitingForRemediation").await;
    let seen = site
        .until::<MachineHealthCheck>("it counts", "h", |check| {
            check.status.as_ref().is_some_and(|status| status.current_healthy == Some(1))
        })
        .await
        .status
        .unwrap();
    assert_eq!(
        (seen.expected_machines, seen.remediations_allowed, seen.targets),
        (Some(2), Some(0), vec!["a".to_owned(), "b".to_owned()])
    );
    fail("b");
    fail("exempt");
    is(&site, "b", "HealthCheckSucceeded", "False UnhealthyNode").await;
    site.until::<MachineHealthCheck>("too many have failed", "h", |check| {
        let conditions = check.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        says(&conditions, "RemediationAllowed") == "False TooManyUnhealthy"
    })
    .await;
    is(&site, "b", "OwnerRemediated", "").await;
    is(&site, "exempt", "HealthCheckSucceeded", "").await;
}

#[tokio::test]
async fn a_template_says_who_remediates_and_what_is_well_again_is_left_alone() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.machine("a", json!({"tier": "web"})).await;
    site.running("a").await;
    let template = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "TestRemediationTemplate",
        "name": "r"});
    site.apply(check(json!({"remediation": {"templateRef": template}}))).await;
    is(&site, "a", "HealthCheckSucceeded", "True HealthCheckSucceeded").await;
    let mark = |value: Value| json!({"metadata": {"annotations": {ANNOTATION_REMEDIATE: value}}});
    site.patch::<Machine>("a", mark("".into())).await;
    is(&site, "a", "ExternallyRemediated", "False RemediationTemplateNotFound").await;
    site.play("TestRemediationTemplate", "r", json!({"template": {"spec": {"strategy": "Reboot"}}})).await;
    is(&site, "a", "ExternallyRemediated", "False WaitingForRemediation").await;
    let made = site.of("TestRemediation").get("a").await.unwrap();
    assert_eq!(made.data["spec"]["strategy"], "Reboot");
    assert!(is_of(&made, "Machine", "a"));
    site.patch::<Machine>("a", mark(Value::Null)).await;
    is(&site, "a", "HealthCheckSucceeded", "True HealthCheckSucceeded").await;
    site.when("it is withdrawn", async || site.of("TestRemediation").get_opt("a").await.unwrap().is_none()).await;
    is(&site, "a", "ExternallyRemediated", "").await;
}

#[tokio::test]
async fn nobody_is_to_blame_for_what_cannot_be_seen() {
    let site = Site::new().await;
    site.made_cluster().await;
    site.machine("a", json!({"tier": "web"})).await;
    site.running("a").await;
    site.apply(check(json!({"checks": {"nodeStartupTimeoutSeconds": 1}}))).await;
    is(&site, "a", "HealthCheckSucceeded", "True HealthCheckSucceeded").await;
    site.played.fall_silent(Some("no route to host"));
    site.until::<MachineHealthCheck>("it says so", "h", |check| {
        let conditions = check.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        says(&conditions, "RemediationAllowed") == "Unknown ConnectionDown"
    })
    .await;
    is(&site, "a", "HealthCheckSucceeded", "True HealthCheckSucceeded").await;
}
