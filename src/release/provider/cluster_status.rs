//! What a Cluster's status says: `providerStatus` as it is published, and beside it conditions with times and reasons. Pure.

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::api::kaas::{ClusterRelease, GracefulRebootRequest};
use crate::api::lcm::{HelmBundle, LCMCluster};
use crate::api::machine_api::{Cluster, MachineApiClusterStatus, MachineApiEndpoint};
use crate::release::catalogue::join::{self as catalogue, PROVIDER};
use crate::release::catalogue::known::Offer;
use crate::release::names::{API_PORT, READY};
use crate::runtime::conditions::{self, ConditionVerdict, Truth};

/// What the provider makes is made.
pub const PROVIDED: &str = "Provider";
/// Where the API server is reached.
const BALANCED: &str = "LoadBalancer";
/// The control plane runs the release.
const KUBERNETES: &str = "Kubernetes";
/// Every machine is ready.
const NODES: &str = "Nodes";
/// Every chart is ready.
const HELM: &str = "Helm";
/// Its nodes are held where they are to be, and not where they are not.
const MAINTENANCE: &str = "Maintenance";
/// No machine of it is to reboot because somebody asked.
const GRACEFUL_REBOOT: &str = "GracefulReboot";
/// Condition of an LCMCluster that says why the Helm controller does not run yet.
const HELM_CONTROLLER: &str = "HelmControllerDeployed";

/// What was found out about a Cluster.
#[derive(Debug)]
pub struct FoundCluster<'a> {
    /// What the provider makes.
    pub provided: ConditionVerdict,
    /// Its release, the one that its nodes are to have.
    pub offer: &'a Offer,
    /// Where its API server is reached; empty while it makes no sense.
    pub host: &'a str,
    /// What its nodes are told.
    pub lcm: Option<&'a LCMCluster>,
    /// What its charts are.
    pub bundle: Option<&'a HelmBundle>,
    /// Why its charts are not those that it wants.
    pub charts: Option<String>,
    /// Machines that it has.
    pub machines: usize,
    /// The request to reboot machines of it.
    pub reboot: Option<&'a GracefulRebootRequest>,
}

/// The status of a Cluster.
pub fn report(cluster: &Cluster, found: &FoundCluster<'_>, now: Timestamp) -> MachineApiClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    let generation = cluster.metadata.generation;
    let old = status.provider_status.take().unwrap_or_default();
    let parts = [
        (PROVIDED, found.provided.clone()),
        (BALANCED, balanced(found)),
        (KUBERNETES, kubernetes(found)),
        (NODES, nodes(found)),
        (HELM, helm(found)),
    ];
    let ready = summary(&parts);
    // A cluster that is held, or reboots, does its work.
    let others = [(MAINTENANCE, maintenance(found)), (GRACEFUL_REBOOT, graceful_reboot(found))];
    let mut published: Vec<Value> = Vec::new();
    for (type_, verdict) in parts.iter().chain(&others) {
        conditions::set(&mut status.conditions, type_, verdict, generation, now);
        published.push(json!({"type": type_, "ready": verdict.is_true(), "message": said(verdict)}));
    }
    conditions::set(&mut status.conditions, READY, &ready, generation, now);
    let is_wrong = found.provided.truth == Truth::False && found.provided.reason.starts_with("Invalid");
    status.error_reason = is_wrong.then(|| found.provided.reason.clone());
    status.error_message = is_wrong.then(|| found.provided.message.clone());
    if !found.host.is_empty() {
        status.api_endpoints = vec![MachineApiEndpoint { host: found.host.to_owned(), port: API_PORT.into() }];
    }
    let lcm = found.lcm.and_then(|lcm| lcm.status.as_ref());
    let balanced = parts[1].1.is_true();
    let mut all = json!({
        "ready": ready.is_true(),
        "nodes": {"requested": found.machines, "ready": lcm.map_or(0, |lcm| lcm.ready_nodes)},
        "releaseRefs": releases(&old["releaseRefs"], found),
        "loadBalancerStatus": {"id": found.host, "ready": balanced, "status": if balanced { "ACTIVE" } else { "PENDING" }},
        "helm": {"ready": parts[4].1.is_true(), "releases": {"releaseStatuses": charts(found)}},
        "maintenance": lcm.is_some_and(|lcm| lcm.maintenance),
        "conditions": published,
    });
    if !found.host.is_empty() {
        all["loadBalancerHost"] = json!(found.host);
    }
    if let Some(generation) = generation {
        all["observedGeneration"] = json!(generation);
    }
    status.provider_status = Some(all);
    status
}

