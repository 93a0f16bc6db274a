//! The Metal3MachineTemplate that a machine was made from.

use std::collections::BTreeMap;

use kube::api::Api;
use kube::{Client, ResourceExt};

use crate::api::cluster::keys::{ANNOTATION_CLONED_FROM, ANNOTATION_CLONED_KIND, LABEL_CONTROL_PLANE};
use crate::api::cluster::v1beta2::{ContractReference, Machine};
use crate::api::infrastructure::v1beta2::{Metal3Machine, Metal3MachineTemplate};
use crate::cluster::contract::ReferencedObjects;
use crate::cluster::infrastructure::names::{CONTROL_PLANE_GROUP, MACHINE_TEMPLATE_KIND};
use crate::runtime::owners;

/// The template, if it is still there.
///
/// # Errors
///
/// What the API says.
pub async fn of(client: &Client, machine: &Metal3Machine) -> Result<Option<Metal3MachineTemplate>, kube::Error> {
    let annotations = machine.annotations();
    let name = annotations.get(ANNOTATION_CLONED_FROM).filter(|name| !name.is_empty());
    let is_ours = annotations.get(ANNOTATION_CLONED_KIND).is_some_and(|kind| kind == MACHINE_TEMPLATE_KIND);
    let Some(name) = name.filter(|_| is_ours) else { return Ok(None) };
    named(client, &machine.namespace().unwrap_or_default(), name).await
}

async fn named(client: &Client, namespace: &str, name: &str) -> Result<Option<Metal3MachineTemplate>, kube::Error> {
    Api::<Metal3MachineTemplate>::namespaced(client.clone(), namespace).get_opt(name).await
}

/// Annotations that a machine has by its template: those for machines count more than the template's own.
pub fn annotations(template: Option<&Metal3MachineTemplate>) -> BTreeMap<String, String> {
    let Some(template) = template else { return BTreeMap::new() };
    let mut all = template.annotations().clone();
    all.extend(template.spec.template.metadata.clone().unwrap_or_default().annotations);
    all
}

/// Whether the host of a machine is kept for the machine that takes its place: its template says so, or the one that its control
/// plane has now.
///
/// # Errors
///
/// What the API says.
pub async fn keeps_hosts(client: &Client, machine: &Metal3Machine, owner: &Machine) -> Result<bool, kube::Error> {
    if of(client, machine).await?.is_some_and(|template| template.spec.node_reuse) {
        return Ok(true);
    }
    if !owner.labels().contains_key(LABEL_CONTROL_PLANE) {
        return Ok(false);
    }
    let all = owner.metadata.owner_references.as_deref().unwrap_or_default();
    let Some(keeper) = all.iter().find(|one| owners::group_of(&one.api_version) == CONTROL_PLANE_GROUP) else {
        return Ok(false);
    };
    let reference = ContractReference {
        kind: keeper.kind.clone(),
        name: keeper.name.clone(),
        api_group: CONTROL_PLANE_GROUP.to_owned(),
    };
    let namespace = machine.namespace().unwrap_or_default();
    // A control plane that cannot be had keeps nothing.
    let Ok(Some(control_plane)) = ReferencedObjects::new(client.clone()).get(&namespace, &reference).await else {
        return Ok(false);
    };
    let data = control_plane.data();
    let name = ["/spec/machineTemplate/spec/infrastructureRef/name", "/spec/machineTemplate/infrastructureRef/name"]
        .iter()
        .find_map(|path| data.pointer(path)?.as_str());
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(false) };
    Ok(named(client, &namespace, name).await?.is_some_and(|template| template.spec.node_reuse))
}
