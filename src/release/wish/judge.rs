//! Whether a cluster may have the release that it names, and what may change while it is in maintenance. Pure.
//!
//! The API asks before it stores a Cluster, and the controller before it acts on one: an API rule may not have been asked, and releases
//! may have changed in between.

use super::shape::ClusterWish;
use crate::release::catalogue::charts::charts;
use crate::release::catalogue::join::{self as catalogue, PROVIDER};
use crate::release::catalogue::known::Offer;

/// Why a cluster may not have what it names: the word for it, the field of its value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// In one word.
    pub reason: &'static str,
    /// The field of `providerSpec.value`.
    pub field: &'static str,
    /// For people.
    pub message: String,
}

fn refusal(reason: &'static str, message: String) -> Refusal {
    Refusal { reason, field: "release", message }
}

/// Whether a cluster may have its release at all.
///
/// # Errors
///
/// Why not.
pub fn release(wish: &ClusterWish, offer: &Offer) -> Result<(), Refusal> {
    let name = &wish.release;
    let kaas = offer.kaas.as_ref().map_err(|none| refusal("NoActiveRelease", none.to_string()))?;
    if offer.release.is_none() {
        let reason = format!("there is no ClusterRelease {name:?}: `slipway release list` shows those that are there");
        return Err(refusal("UnknownRelease", reason));
    }
    if !catalogue::supported(kaas, name, PROVIDER) {
        let version = &kaas.spec.version;
        let reason = format!("the active KaaSRelease {version} does not support {name} for the provider {PROVIDER}");
        return Err(refusal("UnsupportedRelease", reason));
    }
    Ok(())
}

/// Whether the charts of a cluster are those of its release.
///
/// # Errors
///
/// What is not.
pub fn overrides(wish: &ClusterWish, offer: &Offer) -> Result<(), Refusal> {
    let Some(release) = &offer.release else { return Ok(()) };
    match charts(release, &wish.charts) {
        Ok(_) => Ok(()),
        Err(fault) => Err(Refusal { reason: "InvalidCharts", field: "helmReleases", message: fault.to_string() }),
    }
}

/// Whether a cluster may go from releases that its nodes have, or are on their way to, to the one that it names now.
///
/// # Errors
///
/// Why not.
pub fn upgrade<'a>(wish: &ClusterWish, from: impl IntoIterator<Item = &'a str>, offer: &Offer) -> Result<(), Refusal> {
    let target = &wish.release;
    let kaas = offer.kaas.as_ref().map_err(|none| refusal("NoActiveRelease", none.to_string()))?;
    for current in from.into_iter().filter(|current| !current.is_empty() && current != target) {
        let available = catalogue::available_upgrades(kaas, current);
        if available.iter().any(|one| one.name == *target) {
            continue;
        }
        let names: Vec<&str> = available.iter().map(|one| one.name.as_str()).collect();
        let what = if names.is_empty() { "nothing may".to_owned() } else { format!("these may: {}", names.join(", ")) };
        return Err(refusal("NotInUpgradePath", format!("{target} may not follow {current}: {what}")));
    }
    Ok(())
}

/// What of a cluster changes that may not while it is in maintenance.
pub fn held_by_maintenance(old: &ClusterWish, new: &ClusterWish) -> Option<&'static str> {
    if !old.maintenance {
        return None;
    }
    let fields: [(&'static str, bool); 8] = [
        ("release", old.release != new.release),
        ("helmReleases", old.charts != new.charts),
        ("dedicatedControlPlane", old.dedicated_control_plane != new.dedicated_control_plane),
        ("loadBalancerHost", old.host != new.host),
        ("maxWorkerPrepareCount", old.max_worker_prepare_count != new.max_worker_prepare_count),
        ("maxWorkerUpgradeCount", old.max_worker_upgrade_count != new.max_worker_upgrade_count),
        ("clusterNetwork", old.networks != new.networks),
        ("credentials", old.idle != new.idle),
    ];
    fields.into_iter().find(|(_, changes)| *changes).map(|(field, _)| field)
}

