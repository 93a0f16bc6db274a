//! What is to become of a Metal3Machine: what was found out about it while it was looked at, written at the end.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::api::infrastructure::v1beta2::{InfrastructureInitialization, Metal3Machine, Metal3MachineStatus};
use crate::cluster::contract::pause;
use crate::cluster::hosts::names::ANNOTATION_HOST;
use crate::cluster::hosts::{HostTaker, MachineId, MachineKind, noted};
use crate::cluster::infrastructure::names::FINALIZER_MACHINE;
use crate::runtime::changes::{change, difference, write_status};
use crate::runtime::conditions::{ConditionVerdict, Severity, find, older, set, set_old, summary, whole};
use crate::runtime::objects;

/// Whether a host is the machine's.
pub const ASSOCIATED: &str = "AssociateBareMetalHost";
/// Whether the machine is a node of its cluster.
pub const NODE: &str = "AssociateMetal3MachineMetaData";
/// Whether its meta data and network data are there.
pub const DATA: &str = "Metal3DataReady";
/// Whether its host runs what it should.
pub const HOST: &str = "BareMetalHostProvisioned";
/// The whole.
pub const READY: &str = "Ready";

/// What they were called before; Metal3 never had the one of hosts.
const OLD: [(&str, &str); 3] = [(ASSOCIATED, "AssociateBMH"), (NODE, "KubernetesNodeReady"), (DATA, "Metal3DataReady")];

/// A Metal3Machine as it was read, and as it is to be.
pub struct Metal3MachineDraft {
    read: Metal3Machine,
    /// What it is to be.
    pub new: Metal3Machine,
    now: Timestamp,
}

impl Metal3MachineDraft {
    /// As it was read.
    pub fn new(read: Metal3Machine, now: Timestamp) -> Self {
        let mut new = read.clone();
        new.status.get_or_insert_default();
        Self { read, new, now }
    }

    /// Its status.
    pub fn status(&mut self) -> &mut Metal3MachineStatus {
        self.new.status.get_or_insert_default()
    }

    /// Whether it goes.
    pub fn is_deleted(&self) -> bool {
        self.read.metadata.deletion_timestamp.is_some()
    }

    /// What a condition says.
    pub fn verdict(&self, type_: &str) -> Option<ConditionVerdict> {
        find(&self.new.status.as_ref()?.conditions, type_).map(ConditionVerdict::of)
    }

    /// For how long the host has run what the machine should; nothing where it does not.
    pub fn starting(&self) -> Option<Duration> {
        let condition = find(&self.new.status.as_ref()?.conditions, HOST).filter(|host| host.status == "True")?;
        Duration::try_from(self.now.duration_since(condition.last_transition_time.0)).ok()
    }

    /// Says it in both shapes.
    pub fn say(&mut self, type_: &str, verdict: &ConditionVerdict, severity: Severity) {
        self.say_both(type_, verdict, verdict, severity);
    }

    /// Says it in both shapes, which have different words for the reason.
    pub fn say_both(&mut self, type_: &str, verdict: &ConditionVerdict, old: &ConditionVerdict, severity: Severity) {
        let (now, generation) = (self.now, self.read.metadata.generation);
        let status = self.status();
        set(&mut status.conditions, type_, verdict, generation, now);
        if let Some((_, name)) = OLD.iter().find(|(new, _)| *new == type_) {
            set_old(older(&mut status.deprecated), name, old, severity, now);
        }
    }

    /// Says whether nothing is done about it.
    pub fn say_paused(&mut self, verdict: &ConditionVerdict) {
        let (now, generation) = (self.now, self.read.metadata.generation);
        set(&mut self.status().conditions, pause::PAUSED, verdict, generation, now);
    }

    /// It is provisioned, once and for all, and this is its identity.
    pub fn provisioned(&mut self, provider_id: String) {
        self.new.spec.provider_id = Some(provider_id);
        self.status().initialization = Some(InfrastructureInitialization { provisioned: Some(true) });
    }

    /// Takes the finalizer off.
    ///
    /// # Errors
    ///
    /// What the API says; a conflict when it is not the one at hand any more.
    pub async fn release(&self, client: &Client) -> Result<(), kube::Error> {
        let api = Api::<Metal3Machine>::namespaced(client.clone(), &self.read.namespace().unwrap_or_default());
        objects::release(&api, &self.read, FINALIZER_MACHINE).await
    }

    /// Writes what has changed. The status is of the version that was read, or of what was written here.
    ///
    /// # Errors
    ///
    /// What the API says; a conflict when it is not the one at hand any more.
    pub async fn store(&mut self, client: &Client) -> Result<(), kube::Error> {
        self.sum_up();
        let api = Api::<Metal3Machine>::namespaced(client.clone(), &self.read.namespace().unwrap_or_default());
        if let Some(patch) = difference(&json!(self.read.spec), &json!(self.new.spec)) {
            self.read.metadata = change(&api, &self.read, json!({ "spec": patch })).await?.metadata;
            self.read.spec = self.new.spec.clone();
        }
        let (old, mut new) =
            (self.read.status.clone().unwrap_or_default(), self.new.status.clone().unwrap_or_default());
        if old != new {
            new.last_updated = Some(Time(whole(self.now)));
            if let Some(written) = write_status(&api, &self.read, Some(&old), &new).await? {
                self.read.metadata = written.metadata;
            }
            self.read.status = Some(new.clone());
            self.new.status = Some(new);
        }
        Ok(())
    }

    fn sum_up(&mut self) {
        let parts = [ASSOCIATED, NODE, DATA, HOST].map(|type_| (type_, self.verdict(type_), true));
        let verdict = summary(&parts, ["Ready", "NotReady", "ReadyUnknown"]);
        let (now, generation) = (self.now, self.read.metadata.generation);
        let status = self.status();
        set(&mut status.conditions, READY, &verdict, generation, now);
        set_old(older(&mut status.deprecated), READY, &verdict, Severity::Info, now);
    }
}

impl HostTaker for Metal3MachineDraft {
    fn id(&self) -> MachineId {
        MachineId::of(MachineKind::Metal3, &self.read)
    }

    fn host(&self) -> Option<String> {
        noted(&self.new)
    }

    fn is_provisioned(&self) -> bool {
        let status = self.new.status.as_ref();
        status.and_then(|status| status.initialization.as_ref()?.provisioned) == Some(true)
    }

    async fn hold(&mut self, client: &Client, host: Option<&str>) -> Result<(), kube::Error> {
        let namespace = self.new.namespace().unwrap_or_default();
        let value = host.map(|host| format!("{namespace}/{host}"));
        let is_held = objects::is_held(&self.read, FINALIZER_MACHINE);
        if is_held && self.read.annotations().get(ANNOTATION_HOST) == value.as_ref() {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "finalizers": objects::with(&self.read, FINALIZER_MACHINE),
            "annotations": { ANNOTATION_HOST: value },
        }});
        let api = Api::<Metal3Machine>::namespaced(client.clone(), &namespace);
        let written = change(&api, &self.read, patch).await?;
        self.new.metadata = written.metadata.clone();
        self.read = Metal3Machine { spec: written.spec, status: self.read.status.take(), metadata: written.metadata };
        Ok(())
    }
}
