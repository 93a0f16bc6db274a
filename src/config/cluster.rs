//! `[cluster]`: who acts on the objects of clusters.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::outbound::Allowed;

/// `[cluster]`
#[derive(Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// Who acts on them: for all API groups, or for each by its name.
    pub controllers: Option<Controllers>,
    /// Addresses that are special to this box, at which API servers of clusters may be all the same.
    pub allow: Vec<Allowed>,
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
        let Some(Controllers::ByGroup(groups)) = &self.controllers else { return Vec::new() };
        let unknown = groups.keys().filter(|group| !GROUPS.contains(&group.as_str()));
        unknown
            .map(|group| format!("cluster.controllers: there are none for {group:?}, only for {}", GROUPS.join(", ")))
            .collect()
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
        ];
        for (text, group, elsewhere, acts) in rows {
            let config: ClusterConfig = toml::from_str(text).unwrap();
            assert_eq!(config.acts_on(group, *elsewhere), *acts, "{text} {group} {elsewhere}");
            assert_eq!(config.faults(), Vec::<String>::new(), "{text}");
        }
        let odd: ClusterConfig = toml::from_str("[controllers]\n'metal3.io' = 'off'").unwrap();
        assert!(odd.faults()[0].contains("\"metal3.io\""), "{:?}", odd.faults());
    }
}
