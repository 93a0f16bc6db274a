//! The steps that a machine is to have: those of the release, with what only its cluster knows put in. Pure.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::api::lcm::{LCMClusterSpec, MachineRole, Phase, StateItem};

/// The phases, in their order.
pub(super) const PHASES: [Phase; 3] = [Phase::Prepare, Phase::Deploy, Phase::Reconfigure];

/// A digest of something.
pub(super) type StepsDigest = [u8; 32];

/// What a cluster knows that its machines' steps need.
#[derive(Clone, Debug)]
pub(super) struct StepsCluster<'a> {
    /// The cluster.
    pub spec: &'a LCMClusterSpec,
    /// Where the API server is reached that is there already: the first manager, else the endpoint.
    pub control_node: String,
    /// Addresses of the control plane, in its order.
    pub control_plane: Vec<String>,
}

impl StepsCluster<'_> {
    /// Host and port of the cluster's API server; empty where nobody said.
    pub(super) fn endpoint(&self) -> String {
        let Some(endpoint) = self.spec.external_endpoint.as_ref().filter(|one| !one.host.is_empty()) else {
            return String::new();
        };
        let host = &endpoint.host;
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.clone() };
        format!("{host}:{}", if endpoint.port > 0 { endpoint.port } else { 6443 })
    }
}

/// The word for what a machine is.
pub(super) fn word(role: MachineRole) -> &'static str {
    match role {
        MachineRole::Control => "control",
        MachineRole::Worker => "worker",
        MachineRole::Bastion => "bastion",
        MachineRole::Unassigned => "unassigned",
    }
}

/// A machine for which steps are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepsMachine<'a> {
    /// What it is.
    pub role: MachineRole,
    /// Whether it is the first of the control plane.
    pub first: bool,
    /// Whether it was deployed with another release.
    pub upgrades: bool,
    /// Parameters that are other on it, by the names of steps.
    pub overwrites: &'a BTreeMap<String, BTreeMap<String, String>>,
}

/// All steps of a machine, in their order: phase by phase.
pub(super) fn wanted(known: &StepsCluster<'_>, whose: StepsMachine<'_>) -> Vec<StateItem> {
    let role = if whose.first { "first" } else { word(whose.role) };
    let injected = [
        ("controlNodeIP", known.control_node.clone()),
        ("controlPlaneNodes", known.control_plane.join(",")),
        ("isDedicatedMaster", known.spec.dedicated_control_plane.to_string()),
        ("target_release", known.spec.release.clone()),
        ("release_needs_upgrade", whose.upgrades.to_string()),
        ("clusterEndpoint", known.endpoint()),
        ("podsCIDR", known.spec.pods_cidr.clone()),
        ("servicesCIDR", known.spec.services_cidr.clone()),
        ("nodeRole", role.to_owned()),
    ];
    let mut all = known.spec.machine_types.get(word(whose.role)).cloned().unwrap_or_default();
    all.sort_by_key(|item| item.phase);
    for item in &mut all {
        if let Some(own) = whose.overwrites.get(&item.name) {
            item.params.extend(own.clone());
        }
        for (key, value) in &injected {
            item.params.entry((*key).to_owned()).or_insert_with(|| value.clone());
        }
    }
    all
}

/// Steps of a phase.
pub(super) fn of_phase(all: &[StateItem], phase: Phase) -> impl Iterator<Item = &StateItem> {
    all.iter().filter(move |item| item.phase == phase)
}

/// A digest of everything that some steps say.
pub(super) fn print<'a>(items: impl Iterator<Item = &'a StateItem>) -> StepsDigest {
    let mut digest = Sha256::new();
    for item in items {
        digest.update(serde_json::to_vec(item).unwrap_or_default());
        digest.update([0]);
    }
    digest.finalize().into()
}

/// Why the steps of a release cannot be handed out; none when they can.
pub(super) fn fault(all: &[StateItem]) -> Option<String> {
    if all.len() > crate::api::lcm::MAX_ITEMS {
        return Some(format!("the release has {} steps, and {} at most can be", all.len(), crate::api::lcm::MAX_ITEMS));
    }
    let mut names: Vec<&str> = all.iter().map(|item| item.name.as_str()).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map(|pair| format!("the release has two steps {:?}: each needs a name of its own", pair[0]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::lcm::LcmEndpoint;

    fn spec() -> LCMClusterSpec {
        let steps = json!([
            {"name": "join", "phase": "deploy", "params": {"script": "x"}},
            {"name": "fetch", "phase": "prepare", "params": {"nodeRole": "fixed"}},
        ]);
        let mut spec = LCMClusterSpec { release: "r1".into(), pods_cidr: "10.1.0.0/16".into(), ..Default::default() };
        spec.machine_types.insert("worker".into(), serde_json::from_value(steps).unwrap());
        spec
    }

    #[test]
    fn steps_get_what_the_cluster_knows_and_keep_what_the_release_says() {
        let spec = spec();
        let known =
            StepsCluster { spec: &spec, control_node: "10.0.0.1".into(), control_plane: vec!["10.0.0.1".into()] };
        let own = BTreeMap::from([("join".to_owned(), BTreeMap::from([("script".to_owned(), "y".to_owned())]))]);
        let whose = StepsMachine { role: MachineRole::Worker, first: false, upgrades: true, overwrites: &own };
        let all = wanted(&known, whose);
        assert_eq!(all.iter().map(|item| item.name.as_str()).collect::<Vec<_>>(), ["fetch", "join"]);
        assert_eq!(all[0].params["nodeRole"], "fixed");
        let join = &all[1].params;
        for (key, value) in [
            ("script", "y"),
            ("controlNodeIP", "10.0.0.1"),
            ("nodeRole", "worker"),
            ("podsCIDR", "10.1.0.0/16"),
            ("target_release", "r1"),
            ("release_needs_upgrade", "true"),
            ("clusterEndpoint", ""),
        ] {
            assert_eq!(join[key], value, "{key}");
        }
        // What may change says nothing of whether it is done.
        let other = LCMClusterSpec { release: "r2".into(), ..spec.clone() };
        let known = StepsCluster { spec: &other, control_node: "10.0.0.2".into(), control_plane: Vec::new() };
        let moved = wanted(&known, StepsMachine { upgrades: false, first: true, ..whose });
        assert_eq!(moved[1].hash(), all[1].hash());
        assert_ne!(print(moved.iter()), print(all.iter()));
        assert!(wanted(&known, StepsMachine { role: MachineRole::Control, ..whose }).is_empty());
    }

    #[test]
    fn an_endpoint_has_a_port_and_addresses_of_ipv6_have_brackets() {
        for (host, port, wanted) in
            [("", 1, ""), ("a", 0, "a:6443"), ("fd00::1", 443, "[fd00::1]:443"), ("[fd00::1]", 443, "[fd00::1]:443")]
        {
            let spec = LCMClusterSpec {
                external_endpoint: Some(LcmEndpoint { host: host.into(), port }),
                ..Default::default()
            };
            let known = StepsCluster { spec: &spec, control_node: String::new(), control_plane: Vec::new() };
            assert_eq!(known.endpoint(), wanted);
        }
    }

    #[test]
    fn a_name_stands_for_one_step() {
        let item = |name: &str| StateItem { name: name.into(), ..StateItem::default() };
        assert_eq!(fault(&[item("a"), item("b")]), None);
        assert!(fault(&[item("a"), item("b"), item("a")]).unwrap().contains("two steps \"a\""));
        assert!(fault(&vec![item("a"); 201]).unwrap().contains("201"));
    }
}
