//! Control planes through the API that their users have. The rest of the life is played: clusters, machines and nodes.

mod played;

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use played::{CLUSTER, Site};

use super::controller::ControlPlaneTimes;
use super::health::NODE_MARKED;
use super::status::OWNER_REMEDIATED;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::api::control_plane::{
    ANNOTATION_CLEANUP_HOOK, ANNOTATION_REMEDIATING, ANNOTATION_REMEDIATION_FOR, FINALIZER,
};
use crate::runtime::conditions;

fn shown(plane: &KubeadmControlPlane, type_: &str) -> String {
    let conditions = plane.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions::find(conditions, type_).map(|one| format!("{} {}", one.status, one.reason)).unwrap_or_default()
}

fn replicas(plane: &KubeadmControlPlane) -> [Option<i32>; 4] {
    let status = plane.status.clone().unwrap_or_default();
    [status.replicas, status.ready_replicas, status.available_replicas, status.up_to_date_replicas]
}

#[tokio::test]
async fn machines_come_one_by_one() {
    let site = Site::new().await;
    site.create(3, "v1.34.0").await;
    site.until("three machines", async || replicas(&site.plane().await) == [Some(3); 4]).await;
    let plane = site.plane().await;
    for (type_, wanted) in [
        ("Available", "True Available"),
        ("Initialized", "True Initialized"),
        ("EtcdClusterHealthy", "True Healthy"),
        ("ControlPlaneComponentsHealthy", "True Healthy"),
        ("CertificatesAvailable", "True Available"),
        ("ScalingUp", "False NotScalingUp"),
    ] {
        site.until(type_, async || shown(&site.plane().await, type_) == wanted).await;
    }
    assert_eq!(plane.status.clone().unwrap().version.as_deref(), Some("v1.34.0"));
    assert!(plane.finalizers().contains(&FINALIZER.to_owned()));
    let machines = site.machines().await;
    for machine in &machines {
        let status = machine.status.clone().unwrap_or_default();
        let old = status.deprecated.and_then(|old| old.v1beta1).unwrap_or_default().conditions;
        assert!(conditions::find_old(&old, "APIServerPodHealthy").is_some());
        assert!(conditions::find_old(&old, NODE_MARKED).is_none());
        assert!(conditions::is_true(&status.conditions, NODE_MARKED));
    }
    // Only one has begun the cluster, and none came before the one before it was well.
    let begun: Vec<String> = site
        .configs()
        .await
        .iter()
        .filter(|config| config.spec.join_configuration.as_ref().is_none_or(|join| join.control_plane.is_none()))
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(begun.len(), 1, "{begun:?}");
    assert_eq!(site.played.most_at_once(), 1);
    for machine in &machines {
        assert!(machine.annotations().contains_key(ANNOTATION_CLEANUP_HOOK));
        assert_eq!(machine.labels()["cluster.x-k8s.io/cluster-name"], CLUSTER);
        assert_eq!(machine.labels()["cluster.x-k8s.io/control-plane"], "");
        assert_eq!(machine.labels()["cluster.x-k8s.io/control-plane-name"], "plane");
        assert_eq!(machine.spec.readiness_gates.len(), 6);
        let owner = &machine.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.controller), ("KubeadmControlPlane", Some(true)));
        let infrastructure = site.infrastructure(&machine.name_any()).await;
        assert_eq!(infrastructure.annotations()["cluster.x-k8s.io/cloned-from-name"], "template");
        assert_eq!(infrastructure.owner_references()[0].kind, "KubeadmControlPlane");
    }
}

#[tokio::test]
async fn machines_are_rolled_out_and_what_runs_follows() {
    let site = Site::new().await;
    site.create(3, "v1.33.0").await;
    site.until("three machines", async || replicas(&site.plane().await) == [Some(3); 4]).await;
    let before: Vec<String> = site.machines().await.iter().map(ResourceExt::name_any).collect();
    site.patch(json!({"spec": {"version": "v1.34.0"}})).await;
    site.until("the new version", async || {
        let plane = site.plane().await;
        replicas(&plane) == [Some(3); 4] && plane.status.unwrap_or_default().version.as_deref() == Some("v1.34.0")
    })
    .await;
    let after = site.machines().await;
    assert!(after.iter().all(|machine| !before.contains(&machine.name_any())), "all were replaced");
    assert_eq!(site.played.members().len(), 3);
    assert!(site.played.handed_over() > 0, "the lead was handed on");
    assert!(site.played.least_members() >= 3, "there was never one less than before");
    let config = site.played.kept("/api/v1/namespaces/kube-system/configmaps/kubeadm-config").unwrap();
    assert!(config["data"]["ClusterConfiguration"].as_str().unwrap().contains("v1.34.0"));
    assert!(
        site.played
            .kept("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kubeadm:apiserver-kubelet-client")
            .is_some()
    );
    site.until("kube-proxy", async || {
        let set = site.played.kept("/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy").unwrap();
        set.pointer("/spec/template/spec/containers/0/image") == Some(&json!("registry.k8s.io/kube-proxy:v1.34.0"))
    })
    .await;
    site.until("done", async || shown(&site.plane().await, "RollingOut") == "False NotRollingOut").await;
}

