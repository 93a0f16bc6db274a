//! What is known of a host when one is chosen: a slim view of a BareMetalHost.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::needs::Capacity;
use super::refusal::Shut;
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED, BareMetalHost, HardwareData, ProvisioningState};
use crate::cluster::hosts::consumer::{Consumer, MachineId};
use crate::cluster::hosts::names::{ANNOTATION_UNHEALTHY, ANNOTATION_UNHEALTHY_OLD, LABEL_REUSE};
use crate::runtime::{Mention, essence};

/// Bytes of labels that are kept of a host. One with more is given to nobody.
const MOST_LABELS: usize = 16 << 10;
/// Letters that are kept of an error.
const SHOWN: usize = 120;

/// Letters of a name that a host is found by.
const NAME: usize = 253;

/// What is known of a host.
#[derive(Clone, Debug, Default)]
pub struct CandidateHost {
    /// Which host, and in which version.
    pub metadata: ObjectMeta,
    /// Its labels; none when there are too many.
    pub labels: Option<BTreeMap<String, String>>,
    /// Who has it.
    pub consumer: Consumer,
    /// Where it is in its life.
    pub state: ProvisioningState,
    /// Its error; empty when there is none.
    pub error: String,
    /// What keeps it from being given away, by annotations.
    pub barred: Option<Barred>,
    /// Whether it was told what to run.
    pub has_image: bool,
    /// Its hardware, where the host itself says.
    pub capacity: Option<Capacity>,
}

/// What keeps a host from being given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Barred {
    /// Nothing is done about it.
    Paused,
    /// It is not managed.
    Detached,
    /// It failed as a machine.
    Unhealthy,
}

impl Barred {
    /// What it is called.
    pub fn word(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Detached => "detached",
            Self::Unhealthy => "marked unhealthy",
        }
    }
}

impl From<&BareMetalHost> for CandidateHost {
    fn from(host: &BareMetalHost) -> Self {
        let labels = host.labels();
        let size: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        let has = |key: &str| host.annotations().contains_key(key);
        let barred = if has(ANNOTATION_PAUSED) {
            Some(Barred::Paused)
        } else if has(ANNOTATION_DETACHED) {
            Some(Barred::Detached)
        } else {
            (has(ANNOTATION_UNHEALTHY) || has(ANNOTATION_UNHEALTHY_OLD)).then_some(Barred::Unhealthy)
        };
        let status = host.status.as_ref();
        Self {
            metadata: essence(&host.metadata),
            labels: (size <= MOST_LABELS).then(|| labels.clone()),
            consumer: Consumer::of(host.spec.consumer_ref.as_ref(), &host.namespace().unwrap_or_default()),
            state: status.map(|status| status.provisioning.state).unwrap_or_default(),
            error: status.map(|status| status.error_message.chars().take(SHOWN).collect()).unwrap_or_default(),
            barred,
            has_image: host.spec.image.is_some() || host.spec.custom_deploy.is_some(),
            capacity: status.and_then(|status| status.hardware.as_ref()).map(Capacity::from),
        }
    }
}

/// The hosts of a namespace that are free: who gets one depends on what he wants.
pub fn free_in(namespace: &str) -> Mention {
    Mention::new("Free", namespace, "")
}

/// The hosts of a namespace that are kept for reuse.
pub fn kept_in(namespace: &str) -> Mention {
    Mention::new("Kept", namespace, "")
}

/// Those of them that are kept for one control plane or deployment.
pub fn kept_for(namespace: &str, whom: &str) -> Mention {
    Mention::new("Kept for", namespace, whom)
}

/// The hosts of a namespace that nobody gets, for this reason.
pub fn shut_in(namespace: &str, reason: Shut) -> Mention {
    Mention::new(reason.word(), namespace, "")
}

/// A machine, as the one that has a host of its namespace.
pub fn had_by(machine: &MachineId) -> Mention {
    Mention::new(machine.kind.kind(), &machine.namespace, &machine.name)
}

