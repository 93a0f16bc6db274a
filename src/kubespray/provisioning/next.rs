//! Which run of kubespray comes next, if one does. Pure.
//!
//! The first one installs the cluster. Workers that are wanted no more are taken out of it by `remove-node`, before anything else is
//! done; those that come later are added by `scale`, which touches only them. Whatever failed is not repeated by itself: the annotation
//! `bpa.akraino.org/run` asks for another run.

use super::wanted::WantedNode;
use crate::api::bpa::{ANNOTATION_RUN, RunProgress};
use crate::kubespray::runs::Playbook;

/// Longest value of the annotation that is understood.
const ASKED_MAX: usize = 100;
/// A run that is noted, and may not be there yet.
pub const STARTING: &str = "Starting";
/// One that was seen.
pub const RUNNING: &str = "Running";
/// Every host did what it was to.
pub const SUCCEEDED: &str = "Succeeded";
/// Nobody knows how it ended.
pub const LOST: &str = "Lost";

/// Playbooks that a Provisioning has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaybookKind {
    /// Installs the cluster, or brings it to what the inventory says.
    Cluster,
    /// Adds workers.
    Scale,
    /// Upgrades it to what the checkout has.
    Upgrade,
    /// Takes workers out of it, which are drained and emptied.
    Remove,
    /// Takes workers out of it that do not answer any more, and does not try to reach them.
    RemoveUngraceful,
}

impl PlaybookKind {
    const ALL: [Self; 5] = [Self::Cluster, Self::Scale, Self::Upgrade, Self::Remove, Self::RemoveUngraceful];

    /// As status and annotation have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Scale => "scale",
            Self::Upgrade => "upgrade-cluster",
            Self::Remove => "remove-node",
            Self::RemoveUngraceful => "remove-node-ungraceful",
        }
    }

    /// What is run; `nodes` are those that it removes, if it does.
    pub fn playbook(self, nodes: &[String]) -> Playbook {
        match self {
            Self::Cluster => Playbook::Cluster,
            Self::Scale => Playbook::Scale,
            Self::Upgrade => Playbook::UpgradeCluster,
            Self::Remove | Self::RemoveUngraceful => Playbook::RemoveNode { nodes: nodes.to_vec() },
        }
    }

    /// Whether it takes nodes out of the cluster.
    pub fn removes(self) -> bool {
        matches!(self, Self::Remove | Self::RemoveUngraceful)
    }

    /// The kind that a status or an annotation names.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// What to do about a cluster whose nodes can all be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaybookAction {
    /// Nothing: all of it is installed.
    Rest,
    /// Nothing: the last run did not succeed.
    Stuck,
    /// A run.
    Begin(WishedRun),
    /// Nothing, for what is asked for cannot be done.
    Refuse(String),
}

/// A run that is to be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WishedRun {
    /// Which one of its object's.
    pub number: i64,
    /// What is run.
    pub kind: PlaybookKind,
    /// Only these nodes; empty: all.
    pub limit: Vec<String>,
    /// Whether it is what the annotation asks for.
    pub is_asked: bool,
}

/// What is known when the next run is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'s> {
    /// Nodes that are wanted.
    pub nodes: &'s [WantedNode],
    /// Those that were installed.
    pub installed: &'s [String],
    /// Those of them that are wanted no more, and are none of `nodes`.
    pub leaving: &'s [String],
    /// The run that was begun last.
    pub run: Option<&'s RunProgress>,
    /// The annotation.
    pub asked: Option<&'s str>,
}

impl Standing<'_> {
    /// Nodes that were not installed yet.
    pub fn new_nodes(&self) -> Vec<&WantedNode> {
        self.nodes.iter().filter(|node| !self.installed.iter().any(|name| name == node.name.as_str())).collect()
    }

    /// Why nothing can be installed: kubespray adds masters, which are members of etcd, in steps by hand only.
    pub fn refused_masters(&self) -> Option<String> {
        let new: Vec<_> = self.new_nodes().into_iter().filter(|node| node.is_master).map(|node| &node.name).collect();
        let first = new.first().filter(|_| !self.installed.is_empty())?;
        Some(format!(
            "{first} is a new master, and the cluster is installed: kubespray adds members of etcd in steps by hand \
             (docs/operations/nodes.md of its checkout), and a Provisioning does not. Make it anew, or let the cluster have the masters that it has"
        ))
    }
}

