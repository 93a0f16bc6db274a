//! What of a machine its data may be made of. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::infrastructure::data::{FromAnnotation, MachineObject};
use crate::api::metal3::{BareMetalHost, HardwareDetails};

/// Most bytes of an object's name.
const NAME_MAX: usize = 253;

/// Why data cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DataRenderError {
    /// The host was not looked at.
    #[error("NICs list not populated: the BareMetalHost {0} was not inspected yet")]
    NoHardware(String),
    /// It has no such interface.
    #[error("NIC name not found {0}")]
    NoInterface(String),
    /// Nobody said which interface it boots from.
    #[error("metadata key {0:?}: spec.bootMACAddress of the BareMetalHost {1} is empty")]
    NoBootMac(String, String),
    /// No address, whoever says it.
    #[error("bad MAC address of the link {0:?}: {1:?}")]
    Mac(String, String),
    /// An annotation that names a pool is not there.
    #[error("annotation {0} not found or empty on {1}")]
    NoAnnotation(String, &'static str),
    /// What names a pool is longer than any name.
    #[error("annotation {0} on {1} is no name of a pool")]
    PoolName(String, &'static str),
    /// More than anybody needs.
    #[error("{0}: {1} are the limit")]
    TooMany(&'static str, usize),
    /// Two pools of one name.
    #[error("multiple references with the same name but different resource types: {0}")]
    TwoPools(String),
    /// A network has no pool.
    #[error("network {0:?} names no pool")]
    NoPool(String),
    /// No address of it is known.
    #[error("there is no address of the pool {0}")]
    NotAllocated(String),
    /// An address of the other IP version.
    #[error("network {0:?}: {1} is no IPv{2} address")]
    Version(String, String, u8),
    /// A prefix longer than an address.
    #[error("network {0:?}: {1} is no length of a prefix")]
    Prefix(String, i64),
    /// Parameters that the template has fields for.
    #[error("illegal params {0:?} into bond params blob into link id={1}")]
    Parameter(String, String),
    /// What was made cannot be written.
    #[error("the data cannot be written as YAML: {0}")]
    Yaml(String),
    /// What was made is larger than any machine reads.
    #[error("the data has {0} bytes; {1} are the limit")]
    Large(usize, usize),
}

/// What an object has that stands for a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Facts {
    /// Of an object.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self { name: object.name_any(), labels: object.labels().clone(), annotations: object.annotations().clone() }
    }
}

/// A machine: the three objects that stand for it, and what of the host is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DataMachine {
    /// Their namespace.
    pub namespace: String,
    /// Cluster that it is of.
    pub cluster: String,
    /// Machine of Cluster API.
    pub machine: Facts,
    /// Metal3Machine.
    pub metal3: Facts,
    /// BareMetalHost.
    pub host: Facts,
    /// MAC address that the host boots from.
    pub boot_mac: Option<String>,
    /// Names and MAC addresses of the host's interfaces; none before it was inspected.
    pub nics: Option<Vec<(String, String)>>,
}

impl DataMachine {
    /// What is known of the host and its hardware.
    pub fn set_host(&mut self, host: &BareMetalHost, hardware: Option<&HardwareDetails>) {
        let nics = hardware.map(|hardware| &hardware.nics).filter(|nics| !nics.is_empty());
        self.nics = nics.map(|nics| nics.iter().map(|nic| (nic.name.clone(), nic.mac.clone())).collect());
        self.boot_mac = host.spec.boot_mac_address.clone().filter(|mac| !mac.is_empty());
        self.host = Facts::of(host);
    }

    /// One of its objects.
    pub fn object(&self, object: MachineObject) -> &Facts {
        match object {
            MachineObject::Machine => &self.machine,
            MachineObject::Metal3Machine => &self.metal3,
            MachineObject::BareMetalHost => &self.host,
        }
    }

    /// An annotation; empty when it is not there.
    pub fn annotation(&self, object: MachineObject, annotation: &str) -> String {
        self.object(object).annotations.get(annotation).cloned().unwrap_or_default()
    }

    /// The name of a pool that an annotation says.
    ///
    /// # Errors
    ///
    /// When it says none.
    pub fn pool_name(&self, from: &FromAnnotation) -> Result<String, DataRenderError> {
        let word = match from.object {
            MachineObject::Machine => "machine",
            MachineObject::Metal3Machine => "metal3machine",
            MachineObject::BareMetalHost => "baremetalhost",
        };
        let name = self.object(from.object).annotations.get(&from.annotation).map(String::as_str).unwrap_or_default();
        match name.len() {
            0 => Err(DataRenderError::NoAnnotation(from.annotation.clone(), word)),
            1..=NAME_MAX => Ok(name.to_owned()),
            _ => Err(DataRenderError::PoolName(from.annotation.clone(), word)),
        }
    }

    /// The MAC address of a host's interface.
    ///
    /// # Errors
    ///
    /// When there is none of that name, or nobody looked yet.
    pub fn mac_of(&self, interface: &str) -> Result<String, DataRenderError> {
        let Some(nics) = &self.nics else { return Err(DataRenderError::NoHardware(self.host.name.clone())) };
        let nic = nics.iter().find(|(name, _)| name == interface);
        nic.map(|(_, mac)| mac.clone()).ok_or_else(|| DataRenderError::NoInterface(interface.to_owned()))
    }

    /// What the node is known by at its provider, without the provider's name.
    pub fn provider_id(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.host.name, self.metal3.name)
    }
}