#[tokio::test]
async fn an_unhealthy_machine_is_replaced() {
    let site = Site::new().await;
    site.create(3, "v1.34.0").await;
    site.until("three machines", async || replicas(&site.plane().await) == [Some(3); 4]).await;
    let ill = site.machines().await[0].name_any();
    site.played.fail(&ill);
    site.say(&ill, &[("HealthCheckSucceeded", "False"), (OWNER_REMEDIATED, "False")]).await;
    site.until("another machine", async || {
        let machines = site.machines().await;
        machines.len() == 3 && machines.iter().all(|machine| machine.name_any() != ill)
    })
    .await;
    let machines = site.machines().await;
    let replacing = machines.iter().filter_map(|machine| machine.annotations().get(ANNOTATION_REMEDIATION_FOR));
    let replacing: Vec<Value> = replacing.map(|text| serde_json::from_str(text).unwrap()).collect();
    assert_eq!(replacing.len(), 1);
    assert_eq!((&replacing[0]["machine"], &replacing[0]["retryCount"]), (&json!(ill), &json!(0)));
    site.until("the note is gone", async || !site.plane().await.annotations().contains_key(ANNOTATION_REMEDIATING))
        .await;
    site.until("it is shown", async || {
        site.plane().await.status.unwrap().last_remediation.is_some_and(|last| last.machine == ill)
    })
    .await;
    // The status may still be that of the time before.
    site.until("all well", async || site.played.members().len() == 3 && replicas(&site.plane().await) == [Some(3); 4])
        .await;
}

#[tokio::test]
async fn the_only_machine_is_not_replaced() {
    let site = Site::new().await;
    site.create(1, "v1.34.0").await;
    site.until("a machine", async || replicas(&site.plane().await) == [Some(1); 4]).await;
    let ill = site.machines().await[0].name_any();
    site.say(&ill, &[("HealthCheckSucceeded", "False"), (OWNER_REMEDIATED, "False")]).await;
    site.until("a refusal", async || {
        let machine = &site.machines().await[0];
        let all = machine.status.as_ref().unwrap().conditions.clone();
        conditions::find(&all, OWNER_REMEDIATED).is_some_and(|one| one.reason == "CannotBeRemediated")
    })
    .await;
    site.until("it is shown", async || shown(&site.plane().await, "Remediating") == "True Remediating").await;
    assert_eq!(site.machines().await[0].name_any(), ill);
}

#[tokio::test]
async fn two_lost_machines_of_three_are_not_replaced() {
    let site = Site::new().await;
    site.create(3, "v1.34.0").await;
    site.until("three machines", async || replicas(&site.plane().await) == [Some(3); 4]).await;
    let names: Vec<String> = site.machines().await.iter().map(ResourceExt::name_any).collect();
    // Without a quorum etcd answers nothing, and so does the cluster.
    site.played.silence();
    for name in names.iter().take(2) {
        site.say(name, &[("HealthCheckSucceeded", "False"), (OWNER_REMEDIATED, "False")]).await;
    }
    site.until("a refusal that says what to do", async || {
        site.machines().await.iter().any(|machine| {
            let all = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            conditions::find(all, OWNER_REMEDIATED)
                .is_some_and(|one| one.reason == "CannotBeRemediated" && one.message.contains("docs/cluster.md"))
        })
    })
    .await;
    site.until("it is shown", async || shown(&site.plane().await, "EtcdClusterHealthy") == "Unknown ConnectionDown")
        .await;
    let left = site.machines().await;
    assert!(left.iter().all(|machine| machine.metadata.deletion_timestamp.is_none()));
    assert_eq!(left.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), names);
}

