//! What a run changed on a node, out of what dpkg said before and after. What it says is the node's. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::super::progress::short;
use crate::api::bpa::software::{MAX_PACKAGES, NodePackages, PackageChange};

/// Letters of a name and of a version that are shown.
const SHOWN: usize = 128;
/// Changes that a status tells, of all nodes: each is up to 600 bytes, and an object has three megabytes.
const TOLD: usize = 2000;

/// The lines of `dpkg-query`: status, name, version.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PackageLines {
    before: Vec<String>,
    after: Vec<String>,
}

/// What is known of a node; `told` is what the run left of it, if it left anything.
pub fn of_node(name: &str, told: Option<&str>) -> NodePackages {
    let told = told.and_then(|told| serde_json::from_str::<PackageLines>(told).ok());
    let Some(told) = told else {
        return NodePackages { name: name.into(), state: "Unknown".into(), ..NodePackages::default() };
    };
    let (before, after) = (versions(&told.before), versions(&told.after));
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let changed = names.into_iter().filter(|name| before.get(name) != after.get(name)).map(|name| {
        let version = |of: &BTreeMap<&str, &str>| of.get(name).map(|version| short(version, SHOWN));
        PackageChange { name: short(name, SHOWN), before: version(&before), after: version(&after) }
    });
    let changed: Vec<_> = changed.take(2 * MAX_PACKAGES).collect();
    let state = if changed.is_empty() { "Unchanged" } else { "Changed" };
    NodePackages { name: name.into(), state: state.into(), changed, more: None }
}

/// Versions of the packages that are installed, not of those that are known only.
fn versions(lines: &[String]) -> BTreeMap<&str, &str> {
    fn one(line: &str) -> Option<(&str, &str)> {
        let mut words = line.split_ascii_whitespace();
        let (status, name, version) = (words.next()?, words.next()?, words.next()?);
        (status.as_bytes().get(1) == Some(&b'i')).then_some((name, version))
    }
    lines.iter().take(4 * MAX_PACKAGES).filter_map(|line| one(line)).collect()
}

/// So many changes of all nodes together as a status has room for; of the rest it is told how many they are.
pub fn bounded(mut nodes: Vec<NodePackages>) -> Vec<NodePackages> {
    let mut room = TOLD;
    for node in &mut nodes {
        let more = node.changed.len().saturating_sub(room);
        node.changed.truncate(room);
        room -= node.changed.len();
        node.more = Some(i64::try_from(more).unwrap_or(i64::MAX)).filter(|more| *more > 0);
    }
    nodes
}

/// All changes in a sentence.
pub fn sentence(nodes: &[NodePackages]) -> String {
    let of_node = |node: &NodePackages| node.changed.len() as u64 + node.more.map_or(0, i64::unsigned_abs);
    let changed: Vec<&NodePackages> = nodes.iter().filter(|node| of_node(node) > 0).collect();
    let packages: u64 = changed.iter().map(|node| of_node(node)).sum();
    match changed.len() {
        0 => "all packages were there already".into(),
        1 => format!("{packages} packages changed on {}", changed[0].name),
        many => format!("{packages} packages changed on {many} nodes"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_other_than_before_is_told() {
        let told = json!({
            "before": ["ii  jq 1.5", "ii  htop 3.2", "rc  curl 7.0", "un  tmux "],
            "after": ["ii  jq 1.6", "ii  htop 3.2", "ii  curl 7.88", "hi  tmux 3.3"],
        });
        let node = of_node("w", Some(&told.to_string()));
        let change = |name: &str, before: Option<&str>, after: &str| PackageChange {
            name: name.into(),
            before: before.map(str::to_owned),
            after: Some(after.into()),
        };
        assert_eq!(
            node.changed,
            [change("curl", None, "7.88"), change("jq", Some("1.5"), "1.6"), change("tmux", None, "3.3")]
        );
        assert_eq!(node.state, "Changed");
        let same = of_node("m", Some("{}"));
        assert_eq!((same.state.as_str(), same.changed.len()), ("Unchanged", 0));
        assert_eq!(of_node("x", None).state, "Unknown");
        assert_eq!(of_node("x", Some("[")).state, "Unknown");
        assert_eq!(sentence(&[node, same.clone()]), "3 packages changed on w");
        assert_eq!(sentence(&[same]), "all packages were there already");
        let flood: Vec<String> = (0..9999).map(|number| format!("ii  p{number} {}", "x".repeat(999))).collect();
        let node = of_node("w", Some(&json!({"after": flood}).to_string()));
        assert!(
            node.changed.len() <= 2 * MAX_PACKAGES
                && node.changed[0].after.as_ref().is_some_and(|text| text.len() == SHOWN)
        );
    }

    #[test]
    fn a_status_has_room_for_what_many_nodes_say() {
        let change = PackageChange { name: "p".repeat(SHOWN), before: None, after: Some("v".repeat(SHOWN)) };
        let node = |number: usize, changes: usize| NodePackages {
            name: format!("w-{number}"),
            state: "Changed".into(),
            changed: vec![change.clone(); changes],
            more: None,
        };
        let told = bounded((0..509).map(|number| node(number, 400)).collect());
        assert_eq!((told[4].more, told[5].changed.len(), told[5].more), (None, 0, Some(400)));
        assert!(serde_json::to_vec(&told).expect("JSON").len() < 1 << 20);
        assert_eq!(sentence(&told), "203600 packages changed on 509 nodes");
        assert_eq!(bounded(vec![node(1, 1)]), vec![node(1, 1)]);
    }
}
