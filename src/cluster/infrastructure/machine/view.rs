//! What is kept of a Metal3Machine: what tells whether it is to be looked at when something else changes.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Deserialize;

use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::{ANNOTATION_CLONED_FROM, ANNOTATION_CLONED_KIND};
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::cluster::infrastructure::names::{ANNOTATION_HOST, MACHINE_TEMPLATE_KIND};
use crate::runtime::essence;

/// Letters of a name that is kept.
const NAME: usize = 253;

/// What is kept of a Metal3Machine.
#[derive(Clone, Debug, Deserialize)]
pub struct MachineView {
    metadata: ObjectMeta,
    /// Its cluster.
    pub cluster: Option<String>,
    /// The Metal3MachineTemplate that it was made from.
    pub template: Option<String>,
    /// Whether it has no host yet.
    pub wants_host: bool,
}

impl From<&Metal3Machine> for MachineView {
    fn from(machine: &Metal3Machine) -> Self {
        let short = |text: &String| Some(text.clone()).filter(|text| text.len() <= NAME);
        let annotations = machine.annotations();
        let template = annotations
            .get(ANNOTATION_CLONED_FROM)
            .filter(|_| annotations.get(ANNOTATION_CLONED_KIND).is_some_and(|kind| kind == MACHINE_TEMPLATE_KIND));
        Self {
            metadata: essence(&machine.metadata),
            cluster: machine.labels().get(LABEL_CLUSTER).and_then(short),
            template: template.and_then(short),
            wants_host: !annotations.contains_key(ANNOTATION_HOST),
        }
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
