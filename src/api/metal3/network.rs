//! Switch ports of a host's network interfaces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network interface and what its switch port is to be; named by exactly one of `name` and `macAddress`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInterface {
    /// The interface's name in the inventory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-zA-Z0-9._-]+$"))]
    pub name: Option<String>,
    /// The interface's MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub mac_address: Option<String>,
    /// The HostNetworkAttachment that says how the port is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network_attachment: Option<HostNetworkAttachmentReference>,
    /// The switch port; as LLDP tells it when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_port: Option<SwitchPort>,
}

/// A HostNetworkAttachment; an empty namespace means the host's own.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct HostNetworkAttachmentReference {
    /// Name.
    pub name: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A port of a switch.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct SwitchPort {
    /// MAC address of the switch.
    #[serde(rename = "switchID")]
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub switch_id: String,
    /// Port as the switch names it.
    #[serde(rename = "portID")]
    #[schemars(length(min = 1))]
    pub port_id: String,
}
