//! Who has a host: the machine that its `spec.consumerRef` names. Pure.

use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::host_changes::consumer;
use crate::api::metal3::{BareMetalHost, ObjectReference};
use crate::api::{infrastructure, machine_api};

/// Letters of a kind or name that are kept.
const NAME: usize = 253;

/// The kinds of machines that take hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MachineKind {
    /// Metal3Machine, of `infrastructure.cluster.x-k8s.io`.
    #[default]
    Metal3,
    /// Machine, of `cluster.k8s.io`.
    MachineApi,
}

impl MachineKind {
    const ALL: [Self; 2] = [Self::Metal3, Self::MachineApi];

    /// Its name in the API.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Metal3 => "Metal3Machine",
            Self::MachineApi => "Machine",
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Metal3 => infrastructure::GROUP,
            Self::MachineApi => machine_api::GROUP,
        }
    }

    /// Group and version that its objects are stored in.
    fn api_version(self) -> &'static str {
        match self {
            Self::Metal3 => "infrastructure.cluster.x-k8s.io/v1beta2",
            Self::MachineApi => "cluster.k8s.io/v1alpha1",
        }
    }
}

/// A machine that has a host, or wants one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MachineId {
    /// Its kind.
    pub kind: MachineKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl MachineId {
    /// The machine that is at hand.
    pub fn of(kind: MachineKind, machine: &impl Resource) -> Self {
        Self { kind, namespace: machine.namespace().unwrap_or_default(), name: machine.name_any() }
    }

    /// How a host names it.
    pub fn reference(&self) -> Value {
        consumer(self.kind.kind(), self.kind.api_version(), Some(self.namespace.clone()), &self.name)
    }

    /// Whether a host is this machine's.
    pub fn has(&self, host: &BareMetalHost) -> bool {
        Consumer::of(host.spec.consumer_ref.as_ref(), &self.namespace).is(self)
    }
}

/// Who has a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consumer {
    /// Nobody.
    #[default]
    Nobody,
    /// This machine.
    Machine(MachineId),
    /// Something else: its kind and its name.
    Other {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
    },
}

impl Consumer {
    /// As a host of this namespace names it. The version says nothing.
    pub fn of(reference: Option<&ObjectReference>, namespace: &str) -> Self {
        let Some(reference) = reference else { return Self::Nobody };
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().chars().take(NAME).collect::<String>();
        let (kind, name) = (text(&reference.kind), text(&reference.name));
        let group = reference.api_version.as_deref().unwrap_or_default().split('/').next().unwrap_or_default();
        match MachineKind::ALL.into_iter().find(|one| one.kind() == kind && one.group() == group) {
            Some(kind) => {
                let said = reference.namespace.as_ref().map(|_| text(&reference.namespace));
                let namespace = said.unwrap_or_else(|| namespace.to_owned());
                Self::Machine(MachineId { kind, namespace, name })
            }
            None => Self::Other { kind, name },
        }
    }

    /// Whether it is this machine.
    pub fn is(&self, machine: &MachineId) -> bool {
        matches!(self, Self::Machine(one) if one == machine)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_is_known_by_kind_group_namespace_and_name() {
        let machine = |kind, namespace: &str, name: &str| {
            Consumer::Machine(MachineId { kind, namespace: namespace.into(), name: name.into() })
        };
        let other = |kind: &str, name: &str| Consumer::Other { kind: kind.into(), name: name.into() };
        let rows = [
            (
                json!({"kind": "Machine", "name": "m", "namespace": "rack", "apiVersion": "cluster.k8s.io/v1alpha1"}),
                machine(MachineKind::MachineApi, "rack", "m"),
            ),
            (
                json!({"kind": "Machine", "name": "m", "namespace": "far", "apiVersion": "cluster.k8s.io/v1alpha1"}),
                machine(MachineKind::MachineApi, "far", "m"),
            ),
            (
                json!({"kind": "Machine", "name": "m", "apiVersion": "cluster.k8s.io/v1alpha2"}),
                machine(MachineKind::MachineApi, "rack", "m"),
            ),
            (
                json!({"kind": "Metal3Machine", "name": "m", "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1"}),
                machine(MachineKind::Metal3, "rack", "m"),
            ),
            (json!({"kind": "Machine", "name": "m", "apiVersion": "cluster.x-k8s.io/v1beta2"}), other("Machine", "m")),
            (
                json!({"kind": "Machine", "name": "m", "apiVersion": "machine.openshift.io/v1beta1"}),
                other("Machine", "m"),
            ),
            (json!({"kind": "Machine", "name": "m"}), other("Machine", "m")),
            (json!({}), other("", "")),
        ];
        for (given, wanted) in rows {
            let given: ObjectReference = serde_json::from_value(given).expect("a reference");
            assert_eq!(Consumer::of(Some(&given), "rack"), wanted, "{given:?}");
        }
        assert_eq!(Consumer::of(None, "rack"), Consumer::Nobody);
    }

    #[test]
    fn what_a_machine_writes_is_read_as_itself() {
        for kind in MachineKind::ALL {
            let one = MachineId { kind, namespace: "rack".into(), name: "m".into() };
            let read: ObjectReference = serde_json::from_value(one.reference()).expect("a reference");
            assert!(Consumer::of(Some(&read), "rack").is(&one));
        }
    }
}