/// The words of a condition of the published form, which has no reasons.
fn said(verdict: &ConditionVerdict) -> &str {
    if verdict.message.is_empty() { &verdict.reason } else { &verdict.message }
}

fn summary(parts: &[(&'static str, ConditionVerdict)]) -> ConditionVerdict {
    let named: Vec<_> = parts.iter().map(|(type_, verdict)| (*type_, Some(verdict.clone()), true)).collect();
    conditions::summary(&named, ["Ready", "NotReady", "ReadyUnknown"])
}

/// What a Cluster has, had, and may have.
fn releases(old: &Value, found: &FoundCluster<'_>) -> Value {
    let mut refs = Map::new();
    let Some(lcm) = found.lcm else { return refs.into() };
    // What all nodes have; before there are some, what they are to have.
    let has = lcm.status.as_ref().map(|status| status.release.as_str()).filter(|release| !release.is_empty());
    let name = has.unwrap_or(&lcm.spec.release);
    let kaas = found.offer.kaas.as_ref().ok();
    let entry = kaas.and_then(|kaas| catalogue::entry(kaas, name));
    let release = found.offer.release.as_deref().filter(|release| release.name_any() == name);
    let before = &old["current"];
    let mut current = match (release, before["name"] == *name) {
        (Some(release), _) => described(release),
        // Another one is on its way: what is known of this one stays.
        (None, true) => before.clone(),
        (None, false) => json!({"name": name, "version": entry.map_or("", |entry| entry.version.as_str())}),
    };
    let supported = kaas.is_none_or(|kaas| catalogue::supported(kaas, name, PROVIDER));
    if let Some(fields) = current.as_object_mut() {
        fields.remove("unsupportedSinceKaaSVersion");
    }
    if let (false, Some(kaas)) = (supported, kaas) {
        let since = before["unsupportedSinceKaaSVersion"].as_str().filter(|_| before["name"] == *name);
        current["unsupportedSinceKaaSVersion"] = json!(since.unwrap_or(&kaas.spec.version));
    }
    refs.insert("current".into(), current);
    if before["name"].as_str().is_some_and(|before| before != name) {
        refs.insert("previous".into(), before.clone());
    } else if old["previous"].is_object() {
        refs.insert("previous".into(), old["previous"].clone());
    }
    let available = kaas.map(|kaas| catalogue::available_upgrades(kaas, name)).unwrap_or_default();
    let available = available.iter().map(
        |target| json!({"name": target.name, "version": target.version, "rebootRequired": target.reboot_required}),
    );
    refs.insert("available".into(), available.collect());
    refs.into()
}

fn described(release: &ClusterRelease) -> Value {
    let spec = &release.spec;
    json!({
        "name": release.name_any(), "version": spec.version, "lcmType": spec.lcm_type,
        "allowedNodeLabels": spec.allowed_node_labels,
    })
}

/// Whether the API server was reached where the cluster says that it is.
fn balanced(found: &FoundCluster<'_>) -> ConditionVerdict {
    match condition(found, "ControlPlaneInitialized") {
        Some(verdict) if verdict.is_true() => ConditionVerdict::yes("Reached"),
        Some(verdict) => ConditionVerdict { reason: "WaitingForControlPlane".into(), ..verdict },
        None => ConditionVerdict::no("WaitingForControlPlane", "Waiting for the first machine of the control plane"),
    }
}

fn kubernetes(found: &FoundCluster<'_>) -> ConditionVerdict {
    let initialized = balanced(found);
    if !initialized.is_true() {
        return initialized;
    }
    let Some(lcm) = found.lcm else { return initialized };
    let has = lcm.status.as_ref().map_or("", |status| status.release.as_str());
    let wanted = &lcm.spec.release;
    if has == wanted {
        ConditionVerdict::yes("Deployed")
    } else if has.is_empty() {
        ConditionVerdict::no("Deploying", format!("Waiting for all nodes to have {wanted}"))
    } else {
        ConditionVerdict::no("Upgrading", format!("Nodes go from {has} to {wanted}"))
    }
}

fn nodes(found: &FoundCluster<'_>) -> ConditionVerdict {
    let ready = found.lcm.and_then(|lcm| lcm.status.as_ref()).map_or(0, |status| status.ready_nodes);
    match (usize::try_from(ready).unwrap_or(0), found.machines) {
        (_, 0) => ConditionVerdict::no(
            "NoMachines",
            "There is no Machine with the cluster's name in the label cluster.sigs.k8s.io/cluster-name",
        ),
        (ready, machines) if ready >= machines => ConditionVerdict::yes("Ready"),
        (ready, machines) => {
            let stuck = found.lcm.and_then(|lcm| lcm.status.as_ref()).is_some_and(|status| status.lcm_operation_stuck);
            let reason = if stuck { "Stuck" } else { "WaitingForNodes" };
            ConditionVerdict::no(
                reason,
                format!(
                    "{ready} of {machines} machines are ready: `slipway describe machines.cluster.k8s.io` says what the others wait for"
                ),
            )
        }
    }
}

fn helm(found: &FoundCluster<'_>) -> ConditionVerdict {
    if let Some(fault) = &found.charts {
        return ConditionVerdict::no("InvalidCharts", fault.clone());
    }
    let Some(bundle) = found.bundle else {
        return ConditionVerdict::no("WaitingForBundle", "The HelmBundle is not made yet");
    };
    if bundle.spec.releases.is_empty() {
        return ConditionVerdict::yes("NoCharts");
    }
    let is_deployed =
        found.lcm.and_then(|lcm| lcm.status.as_ref()).is_some_and(|status| status.helm_controller_deployed);
    if !is_deployed {
        let conditions = found.lcm.and_then(|lcm| lcm.status.as_ref()).map(|status| status.conditions.as_slice());
        let told = conditions.and_then(|all| conditions::find(all, HELM_CONTROLLER)).map(|one| one.message.as_str());
        let reason = told.filter(|told| !told.is_empty()).map(|told| format!(": {told}")).unwrap_or_default();
        return ConditionVerdict::no(
            "WaitingForHelmController",
            format!("Waiting for the Helm controller to run in the cluster{reason}"),
        );
    }
    let status = bundle.status.as_ref();
    let of_now = status.and_then(|status| status.observed_generation) == bundle.metadata.generation;
    match status.and_then(|status| conditions::find(&status.conditions, READY)) {
        Some(condition) if of_now => ConditionVerdict::of(condition),
        _ => ConditionVerdict::no(
            "WaitingForHelmController",
            "Waiting for the Helm controller to work off the HelmBundle",
        ),
    }
}

fn maintenance(found: &FoundCluster<'_>) -> ConditionVerdict {
    let is_asked = found.lcm.is_some_and(|lcm| lcm.spec.maintenance);
    match (is_asked, found.lcm.and_then(|lcm| lcm.status.as_ref()).is_some_and(|status| status.maintenance)) {
        (false, false) => ConditionVerdict::yes("NotInMaintenance"),
        (true, true) => ConditionVerdict {
            message: "Nothing changes on its nodes but keys".into(),
            ..ConditionVerdict::yes("InMaintenance")
        },
        (true, false) => ConditionVerdict::no("Entering", "Waiting for steps that are under way on its machines"),
        (false, true) => ConditionVerdict::no("Leaving", "Waiting for its nodes to be looked at"),
    }
}

fn graceful_reboot(found: &FoundCluster<'_>) -> ConditionVerdict {
    let Some(request) = found.reboot else { return ConditionVerdict::yes("NotRequested") };
    let status = request.status.clone().unwrap_or_default();
    match conditions::find(&status.conditions, "Completed") {
        // It goes then.
        Some(done) if done.status == "True" => ConditionVerdict::yes("Completed"),
        Some(open) => {
            let message =
                format!("{} of {} machines have rebooted; {}", status.rebooted, status.requested, open.message);
            ConditionVerdict::no(&open.reason, message.trim_end_matches("; "))
        }
        None => ConditionVerdict::no("Waiting", "The GracefulRebootRequest is not looked at yet"),
    }
}

/// Whether each chart is as it is to be, in the published form.
fn charts(found: &FoundCluster<'_>) -> Value {
    let statuses = found.bundle.and_then(|bundle| bundle.status.as_ref()).map(|status| &status.release_statuses);
    let statuses = statuses.into_iter().flatten();
    let all: Map<String, Value> =
        statuses.map(|(name, status)| (name.clone(), json!({"success": status.success || status.ready}))).collect();
    all.into()
}

fn condition(found: &FoundCluster<'_>, type_: &str) -> Option<ConditionVerdict> {
    let status = found.lcm?.status.as_ref()?;
    conditions::find(&status.conditions, type_).map(ConditionVerdict::of)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn offer(release: &str) -> Offer {
        let kaas = json!({"metadata": {"name": "k"}, "spec": {"version": "2.30.0", "supportedClusterReleases": [
            {"name": "r1", "version": "1.0.0", "availableUpgrades": [{"version": "2.0.0", "rebootRequired": true}]},
            {"name": "r2", "version": "2.0.0"},
        ]}});
        let labels = json!([{"key": "role", "value": "db"}]);
        let release = json!({"metadata": {"name": release}, "spec": {"version": "1.0.0", "lcmType": "kubeadm", "allowedNodeLabels": labels}});
        Offer {
            kaas: Ok(Arc::new(serde_json::from_value(kaas).unwrap())),
            release: Some(Arc::new(serde_json::from_value(release).unwrap())),
        }
    }

    fn lcm(spec: &str, status: Value) -> LCMCluster {
        serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster",
            "metadata": {"name": "c"}, "spec": {"release": spec}, "status": status}))
        .unwrap()
    }

    fn cluster(status: Value) -> Cluster {
        serde_json::from_value(json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "c", "generation": 3}, "spec": {}, "status": status}))
        .unwrap()
    }

    fn bundle(releases: Value, status: Value) -> HelmBundle {
        serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "HelmBundle",
            "metadata": {"name": "c", "generation": 1}, "spec": {"releases": releases}, "status": status}))
        .unwrap()
    }

    fn initialized() -> Value {
        json!({"type": "ControlPlaneInitialized", "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn a_cluster_is_ready_when_all_of_it_is() {
        let offer = offer("r1");
        let charts = json!([{"name": "a"}]);
        let helm = json!({"observedGeneration": 1, "releaseStatuses": {"a": {"ready": true}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let whole =
            json!({"release": "r1", "readyNodes": 3, "helmControllerDeployed": true, "conditions": [initialized()]});
        let with = |change: Value| {
            let mut status = whole.clone();
            json_patch::merge(&mut status, &change);
            lcm("r1", status)
        };
        let rows = [
            (with(json!({})), bundle(charts.clone(), helm.clone()), ""),
            (with(json!({})), bundle(json!([]), json!({})), ""),
            (
                with(json!({"conditions": []})),
                bundle(charts.clone(), helm.clone()),
                "first machine of the control plane",
            ),
            (with(json!({"readyNodes": 2})), bundle(charts.clone(), helm.clone()), "2 of 3 machines"),
            (with(json!({"release": ""})), bundle(charts.clone(), helm.clone()), "all nodes to have r1"),
            (
                with(json!({"helmControllerDeployed": false})),
                bundle(charts.clone(), helm.clone()),
                "Helm controller to run",
            ),
            (with(json!({})), bundle(charts, json!({"observedGeneration": 0})), "work off the HelmBundle"),
        ];
        for (lcm, bundle, waits) in rows {
            let found = FoundCluster {
                provided: ConditionVerdict::yes("Provided"),
                offer: &offer,
                host: "192.0.2.5",
                lcm: Some(&lcm),
                bundle: Some(&bundle),
                charts: None,
                machines: 3,
                reboot: None,
            };
            let status = report(&cluster(json!({})), &found, Timestamp::UNIX_EPOCH);
            let published = status.provider_status.unwrap();
            let ready = conditions::find(&status.conditions, READY).unwrap();
            assert_eq!(published["ready"], waits.is_empty(), "{waits}: {published}");
            assert_eq!(
                (ready.status == "True", ready.message.contains(waits)),
                (waits.is_empty(), true),
                "{waits}: {ready:?}"
            );
            assert_eq!(published["observedGeneration"], 3);
            assert_eq!(status.api_endpoints, [MachineApiEndpoint { host: "192.0.2.5".into(), port: 6443 }]);
            let all = published["conditions"].as_array().unwrap();
            assert!(all.iter().all(|one| one["ready"].is_boolean() && one["message"].is_string()), "{published}");
        }
    }

    #[test]
    fn releases_are_those_of_now_of_before_and_of_what_may_follow() {
        let (first, second) = (offer("r1"), offer("r2"));
        let refs = |lcm: &LCMCluster, offer: &Offer, old: Value| {
            let found = FoundCluster {
                provided: ConditionVerdict::yes("Provided"),
                offer,
                host: "h",
                lcm: Some(lcm),
                bundle: None,
                charts: None,
                machines: 0,
                reboot: None,
            };
            releases(&old, &found)
        };
        let begun = refs(&lcm("r1", json!({})), &first, Value::Null);
        let current = json!({"name": "r1", "version": "1.0.0", "lcmType": "kubeadm", "allowedNodeLabels": [{"key": "role", "value": "db"}]});
        let available = json!([{"name": "r2", "version": "2.0.0", "rebootRequired": true}]);
        assert_eq!(begun, json!({"current": current, "available": available}));
        // While nodes go to the second one it is not the current one.
        let upgrading = refs(&lcm("r2", json!({"release": "r1"})), &second, begun.clone());
        assert_eq!(upgrading, begun);
        let upgraded = refs(&lcm("r2", json!({"release": "r2"})), &second, upgrading);
        assert_eq!((&upgraded["current"]["name"], &upgraded["previous"]), (&json!("r2"), &current));
        assert_eq!(upgraded["available"], json!([]));
        assert_eq!(refs(&lcm("r2", json!({"release": "r2"})), &second, upgraded.clone()), upgraded, "it stays so");
        // One that is supported no more says since when.
        let old = refs(&lcm("r0", json!({})), &first, Value::Null);
        assert_eq!(old["current"]["unsupportedSinceKaaSVersion"], "2.30.0");
    }

    #[test]
    fn a_cluster_that_is_held_or_reboots_says_so_and_is_ready_all_the_same() {
        let offer = offer("r1");
        let request = |status: Value| -> GracefulRebootRequest {
            serde_json::from_value(json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "GracefulRebootRequest",
                "metadata": {"name": "c"}, "spec": {}, "status": status}))
            .unwrap()
        };
        let runs = json!({"type": "Completed", "status": "False", "reason": "InProgress", "message": "m: is drained",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let runs = request(json!({"requested": 3, "rebooted": 1, "conditions": [runs]}));
        let new = request(json!({}));
        let rows = [
            (false, json!({}), None, ["NotInMaintenance", "NotRequested"], ""),
            (true, json!({}), Some(&new), ["Entering", "Waiting"], "not looked at yet"),
            (
                true,
                json!({"maintenance": true}),
                Some(&runs),
                ["InMaintenance", "InProgress"],
                "1 of 3 machines have rebooted; m: is",
            ),
            (false, json!({"maintenance": true}), None, ["Leaving", "NotRequested"], ""),
        ];
        for (maintenance, status, reboot, wanted, words) in rows {
            let mut lcm = lcm("r1", status);
            lcm.spec.maintenance = maintenance;
            let found = FoundCluster {
                provided: ConditionVerdict::yes("Provided"),
                offer: &offer,
                host: "h",
                lcm: Some(&lcm),
                bundle: None,
                charts: None,
                machines: 0,
                reboot,
            };
            let status = report(&cluster(json!({})), &found, Timestamp::UNIX_EPOCH);
            let said = [MAINTENANCE, GRACEFUL_REBOOT].map(|type_| conditions::find(&status.conditions, type_).unwrap());
            assert_eq!(said.map(|one| one.reason.as_str()), wanted);
            assert!(said[1].message.contains(words), "{said:?}");
            let ready = conditions::find(&status.conditions, READY).unwrap();
            assert!(!ready.message.contains("Maintenance") && !ready.message.contains("GracefulReboot"), "{ready:?}");
            assert_eq!(status.provider_status.unwrap()["conditions"].as_array().unwrap().len(), 7);
        }
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let offer = offer("r1");
        let found = FoundCluster {
            provided: ConditionVerdict::no("InvalidConfiguration", "spec.x: is odd"),
            offer: &offer,
            host: "",
            lcm: None,
            bundle: None,
            charts: None,
            machines: 0,
            reboot: None,
        };
        let status = report(&cluster(json!({})), &found, Timestamp::UNIX_EPOCH);
        assert_eq!(status.error_reason.as_deref(), Some("InvalidConfiguration"));
        assert_eq!(status.error_message.as_deref(), Some("spec.x: is odd"));
        assert_eq!(status.provider_status.unwrap()["releaseRefs"], json!({}));
    }
}
