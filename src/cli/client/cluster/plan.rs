//! What a change of a cluster is made of, before anything is done: pure.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tree::{name, text};
use crate::hex::hex;

/// One write of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClusterStep {
    /// A new object.
    Create(Value),
    /// A merge patch of an object.
    Change { kind: &'static str, name: String, patch: Value, says: String },
    /// The control plane has this version before anything further is done: no kubelet may be newer than its API server.
    AwaitControlPlane { name: String, version: String },
}

impl ClusterStep {
    /// For the plan that is shown first.
    pub(super) fn says(&self) -> String {
        match self {
            Self::Create(object) => format!("create {}/{}", text(object, "/kind"), name(object)),
            Self::Change { kind, name, says, .. } => format!("{kind}/{name}: {says}"),
            Self::AwaitControlPlane { name, version } => {
                format!("wait until KubeadmControlPlane/{name} runs {version}")
            }
        }
    }
}

/// How many machines there are to be; `None` leaves them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WantedReplicas {
    pub control_plane: Option<u32>,
    pub workers: Option<u32>,
}

fn replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(1)
}

fn scaled(kind: &'static str, object: &Value, wanted: u32) -> Option<ClusterStep> {
    let before = replicas(object);
    (before != i64::from(wanted)).then(|| ClusterStep::Change {
        kind,
        name: name(object).to_owned(),
        patch: json!({"spec": {"replicas": wanted}}),
        says: format!("replicas {before} -> {wanted}"),
    })
}

/// The plan of `scale`. `deployment` picks one of several.
///
/// # Errors
///
/// When it cannot be done, with what to do instead.
pub(super) fn scale(
    cluster: &Value,
    all: &[Value],
    wanted: WantedReplicas,
    deployment: Option<&str>,
) -> Result<Vec<ClusterStep>, String> {
    let mut steps = Vec::new();
    if let Some(count) = wanted.control_plane {
        let plane = control_plane(cluster, all)?;
        let is_external = plane.pointer("/spec/kubeadmConfigSpec/clusterConfiguration/etcd/external").is_some();
        if count == 0 {
            return Err("a cluster without a control plane is none: use `slipway cluster delete`".to_owned());
        }
        if count % 2 == 0 && !is_external {
            return Err(format!(
                "{count} machines of a control plane would outvote no more than {}: give an odd number",
                count - 1
            ));
        }
        steps.extend(scaled("KubeadmControlPlane", plane, count));
    }
    if let Some(count) = wanted.workers {
        let all = deployments(cluster, all);
        let one = match deployment {
            Some(wanted) => all
                .iter()
                .find(|one| name(one) == wanted)
                .ok_or_else(|| format!("the cluster has no MachineDeployment {wanted:?}, but {}", names(&all)))?,
            None if all.len() == 1 => &all[0],
            None if all.is_empty() => {
                return Err("the cluster has no MachineDeployment: apply one to have workers".to_owned());
            }
            None => return Err(format!("name one of the MachineDeployments by --deployment: {}", names(&all))),
        };
        steps.extend(scaled("MachineDeployment", one, count));
    }
    Ok(steps)
}

fn names(objects: &[&Value]) -> String {
    let names: Vec<&str> = objects.iter().map(|one| name(one)).collect();
    if names.is_empty() { "none at all".to_owned() } else { names.join(", ") }
}

/// The control plane that a cluster names.
pub(super) fn control_plane<'o>(cluster: &Value, all: &'o [Value]) -> Result<&'o Value, String> {
    let wanted = text(cluster, "/spec/controlPlaneRef/name");
    all.iter().find(|object| object["kind"] == "KubeadmControlPlane" && name(object) == wanted).ok_or_else(|| {
        format!(
            "cluster {} has no KubeadmControlPlane: what else keeps its control plane is changed with kubectl",
            name(cluster)
        )
    })
}

/// The deployments of a cluster, by name.
pub(super) fn deployments<'o>(cluster: &Value, all: &'o [Value]) -> Vec<&'o Value> {
    let mut found: Vec<&Value> = all
        .iter()
        .filter(|object| object["kind"] == "MachineDeployment" && text(object, "/spec/clusterName") == name(cluster))
        .collect();
    found.sort_by_key(|object| name(object).to_owned());
    found
}