/// What of a cluster never changes once it is made: what its nodes have it in.
pub fn fixed(old: &ClusterWish, new: &ClusterWish) -> Option<&'static str> {
    let fields: [(&'static str, bool); 2] =
        [("loadBalancerHost", old.host != new.host), ("clusterNetwork", old.networks != new.networks)];
    fields.into_iter().find(|(_, changes)| *changes).map(|(field, _)| field)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::release::catalogue::charts::ChartOverride;

    fn offer(release: Option<&str>) -> Offer {
        let kaas = json!({"metadata": {"name": "k", "labels": {"kaas.mirantis.com/active": "true"}}, "spec": {"version": "2.30.0",
        "supportedClusterReleases": [
            {"name": "r1", "version": "1.0.0", "availableUpgrades": [{"version": "2.0.0"}, {"version": "3.0.0"}]},
            {"name": "r2", "version": "2.0.0", "availableUpgrades": [{"version": "3.0.0"}, {"version": "4.0.0"}]},
            {"name": "r3", "version": "3.0.0"},
            {"name": "r4", "version": "4.0.0", "providers": {"supported": ["aws"]}},
        ]}});
        let release = release.map(|name| {
            let release = json!({"metadata": {"name": name}, "spec": {"version": "1.0.0",
                "helm": {"releases": [{"name": "a"}, {"name": "b", "required": true}]}}});
            Arc::new(serde_json::from_value(release).unwrap())
        });
        Offer { kaas: Ok(Arc::new(serde_json::from_value(kaas).unwrap())), release }
    }

    fn wish(release: &str) -> ClusterWish {
        ClusterWish { release: release.into(), ..ClusterWish::default() }
    }

    #[test]
    fn a_cluster_has_a_release_that_is_there_and_supported() {
        for (name, offered, wanted) in [
            ("r1", offer(Some("r1")), None),
            ("r1", offer(None), Some("UnknownRelease")),
            ("r9", offer(Some("r9")), Some("UnsupportedRelease")),
            ("r4", offer(Some("r4")), Some("UnsupportedRelease")),
            ("r1", Offer { kaas: Err(catalogue::NoActive::None), ..offer(Some("r1")) }, Some("NoActiveRelease")),
        ] {
            assert_eq!(release(&wish(name), &offered).err().map(|refusal| refusal.reason), wanted, "{name}");
        }
    }

    #[test]
    fn an_upgrade_goes_along_the_path_from_each_release_that_nodes_have() {
        for (from, to, allowed) in [
            (vec![], "r3", true),
            (vec!["r1"], "r1", true),
            (vec!["r1"], "r2", true),
            (vec!["r1"], "r4", false),
            (vec!["r2"], "r1", false),
            (vec!["r3"], "r1", false),
            (vec!["gone"], "r1", false),
            // Some nodes have the first release, and some the second one already.
            (vec!["r1", "r2"], "r3", true),
            (vec!["r1", "r2"], "r4", false),
            (vec!["", "r1"], "r2", true),
        ] {
            let judged = upgrade(&wish(to), from.iter().copied(), &offer(Some(to)));
            assert_eq!(judged.is_ok(), allowed, "{from:?} {to}: {judged:?}");
        }
        let said = upgrade(&wish("r4"), ["r1"], &offer(Some("r4"))).unwrap_err();
        assert_eq!(said.to_string(), "r4 may not follow r1: these may: r2, r3");
    }

    #[test]
    fn charts_are_those_of_the_release() {
        let of = |name: &str, enabled| ClusterWish {
            charts: vec![ChartOverride { name: name.into(), enabled, values: None }],
            ..wish("r1")
        };
        for (wish, allowed) in
            [(of("a", Some(false)), true), (of("b", None), true), (of("b", Some(false)), false), (of("c", None), false)]
        {
            assert_eq!(overrides(&wish, &offer(Some("r1"))).is_ok(), allowed, "{:?}", wish.charts);
        }
    }

    #[test]
    fn in_maintenance_only_keys_change() {
        let held = |change: fn(&mut ClusterWish)| {
            let old = ClusterWish { maintenance: true, ..wish("r1") };
            let mut new = old.clone();
            change(&mut new);
            held_by_maintenance(&old, &new)
        };
        assert_eq!(held(|wish| wish.public_keys.push("k".into())), None);
        assert_eq!(held(|wish| wish.maintenance = false), None);
        assert_eq!(held(|wish| wish.release = "r2".into()), Some("release"));
        assert_eq!(held(|wish| wish.max_worker_upgrade_count = Some(2)), Some("maxWorkerUpgradeCount"));
        assert_eq!(held(|wish| (wish.maintenance, wish.host) = (false, "x".into())), Some("loadBalancerHost"));
        let begins = ClusterWish { maintenance: true, ..wish("r2") };
        assert_eq!(held_by_maintenance(&wish("r1"), &begins), None);
        assert_eq!(fixed(&wish("r1"), &ClusterWish { host: "y".into(), ..wish("r1") }), Some("loadBalancerHost"));
        assert_eq!(fixed(&wish("r1"), &wish("r2")), None);
    }
}
