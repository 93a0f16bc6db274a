//! What is to become of a Machine: what was found out about it while it was looked at, written at the end.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use kube::{Client, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::names::{
    ANNOTATION_INSTANCE_STATE, FAILED, FINALIZER, LABEL_INSTANCE_TYPE, PENDING, PROVISIONING, RUNNING, TERMINATING,
};
use crate::api::machine_api::{Machine, MachineApiStatus};
use crate::api::metal3::{BareMetalHost, SecretReference};
use crate::cluster::hosts::names::ANNOTATION_HOST;
use crate::cluster::hosts::{HostTaker, MachineId, MachineKind, noted};
use crate::runtime::changes::{change, difference, write_status};
use crate::runtime::conditions::{Truth, put, whole};
use crate::runtime::objects;

/// Whether the host runs what it should.
pub const READY: &str = "Ready";
/// Whether nothing is done about the Machine.
pub const PAUSED: &str = "Paused";
/// Letters of a label's value, at most.
const LABEL_MOST: usize = 63;

/// What is noted of a Machine in its `status.providerStatus`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Notes {
    /// Secret that the host was told as its user data: what it had before is not taken from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Whether the host has run what it should.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub provisioned: bool,
}

/// How far a Machine is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineProgress {
    /// It waits for a host or for what a host needs.
    Pending(&'static str, String),
    /// Its host is made ready.
    Provisioning(&'static str, String),
    /// Its host runs what it should.
    Running,
    /// It goes, and waits for its host.
    Terminating(String),
    /// Somebody must mend it: why in one word, and for people.
    Failed(&'static str, String),
}

/// A Machine as it was read, and as it is to be.
pub struct MachineDraft {
    read: Machine,
    /// What it is to be.
    pub new: Machine,
    /// What is noted of it.
    pub notes: Notes,
    now: Timestamp,
}

impl MachineDraft {
    /// As it was read.
    pub fn new(read: Machine, now: Timestamp) -> Self {
        let status = read.status.as_ref();
        // Whoever wrote something else there noted nothing.
        let notes = status.and_then(|status| Notes::deserialize(status.provider_status.as_ref()?).ok());
        Self { new: read.clone(), read, notes: notes.unwrap_or_default(), now }
    }

    /// Its status.
    pub fn status(&mut self) -> &mut MachineApiStatus {
        self.new.status.get_or_insert_default()
    }

    /// Whether it goes.
    pub fn is_deleted(&self) -> bool {
        self.read.metadata.deletion_timestamp.is_some()
    }

    /// Says how far it is.
    pub fn say(&mut self, progress: MachineProgress) {
        let now = self.now;
        let has_run = self.notes.provisioned;
        let status = self.status();
        let mut fault = None;
        let (phase, condition) = match progress {
            MachineProgress::Pending(reason, message) => (PENDING, (false, reason, message)),
            MachineProgress::Provisioning(reason, message) => (PROVISIONING, (false, reason, message)),
            MachineProgress::Running => (RUNNING, (true, "Provisioned", String::new())),
            MachineProgress::Terminating(message) => (TERMINATING, (false, "Deleting", message)),
            MachineProgress::Failed(reason, message) => {
                fault = Some((reason, message.clone()));
                // One that runs goes on doing so.
                (if has_run { RUNNING } else { FAILED }, (false, reason, message))
            }
        };
        status.phase = Some(phase.to_owned());
        status.error_reason = fault.as_ref().map(|(reason, _)| (*reason).to_owned());
        status.error_message = fault.map(|(_, message)| message);
        set(&mut status.conditions, READY, condition, now);
    }

    /// Says whether nothing is done about it. One that never was paused says nothing.
    pub fn say_paused(&mut self, by: Option<&str>) {
        let now = self.now;
        let status = self.status();
        match by {
            Some(annotation) => {
                let reason = format!("the object has the annotation {annotation}");
                set(&mut status.conditions, PAUSED, (true, "Paused", reason), now);
            }
            None => status.conditions.retain(|one| one.type_ != PAUSED),
        }
    }

    /// What the condition `Ready` says for people.
    pub fn said(&self) -> Option<&str> {
        let conditions = &self.new.status.as_ref()?.conditions;
        conditions.iter().find(|one| one.type_ == READY)?.message.as_deref()
    }

    /// Says in labels and annotations what its host is, and where it is in its life.
    pub fn describe(&mut self, host: &BareMetalHost) {
        let status = host.status.clone().unwrap_or_default();
        let profile = status.hardware_profile.or_else(|| host.spec.hardware_profile.clone());
        let labels = self.new.metadata.labels.get_or_insert_default();
        match profile.filter(|profile| is_label(profile)) {
            Some(profile) => _ = labels.insert(LABEL_INSTANCE_TYPE.to_owned(), profile),
            None => _ = labels.remove(LABEL_INSTANCE_TYPE),
        }
        let state = status.provisioning.state.as_str().replace(' ', "_");
        self.new.metadata.annotations.get_or_insert_default().insert(ANNOTATION_INSTANCE_STATE.to_owned(), state);
    }

    /// Takes the finalizer off.
    ///
    /// # Errors
    ///
    /// What the API says; a conflict when it is not the one at hand any more.
    pub async fn release(&self, client: &Client) -> Result<(), kube::Error> {
        let api = Api::<Machine>::namespaced(client.clone(), &self.read.namespace().unwrap_or_default());
        objects::release(&api, &self.read, FINALIZER).await
    }

    /// Writes what has changed, each of the version that was read, or of what was written here.
    ///
    /// # Errors
    ///
    /// What the API says; a conflict when it is not the one at hand any more.
    pub async fn store(&mut self, client: &Client) -> Result<(), kube::Error> {
        let api = Api::<Machine>::namespaced(client.clone(), &self.read.namespace().unwrap_or_default());
        let described = |machine: &Machine| json!({"labels": machine.labels(), "annotations": machine.annotations()});
        if let Some(metadata) = difference(&described(&self.read), &described(&self.new)) {
            let written = change(&api, &self.read, json!({ "metadata": metadata })).await?;
            self.new.metadata = written.metadata.clone();
            self.read.metadata = written.metadata;
        }
        if self.notes != Notes::default() {
            let noted = beside(self.status().provider_status.take(), &self.notes);
            self.status().provider_status = Some(noted);
        }
        let (old, new) = (self.read.status.clone().unwrap_or_default(), self.new.status.clone().unwrap_or_default());
        if old != new {
            let new = MachineApiStatus { last_updated: Some(Time(whole(self.now))), ..new };
            if let Some(written) = write_status(&api, &self.read, Some(&old), &new).await? {
                self.new.metadata = written.metadata.clone();
                self.read.metadata = written.metadata;
            }
            self.read.status = Some(new.clone());
            self.new.status = Some(new);
        }
        Ok(())
    }
}

impl HostTaker for MachineDraft {
    fn id(&self) -> MachineId {
        MachineId::of(MachineKind::MachineApi, &self.read)
    }

    fn host(&self) -> Option<String> {
        noted(&self.read)
    }

    fn is_provisioned(&self) -> bool {
        self.notes.provisioned
    }

    async fn hold(&mut self, client: &Client, host: Option<&str>) -> Result<(), kube::Error> {
        let namespace = self.read.namespace().unwrap_or_default();
        let value = host.map(|host| format!("{namespace}/{host}"));
        let is_held = objects::is_held(&self.read, FINALIZER);
        if is_held && self.read.annotations().get(ANNOTATION_HOST) == value.as_ref() {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "finalizers": objects::with(&self.read, FINALIZER),
            "annotations": { ANNOTATION_HOST: value },
        }});
        let api = Api::<Machine>::namespaced(client.clone(), &namespace);
        let written = change(&api, &self.read, patch).await?;
        self.new.metadata = written.metadata.clone();
        self.read.metadata = written.metadata;
        Ok(())
    }
}