/// The plan of `upgrade`: the control plane, and then all workers. With an image (`url`, `checksum`, …) new templates name it.
///
/// # Errors
///
/// When Kubernetes cannot be upgraded like that.
pub(super) fn upgrade(
    cluster: &Value,
    all: &[Value],
    version: &str,
    image: Option<&Value>,
) -> Result<Vec<ClusterStep>, String> {
    let plane = control_plane(cluster, all)?;
    let now = text(plane, "/spec/version");
    may_follow(now, version)?;
    let mut steps = Vec::new();
    let template = text(plane, "/spec/machineTemplate/spec/infrastructureRef/name");
    let mut patch = json!({"spec": {"version": version}});
    if let Some(image) = image {
        let new = with_image(template, all, version, image)?;
        patch["spec"]["machineTemplate"] = json!({"spec": {"infrastructureRef": {"name": name(&new)}}});
        steps.push(ClusterStep::Create(new));
    }
    let plane_name = name(plane).to_owned();
    if now != version || image.is_some() {
        let says = format!("version {now} -> {version}");
        steps.push(ClusterStep::Change { kind: "KubeadmControlPlane", name: plane_name.clone(), patch, says });
    }
    steps.push(ClusterStep::AwaitControlPlane { name: plane_name, version: version.to_owned() });
    for deployment in deployments(cluster, all) {
        let before = text(deployment, "/spec/template/spec/version");
        let mut patch = json!({"spec": {"template": {"spec": {"version": version}}}});
        if let Some(image) = image {
            let template = text(deployment, "/spec/template/spec/infrastructureRef/name");
            let new = with_image(template, all, version, image)?;
            patch["spec"]["template"]["spec"]["infrastructureRef"] = json!({"name": name(&new)});
            if !steps.contains(&ClusterStep::Create(new.clone())) {
                steps.push(ClusterStep::Create(new));
            }
        } else if before == version {
            continue;
        }
        let says = format!("version {before} -> {version}");
        steps.push(ClusterStep::Change { kind: "MachineDeployment", name: name(deployment).to_owned(), patch, says });
    }
    if steps.iter().all(|step| matches!(step, ClusterStep::AwaitControlPlane { .. })) {
        return Ok(Vec::new());
    }
    Ok(steps)
}

/// A template like another, with another image. Templates are not changed: machines that exist were made from them.
fn with_image(template: &str, all: &[Value], version: &str, image: &Value) -> Result<Value, String> {
    let old = all
        .iter()
        .find(|object| object["kind"] == "Metal3MachineTemplate" && name(object) == template)
        .ok_or_else(|| format!("there is no Metal3MachineTemplate {template:?}"))?;
    let mut spec = old["spec"].clone();
    spec["template"]["spec"]["image"] = image.clone();
    // One name for each image: an image may be mended, and the version stay.
    let sum = hex(&Sha256::digest(image.to_string())[..4]);
    let name = format!("{}-{}-{sum}", base(template), version.replace('.', "-"));
    Ok(json!({
        "apiVersion": old["apiVersion"],
        "kind": "Metal3MachineTemplate",
        "metadata": {"name": name, "namespace": old["metadata"]["namespace"], "labels": old["metadata"]["labels"]},
        "spec": spec,
    }))
}

/// The name of a template without what an upgrade appended to it: `-v1-34-4-` and eight digits.
fn base(template: &str) -> &str {
    let is_ours = |rest: &str| {
        let parts: Vec<&str> = rest.split('-').collect();
        let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        parts.len() >= 3 && parts.iter().take(2).all(is_number) && parts.last().is_some_and(|sum| sum.len() == 8)
    };
    template.rsplit_once("-v1-").filter(|(_, rest)| is_ours(rest)).map_or(template, |(base, _)| base)
}

/// Whether kubeadm goes from one version to another: not down, and over no minor version.
fn may_follow(now: &str, next: &str) -> Result<(), String> {
    let (Some(before), Some(after)) = (numbers(now), numbers(next)) else {
        return Err(format!("cannot compare the versions {now:?} and {next:?}"));
    };
    if after < before {
        return Err(format!("Kubernetes {now} cannot become the older {next}"));
    }
    if after.0 != before.0 || after.1 > before.1 + 1 {
        let step = before.1 + 1;
        return Err(format!(
            "from {now} to {next} is more than one minor version: upgrade to v{}.{step} first",
            before.0
        ));
    }
    Ok(())
}

fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let plain = version.strip_prefix('v')?.split(['-', '+']).next()?;
    let mut parts = plain.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

