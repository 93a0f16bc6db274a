//! `[cluster]`: who acts on the objects of clusters.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::infrastructure::{DiskFormat, MachineChecksumType};
use crate::outbound::Allowed;

/// `[cluster]`
#[derive(Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// Who acts on them: for all API groups, or for each by its name.
    pub controllers: Option<Controllers>,
    /// Addresses that are special to this box, at which API servers of clusters may be all the same.
    pub allow: Vec<Allowed>,
    /// What Machines of `cluster.k8s.io` run whose `providerSpec` has no field for it, or leaves it out where it may, and the free hosts of
    /// Provisionings that name no image.
    pub default_image: Option<DefaultImage>,
}

/// An image that the site names for those who name none.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct DefaultImage {
    /// Where it is.
    pub url: String,
    /// Its checksum, or where that is. Live systems need none, and registries (`oci://`) check by themselves.
    pub checksum: Option<String>,
    /// Algorithm of the checksum; by its length when unset.
    pub checksum_type: Option<MachineChecksumType>,
    /// Form of the image; found out when unset.
    pub format: Option<DiskFormat>,
}

impl DefaultImage {
    /// As machines name it.
    pub fn image(&self) -> MachineImage {
        let Self { url, checksum, checksum_type, format } = self.clone();
        MachineImage { url, checksum, checksum_type, disk_format: format }
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let is_url = self.url.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.authority().is_some());
        if !is_url {
            faults.push(format!("cluster.default_image.url {:?} is not a URL", self.url));
        }
        let has_checksum = self.checksum.as_ref().is_some_and(|checksum| !checksum.is_empty());
        let is_of_registry = self.url.to_lowercase().starts_with("oci://");
        if is_of_registry && has_checksum {
            faults.push("cluster.default_image.checksum must be left out for oci:// URLs".into());
        }
        // The library knows its own.
        let is_of_library = self.url.to_lowercase().starts_with("slipway://");
        if !is_of_registry && !is_of_library && !has_checksum && self.format != Some(DiskFormat::LiveIso) {
            faults.push("cluster.default_image.checksum is missing".into());
        }
        faults
    }
}

/// Who acts, for all groups or for each.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum Controllers {
    /// The same for all groups.
    All(Actor),
    /// By API group; groups that are not named have Slipway's controllers.
    ByGroup(BTreeMap<String, Actor>),
}

/// Who acts on the objects of a group.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// Slipway's controllers.
    BuiltIn,
    /// Nobody here: managers that run elsewhere.
    Off,
}

/// Groups that Slipway has controllers for.
const GROUPS: &[&str] = &[
    "bootstrap.cluster.x-k8s.io",
    "cluster.k8s.io",
    "cluster.x-k8s.io",
    "controlplane.cluster.x-k8s.io",
    "infrastructure.cluster.x-k8s.io",
    "ipam.cluster.x-k8s.io",
    "ipam.metal3.io",
];

impl ClusterConfig {
    /// Whether Slipway's controllers act on the objects of an API group. Where nothing is said they do, but not in another API
    /// server (`elsewhere`): who has one that knows Cluster API most likely has its managers too.
    pub fn acts_on(&self, group: &str, elsewhere: bool) -> bool {
        match &self.controllers {
            None => !elsewhere,
            Some(Controllers::All(actor)) => *actor == Actor::BuiltIn,
            Some(Controllers::ByGroup(groups)) => groups.get(group).is_none_or(|actor| *actor == Actor::BuiltIn),
        }
    }

    /// What is wrong with it, one line for each fault.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = self.default_image.as_ref().map(DefaultImage::faults).unwrap_or_default();
        if let Some(Controllers::ByGroup(groups)) = &self.controllers {
            let unknown = groups.keys().filter(|group| !GROUPS.contains(&group.as_str()));
            let said =
                |group| format!("cluster.controllers: there are none for {group:?}, only for {}", GROUPS.join(", "));
            faults.extend(unknown.map(said));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_act_by_group() {
        let rows: &[(&str, &str, bool, bool)] = &[
            ("", "cluster.x-k8s.io", false, true),
            ("", "cluster.x-k8s.io", true, false),
            ("controllers = 'off'", "ipam.metal3.io", false, false),
            ("controllers = 'built-in'", "ipam.metal3.io", true, true),
            ("[controllers]\n'cluster.x-k8s.io' = 'off'", "cluster.x-k8s.io", false, false),
            ("[controllers]\n'cluster.x-k8s.io' = 'off'", "ipam.metal3.io", true, true),
            ("[controllers]\n'cluster.k8s.io' = 'off'", "cluster.k8s.io", false, false),
        ];
        for (text, group, elsewhere, acts) in rows {
            let config: ClusterConfig = toml::from_str(text).unwrap();
            assert_eq!(config.acts_on(group, *elsewhere), *acts, "{text} {group} {elsewhere}");
            assert_eq!(config.faults(), Vec::<String>::new(), "{text}");
        }
        let odd: ClusterConfig = toml::from_str("[controllers]\n'metal3.io' = 'off'").unwrap();
        assert!(odd.faults()[0].contains("\"metal3.io\""), "{:?}", odd.faults());
    }

    #[test]
    fn a_default_image_is_one_that_can_be_had() {
        let rows = [
            ("url = 'http://x/y.qcow2'\nchecksum = 'aa'\nchecksum_type = 'sha256'\nformat = 'qcow2'", ""),
            ("url = 'http://x/y.iso'\nformat = 'live-iso'", ""),
            ("url = 'oci://x/y'", ""),
            ("url = 'oci://x/y'\nchecksum = 'aa'", "must be left out"),
            ("url = 'slipway://debian-12'", ""),
            ("url = 'http://x/y'", "checksum is missing"),
            ("url = 'y.qcow2'\nchecksum = 'aa'", "is not a URL"),
        ];
        for (text, said) in rows {
            let config: ClusterConfig = toml::from_str(&format!("[default_image]\n{text}")).unwrap();
            let faults = config.faults();
            match said {
                "" => assert_eq!(faults, Vec::<String>::new(), "{text}"),
                said => assert!(faults.len() == 1 && faults[0].contains(said), "{text}: {faults:?}"),
            }
        }
        let odd = toml::from_str::<ClusterConfig>("[default_image]\nurl = 'x'\nkind = 'y'");
        assert!(odd.unwrap_err().to_string().contains("kind"));
    }
}