#[tokio::test]
async fn answers_that_vary_are_not_written_each_time() {
    // Messages wait for longer than the test lasts.
    let site = Site::within(ControlPlaneTimes { messages: PATIENCE.saturating_mul(10), ..played::TIMES }).await;
    site.create(3, "v1.34.0").await;
    site.until("three machines", async || replicas(&site.plane().await) == [Some(3); 4]).await;
    site.played.refuse();
    site.until("it is shown", async || {
        shown(&site.plane().await, "ControlPlaneComponentsHealthy") == "Unknown ConnectionDown"
    })
    .await;
    let versions = async || -> Vec<Option<String>> {
        let machines = site.machines().await;
        let all = machines.iter().map(ResourceExt::resource_version);
        all.chain([site.plane().await.resource_version()]).collect()
    };
    site.until("nothing is written, though it is asked on", async || {
        let (before, asked) = (versions().await, site.played.refused());
        site.until("it is asked on", async || site.played.refused() >= asked + 5).await;
        versions().await == before
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_hangs_holds_up_its_control_plane_for_a_while_only() {
    let site = Site::within(ControlPlaneTimes { budget: Duration::from_secs(1), ..played::TIMES }).await;
    site.create(1, "v1.34.0").await;
    site.until("a machine", async || replicas(&site.plane().await) == [Some(1); 4]).await;
    site.played.hang();
    site.until("it is shown", async || {
        let all = site.plane().await.status.unwrap_or_default().conditions;
        conditions::find(&all, "ControlPlaneComponentsHealthy")
            .is_some_and(|one| one.reason == "ConnectionDown" && one.message.contains("did not answer"))
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_named() {
    let site = Site::new().await;
    let bad = json!({"metadata": {"name": format!("{CLUSTER}-ca")}, "stringData": {"tls.crt": "x", "tls.key": "y"}});
    let bad: Secret = serde_json::from_value(bad).unwrap();
    let secrets = site.api::<Secret>();
    secrets.create(&PostParams::default(), &bad).await.unwrap();
    site.create(1, "v1.34.0").await;
    site.until("it is named", async || {
        let all = site.plane().await.status.unwrap_or_default().conditions;
        conditions::find(&all, "CertificatesAvailable")
            .is_some_and(|one| one.status == "False" && one.message.contains("\"one-ca\""))
    })
    .await;
    assert!(site.machines().await.is_empty());
    secrets.delete(&bad.name_any(), &DeleteParams::default()).await.unwrap();
    site.until("a machine", async || replicas(&site.plane().await) == [Some(1); 4]).await;
}

#[tokio::test]
async fn a_deletion_ends_whatever_the_cluster_says() {
    let site = Site::new().await;
    site.create(3, "v1.34.0").await;
    site.until("three machines", async || replicas(&site.plane().await) == [Some(3); 4]).await;
    site.played.silence();
    let worker: Machine = serde_json::from_value(json!({
        "metadata": {"name": "worker", "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}},
        "spec": {"clusterName": CLUSTER, "bootstrap": {"dataSecretName": "x"},
            "infrastructureRef": {"kind": "Metal3Machine", "name": "w", "apiGroup": "infrastructure.cluster.x-k8s.io"}},
    }))
    .unwrap();
    let machines: Api<Machine> = site.api();
    machines.create(&PostParams::default(), &worker).await.unwrap();
    site.api::<KubeadmControlPlane>().delete("plane", &DeleteParams::default()).await.unwrap();
    site.until("workers are waited for", async || {
        shown(&site.plane().await, "Deleting") == "True WaitingForWorkersDeletion"
    })
    .await;
    assert_eq!(site.machines().await.len(), 3);
    machines.delete("worker", &DeleteParams::default()).await.unwrap();
    site.until("the control plane is gone", async || {
        site.api::<KubeadmControlPlane>().get_opt("plane").await.unwrap().is_none()
    })
    .await;
    assert!(site.machines().await.is_empty());
    // Nobody waited for members of etcd to leave.
    assert_eq!(site.played.members().len(), 3);
}

#[tokio::test]
async fn a_pause_stops_everything() {
    let site = Site::new().await;
    let clusters: Api<Cluster> = site.api();
    let pause = |paused: bool| Patch::Merge(json!({"spec": {"paused": paused}}));
    clusters.patch(CLUSTER, &PatchParams::default(), &pause(true)).await.unwrap();
    site.create(1, "v1.34.0").await;
    site.until("it is shown", async || shown(&site.plane().await, "Paused") == "True Paused").await;
    assert!(site.machines().await.is_empty() && site.plane().await.finalizers().is_empty());
    clusters.patch(CLUSTER, &PatchParams::default(), &pause(false)).await.unwrap();
    site.until("a machine", async || replicas(&site.plane().await) == [Some(1); 4]).await;
    assert_eq!(shown(&site.plane().await, "Paused"), "False NotPaused");
}

#[tokio::test]
async fn what_is_lacking_is_said() {
    let site = Site::new().await;
    site.create_of("nowhere", 1, "v1.34.0").await;
    site.until("a reason", async || {
        let plane = site.plane().await;
        let all = plane.status.unwrap_or_default().conditions;
        let found = conditions::find(&all, "ScalingUp").map(|one| one.message.clone()).unwrap_or_default();
        found.contains("Metal3MachineTemplate \"nowhere\" does not exist")
    })
    .await;
    assert!(site.machines().await.is_empty());
}

#[tokio::test]
async fn what_was_left_behind_is_taken_for_the_next_machine() {
    let site = Site::new().await;
    site.create(1, "v1.34.0").await;
    site.until("a machine", async || replicas(&site.plane().await) == [Some(1); 4]).await;
    // As if the appliance had ended before it made the machine: what is told to one that joins.
    let plane = site.plane().await;
    let owner = json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane", "name": "plane",
        "uid": plane.uid().unwrap()});
    let labels = site.machines().await[0].labels().clone();
    let left = |name: &str, spec: Value| {
        serde_json::from_value(
            json!({"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}, "spec": spec}),
        )
        .unwrap()
    };
    let config = crate::cluster::control_plane::desired::config(&json!({}), "v1.34.0".parse().unwrap(), true);
    let configs = site.api::<crate::api::bootstrap::v1beta2::KubeadmConfig>();
    configs.create(&PostParams::default(), &left("left", config)).await.unwrap();
    configs
        .create(&PostParams::default(), &left("other", json!({"files": [{"path": "/x", "content": "y"}]})))
        .await
        .unwrap();
    site.patch(json!({"spec": {"replicas": 3}})).await;
    site.until("three machines", async || replicas(&site.plane().await) == [Some(3); 4]).await;
    let names: Vec<String> = site.machines().await.iter().map(ResourceExt::name_any).collect();
    assert!(names.contains(&"left".to_owned()), "{names:?}");
    assert!(configs.get_opt("other").await.unwrap().is_none());
}

#[tokio::test]
async fn timeouts_and_labels_change_in_place() {
    let site = Site::new().await;
    site.create(1, "v1.34.0").await;
    site.until("a machine", async || replicas(&site.plane().await) == [Some(1); 4]).await;
    let name = site.machines().await[0].name_any();
    site.patch(json!({"spec": {"machineTemplate": {"metadata": {"labels": {"rack": "a"}},
        "spec": {"deletion": {"nodeDrainTimeoutSeconds": 7}}}}}))
        .await;
    site.until("they are changed", async || {
        let machine = &site.machines().await[0];
        let drain = machine.spec.deletion.as_ref().and_then(|deletion| deletion.node_drain_timeout_seconds);
        machine.labels().get("rack").is_some_and(|rack| rack == "a") && drain == Some(7)
    })
    .await;
    site.patch(json!({"spec": {"machineTemplate": {"metadata": null}}})).await;
    site.until("the label is gone", async || !site.machines().await[0].labels().contains_key("rack")).await;
    assert_eq!(site.machines().await[0].name_any(), name);
}

#[tokio::test]
async fn rules_are_asked() {
    let site = Site::new().await;
    let refused = site.try_create("template", 2, "v1.34.0").await.unwrap_err().to_string();
    assert!(refused.contains("even number"), "{refused}");
    site.create(1, "v1.34.0").await;
    let planes = site.api::<KubeadmControlPlane>();
    for (patch, reason) in [
        (json!({"spec": {"version": "v1.36.0"}}), "next minor"),
        (
            json!({"spec": {"kubeadmConfigSpec": {"clusterConfiguration": {"certificatesDir": "/x"}}}}),
            "cannot be modified",
        ),
        (json!({"spec": {"replicas": 0}}), "less than or equal"),
    ] {
        let error = planes.patch("plane", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let scaled = planes
        .patch_scale("plane", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 3}})))
        .await
        .unwrap();
    assert_eq!(scaled.spec.and_then(|spec| spec.replicas), Some(3));
    assert!(
        planes
            .patch_scale("plane", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 4}})))
            .await
            .is_err()
    );
}

/// How long a test waits for something.
const PATIENCE: Duration = Duration::from_secs(240);
