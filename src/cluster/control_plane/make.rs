//! Machines that are made, kept as they should be, and deleted.
//!
//! A machine is made last: before it what it names, under its own name. What a restart left behind without a machine is found
//! by its labels, and taken for the next one.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions,
};
use serde_json::{Value, json};

use super::desired;
use super::fault::ControlPlaneFault;
use super::scope::{ControlPlaneScope, Owned};
use crate::api::bootstrap;
use crate::api::bootstrap::v1beta2::{KubeadmConfig, KubeadmConfigSpec};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::LABEL_CONTROL_PLANE_NAME;
use crate::api::cluster::v1beta2::{ContractReference, Machine, MachineSpec};
use crate::api::control_plane::{ANNOTATION_CLEANUP_HOOK, ANNOTATION_REMEDIATION_FOR};
use crate::cluster::contract::{FoundObject, KubeVersion, ReferenceError, ReferencedObjects, template};
use crate::runtime::owners;

/// Who applies machines.
const MANAGER: &str = "slipway-control-plane";
/// Configurations that are looked through for one without a machine.
const CONFIGS_MAX: u32 = 32;

/// The template of machines cannot be had: why, for people.
pub(super) async fn template(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
) -> Result<Result<FoundObject, String>, ControlPlaneFault> {
    let reference = &scope.plane.spec.machine_template.spec.infrastructure_ref;
    match objects.get(&scope.namespace(), reference).await {
        // It is nobody's: templates stay when a cluster goes.
        Ok(Some(found)) => Ok(Ok(found)),
        Ok(None) => Ok(Err(format!("{} {:?} does not exist", reference.kind, reference.name))),
        Err(ReferenceError::Api(error)) => Err(error.into()),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Makes a machine that begins the cluster, or joins it. Its name.
///
/// # Errors
///
/// What the API says; why it cannot be made.
pub(super) async fn machine(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    template: &FoundObject,
    version: KubeVersion,
    joins: bool,
    failure_domain: Option<String>,
) -> Result<String, ControlPlaneFault> {
    let told = desired::config(&scope.spec, version, joins);
    let config: KubeadmConfigSpec = serde_json::from_value(told)
        .map_err(|error| ControlPlaneFault::Inside(format!("spec.kubeadmConfigSpec cannot be read: {error}")))?;
    let name = match left_behind(objects, scope, &config).await? {
        Some(name) => name,
        None => {
            let plane = scope.plane.name_any();
            desired::name(&scope.plane.spec, &scope.name_of_cluster(), &plane).map_err(ControlPlaneFault::Inside)?
        }
    };
    bootstrap_config(objects, scope, &name, config).await?;
    let infrastructure = infrastructure(objects, scope, template, &name).await?;
    let mut spec = MachineSpec {
        cluster_name: scope.name_of_cluster(),
        version: Some(scope.plane.spec.version.clone()),
        failure_domain,
        infrastructure_ref: infrastructure,
        ..MachineSpec::default()
    };
    spec.bootstrap.config_ref = Some(ContractReference {
        kind: "KubeadmConfig".into(),
        name: name.clone(),
        api_group: bootstrap::GROUP.into(),
    });
    desired::in_place(&mut spec, &scope.plane.spec, scope.etcd_managed());
    let mut annotations = desired::annotations(&scope.plane.spec);
    annotations.insert(ANNOTATION_CLEANUP_HOOK.to_owned(), String::new());
    if let Some(remediation) = scope.remediation() {
        annotations.insert(ANNOTATION_REMEDIATION_FOR.to_owned(), remediation.written());
    }
    let applied = applied(scope, &name, annotations, &spec)?;
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &scope.namespace());
    machines.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(applied)).await?;
    Ok(name)
}

/// A machine as it is applied.
fn applied(
    scope: &ControlPlaneScope,
    name: &str,
    annotations: BTreeMap<String, String>,
    spec: &MachineSpec,
) -> Result<Value, ControlPlaneFault> {
    let labels = desired::labels(&scope.plane.spec, &scope.name_of_cluster(), &scope.plane.name_any());
    let spec = serde_json::to_value(spec).map_err(kube::Error::SerdeError)?;
    Ok(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {
            "name": name, "namespace": scope.namespace(), "labels": labels, "annotations": annotations,
            "ownerReferences": [owners::owner(&scope.plane, true)],
        },
        "spec": spec,
    }))
}

/// A configuration that was made for a machine which was not: its name. One that says something else is deleted.
async fn left_behind(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    wanted: &KubeadmConfigSpec,
) -> Result<Option<String>, ControlPlaneFault> {
    let configs = Api::<KubeadmConfig>::namespaced(objects.client().clone(), &scope.namespace());
    let (cluster, plane) = (scope.name_of_cluster(), desired::label_value(&scope.plane.name_any()));
    let selector = format!("{LABEL_CLUSTER}={cluster},{LABEL_CONTROL_PLANE_NAME}={plane}");
    let list = configs.list(&ListParams::default().labels(&selector).limit(CONFIGS_MAX)).await?;
    let uid = scope.plane.uid().unwrap_or_default();
    let mut found = None;
    for config in list.items {
        let name = config.name_any();
        let is_free = owners::is_owned(&config.metadata, &uid)
            && owners::of_kind(&config.metadata, crate::api::cluster::GROUP, "Machine").is_none()
            && config.metadata.deletion_timestamp.is_none()
            // What was given to a machine is not given to another one.
            && config.status.as_ref().is_none_or(|status| status.data_secret_name.is_none())
            && !scope.owned.iter().any(|owned| owned.name() == name);
        if !is_free {
            continue;
        }
        if found.is_none() && config.spec == *wanted {
            found = Some(name);
        } else {
            discard(objects, scope, &name).await?;
        }
    }
    Ok(found)
}

