//! What is kept of a Metal3Machine: which it is, and what it goes by, so that it is looked at when that changes.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Deserialize;

use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::{ANNOTATION_CLONED_FROM, ANNOTATION_CLONED_KIND};
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::cluster::hosts::names::ANNOTATION_HOST;
use crate::cluster::hosts::waking::wants_host;
use crate::cluster::infrastructure::names::MACHINE_TEMPLATE_KIND;
use crate::runtime::{Mention, essence};

/// Letters of a name that is kept.
const NAME: usize = 253;

/// What is kept of a Metal3Machine.
#[derive(Clone, Debug, Deserialize)]
pub struct MachineView {
    metadata: ObjectMeta,
}

/// A cluster, as the one that a machine is of.
pub fn of_cluster(namespace: &str, name: &str) -> Mention {
    Mention::new("Cluster", namespace, name)
}

/// A Metal3MachineTemplate, as the one that a machine was made from.
pub fn made_from(namespace: &str, template: &str) -> Mention {
    Mention::new(MACHINE_TEMPLATE_KIND, namespace, template)
}

impl From<&Metal3Machine> for MachineView {
    fn from(machine: &Metal3Machine) -> Self {
        Self { metadata: essence(&machine.metadata) }
    }
}

impl MachineView {
    /// What a machine goes by: its cluster, what it was made from, and any host while it has none.
    pub fn mentions(machine: &Metal3Machine) -> Vec<Mention> {
        let namespace = machine.namespace().unwrap_or_default();
        let (labels, annotations) = (machine.labels(), machine.annotations());
        let short = |text: &&String| text.len() <= NAME;
        let cluster = labels.get(LABEL_CLUSTER).filter(short).map(|name| of_cluster(&namespace, name));
        let is_cloned = annotations.get(ANNOTATION_CLONED_KIND).is_some_and(|kind| kind == MACHINE_TEMPLATE_KIND);
        let template = annotations.get(ANNOTATION_CLONED_FROM).filter(|_| is_cloned).filter(short);
        let template = template.map(|name| made_from(&namespace, name));
        let host = (!annotations.contains_key(ANNOTATION_HOST)).then(|| wants_host(&namespace));
        cluster.into_iter().chain(template).chain(host).collect()
    }
}

impl Resource for MachineView {
    type DynamicType = ();
    type Scope = <Metal3Machine as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Metal3Machine::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Metal3Machine::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Metal3Machine::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Metal3Machine::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