/// How far a cluster is from what it is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterProgress {
    pub control_plane: (i64, i64),
    pub workers: (i64, i64),
    /// Machines that are not what they are to be by now, or still to go.
    pub outdated: i64,
    /// Those of the control plane among them.
    pub outdated_planes: i64,
    /// Hosts by what they do.
    pub busy: Vec<(String, usize)>,
}

impl ClusterProgress {
    pub(super) fn of(cluster: &Value, all: &[Value]) -> Self {
        let count = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
        let mut progress = Self::default();
        let mut add = |object: &Value, is_plane: bool| {
            let side = if is_plane { &mut progress.control_plane } else { &mut progress.workers };
            side.0 += count(object, "/status/readyReplicas");
            side.1 += replicas(object);
            let there = count(object, "/status/replicas");
            let generation = count(object, "/metadata/generation");
            let is_seen =
                object.pointer("/status/observedGeneration").and_then(Value::as_i64).is_none_or(|at| at >= generation);
            let old = (there - count(object, "/status/upToDateReplicas")).max(there - replicas(object));
            let old = if is_seen { old.max(0) } else { old.max(1) };
            progress.outdated += old;
            progress.outdated_planes += if is_plane { old } else { 0 };
        };
        if let Ok(plane) = control_plane(cluster, all) {
            add(plane, true);
        }
        deployments(cluster, all).into_iter().for_each(|one| add(one, false));
        let mut busy = std::collections::BTreeMap::<String, usize>::new();
        for host in all.iter().filter(|host| host["kind"] == "BareMetalHost") {
            let state = text(host, "/status/provisioning/state");
            if text(host, "/spec/consumerRef/kind") == "Metal3Machine" && !matches!(state, "provisioned" | "") {
                *busy.entry(state.to_owned()).or_default() += 1;
            }
        }
        progress.busy = busy.into_iter().collect();
        progress
    }

    /// Whether every machine is there, ready and up to date.
    pub(super) fn is_done(&self) -> bool {
        let is_full = |(ready, wanted): (i64, i64)| ready == wanted;
        self.outdated == 0 && self.control_plane.1 > 0 && is_full(self.control_plane) && is_full(self.workers)
    }

    /// Whether that is so of the control plane alone.
    pub(super) fn control_plane_is_done(&self) -> bool {
        self.outdated_planes == 0 && self.control_plane.1 > 0 && self.control_plane.0 == self.control_plane.1
    }