/// Which run comes next.
pub fn next(standing: &Standing<'_>) -> PlaybookAction {
    let number = standing.run.map_or(0, |run| run.number).max(0);
    let new: Vec<String> = standing.new_nodes().iter().map(|node| node.name.to_string()).collect();
    let begin = |number, kind, is_asked| {
        let limit = if kind == PlaybookKind::Scale { new.clone() } else { Vec::new() };
        PlaybookAction::Begin(WishedRun { number, kind, limit, is_asked })
    };
    let last = standing.run.map(|run| PlaybookKind::of(&run.playbook).unwrap_or(PlaybookKind::Cluster));
    // Noted to remove nodes that are wanted again: there is nothing to be done.
    let is_void = standing.leaving.is_empty() && last.is_some_and(PlaybookKind::removes);
    if let Some((run, kind)) = standing.run.zip(last).filter(|(run, _)| run.state == STARTING && !is_void) {
        // It was noted, and not begun.
        return begin(number, kind, run.asked.as_deref() == standing.asked && run.asked.is_some());
    }
    let Some(one_more) = number.checked_add(1) else {
        return PlaybookAction::Refuse("there were too many runs".into());
    };
    let Some(run) = standing.run else { return begin(one_more, PlaybookKind::Cluster, standing.asked.is_some()) };
    let is_well = run.state == SUCCEEDED || (run.state == STARTING && is_void);
    let asked = standing.asked.filter(|asked| run.asked.as_deref() != Some(*asked)).map(asked_for);
    if let Some(first) = standing.leaving.first() {
        return match asked {
            Some(Ok(kind)) if kind.removes() => begin(one_more, kind, true),
            _ if is_well => begin(one_more, PlaybookKind::Remove, false),
            Some(Ok(_)) => {
                PlaybookAction::Refuse(format!("{ANNOTATION_RUN}: {first} is removed first, by remove-node/1"))
            }
            Some(Err(reason)) => PlaybookAction::Refuse(reason),
            None => PlaybookAction::Stuck,
        };
    }
    if let Some(asked) = asked {
        return match asked {
            Err(reason) => PlaybookAction::Refuse(reason),
            // There is none yet to be added to, or upgraded.
            Ok(PlaybookKind::Scale | PlaybookKind::Upgrade) if standing.installed.is_empty() => {
                begin(one_more, PlaybookKind::Cluster, true)
            }
            Ok(PlaybookKind::Scale) if new.is_empty() => {
                PlaybookAction::Refuse(format!("{ANNOTATION_RUN}: scale adds workers, and there is no new one"))
            }
            Ok(kind) if kind.removes() => PlaybookAction::Refuse(format!(
                "{ANNOTATION_RUN}: no node is to be removed: take it out of spec.workers"
            )),
            Ok(kind) => begin(one_more, kind, true),
        };
    }
    match is_well {
        false => PlaybookAction::Stuck,
        true if new.is_empty() => PlaybookAction::Rest,
        true => begin(
            one_more,
            if standing.installed.is_empty() { PlaybookKind::Cluster } else { PlaybookKind::Scale },
            false,
        ),
    }
}

/// What an annotation asks for.
fn asked_for(asked: &str) -> Result<PlaybookKind, String> {
    let kind = Some(asked).filter(|asked| asked.len() <= ASKED_MAX);
    kind.and_then(|asked| PlaybookKind::of(asked.split('/').next()?))
        .ok_or_else(|| format!("{ANNOTATION_RUN} is no playbook and a word, as cluster/1 or upgrade-cluster/1"))
}

