//! What is kept of a Machine: which it is, and what it goes by, so that it is looked at when that changes.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Deserialize;

use super::shape;
use crate::api::machine_api::Machine;
use crate::cluster::hosts::names::ANNOTATION_HOST;
use crate::cluster::hosts::waking::wants_host;
use crate::runtime::{Mention, essence};

/// What is kept of a Machine.
#[derive(Clone, Debug, Deserialize)]
pub struct ClaimView {
    metadata: ObjectMeta,
}

impl From<&Machine> for ClaimView {
    fn from(machine: &Machine) -> Self {
        Self { metadata: essence(&machine.metadata) }
    }
}

impl ClaimView {
    /// What a Machine goes by: any host, while it is to have one and has none.
    pub fn mentions(machine: &Machine) -> Vec<Mention> {
        let has_host = machine.annotations().contains_key(ANNOTATION_HOST);
        let wants_one = !has_host && shape::is_ours(&machine.spec.provider_spec);
        wants_one.then(|| wants_host(&machine.namespace().unwrap_or_default())).into_iter().collect()
    }
}

impl Resource for ClaimView {
    type DynamicType = ();
    type Scope = <Machine as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Machine::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Machine::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Machine::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Machine::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