/// What is noted, beside what whoever makes Machines nodes has noted.
fn beside(noted: Option<Value>, notes: &Notes) -> Value {
    let mut all = match noted {
        Some(Value::Object(all)) => all,
        _ => Map::new(),
    };
    for field in ["userData", "provisioned"] {
        all.remove(field);
    }
    if let Value::Object(own) = json!(notes) {
        all.extend(own);
    }
    all.into()
}

/// Says something in a condition. The time is that of its last turn.
fn set(
    conditions: &mut Vec<NodeCondition>,
    type_: &str,
    (is_true, reason, message): (bool, &str, String),
    now: Timestamp,
) {
    let truth = if is_true { Truth::True } else { Truth::False };
    let condition = NodeCondition {
        type_: type_.to_owned(),
        status: truth.word().to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(Time(whole(now))),
        last_heartbeat_time: None,
    };
    put(conditions, condition);
}

/// Whether a text may be the value of a label.
fn is_label(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= LABEL_MOST
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
}

impl Notes {
    /// The Secret that the host was told, as hosts name it.
    pub fn told(&self) -> Option<SecretReference> {
        self.user_data.as_ref().map(|name| SecretReference { name: Some(name.clone()), namespace: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(status: Value) -> MachineDraft {
        let machine = json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "rack"}, "spec": {"providerSpec": {}}, "status": status});
        MachineDraft::new(serde_json::from_value(machine).expect("a machine"), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn each_progress_has_its_phase_and_only_faults_are_errors() {
        let rows = [
            (MachineProgress::Pending("NoHost", "w".into()), false, ("Pending", "False", None)),
            (MachineProgress::Provisioning("Provisioning", "w".into()), false, ("Provisioning", "False", None)),
            (MachineProgress::Running, true, ("Running", "True", None)),
            (MachineProgress::Terminating("w".into()), true, ("Terminating", "False", None)),
            (MachineProgress::Failed("InvalidConfiguration", "w".into()), false, ("Failed", "False", Some("w"))),
            (MachineProgress::Failed("UpdateError", "w".into()), true, ("Running", "False", Some("w"))),
        ];
        for (progress, provisioned, (phase, ready, error)) in rows {
            let mut draft = draft(json!({"errorReason": "Old", "errorMessage": "old",
                "providerStatus": {"provisioned": provisioned}}));
            draft.say(progress.clone());
            let status = draft.new.status.expect("a status");
            let said = (status.phase.as_deref(), status.conditions[0].status.as_str(), status.error_message.as_deref());
            assert_eq!(said, (Some(phase), ready, error), "{progress:?}");
            assert_eq!(status.error_reason.is_some(), error.is_some());
        }
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_last_turn() {
        let mut conditions = Vec::new();
        let at = |seconds| Timestamp::from_second(seconds).expect("a time");
        for (is_true, now, turned) in [(false, 10, 10), (false, 20, 10), (true, 30, 30), (true, 40, 30)] {
            set(&mut conditions, READY, (is_true, "R", format!("{now}")), at(now));
            let [one] = conditions.as_slice() else { panic!("one condition") };
            assert_eq!(one.last_transition_time, Some(Time(at(turned))));
            assert_eq!(one.message, Some(now.to_string()));
        }
    }

    #[test]
    fn what_is_noted_stands_beside_what_others_note() {
        let notes = Notes { user_data: Some("u".into()), provisioned: false };
        for (noted, wanted) in [
            (None, json!({"userData": "u"})),
            (Some(json!("odd")), json!({"userData": "u"})),
            (
                Some(json!({"ready": true, "userData": "old", "provisioned": true})),
                json!({"ready": true, "userData": "u"}),
            ),
        ] {
            assert_eq!(beside(noted, &notes), wanted);
        }
    }

    #[test]
    fn what_others_note_is_nothing() {
        for (status, wanted) in [
            (json!({}), Notes::default()),
            (json!({"providerStatus": {"ready": true, "conditions": []}}), Notes::default()),
            (json!({"providerStatus": {"userData": {"a": 1}}}), Notes::default()),
            (
                json!({"providerStatus": {"userData": "u", "provisioned": true}}),
                Notes { user_data: Some("u".into()), provisioned: true },
            ),
        ] {
            assert_eq!(draft(status.clone()).notes, wanted, "{status}");
        }
    }

    #[test]
    fn a_host_is_described_as_labels_allow() {
        for (profile, state, label, annotation) in [
            (json!("unknown"), "powering off before delete", Some("unknown"), "powering_off_before_delete"),
            (json!("a profile"), "provisioned", None, "provisioned"),
            (json!(""), "", None, ""),
            (Value::Null, "match profile", None, "match_profile"),
            (json!("x".repeat(64)), "ready", None, "ready"),
        ] {
            let host = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h"},
                "spec": {"online": true}, "status": {"hardwareProfile": profile, "provisioning": {"state": state}}});
            let mut draft = draft(json!({}));
            draft.describe(&serde_json::from_value(host).expect("a host"));
            assert_eq!(draft.new.labels().get(LABEL_INSTANCE_TYPE).map(String::as_str), label, "{profile}");
            assert_eq!(draft.new.annotations()[ANNOTATION_INSTANCE_STATE], annotation);
        }
    }
}