/// Deletes what was made for a machine that will not be made.
async fn discard(objects: &ReferencedObjects, scope: &ControlPlaneScope, name: &str) -> Result<(), ControlPlaneFault> {
    let reference = &scope.plane.spec.machine_template.spec.infrastructure_ref;
    let of_infrastructure =
        ContractReference { kind: template::kind(&reference.kind).into(), name: name.into(), ..reference.clone() };
    let of_bootstrap =
        ContractReference { kind: "KubeadmConfig".into(), name: name.into(), api_group: bootstrap::GROUP.into() };
    let uid = scope.plane.uid().unwrap_or_default();
    for reference in [of_infrastructure, of_bootstrap] {
        if let Some(found) = objects.get(&scope.namespace(), &reference).await?
            && owners::is_owned(&found.object.metadata, &uid)
        {
            objects.delete(&found).await?;
        }
    }
    Ok(())
}

async fn bootstrap_config(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    name: &str,
    spec: KubeadmConfigSpec,
) -> Result<(), ControlPlaneFault> {
    let mut config = KubeadmConfig::new(name, spec);
    config.metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(scope.namespace()),
        labels: Some(desired::labels(&scope.plane.spec, &scope.name_of_cluster(), &scope.plane.name_any())),
        annotations: Some(desired::annotations(&scope.plane.spec)).filter(|all| !all.is_empty()),
        owner_references: Some(vec![owners::owner(&scope.plane, false)]),
        ..ObjectMeta::default()
    };
    let configs = Api::<KubeadmConfig>::namespaced(objects.client().clone(), &scope.namespace());
    match configs.create(&PostParams::default(), &config).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => {
            let there = configs.get(name).await?;
            ours(scope, &there.metadata, "KubeadmConfig", name)
        }
        created => created.map(drop).map_err(Into::into),
    }
}

async fn infrastructure(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    template: &FoundObject,
    name: &str,
) -> Result<ContractReference, ControlPlaneFault> {
    let cluster = scope.name_of_cluster();
    let clone = template::Clone {
        name,
        cluster: &cluster,
        owner: Some(owners::owner(&scope.plane, false)),
        labels: desired::labels(&scope.plane.spec, &cluster, &scope.plane.name_any()),
        annotations: desired::annotations(&scope.plane.spec),
    };
    let object = template::instance(template, clone).map_err(ControlPlaneFault::Inside)?;
    let resource = objects.resource(&template.resource.group, template::kind(&template.resource.kind)).await?;
    let api = Api::<DynamicObject>::namespaced_with(objects.client().clone(), &scope.namespace(), &resource);
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => {
            ours(scope, &api.get(name).await?.metadata, &resource.kind, name)?;
        }
        created => drop(created?),
    }
    Ok(ContractReference { kind: resource.kind, name: name.to_owned(), api_group: resource.group })
}

/// What has the name already must have been made for this control plane.
fn ours(scope: &ControlPlaneScope, meta: &ObjectMeta, kind: &str, name: &str) -> Result<(), ControlPlaneFault> {
    if owners::is_owned(meta, &scope.plane.uid().unwrap_or_default()) {
        return Ok(());
    }
    Err(ControlPlaneFault::Inside(format!("{kind} {name:?} is there already, and not of this control plane")))
}

