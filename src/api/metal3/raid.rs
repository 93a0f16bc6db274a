//! RAID volumes of a host (docs/design/host.md, "RAID volumes").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MAX_VOLUME_DISKS, MAX_VOLUMES, RootDeviceHints, is_false};
use crate::api::bounded;

/// RAID volumes. A list that is not given leaves the volumes of that sort alone, an empty one removes them all.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct RaidConfig {
    /// Volumes that the machine's controllers build.
    #[serde(
        default,
        rename = "hardwareRAIDVolumes",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "bounded::optional_list::<_, _, MAX_VOLUMES>"
    )]
    pub hardware_raid_volumes: Option<Vec<HardwareRaidVolume>>,
    /// Volumes that the operating system builds; at most two, the first of level 1.
    #[serde(
        default,
        rename = "softwareRAIDVolumes",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "bounded::optional_list::<_, _, MAX_VOLUMES>"
    )]
    #[schemars(length(max = 2))]
    pub software_raid_volumes: Option<Vec<SoftwareRaidVolume>>,
}

/// A volume that a controller builds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HardwareRaidVolume {
    /// Size in GiB; as large as can be when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub size_gibibytes: Option<i64>,
    /// RAID level.
    pub level: HardwareRaidLevel,
    /// Name of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub name: Option<String>,
    /// Whether the disks are to have rotating platters; any when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// How many disks; as many as the level needs when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub number_of_physical_disks: Option<i64>,
    /// Name of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Names of the disks, as the controller has them.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "bounded::list::<_, _, MAX_VOLUME_DISKS>"
    )]
    pub physical_disks: Vec<String>,
}

/// A volume that the operating system builds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SoftwareRaidVolume {
    /// Whether the image goes here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub root_volume: bool,
    /// Size in GiB; as large as can be when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub size_gibibytes: Option<i64>,
    /// RAID level.
    pub level: SoftwareRaidLevel,
    /// Hints for each disk.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "bounded::optional_list::<_, _, MAX_VOLUME_DISKS>"
    )]
    #[schemars(length(min = 2))]
    pub physical_disks: Option<Vec<RootDeviceHints>>,
}

/// RAID levels of controllers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HardwareRaidLevel {
    /// Striping.
    #[default]
    #[serde(rename = "0")]
    Zero,
    /// Mirroring.
    #[serde(rename = "1")]
    One,
    /// Striping with a dedicated parity.
    #[serde(rename = "2")]
    Two,
    /// Striping with parity.
    #[serde(rename = "5")]
    Five,
    /// Striping with double parity.
    #[serde(rename = "6")]
    Six,
    /// Stripes of mirrors.
    #[serde(rename = "1+0")]
    OneZero,
    /// Stripes of level 5.
    #[serde(rename = "5+0")]
    FiveZero,
    /// Stripes of level 6.
    #[serde(rename = "6+0")]
    SixZero,
}

/// RAID levels of operating systems.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SoftwareRaidLevel {
    /// Striping.
    #[default]
    #[serde(rename = "0")]
    Zero,
    /// Mirroring.
    #[serde(rename = "1")]
    One,
    /// Stripes of mirrors.
    #[serde(rename = "1+0")]
    OneZero,
}