/// The value of the annotation that is kept with a run.
pub fn kept(asked: Option<&str>) -> Option<String> {
    asked.map(|asked| asked.chars().take(ASKED_MAX).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::{read, tests::object};
    use super::*;

    #[test]
    fn a_run_follows_from_what_is_installed_and_from_what_is_asked_for() {
        let cluster =
            read(&object(json!({"masters": [{"m": {"cpu": 1}}], "workers": [{"w": {"cpu": 1}}, {"x": {"cpu": 1}}]})));
        let nodes = cluster.unwrap().nodes;
        let run = |number, state: &str, playbook: &str, asked: Option<&str>| {
            let (state, playbook, asked) = (state.into(), playbook.into(), asked.map(Into::into));
            Some(RunProgress { number, state, playbook, asked, ..RunProgress::default() })
        };
        let begin = |number, kind, limit: &[&str]| {
            let limit = limit.iter().map(|name| (*name).to_owned()).collect();
            PlaybookAction::Begin(WishedRun { number, kind, limit, is_asked: false })
        };
        let asked_begin = |number, kind, limit: &[&str]| match begin(number, kind, limit) {
            PlaybookAction::Begin(wish) => PlaybookAction::Begin(WishedRun { is_asked: true, ..wish }),
            other => other,
        };
        let refuse = |part: &str| PlaybookAction::Refuse(part.to_owned());
        type Row<'r> = (&'r [&'r str], Option<RunProgress>, Option<&'r str>, PlaybookAction);
        let all = ["m", "w", "x"];
        let rows: Vec<Row<'_>> = vec![
            (&[], None, None, begin(1, PlaybookKind::Cluster, &[])),
            // What the first run is asked for is that run.
            (&[], None, Some("scale/1"), asked_begin(1, PlaybookKind::Cluster, &[])),
            (&[], run(1, STARTING, "cluster", None), None, begin(1, PlaybookKind::Cluster, &[])),
            (&["m"], run(2, STARTING, "scale", None), Some("cluster/9"), begin(2, PlaybookKind::Scale, &["w", "x"])),
            (&all, run(1, SUCCEEDED, "cluster", None), None, PlaybookAction::Rest),
            (&["m", "w"], run(1, SUCCEEDED, "cluster", None), None, begin(2, PlaybookKind::Scale, &["x"])),
            (&[], run(1, "Failed", "cluster", None), None, PlaybookAction::Stuck),
            (&["m", "w"], run(2, "Failed", "scale", None), None, PlaybookAction::Stuck),
            (&["m", "w"], run(2, LOST, "scale", Some("a")), Some("a"), PlaybookAction::Stuck),
            (&["m", "w"], run(2, LOST, "scale", None), Some("scale/1"), asked_begin(3, PlaybookKind::Scale, &["x"])),
            (&[], run(1, "Cancelled", "cluster", None), Some("scale/1"), asked_begin(2, PlaybookKind::Cluster, &[])),
            (
                &[],
                run(1, "Failed", "cluster", None),
                Some("upgrade-cluster/1"),
                asked_begin(2, PlaybookKind::Cluster, &[]),
            ),
            (&all, run(3, SUCCEEDED, "scale", Some("cluster/1")), Some("cluster/1"), PlaybookAction::Rest),
            (
                &all,
                run(3, SUCCEEDED, "scale", Some("cluster/1")),
                Some("cluster/2"),
                asked_begin(4, PlaybookKind::Cluster, &[]),
            ),
            (
                &all,
                run(3, SUCCEEDED, "scale", None),
                Some("upgrade-cluster"),
                asked_begin(4, PlaybookKind::Upgrade, &[]),
            ),
            (&all, run(3, SUCCEEDED, "scale", None), Some("scale/7"), refuse("no new one")),
            (&all, run(3, SUCCEEDED, "scale", None), Some("reset/7"), refuse("no playbook")),
            (&all, run(3, SUCCEEDED, "scale", None), Some("../../x"), refuse("no playbook")),
            (&all, run(i64::MAX, "Failed", "scale", None), Some("cluster/7"), refuse("too many")),
        ];
        for (installed, run, asked, wanted) in rows {
            let installed: Vec<String> = installed.iter().map(|name| (*name).to_owned()).collect();
            let standing = Standing { nodes: &nodes, installed: &installed, leaving: &[], run: run.as_ref(), asked };
            match (next(&standing), wanted) {
                (PlaybookAction::Refuse(reason), PlaybookAction::Refuse(part)) => {
                    assert!(reason.contains(&part), "{reason}")
                }
                (found, wanted) => assert_eq!(found, wanted, "{standing:?}"),
            }
        }
    }

    #[test]
    fn nodes_that_are_wanted_no_more_are_removed_before_anything_else() {
        let cluster = json!({"masters": [{"m": {"cpu": 1}}], "workers": [{"w": {"cpu": 1}}, {"x": {"cpu": 1}}]});
        let nodes = read(&object(cluster)).unwrap().nodes;
        let run = |state: &str, playbook: &str, asked: Option<&str>| {
            let (state, playbook, asked) = (state.into(), playbook.into(), asked.map(Into::into));
            RunProgress { number: 1, state, playbook, asked, ..RunProgress::default() }
        };
        let begin =
            |number, kind, is_asked| PlaybookAction::Begin(WishedRun { number, kind, limit: Vec::new(), is_asked });
        let refuse = |part: &str| PlaybookAction::Refuse(part.to_owned());
        let rows = [
            (run(SUCCEEDED, "cluster", None), None, begin(2, PlaybookKind::Remove, false)),
            // What is asked for comes when they are gone.
            (run(SUCCEEDED, "cluster", None), Some("cluster/1"), begin(2, PlaybookKind::Remove, false)),
            (
                run(SUCCEEDED, "cluster", None),
                Some("remove-node-ungraceful/1"),
                begin(2, PlaybookKind::RemoveUngraceful, true),
            ),
            (run(STARTING, "remove-node", None), None, begin(1, PlaybookKind::Remove, false)),
            (run("Failed", "remove-node", None), None, PlaybookAction::Stuck),
            (run("Failed", "scale", None), None, PlaybookAction::Stuck),
            (run("Failed", "remove-node", None), Some("remove-node/1"), begin(2, PlaybookKind::Remove, true)),
            (
                run(LOST, "remove-node", None),
                Some("remove-node-ungraceful/1"),
                begin(2, PlaybookKind::RemoveUngraceful, true),
            ),
            (run("Failed", "remove-node", Some("remove-node/1")), Some("remove-node/1"), PlaybookAction::Stuck),
            (run("Failed", "remove-node", None), Some("cluster/1"), refuse("gone is removed first")),
            (run("Failed", "remove-node", None), Some("x"), refuse("no playbook")),
        ];
        let installed = ["m", "w", "x", "gone"].map(str::to_owned);
        let gone = ["gone".to_owned()];
        let of = |run: &RunProgress, asked: Option<&str>, leaving: &[String]| {
            next(&Standing { nodes: &nodes, installed: &installed, leaving, run: Some(run), asked })
        };
        for (run, asked, wanted) in rows {
            match (of(&run, asked, &gone), wanted) {
                (PlaybookAction::Refuse(reason), PlaybookAction::Refuse(part)) => {
                    assert!(reason.contains(&part), "{reason}")
                }
                (found, wanted) => assert_eq!(found, wanted, "{run:?} {asked:?}"),
            }
        }
        // Without such nodes nothing of the kind is begun, noted or asked for.
        let noted = run(STARTING, "remove-node", None);
        assert_eq!(of(&noted, None, &[]), PlaybookAction::Rest);
        let asked = of(&run(SUCCEEDED, "cluster", None), Some("remove-node/1"), &[]);
        assert!(
            matches!(&asked, PlaybookAction::Refuse(reason) if reason.contains("no node is to be removed")),
            "{asked:?}"
        );
    }

    #[test]
    fn masters_are_added_before_the_cluster_is_installed_and_not_after() {
        let three = json!({"masters": [{"a": {"cpu": 1}}, {"b": {"cpu": 1}}, {"c": {"cpu": 1}}]});
        let nodes = read(&object(three)).unwrap().nodes;
        let refused = |installed: &[&str]| {
            let installed: Vec<String> = installed.iter().map(|name| (*name).to_owned()).collect();
            Standing { nodes: &nodes, installed: &installed, leaving: &[], run: None, asked: None }.refused_masters()
        };
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&["a", "b", "c"]), None);
        assert!(refused(&["a"]).unwrap().starts_with("b is a new master"));
    }
}