/// Puts into a machine what changes in place, and the labels and annotations of the template into what it names.
///
/// # Errors
///
/// What the API says.
pub(super) async fn keep(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    owned: &Owned,
) -> Result<Option<Machine>, ControlPlaneFault> {
    let machine = &owned.machine;
    let mut spec = MachineSpec {
        cluster_name: machine.spec.cluster_name.clone(),
        version: machine.spec.version.clone(),
        failure_domain: machine.spec.failure_domain.clone(),
        infrastructure_ref: machine.spec.infrastructure_ref.clone(),
        deletion: machine.spec.deletion.clone(),
        ..MachineSpec::default()
    };
    spec.bootstrap.config_ref.clone_from(&machine.spec.bootstrap.config_ref);
    desired::in_place(&mut spec, &scope.plane.spec, scope.etcd_managed());
    let of_template = desired::annotations(&scope.plane.spec);
    let mut annotations = of_template.clone();
    annotations.insert(ANNOTATION_CLEANUP_HOOK.to_owned(), String::new());
    let kept = machine.annotations().get(ANNOTATION_REMEDIATION_FOR);
    annotations.extend(kept.map(|text| (ANNOTATION_REMEDIATION_FOR.to_owned(), text.clone())));
    let labels = desired::labels(&scope.plane.spec, &scope.name_of_cluster(), &scope.plane.name_any());
    let has = |all: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| all.get(key) == Some(value))
    };
    for found in [&owned.config, &owned.infrastructure].into_iter().flatten() {
        if !has(found.object.labels(), &labels) || !has(found.object.annotations(), &of_template) {
            objects.patch(found, &json!({"metadata": {"labels": labels, "annotations": of_template}})).await?;
        }
    }
    let same = spec.deletion == machine.spec.deletion
        && spec.taints == machine.spec.taints
        && spec.readiness_gates == machine.spec.readiness_gates
        && has(machine.labels(), &labels)
        && has(machine.annotations(), &annotations)
        && !superfluous(machine, &labels, &annotations);
    if same {
        return Ok(None);
    }
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &scope.namespace());
    let applied = applied(scope, &owned.name(), annotations, &spec)?;
    let kept = machines.patch(&owned.name(), &PatchParams::apply(MANAGER).force(), &Patch::Apply(applied)).await?;
    Ok((kept.resource_version() != machine.resource_version()).then_some(kept))
}

/// Whether a machine has a label or an annotation that was applied here, and is not wanted any more.
fn superfluous(machine: &Machine, labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> bool {
    let ours = machine
        .managed_fields()
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(MANAGER) && entry.operation.as_deref() == Some("Apply"));
    let stray = |fields: &Value, of: &str, wanted: &BTreeMap<String, String>| {
        let keys = fields["f:metadata"][of].as_object().into_iter().flat_map(|map| map.keys());
        keys.filter_map(|key| key.strip_prefix("f:")).any(|key| !wanted.contains_key(key))
    };
    ours.filter_map(|entry| entry.fields_v1.as_ref())
        .any(|fields| stray(&fields.0, "f:labels", labels) || stray(&fields.0, "f:annotations", annotations))
}

/// What of a machine's deletion is changed while it goes.
///
/// # Errors
///
/// What the API says.
pub(super) async fn keep_going(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    owned: &Owned,
) -> Result<(), ControlPlaneFault> {
    let mut spec = owned.machine.spec.clone();
    desired::in_place(&mut spec, &scope.plane.spec, scope.etcd_managed());
    if spec.deletion == owned.machine.spec.deletion {
        return Ok(());
    }
    let deletion = spec.deletion.unwrap_or_default();
    let patch = json!({
        "metadata": {"resourceVersion": owned.machine.resource_version()},
        "spec": {"deletion": {
            "nodeDrainTimeoutSeconds": deletion.node_drain_timeout_seconds,
            "nodeVolumeDetachTimeoutSeconds": deletion.node_volume_detach_timeout_seconds,
            "nodeDeletionTimeoutSeconds": deletion.node_deletion_timeout_seconds,
        }},
    });
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &scope.namespace());
    machines.patch(&owned.name(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Takes the hook off a machine.
///
/// # Errors
///
/// What the API says. A machine that is gone is well.
pub(super) async fn release(objects: &ReferencedObjects, machine: &Machine) -> Result<(), ControlPlaneFault> {
    if !machine.annotations().contains_key(ANNOTATION_CLEANUP_HOOK) {
        return Ok(());
    }
    let patch = json!({"metadata": {
        "resourceVersion": machine.resource_version(), "annotations": {ANNOTATION_CLEANUP_HOOK: null},
    }});
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &machine.namespace().unwrap_or_default());
    match machines.patch(&machine.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        released => released.map(drop).map_err(Into::into),
    }
}

/// Deletes a machine, if it is still the one at hand.
///
/// # Errors
///
/// What the API says. A machine that is gone is well.
pub(super) async fn delete(objects: &ReferencedObjects, machine: &Machine) -> Result<(), ControlPlaneFault> {
    if machine.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let preconditions = Preconditions { uid: machine.uid(), ..Preconditions::default() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &machine.namespace().unwrap_or_default());
    match machines.delete(&machine.name_any(), &params).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        deleted => deleted.map(drop).map_err(Into::into),
    }
}

/// Makes a machine that nobody owns one of the control plane.
///
/// # Errors
///
/// What the API says; that its version is too far from the control plane's.
pub(super) async fn adopt(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    machine: &Machine,
    version: KubeVersion,
) -> Result<(), ControlPlaneFault> {
    let its = machine.spec.version.as_deref().and_then(|text| text.parse::<KubeVersion>().ok());
    let near = its.is_some_and(|its| its.major == version.major && its.minor.abs_diff(version.minor) <= 1);
    if !near {
        let name = machine.name_any();
        return Err(ControlPlaneFault::Inside(format!(
            "Machine {name} is not adopted: its version is too far from {version}"
        )));
    }
    let owner = owners::owner(&scope.plane, true);
    let Some(all) = owners::with(&machine.metadata, &owner) else { return Ok(()) };
    let patch = json!({"metadata": {"resourceVersion": machine.resource_version(), "ownerReferences": all}});
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &scope.namespace());
    machines.patch(&machine.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}