/// A Secret, as the one with the credentials of a host's BMC.
pub fn has_credentials(namespace: &str, secret: &str) -> Mention {
    Mention::new("Secret", namespace, secret)
}

impl CandidateHost {
    /// What a host is found by: how it stands to whoever wants one, the machine of its namespace that has it, and the credentials of
    /// its BMC.
    pub fn mentions(host: &BareMetalHost) -> Vec<Mention> {
        let namespace = host.namespace().unwrap_or_default();
        let view = Self::from(host);
        let machine = match &view.consumer {
            Consumer::Machine(machine) if machine.namespace == namespace => Some(had_by(machine)),
            _ => None,
        };
        let standing = match (view.shut(), view.label(LABEL_REUSE)) {
            (Some(reason), _) => vec![shut_in(&namespace, reason)],
            (None, None) => vec![free_in(&namespace)],
            (None, Some(whom)) => {
                // No label of Kubernetes is longer.
                let whom = (whom.len() <= NAME).then(|| kept_for(&namespace, whom));
                [kept_in(&namespace)].into_iter().chain(whom).collect()
            }
        };
        let secret = host.spec.bmc.as_ref().map(|bmc| bmc.credentials_name.as_str());
        let secret = secret.filter(|name| !name.is_empty() && name.len() <= NAME);
        let secret = secret.map(|name| has_credentials(&namespace, name));
        standing.into_iter().chain(machine).chain(secret).collect()
    }

    /// Why nobody gets it, whoever asks: but for the machine that has it already. One that is kept for somebody may be in any state.
    pub fn shut(&self) -> Option<Shut> {
        let Some(labels) = &self.labels else { return Some(Shut::Labels) };
        let is_kept = labels.contains_key(LABEL_REUSE);
        let is_claimed = match &self.consumer {
            Consumer::Nobody => false,
            // A cluster holds it for whoever of it comes next.
            Consumer::Other { kind, .. } => !(is_kept && kind == "Cluster"),
            Consumer::Machine(_) => true,
        };
        let deleted = self.metadata.deletion_timestamp.is_some().then_some(Shut::Deleting);
        deleted.or(is_claimed.then_some(Shut::Claimed)).or_else(|| self.unfit())
    }

    /// What speaks against it, whoever has it.
    pub(super) fn unfit(&self) -> Option<Shut> {
        let barred = self.barred.map(Shut::Barred);
        let failed = (!self.error.is_empty()).then_some(Shut::Failed);
        let told = self.has_image.then_some(Shut::HasImage);
        let is_elsewhere = self.label(LABEL_REUSE).is_none() && !self.is_available();
        barred.or(failed).or(told).or(is_elsewhere.then_some(Shut::State))
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it is where hosts are given away.
    pub fn is_available(&self) -> bool {
        matches!(self.state, ProvisioningState::Available | ProvisioningState::Ready)
    }
}

/// What inspection found of a host's hardware: a slim view of a HardwareData.
#[derive(Clone, Debug)]
pub struct HardwareView {
    metadata: ObjectMeta,
    /// What it found.
    pub capacity: Option<Capacity>,
}

impl From<&HardwareData> for HardwareView {
    fn from(data: &HardwareData) -> Self {
        Self { metadata: essence(&data.metadata), capacity: data.spec.hardware.as_ref().map(Capacity::from) }
    }
}

/// Views are kept as the objects that they are of.
macro_rules! view_of {
    ($view:ty, $kind:ty) => {
        impl Resource for $view {
            type DynamicType = ();
            type Scope = <$kind as Resource>::Scope;

            fn kind((): &()) -> Cow<'_, str> {
                <$kind>::kind(&())
            }

            fn group((): &()) -> Cow<'_, str> {
                <$kind>::group(&())
            }

            fn version((): &()) -> Cow<'_, str> {
                <$kind>::version(&())
            }

            fn plural((): &()) -> Cow<'_, str> {
                <$kind>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

view_of!(CandidateHost, BareMetalHost);
view_of!(HardwareView, HardwareData);