    /// A line for people.
    pub(super) fn says(&self) -> String {
        let mut text = format!(
            "control plane {}/{} ready, workers {}/{} ready",
            self.control_plane.0, self.control_plane.1, self.workers.0, self.workers.1
        );
        if self.outdated > 0 {
            text += &format!(", {} to be replaced or removed", self.outdated);
        }
        for (state, count) in &self.busy {
            text += &format!(", {count} {} {state}", if *count == 1 { "host" } else { "hosts" });
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Value {
        json!({"kind": "Cluster", "metadata": {"name": "prod"}, "spec": {"controlPlaneRef": {"name": "cp"}}})
    }

    fn all() -> Vec<Value> {
        vec![
            json!({"kind": "KubeadmControlPlane", "metadata": {"name": "cp"}, "spec": {"replicas": 1, "version": "v1.33.2",
                "machineTemplate": {"spec": {"infrastructureRef": {"name": "prod-cp"}}}}}),
            json!({"kind": "MachineDeployment", "metadata": {"name": "md"}, "spec": {"clusterName": "prod", "replicas": 2,
                "template": {"spec": {"version": "v1.33.2", "infrastructureRef": {"name": "prod-cp"}}}}}),
            json!({"kind": "MachineDeployment", "metadata": {"name": "others"}, "spec": {"clusterName": "other"}}),
            json!({"kind": "Metal3MachineTemplate", "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
                "metadata": {"name": "prod-cp", "namespace": "rack"}, "spec": {"template": {"spec": {"image": {"url": "old"},
                "hostSelector": {"matchLabels": {"a": "b"}}}}}}),
        ]
    }

    fn says(steps: &[ClusterStep]) -> Vec<String> {
        steps.iter().map(ClusterStep::says).collect()
    }

    #[test]
    fn a_scale_changes_what_is_asked_for() {
        let wanted = |control_plane, workers| WantedReplicas { control_plane, workers };
        let plan = |wanted| scale(&cluster(), &all(), wanted, None);
        assert_eq!(
            says(&plan(wanted(Some(3), Some(5))).unwrap()),
            ["KubeadmControlPlane/cp: replicas 1 -> 3", "MachineDeployment/md: replicas 2 -> 5"]
        );
        assert!(plan(wanted(Some(1), Some(2))).unwrap().is_empty());
        assert!(plan(wanted(Some(2), None)).unwrap_err().contains("odd"));
        assert!(plan(wanted(Some(0), None)).unwrap_err().contains("delete"));
        let fault = scale(&cluster(), &all(), wanted(None, Some(1)), Some("x")).unwrap_err();
        assert!(fault.contains("\"x\"") && fault.contains("md") && !fault.contains("others"), "{fault}");
    }

    #[test]
    fn an_upgrade_goes_through_the_control_plane_first() {
        let plan = upgrade(&cluster(), &all(), "v1.34.4", None).unwrap();
        assert_eq!(
            says(&plan),
            [
                "KubeadmControlPlane/cp: version v1.33.2 -> v1.34.4",
                "wait until KubeadmControlPlane/cp runs v1.34.4",
                "MachineDeployment/md: version v1.33.2 -> v1.34.4",
            ]
        );
        assert!(upgrade(&cluster(), &all(), "v1.33.2", None).unwrap().is_empty());
        for (version, word) in [("v1.35.0", "v1.34 first"), ("v1.32.9", "older"), ("v2.0.0", "minor")] {
            let fault = upgrade(&cluster(), &all(), version, None).unwrap_err();
            assert!(fault.contains(word), "{fault}");
        }
    }

    #[test]
    fn a_new_image_is_a_new_template_once() {
        let image = json!({"url": "new"});
        let plan = upgrade(&cluster(), &all(), "v1.34.4", Some(&image)).unwrap();
        let made: Vec<&Value> = plan
            .iter()
            .filter_map(|step| if let ClusterStep::Create(object) = step { Some(object) } else { None })
            .collect();
        assert_eq!(made.len(), 1);
        let new = name(made[0]).to_owned();
        assert!(new.starts_with("prod-cp-v1-34-4-"), "{new}");
        // Another image of the same version is another template, of the same first name.
        let again = with_image(&new, &[made[0].clone()], "v1.34.4", &json!({"url": "newer"})).unwrap();
        assert!(name(&again).starts_with("prod-cp-v1-34-4-") && name(&again) != new, "{}", name(&again));
        assert_eq!(name(&again).len(), new.len());
        assert_eq!((base("edge-v1-a"), base("edge-v1-34-4")), ("edge-v1-a", "edge-v1-34-4"));
        assert_eq!(made[0]["spec"]["template"]["spec"]["image"]["url"], "new");
        assert_eq!(made[0]["spec"]["template"]["spec"]["hostSelector"]["matchLabels"]["a"], "b");
        let named =
            |step: &ClusterStep| matches!(step, ClusterStep::Change { patch, .. } if patch.to_string().contains(&new));
        assert_eq!(plan.iter().filter(|step| named(step)).count(), 2);
    }

    #[test]
    fn a_cluster_is_done_when_every_machine_is_ready_and_up_to_date() {
        let mut all = all();
        assert!(!ClusterProgress::of(&cluster(), &all).is_done());
        all[0]["status"] = json!({"replicas": 1, "readyReplicas": 1, "upToDateReplicas": 1});
        all[1]["status"] = json!({"replicas": 3, "readyReplicas": 2, "upToDateReplicas": 2});
        let progress = ClusterProgress::of(&cluster(), &all);
        assert_eq!((progress.outdated, progress.is_done()), (1, false));
        all[1]["status"]["replicas"] = 2.into();
        assert!(ClusterProgress::of(&cluster(), &all).is_done());
        all[0]["metadata"]["generation"] = 2.into();
        all[0]["status"]["observedGeneration"] = 1.into();
        assert!(
            !ClusterProgress::of(&cluster(), &all).control_plane_is_done(),
            "it has not looked at its template yet"
        );
        all[0]["status"]["observedGeneration"] = 2.into();
        assert!(ClusterProgress::of(&cluster(), &all).control_plane_is_done());
        all[1]["metadata"]["generation"] = 2.into();
        all[1]["status"]["observedGeneration"] = 1.into();
        assert!(!ClusterProgress::of(&cluster(), &all).is_done());
        all.push(json!({"kind": "BareMetalHost", "spec": {"consumerRef": {"kind": "Metal3Machine"}},
            "status": {"provisioning": {"state": "provisioning"}}}));
        assert!(ClusterProgress::of(&cluster(), &all).says().ends_with("1 host provisioning"));
    }
}
